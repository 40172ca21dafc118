"""Tables in an object store: what differs from a directory, on a real S3 server.

What all targets promise, they are asked in the suites of EVERY_KIND, which `make stores` runs.
"""

import concurrent.futures
import os
import re
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition
from pyarrow.fs import FileSelector
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from requests.exceptions import RequestException

import pyspark_kafkalog
from pyspark_kafkalog import cli
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import InvalidOptionError, MissingExtraError, TargetError
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.warehouse.commit import Step
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.targets import (
    delta,
    iceberg,
    iceberg_rest,
    object_location,
    object_table,
)
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import begin, load
from tests.pyspark_kafkalog.warehouse.tables import (
    InS3,
    RestIcebergTable,
    expected_rows,
    table_of,
)
from tests.support.nessie import nessie
from tests.support.s3_server import BUCKET, IS_MINIO, s3
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture(params=["delta-s3", "iceberg-s3"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InS3]:
    made = table_of(request.param, tmp_path)
    assert isinstance(made, InS3)
    yield made
    s3().fail("none")


AWS_WORDS = {"SlowDown": "HTTP status 503", "ExpiredToken": "HTTP status 400"}
"""What Arrow's own client, which pyiceberg uses, makes of them."""


def fail_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (object_location, object_table):
        monkeypatch.setattr(module, "RETRIES", 1)


by_log_entries = pytest.mark.parametrize("table", ["delta-s3"], indirect=True)
"""Whose commit is a put: that of an Iceberg table is its catalog's."""


@by_log_entries
def test_a_commit_whose_answer_was_lost_is_known_as_ours(table: InS3) -> None:
    load(table.open(), "nightly", 3)
    s3().fail("lost")
    commit = load(table.open(), "nightly", 7)
    assert commit is not None
    assert commit.offsets["nightly"] == table.open().position("nightly").offsets
    assert table.rows() == expected_rows("nightly", 7)


@pytest.mark.long
@by_log_entries
def test_so_is_one_that_also_changes_the_columns(table: InS3) -> None:
    load(table.open(), "nightly", 3)
    s3().fail("lost")
    assert load(table.open(), "nightly", 7, headers=True, change=SchemaChange(adds=True))
    assert table.rows() == expected_rows("nightly", 7)
    assert table.offsets("nightly") == {0: 7, 1: 7}


@pytest.mark.long
def test_a_table_of_nessie_without_a_snapshot_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of iceberg-rest: two first commits would take each other's rows away."""
    table = table_of("iceberg-rest", tmp_path)
    assert isinstance(table, RestIcebergTable)
    catalog = load_catalog("owner", **table.catalog)
    catalog.create_namespace(table.namespace)
    catalog.create_table((table.namespace, "orders"), row_schema())
    monkeypatch.setattr(iceberg, "WAITS_FOR_FIRST_SNAPSHOT", 1)
    with pytest.raises(TargetError, match="has no snapshot, and Nessie"):
        load(table.open(), "nightly", 3)
    catalog.drop_table((table.namespace, "orders"))
    load(table.open(), "nightly", 3)
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


@pytest.mark.long
def test_a_commit_whose_answer_a_rest_catalog_could_not_give_is_known_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of iceberg-rest: the answer is lost on its way, and the connection stays."""
    table = table_of("iceberg-rest", tmp_path)
    load(table.open(), "nightly", 3)
    uri = urlsplit(nessie().uri)
    assert uri.port
    monkeypatch.setattr(iceberg_rest, "ANSWER_TIMEOUT_S", 15)
    with TcpProxy(uri.port) as proxy:
        commit, lost = RestCatalog.commit_table, []

        def without_answer(*given: Any) -> Any:
            proxy.lose(answers=True)
            try:
                return commit(*given)
            except RequestException as error:
                lost.append(error)
                raise
            finally:
                proxy.lose()

        monkeypatch.setattr(RestCatalog, "commit_table", without_answer)
        target = open_target(table.name.replace(uri.netloc, proxy.address))
        done = load(target, "nightly", 7)
    assert done is not None
    assert len(lost) == 1
    assert table.rows() == expected_rows("nightly", 7)
    assert table.offsets("nightly") == {0: 7, 1: 7}


@pytest.mark.long
@by_log_entries
@pytest.mark.parametrize("until_offset", [3, 7])
def test_a_commit_of_which_nobody_can_tell_is_found_by_the_next_load(
    table: InS3, monkeypatch: pytest.MonkeyPatch, until_offset: int
) -> None:
    fail_soon(monkeypatch)
    if until_offset == 7:
        load(table.open(), "nightly", 3)
    target, pending = begin(table.open(), until_offset=until_offset)
    s3().fail("lost for long")
    with pytest.raises(TargetError, match=r"SlowDown.*") as caught:
        target.commit(pending)
    assert "to run the load again is safe" in str(caught.value)
    s3().fail("none")
    assert load(table.open(), "nightly", until_offset) is None
    load(table.open(), "nightly", 9)
    assert table.rows() == expected_rows("nightly", 9)


@pytest.mark.long
@pytest.mark.skipif(IS_MINIO, reason="conditions are signed")
@by_log_entries
def test_a_store_that_ignores_conditions_is_refused_before_anything_is_landed(
    table: InS3,
) -> None:
    s3().fail("blind")
    with pytest.raises(TargetError, match=r"created twice.*with conditional puts"):
        load(table.open(), "nightly", 3)
    assert table.rows() == {}


@pytest.mark.long
@pytest.mark.parametrize("fault", ["SlowDown", "ExpiredToken"])
def test_what_the_store_refuses_is_told_soon_and_without_secrets(
    table: InS3, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    load(table.open(), "nightly", 3)
    target, pending = begin(table.open())
    monkeypatch.setenv("AWS_SESSION_TOKEN", "sesame-token")
    s3().fail(fault)
    for act in (
        lambda: table.open().position("nightly"),
        lambda: table.open().stage(row_schema()),
        lambda: target.commit(pending),
        lambda: table.open().forget("nightly"),
        lambda: table.open().vacuum(0, False),
    ):
        began = time.monotonic()
        with pytest.raises(TargetError) as caught:
            act()
        assert time.monotonic() - began < 60
        assert re.search(rf"{fault}|{AWS_WORDS[fault]}", str(caught.value))
        assert "sesame" not in "".join(traceback.format_exception(caught.value))
    s3().fail("none")
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    assert table.rows() == expected_rows("nightly", 3)
    target.commit(pending)
    assert table.rows() == expected_rows("nightly", 7)


@pytest.mark.long
def test_a_swept_load_cannot_commit_any_more(table: InS3) -> None:
    load(table.open(), "hourly", 2)
    target, pending = begin(table.open())
    assert table.open().vacuum(-60, True) == [table.stage_url(pending.stage)]
    assert table.open().vacuum(-60, False) == [table.stage_url(pending.stage)]
    assert table.staged(pending.stage) == []
    with pytest.raises(TargetError, match="nothing was published"):
        target.commit(pending)
    assert table.rows() == expected_rows("hourly", 2)
    load(table.open(), "nightly", 7)
    assert table.open().vacuum(-60, False) == []
    assert table.rows() == expected_rows("hourly", 2) + expected_rows("nightly", 7)


@pytest.mark.long
@by_log_entries
@pytest.mark.parametrize("commits_before_the_fence", [False, True])
def test_a_sweep_beside_a_commit_that_has_seen_its_files(
    table: InS3, monkeypatch: pytest.MonkeyPatch, commits_before_the_fence: bool
) -> None:
    """The load has looked, the sweep takes its stage; whose commit comes first decides."""
    load(table.open(), "hourly", 2)
    target, pending = begin(table.open())
    sweeper, looked, swept = table.open(), threading.Event(), threading.Event()
    publish, fence = delta._FencedDelta.publish, delta.DeltaTarget._fence

    def wait_and_publish(fenced: Any, step: Step) -> int | None:
        looked.set()
        assert swept.wait(60)
        return publish(fenced, step)

    def meet_and_fence() -> None:
        if commits_before_the_fence:
            swept.set()
            concurrent.futures.wait([commit], 60)
        fence(sweeper)  # type: ignore[arg-type]
        swept.set()

    monkeypatch.setattr(delta._FencedDelta, "publish", wait_and_publish)
    monkeypatch.setattr(sweeper, "_fence", meet_and_fence)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        commit = threads.submit(target.commit, pending)
        assert looked.wait(60)
        removed = sweeper.vacuum(-60, False)
    if commits_before_the_fence:
        assert (commit.exception(), removed) == (None, [])
    else:
        assert "A sweep or a VACUUM removed" in str(commit.exception())
        assert removed == [table.stage_url(pending.stage)]
    expected = expected_rows("nightly", 7) if commits_before_the_fence else Counter()
    assert table.rows() == expected_rows("hourly", 2) + expected


@pytest.mark.long
def test_tables_are_kept_in_order(table: InS3) -> None:
    for until_offset in range(1, 8):
        load(table.open(), "nightly", until_offset)
    done = pyspark_kafkalog.maintain(table.name)
    assert (done.compacted_files, done.written_files, done.left) == (14, 1, ())
    assert table.rows() == expected_rows("nightly", 7)
    begin(table.open(), "dead")
    done = pyspark_kafkalog.maintain(table.name, retention_hours=0, force=True)
    assert done.left == ()
    selector = FileSelector(f"{BUCKET}/{table.prefix}", recursive=True)
    there = [file.path for file in table.files().get_file_info(selector)]
    # Neither what was compacted is left, nor the stage that no commit names.
    assert len([path for path in there if re.search(r"/load-.*\.parquet", path)]) == 1
    load(table.open(), "nightly", 9)
    assert table.rows() == expected_rows("nightly", 9)
    assert table.offsets("nightly") == {0: 9, 1: 9}


@pytest.mark.parametrize(
    "place",
    [
        "s3://loader:sesame@lake/orders",
        "s3://lake/orders?secret_access_key=sesame",
        "s3://lake/orders?no_such_setting=sesame",
        "gs://lake/orders?x=sesame",
    ],
)
def test_a_place_that_is_none_is_refused_without_showing_secrets(place: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        open_target(f"delta:{place}").position("nightly")
    assert "sesame" not in "".join(traceback.format_exception(caught.value))


def test_a_secret_of_an_iceberg_table_has_to_be_one_that_tasks_can_look_up(tmp_path: Path) -> None:
    place = f"uri=sqlite:///{tmp_path}/catalog.db&warehouse=s3://lake/x"
    target = open_target(f"iceberg:a.b?{place}&s3.secret-access-key=sesame")
    with pytest.raises(InvalidOptionError, match=r"write a reference.*s3.secret-access") as caught:
        target.stage(row_schema())
    assert "sesame" not in "".join(traceback.format_exception(caught.value))
    assert not (tmp_path / "catalog.db").exists() or target.names() == []


def test_the_extra_of_stores_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "pyspark_kafkalog.warehouse.targets.object_table"
    monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "obstore", None)
    for name in [
        name for name in sys.modules if name.endswith((".object_stage", ".object_location"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r"pip install 'pyspark-kafkalog\[objectstore\]'"):
        open_target("delta:s3://lake/x")


@pytest.mark.slow
def test_a_topic_is_loaded_with_secrets_that_each_process_looks_up(
    table: InS3, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By workers of their own, and by the command line."""
    values = [b"%d" % number for number in range(300)]
    with EmbeddedBroker() as broker:
        given = {"bootstrap.servers": broker.bootstrap_servers}
        with Cluster(ClientConfig.from_options(given)) as cluster:
            admin.create_topic(cluster, "orders", 2, 1)
        with Producer(ClientConfig.from_options(given)) as producer:
            for partition in (0, 1):
                encoder = RecordEncoder(2, Codec.NONE, max_batch_bytes=1000)
                rows = pa.RecordBatch.from_pydict({"value": values})
                for _, batch in [*encoder.encode(rows), *encoder.finish()]:
                    producer.send(TopicPartition("orders", partition), batch)
        for ours, name in (("ID", "AWS_ACCESS_KEY_ID"), ("KEY", "AWS_SECRET_ACCESS_KEY")):
            monkeypatch.setenv(f"LAKE_{ours}", os.environ[name])
            monkeypatch.delenv(name)
        secrets = "{}=${{env:LAKE_ID}}&{}=${{env:LAKE_KEY}}".format(*table.secrets)
        target = f"{table.name}&{secrets}"
        options = {f"kafka.{name}": value for name, value in given.items()}
        loaded = pyspark_kafkalog.load(
            None, "nightly", target, {**options, "subscribe": "orders"}, max_bytes=2000
        )
        assert 0 < loaded.records < 600
        place = ["--name", "nightly", "--to", target]
        assert cli.main(["load", "orders", "-b", given["bootstrap.servers"], *place]) == 0
        assert cli.main(["status", "--to", target]) == 0
    assert "sesame" not in f"{capsys.readouterr()} {loaded} {open_target(target)!r}"
    monkeypatch.undo()
    assert table.rows() == Counter(values + values)
    assert table.offsets("nightly") == {0: 300, 1: 300}
