"""What a write costs: requests of a task, and what is done to its rows on their way."""

import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.source.decisions import WrittenTransaction
from pyspark_kafkalog.source.options import sink_options
from pyspark_kafkalog.source.rows_to_records import RowsToRecords
from pyspark_kafkalog.source.two_phase import Lead, TransactionalWrites
from pyspark_kafkalog.source.writer import KafkalogWriter
from tests.counted_work.function_calls import function_calls
from tests.counted_work.requests import requests
from tests.support.present import present

TASK = {"ApiVersions": 1, "Metadata": 1, "DescribeConfigs": 1, "InitProducerId": 1}
"""What a task asks besides what it writes: a connection, its topic, its limits, its id."""

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("partition", IntegerType()),
    ]
)


@pytest.fixture
def write_rows(servers: str) -> Callable[..., None]:
    """write_rows(topic, *batches, **options) writes Arrow batches as one task does."""

    def task(topic: str, *batches: Any, **options: str) -> None:
        given = {"kafka.bootstrap.servers": servers, "topic": topic}
        given |= {"kafka." + name.replace("_", "."): value for name, value in options.items()}
        report = KafkalogWriter(sink_options(given), SCHEMA).write(iter(batches))
        assert report.record_count == sum(batch.num_rows for batch in batches)

    return task


def rows_of(count: int, value: bytes = b"v", **columns: Sequence[bytes]) -> Any:
    given = {"value": pa.array([value] * count, pa.binary())}
    return pa.record_batch(given | {name: pa.array(column) for name, column in columns.items()})


def test_a_row_costs_no_call(
    new_topic: Callable[..., str], write_rows: Callable[..., None]
) -> None:
    """A call for each row takes as long as encoding it: the write would be half as fast."""
    topic = new_topic(4)

    def calls(count: int) -> int:
        keys = [b"%d" % number for number in range(count)]
        rows = rows_of(count, key=keys)
        found = []
        for _ in range(5):
            with function_calls() as counted:
                write_rows(topic, rows)
            found.append(counted.total)
        return min(found)

    assert calls(5_000) <= calls(500) + 20


def test_a_task_sends_full_batches_and_asks_for_nothing_twice(
    new_topic: Callable[..., str], write_rows: Callable[..., None]
) -> None:
    """Batches half as full cost more to write, and to read as long as they are kept."""
    topic = new_topic()
    rows = rows_of(10_000, b"v" * 100)
    with requests() as sent:
        write_rows(topic, *[rows] * 4)
    # 4.4 MB of records in batches of 1 MB.
    assert sent == {**TASK, "Produce": 5}
    with requests() as sent:
        write_rows(topic, *[rows] * 4, batch_size="500000")
    # A request has one batch of each partition.
    assert sent == {**TASK, "Produce": 9}


def test_small_batches_of_many_partitions_share_a_request(
    new_topic: Callable[..., str], write_rows: Callable[..., None]
) -> None:
    """A request for each partition makes micro-batches of wide topics slower by as many."""
    topic = new_topic(50)
    with requests() as sent:
        write_rows(topic, rows_of(500, key=[b"%d" % number for number in range(500)]))
    assert sent == {**TASK, "Produce": 1}


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_rows_are_copied_once_into_the_batch_that_is_sent(
    new_topic: Callable[..., str], write_rows: Callable[..., None], codec: str
) -> None:
    """A copy more costs some 5% of a write, and a task half of its memory."""
    topic = new_topic()
    rows = rows_of(4_000, b"v" * 1_000)
    size_bytes = 4_000 * 1_020
    options = {"batch_size": "4200000", "max_request_size": "8000000", "compression_type": codec}
    write_rows(topic, rows, **options)
    tracemalloc.start()
    try:
        write_rows(topic, rows, **options)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= 1.1 * size_bytes + 200_000


def test_a_column_of_partitions_costs_no_object_for_each_row() -> None:
    """As Python's integers they took a third of the time in which a topic is copied."""
    count = 10_000
    partitions = pa.array([number % 500 for number in range(count)], pa.int32())

    def peak_bytes(rows: Any) -> int:
        encoder = RecordEncoder(500)
        list(encoder.encode(rows))  # whose batches stay open, with room for as many rows
        tracemalloc.start()
        try:
            assert not list(encoder.encode(rows))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    everywhere = rows_of(count, key=[b"%d" % number for number in range(count)])
    named = everywhere.append_column("partition", partitions)
    assert peak_bytes(named) <= peak_bytes(everywhere) + 4 * count


def test_a_micro_batch_in_transactions_asks_what_it_has_to(
    servers: str, new_topic: Callable[..., str]
) -> None:
    """Each request is a round trip in every micro-batch: milliseconds where brokers are far. None
    connects, as the processes that plan, write and commit kept connections of the one before."""
    given = {"kafka.bootstrap.servers": servers, "topic": new_topic()}
    options = sink_options(given)
    writes = TransactionalWrites(options.client, f"{options.topic}-prefix")

    def lead() -> Lead:
        return writes.take_lead("query")

    def task(lead: Lead, number: int) -> WrittenTransaction | None:
        with writes.task(lead, "query", number, 0) as task:
            producer = task.begin()
            records = RowsToRecords(options, producer)
            records.write(rows_of(10))
            records.finish()
            producer.flush()
            return task.written(10, f"digest {number}")

    def micro_batch(number: int) -> tuple[Any, ...]:
        """The requests of its plan, of its two tasks and of its commit."""
        with requests() as planning:
            taken = lead()
        written, tasks = [], []
        for each in range(2):
            with requests() as sent:
                written.append(present(task(taken, each)))
            tasks.append(sent)
        with requests() as committing:
            writes.commit(taken, "query", number, written)
        return planning, *tasks, committing

    micro_batch(0)
    plan, first, second, commit = micro_batch(1)
    found = {"Metadata": 1, "FindCoordinator": 1}
    decision = {"ListOffsets": 2, "Fetch": 1}
    cleared = {"InitProducerId": 1, "ListTransactions": 1}
    # Whether the decision is the newest still is asked when nobody else can decide any more.
    # And whether the decisions are kept for ever still.
    assert plan == found | decision | {"ListOffsets": 3, "DescribeConfigs": 1} | cleared
    begun = {"FindCoordinator": 1, "DescribeTransactions": 1, "AddPartitionsToTxn": 1}
    connecting = Counter(ApiVersions=1)
    assert first == second == Counter(TASK) - connecting + Counter(begun | {"Produce": 1})
    decided = {"DescribeTransactions": 1, "AddPartitionsToTxn": 1, "Produce": 2, "EndTxn": 4}
    # Resigned by an EndTxn, too, which fences since KIP-890.
    assert commit == found | decision | decided | {"ListTransactions": 1}
