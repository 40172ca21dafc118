"""Parquet targets in an object store: what differs from a directory, on a real S3 server."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog import committed_files
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import InvalidOptionError, TargetError
from pyspark_kafkalog.warehouse.targets import object_location, object_stage, parquet
from pyspark_kafkalog.warehouse.targets.object_storage import ObjectStorage
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_stage
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import load
from tests.pyspark_kafkalog.warehouse.tables import S3Table, expected_rows
from tests.support.patience import BUSY_S
from tests.support.s3_server import BUCKET, IS_MINIO, s3

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[S3Table]:
    yield S3Table(tmp_path)
    s3().fail("none")


@pytest.mark.skipif(IS_MINIO, reason="conditions are signed")
def test_a_store_that_ignores_conditions_is_refused_before_anything_is_landed(
    table: S3Table,
) -> None:
    s3().fail("blind")
    with pytest.raises(TargetError, match=r"created twice.*with conditional puts"):
        table.open().stage(row_schema())
    assert table.listed() == []


def test_a_commit_whose_answer_was_lost_is_known_as_ours(table: S3Table) -> None:
    load(table.open(), "nightly", 3)
    s3().fail("lost")
    commit = load(table.open(), "nightly", 7)
    assert commit is not None
    assert commit.sequence == 2
    assert table.rows() == expected_rows("nightly", 7)


def test_a_commit_that_was_not_rolled_forward_is_by_the_next_loader(
    table: S3Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table.open(), "nightly", 3)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "put_in_place", lambda *_: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 3)
    assert sum(read_rows(path) for path in committed_files(table.name[8:])) == 14
    assert table.open().position("nightly").offsets == {ORDERS_0: 7, ORDERS_1: 7}
    assert table.rows() == expected_rows("nightly", 7)
    assert sorted(committed_files(table.name[8:])) == [
        f"s3://{path}" for path in sorted(table.listed())
    ]


def read_rows(url: str) -> int:
    return pq.read_metadata(url.removeprefix("s3://"), filesystem=S3Table.files()).num_rows  # type: ignore[no-any-return]


def test_a_stage_is_gone_when_its_first_object_is(table: S3Table) -> None:
    target = table.open()
    stage = target.stage(row_schema())
    open_stage(stage.path).write("left.staged", b"rows")
    target.discard(stage)
    assert table.staged(stage) == []
    open_stage(stage.path).write("late.staged", b"of a task that did not know")
    load(table.open(), "nightly", 3)
    assert table.staged(stage) == []
    assert table.rows() == expected_rows("nightly", 3)


def test_idle_stages_are_swept_by_the_next_commit(
    table: S3Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, live = table.open().stage(row_schema()), table.open().stage(row_schema())
    monkeypatch.setattr(parquet, "ABANDONED_AFTER_S", 60)
    monkeypatch.setattr(time, "time", lambda real=time.time: real() + 3600)
    stages = ObjectStorage.stages
    monkeypatch.setattr(
        ObjectStorage, "stages", lambda self: stages(self) | {live.load_id: time.time()}
    )
    load(table.open(), "nightly", 3)
    assert table.staged(dead) == []
    assert table.staged(live) == ["stage"]


def test_files_are_uploaded_in_parts(table: S3Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_stage, "PART_BYTES", 5 * 1024 * 1024)
    stage = table.open().stage(row_schema())
    content = os.urandom(1024) * 1024
    sink = open_stage(stage.path).create("large")
    for _ in range(12):
        sink.write(content)
    assert sink.tell() == 12 * len(content)
    assert table.staged(stage) == ["stage"]
    sink.complete()
    dropped = open_stage(stage.path).create("dropped")
    dropped.write(content * 6)
    dropped.drop()
    assert table.staged(stage) == ["large", "stage"]
    path = f"{BUCKET}/{table.prefix}/_kafkalog/staging/{stage.load_id}/large"
    with S3Table.files().open_input_stream(path) as file:
        assert file.read() == content * 12


def test_marks_of_folders_and_files_of_others_do_not_disturb(table: S3Table) -> None:
    for folder in ("", "_kafkalog/commits", "_kafkalog/staging/folder"):
        S3Table.files().create_dir(f"{BUCKET}/{table.prefix}/{folder}")
    foreign = f"{BUCKET}/{table.prefix}/_kafkalog/commits/zzz.tmp"
    S3Table.files().open_output_stream(foreign).close()
    target = table.open()
    for until_offset in (3, 5, 7):
        load(target, "nightly", until_offset)
    assert table.rows() == expected_rows("nightly", 7)


def test_more_commits_than_are_listed_at_once(table: S3Table) -> None:
    storage = ObjectStorage(table.name.removeprefix("parquet:"))
    names = [f"{number:020}.json" for number in range(1, 6)]
    for name in names[:3]:
        assert storage.create_commit(name, name.encode(), "")
    assert storage.commit_names() == names[:3]
    for name in names[3:]:
        assert storage.create_commit(name, name.encode(), "")
    assert storage.commit_names() == names
    assert not storage.create_commit(names[0], b"another", "")
    assert storage.read_commit(names[0]) == names[0].encode()


def test_files_of_others_are_refused(table: S3Table) -> None:
    with S3Table.files().open_output_stream(f"{BUCKET}/{table.prefix}/theirs.parquet") as file:
        file.write(b"PAR1")
    with pytest.raises(TargetError, match=r"files of others \(theirs.parquet\)"):
        table.open().position("nightly")


@pytest.mark.parametrize(
    "place",
    [
        "s3://loader:sesame@lake/orders",
        "s3://lake/orders?secret_access_key=sesame",
        "s3://lake/orders?aws_session_token=sesame",
        "abfs://lake@account.dfs.core.windows.net/x?sas_token=sesame",
        "s3://lake/orders?no_such_setting=sesame",
        "s3://lake/orders#sesame",
        "nosuch://lake/sesame",
        "s3://",
    ],
)
def test_a_place_that_is_none_is_refused_without_showing_secrets(place: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        open_target(f"parquet:{place}").position("nightly")
    assert "sesame" not in str(caught.value).replace("nosuch://lake/sesame", "")


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize(
    ("place", "setting"),
    [
        ("abfs://lake/orders", "container_name=other"),
        ("abfs://lake/orders", "azure_container_name=other"),
        ("abfss://lake@loader.dfs.core.windows.net/orders", "account_name=other"),
        ("abfss://lake@loader.dfs.core.windows.net/orders", "AZURE_STORAGE_ACCOUNT_NAME=other"),
        ("s3://lake/orders", "bucket=other"),
        ("s3://lake/orders", "aws_bucket_name=other"),
    ],
)
def test_a_setting_that_names_another_place_than_the_url_is_refused(
    kind: str, place: str, setting: str
) -> None:
    """The table's log would be in one place and its files in the other."""
    name = setting.partition("=")[0]
    with pytest.raises(InvalidOptionError, match=f"the setting {name} .* another place than"):
        open_target(f"{kind}:{place}?{setting}")


def test_the_account_of_the_url_may_be_said_twice() -> None:
    place = "abfss://lake@loader.dfs.core.windows.net/orders"
    assert str(open_target(f"parquet:{place}?account_name=loader")) == f"parquet:{place}"


def test_secrets_are_looked_up_where_the_store_is_opened(
    table: S3Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_KEY", os.environ["AWS_SECRET_ACCESS_KEY"])
    target = open_target(f"{table.name}&secret_access_key=${{env:LAKE_KEY}}")
    stage = target.stage(row_schema())
    assert "sesame" not in f"{target!r} {target} {stage}"
    assert str(target) == f"parquet:s3://{BUCKET}/{table.prefix}"
    open_stage(stage.path).write("small", b"")
    monkeypatch.delenv("LAKE_KEY")
    with pytest.raises(InvalidOptionError, match="LAKE_KEY, which is not set"):
        open_stage(stage.path).write("small", b"")


def test_settings_may_be_those_of_connections(silence: str) -> None:
    place = f"{s3().url('connections')}&endpoint={silence}&allow_http=true&timeout=100ms"
    began = time.monotonic()
    with pytest.raises(TargetError, match="connections"):
        open_target(f"parquet:{place}").position("nightly")
    assert time.monotonic() - began < object_location.REQUEST_TIMEOUT_S
    with pytest.raises(InvalidOptionError, match=r'cannot be opened: .*parse "soon"'):
        open_target(f"parquet:{s3().url('x')}&timeout=soon").position("nightly")


@pytest.fixture
def silence() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("answers", [False, True])
def test_without_credentials_it_is_told_soon_what_to_set(
    answers: bool, silence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_location, "_METADATA_TIMEOUT_S", 0.2)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    machine = silence if answers else "http://127.0.0.1:9"
    target = open_target(f"parquet:s3://lake/x?metadata_endpoint={machine}")
    began = time.monotonic()
    with pytest.raises(TargetError, match=r"no credentials .*set AWS_ACCESS_KEY_ID.*AWS_REGION"):
        target.position("nightly")
    assert time.monotonic() - began < 5 + BUSY_S


@pytest.mark.parametrize(
    ("place", "prefixes", "word"),
    [
        ("abfs://lake/x?account_name=loader", ("AZURE_", "IDENTITY_", "MSI_"), "AZURE_STORAGE_"),
        ("gs://lake/x", ("GOOGLE_", "SERVICE_"), "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_so_it_is_for_other_stores(
    place: str,
    prefixes: tuple[str, ...],
    word: str,
    silence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_location, "_METADATA_ENDPOINT", silence)
    monkeypatch.setattr(object_location, "_METADATA_TIMEOUT_S", 0.2)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        monkeypatch.delenv(name)
    target = open_target(f"parquet:{place}")
    began = time.monotonic()
    with pytest.raises(TargetError, match=f"no credentials .*set {word}"):
        target.position("nightly")
    assert time.monotonic() - began < 5 + BUSY_S


@pytest.mark.skipif(IS_MINIO, reason="it knows nothing of a machine")
def test_credentials_may_be_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance role, as the machine tells it, over moto's own account of it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    url = f"{s3().url('role')}&metadata_endpoint={s3().endpoint}"
    assert open_target(f"parquet:{url}").position("nightly").offsets == {}


def test_a_wrong_region_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(301)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    s3()
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"s3://lake/x?endpoint=http://127.0.0.1:{server.server_port}"
        with pytest.raises(TargetError, match=r"Set AWS_REGION, or give the target region="):
            open_target(f"parquet:{url}").position("nightly")
        server.shutdown()


def test_a_store_that_cannot_be_reached_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_location, "RETRIES", 0)
    s3()
    target = open_target("parquet:s3://lake/x?endpoint=http://127.0.0.1:9&region=us-east-1")
    with pytest.raises(TargetError, match=r"cannot open the load target s3://lake/x: .*needs"):
        target.position("nightly")
