"""Logs that lose their tail between two loads, and give its offsets to other records."""

import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka.errors import IncompatibleBrokerVersion
from kafka.structs import TopicPartition
from pyspark.sql import functions

import pyspark_kafkalog
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import DataLossError, LogTruncatedError, UnknownTopicError
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.source.stream_reader import KafkalogStreamReader
from pyspark_kafkalog.warehouse.engines.spark import SparkEngine
from tests.property.task_session import StreamQuery, TaskFunction, TaskSession, write_rows
from tests.support.leader_epochs import await_later_epochs

INTERNAL = "__consumer_offsets"
ORDERS_0 = TopicPartition("orders", 0)
OFFSET_FOR_LEADER_EPOCH = 23


class Log:
    """Topic orders, of one partition, on a broker of its own, and a load of it."""

    def __init__(self, directory: Path) -> None:
        self._data = directory / "data"
        self._table = directory / "table"
        self._broker = EmbeddedBroker(data_dir=self._data).start()
        self.create()

    def write(self, values: Sequence[bytes]) -> None:
        encoder = RecordEncoder(1, Codec.NONE, max_batch_bytes=1)
        rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        with Producer(self._config()) as producer:
            for _, batch in [*encoder.encode(rows), *encoder.finish()]:
                producer.send(ORDERS_0, batch)

    def commit_group(self, offset: int) -> None:
        given = {"bootstrap.servers": self._broker.bootstrap_servers, "group.id": "readers"}
        place = confluent_kafka.TopicPartition("orders", 0, offset)
        consumer = confluent_kafka.Consumer(given)
        try:
            consumer.commit(offsets=[place], asynchronous=False)
        finally:
            consumer.close()

    def delete_before(self, offset: int) -> None:
        with Cluster(self._config()) as cluster:
            assert not admin.delete_records(cluster, {ORDERS_0: offset}, lambda *begins: None)

    def create(self, topic: str = "orders") -> None:
        with Cluster(self._config()) as cluster:
            admin.create_topic(cluster, topic, 1, 1)

    def delete(self, topic: str = "orders") -> None:
        with Cluster(self._config()) as cluster:
            admin.delete_topics(cluster, [topic])

    def create_again(self) -> None:
        self.delete()
        self.create()

    def restart(self, keeps: float = 1) -> None:
        """`keeps` says how much of its only segment is left."""
        port = int(self._broker.bootstrap_servers.rpartition(":")[2])
        self._broker.stop()
        [segment] = self._data.glob("orders-0/*.log")
        os.truncate(segment, int(segment.stat().st_size * keeps))
        self._broker = EmbeddedBroker(data_dir=self._data, port=port).start()

    def keep(self) -> None:
        self._broker.stop()
        shutil.copytree(self._data, self._data.with_name("backup"))
        self._broker = EmbeddedBroker(data_dir=self._data).start()

    def restore(self) -> None:
        self._broker.stop()
        shutil.rmtree(self._data)
        shutil.copytree(self._data.with_name("backup"), self._data)
        await_later_epochs()
        self._broker = EmbeddedBroker(data_dir=self._data).start()

    def load(self, **how: Any) -> Any:
        given = {
            "kafka.bootstrap.servers": self._broker.bootstrap_servers,
            "subscribe": "orders",
            "failOnDataLoss": str(how.pop("fails", True)),
        }
        session: Any = TaskSession()
        return pyspark_kafkalog.load(session, "nightly", f"parquet:{self._table}", given, **how)

    def stream(
        self,
        checkpoint: str = "checkpoint",
        reads_on: bool = False,
        before_tasks: Callable[[], None] = lambda: None,
        topics: str = "orders",
        subscribe: str | None = None,
        **sink: str,
    ) -> None:
        """What is there, by a query with this checkpoint; `reads_on` where its read may lose
        data."""
        source, into = self._written(sink)
        source |= {"subscribe": subscribe} if subscribe else {"subscribePattern": topics}
        source |= {"failOnDataLoss": str(not reads_on), "fetchOffset.numRetries": "1"}
        StreamQuery(self._table.with_name(checkpoint), source, into, before_tasks).run()

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self._table.with_name("checkpoint"))

    def forget_last_commit(self) -> None:
        """Of the query: it runs its last micro-batch again, as after a kill."""
        commits = self._table.with_name("checkpoint") / "commits"
        max(commits.iterdir(), key=lambda commit: int(commit.name)).unlink()

    def append(self, **sink: str) -> None:
        """All that is there, as a DataFrame."""
        source, into = self._written(sink)
        write_rows({**source, "subscribe": "orders"}, into)

    def _written(self, sink: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        given = {
            "kafka.bootstrap.servers": self._broker.bootstrap_servers,
            "startingOffsets": "earliest",
        }
        into = {"target": f"parquet:{self._table}", "name": "nightly", **given, **sink}
        return given, into

    def loaded(self) -> Counter[bytes]:
        return Counter(pq.read_table(self._table).column("value").to_pylist())

    def stop(self) -> None:
        self._broker.stop()

    def _config(self) -> ClientConfig:
        return ClientConfig.from_options({"bootstrap.servers": self._broker.bootstrap_servers})


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(functions, "udf", TaskFunction)
    started = Log(tmp_path)
    yield started
    started.stop()


def some(what: str, count: int) -> list[bytes]:
    return [f"{what} {number:03}".encode() for number in range(count)]


def test_records_that_got_the_offsets_of_lost_ones_are_not_left_out(log: Log) -> None:
    log.write(some("old", 10))
    assert log.load().records == 10
    log.restart(keeps=0.7)
    log.write(some("new", 6))
    for how in ({}, {"dry_run": True}, {"chunk_bytes": "1KiB"}):
        with pytest.raises(DataLossError, match=r"orders-0 lost .*from offset 7 on.*offset 10"):
            log.load(**how)
    assert log.loaded() == Counter(some("old", 10))
    assert log.load(fails=False).records == 6
    assert log.loaded() == Counter(some("old", 10) + some("new", 6))
    assert log.load().records == 0


def test_one_load_that_may_lose_data_is_enough_also_without_new_records(log: Log) -> None:
    log.write(some("old", 10))
    log.load()
    log.restart(keeps=0.5)
    with pytest.raises(DataLossError, match="from offset 5 on"):
        log.load()
    assert log.load(fails=False).records == 0
    log.write(some("new", 5))
    assert log.load().records == 5


def test_a_stream_does_not_leave_them_out_either(log: Log) -> None:
    log.write(some("old", 10))
    log.stream()
    log.restart()
    log.write(some("more", 4))
    log.stream()
    log.stream()
    log.restart(keeps=0.7)
    log.write(some("new", 9))
    # The first is told by its own checkpoint, the second by what was loaded.
    for checkpoint, sentence in (
        ("checkpoint", r"orders-0 lost .*offset 14, .*offset 9 .*failOnDataLoss"),
        ("another", r"orders-0 lost .*offset 9 on.*offset 14.*new checkpoint"),
    ):
        with pytest.raises(DataLossError, match=sentence):
            log.stream(checkpoint)
    assert log.loaded() == Counter(some("old", 10) + some("more", 4))
    log.lose_checkpoint()
    log.stream(failOnDataLoss="false")
    assert log.loaded() == Counter(some("old", 10) + some("more", 4) + some("new", 9))
    log.write(some("last", 1))
    log.stream()
    assert log.load().records == 0


@pytest.mark.parametrize("is_created_again", [True, False])
@pytest.mark.parametrize("count", [3, 30])
def test_a_stream_that_may_lose_data_goes_on_in_the_other_log(
    log: Log, is_created_again: bool, count: int
) -> None:
    """By its own checkpoint, also when it runs that micro-batch again."""
    log.write(some("old", 10))
    log.stream()
    if is_created_again:
        log.create_again()
    else:
        log.restart(keeps=0.7)
    log.write(some("new", count))
    log.stream(reads_on=True, failOnDataLoss="false")
    expected = Counter(some("old", 10) + some("new", count))
    assert log.loaded() == expected
    log.forget_last_commit()
    log.stream(reads_on=True, failOnDataLoss="false")
    assert log.loaded() == expected
    log.write(some("last", 2))
    log.stream()
    assert log.loaded() == expected + Counter(some("last", 2))
    assert log.load().records == 0


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize(
    ("known", "is_killed", "becomes"),
    [
        *itertools.product([0, 10], [True, False], ["created again", "cut off"]),
        pytest.param(0, True, "deleted", marks=pytest.mark.slow),
    ],
)
def test_a_micro_batch_of_a_log_that_is_another_one_by_then_hides_none_of_its_records(
    log: Log, fails: str, known: int, is_killed: bool, becomes: str
) -> None:
    """It was planned before, and its tasks run then, or it is run again."""
    if known:
        log.write(some("known", known))
        log.stream()
    log.write(some("old", 10))
    kept, new = (some("old", 5), 9) if becomes == "cut off" else ([], 30)

    def change() -> None:
        if is_killed:
            raise InterruptedError
        put_another_there(log, becomes, known + 5.5, known + 10)
        log.write(some("new", new))

    with suppress(DataLossError, InterruptedError):
        log.stream(reads_on=True, before_tasks=once(change), failOnDataLoss=fails)
    if is_killed:
        put_another_there(log, becomes, known + 5.5, known + 10)
        if becomes == "deleted":
            log.stream(reads_on=True, failOnDataLoss=fails)
            log.create()
        log.write(some("new", new))
        with suppress(DataLossError):
            log.stream(reads_on=True, failOnDataLoss=fails)
    log.stream(reads_on=True, failOnDataLoss="false")
    assert log.loaded() == Counter(some("known", known) + kept + some("new", new))
    assert log.load().records == 0


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_topic_that_a_query_reads_again_goes_on_where_it_was_left(
    log: Log, is_created_again: bool
) -> None:
    log.create("others")
    log.write(some("known", 10))
    log.stream(topics="o.*s")
    log.write(some("away", 3))
    log.stream(topics="others", reads_on=True)
    if is_created_again:
        log.create_again()
        log.write(some("away", 3))
    # It begins in this batch, which is run a second time.
    log.stream(topics="o.*s", reads_on=True, failOnDataLoss="false")
    log.forget_last_commit()
    log.stream(topics="o.*s", reads_on=True, failOnDataLoss="false")
    log.write(some("new", 4))
    log.stream(topics="o.*s", failOnDataLoss="false")
    assert log.loaded() == Counter(some("known", 10) + some("away", 3) + some("new", 4))
    assert log.load().records == 0


@pytest.mark.parametrize("until", ["its tasks", "its commit is noted"])
@pytest.mark.parametrize("hides", ["from the pattern", "from the brokers"])
def test_a_topic_that_hides_when_a_micro_batch_runs_again_is_loaded_once(
    log: Log, hides: str, until: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create("others")
    log.write(some("known", 10))
    log.stream(topics="o.*s")
    log.write(some("planned", 3))
    if until == "its tasks":
        with pytest.raises(InterruptedError):
            log.stream(topics="o.*s", before_tasks=interrupt)
    else:
        log.stream(topics="o.*s")
        log.forget_last_commit()
    with monkeypatch.context() as patched:
        if hides == "from the brokers":
            hide_orders(patched)
        log.stream(topics="others" if hides == "from the pattern" else "o.*s", reads_on=True)
    log.write(some("new", 4))
    log.stream(topics="o.*s", reads_on=True)
    assert log.loaded() == Counter(some("known", 10) + some("planned", 3) + some("new", 4))
    assert log.load().records == 0


def test_a_topic_that_is_another_when_a_micro_batch_runs_again_is_loaded_from_its_beginning(
    log: Log,
) -> None:
    log.create("others")
    log.write(some("known", 10))
    log.stream(topics="o.*s")
    log.write(some("gone", 3))
    with pytest.raises(InterruptedError):
        log.stream(topics="o.*s", before_tasks=interrupt)
    log.create_again()
    log.write(some("new", 20))
    log.stream(topics="others", reads_on=True, failOnDataLoss="false")
    log.stream(topics="o.*s", reads_on=True, failOnDataLoss="false")
    assert log.loaded() == Counter(some("known", 10) + some("new", 20))
    assert log.load().records == 0


def test_an_internal_topic_is_read_on_beside_one_that_is_gone(log: Log) -> None:
    log.create("payments")
    log.commit_group(1)
    log.stream(subscribe=f"{INTERNAL},payments", reads_on=True)
    log.delete("payments")
    log.commit_group(2)
    log.stream(subscribe=f"{INTERNAL},payments", reads_on=True)
    assert sum(log.loaded().values()) == 2


def test_an_internal_topic_is_loaded_on_after_a_micro_batch_without_a_row(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.commit_group(1)
    log.stream(subscribe=INTERNAL)
    with monkeypatch.context() as patched:
        # A filter leaves them all out.
        patched.setattr(KafkalogStreamReader, "read", lambda reader, partition: iter(()))
        log.commit_group(2)
        log.stream(subscribe=INTERNAL)
    log.commit_group(3)
    log.stream(subscribe=INTERNAL)
    assert sum(log.loaded().values()) == 2


def interrupt() -> None:
    raise InterruptedError


def hide_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a permission that is taken away does."""
    topics = Cluster.topics

    def others(self: Cluster, names: Iterable[str] | None = None) -> dict[str, list[int]]:
        if "orders" in (names or ()):
            raise UnknownTopicError("orders")
        return {name: found for name, found in topics(self, names).items() if name != "orders"}

    topic_id = Cluster.topic_id

    def id_of_others(self: Cluster, topic: str) -> UUID | None:
        return None if topic == "orders" else topic_id(self, topic)

    monkeypatch.setattr(Cluster, "topics", others)
    monkeypatch.setattr(Cluster, "topic_id", id_of_others)


def put_another_there(log: Log, becomes: str, keeps: float, of: int) -> None:
    if becomes == "cut off":
        log.restart(keeps / of)
    else:
        log.delete()
    if becomes == "created again":
        log.create()


def once(act: Callable[[], None]) -> Callable[[], None]:
    """`act`, but for when it is called again."""
    acts = [act]
    return lambda: acts.pop()() if acts else None


def test_the_first_batch_of_a_stream_counts(log: Log) -> None:
    log.write(some("old", 10))
    log.stream()
    log.restart(keeps=0.5)
    log.write(some("new", 6))
    with pytest.raises(DataLossError, match=r"orders-0 lost .*offset 10, .*at offset 5"):
        log.stream()


EARLIER = r"orders-0 lost .*from offset 5 on"


def test_a_broker_that_was_restored_from_a_backup_has_lost_records(log: Log) -> None:
    """Where its leader's epoch is earlier than before, it knows nothing of the end of that one."""
    log.write(some("old", 5))
    log.restart()
    log.keep()
    log.restart()
    log.write(some("lost", 5))
    log.restart()
    assert log.load().records == 10
    log.restore()
    log.write(some("new", 8))
    for how in ({}, {"dry_run": True}):
        with pytest.raises(DataLossError, match=EARLIER):
            log.load(**how)
    with pytest.raises(DataLossError, match=EARLIER):
        log.stream()
    log.load(fails=False)
    log.write(some("last", 1))
    assert log.load().records == 1


def test_a_broker_that_goes_on_from_its_backup_has_lost_records(log: Log) -> None:
    """As often as it was started before the loss, and before it was restored."""
    log.write(some("old", 5))
    log.keep()
    log.write(some("lost", 5))
    assert log.load().records == 10
    log.restore()
    log.write(some("new", 8))
    with pytest.raises(DataLossError, match=EARLIER):
        log.load()


@pytest.mark.parametrize("keeps", [0.5, 1])
@pytest.mark.parametrize("fails", [True, False])
def test_a_log_that_is_cut_off_while_it_is_read_gives_each_record_once(
    log: Log, keeps: float, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SparkEngine.run

    def cut_and_run(engine: SparkEngine, *planned: Any) -> Any:
        monkeypatch.setattr(SparkEngine, "run", run)
        log.restart(keeps)
        log.write(some("new", 9))
        return run(engine, *planned)

    monkeypatch.setattr(SparkEngine, "run", cut_and_run)
    log.write(some("old", 10))
    is_cut = keeps < 1
    with (
        pytest.raises(LogTruncatedError, match=r"orders.*cut off at offset 5.*other records")
        if is_cut
        else nullcontext()
    ):
        log.load(fails=fails)
    assert log.load().records == (14 if is_cut else 9)
    assert log.loaded() == Counter(some("old", int(10 * keeps)) + some("new", 9))


def test_a_leader_that_was_elected_again_has_lost_nothing(log: Log) -> None:
    for number in range(3):
        log.restart()
        log.write(some(f"{number}:", 5))
        log.restart()
        assert log.load(max_bytes=1).records == 1
        log.restart()
        log.restart()
        assert log.load().records == 4
        log.restart()
        assert log.load().records == 0
        log.restart()
        log.write(some(f"{number} again:", 5))
        log.stream()


def test_of_a_broker_that_knows_no_epochs_the_last_record_tells(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before Kafka 0.11, or beside it."""
    log.write(some("old", 10))
    log.load()
    log.restart(keeps=0.7)
    log.write(some("new", 6))
    version = Connection.version

    def older(connection: Connection, api_key: int, our_max: int, our_min: int = 0) -> int:
        if api_key == OFFSET_FOR_LEADER_EPOCH:
            raise IncompatibleBrokerVersion
        return version(connection, api_key, our_max, our_min)

    monkeypatch.setattr(Connection, "version", older)
    with pytest.raises(DataLossError, match=r"orders-0 has another record at offset 9 "):
        log.load()
    assert log.load(fails=False).records == 3
