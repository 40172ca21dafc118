"""Reading one range of offsets, with a fetcher that hands out what the test says."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from uuid import UUID

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition
from pyspark.sql.datasource import InputPartition

from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.source import reader, reading
from pyspark_kafkalog.source.options import SourceOptions, batch_options
from pyspark_kafkalog.source.partitions import OffsetRange, ReadTask
from pyspark_kafkalog.source.reader import KafkalogReader
from pyspark_kafkalog.source.reading import read_range, read_task
from tests.pyspark_kafkalog.source.fake_cluster import FakeCluster, as_cluster

GONE_ALTOGETHER = DataLossError("no such topic")


def gone(log_start_offset: int, log_end_offset: int) -> DataLossError:
    error = DataLossError("offsets are gone")
    error.log_start_offset, error.log_end_offset = log_start_offset, log_end_offset
    return error


def options(**given: str) -> SourceOptions:
    base = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
    return batch_options({**base, **given})


class Scripted:
    """A Fetcher whose script is that of its class, which keeps what it was asked."""

    script: Sequence[Sequence[int | Exception]] = ()
    starts: tuple[int, ...] = ()
    poll_timeout_ms: int
    topic_id: UUID | None

    def __init__(
        self,
        cluster: FakeCluster,
        topic_partition: TopicPartition,
        start_offset: int,
        until_offset: int,
        poll_timeout_ms: int,
        topic_id: UUID | None,
        leader_epoch: int,
    ) -> None:
        assert (topic_partition.topic, topic_partition.partition) == ("orders", 3)
        type(self).starts = (*self.starts, start_offset)
        type(self).poll_timeout_ms = poll_timeout_ms
        type(self).topic_id = topic_id
        self.position = start_offset

    def records(self) -> Iterator[SimpleNamespace]:
        steps, type(self).script = self.script[0], self.script[1:]
        for step in steps:
            if isinstance(step, Exception):
                raise step
            start, self.position = self.position, step
            yield SimpleNamespace(
                records=memoryview(b""), start_offset=start, next_offset=step, aborted=[]
            )


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    """Lets each fetcher hand out a script's (next offset) or raise its error; records the starts.

    What is fetched decodes to one Arrow batch that holds the offsets.
    """

    class Fresh(Scripted):
        """With a script of its own."""

    class Offsets:
        bad_timestamps = 0

        def __init__(
            self, topic: str, partition: int, columns: Sequence[str], permissive: bool
        ) -> None:
            pass

        def decode(
            self,
            records: memoryview,
            start_offset: int,
            until_offset: int,
            aborted: Sequence[tuple[int, int]],
        ) -> Iterator[pa.RecordBatch]:
            self.end = min(until_offset, start_offset + 2)
            yield pa.record_batch({"offset": pa.array(range(start_offset, self.end))})

        def finish(self) -> Iterator[pa.RecordBatch]:
            return iter(())

    monkeypatch.setattr(reading, "Fetcher", Fresh)
    monkeypatch.setattr(reading, "RecordDecoder", Offsets)
    monkeypatch.setattr(reader, "Cluster", lambda config, **how: nullcontext(FakeCluster()))
    return Fresh


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


RANGE = OffsetRange("orders", 3, 10, 20)


def test_a_range_is_read_to_its_end(fetches: type[Scripted]) -> None:
    fetches.script = ([12, 14, 20],)
    assert offsets(read_range(as_cluster(FakeCluster()), options(), ["offset"], RANGE)) == [
        10,
        11,
        12,
        13,
        14,
        15,
    ]


@pytest.mark.parametrize(
    ("given", "expected_ms"), [({}, 120_000), ({"kafkaConsumer.pollTimeoutMs": "500"}, 500)]
)
def test_a_partition_may_show_no_progress_for_the_poll_timeout(
    fetches: type[Scripted], given: dict[str, str], expected_ms: int
) -> None:
    fetches.script = ([20],)
    assert offsets(read_range(as_cluster(FakeCluster()), options(**given), ["offset"], RANGE)) == [
        10,
        11,
    ]
    assert fetches.poll_timeout_ms == expected_ms


def test_offsets_that_retention_takes_meanwhile_are_data_loss(fetches: type[Scripted]) -> None:
    fetches.script = ([12, gone(16, 30)],)
    with pytest.raises(DataLossError, match="offsets are gone"):
        offsets(read_range(as_cluster(FakeCluster()), options(), ["offset"], RANGE))


@pytest.mark.parametrize(
    ("error", "goes_on_at"),
    [
        (gone(16, 30), 16),
        (gone(25, 30), None),
        (gone(0, 5), None),
        (GONE_ALTOGETHER, None),
    ],
)
def test_a_read_that_may_lose_data_goes_on_where_the_log_begins(
    fetches: type[Scripted],
    caplog: pytest.LogCaptureFixture,
    error: DataLossError,
    goes_on_at: int | None,
) -> None:
    fetches.script = ([12, error], [18, 20])
    told: list[OffsetRange] = []
    may_lose = options(failOnDataLoss="false")
    found = offsets(
        read_range(as_cluster(FakeCluster()), may_lose, ["offset"], RANGE, on_gap=told.append)
    )
    assert told == [OffsetRange("orders", 3, 12, goes_on_at or 20)]
    if goes_on_at is None:
        assert (found, fetches.starts) == ([10, 11], (10,))
        assert "Offsets 12 up to 20 of partition orders-3 are gone" in caplog.text
    else:
        assert (found, fetches.starts) == ([10, 11, 16, 17, 18, 19], (10, 16))
        assert "Offsets 12 up to 16 of partition orders-3 are gone" in caplog.text


def test_a_read_is_split_into_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = nullcontext(FakeCluster(orders=[(0, 10), (3, 5)]))
    monkeypatch.setattr(reader, "Cluster", lambda config, **how: cluster)
    planned = KafkalogReader(options(minPartitions="4"), ["value"]).partitions()
    pieces = [piece for task in planned for piece in task.value.ranges]
    assert len(planned) == 4
    assert [(piece.partition, piece.start_offset) for piece in pieces] == [
        (0, 0),
        (0, 3),
        (0, 6),
        (1, 3),
    ]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_tasks_doubt_records_of_leaders_that_were_elected_after_the_plan(
    monkeypatch: pytest.MonkeyPatch, fail: str
) -> None:
    """A log that was cut off meanwhile has others where some tasks have read already."""
    cluster = FakeCluster(orders=[(0, 10), (0, 10)])
    cluster.epochs = {TopicPartition("orders", 0): 4}
    monkeypatch.setattr(reader, "Cluster", lambda config, **how: nullcontext(cluster))
    planned = KafkalogReader(options(failOnDataLoss=fail), ["value"]).partitions()
    doubted = [cluster.epochs, {}] if fail == "true" else [{}, {}]
    assert [task.value.epochs for task in planned] == doubted


def test_tasks_have_the_ids_of_their_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(orders=[(0, 10)], payments=[(0, 1)], legacy=[(0, 1)])
    cluster.topic_ids = {"orders": UUID(int=1), "payments": UUID(int=2)}
    monkeypatch.setattr(reader, "Cluster", lambda config, **how: nullcontext(cluster))
    planned = KafkalogReader(options(subscribe="orders,payments,legacy"), ["value"]).partitions()
    assert {task.value.ranges[0].topic: task.value.topic_ids for task in planned} == {
        "orders": {"orders": UUID(int=1)},
        "payments": {"payments": UUID(int=2)},
        "legacy": {},
    }


def test_a_task_reads_its_ranges_one_after_the_other_with_their_topics_ids(
    fetches: type[Scripted],
) -> None:
    fetches.script = ([20], [40])
    ids = {"orders": UUID(int=7)}
    task = ReadTask((RANGE, OffsetRange("orders", 3, 30, 40)), ids)
    assert offsets(read_task(options(), ["offset"], task)) == [10, 11, 30, 31]
    assert fetches.topic_id == UUID(int=7)


def test_the_partition_that_spark_makes_up_for_none_is_empty() -> None:
    assert list(KafkalogReader(options(), ["value"]).read(InputPartition(None))) == []


def test_filters_are_not_pushed_down() -> None:
    """Spark 4.2 and 4.3 let a filtered plan leak into other scans of the same DataFrame."""
    assert "pushFilters" not in vars(KafkalogReader)
