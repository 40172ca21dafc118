"""What a read costs: requests of a query and of its tasks, and what is done to a batch's bytes.

Calls are the same for compiled and for plain modules (`function_calls`), and so is what they
allocate.
"""

import resource
import tracemalloc
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.structs import TopicPartition
from typing_extensions import Buffer

from pyspark_kafkalog.arrow import decode
from pyspark_kafkalog.arrow.decode import BYTES_PER_BATCH, ROWS_PER_BATCH
from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS
from pyspark_kafkalog.client import fetch_state
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import FETCH_BYTES, Fetcher
from pyspark_kafkalog.record import batch
from pyspark_kafkalog.record.crc import crc32c
from pyspark_kafkalog.source.options import SourceOptions, batch_options
from pyspark_kafkalog.source.partitions import OffsetRange, ReadTask
from pyspark_kafkalog.source.python_worker import close_kept
from pyspark_kafkalog.source.reader import KafkalogReader
from pyspark_kafkalog.source.reading import read_task
from tests.counted_work.function_calls import FunctionCalls, function_calls
from tests.counted_work.requests import received, requests
from tests.pyspark_kafkalog.client.scripted import LIST_OFFSETS, Request, ScriptedBroker

TRIES = 5
CALLS_OF_A_BATCH = 30
"""Fetching, checking and decoding a record batch: some 10 us, however many records it has."""


@pytest.fixture
def source(servers: str) -> Callable[..., SourceOptions]:
    """source(topic, **options) -> what a query for this topic was given."""

    def options(topic: str, **given: str) -> SourceOptions:
        return batch_options({"kafka.bootstrap.servers": servers, "subscribe": topic, **given})

    return options


@pytest.fixture
def read(source: Callable[..., SourceOptions]) -> Callable[..., Any]:
    """read(topic, until_offset, columns, start_offset=0) -> how many rows, in how many batches."""

    def rows_of(
        topic: str,
        until_offset: int,
        columns: tuple[str, ...] = DEFAULT_COLUMNS,
        start_offset: int = 0,
    ) -> tuple[Any, int]:
        task = ReadTask((OffsetRange(topic, 0, start_offset, until_offset),), {})
        batches = [rows.num_rows for rows in read_task(source(topic), columns, task)]
        return sum(batches), len(batches)

    return rows_of


@pytest.fixture
def calls_of_reading(
    new_topic: Callable[..., str], write: Callable[..., None], read: Callable[..., Any]
) -> Callable[[int, int], FunctionCalls]:
    """calls_of_reading(batches, records) -> the calls to read so many batches of so many each."""

    def calls(batches: int, records: int) -> FunctionCalls:
        topic = new_topic()
        write(topic, batches, [b"v"] * records)
        found = []
        # The bytes of an answer may come in parts: the least is when they came at once.
        for _ in range(TRIES):
            close_kept()
            with function_calls() as counted:
                assert read(topic, batches * records) == (batches * records, 1)
            found.append(counted)
        return min(found, key=lambda counted: counted.total)

    return calls


def test_a_record_costs_no_call_and_a_batch_few(
    calls_of_reading: Callable[[int, int], FunctionCalls],
) -> None:
    """A call for each record takes as long as decoding it: the read would be half as fast."""
    few, many = calls_of_reading(20, 10), calls_of_reading(20, 200)
    assert many.total == few.total
    twice = calls_of_reading(40, 10)
    assert twice.total - few.total <= 20 * CALLS_OF_A_BATCH


def test_every_byte_is_checked_once(
    new_topic: Callable[..., str],
    write: Callable[..., None],
    read: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second CRC of each batch took a fifth of the time in which 1 kB records are decoded."""
    topic = new_topic()
    write(topic, 20, [b"v" * 1_000] * 10)
    checked = []

    def counting(data: Buffer, crc: int = 0) -> int:
        checked.append(memoryview(data).nbytes)
        return crc32c(data, crc)

    # Where it is used, since compiled modules call it unseen.
    for module in (fetch_state, batch, decode):
        monkeypatch.setattr(module, "crc32c", counting, raising=False)
    assert read(topic, 200)[0] == 200
    assert len(checked) == 20
    assert 200_000 <= sum(checked) <= 210_000


def test_a_request_is_one_send(calls_of_reading: Callable[[int, int], FunctionCalls]) -> None:
    """A header sent apart from its body waits for an acknowledgement where TCP_NODELAY is not."""
    counted = calls_of_reading(1, 1)
    assert counted.by_name["socket.sendall"] == len(("ApiVersions", "Metadata", "Fetch"))


@pytest.mark.parametrize("columns", [DEFAULT_COLUMNS, ("value",), ("offset",)])
def test_bytes_are_copied_once_from_the_answer_into_arrow(
    new_topic: Callable[..., str],
    write: Callable[..., None],
    read: Callable[..., Any],
    columns: tuple[str, ...],
) -> None:
    """A copy more of each fetched byte costs some 5% of a read, and a task half of its memory."""
    topic = new_topic()
    write(topic, 1, [b"v" * 1000] * 3_500)
    assert read(topic, 3_500, columns) == (3_500, 1)
    pool = pa.default_memory_pool()
    allocated_bytes = pool.total_bytes_allocated()
    tracemalloc.start()
    try:
        read(topic, 3_500, columns)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    allocated_bytes = pool.total_bytes_allocated() - allocated_bytes
    # The answer itself, and nothing of its size beside it.
    assert peak_bytes <= 3_500 * 1_020 + 200_000
    # Of Arrow's memory one room for the bytes of each column that is wanted, and numbers.
    wanted = len({"key", "value"}.intersection(columns))
    assert allocated_bytes <= wanted * BYTES_PER_BATCH + 600_000


def test_columns_that_nobody_wants_take_no_memory(
    new_topic: Callable[..., str], write: Callable[..., None], read: Callable[..., Any]
) -> None:
    """`.schema("offset long")` counts records of a topic that is larger than all memory."""
    topic = new_topic()
    write(topic, 1, [b"v"] * ROWS_PER_BATCH)
    pool = pa.default_memory_pool()
    before_bytes = pool.total_bytes_allocated()
    assert read(topic, ROWS_PER_BATCH, ("offset",)) == (ROWS_PER_BATCH, 1)
    assert pool.total_bytes_allocated() - before_bytes <= 8 * ROWS_PER_BATCH + 1_000


def test_arrow_batches_are_full_and_have_one_room_each(
    new_topic: Callable[..., str], write: Callable[..., None], read: Callable[..., Any]
) -> None:
    """Small batches slow Spark down; a room that nobody fills is 8 MiB for nothing."""
    topic = new_topic()
    write(topic, 25, [b"v"] * 1_000)
    pool = pa.default_memory_pool()
    before_bytes = pool.total_bytes_allocated()
    assert read(topic, 25_000, ("value",)) == (25_000, 3)
    assert pool.total_bytes_allocated() - before_bytes <= 3 * (BYTES_PER_BATCH + 100_000)


def test_the_memory_of_answers_is_used_again(
    new_topic: Callable[..., str], write: Callable[..., None], read: Callable[..., Any]
) -> None:
    """Memory anew for each answer is cleared by the kernel page by page: 5% of a read."""
    topic = new_topic()
    write(topic, 20, [b"v" * 1000] * 1_000)
    faults = []
    for _ in range(TRIES):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        assert read(topic, 20_000, ("value",))[0] == 20_000
        faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
    # 20 MB are 5,000 pages, of answers and of Arrow.
    assert min(faults) <= 2_500


def test_answers_take_turns_in_two_buffers(
    new_topic: Callable[..., str], write: Callable[..., None], servers: str
) -> None:
    """A new one is cleared by Python, too: that took as long as receiving what came into it."""
    topic = new_topic()
    write(topic, 20, [b"v" * 1000] * 1_000)
    place = TopicPartition(topic, 0)
    with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
        fetcher = Fetcher(cluster, place, 0, 20_000)
        buffers = [fetched.records.obj for fetched in fetcher.records()]
        assert len(buffers) > 4
        assert len({id(buffer) for buffer in buffers}) == 2


def test_a_range_is_fetched_in_full_answers_and_none_beyond_its_end(
    new_topic: Callable[..., str], write: Callable[..., None], read: Callable[..., Any]
) -> None:
    """An empty fetch at the end of each range waits for 500 ms in every task of a stream."""
    topic = new_topic()
    write(topic, 12, [bytes(1_000)] * 1_000)
    with requests() as sent, received() as answers:
        assert read(topic, 12_000)[0] == 12_000
    assert sent == {"ApiVersions": 1, "Metadata": 1, "Fetch": 3}
    # What is left of an answer behind its last whole batch comes again.
    assert answers.bytes <= 12_000 * 1_020 + 2 * (FETCH_BYTES - 4 * 1_000_000)


def test_a_small_range_of_a_large_partition_receives_little(
    new_topic: Callable[..., str], write: Callable[..., None], read: Callable[..., Any]
) -> None:
    """Each of many small ranges, or micro-batches, would fetch 4 MiB otherwise, and drop them."""
    topic = new_topic()
    write(topic, 40, [bytes(1_000)] * 100)
    with requests() as sent, received() as answers:
        assert read(topic, 2_010, start_offset=2_000)[0] == 10
    assert sent["Fetch"] == 1
    assert answers.bytes <= 400_000


@pytest.mark.parametrize("partitions", [1, 50])
def test_a_query_is_planned_by_as_many_requests_whatever_its_partitions(
    new_topic: Callable[..., str],
    write: Callable[..., None],
    source: Callable[..., SourceOptions],
    partitions: int,
) -> None:
    """One request for each partition makes 1,000 of them a second of planning, for each query."""
    topic = new_topic(partitions)
    write(topic, 1, [b"v"], partition=partitions - 1)
    reader = KafkalogReader(source(topic), DEFAULT_COLUMNS)
    with requests() as sent:
        (task,) = reader.partitions()
    assert sent == {"ApiVersions": 1, "Metadata": 1, "ListOffsets": 2}
    with requests() as sent:
        assert sum(rows.num_rows for rows in reader.read(task)) == 1
    assert sent == {"ApiVersions": 1, "Metadata": 1, "Fetch": 1}


def test_topics_with_nothing_to_read_are_asked_for_once_more_all_together(
    new_topic: Callable[..., str], write: Callable[..., None], source: Callable[..., SourceOptions]
) -> None:
    """No task reads them, so the plan itself looks whether they are the topics that they were."""
    topics = [new_topic(2) for _ in range(5)]
    write(topics[0], 1, [b"v"])
    reader = KafkalogReader(source(",".join(topics)), DEFAULT_COLUMNS)
    with requests() as sent:
        assert len(reader.partitions()) == 1
    assert sent == {"ApiVersions": 1, "Metadata": 2, "ListOffsets": 2}


def test_a_task_of_many_ranges_connects_once(
    new_topic: Callable[..., str], write: Callable[..., None], source: Callable[..., SourceOptions]
) -> None:
    """A connection costs three round trips before the first record comes."""
    topic = new_topic(8)
    for partition in range(8):
        write(topic, 1, [b"v"], partition=partition)
    reader = KafkalogReader(source(topic, maxPartitionsPerTask="8"), DEFAULT_COLUMNS)
    (task,) = reader.partitions()
    with requests() as sent:
        assert sum(rows.num_rows for rows in reader.read(task)) == 8
    assert sent == {"ApiVersions": 1, "Metadata": 1, "Fetch": 8}


def test_each_broker_is_asked_once_for_all_of_its_partitions() -> None:
    """Where a broker is asked twice, each plan takes a round trip more for each of the brokers."""

    def ends(request: Request) -> bytes:
        asked = ListOffsetsRequest.decode(request.body, version=request.version)
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        partitions = [
            topic.ListOffsetsPartitionResponse(
                partition_index=partition.partition_index,
                error_code=0,
                timestamp=-1,
                offset=0,
                leader_epoch=0,
            )
            for partition in asked.topics[0].partitions
        ]
        answer = ListOffsetsResponse(topics=[topic(name="t", partitions=partitions)])
        return bytes(answer.encode(version=request.version))

    with (
        ScriptedBroker({LIST_OFFSETS: ends}, topics={"t": 20}) as first,
        ScriptedBroker({LIST_OFFSETS: ends}, node_id=2) as second,
    ):
        first.brokers[2] = second
        first.leaders = dict.fromkeys(range(0, 20, 2), 2)
        given = {"kafka.bootstrap.servers": first.bootstrap_servers, "subscribe": "t"}
        with requests() as sent:
            assert KafkalogReader(batch_options(given), DEFAULT_COLUMNS).partitions() == []
    assert sent == {"ApiVersions": 2, "Metadata": 1, "ListOffsets": 4}
    assert len(second.asked(LIST_OFFSETS)) == 2
