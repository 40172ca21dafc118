"""A read that starts at a time beside one of everything: no record of that time or later is lost.

Topics at random on a real broker, written by librdkafka: times of producers in any order, or the
broker's; batches, transactions that commit or abort, small segments, compaction between the reads.
This is what `WHERE timestamp >= ...` may rely on where an option says the same.
"""

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import IntegerType, LongType, StructField, StructType, TimestampType

from pyspark_kafkalog import DefaultSource, EmbeddedBroker

MINUTE_MS = 60_000
WAIT_S = 30
COLUMNS = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
    ]
)
MINUTES_AGO = st.integers(0, 20)
RECORDS = st.lists(st.tuples(st.sampled_from("abc"), MINUTES_AGO), min_size=1, max_size=8)
WRITES = st.lists(
    st.tuples(st.integers(0, 1), RECORDS, st.sampled_from([None, None, True, False])), max_size=8
)
"""A partition, what goes there in one batch, and whether a transaction commits it."""


class Writer:
    """Topics, written by a producer with transactions and one without."""

    def __init__(self, servers: str) -> None:
        client: dict[str, str | int | float | bool] = {
            "bootstrap.servers": servers,
            "log_level": 0,
            "linger.ms": 20,
        }
        self._admin = AdminClient(client)
        self._plain = Producer(client)
        self._in_transactions = Producer({**client, "transactional.id": "writer"})
        self._in_transactions.init_transactions(WAIT_S)

    def topic(self, **configs: str) -> str:
        name = f"topic-{uuid.uuid4().hex[:8]}"
        (created,) = self._admin.create_topics([NewTopic(name, 2, 1, config=configs)]).values()
        created.result(WAIT_S)
        return name

    def delete(self, topic: str) -> None:
        """Else thousands of examples need more open files than a process may have."""
        (deleted,) = self._admin.delete_topics([topic]).values()
        deleted.result(WAIT_S)

    def write(
        self, topic: str, partition: int, records: list[tuple[str, int]], commits: bool | None
    ) -> None:
        producer = self._plain if commits is None else self._in_transactions
        if commits is not None:
            producer.begin_transaction()
        for key, time_ms in records:
            producer.produce(topic, b"v", key, partition, timestamp=time_ms)
        assert producer.flush(WAIT_S) == 0
        if commits is not None:
            (producer.commit_transaction if commits else producer.abort_transaction)(WAIT_S)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker(config={"log.cleaner.backoff.ms": "20"}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def writer(servers: str) -> Writer:
    return Writer(servers)


def rows_of(**options: str) -> set[tuple[Any, Any, Any]]:
    """(partition, offset, time in ms) of each record that a batch read finds."""
    given: Any = CaseInsensitiveDict(options)
    source = DefaultSource(given)
    reader = source.reader(COLUMNS)
    rows = set()
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            numbers, offsets, times = batch.columns
            times_ms = [time_us // 1000 for time_us in times.cast("int64").to_pylist()]
            rows |= set(zip(numbers.to_pylist(), offsets.to_pylist(), times_ms, strict=True))
    return rows


@given(
    writes=WRITES,
    appends_time=st.booleans(),
    compacts=st.booleans(),
    isolation=st.sampled_from(["read_committed", "read_uncommitted"]),
    nth=st.integers(0, 100),
    beside_ms=st.integers(-1, 1),
)
def test_no_record_of_the_time_is_lost(
    servers: str,
    writer: Writer,
    writes: list[tuple[int, list[tuple[str, int]], bool | None]],
    appends_time: bool,
    compacts: bool,
    isolation: str,
    nth: int,
    beside_ms: int,
) -> None:
    configs = {"segment.ms": "1", "index.interval.bytes": "100", "file.delete.delay.ms": "0"}
    if appends_time:
        configs["message.timestamp.type"] = "LogAppendTime"
    if compacts:
        configs |= {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
        }
    topic = writer.topic(**configs)
    now_ms = int(time.time() * 1000)
    for partition, records, commits in writes:
        timed = [(key, now_ms - minutes * MINUTE_MS) for key, minutes in records]
        writer.write(topic, partition, timed, commits)
    read = {
        "kafka.bootstrap.servers": servers,
        "kafka.isolation.level": isolation,
        "subscribe": topic,
    }
    before = rows_of(**read)
    times = sorted({time_ms for _, _, time_ms in before}) or [now_ms]
    # What is drawn is the same in every try, and the times are not.
    since_ms = times[nth % len(times)] + beside_ms
    found = rows_of(
        **read, startingTimestamp=str(since_ms), startingOffsetsByTimestampStrategy="latest"
    )
    check(found, before, since_ms, rows_of(**read))
    # The marker that ends a transaction has a time of its own, at which a read may begin.
    has_markers = any(commits is not None for _, _, commits in writes)
    if not (compacts or has_markers or isolation == "read_committed"):
        firsts = [min(row for row in found if row[0] == each) for each in {row[0] for row in found}]
        assert all(time_ms >= since_ms for _, _, time_ms in firsts)
    counted_back = rows_of(**read, startingOffsets="-10 minutes")
    check(counted_back, before, int(time.time() * 1000) - 10 * MINUTE_MS, rows_of(**read))
    writer.delete(topic)


def check(found: Any, before: Any, since_ms: int, after: Any) -> None:
    """What is there before and after a read from `since_ms` on was found by it; nothing else."""
    assert {row for row in after if row[2] >= since_ms} <= found <= before
