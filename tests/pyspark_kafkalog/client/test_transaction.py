"""A client of transactions, against an embedded broker, and a scripted one for what that never
does."""

import time
import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.client.transaction import (
    ProducerIdentity,
    Transactions,
    ended_by_commit,
)
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.record.batch import batches

TIMEOUT_MS = 60_000
WAIT_S = 30


@pytest.fixture
def transactions(cluster: Cluster) -> Transactions:
    return Transactions(cluster)


def keyed_batch(key: bytes, value: bytes) -> bytearray:
    columns = {"key": pa.array([key], pa.binary()), "value": pa.array([value], pa.binary())}
    encoder = RecordEncoder(1)
    list(encoder.encode(pa.record_batch(columns)))
    ((_, batch),) = encoder.finish()
    return batch


def write(
    cluster: Cluster,
    transactions: Transactions,
    producer: ProducerIdentity | None,
    tp: TopicPartition,
    key: bytes = b"k",
) -> int:
    """Writes one record, in a transaction that is left open if there is one; its offset."""
    transaction = None if producer is None else (transactions, producer)
    with Producer(cluster, transaction) as writer:
        writer.send(tp, keyed_batch(key, b"value"))
        writer.flush()
        assert writer.last_written is not None
        return writer.last_written[1]


# How a transaction has ended, from its marker.


@pytest.mark.parametrize("commit", [True, False])
def test_the_marker_says_how_a_transaction_has_ended(cluster, transactions, new_topic, commit):
    tp = TopicPartition(new_topic(), 0)
    others = transactions.begin(f"other-{tp.topic}", TIMEOUT_MS)
    write(cluster, transactions, others, tp)
    producer = transactions.begin(tp.topic, TIMEOUT_MS)
    first = write(cluster, transactions, producer, tp)
    transactions.end(others, commit=not commit)
    transactions.end(producer, commit)
    later = transactions.begin(tp.topic, TIMEOUT_MS)
    second = write(cluster, transactions, later, tp)
    transactions.end(later, commit=not commit)
    assert ended_by_commit(cluster, producer, tp, first, TIMEOUT_MS) is commit
    assert ended_by_commit(cluster, later, tp, second, TIMEOUT_MS) is not commit


def test_a_transaction_that_a_successor_fenced_was_aborted(cluster, transactions, new_topic):
    tp = TopicPartition(new_topic(), 0)
    producer = transactions.begin(tp.topic, TIMEOUT_MS)
    offset = write(cluster, transactions, producer, tp)
    successor = transactions.begin(tp.topic, TIMEOUT_MS)
    write(cluster, transactions, successor, tp)
    transactions.end(successor, commit=True)
    assert ended_by_commit(cluster, producer, tp, offset, TIMEOUT_MS) is False


def test_an_open_transaction_is_waited_for_and_then_not_known(cluster, transactions, new_topic):
    tp = TopicPartition(new_topic(), 0)
    producer = transactions.begin(tp.topic, TIMEOUT_MS)
    offset = write(cluster, transactions, producer, tp)
    started_s = time.monotonic()
    assert ended_by_commit(cluster, producer, tp, offset, 300) is None
    assert 0.2 < time.monotonic() - started_s < WAIT_S


def test_what_is_not_where_it_was_is_not_known(cluster, transactions, new_topic):
    tp = TopicPartition(new_topic(), 0)
    producer = transactions.begin(tp.topic, TIMEOUT_MS)
    offset = write(cluster, transactions, producer, tp)
    transactions.end(producer, commit=True)
    stranger = ProducerIdentity("stranger", producer.producer_id + 1000, 0)
    started_s = time.monotonic()
    for identity, place, at in [
        (producer, tp, offset + 1000),
        (stranger, tp, offset),
        (producer, TopicPartition(f"no-{tp.topic}", 0), offset),
        (ProducerIdentity(tp.topic, producer.producer_id, producer.epoch + 1), tp, offset),
    ]:
        assert ended_by_commit(cluster, identity, place, at, TIMEOUT_MS) is None
    assert time.monotonic() - started_s < WAIT_S


@pytest.fixture(scope="module")
def compacting() -> Iterator[str]:
    properties = {"log.cleaner.backoff.ms": "20", "auto.create.topics.enable": "false"}
    with EmbeddedBroker(config=properties) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def compacted(compacting: str) -> Iterator[tuple[Cluster, Callable[..., None]]]:
    """A cluster with a topic `table-...`, and what compacts it until only `left` are there."""
    given = {"bootstrap.servers": compacting, "isolation.level": "read_uncommitted"}
    with Cluster(ClientConfig.from_options(given)) as cluster:

        def compact(
            tp: TopicPartition, left: Callable[[list[tuple[int, int, bool]]], bool]
        ) -> None:
            deadline = time.monotonic() + WAIT_S
            while True:
                write(cluster, Transactions(cluster), None, tp, b"filler")  # a segment of its own
                until = cluster.list_offsets([tp], LATEST)[tp].offset
                found = [
                    (header.producer_id, header.producer_epoch, header.is_control)
                    for fetched in Fetcher(cluster, tp, 0, until).records()
                    for header in batches(fetched.records)
                ]
                if left(found):
                    return
                assert time.monotonic() < deadline, found
                time.sleep(0.02)

        yield cluster, compact


TABLE = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "1048576",
    "segment.ms": "1",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False, None])
def test_a_successors_marker_is_not_taken_for_one_that_was_compacted_away(compacted, first, second):
    """Neither its commit nor its abort: by itself, or (None) by a fence, with the epoch after."""
    cluster, compact = compacted
    tp = TopicPartition(f"table-{uuid.uuid4().hex[:8]}", 0)
    admin.create_topic(cluster, tp.topic, 1, 1, TABLE)
    transactions = Transactions(cluster)
    producer = transactions.begin(tp.topic, TIMEOUT_MS)
    offset = write(cluster, transactions, producer, tp)
    transactions.end(producer, commit=first)
    successor = transactions.begin(tp.topic, TIMEOUT_MS)
    write(cluster, transactions, successor, tp)
    if second is None:
        transactions.begin(tp.topic, TIMEOUT_MS)
    else:
        transactions.end(successor, commit=second)
    write(cluster, transactions, None, tp)
    mine = (producer.producer_id, producer.epoch)
    compact(tp, lambda left: not any(each[:2] == mine for each in left))
    assert ended_by_commit(cluster, producer, tp, offset, TIMEOUT_MS) is None


def test_a_marker_that_outlives_its_batch_still_counts(compacted):
    cluster, compact = compacted
    tp = TopicPartition(f"table-{uuid.uuid4().hex[:8]}", 0)
    admin.create_topic(cluster, tp.topic, 1, 1, {**TABLE, "delete.retention.ms": "86400000"})
    transactions = Transactions(cluster)
    producer = transactions.begin(tp.topic, TIMEOUT_MS)
    offset = write(cluster, transactions, producer, tp)
    transactions.end(producer, commit=True)
    successor = transactions.begin(tp.topic, TIMEOUT_MS)
    write(cluster, transactions, successor, tp)
    transactions.end(successor, commit=False)
    write(cluster, transactions, None, tp)
    mine = (producer.producer_id, producer.epoch, False)
    compact(tp, lambda left: mine not in left)
    assert ended_by_commit(cluster, producer, tp, offset, TIMEOUT_MS) is True
