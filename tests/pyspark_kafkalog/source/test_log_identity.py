"""Checkpoints whose topics or logs are others by now, beside leaders that are dictionaries."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from kafka.structs import TopicPartition
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafkalog.errors import DataLossError, TopicRecreatedError
from pyspark_kafkalog.source import log_identity, stream_reader
from pyspark_kafkalog.source.log_identity import (
    LogIdentity,
    identity_in,
    left_in,
    left_with,
    with_identity,
    with_left,
)
from pyspark_kafkalog.source.offsets import Offsets, from_json, to_json
from pyspark_kafkalog.source.options import stream_options
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.stream_reader import KafkalogStreamReader
from tests.pyspark_kafkalog.source.fake_cluster import FakeCluster

ALL = ReadAllAvailable()
FIRST, SECOND = UUID(int=1), UUID(int=2)
ORDERS_0 = TopicPartition("orders", 0)


class Leaders(FakeCluster):
    """One log, of 10 records in epoch 4, whose leaders tell their epochs."""

    def __init__(self) -> None:
        super().__init__(orders=[(0, 10)])
        self.topic_ids = {"orders": FIRST}
        self.epochs = {ORDERS_0: 4}
        self.ends: dict[int, int] = {}
        """Where epochs ended; those that it leaves out reach to the end of the log."""
        self.asked_for_ends = 0

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Offsets:
        self.asked_for_ends += bool(epochs)
        return {
            each: self.ends.get(epoch, self.logs[each.topic][each.partition][1])
            for each, epoch in epochs.items()
            if epoch <= self.epochs[each]
        }

    def times_asked(self) -> int:
        return self.asked_for_ends

    def is_cut(self, at: int, grown: int) -> None:
        """As by an election of a replica that was not in sync."""
        self.logs["orders"] = [(0, grown)]
        self.ends[self.epochs[ORDERS_0]] = at
        self.epochs[ORDERS_0] += 1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Leaders:
    fake = Leaders()
    monkeypatch.setattr(stream_reader, "Cluster", lambda config: fake)
    monkeypatch.setattr(log_identity, "epoch_ends", lambda cluster, epochs: fake.epoch_ends(epochs))
    return fake


def reader(**options: str) -> KafkalogStreamReader:
    given = {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "fetchOffset.retryIntervalMs": "5",
    }
    return KafkalogStreamReader(stream_options({**given, **options}), ["value"])


def test_a_checkpoint_does_not_grow_with_every_topic_that_is_deleted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    end: Any = {"orders": {"0": 10}}
    for day in reversed(range(50)):
        of_day = {TopicPartition(f"of-{day:02}", number): 7 for number in range(100)}
        gone = LogIdentity({f"of-{day:02}": UUID(int=day)}, dict.fromkeys(of_day, 3), of_day)
        end = with_left({"orders": {"0": 10}}, left_with(left_in(end), gone))
    left = left_in(end)
    assert {each.topic for each in left.begins} == {f"of-{day:02}" for day in range(20)}
    assert len(caplog.messages) == 30
    assert "of-49-0" in caplog.messages[0]
    assert "read from its beginning" in caplog.messages[0]
    assert left_with(left, LogIdentity()) == left
    # What goes at once is noted, however much it is.
    much = {TopicPartition("much", number): 1 for number in range(3_000)}
    assert left_with(left, LogIdentity(begins=much)).begins == much
    assert from_json(end) == {ORDERS_0: 10}


def first_batch() -> tuple[dict[str, Any], dict[str, Any]]:
    """Where a query's first micro-batch begins, and ends as Spark writes it down."""
    stream = reader()
    start = stream.initialOffset()
    return start, written(stream.latestOffset(start, ALL))


def written(end: Mapping[str, Any]) -> dict[str, Any]:
    """As it comes back from a checkpoint."""
    found = json.loads(json.dumps(end))
    assert isinstance(found, dict)
    return found


def ranges(partitions: list[InputPartition]) -> list[tuple[int, int]]:
    pieces: list[OffsetRange] = [
        piece for partition in partitions for piece in partition.value.ranges
    ]
    return [(piece.start_offset, piece.until_offset) for piece in pieces]


def is_created_again(cluster: Leaders, grown: int, epoch: int = 0) -> None:
    cluster.topic_ids = {"orders": SECOND}
    cluster.logs["orders"] = [(0, grown)]
    cluster.epochs = {ORDERS_0: epoch}


def test_the_end_of_a_batch_says_of_which_logs_its_offsets_are(cluster: Leaders) -> None:
    _, end = first_batch()
    assert to_json(from_json(end)) == {"orders": {"0": 10}}
    assert identity_in(end) == LogIdentity({"orders": FIRST}, {ORDERS_0: 4})


def test_offsets_of_brokers_that_say_neither_ids_nor_epochs_are_as_before() -> None:
    end = {"orders": {"0": 10}}
    assert with_identity(end, LogIdentity()) == end
    assert identity_in(end) == LogIdentity()


def test_a_first_batch_that_is_left_empty_says_so_too(cluster: Leaders) -> None:
    stream = reader(startingOffsets="latest")
    recorded = written(stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit()))
    assert identity_in(recorded) == LogIdentity({"orders": FIRST}, {ORDERS_0: 4})
    is_created_again(cluster, 30)
    with pytest.raises(TopicRecreatedError, match="orders: deleted and created again"):
        reader().latestOffset(recorded, ALL)


@pytest.mark.parametrize("epoch", [0, 4])
@pytest.mark.parametrize("grown", [0, 5, 10, 30])
@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_topic_that_was_created_again_while_no_query_ran_stops_the_next(
    cluster: Leaders, grown: int, epoch: int, is_available_now: bool
) -> None:
    _, end = first_batch()
    is_created_again(cluster, grown, epoch)
    stream = reader()
    if is_available_now:
        stream.prepareForTriggerAvailableNow()
    for _ in range(2):
        with pytest.raises(TopicRecreatedError, match="orders: deleted and created again"):
            stream.latestOffset(end, ALL)


def test_tasks_of_a_batch_that_is_run_again_look_for_the_topic_that_it_was_planned_of(
    cluster: Leaders,
) -> None:
    start, end = first_batch()
    is_created_again(cluster, 30)
    (task,) = (stream := reader()).partitions(stream.initialOffset(), end)
    assert task.value.topic_ids == {"orders": FIRST}
    assert start == {"orders": {"0": 0}}


@pytest.mark.parametrize("grown", [5, 10, 30])
@pytest.mark.parametrize("is_available_now", [False, True])
def test_who_may_lose_data_reads_a_topic_of_a_later_day_from_its_beginning(
    cluster: Leaders, caplog: pytest.LogCaptureFixture, grown: int, is_available_now: bool
) -> None:
    _, end = first_batch()
    is_created_again(cluster, grown)
    stream = reader(failOnDataLoss="false")
    if is_available_now:
        stream.prepareForTriggerAvailableNow()
    later = written(stream.latestOffset(end, ALL))
    assert "orders: deleted and created again" in caplog.text
    assert identity_in(later) == LogIdentity({"orders": SECOND}, {ORDERS_0: 0}, {ORDERS_0: 0})
    (task,) = tasks = stream.partitions(end, later)
    assert (ranges(tasks), task.value.topic_ids) == ([(0, grown)], {"orders": SECOND})
    assert stream.latestOffset(later, ALL) == later
    # Killed in this batch, the next run reads the same.
    for fail in ("false", "true"):
        assert ranges(reader(failOnDataLoss=fail).partitions(end, later)) == [(0, grown)]


@pytest.mark.parametrize("grown", [6, 8, 10, 30])
@pytest.mark.parametrize("has_stopped", [False, True])
def test_a_log_that_was_cut_off_below_the_offsets_of_a_query_stops_it(
    cluster: Leaders, grown: int, has_stopped: bool
) -> None:
    stream = reader()
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    stream.partitions(start, end)
    cluster.is_cut(6, grown)
    lost = r"orders-0 lost records before offset 10.* cut off at offset 6 .*failOnDataLoss"
    with pytest.raises(DataLossError, match=lost):
        (reader() if has_stopped else stream).latestOffset(written(end), ALL)


@pytest.mark.parametrize("grown", [8, 10, 30])
def test_who_may_lose_data_goes_on_where_the_log_was_cut_off(
    cluster: Leaders, caplog: pytest.LogCaptureFixture, grown: int
) -> None:
    _, end = first_batch()
    cluster.is_cut(6, grown)
    stream = reader(failOnDataLoss="false")
    later = written(stream.latestOffset(end, ALL))
    assert "orders-0 lost records before offset 10" in caplog.text
    caplog.clear()
    # A plan that has the source twice, as a union with itself, asks twice.
    for _ in range(2):
        assert ranges(stream.partitions(end, later)) == [(6, grown)]
    assert ranges(reader(failOnDataLoss="false").partitions(end, later)) == [(6, grown)]
    caplog.clear()
    cluster.logs["orders"] = [(0, grown + 2)]
    newest = stream.latestOffset(later, ALL)
    assert ranges(stream.partitions(later, newest)) == [(grown, grown + 2)]
    assert not caplog.text


def test_a_limited_query_goes_on_by_its_limit_where_the_log_was_cut_off(cluster: Leaders) -> None:
    _, end = first_batch()
    cluster.is_cut(6, 8)
    stream = reader(failOnDataLoss="false", maxOffsetsPerTrigger="1")
    limit = stream.getDefaultReadLimit()
    for begin in (6, 7):
        later = written(stream.latestOffset(end, limit))
        assert ranges(stream.partitions(end, later)) == [(begin, begin + 1)]
        end = later


def test_leaders_are_asked_once_for_each_election_that_lost_nothing(cluster: Leaders) -> None:
    stream = reader()
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    stream.partitions(start, end)
    assert cluster.times_asked() == 0
    for election in (1, 2):
        cluster.epochs[ORDERS_0] += 1
        for _ in range(3):
            assert stream.latestOffset(end, ALL) == end
        assert cluster.times_asked() == election
    cluster.logs["orders"] = [(0, 12)]
    assert ranges(stream.partitions(end, stream.latestOffset(end, ALL))) == [(10, 12)]
    assert cluster.times_asked() == 2


def test_a_broker_that_was_restored_stops_a_query_and_one_that_lags_behind_does_not(
    cluster: Leaders,
) -> None:
    _, end = first_batch()
    cluster.epochs[ORDERS_0] = 3
    cluster.logs["orders"] = [(0, 30)]
    with pytest.raises(DataLossError, match="epoch 3, earlier than the epoch 4 in which the query"):
        reader().latestOffset(end, ALL)
    stream = reader(failOnDataLoss="false")
    later = stream.latestOffset(end, ALL)
    assert ranges(stream.partitions(end, later)) == [(10, 30)]

    def ask_all(topics: object = ()) -> None:
        cluster.epochs[ORDERS_0] = 4

    cluster.ask_all = ask_all  # type: ignore[method-assign]
    assert from_json(reader().latestOffset(end, ALL)) == {ORDERS_0: 30}


def test_a_batch_that_is_run_again_is_not_read_from_a_log_that_was_cut_off(
    cluster: Leaders, caplog: pytest.LogCaptureFixture
) -> None:
    _, end = first_batch()
    cluster.logs["orders"] = [(0, 20)]
    later = written(reader().latestOffset(end, ALL))
    cluster.is_cut(15, 40)
    with pytest.raises(DataLossError, match="orders-0 was cut off at offset 15, and a micro-batch"):
        reader().partitions(end, later)
    stream = reader(failOnDataLoss="false")
    assert ranges(stream.partitions(end, later)) == [(10, 15)]
    newest = stream.latestOffset(later, ALL)
    assert ranges(stream.partitions(later, newest)) == [(15, 40)]


def test_tasks_doubt_records_of_leaders_that_were_elected_later(cluster: Leaders) -> None:
    """Also where data may be lost: what comes after a cut, the next batch reads."""
    _, end = first_batch()
    for fail in ("true", "false"):
        stream = reader(failOnDataLoss=fail)
        (task,) = stream.partitions(stream.initialOffset(), end)
        assert task.value.epochs == {ORDERS_0: 4}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_is_gone_is_no_log_that_was_cut_off(
    cluster: Leaders, caplog: pytest.LogCaptureFixture, fail: str
) -> None:
    _, end = first_batch()
    cluster.logs = {"payments": [(0, 5)]}
    options = {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribePattern": ".*",
        "failOnDataLoss": fail,
    }
    stream = KafkalogStreamReader(stream_options(options), ["value"])
    if fail == "true":
        with pytest.raises(DataLossError, match="Partitions are gone: orders-0"):
            stream.partitions({"orders": {"0": 3}}, end)
    else:
        assert stream.partitions({"orders": {"0": 3}}, end) == []
        assert "Partitions are gone: orders-0" in caplog.text
