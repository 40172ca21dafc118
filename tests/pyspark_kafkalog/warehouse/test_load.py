"""What a load plans and what it accepts from its tasks; with Spark: tests/spark/test_load.py."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka.structs import OffsetAndTimestamp, TopicPartition

from pyspark_kafkalog.client.cluster import EARLIEST
from pyspark_kafkalog.client.config import Isolation
from pyspark_kafkalog.errors import (
    DataLossError,
    InvalidOptionError,
    KafkalogError,
    TopicRecreatedError,
)
from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.source.options import batch_options
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse import portions
from pyspark_kafkalog.warehouse.commit import (
    DataFile,
    Position,
    without_recreated,
)
from pyspark_kafkalog.warehouse.engines.spark import task_error
from pyspark_kafkalog.warehouse.landing import Landed
from pyspark_kafkalog.warehouse.load import LoadResult, load
from pyspark_kafkalog.warehouse.plan import check_passed, plan_ranges
from pyspark_kafkalog.warehouse.portions import pieces_of, tasks_of
from pyspark_kafkalog.warehouse.verify import verified_files

OPTIONS = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "orders"}
ORDERS_ID = UUID(int=7)
ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)


class FakeCluster:
    """A topic `orders` whose partitions hold the given (earliest, latest) offsets. Readers of
    committed records, as loads are, see `open_offsets` less of it."""

    def __init__(self, *bounds: tuple[int, int], open_offsets: int = 0) -> None:
        self._bounds = bounds
        self._open_offsets = open_offsets
        self.config = SimpleNamespace(isolation_level=Isolation.READ_COMMITTED)

    def topic_id(self, topic: str) -> UUID:
        return ORDERS_ID

    def topics(self, names: Iterable[str]) -> dict[str, list[int]]:
        return {"orders": list(range(len(self._bounds)))}

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        if timestamp >= 0:  # The record at offset n has the time n.
            return {
                each: OffsetAndTimestamp(timestamp, timestamp, -1)
                for each in partitions
                if timestamp < self._bounds[each.partition][1]
            }
        end, less = (0, 0) if timestamp == EARLIEST else (1, self._open_offsets)
        if isolation == Isolation.READ_UNCOMMITTED:
            less = 0
        return {
            each: OffsetAndTimestamp(self._bounds[each.partition][end] - less, -1, -1)
            for each in partitions
        }


def planned(
    *bounds: tuple[int, int], last: Offsets | None = None, open_offsets: int = 0, **options: str
) -> list[tuple[int, int, int]]:
    source = batch_options({**OPTIONS, **options})
    cluster: Any = FakeCluster(*bounds, open_offsets=open_offsets)
    partitions = source.subscription.partitions(cluster)
    ranges, _ = plan_ranges(cluster, source, partitions, Position(last or {}, {}), "nightly")
    return [(piece.partition, piece.start_offset, piece.until_offset) for piece in ranges]


def test_the_first_load_takes_all_there_is_and_records_what_is_empty() -> None:
    assert planned((0, 10), (5, 7), (3, 3)) == [(0, 0, 10), (1, 5, 7), (2, 3, 3)]
    last = {ORDERS_0: 10, ORDERS_1: 7, TopicPartition("orders", 2): 3}
    assert planned((0, 10), (5, 7), (3, 3), last=last) == []
    assert planned((0, 10), (5, 7), (3, 3), (0, 0), last=last) == [(3, 0, 0)]


def test_a_partition_that_is_new_in_a_topic_with_a_place_begins_at_0() -> None:
    first_sight = r"first time, .*not begin at offset 0: orders-1, orders-1 at 5\..*\{\"1\": 5\}"
    with pytest.raises(DataLossError, match=first_sight):
        planned((0, 10), (5, 7), last={ORDERS_0: 10})
    with pytest.raises(DataLossError, match=r"orders-1 at 5\."):
        planned((0, 10), (5, 5), last={ORDERS_0: 10})
    goes_on: dict[str, Any] = {"last": {ORDERS_0: 10}, "failOnDataLoss": "false"}
    # The range of no offsets says from where on records are given up.
    assert planned((0, 10), (5, 7), **goes_on) == [(1, 0, 0), (1, 5, 7)]
    elsewhere = {TopicPartition("payments", 0): 3}
    assert planned((4, 10), (5, 7), last=elsewhere) == [(0, 4, 10), (1, 5, 7)]


def test_an_offset_that_is_given_for_a_partition_that_is_new_in_its_topic_counts() -> None:
    told: dict[str, Any] = {"last": {ORDERS_0: 10}, "startingOffsets": '{"orders":{"0":0,"1":5}}'}
    assert planned((0, 10), (5, 7), **told) == [(1, 5, 7)]
    assert planned((0, 10), (5, 5), **told) == [(1, 5, 5)]
    assert planned((0, 10), (0, 7), **told) == [(1, 5, 7)]
    # Retention has passed the offset.
    with pytest.raises(DataLossError, match="orders-1"):
        planned((0, 10), (6, 7), **told)
    for start in ('{"orders":{"0":0,"1":-2}}', '{"orders":{"0":0}}', "earliest"):
        with pytest.raises(DataLossError, match="for the first time"):
            planned((0, 10), (5, 7), last={ORDERS_0: 10}, startingOffsets=start)


def test_a_place_behind_an_open_transaction_waits_for_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert planned((0, 10), last={ORDERS_0: 10}, open_offsets=3) == []
    assert "A transaction is open in orders-0" in caplog.text
    assert planned((0, 10), last={ORDERS_0: 6}, open_offsets=3) == [(0, 6, 7)]
    with pytest.raises(DataLossError, match="ends at offset 7"):
        planned((0, 10), last={ORDERS_0: 11}, open_offsets=3)


def test_the_first_load_begins_at_a_time_and_later_ones_go_on() -> None:
    times: dict[str, Any] = {"startingTimestamp": "5", "endingTimestamp": "8"}
    assert planned((0, 10), (0, 7), **times) == [(0, 5, 8), (1, 5, 7)]
    times = {"startingTimestamp": "99", "endingTimestamp": "9"}
    assert planned((0, 10), last={ORDERS_0: 8}, **times) == [(0, 8, 9)]


def test_the_first_load_begins_at_starting_offsets() -> None:
    assert planned((0, 10), (5, 7), startingOffsets='{"orders":{"0":4,"1":-2}}') == [
        (0, 4, 10),
        (1, 5, 7),
    ]


def test_later_loads_go_on_and_take_new_partitions_from_their_beginning() -> None:
    last = {ORDERS_0: 6, TopicPartition("payments", 0): 9}
    for start in ("earliest", '{"orders":{"0":4}}', '{"orders":{"0":4,"1":-2}}'):
        assert planned((0, 10), (0, 7), last=last, startingOffsets=start) == [(0, 6, 10), (1, 0, 7)]


def test_a_choice_of_a_first_load_is_kept_where_there_is_nothing_to_read_yet() -> None:
    """Else the next load would begin there at the earliest offset, which was not asked for."""
    assert planned((0, 10), (0, 4), startingOffsets='{"orders":{"0":4,"1":4}}') == [
        (0, 4, 10),
        (1, 4, 4),
    ]
    late: dict[str, Any] = {
        "startingTimestamp": "7",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    assert planned((0, 10), (0, 4), **late) == [(0, 7, 10), (1, 4, 4)]
    assert planned((0, 0), startingOffsets="-10 offsets") == [(0, 0, 0)]


def test_the_first_load_of_another_topic_begins_where_it_is_told_to() -> None:
    last = {TopicPartition("payments", 0): 9}
    assert planned((0, 10), last=last, startingTimestamp="6") == [(0, 6, 10)]
    only_payments = '{"payments":{"0":3}}'
    assert planned((0, 10), last=last, startingOffsets=only_payments) == [(0, 0, 10)]


def passed(last: Offsets, **options: str) -> None:
    source = batch_options({**OPTIONS, **options})
    cluster: Any = FakeCluster((0, 10), (0, 7))
    check_passed(cluster, source, source.subscription.partitions(cluster), last, "nightly")


def test_a_start_that_later_loads_have_passed_has_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor a warning, which a schedule would have each time that it comes round."""
    caplog.set_level(logging.INFO)
    passed({ORDERS_0: 6}, startingTimestamp="6")
    passed({ORDERS_0: 6}, startingOffsets="earliest")
    passed({ORDERS_0: 6, ORDERS_1: 7}, startingOffsets='{"orders":{"0":6,"1":7}}')
    passed({ORDERS_0: 6}, startingOffsets="-1 offsets")
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    passed({ORDERS_0: 6}, startingTimestamp="99", **latest)
    said = [
        record.levelname
        for record in caplog.records
        if "goes on where the last one ended" in record.getMessage()
    ]
    assert said == ["INFO"] * 5
    caplog.clear()
    passed({TopicPartition("payments", 0): 6}, startingTimestamp="9")
    assert not caplog.messages


def test_a_start_beyond_the_last_commit_is_refused() -> None:
    said = r"goes on at offset 6 of orders-0, and is told to start at offset 7"
    with pytest.raises(InvalidOptionError, match=said):
        passed({ORDERS_0: 6}, startingTimestamp="7")


def test_nothing_new_plans_nothing() -> None:
    assert planned((0, 10), last={ORDERS_0: 10}) == []


def test_ending_offsets_are_a_limit_and_may_lie_behind_or_beyond() -> None:
    ending = '{"orders":{"0":5,"1":99}}'
    assert planned((0, 10), (0, 7), endingOffsets=ending) == [(0, 0, 5), (1, 0, 7)]
    assert planned((0, 10), (0, 7), last={ORDERS_0: 8}, endingOffsets=ending) == [(1, 0, 7)]


def test_retention_that_overtook_the_load_is_data_loss() -> None:
    with pytest.raises(DataLossError, match=r"begins at offset 8.*load 'nightly'.*another name"):
        planned((8, 10), last={ORDERS_0: 6})


def test_a_log_that_ends_before_the_last_commit_is_data_loss() -> None:
    with pytest.raises(DataLossError, match=r"ends at offset 3.*topic that was recreated"):
        planned((0, 3), last={ORDERS_0: 6})


def meant(ids: dict[str, UUID], fail_on_data_loss: bool = True) -> Offsets:
    position = Position({ORDERS_0: 6, ORDERS_1: 9}, ids)
    return without_recreated(position, {"orders": ORDERS_ID}, "nightly", fail_on_data_loss)


def test_a_recreated_topic_is_refused_also_when_its_log_is_longer_now() -> None:
    with pytest.raises(TopicRecreatedError, match=r"orders: .*load 'nightly'.*failOnDataLoss"):
        meant({"orders": UUID(int=1)})
    assert meant({"orders": UUID(int=1)}, fail_on_data_loss=False) == {ORDERS_0: 0, ORDERS_1: 0}


def test_a_topic_of_which_no_id_is_known_goes_on() -> None:
    unchanged = {ORDERS_0: 6, ORDERS_1: 9}
    assert meant({"orders": ORDERS_ID}) == unchanged
    assert meant({}) == unchanged
    assert meant({"payments": UUID(int=1)}) == unchanged


def test_going_on_after_data_loss_takes_what_is_there() -> None:
    assert planned((8, 10), last={ORDERS_0: 6}, failOnDataLoss="false") == [(0, 8, 10)]


@pytest.mark.parametrize("bounds", [(0, 3), (8, 8)])
def test_going_on_with_nothing_to_read_still_records_the_new_place(bounds: tuple[int, int]) -> None:
    """Else a recreated topic would grow up to the old offset, and its records in between be lost
    without a word."""
    expected = [(0, bounds[1], bounds[1])]
    assert planned(bounds, last={ORDERS_0: 6}, failOnDataLoss="false") == expected


def test_a_long_range_is_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "MOST_OFFSETS_PER_TASK", 4)
    pieces = pieces_of([OffsetRange("orders", 0, 1, 10), OffsetRange("orders", 1, 7, 7)])
    found = [(piece.partition, piece.start_offset, piece.until_offset) for piece in pieces]
    assert found == [(0, 1, 5), (0, 5, 9), (0, 9, 10), (1, 7, 7)]


def test_short_ranges_share_a_task_and_each_is_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "FEW_OFFSETS", 10)
    sizes = [3, 3, 3, 3, 20, 1, 0, 9, 1]
    pieces = [OffsetRange("orders", number, 0, size) for number, size in enumerate(sizes)]
    tasks = [[piece.offset_count for piece in task] for task in tasks_of(pieces)]
    assert tasks == [[3, 3, 3], [3], [20], [1, 9], [1]]
    assert tasks_of([OffsetRange("orders", 0, 5, 5)]) == []


PIECE = OffsetRange("orders", 0, 10, 20)
OTHER = OffsetRange("orders", 1, 0, 5)


def landed(
    piece: OffsetRange = PIECE,
    first: int = 10,
    last: int = 19,
    records: int = 10,
    files: Sequence[int] | None = None,
) -> Landed:
    """What a task says of a range: `files` are the rows of each, all of them in one by default."""
    named = [
        DataFile(f"part-{piece.partition}-{number}.parquet", rows, 100)
        for number, rows in enumerate([records] if files is None else files)
    ]
    return Landed(piece, records, 0, first, last, tuple(named))


def every_record(landed: Landed) -> int:
    return landed.records


def test_the_files_come_in_the_order_of_the_ranges_whatever_order_tasks_end_in() -> None:
    other = landed(OTHER, 0, 4, 5)
    found = verified_files([PIECE, OTHER], [other, landed()], every_record)
    assert found == [*landed().files, *other.files]


def test_a_range_may_have_gaps_no_rows_or_several_files() -> None:
    assert verified_files([PIECE], [Landed(PIECE)], every_record) == []
    several = landed(last=16, records=3, files=[2, 1])
    assert verified_files([PIECE], [several], every_record) == list(several.files)
    empty = OffsetRange("orders", 7, 3, 3)
    assert verified_files([empty, PIECE], [Landed(PIECE)], every_record) == []


@pytest.mark.parametrize(
    "results",
    [
        [],
        [Landed(OTHER)],
        [Landed(PIECE), Landed(PIECE)],
        [Landed(PIECE), Landed(OTHER)],
        [landed(first=9)],
        [landed(last=20, records=11)],
        [landed(records=11)],
        [landed(records=0)],
        [landed(files=[])],
        [landed(files=[9])],
        [landed(files=[10, 1])],
        [landed(files=[10, 0])],
        [replace(landed(files=[5, 5]), files=landed(files=[5]).files * 2)],
        [Landed(PIECE, files=landed().files)],
        [landed(OffsetRange("payments", 0, 10, 20))],
    ],
)
def test_results_that_do_not_account_for_the_ranges_are_refused(results: list[Landed]) -> None:
    with pytest.raises(KafkalogError, match="nothing was published"):
        verified_files([PIECE], results, every_record)


TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "load.py", line 8, in run
    raise of_some_kind(message)
"""


def test_an_error_of_ours_in_a_task_keeps_its_class() -> None:
    error = task_error(f"{TRACEBACK}pyspark_kafkalog.errors.DataLossError: gone: 3\nand more\n")
    assert type(error) is DataLossError
    assert str(error) == "gone: 3\nand more"


@pytest.mark.parametrize(
    "told",
    [
        "An exception was thrown from the Python worker:\n{}\n",
        "[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source reader: {}\n",
    ],
)
def test_also_where_spark_shows_no_traceback(told: str) -> None:
    error = task_error(told.format("pyspark_kafkalog.errors.DataLossError: gone: 3"))
    assert type(error) is DataLossError
    assert str(error) == "gone: 3"


@pytest.mark.parametrize(
    "last", ["OSError: [Errno 28] No space left on device", "KeyError", "annotations: x"]
)
def test_any_other_error_in_a_task_is_told(last: str) -> None:
    error = task_error(f"{TRACEBACK}{last}\n")
    assert type(error) is KafkalogError
    assert str(error) == f"A task of the load failed and nothing was published: {last}"


@pytest.mark.parametrize("name", ["", "  ", None, 7])
def test_a_load_needs_a_name(name: str | int | None) -> None:
    with pytest.raises(InvalidOptionError, match="needs a name"):
        load(None, name, "parquet:/never/made", OPTIONS)  # type: ignore[arg-type]


def test_an_unknown_target_is_refused_before_a_broker_is_asked() -> None:
    with pytest.raises(InvalidOptionError, match="parquet:/data/orders"):
        load(None, "nightly", "hive:/never/made", OPTIONS)


def test_results_read_well() -> None:
    result = LoadResult("nightly", "parquet:/t", 10, 1234567, (PIECE, OTHER), landed().files, "12")
    assert repr(result) == (
        "<LoadResult 'nightly' to parquet:/t: commit 12, 10 records of 2 partitions, "
        "1,234,567 bytes in 1 file>"
    )
    assert "/t: 3 commits up to 12, 10 records" in repr(replace(result, commits=3))
    nothing = LoadResult("nightly", "parquet:/t", 0, 0, (), (), None)
    assert repr(nothing) == "<LoadResult 'nightly' to parquet:/t: nothing new>"
