"""Reading one range of offsets, with a fetcher that hands out what the test says."""

from contextlib import nullcontext
from types import SimpleNamespace
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.source import reader
from pyspark_kafkalog.source.options import batch_options
from pyspark_kafkalog.source.partitions import OffsetRange, ReadTask
from pyspark_kafkalog.source.reader import KafkalogReader, read_range, read_task
from tests.pyspark_kafkalog.source.fake_cluster import FakeCluster

GONE_ALTOGETHER = DataLossError("no such topic")


def gone(log_start_offset, log_end_offset):
    error = DataLossError("offsets are gone")
    error.log_start_offset, error.log_end_offset = log_start_offset, log_end_offset
    return error


def options(**given):
    base = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
    return batch_options({**base, **given})


@pytest.fixture
def fetches(monkeypatch):
    """Lets each fetcher hand out a script's (next offset) or raise its error; records the starts.

    What is fetched decodes to one Arrow batch that holds the offsets.
    """

    class Scripted:
        script = ()
        starts = ()

        def __init__(
            self,
            cluster,
            topic_partition,
            start_offset,
            until_offset,
            poll_timeout_ms,
            topic_id,
            leader_epoch,
        ):
            assert (topic_partition.topic, topic_partition.partition) == ("orders", 3)
            type(self).starts = (*self.starts, start_offset)
            type(self).poll_timeout_ms = poll_timeout_ms
            type(self).topic_id = topic_id
            self.position = start_offset

        def records(self):
            steps, type(self).script = self.script[0], self.script[1:]
            for step in steps:
                if isinstance(step, Exception):
                    raise step
                start, self.position = self.position, step
                yield SimpleNamespace(
                    records=memoryview(b""), start_offset=start, next_offset=step, aborted=[]
                )

    class Offsets:
        bad_timestamps = 0

        def __init__(self, topic, partition, columns, permissive):
            pass

        def decode(self, records, start_offset, until_offset, aborted):
            self.end = min(until_offset, start_offset + 2)
            yield pa.record_batch({"offset": pa.array(range(start_offset, self.end))})

        def finish(self):
            return iter(())

    monkeypatch.setattr(reader, "Fetcher", Scripted)
    monkeypatch.setattr(reader, "RecordDecoder", Offsets)
    monkeypatch.setattr(reader, "Cluster", lambda config, **how: nullcontext(FakeCluster()))
    return Scripted


def offsets(batches):
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


RANGE = OffsetRange("orders", 3, 10, 20)


def test_a_range_is_read_to_its_end(fetches):
    fetches.script = ([12, 14, 20],)
    assert offsets(read_range(FakeCluster(), options(), ["offset"], RANGE)) == [
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
def test_a_partition_may_show_no_progress_for_the_poll_timeout(fetches, given, expected_ms):
    fetches.script = ([20],)
    assert offsets(read_range(FakeCluster(), options(**given), ["offset"], RANGE)) == [10, 11]
    assert fetches.poll_timeout_ms == expected_ms


def test_offsets_that_retention_takes_meanwhile_are_data_loss(fetches):
    fetches.script = ([12, gone(16, 30)],)
    with pytest.raises(DataLossError, match="offsets are gone"):
        offsets(read_range(FakeCluster(), options(), ["offset"], RANGE))


@pytest.mark.parametrize(
    ("error", "goes_on_at"),
    [
        (gone(16, 30), 16),
        (gone(25, 30), None),
        (gone(0, 5), None),
        (GONE_ALTOGETHER, None),
    ],
)
def test_a_read_that_may_lose_data_goes_on_where_the_log_begins(fetches, caplog, error, goes_on_at):
    fetches.script = ([12, error], [18, 20])
    told = []
    may_lose = options(failOnDataLoss="false")
    found = offsets(read_range(FakeCluster(), may_lose, ["offset"], RANGE, on_gap=told.append))
    assert told == [OffsetRange("orders", 3, 12, goes_on_at or 20)]
    if goes_on_at is None:
        assert (found, fetches.starts) == ([10, 11], (10,))
        assert "Offsets 12 up to 20 of partition orders-3 are gone" in caplog.text
    else:
        assert (found, fetches.starts) == ([10, 11, 16, 17, 18, 19], (10, 16))
        assert "Offsets 12 up to 16 of partition orders-3 are gone" in caplog.text


def test_a_read_is_split_into_tasks(monkeypatch):
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


def test_tasks_have_the_ids_of_their_topics(monkeypatch):
    cluster = FakeCluster(orders=[(0, 10)], payments=[(0, 1)], legacy=[(0, 1)])
    cluster.topic_ids = {"orders": UUID(int=1), "payments": UUID(int=2)}
    monkeypatch.setattr(reader, "Cluster", lambda config, **how: nullcontext(cluster))
    planned = KafkalogReader(options(subscribe="orders,payments,legacy"), ["value"]).partitions()
    assert {task.value.ranges[0].topic: task.value.topic_ids for task in planned} == {
        "orders": {"orders": UUID(int=1)},
        "payments": {"payments": UUID(int=2)},
        "legacy": {},
    }


def test_a_task_reads_its_ranges_one_after_the_other_with_their_topics_ids(fetches):
    fetches.script = ([20], [40])
    ids = {"orders": UUID(int=7)}
    task = ReadTask((RANGE, OffsetRange("orders", 3, 30, 40)), ids)
    assert offsets(read_task(options(), ["offset"], task)) == [10, 11, 30, 31]
    assert fetches.topic_id == UUID(int=7)


def test_the_partition_that_spark_makes_up_for_none_is_empty():
    assert list(KafkalogReader(options(), ["value"]).read(InputPartition(None))) == []


def test_filters_are_not_pushed_down():
    """Spark 4.2 and 4.3 let a filtered plan leak into other scans of the same DataFrame."""
    assert "pushFilters" not in vars(KafkalogReader)
