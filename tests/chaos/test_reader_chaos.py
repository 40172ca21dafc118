"""Reads through a network that cuts, stalls and corrupts: every row once and right, or an error
that says what is wrong, in time. The broker behind it is real; no Spark."""

import os
import random
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from kafka.errors import KafkaError
from kafka.protocol.admin import DeleteRecordsRequest
from kafka.structs import TopicPartition
from pyspark.sql.datasource import InputPartition

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    DataLossError,
    FetchTimeoutError,
    KafkalogError,
)
from pyspark_kafkalog.source.datasource import DefaultSource
from pyspark_kafkalog.source.python_worker import close_kept
from pyspark_kafkalog.source.reader import KafkalogReader
from tests.chaos.proxy import ChaosProxy, Fault, Kind, SeededFaults, no_fault
from tests.pyspark_kafkalog.client.conftest import batches_of
from tests.support.patience import BUSY_S

SEEDS = [
    pytest.param(seed, marks=[pytest.mark.slow] if seed > 1 else [])
    for seed in range(int(os.environ.get("KAFKALOG_CHAOS_SEEDS", "6")))
]
ROWS = 4000
PARTITIONS = 3
_numbers = count()

QUICK = {
    "kafka.request.timeout.ms": "1500",
    "kafka.socket.connection.setup.timeout.ms": "700",
    "kafka.retry.backoff.ms": "10",
    "kafka.retry.backoff.max.ms": "50",
    "kafka.fetch.max.wait.ms": "50",
    "kafka.max.partition.fetch.bytes": "30000",
    "kafkaConsumer.pollTimeoutMs": "20000",
}


@pytest.fixture(scope="module")
def proxy() -> Iterator[ChaosProxy]:
    with ChaosProxy() as running:
        yield running


@pytest.fixture(scope="module")
def broker(proxy: ChaosProxy) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=proxy.advertised) as running:
        proxy.target = running.bootstrap_servers
        yield running


@pytest.fixture(autouse=True)
def _calm(proxy: ChaosProxy) -> Iterator[None]:
    yield
    proxy.next_fault = no_fault


def values(seed: int, partition: int) -> list[bytes]:
    chance = random.Random(seed * 31 + partition)
    return [
        b"%d-%d-" % (partition, n) + chance.randbytes(chance.randrange(60)) for n in range(ROWS)
    ]


def filled_topic(proxy: ChaosProxy, seed: int) -> str:
    """A topic whose partitions have batches of several sizes and codecs."""
    name = f"chaos-{next(_numbers)}"
    chance = random.Random(seed)
    config = ClientConfig.from_options({"bootstrap.servers": proxy.address})
    with Cluster(config) as cluster, Producer(cluster) as producer:
        admin.create_topic(cluster, name, PARTITIONS, 1)
        for partition in range(PARTITIONS):
            written = values(seed, partition)
            while written:
                some = chance.choice([1, 10, 300, 1500])
                for batch in batches_of(written[:some], batch_bytes=chance.choice([500, 20_000])):
                    producer.send(TopicPartition(name, partition), batch)
                written = written[some:]
    return name


def reader(proxy: ChaosProxy, topic: str, **options: str) -> KafkalogReader:
    given = {"kafka.bootstrap.servers": proxy.address, "subscribe": topic, **QUICK, **options}
    source = DefaultSource(given)
    planned = source.reader(source.schema())
    assert isinstance(planned, KafkalogReader)
    return planned


def rows(
    planned: KafkalogReader, tasks: list[InputPartition]
) -> dict[int, list[tuple[int, bytes]]]:
    """The (offset, value) of each partition, in the order in which they came. Each second task is
    the first of its worker; faults are dealt by connection."""
    found: dict[int, list[tuple[int, bytes]]] = {}
    for number, task in enumerate(tasks):
        if number % 2:
            close_kept()
        for batch in planned.read(task):
            columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
            for partition, offset, value in zip(*columns, strict=True):
                found.setdefault(partition, []).append((offset, value))
    return found


def expected(seed: int) -> dict[int, list[tuple[int, bytes]]]:
    return {partition: list(enumerate(values(seed, partition))) for partition in range(PARTITIONS)}


PASSING = (Kind.REFUSE, Kind.CUT, Kind.STALL, Kind.DRIP, Kind.DELAY)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_networks_do_costs_no_row_and_doubles_none(
    proxy: ChaosProxy, broker: EmbeddedBroker, seed: int
) -> None:
    topic = filled_topic(proxy, seed)
    options = {"maxPartitionsPerTask": "2"} if seed % 2 else {"minPartitions": "7"}
    planned = reader(proxy, topic, **options)
    tasks = planned.partitions()
    proxy.met.clear()
    # Each stall costs the time that a broker may be silent.
    proxy.next_fault = SeededFaults(seed, PASSING, most=8)
    assert rows(planned, tasks) == expected(seed)
    assert proxy.met


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_answer_is_asked_for_again_or_an_error(
    proxy: ChaosProxy, broker: EmbeddedBroker, seed: int
) -> None:
    topic = filled_topic(proxy, seed)
    planned = reader(proxy, topic, **{"kafka.max.partition.fetch.bytes": "5000"})
    tasks = planned.partitions()
    proxy.met.clear()
    proxy.next_fault = SeededFaults(
        seed, (Kind.CORRUPT,), most=20, probability=1.0, reach_bytes=20_000
    )
    for task in tasks:
        partition = task.value.ranges[0].partition
        try:
            found = rows(planned, [task])[partition]
        except (KafkalogError, KafkaError):
            # A flipped error code, for one, cannot be told from a broker's own.
            continue
        assert found == expected(seed)[partition]
    assert proxy.met[Kind.CORRUPT]


def test_most_damaged_answers_cost_nothing(proxy: ChaosProxy, broker: EmbeddedBroker) -> None:
    """So that the test before does not live on errors alone."""
    topic = filled_topic(proxy, 1)
    planned = reader(proxy, topic)
    tasks = planned.partitions()
    proxy.met.clear()
    # Always in the middle of a frame, where its records are.
    faults = iter([Fault(Kind.CORRUPT, after, 80_000) for after in (0, 20_000, 50_000, 0, 9000)])
    proxy.next_fault = lambda: next(faults, None)
    assert rows(planned, tasks) == expected(1)
    assert proxy.met[Kind.CORRUPT] == 5


@pytest.mark.parametrize("after_bytes", [0, 200, 400, 5000, 60_000])
def test_brokers_that_fall_silent_are_given_up_in_time(
    proxy: ChaosProxy, broker: EmbeddedBroker, after_bytes: int
) -> None:
    topic = filled_topic(proxy, 2)
    planned = reader(proxy, topic, **{"kafkaConsumer.pollTimeoutMs": "2000"})
    tasks = planned.partitions()
    # From a moment on nobody gets an answer any more, on no connection.
    budget = iter([Fault(Kind.STALL, after_bytes)])
    proxy.next_fault = lambda: next(budget, Fault(Kind.STALL, 0))
    began = time.monotonic()
    with pytest.raises((FetchTimeoutError, BrokersUnreachableError)):
        rows(planned, tasks)
    assert time.monotonic() - began < 2 + 1.5 + 1.5 + BUSY_S


def test_a_plan_that_gets_no_answer_is_given_up_in_time(
    proxy: ChaosProxy, broker: EmbeddedBroker
) -> None:
    topic = filled_topic(proxy, 3)
    for after_bytes in (0, 200, 400):
        proxy.next_fault = partial(Fault, Kind.STALL, after_bytes)
        began = time.monotonic()
        with pytest.raises(BrokersUnreachableError):
            reader(proxy, topic).partitions()
        assert time.monotonic() - began < 4 + BUSY_S


def test_a_broker_that_is_killed_again_and_again_costs_no_row(tmp_path: Path) -> None:
    with ChaosProxy() as proxy:
        broker = EmbeddedBroker(tmp_path, config=proxy.advertised)
        broker.start()
        try:
            proxy.target = broker.bootstrap_servers
            topic = filled_topic(proxy, 4)
            planned = reader(proxy, topic, **{"kafka.request.timeout.ms": "10000"})
            found: dict[int, list[tuple[int, bytes]]] = {}
            for number, task in enumerate(planned.partitions()):
                reading = planned.read(task)
                for batch in [next(reading)] if number else []:
                    _add(found, batch)
                os.kill(broker.pid, 9)
                broker.stop()
                broker.start()
                proxy.target = broker.bootstrap_servers
                for batch in reading:
                    _add(found, batch)
            assert found == expected(4)
        finally:
            broker.stop()


def test_retention_that_overtakes_a_read_is_data_loss(
    proxy: ChaosProxy, broker: EmbeddedBroker
) -> None:
    topic_partition = TopicPartition(filled_topic(proxy, 5), 0)
    small = {"bootstrap.servers": proxy.address, "max.partition.fetch.bytes": "1000"}
    proxy.next_fault = SeededFaults(5, (Kind.CUT, Kind.REFUSE), most=8, reach_bytes=20_000)
    with Cluster(ClientConfig.from_options(small)) as cluster:
        fetched = Fetcher(cluster, topic_partition, 0, ROWS).records()
        next(fetched)
        delete_records(proxy, topic_partition, before=3000)
        with pytest.raises(DataLossError, match="holds offsets 3000 up to"):
            list(fetched)


def test_retention_that_overtakes_a_task_leaves_the_rest_where_that_is_allowed(
    proxy: ChaosProxy, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic_partition = TopicPartition(filled_topic(proxy, 5), 0)
    planned = reader(proxy, topic_partition.topic, failOnDataLoss="false")
    (task, *_) = planned.partitions()
    delete_records(proxy, topic_partition, before=3000)
    proxy.next_fault = SeededFaults(5, (Kind.CUT, Kind.REFUSE), most=8, reach_bytes=20_000)
    assert rows(planned, [task])[0] == expected(5)[0][3000:]
    assert "Offsets 0 up to 3000 of partition" in caplog.text


def delete_records(proxy: ChaosProxy, topic_partition: TopicPartition, before: int) -> None:
    config = ClientConfig.from_options({"bootstrap.servers": proxy.address})
    of_topic = DeleteRecordsRequest.DeleteRecordsTopic
    partition = of_topic.DeleteRecordsPartition(
        partition_index=topic_partition.partition, offset=before
    )
    request = DeleteRecordsRequest(
        topics=[of_topic(name=topic_partition.topic, partitions=[partition])], timeout_ms=5000
    )
    with Cluster(config) as cluster:
        answer = cluster.leader(topic_partition).call(request)
        assert answer.topics[0].partitions[0].error_code == 0


def _add(found: dict[int, list[tuple[int, bytes]]], batch: pa.RecordBatch) -> None:
    columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
    for partition, offset, value in zip(*columns, strict=True):
        found.setdefault(partition, []).append((offset, value))
