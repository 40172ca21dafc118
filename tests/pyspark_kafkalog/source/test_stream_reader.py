"""What a stream plans to read, batch by batch, against a cluster that is a dictionary."""

import pickle
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from kafka.errors import UnknownMemberIdError
from kafka.structs import OffsetAndTimestamp, TopicPartition
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.errors import (
    DataLossError,
    InvalidOptionError,
    TopicRecreatedError,
    UnknownTopicError,
)
from pyspark_kafkalog.source import group_progress, log_identity, stream_reader
from pyspark_kafkalog.source.log_identity import LogIdentity
from pyspark_kafkalog.source.offsets import Offsets, from_json, to_json, with_start
from pyspark_kafkalog.source.options import stream_options
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.stream_reader import KafkalogStreamReader
from tests.pyspark_kafkalog.source.fake_cluster import FakeCluster, Recreated

ALL = ReadAllAvailable()
FROM_THE_BEGINNING = '{"orders":{"0":5,"1":0}}'
"""As offsets, with which a first batch begins at once."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster(orders=[(5, 10), (0, 20)])
    monkeypatch.setattr(stream_reader, "Cluster", lambda config: fake)
    return fake


def reader(**options: str | None) -> KafkalogStreamReader:
    quick = {"fetchOffset.numRetries": "4", "fetchOffset.retryIntervalMs": "5"}
    read = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
    given = {**read, **quick, **options}
    chosen = {name: value for name, value in given.items() if value is not None}
    return KafkalogStreamReader(stream_options(chosen), ["value"])


def left_empty(start: Mapping[str, Any]) -> dict[str, Any]:
    """The end of a first batch that only records where the query starts."""
    return with_start(dict(start), from_json(start))


def plain(offsets: Mapping[str, Any]) -> dict[str, Any]:
    """Those of topics, without where the query started."""
    return {topic: partitions for topic, partitions in offsets.items() if partitions}


def ranges(partitions: list[InputPartition]) -> list[Any]:
    return [piece for partition in partitions for piece in partition.value.ranges]


def test_the_initial_offset_is_the_same_each_time_it_is_asked_for(cluster: FakeCluster) -> None:
    stream = reader()
    initial = stream.initialOffset()
    assert initial == {"orders": {"0": 10, "1": 20}}
    cluster.logs["orders"] = [(5, 11), (0, 21)]
    assert stream.initialOffset() == initial


def test_a_query_that_starts_at_the_latest_offsets_first_records_them(cluster: FakeCluster) -> None:
    stream = reader()
    initial = stream.initialOffset()
    cluster.logs["orders"] = [(5, 12), (0, 20)]
    recorded = stream.latestOffset(initial, ALL)
    assert recorded == left_empty(initial)
    assert stream.partitions(initial, recorded) == []
    end = stream.latestOffset(recorded, ALL)
    assert end == {"orders": {"0": 12, "1": 20}}
    assert ranges(stream.partitions(initial, end)) == [OffsetRange("orders", 0, 10, 12)]


def test_the_first_batch_replayed_after_a_restart_loses_nothing(cluster: FakeCluster) -> None:
    recorded = left_empty(reader().initialOffset())
    cluster.logs["orders"] = [(5, 15), (0, 25)]
    restarted = reader()
    assert restarted.partitions(restarted.initialOffset(), recorded) == []
    end = restarted.latestOffset(recorded, ALL)
    assert ranges(restarted.partitions(recorded, end)) == [
        OffsetRange("orders", 0, 10, 15),
        OffsetRange("orders", 1, 20, 25),
    ]


def test_a_replayed_first_batch_from_the_earliest_offsets_reads_what_it_did(
    cluster: FakeCluster,
) -> None:
    cluster.logs["orders"] = [(0, 10), (0, 20)]
    first = reader(startingOffsets="earliest")
    end = first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    cluster.logs["orders"] = [(0, 15), (0, 25), (0, 1)]
    restarted = reader(startingOffsets="earliest")
    assert ranges(restarted.partitions(restarted.initialOffset(), end)) == [
        OffsetRange("orders", 0, 0, 10),
        OffsetRange("orders", 1, 0, 20),
    ]


@pytest.mark.parametrize(
    ("start", "begins"),
    [
        ({"startingOffsets": "earliest"}, (0, 0)),
        ({"startingOffsets": "earliest"}, (5, 0)),
        ({"startingOffsets": '{"orders":"earliest"}'}, (5, 0)),
        ({"startingTimestamp": "0"}, (5, 0)),
        ({"startingTimestamp": "3000"}, (0, 0)),
    ],
)
@pytest.mark.parametrize("gone_up_to", [7, 10, 12])
def test_what_retention_takes_from_a_first_batch_that_is_replayed_is_data_loss(
    cluster: FakeCluster, start: dict[str, str], begins: tuple[int, int], gone_up_to: int
) -> None:
    cluster.logs["orders"] = [(begins[0], 10), (begins[1], 20)]
    first = reader(**start)
    initial = first.initialOffset()
    recorded = first.latestOffset(initial, first.getDefaultReadLimit())
    assert recorded.get("orders") == (
        {"0": 10, "1": 20} if begins == (0, 0) else initial.get("orders")
    )
    cluster.logs["orders"] = [(gone_up_to, 15), (0, 25)]
    restarted = reader(**start)

    def replay_and_go_on() -> None:
        restarted.partitions(restarted.initialOffset(), recorded)
        restarted.partitions(recorded, restarted.latestOffset(recorded, ALL))

    with pytest.raises(DataLossError, match=f"orders-0 begins at offset {gone_up_to}, and off"):
        replay_and_go_on()


@pytest.mark.parametrize(
    "start",
    [
        {"startingOffsets": "earliest"},
        {"startingTimestamp": "3000"},
        {"startingTimestamp": "3000", "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
@pytest.mark.parametrize("ends", [10, 15])
def test_a_log_that_was_emptied_below_a_first_batch_is_not_where_the_query_began(
    cluster: FakeCluster, start: dict[str, str], ends: int
) -> None:
    cluster.logs["orders"] = [(0, 10)]
    first = reader(**start)
    end = first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    cluster.logs["orders"] = [(10, ends)]
    restarted = reader(**start)
    with pytest.raises((DataLossError, InvalidOptionError), match=r"begins at offset 10|no record"):
        restarted.partitions(restarted.initialOffset(), end)


@pytest.mark.parametrize("ends", [10, 15])
def test_a_query_that_began_at_the_end_of_an_emptied_log_goes_on_there(
    cluster: FakeCluster, ends: int
) -> None:
    cluster.logs["orders"] = [(10, 10)]
    first = reader(startingOffsets="earliest")
    initial = first.initialOffset()
    recorded = first.latestOffset(initial, first.getDefaultReadLimit())
    cluster.logs["orders"] = [(10, ends)]
    restarted = reader(startingOffsets="earliest")
    assert restarted.partitions(restarted.initialOffset(), recorded) == []
    end = restarted.latestOffset(recorded, restarted.getDefaultReadLimit())
    assert end == (recorded if ends == 10 else {"orders": {"0": 15}})


def test_a_first_batch_from_a_time_does_not_begin_later_when_it_is_replayed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.logs["orders"] = [(2, 10)]
    first = reader(startingTimestamp="3000")
    initial = first.initialOffset()
    recorded = first.latestOffset(initial, first.getDefaultReadLimit())
    # Retention took record 3; those behind it are older than it was, but for the 8th.
    cluster.logs["orders"] = [(4, 10)]
    later = {TopicPartition("orders", 0): OffsetAndTimestamp(8, 8000, -1)}
    monkeypatch.setattr(cluster, "_offsets_at_time", lambda *asked: later)
    restarted = reader(startingTimestamp="3000")
    restarted.partitions(restarted.initialOffset(), recorded)
    end = restarted.latestOffset(recorded, ALL)
    with pytest.raises(DataLossError, match="begins at offset 4, and offsets from 3 were asked"):
        restarted.partitions(recorded, end)


def test_a_query_that_runs_once_reads_a_log_whose_beginning_is_gone_at_once(
    cluster: FakeCluster,
) -> None:
    stream = reader(startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert plain(end) == {"orders": {"0": 10, "1": 20}}
    cluster.logs["orders"] = [(7, 15), (0, 25)]
    restarted = reader(startingOffsets="earliest")
    with pytest.raises(DataLossError, match="begins at offset 7, and offsets from 5 were asked"):
        restarted.partitions(restarted.initialOffset(), end)


@pytest.mark.parametrize("start", ["earliest", '{"orders":{"0":3,"1":0}}'])
@pytest.mark.parametrize("later", ["latest", "-5", '{"orders":{"0":10,"1":20}}', "earliest"])
def test_where_a_first_batch_begins_is_changed_by_no_option(
    cluster: FakeCluster, start: str, later: str
) -> None:
    cluster.logs["orders"] = [(0, 10), (0, 20)]
    first = reader(startingOffsets=start)
    initial = first.initialOffset()
    end = first.latestOffset(initial, first.getDefaultReadLimit())
    restarted = reader(startingOffsets=later)
    replayed = restarted.partitions(restarted.initialOffset(), end)
    assert ranges(replayed) == ranges(first.partitions(initial, end)) != []
    # Nothing is new, and that is said in the checkpoint's own words.
    assert restarted.latestOffset(end, ALL) == end


def test_a_first_batch_is_replayed_after_partitions_were_added_that_no_option_names(
    cluster: FakeCluster,
) -> None:
    named = {"startingOffsets": '{"orders":{"0":7,"1":-2}}'}
    first = reader(**named)
    end = first.latestOffset(first.initialOffset(), ALL)
    cluster.logs["orders"].append((0, 3))
    restarted = reader(**named)
    assert ranges(restarted.partitions(restarted.initialOffset(), end)) == [
        OffsetRange("orders", 0, 7, 10),
        OffsetRange("orders", 1, 0, 20),
    ]
    later = restarted.latestOffset(end, ALL)
    assert ranges(restarted.partitions(end, later)) == [OffsetRange("orders", 2, 0, 3)]


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_a_new_query_must_name_every_partition_and_no_other(
    cluster: FakeCluster, option: str
) -> None:
    incomplete = reader(**{option: '{"orders":{"0":7}}'})
    with pytest.raises(InvalidOptionError, match=rf"{option} must name .*Not named: orders-1\."):
        incomplete.latestOffset(incomplete.initialOffset(), ALL)
    with pytest.raises(InvalidOptionError, match="Named but not read: orders-2"):
        reader(**{option: '{"orders":{"0":7,"1":7,"2":7}}'}).initialOffset()


def test_a_topic_that_is_created_again_below_a_query_stops_it(cluster: FakeCluster) -> None:
    cluster.topic_ids["orders"] = UUID(int=1)
    stream = reader(startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    (task, _) = stream.partitions(stream.initialOffset(), end)
    assert task.value.topic_ids == {"orders": UUID(int=1)}
    cluster.topic_ids["orders"] = UUID(int=2)
    cluster.logs["orders"] = [(0, 50), (0, 50)]
    for _ in range(2):
        with pytest.raises(TopicRecreatedError, match="orders: deleted and created again"):
            stream.latestOffset(end, ALL)


@pytest.mark.parametrize("end", [500, 1000])
def test_a_topic_that_is_created_again_between_two_offsets_of_a_plan_is_found_out(
    monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """By the next plan, or by the tasks, which have the id from before the first of the offsets."""
    monkeypatch.setattr(stream_reader, "Cluster", lambda config: Recreated(end))
    stream = reader(startingOffsets="earliest")
    initial = stream.initialOffset()
    assert initial == {"orders": {"0": 500}}
    with pytest.raises(TopicRecreatedError, match="orders: deleted and created again"):
        stream.latestOffset(initial, ALL)

    cluster = Recreated(end, times=0)
    monkeypatch.setattr(stream_reader, "Cluster", lambda config: cluster)
    stream = reader(startingOffsets="earliest")
    initial = stream.initialOffset()
    cluster.times = 1
    later = stream.latestOffset(initial, ALL)
    assert plain(later) == {"orders": {"0": end}}
    for task in stream.partitions(initial, later):
        assert task.value.topic_ids == {"orders": UUID(int=1)}
    with pytest.raises(TopicRecreatedError, match="orders: deleted and created again"):
        stream.latestOffset(later, ALL)


@pytest.mark.parametrize("grown", [0, 5, 10, 30])
def test_a_query_that_may_lose_data_reads_a_topic_that_was_created_again_from_its_beginning(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, grown: int
) -> None:
    cluster.topic_ids["orders"] = UUID(int=1)
    stream = reader(startingOffsets="earliest", failOnDataLoss="false")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    cluster.topic_ids["orders"] = UUID(int=2)
    cluster.logs["orders"] = [(0, grown), (0, 3)]
    later = stream.latestOffset(end, ALL)
    assert "orders: deleted and created again" in caplog.text
    assert plain(later) == {"orders": {"0": grown, "1": 3}}
    tasks = stream.partitions(end, later)
    anew = [OffsetRange("orders", 0, 0, grown)] if grown else []
    assert ranges(tasks) == [*anew, OffsetRange("orders", 1, 0, 3)]
    assert tasks[0].value.topic_ids == {"orders": UUID(int=2)}
    cluster.logs["orders"] = [(0, grown), (0, 4)]
    assert ranges(stream.partitions(later, stream.latestOffset(later, ALL))) == [
        OffsetRange("orders", 1, 3, 4)
    ]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_partitions_that_a_query_subscribes_to_no_more_are_not_said_to_be_lost(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, fail: str
) -> None:
    cluster.logs["payments"] = [(0, 5)]
    both = reader(subscribe="orders,payments", startingOffsets="earliest")
    end = both.latestOffset(both.initialOffset(), ALL)
    said = r"does not subscribe to any more: payments-0\. If it does later, it goes on .* it was\."
    if fail == "true":
        with pytest.raises(DataLossError, match=f"{said} Subscribe to them, or set the option"):
            reader().latestOffset(end, ALL)
    else:
        kept = reader(failOnDataLoss="false")
        kept.partitions(end, kept.latestOffset(end, ALL))
        assert re.search(said, caplog.text)
    assert "Partitions are gone" not in caplog.text


class Query:
    """Reads all that there is, batch by batch, each of which another process would read the same;
    `is_restarted` before each of them."""

    def __init__(self, is_restarted: bool, **options: str | None) -> None:
        self._options, self._is_restarted = options, is_restarted
        self._stream = reader(**options)
        self._begin = self._at = self._stream.initialOffset()

    def read(self, topic: str) -> list[tuple[int, int]]:
        """The partitions and offsets of its records that are read."""
        found: list[OffsetRange] = []
        while True:
            is_first = self._at == self._begin
            if self._is_restarted and not is_first:
                self._stream = reader(**self._options)
            end = self._stream.latestOffset(self._at, self._stream.getDefaultReadLimit())
            read = ranges(self._stream.partitions(self._at, end))
            if end == self._at:
                break
            assert is_first or read == ranges(reader(**self._options).partitions(self._at, end))
            found += [each for each in read if each.topic == topic]
            self._at = end
        return [
            (each.partition, offset)
            for each in found
            for offset in range(each.start_offset, each.until_offset)
        ]


ADDED = [(0, 6), (0, 7), (2, 0), (2, 1)]


@pytest.mark.parametrize("limit", [None, "4"])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    ("became", "expected", "said"),
    [
        ("the same", ADDED, ""),
        ("shorter", [], "payments-0 went back from offset 6 to 4"),
        ("of an earlier epoch", ADDED, "payments-0 has a leader of epoch 2"),
        ("another", [*((0, each) for each in range(8)), (1, 0), (2, 0), (2, 1)], ""),
    ],
)
def test_a_topic_that_is_back_goes_on_where_the_query_left_it(
    cluster: FakeCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    became: str,
    expected: list[tuple[int, int]],
    said: str,
    is_restarted: bool,
    limit: str | None,
) -> None:
    """Brokers that have just started may not know it, and a permission may be taken away."""

    def ends(_: Any, epochs: Mapping[TopicPartition, int]) -> Offsets:
        return {each: cluster.logs[each.topic][each.partition][1] for each in epochs}

    monkeypatch.setattr(log_identity, "epoch_ends", ends)
    cluster.topic_ids = {"orders": UUID(int=1), "payments": UUID(int=2)}
    cluster.logs["payments"] = [(0, 6), (0, 1)]
    cluster.epochs = {TopicPartition("payments", 0): 3, TopicPartition("payments", 1): 3}
    options = {"subscribe": None, "subscribePattern": ".*", "maxOffsetsPerTrigger": limit}
    query = Query(is_restarted, startingOffsets="earliest", failOnDataLoss="false", **options)
    assert len(query.read("payments")) == 7
    del cluster.logs["payments"]
    cluster.logs["orders"] = [(5, 11), (0, 20)]
    assert query.read("payments") == []
    assert "Partitions are gone: payments-0, payments-1" in caplog.text
    cluster.logs["payments"] = [(0, 8), (0, 1), (0, 2)]
    if became == "shorter":
        cluster.logs["payments"] = [(0, 4), (0, 1)]
    elif became == "of an earlier epoch":
        cluster.epochs[TopicPartition("payments", 0)] = 2
    elif became == "another":
        cluster.topic_ids["payments"] = UUID(int=3)
    assert sorted(query.read("payments")) == expected
    assert said in caplog.text


def test_a_topic_that_was_back_and_is_another_before_enough_is_there_is_read_from_its_beginning(
    cluster: FakeCluster,
) -> None:
    cluster.topic_ids = {"orders": UUID(int=1), "payments": UUID(int=2)}
    cluster.logs = {"orders": [(0, 10)], "payments": [(0, 6)]}
    stream = reader(
        subscribe=None,
        subscribePattern=".*",
        failOnDataLoss="false",
        startingOffsets="earliest",
        minOffsetsPerTrigger="5",
    )
    limit = stream.getDefaultReadLimit()
    initial = stream.initialOffset()
    end = stream.latestOffset(initial, limit)
    assert len(ranges(stream.partitions(initial, end))) == 2
    cluster.logs = {"orders": [(0, 16)]}
    left = stream.latestOffset(end, limit)
    stream.partitions(end, left)
    cluster.logs["payments"] = [(0, 7)]
    assert stream.latestOffset(left, limit) == left
    cluster.logs["payments"] = [(0, 9)]
    cluster.topic_ids["payments"] = UUID(int=3)
    back = stream.latestOffset(left, limit)
    assert ranges(stream.partitions(left, back)) == [OffsetRange("payments", 0, 0, 9)]


@pytest.mark.parametrize("hides", ["before it is planned again", "before it is read"])
def test_what_a_batch_gave_up_is_read_once_it_is_back(cluster: FakeCluster, hides: str) -> None:
    cluster.topic_ids = {"orders": UUID(int=1), "payments": UUID(int=2)}
    cluster.logs = {"orders": [(0, 10)], "payments": [(0, 6)]}
    options = {"subscribe": None, "failOnDataLoss": "false", "startingOffsets": "earliest"}
    stream = reader(**options, subscribePattern=".*")
    initial = stream.initialOffset()
    read = stream.latestOffset(initial, ALL)
    stream.partitions(initial, read)
    cluster.logs = {"orders": [(0, 12)], "payments": [(0, 9)]}
    planned = stream.latestOffset(read, ALL)
    hidden = cluster.logs.pop("payments")
    if hides == "before it is planned again":
        stream = reader(**options, subscribePattern=".*")
    assert ranges(stream.partitions(read, planned)) == [OffsetRange("orders", 0, 10, 12)]
    left = planned
    if hides == "before it is planned again":
        left = stream.latestOffset(planned, ALL)
        stream.partitions(planned, left)
        stream = reader(**options, subscribePattern=".*")
    cluster.logs["payments"] = hidden
    back = stream.latestOffset(left, ALL)
    assert ranges(stream.partitions(left, back)) == [OffsetRange("payments", 0, 6, 9)]
    assert ranges(reader(**options, subscribePattern=".*").partitions(left, back)) == [
        OffsetRange("payments", 0, 6, 9)
    ]
    assert stream.latestOffset(back, ALL) == back


@pytest.mark.parametrize(
    "narrower",
    [{"subscribePattern": "orders"}, {"subscribe": "orders"}, {"assign": '{"orders": [0]}'}],
)
def test_a_batch_that_runs_again_reads_what_it_was_planned_to_whatever_is_subscribed_to(
    cluster: FakeCluster, narrower: dict[str, str]
) -> None:
    # Its sink may have it already, and counts the same batch as done.
    cluster.topic_ids = {"orders": UUID(int=1), "payments": UUID(int=2)}
    cluster.logs = {"orders": [(0, 10)], "payments": [(0, 6)]}
    options = {"failOnDataLoss": "false", "startingOffsets": "earliest"}
    stream = reader(**options, subscribe="orders,payments")
    initial = stream.initialOffset()
    read = stream.latestOffset(initial, ALL)
    cluster.logs = {"orders": [(0, 12)], "payments": [(0, 9)]}
    planned = stream.latestOffset(read, ALL)
    again = reader(**options, **{"subscribe": None, **narrower})
    both = [OffsetRange("orders", 0, 10, 12), OffsetRange("payments", 0, 6, 9)]
    assert ranges(again.partitions(read, planned)) == both
    left = again.latestOffset(planned, ALL)
    assert ranges(again.partitions(planned, left)) == []
    cluster.logs["payments"] = [(0, 11)]
    stream = reader(**options, subscribe="orders,payments")
    back = stream.latestOffset(left, ALL)
    assert ranges(stream.partitions(left, back)) == [OffsetRange("payments", 0, 9, 11)]


def test_available_now_leaves_a_topic_that_goes_meanwhile_where_the_query_is(
    cluster: FakeCluster,
) -> None:
    cluster.topic_ids = {"orders": UUID(int=1), "payments": UUID(int=2)}
    cluster.logs = {"orders": [(0, 10)], "payments": [(0, 100)]}
    options = {"subscribe": None, "subscribePattern": ".*", "failOnDataLoss": "false"}
    options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    stream = reader(**options)
    stream.prepareForTriggerAvailableNow()
    at = stream.initialOffset()
    end = stream.latestOffset(at, ReadMaxRows(20))
    [_, payments] = ranges(stream.partitions(at, end))
    hidden = cluster.logs.pop("payments")
    seen = []
    while (later := stream.latestOffset(end, ReadMaxRows(20))) != end:
        seen += ranges(stream.partitions(end, later))
        end = later
    assert {each.topic for each in seen} == {"orders"}
    cluster.logs["payments"] = hidden
    stream = reader(**options)
    back = stream.latestOffset(end, ALL)
    assert ranges(stream.partitions(end, back)) == [
        OffsetRange("payments", 0, payments.until_offset, 100)
    ]


@pytest.mark.parametrize("subscribed", ["orders", "orders,payments", "payments"])
def test_a_batch_that_is_replayed_waits_for_a_topic_that_is_out_of_sight(
    cluster: FakeCluster, subscribed: str
) -> None:
    """What is not there when a batch is planned is given up, though it may come back."""
    cluster.logs["payments"] = [(0, 9)]
    whole = cluster.logs.pop("orders")
    cluster.refresh = lambda topics=None: cluster.logs.update(orders=whole)  # type: ignore[method-assign]
    stream = reader(subscribe=subscribed, failOnDataLoss="false")
    start, end = {"orders": {"0": 5, "1": 20}}, {"orders": {"0": 10, "1": 20}}
    at = {"payments": {"0": 9}} if "payments" in subscribed else {}
    tasks = stream.partitions({**start, **at}, {**end, **at})
    assert ranges(tasks) == [OffsetRange("orders", 0, 5, 10)]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_batch_of_topics_none_of_which_a_query_subscribes_to_any_more_is_refused(
    cluster: FakeCluster, fail: str
) -> None:
    """Its sources may have changed their places, and each would read the other one's topic; one
    that gave up what the batch was to read would go on behind it later."""
    start, end = {"orders": {"0": 5, "1": 5}}, {"orders": {"0": 6, "1": 7}}
    cluster.logs["payments"] = [(0, 5)]
    said = "orders-0, orders-1.* Subscribe to "
    with pytest.raises(DataLossError, match=said):
        reader(subscribe="payments", failOnDataLoss=fail).partitions(start, end)
    tasks = reader(subscribe="orders,payments", failOnDataLoss=fail).partitions(start, end)
    assert ranges(tasks) == [OffsetRange("orders", 0, 5, 6), OffsetRange("orders", 1, 5, 7)]


@pytest.mark.parametrize("created_again", [False, True])
def test_a_batch_of_deleted_topics_none_of_which_a_query_subscribes_to_any_more_is_given_up(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, created_again: bool
) -> None:
    cluster.topic_ids = {"orders": UUID(int=1)}
    start = reader().latestOffset({"orders": {"0": 5, "1": 5}}, ALL)
    cluster.logs = {"orders": [(5, 12), (0, 25)]}
    end = reader().latestOffset(start, ALL)
    cluster.topic_ids = {"orders": UUID(int=2)} if created_again else {}
    cluster.logs = {"payments": [(0, 5)]} | (cluster.logs if created_again else {})
    stream = reader(subscribe="payments", failOnDataLoss="false")
    tasks = [each.value for each in stream.partitions(start, end)]
    # A task finds that it is to read another topic, and reads nothing.
    assert [each.topic_ids for each in tasks] == [{"orders": UUID(int=1)}] * len(tasks)
    assert len(tasks) == (2 if created_again else 0)
    if not created_again:
        assert "does not subscribe to any more: orders-0, orders-1" in caplog.text


def test_new_partitions_are_read_from_their_beginning(cluster: FakeCluster) -> None:
    stream = reader(startingOffsets="earliest")
    start = stream.latestOffset(stream.initialOffset(), ALL)
    cluster.logs["orders"].append((0, 3))
    end = stream.latestOffset(start, ALL)
    assert ranges(stream.partitions(start, end)) == [OffsetRange("orders", 2, 0, 3)]


def test_nothing_new_gives_the_same_offsets_and_no_partitions(cluster: FakeCluster) -> None:
    stream = reader()
    start = {"orders": {"0": 10, "1": 20}}
    assert stream.latestOffset(start, ALL) == start
    assert stream.partitions(start, start) == []


def test_available_now_stops_where_the_log_ended_when_it_began(cluster: FakeCluster) -> None:
    stream = reader(startingOffsets="earliest")
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    cluster.logs["orders"] = [(5, 100), (0, 100)]
    end = stream.latestOffset(start, ALL)
    assert plain(end) == {"orders": {"0": 10, "1": 20}}
    assert stream.latestOffset(end, ALL) == end


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"orders": {"0": 2, "1": 20}}, "orders-0 begins at offset 5.*from 2"),
        ({"orders": {"0": 11, "1": 20}}, "orders-0 went back from offset 11 to 10"),
        ({"orders": {"0": 10, "1": 20, "2": 7}}, "Partitions are gone: orders-2"),
        ({"orders": {"1": 20}}, "New partition orders-0 begins at offset 5, not 0"),
    ],
)
def test_offsets_that_are_gone_are_data_loss(
    cluster: FakeCluster,
    caplog: pytest.LogCaptureFixture,
    start: dict[str, dict[str, int]],
    message: str,
) -> None:
    stream, goes_on = reader(), reader(failOnDataLoss="false")
    with pytest.raises(DataLossError, match=message):
        stream.partitions(start, stream.latestOffset(start, ALL))
    with pytest.raises(DataLossError, match=message):  # As after a restart.
        reader().partitions(start, goes_on.latestOffset(start, ALL))
    rest = [OffsetRange("orders", 0, 5, 10)] if start["orders"].get("0", 0) < 10 else []
    assert ranges(goes_on.partitions(start, goes_on.latestOffset(start, ALL))) == rest
    assert "failOnDataLoss is false" in caplog.text


def test_a_lower_end_is_asked_for_again_before_it_is_believed(cluster: FakeCluster) -> None:
    start = {"orders": {"0": 10, "1": 20}}
    cluster.logs["orders"] = [(5, 9), (0, 20)]
    cluster.refresh = lambda topics=None: cluster.logs.update(orders=[(5, 12), (0, 20)])  # type: ignore[method-assign]
    assert reader().latestOffset(start, ALL) == {"orders": {"0": 12, "1": 20}}


def test_an_open_transaction_before_the_checkpoint_is_waited_for(cluster: FakeCluster) -> None:
    """As where a query that read uncommitted records goes on with committed ones."""
    start = {"orders": {"0": 10, "1": 20}}
    cluster.config.isolation_level = 1
    cluster.stable = {TopicPartition("orders", 0): 7}
    stream = reader(**{"kafka.isolation.level": "read_committed"})
    assert stream.latestOffset(start, ALL) == start
    assert ranges(stream.partitions(start, start)) == []
    cluster.logs["orders"][0] = (5, 9)
    with pytest.raises(DataLossError, match="went back from offset 10 to 7"):
        stream.latestOffset(start, ALL)


def test_lower_ends_are_asked_for_as_often_as_the_option_says(cluster: FakeCluster) -> None:
    start, asked = {"orders": {"0": 10, "1": 21}}, []
    cluster.refresh = lambda topics=None: asked.append("again")  # type: ignore[method-assign]
    for attempts in (0, 1, 5):
        asked.clear()
        with pytest.raises(DataLossError, match="went back"):
            reader(**{"fetchOffset.numRetries": str(attempts)}).latestOffset(start, ALL)
        # Once at least: of all brokers.
        assert len(asked) == max(1, attempts - 1)


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_partition_that_is_left_out_once_is_not_read_again(
    cluster: FakeCluster, fail_on_data_loss: str
) -> None:
    start = {"orders": {"0": 10, "1": 20}}
    pattern = {"subscribe": None, "subscribePattern": "ord.*", "failOnDataLoss": fail_on_data_loss}
    stream = reader(**pattern)
    whole = cluster.logs.pop("orders")
    cluster.refresh = lambda topics=None: cluster.logs.update(orders=whole)  # type: ignore[method-assign]
    assert stream.latestOffset(start, ALL) == start


def test_a_topic_that_a_broker_denies_once_stops_no_query(cluster: FakeCluster) -> None:
    """As one that has just started may, before it has learnt its topics."""
    start = {"orders": {"0": 10, "1": 20}}
    stream = reader()
    whole = cluster.logs.pop("orders")
    cluster.refresh = lambda topics=None: cluster.logs.update(orders=whole)  # type: ignore[method-assign]
    assert stream.latestOffset(start, ALL) == start


def test_data_loss_is_said_before_the_end_of_the_batch_is_in_the_checkpoint(
    cluster: FakeCluster,
) -> None:
    stream = reader(subscribe=None, subscribePattern="ord.*")
    del cluster.logs["orders"]
    with pytest.raises(DataLossError, match="Partitions are gone: orders-0, orders-1"):
        stream.latestOffset({"orders": {"0": 10, "1": 20}}, ALL)


def test_a_planned_batch_whose_topic_has_fewer_partitions_now_is_data_loss(
    cluster: FakeCluster,
) -> None:
    planned = {"orders": {"0": 10, "1": 20, "2": 3}}
    with pytest.raises(DataLossError, match="Partitions are gone: orders-2"):
        reader().partitions({"orders": {"0": 10, "1": 20}}, planned)


def test_available_now_from_the_latest_offsets_loses_nothing_while_records_arrive(
    cluster: FakeCluster,
) -> None:
    stream = reader()
    stream.prepareForTriggerAvailableNow()
    cluster.logs["orders"] = [(5, 15), (0, 25)]
    initial = stream.initialOffset()
    assert stream.latestOffset(initial, ALL) == left_empty(initial)
    cluster.logs["orders"] = [(5, 17), (0, 25)]
    end = stream.latestOffset(initial, ALL)
    assert ranges(stream.partitions(initial, end)) == [OffsetRange("orders", 0, 15, 17)]
    cluster.logs["orders"] = [(5, 99), (0, 99)]
    assert stream.latestOffset(end, ALL) == end


def test_a_deleted_topic_fails_the_query_unless_it_may_lose_data(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.logs["payments"] = [(0, 4)]
    both = {"subscribe": "orders,payments", "startingOffsets": "earliest"}
    strict, lenient = reader(**both), reader(**both, failOnDataLoss="false")
    start = strict.latestOffset(strict.initialOffset(), ALL)
    planned = {"orders": {"0": 10, "1": 20}, "payments": {"0": 6}}
    del cluster.logs["payments"]
    with pytest.raises(UnknownTopicError, match="payments"):
        strict.latestOffset(start, ALL)
    end = lenient.latestOffset(start, ALL)
    assert plain(end) == {"orders": {"0": 10, "1": 20}}
    assert lenient.partitions(start, end) == []
    assert lenient.partitions(start, planned) == []
    assert "Partitions are gone: payments-0" in caplog.text


def test_a_reader_travels_without_its_connection(cluster: FakeCluster) -> None:
    stream = reader()
    stream.initialOffset()
    copy = pickle.loads(pickle.dumps(stream))
    assert copy.initialOffset() == stream.initialOffset()
    stream.stop()
    assert cluster.closed


def test_spark_is_told_whether_there_are_limits(cluster: FakeCluster) -> None:
    assert reader().getDefaultReadLimit() != ALL
    assert reader(maxOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMaxRows(7)
    assert reader(minOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMinRows(7)
    both = reader(maxOffsetsPerTrigger="7", minOffsetsPerTrigger="3")
    assert both.getDefaultReadLimit() == ReadMaxRows(7)


def batches(
    stream: KafkalogStreamReader, start: dict[str, dict[str, int]]
) -> list[dict[str, dict[str, int]]]:
    """The ends of micro-batches until one is where the one before it was."""
    ends = []
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        ends.append(plain(end))
        start = end
    return ends


def test_a_micro_batch_takes_a_share_of_each_partition(cluster: FakeCluster) -> None:
    stream = reader(startingOffsets=FROM_THE_BEGINNING, maxOffsetsPerTrigger="10")
    assert batches(stream, stream.initialOffset()) == [
        {"orders": {"0": 7, "1": 8}},
        {"orders": {"0": 9, "1": 16}},
        {"orders": {"0": 10, "1": 20}},
    ]


def test_a_trigger_that_is_to_read_everything_has_no_limits(cluster: FakeCluster) -> None:
    limits = {"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "1"}
    stream = reader(startingOffsets="earliest", **limits)
    assert plain(stream.latestOffset(stream.initialOffset(), ALL)) == {"orders": {"0": 10, "1": 20}}


def test_a_limited_query_reads_what_is_available_now_in_several_batches(
    cluster: FakeCluster,
) -> None:
    limits = {"maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "10"}
    stream = reader(startingOffsets=FROM_THE_BEGINNING, **limits)
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    cluster.logs["orders"] = [(5, 100), (0, 100), (0, 100)]
    ends = batches(stream, start)
    assert ends[-1] == {"orders": {"0": 10, "1": 20}}
    assert len(ends) == 3


def test_a_new_partition_is_limited_from_its_beginning(cluster: FakeCluster) -> None:
    stream = reader(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    cluster.logs["orders"] = [(5, 10), (0, 20), (90, 100)]
    start = {"orders": {"0": 10, "1": 10}}
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert end == {"orders": {"0": 10, "1": 15, "2": 95}}


def test_a_micro_batch_waits_for_enough_offsets_or_until_its_time_has_come(
    cluster: FakeCluster,
) -> None:
    stream = reader(minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    limit = stream.getDefaultReadLimit()
    initial = stream.initialOffset()
    start = stream.latestOffset(initial, limit)
    assert start == left_empty(initial)
    cluster.logs["orders"] = [(5, 12), (0, 20)]
    assert stream.latestOffset(start, limit) == start
    cluster.logs["orders"] = [(5, 12), (0, 21)]
    assert stream.latestOffset(start, limit) == {"orders": {"0": 12, "1": 21}}
    impatient = reader(minOffsetsPerTrigger="3", maxTriggerDelay="0")
    assert impatient.latestOffset(start, limit) == {"orders": {"0": 12, "1": 21}}
    cluster.logs["orders"] = [(5, 13), (0, 21)]
    seen = {"orders": {"0": 12, "1": 21}}
    assert impatient.latestOffset(seen, limit) == {"orders": {"0": 13, "1": 21}}


def test_the_first_batch_of_a_query_does_not_wait(cluster: FakeCluster) -> None:
    stream = reader(startingOffsets="earliest", minOffsetsPerTrigger="1000")
    limit = stream.getDefaultReadLimit()
    initial = stream.initialOffset()
    recorded = stream.latestOffset(initial, limit)
    assert recorded == left_empty(initial)
    end = stream.latestOffset(recorded, limit)
    assert plain(end) == {"orders": {"0": 10, "1": 20}}
    cluster.logs["orders"] = [(5, 12), (0, 20)]
    assert stream.latestOffset(end, limit) == end


def test_a_stream_starts_at_a_time(cluster: FakeCluster) -> None:
    assert reader(startingTimestamp="9000").initialOffset() == {"orders": {"0": 9, "1": 9}}
    times = '{"orders":{"0":7000,"1":15000}}'
    stream = reader(startingOffsetsByTimestamp=times)
    assert stream.initialOffset() == {"orders": {"0": 7, "1": 15}}
    assert plain(stream.latestOffset(stream.initialOffset(), ALL)) == {"orders": {"0": 10, "1": 20}}


def test_a_stream_that_may_start_at_the_latest_offsets_first_records_them(
    cluster: FakeCluster,
) -> None:
    late = {"startingTimestamp": "15000"}
    with pytest.raises(InvalidOptionError, match="partition orders-0 has no record"):
        reader(**late).initialOffset()
    late["startingOffsetsByTimestampStrategy"] = "latest"
    stream = reader(**late)
    initial = stream.initialOffset()
    assert initial == {"orders": {"0": 10, "1": 15}}
    recorded = stream.latestOffset(initial, ALL)
    assert recorded == left_empty(initial)
    cluster.logs["orders"] = [(5, 30), (0, 30)]
    restarted = reader(**late)
    assert restarted.partitions(restarted.initialOffset(), recorded) == []
    assert restarted.latestOffset(recorded, ALL) == {"orders": {"0": 30, "1": 30}}


def test_small_partitions_share_a_task_if_asked_to(cluster: FakeCluster) -> None:
    cluster.logs["orders"] = [(0, 5)] * 5
    for limits, tasks in (
        ({"maxPartitionsPerTask": "2"}, [2, 2, 1]),
        ({"maxPartitionsPerTask": "9", "minPartitions": "2"}, [2, 2, 1]),
        ({}, [1] * 5),
    ):
        stream = reader(startingOffsets="earliest", **limits)
        end = stream.latestOffset(stream.initialOffset(), ALL)
        planned = stream.partitions(stream.initialOffset(), end)
        assert [len(task.value.ranges) for task in planned] == tasks
        assert len(ranges(planned)) == 5


def test_a_micro_batch_is_split_into_tasks(cluster: FakeCluster) -> None:
    stream = reader(startingOffsets="earliest", minPartitions="4", maxRecordsPerPartition="7")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert ranges(stream.partitions(stream.initialOffset(), end)) == [
        OffsetRange("orders", 0, 5, 10),
        OffsetRange("orders", 1, 0, 6),
        OffsetRange("orders", 1, 6, 13),
        OffsetRange("orders", 1, 13, 20),
    ]


def test_a_micro_batch_takes_about_so_many_bytes(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def sizes(_cluster: Cluster, positions: Mapping[TopicPartition, int]) -> dict[Any, Any]:
        asked.append(list(positions.items()))
        return {next(iter(positions)): 100.0}

    monkeypatch.setattr(stream_reader, "sample_sizes", sizes)
    stream = reader(startingOffsets=FROM_THE_BEGINNING, maxBytesPerTrigger="1000")
    assert stream.getDefaultReadLimit() == ReadMaxBytes(1000)
    assert batches(stream, stream.initialOffset()) == [
        {"orders": {"0": 7, "1": 8}},
        {"orders": {"0": 9, "1": 16}},
        {"orders": {"0": 10, "1": 20}},
    ]
    # The one that was not told of yet first, then the one whose sample is older.
    assert [[topic_partition.partition for topic_partition, _ in each] for each in asked] == [
        [0, 1],
        [1, 0],
        [0, 1],
    ]
    limits = {"maxBytesPerTrigger": "1000", "maxOffsetsPerTrigger": "4"}
    both = reader(startingOffsets=FROM_THE_BEGINNING, **limits)
    assert batches(both, both.initialOffset())[0] == {"orders": {"0": 6, "1": 3}}


class Committed:
    """Stands for the group: what was committed, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offsets: list[dict[str, dict[str, int]]] = []
        self.logs = LogIdentity()
        self.error = None
        monkeypatch.setattr(group_progress, "commit_offsets", self)

    def __call__(
        self,
        cluster: object,
        group_id: str,
        offsets: Offsets,
        deadline: Deadline,
        epochs: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, UUID],
    ) -> None:
        assert group_id == "g"
        assert deadline.timeout_ms <= 5000
        if self.error is not None:
            raise self.error
        self.offsets.append(to_json(offsets))
        self.logs = LogIdentity(topic_ids, epochs)


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> Committed:
    return Committed(monkeypatch)


def test_a_group_is_told_where_complete_batches_ended_and_only_then(
    cluster: FakeCluster, committed: Committed
) -> None:
    cluster.topic_ids = {"orders": UUID(int=7)}
    cluster.epochs = {TopicPartition("orders", 0): 3}
    stream = reader(startingOffsets="earliest", commitOffsetsToGroup="g")
    initial = stream.initialOffset()
    end = stream.latestOffset(initial, ALL)
    stream.partitions(initial, end)
    stream.commit(end)
    assert committed.offsets == []
    cluster.logs["orders"] = [(5, 11), (0, 20)]
    later = stream.latestOffset(end, ALL)
    assert committed.offsets == [plain(end)]
    assert committed.logs == LogIdentity({"orders": UUID(int=7)}, {TopicPartition("orders", 0): 3})
    assert stream.latestOffset(later, ALL) == later
    assert stream.latestOffset(later, ALL) == later
    assert committed.offsets == [plain(end), plain(later)]


def test_a_group_is_told_of_a_replayed_batch_when_it_is_complete(
    cluster: FakeCluster, committed: Committed
) -> None:
    start, end = {"orders": {"0": 6, "1": 3}}, {"orders": {"0": 8, "1": 9}}
    restarted = reader(commitOffsetsToGroup="g")
    restarted.partitions(start, end)
    assert committed.offsets == []
    restarted.latestOffset(end, ALL)
    assert committed.offsets == [end]


def test_a_group_that_cannot_be_told_stops_no_query(
    cluster: FakeCluster, committed: Committed, caplog: pytest.LogCaptureFixture
) -> None:
    committed.error = UnknownMemberIdError("group g has members")
    stream = reader(commitOffsetsToGroup="g")
    start = {"orders": {"0": 10, "1": 20}}
    assert stream.latestOffset(start, ALL) == start
    assert "the offsets were not committed ([Error 25] UnknownMemberIdError: group g has mem" in (
        caplog.text
    )
    committed.error = None
    assert stream.latestOffset(start, ALL) == start
    assert committed.offsets == []  # Not before a while has passed.


def test_what_is_reported_as_the_latest_is_not_limited(cluster: FakeCluster) -> None:
    stream = reader(startingOffsets=FROM_THE_BEGINNING, maxOffsetsPerTrigger="2")
    assert stream.reportLatestOffset() is None
    stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    assert stream.reportLatestOffset() == {"orders": {"0": 10, "1": 20}}


def test_a_stream_that_starts_counted_back_first_records_where(cluster: FakeCluster) -> None:
    stream = reader(startingOffsets="-3")
    initial = stream.initialOffset()
    assert initial == {"orders": {"0": 7, "1": 17}}
    cluster.logs["orders"] = [(5, 12), (0, 22)]
    assert stream.latestOffset(initial, ALL) == left_empty(initial)
    restarted = reader(startingOffsets="-3")
    assert restarted.partitions(restarted.initialOffset(), initial) == []
    end = restarted.latestOffset(initial, ALL)
    assert ranges(restarted.partitions(initial, end)) == [
        OffsetRange("orders", 0, 7, 12),
        OffsetRange("orders", 1, 17, 22),
    ]


def test_a_stream_that_starts_at_a_time_with_records_begins_at_once(cluster: FakeCluster) -> None:
    cluster.logs["orders"] = [(0, 10), (0, 20)]
    stream = reader(startingTimestamp="7000", startingOffsetsByTimestampStrategy="latest")
    initial = stream.initialOffset()
    latest = stream.latestOffset(initial, ALL)
    assert latest != initial
    # Stopped in that batch, or moved here from Spark's connector, it reads the same again.
    restarted = reader(startingTimestamp="7000", startingOffsetsByTimestampStrategy="latest")
    planned = restarted.partitions(restarted.initialOffset(), latest)
    assert ranges(planned) == ranges(stream.partitions(initial, latest))
    assert ranges(planned)


def test_what_lies_before_a_latest_of_a_batch_that_is_replayed_is_no_loss(
    cluster: FakeCluster,
) -> None:
    mixed = {"startingOffsets": '{"orders":{"0":-1,"1":5}}'}
    initial = reader(**mixed).initialOffset()
    end = {"orders": {"0": initial["orders"]["0"], "1": 15}}
    cluster.logs["orders"] = [(0, 30), (0, 30)]
    restarted = reader(**mixed)
    (only,) = ranges(restarted.partitions(restarted.initialOffset(), end))
    assert (only.partition, only.start_offset, only.until_offset) == (1, 5, 15)
