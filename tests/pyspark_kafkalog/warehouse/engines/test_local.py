"""Loads without Spark: what lands is what Spark would land, and nobody outlives the load."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, functions

import pyspark_kafkalog
from pyspark_kafkalog import cli
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import BrokerFailedError, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import BadRecordError, InvalidOptionError, KafkalogError
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.warehouse.engines.local import LocalEngine
from tests.property.task_session import TaskFunction, TaskSession
from tests.support.patience import wait_until

RECORDS = 300
PARTITIONS = 4
SLOW = """
import os, sys, time
import pyarrow as pa

def slowly(rows: pa.RecordBatch) -> pa.RecordBatch:
    if rows.num_rows:
        with open(f"worker-{os.getpid()}", "w"):
            pass
        print("a worker's word")
        time.sleep(600)
    return rows
"""

Load = Callable[..., Any]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def topic(servers: str) -> str:
    """RECORDS JSON values in each of PARTITIONS partitions, one in a hundred of them broken."""
    config = ClientConfig.from_options({"bootstrap.servers": servers})
    with Cluster(config) as cluster:
        admin.create_topic(cluster, "clicks", PARTITIONS, 1)
    with Producer(config) as producer:
        for partition in range(PARTITIONS):
            encoder = RecordEncoder(1, Codec.NONE, max_batch_bytes=1000)
            values = [
                b"{" if n % 100 == 99 else b'{"id": %d, "at": %d}' % (n, partition)
                for n in range(RECORDS)
            ]
            rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
            for _, batch in [*encoder.encode(rows), *encoder.finish()]:
                producer.send(TopicPartition("clicks", partition), batch)
    return "clicks"


def even(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.filter(pa.array([n % 2 == 0 for n in rows["offset"].to_pylist()], pa.bool_()))


def options(servers: str, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers, "subscribe": topic}


def rows_of(path: Path) -> list[dict[str, Any]]:
    found = pq.read_table(path).to_pylist()
    return sorted(found, key=lambda row: (str(row["partition"]), int(row["offset"])))


hows = st.fixed_dictionaries(
    {},
    optional={
        "on_error": st.sampled_from(["null", "deadletter"]),
        "partition_by": st.just("id"),
        "sort_by": st.sampled_from(["id", "id desc"]),
        "compression": st.sampled_from(["zstd", "snappy", "none"]),
        "transform": st.just(even),
        "chunk_bytes": st.just("20k"),
    },
)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(hows)
def test_both_engines_land_equal_tables(
    servers: str, topic: str, tmp_path_factory: pytest.TempPathFactory, how: dict[str, Any]
) -> None:
    given_values = {"value_format": "json", "value_schema": "id BIGINT, at INT", **how}
    if "on_error" not in how:
        given_values = {name: how[name] for name in how if name not in ("sort_by", "partition_by")}
    place = tmp_path_factory.mktemp("tables")
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functions, "udf", TaskFunction)
        for kind, session in (("local", None), ("spark", TaskSession())):
            results.append(
                pyspark_kafkalog.load(
                    session,  # type: ignore[arg-type]
                    "nightly",
                    f"parquet:{place / kind}",
                    options(servers, topic),
                    **given_values,
                )
            )
    local, spark = results
    assert rows_of(place / "local") == rows_of(place / "spark")
    assert pq.read_table(place / "local").schema == pq.read_table(place / "spark").schema
    assert (local.records, local.bad_records) == (spark.records, spark.bad_records)
    assert {piece.topic_partition for piece in local.ranges} == {
        piece.topic_partition for piece in spark.ranges
    }


def test_a_function_goes_along_wherever_it_was_made(
    servers: str, topic: str, tmp_path: Path
) -> None:
    kept = {7, 11}

    def some(rows: pa.RecordBatch) -> pa.RecordBatch:
        is_kept = [n in kept for n in rows["offset"].to_pylist()]
        return rows.filter(pa.array(is_kept, pa.bool_()))

    target = f"parquet:{tmp_path / 'table'}"
    result = pyspark_kafkalog.load(None, "some", target, options(servers, topic), transform=some)
    assert result.records == len(kept) * PARTITIONS


def test_an_error_of_a_task_is_what_it_was(servers: str, topic: str, tmp_path: Path) -> None:
    def broken(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:
            raise ZeroDivisionError("seven by nothing")
        return rows

    target = f"parquet:{tmp_path / 'table'}"
    with pytest.raises(KafkalogError, match="ZeroDivisionError: seven by nothing") as raised:
        pyspark_kafkalog.load(None, "n", target, options(servers, topic), transform=broken)
    assert "in broken" in str(raised.value.__cause__)
    how: Any = {"value_format": "json", "value_schema": "id BIGINT"}
    with pytest.raises(BadRecordError, match="clicks-"):
        pyspark_kafkalog.load(None, "n", target, options(servers, topic), **how)
    assert not list((tmp_path / "table").glob("**/*.parquet"))


def test_an_error_of_kafkas_that_is_ours_by_its_module_is_told(
    servers: str, topic: str, tmp_path: Path
) -> None:
    """As a task raises it whose brokers answer with an error that nobody explains better."""

    def refused(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:
            raise BrokerFailedError("of which nobody knows more")
        return rows

    target = f"parquet:{tmp_path / 'table'}"
    with pytest.raises(KafkalogError, match=r"BrokerFailedError: .*nobody knows more"):
        pyspark_kafkalog.load(None, "n", target, options(servers, topic), transform=refused)


def test_a_function_of_dataframes_is_told_that_it_needs_spark(
    servers: str, topic: str, tmp_path: Path
) -> None:
    def query(rows: DataFrame) -> DataFrame:
        return rows

    target = f"parquet:{tmp_path / 'table'}"
    with pytest.raises(InvalidOptionError, match="DataFrames, which are Spark's"):
        pyspark_kafkalog.load(None, "n", target, options(servers, topic), transform=query)
    with pytest.raises(InvalidOptionError, match="0 workers land nothing"):
        LocalEngine(0)


@pytest.fixture
def slow_load(servers: str, topic: str, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """`kafkalog load` whose two workers have records and do not go on."""
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "pyspark_kafkalog.cli", "load", topic, "--name", "n"]
    command += ["--bootstrap-servers", servers, "--to", f"parquet:{tmp_path / 'table'}"]
    command += ["--transform", "slow:slowly", "--workers", "2"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def workers_at(place: Path) -> list[int]:
    return [int(path.name.removeprefix("worker-")) for path in place.glob("worker-*")]


def is_there(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_workers_end_with_their_driver(
    slow_load: "subprocess.Popen[str]", tmp_path: Path, number: signal.Signals, code: int
) -> None:
    workers = wait_until(lambda: workers_at(tmp_path), "a worker with records")
    slow_load.send_signal(number)
    out, err = slow_load.communicate(timeout=60)
    assert slow_load.returncode == code
    assert "Traceback" not in out + err
    # What tasks print is no output of the command.
    assert "a worker's word" not in out
    wait_until(lambda: not any(map(is_there, workers_at(tmp_path))), lambda: workers)
    if number != signal.SIGKILL:
        assert not [path for path in (tmp_path / "table").glob("**/*") if path.is_file()]


def test_a_worker_that_is_killed_ends_the_load_in_a_sentence(
    slow_load: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    worker = wait_until(lambda: workers_at(tmp_path), "a worker with records")[0]
    os.kill(worker, signal.SIGKILL)
    _, err = slow_load.communicate(timeout=60)
    assert slow_load.returncode == 1
    assert "kafkalog: A task of the load failed and nothing was published: a worker" in err
    assert "signal 9" in err
    assert "Traceback" not in err


def test_there_are_no_more_workers_than_asked_for(
    servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = (
        "import os\nimport pyarrow as pa\n"
        "def told(rows: pa.RecordBatch) -> pa.RecordBatch:\n"
        "    return rows.append_column('worker', pa.array([os.getpid()] * len(rows), pa.int64()))\n"
    )
    (tmp_path / "told.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pyspark_kafkalog.warehouse.portions.FEW_OFFSETS", 1)
    given = ["--bootstrap-servers", servers, "--to", f"parquet:{tmp_path / 'table'}", "--quiet"]
    given += ["--transform", "told:told", "--workers", "2", "--name", "n"]
    assert cli.main(["load", topic, *given]) == 0
    workers = {row["worker"] for row in rows_of(tmp_path / "table")}
    assert len(workers) == 2
    assert os.getpid() not in workers


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--engine", "local", "--master", "local[2]"], "--master is Spark's"),
        (["--engine", "spark", "--workers", "2"], "--workers are the local engine's"),
        (["--workers", "0"], "0 is not in the range"),
    ],
)
def test_what_only_the_other_engine_has_is_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["load", "clicks", "--bootstrap-servers", "nowhere:1", "--name", "n", "--to"]
    assert cli.main([*start, "parquet:/nowhere", *given]) == 2
    assert said in capsys.readouterr().err


def test_a_load_of_nothing_new_and_one_of_a_little_need_no_java(
    servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/there/is/none")
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    given = ["--bootstrap-servers", servers, "--to", f"parquet:{tmp_path / 'table'}"]
    command = [sys.executable, "-m", "pyspark_kafkalog.cli", "load", topic, "--name", "n", *given]
    command += ["--format", "json"]
    said = [subprocess.run(command, capture_output=True, text=True, timeout=120) for _ in range(2)]
    assert [(each.returncode, each.stderr) for each in said] == [(0, "")] * 2
    first, second = (json.loads(each.stdout) for each in said)
    assert (first["records"], first["commit"]) == (RECORDS * PARTITIONS, "1")
    assert second["commit"] is None


def test_neither_a_load_nor_its_workers_import_what_they_do_not_use(
    servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow takes pandas where it is installed, as soon as it makes an array of Python objects,
    kafka-python its clients, a data source of ours PySpark: most of what these processes need to
    start."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    given = ["--bootstrap-servers", servers, "--to", f"parquet:{tmp_path / 'table'}"]
    command = [sys.executable, "-m", "pyspark_kafkalog.cli", "load", topic, "--name", "n", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    imported = Counter(line.rpartition("|")[2].strip() for line in done.stderr.splitlines())
    assert imported["pyspark_kafkalog.warehouse.engines.local_worker"] > 1
    assert not {"pandas", "pyspark", "kafka.consumer"} & imported.keys()


def test_a_worker_that_ends_is_missed_though_what_it_forked_lives_on(
    servers: str, topic: str, tmp_path: Path
) -> None:
    child = tmp_path / "child"

    def forks(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:
            if os.fork() == 0:
                child.write_text(str(os.getpid()))
                signal.pause()
            wait_until(lambda: child.exists() and child.read_text(), "the child's number")
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    target = f"parquet:{tmp_path / 'table'}"
    try:
        with cut_off(60), pytest.raises(KafkalogError, match="ended by signal 9"):
            pyspark_kafkalog.load(None, "n", target, options(servers, topic), transform=forks)
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)


def test_a_fork_that_returns_reports_nothing_and_ends(
    servers: str, topic: str, tmp_path: Path
) -> None:
    def forks(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and os.fork() == 0:
            (tmp_path / f"child-{os.getpid()}").touch()
        return rows

    target = f"parquet:{tmp_path / 'table'}"
    pyspark_kafkalog.load(None, "n", target, options(servers, topic), transform=forks)
    children = [int(path.name.removeprefix("child-")) for path in tmp_path.glob("child-*")]
    assert children
    wait_until(lambda: not any(map(is_there, children)), lambda: children)


@contextmanager
def cut_off(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in a body that takes longer; in the main thread."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_functions_that_cannot_be_sent_and_errors_that_cannot_come_back_are_told(
    servers: str, topic: str, tmp_path: Path
) -> None:
    class OwnError(KafkalogError):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(one)

    lock = threading.Lock()

    def locks(rows: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return rows

    def raises(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:
            raise OwnError("one", "two")
        return rows

    def ends(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:
            sys.exit(0)
        return rows

    def ends_without_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
        sys.exit(0)

    target = f"parquet:{tmp_path / 'table'}"
    for function, said in (
        (locks, "transform cannot go to the processes"),
        (raises, "nothing was published: OwnError: one"),
        (ends, "transform called sys.exit"),
        (ends_without_rows, "transform called sys.exit"),
    ):
        with pytest.raises(KafkalogError, match=said):
            pyspark_kafkalog.load(None, "n", target, options(servers, topic), transform=function)
    with pytest.raises(InvalidOptionError, match="0 loads at a time land nothing"):
        LocalEngine(at_once=0)
