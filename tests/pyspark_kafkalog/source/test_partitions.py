"""Which partitions and offsets a batch read plans, against a cluster that is a dictionary."""

import pickle
from collections.abc import Iterable
from uuid import UUID

import pytest
from kafka.structs import OffsetAndTimestamp, TopicPartition

from pyspark_kafkalog.errors import (
    DataLossError,
    InvalidOptionError,
    TopicRecreatedError,
    UnknownTopicError,
)
from pyspark_kafkalog.source.decisions import decisions_topic
from pyspark_kafkalog.source.offsets import (
    EARLIEST,
    LATEST,
    LogBounds,
    OffsetLimit,
    RelativeLimit,
    TimeLimit,
)
from pyspark_kafkalog.source.partitions import (
    AssignPartitions,
    OffsetRange,
    SubscribePattern,
    SubscribeTopics,
    clamp_starts,
    plan_batch,
)
from tests.pyspark_kafkalog.source.fake_cluster import FakeCluster, Recreated, as_cluster

FROM_EARLIEST = OffsetLimit(everywhere=EARLIEST)
TO_LATEST = OffsetLimit(everywhere=LATEST)


CLUSTER = FakeCluster(orders=[(5, 10), (0, 20), (7, 7)], orders_eu=[(0, 3)], payments=[(0, 1)])


def plan(
    subscription: SubscribeTopics | SubscribePattern | AssignPartitions,
    starting: OffsetLimit | TimeLimit | RelativeLimit = FROM_EARLIEST,
    ending: OffsetLimit | TimeLimit = TO_LATEST,
    fail_on_data_loss: bool = True,
) -> list[OffsetRange]:
    ranges, *_ = plan_batch(as_cluster(CLUSTER), subscription, starting, ending, fail_on_data_loss)
    return ranges


def at(topic: str, *offsets: int) -> OffsetLimit:
    named = {TopicPartition(topic, number): offset for number, offset in enumerate(offsets)}
    return OffsetLimit(by_partition=named)


ORDERS = SubscribeTopics(("orders",))


def test_a_range_for_each_partition_that_is_not_empty() -> None:
    assert plan(ORDERS) == [OffsetRange("orders", 0, 5, 10), OffsetRange("orders", 1, 0, 20)]


def test_named_offsets_bound_the_ranges() -> None:
    ranges = plan(ORDERS, at("orders", 6, 20, -2), at("orders", 9, -1, -1))
    assert ranges == [OffsetRange("orders", 0, 6, 9)]


def test_a_range_that_ends_where_it_begins_is_empty() -> None:
    assert plan(ORDERS, at("orders", 6, 20, -2), at("orders", 6, -1, -1)) == []


def test_an_end_at_the_very_beginning_is_before_a_start() -> None:
    with pytest.raises(InvalidOptionError, match="after offset 0"):
        plan(ORDERS, at("orders", -2, 3, -2), at("orders", -1, 0, -1))


def test_a_start_beyond_the_end_is_the_end_where_losses_are_allowed() -> None:
    topic_partition = TopicPartition("orders", 0)
    bounds = LogBounds({topic_partition: 5}, {topic_partition: 10})
    for start, clamped in [(0, 5), (5, 5), (10, 10), (50, 10)]:
        assert clamp_starts({topic_partition: start}, bounds, fail_on_data_loss=False) == {
            topic_partition: clamped
        }


def test_a_pattern_is_found_anywhere_in_a_name() -> None:
    cluster = FakeCluster(orders=[(0, 1)], orders_eu=[(0, 1)], reorders=[(0, 1)])
    assert SubscribePattern("^orders").partitions(as_cluster(cluster)) == [
        ("orders", 0),
        ("orders-eu", 0),
    ]
    assert len(SubscribePattern("orders").partitions(as_cluster(cluster))) == 3
    assert SubscribePattern("x|reorders").partitions(as_cluster(cluster)) == [("reorders", 0)]


def test_no_pattern_finds_what_the_sink_keeps_for_itself() -> None:
    cluster = FakeCluster(orders=[(0, 1)])
    cluster.logs[decisions_topic("orders")] = [(0, 1)]
    assert SubscribePattern("orders|.*").partitions(as_cluster(cluster)) == [("orders", 0)]


def test_a_pattern_without_a_match_reads_nothing_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert plan(SubscribePattern("nothing")) == []
    assert "no topic matches 'nothing'" in caplog.text


def test_an_assignment_reads_the_named_partitions() -> None:
    assigned = AssignPartitions((TopicPartition("orders", 1), TopicPartition("payments", 0)))
    assert plan(assigned) == [OffsetRange("orders", 1, 0, 20), OffsetRange("payments", 0, 0, 1)]


def test_an_unknown_topic_or_partition_is_an_error_unless_it_may_be_missing() -> None:
    unknown = SubscribeTopics(("nope", "payments"))
    with pytest.raises(UnknownTopicError, match="nope"):
        plan(unknown)
    assert unknown.partitions(as_cluster(CLUSTER), missing_ok=True) == [("payments", 0)]
    assigned = AssignPartitions((TopicPartition("payments", 0), TopicPartition("payments", 9)))
    with pytest.raises(UnknownTopicError, match=r"do not exist: payments-9\. There are payments-0"):
        plan(assigned)
    assert assigned.partitions(as_cluster(CLUSTER), missing_ok=True) == [("payments", 0)]


def test_named_offsets_must_not_be_the_wrong_way_round() -> None:
    with pytest.raises(InvalidOptionError, match=r"offset 9 of partition orders-0.*offset 8"):
        plan(ORDERS, at("orders", 9, 0, 7), at("orders", 8, -1, -1))


@pytest.mark.parametrize(
    ("starting", "ending", "message", "read"),
    [
        (at("orders", 2, -2, -2), TO_LATEST, "orders-0 begins at offset 5.*from 2", (5, 10)),
        (at("orders", 50, -2, -2), TO_LATEST, "orders-0 ends at offset 10.*from 50", None),
        (FROM_EARLIEST, at("orders", 50, -1, -1), "orders-0 ends at offset 10.*to 50", (5, 10)),
    ],
)
def test_offsets_that_are_gone_are_data_loss(
    caplog: pytest.LogCaptureFixture,
    starting: OffsetLimit,
    ending: OffsetLimit,
    message: str,
    read: tuple[int, int] | None,
) -> None:
    with pytest.raises(DataLossError, match=message):
        plan(ORDERS, starting, ending)
    rest = [OffsetRange("orders", 1, 0, 20)]
    expected = [OffsetRange("orders", 0, *read), *rest] if read else rest
    assert plan(ORDERS, starting, ending, fail_on_data_loss=False) == expected
    assert "failOnDataLoss is false" in caplog.text


def test_a_range_is_checked_and_travels() -> None:
    offset_range = OffsetRange("orders", 0, 5, 10)
    assert offset_range.offset_count == 5
    assert offset_range.topic_partition == TopicPartition("orders", 0)
    assert pickle.loads(pickle.dumps(offset_range)) == offset_range
    with pytest.raises(ValueError, match="not a range"):
        OffsetRange("orders", 0, 10, 5)


def since(time_ms: int = 0, latest_if_none: bool = False, **by_partition: int) -> TimeLimit:
    named = {TopicPartition("orders", int(name[1:])): ms for name, ms in by_partition.items()}
    option = "startingOffsetsByTimestamp" if named else "startingTimestamp"
    return TimeLimit(option, latest_if_none, time_ms, named or None)


def until(time_ms: int = 0, **by_partition: int) -> TimeLimit:
    limit = since(time_ms, latest_if_none=True, **by_partition)
    option = limit.option.replace("starting", "ending")
    return TimeLimit(option, True, limit.everywhere_ms, limit.by_partition)


def test_times_are_looked_up_in_each_partition() -> None:
    assigned = AssignPartitions((TopicPartition("orders", 0), TopicPartition("orders", 1)))
    first, second = OffsetRange("orders", 0, 7, 10), OffsetRange("orders", 1, 7, 20)
    assert plan(assigned, since(6001)) == [first, second]
    assert plan(assigned, since(p0=3000, p1=19_000)) == [
        OffsetRange("orders", 0, 5, 10),
        OffsetRange("orders", 1, 19, 20),
    ]
    assert plan(assigned, since(6000), until(9000)) == [
        OffsetRange("orders", 0, 6, 9),
        OffsetRange("orders", 1, 6, 9),
    ]
    assert plan(assigned, FROM_EARLIEST, until(p0=99_000, p1=2000)) == [
        OffsetRange("orders", 0, 5, 10),
        OffsetRange("orders", 1, 0, 2),
    ]


def test_a_start_later_than_every_record_is_an_error_or_the_end() -> None:
    with pytest.raises(InvalidOptionError, match="startingTimestamp: partition orders-0 has no r"):
        plan(ORDERS, since(15_000))
    ranges = plan(ORDERS, since(15_000, latest_if_none=True))
    assert ranges == [OffsetRange("orders", 1, 15, 20)]


def test_times_must_name_exactly_the_partitions_that_are_read() -> None:
    with pytest.raises(
        InvalidOptionError, match=r"startingOffsetsByTimestamp must name .*orders-2"
    ):
        plan(ORDERS, since(p0=1, p1=1))


def test_times_must_not_give_offsets_the_wrong_way_round() -> None:
    assigned = AssignPartitions((TopicPartition("orders", 1),))
    with pytest.raises(
        InvalidOptionError, match=r"startingTimestamp begins at offset 9 of .*orders-1"
    ):
        plan(assigned, since(9000), until(8000))
    named = OffsetLimit(by_partition={TopicPartition("orders", 1): 12})
    with pytest.raises(InvalidOptionError, match="after offset 8, where endingTimestamp ends"):
        plan(assigned, named, until(8000))


ALL_ORDERS = AssignPartitions((TopicPartition("orders", 0), TopicPartition("orders", 1)))


@pytest.mark.parametrize(
    ("back", "starts"), [(0, None), (3, (7, 17)), (5, (5, 15)), (19, (5, 1)), (10**15 - 1, (5, 0))]
)
def test_a_start_is_counted_back_from_each_end(back: int, starts: tuple[int, int] | None) -> None:
    first, second = starts or (10, 20)
    read = [OffsetRange("orders", 0, first, 10), OffsetRange("orders", 1, second, 20)]
    assert plan(ALL_ORDERS, RelativeLimit(offsets=back)) == (read if starts else [])


def test_a_start_is_counted_back_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 20.0)
    ranges = plan(ALL_ORDERS, RelativeLimit(ms=12_000))
    assert ranges == [OffsetRange("orders", 0, 8, 10), OffsetRange("orders", 1, 8, 20)]
    assert plan(ALL_ORDERS, RelativeLimit(ms=1)) == []
    everything = [OffsetRange("orders", 0, 5, 10), OffsetRange("orders", 1, 0, 20)]
    assert plan(ALL_ORDERS, RelativeLimit(ms=10**12)) == everything


def test_one_word_stands_for_all_partitions_of_a_topic() -> None:
    both = SubscribeTopics(("orders", "payments"))
    starting = OffsetLimit(
        by_partition={TopicPartition("payments", 0): 1}, by_topic={"orders": EARLIEST}
    )
    assert plan(both, starting) == [
        OffsetRange("orders", 0, 5, 10),
        OffsetRange("orders", 1, 0, 20),
    ]
    with pytest.raises(InvalidOptionError, match=r"Not named: payments-0\."):
        plan(both, OffsetLimit(by_partition={}, by_topic={"orders": EARLIEST}))
    with pytest.raises(InvalidOptionError, match="Named but not read: payments"):
        plan(ORDERS, OffsetLimit(by_partition={}, by_topic={"orders": -2, "payments": -2}))


class Growing(FakeCluster):
    """By ten records a partition, just before each answer."""

    def list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timestamp: int,
        isolation: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        self.logs["orders"] = [(first, last + 10) for first, last in self.logs["orders"]]
        return super().list_offsets(partitions, timestamp, isolation)


def test_records_that_come_while_a_time_is_looked_up_are_no_data_loss() -> None:
    cluster = Growing(orders=[(0, 10)])
    ranges, *_ = plan_batch(as_cluster(cluster), ORDERS, since(19_000), TO_LATEST, True)
    assert ranges == [OffsetRange("orders", 0, 19, 40)]


def test_records_of_a_time_that_come_when_it_was_looked_up_are_behind_its_start() -> None:
    since_35, cluster = since(35_000, latest_if_none=True), Growing(orders=[(0, 10)])
    (read,), *_ = plan_batch(as_cluster(cluster), ORDERS, since_35, TO_LATEST, True)
    assert read.start_offset <= 35 < read.until_offset


def test_records_of_a_time_that_come_when_it_was_looked_up_are_not_before_its_end() -> None:
    cluster = Growing(orders=[(0, 10)])
    (read,), *_ = plan_batch(as_cluster(cluster), ORDERS, FROM_EARLIEST, until(35_000), True)
    assert (read.start_offset, read.until_offset) == (0, 20)


@pytest.mark.parametrize(
    ("starting", "at", "first"),
    [
        (FROM_EARLIEST, LATEST, 500),
        (since(550_000), EARLIEST, 550),
        (RelativeLimit(offsets=80), LATEST, 920),
        (RelativeLimit(ms=10**9), EARLIEST, 500),
    ],
)
def test_a_plan_has_the_ids_that_topics_had_before_any_offset_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
    starting: OffsetLimit | TimeLimit | RelativeLimit,
    at: int,
    first: int,
) -> None:
    """With a later one a task would take offsets of one topic for those of another."""
    monkeypatch.setattr("time.time", lambda: 1_000_000.5)
    found = plan_batch(as_cluster(Recreated(1000, at)), ORDERS, starting, TO_LATEST, True)
    assert found == ([OffsetRange("orders", 0, first, 1000)], {"orders": UUID(int=1)}, {})


@pytest.mark.parametrize(("end", "hears"), [(1000, True), (500, True), (500, False)])
def test_a_topic_that_is_created_again_while_a_read_is_planned_is_an_error(
    end: int, hears: bool
) -> None:
    """Also where nothing seems to be there to read, so that no task would find out."""
    with pytest.raises(TopicRecreatedError, match="orders: deleted and created again while the"):
        plan_batch(as_cluster(Recreated(end, hears=hears)), ORDERS, FROM_EARLIEST, TO_LATEST, True)


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("end", [1000, 500, 300])
def test_a_read_that_may_lose_data_is_planned_anew_for_a_topic_that_is_created_again(
    caplog: pytest.LogCaptureFixture, end: int, hears: bool
) -> None:
    both = SubscribeTopics(("orders", "payments"))
    cluster = Recreated(end, hears=hears)
    assert plan_batch(as_cluster(cluster), both, FROM_EARLIEST, TO_LATEST, False) == (
        [OffsetRange("orders", 0, 0, end), OffsetRange("payments", 0, 0, 1)],
        {"orders": UUID(int=2), "payments": UUID(int=7)},
        {},
    )
    assert "orders: deleted and created again while the read was planned." in caplog.text


def test_a_topic_that_is_created_again_and_again_is_left_to_the_tasks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Recreated(1000, at=EARLIEST, times=50)
    ranges, ids, _ = plan_batch(as_cluster(cluster), ORDERS, FROM_EARLIEST, TO_LATEST, False)
    assert ranges == [OffsetRange("orders", 0, 0, 1000)]
    assert cluster.times == 47
    assert ids == {"orders": UUID(int=3)}
    assert cluster.topic_ids["orders"] == UUID(int=4)
    assert caplog.text.count("deleted and created again") == 3


def test_a_topic_that_is_deleted_while_a_read_is_planned_and_was_empty_is_no_loss() -> None:
    class Deleted(FakeCluster):
        def refresh(self, topics: Iterable[str] | None = None) -> None:
            del self.logs["orders"]
            super().refresh(topics)

    cluster = Deleted(orders=[(3, 3)])
    cluster.topic_ids["orders"] = UUID(int=1)
    found = plan_batch(as_cluster(cluster), ORDERS, FROM_EARLIEST, TO_LATEST, True)
    assert found == ([], {"orders": UUID(int=1)}, {})
