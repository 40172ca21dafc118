"""Upserts into every kind of target that takes them: the newest record of each key, and what is
refused because nobody knows which that is."""

from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest

from pyspark_kafkalog import forget, rewind
from pyspark_kafkalog.errors import (
    BadRecordError,
    InvalidRowError,
    LoadConflictError,
    OtherModeError,
    TargetError,
)
from pyspark_kafkalog.warehouse.commit import Stage
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets.target import Target
from tests.pyspark_kafkalog.warehouse.rows_loader import load
from tests.pyspark_kafkalog.warehouse.tables import DATABASES, IN_STORES, Table, table_of
from tests.pyspark_kafkalog.warehouse.upsert_loader import (
    Record,
    batch_of,
    found,
    next_offset,
    upsert,
)

BY_TIME = Upsert(order_by="timestamp")

HOW_LONG = {
    "sqlite": [],
    "delta": [],
    "iceberg": [pytest.mark.slow],
    "postgresql": [pytest.mark.slow],
}
KINDS = [
    pytest.param(kind, marks=HOW_LONG.get(kind, [pytest.mark.long]))
    for kind in [*DATABASES, "delta", "iceberg"]
]


@pytest.fixture(params=[*KINDS, *IN_STORES])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return table_of(request.param, tmp_path)


def test_the_newest_record_wins_and_a_tombstone_deletes(table: Table) -> None:
    target = table.open()
    upsert(target, "n", Record(b"a", b"1"), Record(b"b", b"1"), Record(b"a", b"2"))
    assert found(table) == {b"a": b"2", b"b": b"1"}
    upsert(target, "n", Record(b"b", None), Record(b"c", b"1"), Record(b"c", None))
    assert found(table) == {b"a": b"2"}
    upsert(target, "n", Record(b"c", b""), Record(b"A", b"3"), Record(b"", b"4"))
    assert found(table) == {b"a": b"2", b"c": b"", b"A": b"3", b"": b"4"}
    assert next_offset(target, "n") == 9


def test_long_keys_that_begin_alike_are_two(table: Table) -> None:
    """MariaDB sorts by the first 1,024 bytes."""
    one, two = b"k" * 1_100 + b"1", b"k" * 1_100 + b"2"
    target = table.open()
    upsert(target, "n", Record(one, b"1"), Record(two, b"1"), Record(one, b"2"))
    assert found(table) == {one: b"2", two: b"1"}
    upsert(target, "n", Record(two, b"2"), Record(one, None), Record(two, b"3"))
    assert found(table) == {two: b"3"}


def test_a_key_of_two_partitions_is_refused(table: Table) -> None:
    target = table.open()
    upsert(target, "n", Record(b"a", b"0"), Record(b"b", None), Record(b"x", b"0", 1))
    for records in (
        # Of the last commit a row and a tombstone; then both in one.
        [Record(b"a", b"1", 1)],
        [Record(b"a", None, 1)],
        [Record(b"b", b"1", 1)],
        [Record(b"b", None, 1)],
        [Record(b"c", b"1"), Record(b"c", None, 1)],
        [Record(b"c", None), Record(b"c", b"1", 1)],
    ):
        with pytest.raises(InvalidRowError, match="orders-0 and orders-1 have records of one key"):
            upsert(target, "n", Record(b"y", b"0"), *records)
    assert found(table) == {b"a": b"0", b"x": b"0"}
    assert [next_offset(target, "n", partition) for partition in (0, 1)] == [2, 1]


def test_a_key_of_two_topics_is_refused(table: Table) -> None:
    target = table.open()
    upsert(target, "n", Record(b"a", b"0"), Record(b"b", None))
    for key in (b"a", b"b"):
        with pytest.raises(InvalidRowError, match="returns-0"):
            upsert(target, "n", Record(key, b"1"), topic="returns")
    assert found(table) == {b"a": b"0"}
    assert next_offset(target, "n", topic="returns") == 0


def test_order_by_says_which_of_two_partitions_is_newer(table: Table) -> None:
    target = table.open()
    upsert(target, "n", Record(b"a", b"5", 0, 5), Record(b"a", b"4", 1, 4), how=BY_TIME)
    assert found(table) == {b"a": b"5"}
    upsert(target, "n", Record(b"a", b"3", 1, 3), Record(b"b", b"1", 1, 1), how=BY_TIME)
    assert found(table) == {b"a": b"5", b"b": b"1"}
    upsert(target, "n", Record(b"a", b"6", 1, 6), how=BY_TIME)
    assert found(table) == {b"a": b"6", b"b": b"1"}


def test_an_older_tombstone_deletes_nothing(table: Table) -> None:
    target = table.open()
    upsert(target, "n", Record(b"a", b"5", 0, 5), how=BY_TIME)
    upsert(target, "n", Record(b"a", None, 1, 4), how=BY_TIME)
    assert found(table) == {b"a": b"5"}
    upsert(target, "n", Record(b"a", None, 1, 6), how=BY_TIME)
    assert found(table) == {}


def test_an_older_row_does_not_come_back_after_a_tombstone(table: Table) -> None:
    target = table.open()
    upsert(target, "n", Record(b"a", None, 1, 6), how=BY_TIME)
    upsert(target, "n", Record(b"a", b"5", 0, 5), how=BY_TIME)
    assert found(table) == {}
    upsert(target, "n", Record(b"a", None, 0, 3), Record(b"a", b"4", 0, 4), how=BY_TIME)
    assert found(table) == {}
    upsert(target, "n", Record(b"a", b"7", 0, 7), how=BY_TIME)
    assert found(table) == {b"a": b"7"}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_one_time_the_same_partition_wins_whichever_comes_first(
    table: Table, order: tuple[int, int]
) -> None:
    target = table.open()
    for partition in order:
        upsert(target, "n", Record(b"a", b"%d" % partition, partition, 5), how=BY_TIME)
    assert found(table) == {b"a": b"1"}
    upsert(target, "n", Record(b"a", b"later", 1, 5), how=BY_TIME)
    assert found(table) == {b"a": b"later"}


@pytest.mark.parametrize("order", [("orders", "returns"), ("returns", "orders")])
def test_of_one_time_the_same_topic_wins_whichever_comes_first(
    table: Table, order: tuple[str, str]
) -> None:
    target = table.open()
    for topic in order:
        upsert(target, "n", Record(b"a", topic.encode(), 0, 5), how=BY_TIME, topic=topic)
    assert found(table) == {b"a": b"returns"}


def test_a_name_that_starts_over_lands_everything_again(table: Table) -> None:
    target = table.open()
    records = [Record(b"a", b"1"), Record(b"b", b"1"), Record(b"a", b"2"), Record(b"b", None)]
    upsert(target, "n", *records)
    assert forget(table.name, "n")
    upsert(target, "n", *records[:2])
    upsert(target, "n", *records[2:])
    assert found(table) == {b"a": b"2"}


def test_a_forgotten_topic_may_have_its_deleted_keys_in_other_partitions(table: Table) -> None:
    target = table.open()
    upsert(target, "n", Record(b"a", b"1"), Record(b"a", None))
    assert forget(table.name, "n")
    upsert(target, "n", Record(b"a", b"2", 1))
    assert found(table) == {b"a": b"2"}


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
def test_a_forgotten_topic_may_have_had_more_partitions(table: Table, is_shared: bool) -> None:
    """Whose deleted keys are forgotten, too, unless they may be another load's."""
    one, two = UUID(int=1 << 100), UUID(int=2 << 100)
    target = table.open()
    upsert(target, "n", Record(b"x", b"1"), Record(b"a", None, 2), topic_id=one)
    if is_shared:
        upsert(target, "other", Record(b"z", b"1", 1), topic_id=one)
    upsert(target, "n", Record(b"y", b"1"), topic_id=two)
    assert forget(table.name, "n")
    if is_shared:
        with pytest.raises(InvalidRowError, match="orders-2 and orders-0 have records of one key"):
            upsert(target, "n", Record(b"a", b"1"), topic_id=two)
        return
    upsert(target, "n", Record(b"a", b"1"), topic_id=two)
    assert found(table) == dict.fromkeys((b"x", b"y", b"a"), b"1")


def test_two_loads_of_one_partition_are_refused(table: Table) -> None:
    target = table.open()
    upsert(target, "n", Record(b"a", b"1"), Record(b"a", b"2"))
    upsert(target, "other", Record(b"b", b"1", 1))
    with pytest.raises(LoadConflictError, match="load 'n' has a place in orders-0"):
        upsert(target, "other", Record(b"a", b"1"))
    assert found(table) == {b"a": b"2", b"b": b"1"}
    assert next_offset(target, "other") == 0


def test_a_table_that_was_appended_to_is_not_upserted(table: Table) -> None:
    load(table.open(), "nightly", 2)
    with pytest.raises(OtherModeError, match="rows were appended to the table"):
        upsert(table.open(), "n", Record(b"a", b"1"))


def test_a_table_that_is_upserted_is_not_appended_to(table: Table) -> None:
    upsert(table.open(), "n", Record(b"a", b"1"))
    for how in ("other", "n"):
        with pytest.raises(OtherModeError, match="is upserted by key key"):
            load(table.open(), how, 2)
    with pytest.raises(OtherModeError, match="is upserted by key key"):
        upsert(table.open(), "other", Record(b"b", b"1", 1), how=BY_TIME)
    assert found(table) == {b"a": b"1"}


def test_deleted_keys_stay_deleted_when_a_topic_is_created_again(table: Table) -> None:
    """Whose offsets begin anew."""
    one, two = UUID(int=1 << 100), UUID(int=2 << 100)
    target = table.open()
    deleted = Record(b"x", b"1", 0, 1), Record(b"a", None, 0, 6), Record(b"b", None, 0, 6)
    upsert(target, "n", *deleted, how=BY_TIME, topic_id=one)
    upsert(target, "n", Record(b"c", b"1", 0, 7), how=BY_TIME, topic_id=two)
    old = [Record(b"a", b"older", 1, 4), Record(b"b", b"newer", 1, 8)]
    upsert(target, "n", *old, how=BY_TIME, topic_id=two)
    assert found(table) == {b"x": b"1", b"b": b"newer", b"c": b"1"}


def test_deleted_keys_stay_deleted_when_a_load_goes_back(table: Table) -> None:
    """The topic may have the tombstone no more when the load comes by again."""
    target = table.open()
    upsert(target, "n", Record(b"x", b"1", 0, 1), Record(b"a", None, 0, 6), how=BY_TIME)
    rewind(table.name, "n", {"orders": {"0": 1}})
    upsert(target, "n", Record(b"a", b"older", 1, 4), how=BY_TIME)
    assert found(table) == {b"x": b"1"}
    # What a name has that starts over is not known any more.
    assert forget(table.name, "n")
    upsert(target, "n", Record(b"a", b"again", 0, 4), how=BY_TIME)
    assert found(table) == {b"x": b"1", b"a": b"again"}


def test_a_step_back_takes_no_rows(table: Table) -> None:
    """These have taken the place of others."""
    upsert(table.open(), "n", Record(b"a", b"1"), Record(b"b", b"1"))
    place, how = {"orders": {"0": 1}}, {"failOnDataLoss": "false"}
    with pytest.raises(TargetError, match="without truncate_after"):
        rewind(table.name, "n", place, truncate_after=True, options=how)
    assert next_offset(table.open(), "n") == 2
    assert rewind(table.name, "n", place).deleted_rows == 0
    assert found(table) == {b"a": b"1", b"b": b"1"}
    assert next_offset(table.open(), "n") == 1


def test_an_append_that_began_before_the_first_upsert_is_refused(table: Table) -> None:
    with pytest.raises(OtherModeError, match="is upserted by key key"):
        load(cast(Target, _UpsertedAfterStage(table)), "nightly", 2)
    assert found(table) == {b"a": b"1"}


class _UpsertedAfterStage:
    """A target into which another load upserts when a load has made its stage."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._target = table.open()

    def stage(self, *arguments: Any) -> Stage:
        stage = self._target.stage(*arguments)
        upsert(self._table.open(), "n", Record(b"a", b"1"))
        return stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def test_a_record_without_a_key_is_refused(table: Table) -> None:
    with pytest.raises(BadRecordError, match="orders-0 at offset 1: the record has no key"):
        upsert(table.open(), "n", Record(b"a", b"1"), Record(None, b"1"))


def test_columns_make_a_key() -> None:
    how = Upsert(("number", "name"))
    keys = []
    for number, name in ((1, "a"), (11, ""), (1, "1"), (1, "a")):
        rows = batch_of([(0, Record(b"", b""))], "t")
        rows = rows.append_column("number", pa.array([number], pa.int64()))
        rows = rows.append_column("name", pa.array([name]))
        keys.append(how.marked(rows).column("kafkalog_key")[0].as_py())
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3
