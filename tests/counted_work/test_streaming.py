"""What a running stream asks of brokers: the same for each micro-batch, however long it runs."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS
from pyspark_kafkalog.source.options import stream_options
from pyspark_kafkalog.source.stream_reader import KafkalogStreamReader
from tests.counted_work.requests import requests

PARTITIONS = 30
CONNECTING = Counter(ApiVersions=1)


@pytest.fixture
def stream(
    servers: str, new_topic: Callable[..., str]
) -> Iterator[Callable[..., tuple[str, KafkalogStreamReader]]]:
    """stream(**options) -> a topic, and the reader of a query; closed at the end."""
    readers = []

    def start(**options: str) -> tuple[str, KafkalogStreamReader]:
        topic = new_topic(PARTITIONS)
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic, **options}
        given["startingOffsets"] = "earliest"
        readers.append(KafkalogStreamReader(stream_options(given), DEFAULT_COLUMNS))
        return topic, readers[-1]

    yield start
    for reader in readers:
        reader.stop()


def micro_batch(
    reader: KafkalogStreamReader, start: dict[str, dict[str, int]]
) -> tuple[Any, Any, Counter[str]]:
    """The end of the next micro-batch, its tasks, and what its plan asked."""
    with requests() as sent:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        tasks = reader.partitions(start, end) if end != start else []
    return end, tasks, sent


def test_each_micro_batch_is_planned_by_the_same_few_requests(
    stream: Callable[..., tuple[str, KafkalogStreamReader]], write: Callable[..., None]
) -> None:
    """They are most of the driver's own time in a stream of small batches, which runs for years."""
    topic, reader = stream()
    with requests() as sent:
        offsets = reader.initialOffset()
    assert sent == {"ApiVersions": 1, "Metadata": 1, "ListOffsets": 2}
    for number in range(3):
        write(topic, 1, [b"v"], partition=number)
        write(topic, 1, [b"v"], partition=number + 10)
        offsets, tasks, sent = micro_batch(reader, offsets)
        assert len(tasks) == 2
        assert sent == {"Metadata": 1, "ListOffsets": 2}
    _, tasks, sent = micro_batch(reader, offsets)
    assert not tasks
    assert sent == {"Metadata": 1, "ListOffsets": 1}


def test_each_task_of_a_micro_batch_fetches_once_what_is_there(
    stream: Callable[..., tuple[str, KafkalogStreamReader]], write: Callable[..., None]
) -> None:
    """A fetch more doubles the time of a small task, or waits at the partition's end. A worker's
    later tasks use the connection of its first."""
    topic, reader = stream()
    offsets = reader.initialOffset()
    for number in range(3):
        write(topic, 3, [b"v"] * 10, partition=number)
        offsets, (task,), _ = micro_batch(reader, offsets)
        with requests() as sent:
            assert sum(batch.num_rows for batch in reader.read(task)) == 30
        assert sent == (CONNECTING if not number else Counter()) + Counter(Metadata=1, Fetch=1)


def test_a_stream_that_may_lose_data_looks_once_more_for_its_partitions(
    stream: Callable[..., tuple[str, KafkalogStreamReader]], write: Callable[..., None]
) -> None:
    """A second look is what tells it which partitions are gone; a third tells nothing."""
    topic, reader = stream(failOnDataLoss="false")
    offsets = reader.initialOffset()
    for number in range(2):
        write(topic, 1, [b"v"], partition=number)
        offsets, tasks, sent = micro_batch(reader, offsets)
        assert len(tasks) == 1
        assert sent == {"Metadata": 2, "ListOffsets": 2}


def test_a_limit_in_bytes_samples_by_one_request(
    stream: Callable[..., tuple[str, KafkalogStreamReader]], write: Callable[..., None]
) -> None:
    """A request for each partition with a backlog would take longer than the batch it plans."""
    topic, reader = stream(maxBytesPerTrigger="1000")
    offsets = reader.initialOffset()
    for number in range(PARTITIONS):
        write(topic, 1, [b"v" * 100], partition=number)
    _, tasks, sent = micro_batch(reader, offsets)
    assert len(tasks) == PARTITIONS
    assert sent == {"Metadata": 1, "ListOffsets": 2, "Fetch": 1}
