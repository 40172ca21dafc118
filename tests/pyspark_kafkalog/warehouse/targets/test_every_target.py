"""What every kind of target promises: who may commit, what readers see, what is kept."""

import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

import pyspark_kafkalog
from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.errors import InvalidOptionError, LoadConflictError, TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import NOWHERE, Commit, PendingCommit, Position, deleted
from pyspark_kafkalog.warehouse.rows.layout import PartitionField
from pyspark_kafkalog.warehouse.targets.storage import is_url
from pyspark_kafkalog.warehouse.targets.target import Target
from tests.pyspark_kafkalog.warehouse.rows_loader import TIME_US, begin, load, write_rows
from tests.pyspark_kafkalog.warehouse.tables import (
    BEHIND_REST,
    EVERY_KIND,
    Table,
    expected_rows,
    table_of,
)

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)


@pytest.fixture(params=[*EVERY_KIND, BEHIND_REST])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "the place"
    directory.mkdir()
    return table_of(request.param, directory)


def test_a_target_that_is_not_there_yet_has_no_offsets(table: Table) -> None:
    assert table.open().position("nightly").offsets == {}
    assert table.rows() == Counter()


def test_a_load_that_is_refused_before_it_lands_leaves_nothing(table: Table) -> None:
    """A broker that is not there, or a layout that cannot be, is found out after the target was
    asked where the load goes on."""
    target = table.open()
    target.position("nightly")
    assert list(table.directory.iterdir()) == []
    if "sql:" in table.name:
        with pytest.raises(InvalidOptionError, match="partition_by has no meaning"):
            target.stage(row_schema(), [PartitionField("partition")])
        assert list(table.directory.iterdir()) == []


def test_to_look_where_a_load_goes_on_changes_nothing(table: Table) -> None:
    assert table.open().position("nightly", read_only=True).offsets == {}
    assert list(table.directory.iterdir()) == []
    load(table.open(), "nightly", 5)
    assert table.open().position("nightly", read_only=True).offsets == {ORDERS_0: 5, ORDERS_1: 5}
    assert table.open().position("hourly", read_only=True).offsets == {}


def test_where_a_load_goes_on_is_told_as_starting_offsets(table: Table) -> None:
    assert pyspark_kafkalog.loaded_offsets(table.name, "nightly") == "earliest"
    assert list(table.directory.iterdir()) == []
    load(table.open(), "nightly", 5)
    assert pyspark_kafkalog.loaded_offsets(table.name, "nightly") == '{"orders":{"0":5,"1":5}}'
    assert pyspark_kafkalog.loaded_offsets(table.name, "hourly") == "earliest"


def test_several_topics_are_published_together(table: Table) -> None:
    target, landed = begin(table.open())
    name, payments = landed.name, OffsetRange("payments", 0, 0, 3)
    files = [*landed.files, *write_rows(landed.stage, name, payments)]
    commit = target.commit(replace(landed, ranges=[*landed.ranges, payments], files=files))
    topics = Counter(table.arrow().column("topic").to_pylist())
    assert topics == {"orders": 14, "payments": 3}
    places = {ORDERS_0: 7, ORDERS_1: 7, TopicPartition("payments", 0): 3}
    assert commit.offsets[name] == table.open().position(name).offsets == places


def test_loads_go_on_where_the_last_one_of_their_name_ended(table: Table) -> None:
    commit = load(table.open(), "nightly", 5)
    assert commit is not None
    assert commit.offsets["nightly"] == {ORDERS_0: 5, ORDERS_1: 5}
    assert table.open().position("nightly").offsets == {ORDERS_0: 5, ORDERS_1: 5}
    assert load(table.open(), "nightly", 5) is None
    again = load(table.open(), "nightly", 9)
    assert again is not None
    assert again.sequence != commit.sequence
    assert table.rows() == expected_rows("nightly", 9)
    assert table.offsets("nightly") == {0: 9, 1: 9}


def test_two_names_keep_their_own_places(table: Table) -> None:
    names = ["nightly", "a name: with/odd, 'signs\" %41 ü"]
    for until_offset in (3, 6):
        for name in names:
            load(table.open(), name, until_offset)
    assert table.rows() == sum((expected_rows(name, 6) for name in names), Counter())
    for name in names:
        assert table.open().position(name).offsets == {ORDERS_0: 6, ORDERS_1: 6}
    assert table.open().position("night").offsets == {}
    assert table.open().position("nightly:orders").offsets == {}


def test_every_column_reads_back_as_it_was(table: Table) -> None:
    load(table.open(), "nightly", 4, headers=True)
    found = table.arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert found.column_names == [*DEFAULT_COLUMNS, "headers"]
    assert found.num_rows == 8
    first, second = found.slice(4, 2).to_pylist()
    assert first["key"] is None
    assert second["key"] == b"\x00\xff key 1"
    assert (first["topic"], first["partition"], first["offset"]) == ("orders", 1, 0)
    times = found.column("timestamp").cast(pa.timestamp("us", "UTC")).cast("int64")
    assert times.to_pylist()[4:6] == [TIME_US, TIME_US + 1_000_000]
    assert first["timestampType"] == 0
    assert table.headers(first["headers"]) == [("h", b"\xfe0"), ("n", None)]
    assert second["headers"] is None


def test_nothing_is_seen_before_the_commit(table: Table) -> None:
    load(table.open(), "hourly", 2)
    target, landed = begin(table.open())
    assert table.rows() == expected_rows("hourly", 2)
    target.commit(landed)
    assert table.rows() == expected_rows("hourly", 2) + expected_rows("nightly", 7)


def test_a_discarded_load_leaves_nothing(table: Table) -> None:
    target, landed = begin(table.open())
    target.discard(landed.stage)
    assert table.staged(landed.stage) == []
    assert table.open().position("nightly").offsets == {}
    assert table.rows() == Counter()


def test_a_load_that_was_overtaken_publishes_nothing(table: Table) -> None:
    target, landed = begin(table.open())
    load(table.open(), "nightly", 4)
    with pytest.raises(LoadConflictError, match=r"'nightly'.*orders-0 from None to 4"):
        target.commit(landed)
    assert table.staged(landed.stage) == []
    assert table.rows() == expected_rows("nightly", 4)
    target, landed = begin(table.open())
    load(table.open(), "nightly", 7)
    with pytest.raises(LoadConflictError, match=r"orders-0 from 4 to 7"):
        target.commit(landed)
    assert table.rows() == expected_rows("nightly", 7)
    assert table.offsets("nightly") == {0: 7, 1: 7}


WAS = UUID(int=1)


def landing(
    table: Table,
    start: int,
    until_offset: int,
    topic_id: UUID | None,
    number: int = 0,
) -> tuple[Target, PendingCommit]:
    """A load of one partition that has landed and not committed."""
    target = table.open()
    last, piece = target.position("nightly"), OffsetRange("orders", number, start, until_offset)
    stage = target.stage(row_schema())
    files = write_rows(stage, "nightly", piece) if piece.offset_count else []
    ids = {} if topic_id is None else {"orders": topic_id}
    return target, PendingCommit(stage, "nightly", last, [piece], files, ids)


def land(table: Table, *of: Any) -> Commit:
    target, landed = landing(table, *of)
    return target.commit(landed)


@pytest.mark.parametrize(("before", "rival"), [(WAS, deleted(WAS)), (deleted(WAS), WAS)])
def test_that_a_topic_is_gone_or_back_disturbs_no_load_of_it(
    table: Table, before: UUID, rival: UUID
) -> None:
    """It is the same topic: one load sees it, another one did not."""
    land(table, 0, 5, WAS)
    land(table, 5, 5, before)
    target, landed = landing(table, 5, 7, WAS)
    land(table, 5, 5, rival)
    assert target.commit(landed).gaps == ()
    assert table.open().position("nightly") == Position({ORDERS_0: 7}, {"orders": WAS})
    target, landed = landing(table, 7, 7, deleted(WAS))
    land(table, 7, 7, WAS)
    target.commit(landed)
    assert table.open().position("nightly").without_deleted() == NOWHERE


def test_first_loads_of_one_topic_and_other_partitions_do_not_conflict(table: Table) -> None:
    target, landed = landing(table, 0, 5, WAS)
    land(table, 0, 3, WAS, 1)
    target.commit(landed)
    there = Position({ORDERS_0: 5, ORDERS_1: 3}, {"orders": WAS})
    assert table.open().position("nightly") == there
    target, landed = landing(table, 5, 6, WAS)
    land(table, 3, 4, WAS, 1)
    target.commit(landed)


def test_a_load_of_another_name_does_not_disturb(table: Table) -> None:
    target, landed = begin(table.open())
    load(table.open(), "hourly", 4)
    target.commit(landed)
    assert table.rows() == expected_rows("nightly", 7) + expected_rows("hourly", 4)
    assert table.offsets("nightly") == {0: 7, 1: 7}
    assert table.offsets("hourly") == {0: 4, 1: 4}


def test_loads_of_one_name_and_other_partitions_do_not_conflict(table: Table) -> None:
    target, landed = begin(table.open())
    name = landed.name
    other = table.open()
    piece = OffsetRange("payments", 3, 2, 5)
    place = other.stage(row_schema())
    other.commit(PendingCommit(place, name, NOWHERE, [piece], write_rows(place, name, piece)))
    commit = target.commit(landed)
    expected = {ORDERS_0: 7, ORDERS_1: 7, piece.topic_partition: 5}
    assert commit.offsets[name] == expected
    assert table.open().position(name).offsets == expected


def test_the_files_of_a_twin_that_no_task_reported_are_never_seen(table: Table) -> None:
    """Spark may run a task twice; the second one may still be writing when the load commits."""
    target, landed = begin(table.open())
    stage, ranges = landed.stage, landed.ranges
    write_rows(stage, "twin", ranges[0])
    target.commit(landed)
    if not is_url(stage.path):
        os.makedirs(stage.path, exist_ok=True)
    write_rows(stage, "late twin", ranges[0])
    load(table.open(), "nightly", 9)
    assert table.rows() == expected_rows("nightly", 9)


def test_ranges_without_rows_move_the_offsets(table: Table) -> None:
    """Compaction may have removed every record; and a place that lost data may be moved back."""
    load(table.open(), "nightly", 7)
    target = table.open()
    stage = target.stage(row_schema())
    ranges = [OffsetRange("orders", 0, 7, 12), OffsetRange("orders", 1, 3, 3)]
    commit = target.commit(PendingCommit(stage, "nightly", target.position("nightly"), ranges, []))
    assert commit.files == ()
    assert table.open().position("nightly").offsets == {ORDERS_0: 12, ORDERS_1: 3}
    assert table.offsets("nightly") == {0: 12, 1: 3}
    with pytest.raises(LoadConflictError):
        target.commit(
            PendingCommit(
                target.stage(row_schema()),
                "nightly",
                Position({ORDERS_0: 7}, {}),
                ranges[:1],
                [],
            )
        )
    assert table.rows() == expected_rows("nightly", 7)


def test_the_first_load_may_have_no_rows(table: Table) -> None:
    target = table.open()
    stage = target.stage(row_schema())
    target.commit(PendingCommit(stage, "nightly", NOWHERE, [OffsetRange("orders", 0, 0, 12)], []))
    assert table.open().position("nightly").offsets == {ORDERS_0: 12}
    assert table.rows() == Counter()


def test_topic_ids_are_kept_and_a_recreated_topic_begins_anew(table: Table) -> None:
    ids = {"orders": UUID(int=1), "payments": UUID(int=2)}
    payments = TopicPartition("payments", 0)

    def commit(
        ranges: Sequence[OffsetRange], topic_ids: Mapping[str, UUID]
    ) -> tuple[dict[TopicPartition, int], Mapping[str, UUID]]:
        target = table.open()
        stage = target.stage(row_schema())
        target.commit(
            PendingCommit(stage, "nightly", target.position("nightly"), ranges, [], topic_ids)
        )
        return table.open().position("nightly").offsets, table.open().position("nightly").topic_ids

    assert table.open().position("nightly").topic_ids == {}
    load(table.open(), "hourly", 2)
    both = [OffsetRange("orders", 0, 0, 5), OffsetRange("orders", 1, 0, 7)]
    both.append(OffsetRange("payments", 0, 0, 4))
    offsets = {ORDERS_0: 5, ORDERS_1: 7, payments: 4}
    assert commit(both, {}) == (offsets, {})
    offsets[ORDERS_1] = 8
    assert commit([OffsetRange("orders", 1, 7, 8)], ids) == (offsets, {"orders": UUID(int=1)})
    offsets[payments] = 5
    assert commit([OffsetRange("payments", 0, 4, 5)], ids) == (offsets, ids)
    ids["orders"] = UUID(int=3)
    assert commit([OffsetRange("orders", 1, 0, 2)], ids) == ({ORDERS_1: 2, payments: 5}, ids)
    assert commit([OffsetRange("orders", 0, 0, 1)], {})[0] == {
        ORDERS_0: 1,
        ORDERS_1: 2,
        payments: 5,
    }
    ids["orders"] = UUID(int=1)
    assert commit([OffsetRange("orders", 0, 0, 9)], ids) == ({ORDERS_0: 9, payments: 5}, ids)
    assert table.open().position("hourly").topic_ids == {}


def test_leader_epochs_and_marks_are_kept_as_long_as_their_offsets(table: Table) -> None:
    def commit(
        until: int, epochs: dict[Any, Any], topic_id: UUID = WAS, partition: int = 0
    ) -> Mapping[TopicPartition, int]:
        target = table.open()
        stage, last = target.stage(row_schema()), target.position("nightly")
        ranges = [OffsetRange("orders", partition, until, until)]
        ids = {"orders": topic_id}
        marks = {each: 2**62 - epoch for each, epoch in epochs.items()}
        queries = {TopicPartition("orders", partition): 2**62 - until} if epochs else {}
        pending = PendingCommit(stage, "nightly", last, ranges, [], ids, epochs, marks, queries)
        known = {} if topic_id != WAS else last.queries
        assert target.commit(pending).position("nightly").queries == {**known, **queries}
        found = table.open().position("nightly")
        # Who moves an offset and is no query leaves the one that it was.
        assert found.queries == {**known, **queries}
        assert found.marks == {each: 2**62 - epoch for each, epoch in found.epochs.items()}
        return found.epochs

    load(table.open(), "hourly", 2)
    assert commit(5, {ORDERS_0: 3, ORDERS_1: 9}) == {ORDERS_0: 3}
    assert commit(4, {ORDERS_0: 3, ORDERS_1: 4}, partition=1) == {ORDERS_0: 3, ORDERS_1: 4}
    assert commit(6, {ORDERS_0: 0}) == {ORDERS_0: 0, ORDERS_1: 4}
    # Who moves an offset and knows no epoch leaves none that was another offset's.
    assert commit(7, {}) == {ORDERS_1: 4}
    assert commit(8, {ORDERS_0: 1}) == {ORDERS_0: 1, ORDERS_1: 4}
    assert commit(2, {ORDERS_0: 0}, topic_id=UUID(int=77)) == {ORDERS_0: 0}
    assert table.open().position("hourly").epochs == {}
    assert pyspark_kafkalog.forget(table.name, "nightly")
    assert table.open().position("nightly") == NOWHERE
    assert commit(3, {}) == {}


def test_a_topic_that_a_load_goes_on_without_is_new_to_it_when_it_is_there_again(
    table: Table,
) -> None:
    def commit(pieces: Sequence[OffsetRange], topic_id: UUID) -> Commit:
        target = table.open()
        last = target.position("nightly")
        ids = {"payments": topic_id}
        return target.commit(
            PendingCommit(target.stage(row_schema()), "nightly", last, pieces, [], ids)
        )

    was, other = UUID(int=1), UUID(int=2)
    load(table.open(), "nightly", 5)
    payments = [TopicPartition("payments", number) for number in (0, 1)]
    commit([OffsetRange("payments", number, 0, 4) for number in (0, 1)], was)
    assert len(table.open().position("nightly").offsets) == 4
    gone = [OffsetRange("payments", number, 4, 4) for number in (0, 1)]
    commit(gone, deleted(was))
    left = table.open().position("nightly").without_deleted({"payments": other})
    assert (left.offsets, left.topic_ids) == ({ORDERS_0: 5, ORDERS_1: 5}, {})
    assert pyspark_kafkalog.loaded_offsets(table.name, "nightly") == '{"orders":{"0":5,"1":5}}'
    assert load(table.open(), "nightly", 6) is not None
    assert commit([OffsetRange("payments", 0, 2, 3)], other).gaps == ()
    found = table.open().position("nightly")
    assert found.offsets == {ORDERS_0: 6, ORDERS_1: 6, payments[0]: 3}
    assert found.without_deleted() == found


def test_a_topic_that_was_only_out_of_sight_keeps_its_place(table: Table) -> None:
    """Another cluster was asked, or this one was restored: with its old id it is the old topic."""

    def commit(pieces: list[Any], topic_id: UUID) -> Commit:
        target = table.open()
        last = target.position("nightly")
        ids = {"orders": topic_id}
        return target.commit(
            PendingCommit(target.stage(row_schema()), "nightly", last, pieces, [], ids)
        )

    was = UUID(int=1)
    commit([OffsetRange("orders", number, 0, 4) for number in (0, 1)], was)
    commit([OffsetRange("orders", number, 4, 4) for number in (0, 1)], deleted(was))
    there = Position({ORDERS_0: 4, ORDERS_1: 4}, {"orders": was})
    assert table.open().position("nightly").without_deleted({"orders": was}) == there
    assert commit([OffsetRange("orders", 0, 5, 6)], was).gaps == (OffsetRange("orders", 0, 4, 5),)
    there = Position({ORDERS_0: 6, ORDERS_1: 4}, {"orders": was})
    assert table.open().position("nightly") == there


@pytest.mark.parametrize("offset", [0, 5])
def test_a_topic_that_a_rival_found_created_again_is_a_conflict_at_any_offset(
    table: Table, offset: int
) -> None:
    """Its records would be loaded twice by the next load, or not at all."""

    def pending(topic_id: int, until_offset: int) -> tuple[Target, PendingCommit]:
        target = table.open()
        ranges = [OffsetRange("orders", 0, min(offset, until_offset), until_offset)]
        ids = {"orders": UUID(int=topic_id)}
        stage, known = target.stage(row_schema()), target.position("nightly")
        return target, PendingCommit(stage, "nightly", known, ranges, [], ids)

    target, first = pending(1, offset)
    target.commit(first)
    target, late = pending(1, offset + 5)
    rival, again = pending(2, offset)
    rival.commit(replace(again, ranges=[OffsetRange("orders", 0, 0, offset)]))
    with pytest.raises(LoadConflictError, match="orders created again"):
        target.commit(late)
    found = table.open().position("nightly")
    assert found == Position({ORDERS_0: offset}, {"orders": UUID(int=2)})


def test_a_gap_is_recorded_in_the_commit(table: Table) -> None:
    load(table.open(), "nightly", 7)
    target = table.open()
    pieces = [OffsetRange("orders", 0, 10, 12), OffsetRange("orders", 1, 7, 12)]
    last = target.position("nightly")
    commit = target.commit(PendingCommit(target.stage(row_schema()), "nightly", last, pieces, []))
    assert commit.gaps == (OffsetRange("orders", 0, 7, 10),)
    assert table.gaps() == [("orders", 0, 7, 10)]


def test_a_recreated_topic_that_begins_later_leaves_no_gap(table: Table) -> None:
    for topic_id, pieces in (
        (1, [OffsetRange("orders", 0, 0, 5)]),
        (2, [OffsetRange("orders", 0, 9, 12)]),
    ):
        target = table.open()
        last = target.position("nightly")
        ids = {"orders": UUID(int=topic_id)}
        commit = target.commit(
            PendingCommit(target.stage(row_schema()), "nightly", last, pieces, [], ids)
        )
        assert commit.gaps == ()


@pytest.mark.parametrize("damage", ["gone", "longer"])
def test_a_file_that_the_driver_does_not_see_whole_is_not_committed(
    table: Table, damage: str
) -> None:
    target, landed = begin(table.open())
    stage, files = landed.stage, landed.files
    table.damage(stage, files[0].name + stage.suffix, None if damage == "gone" else b"more")
    with pytest.raises(TargetError, match="nothing was published"):
        target.commit(landed)
    assert table.open().position("nightly").offsets == {}
    assert table.rows() == Counter()


def test_many_loaders_at_once_load_each_offset_once(table: Table) -> None:
    names = ["a", "b", "shared", "shared"]
    failures = []

    def run(name: str) -> None:
        try:
            for until_offset in (3, 6, 9):
                while True:
                    try:
                        load(table.open(), name, until_offset)
                        break
                    except LoadConflictError:
                        continue
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert table.rows() == sum((expected_rows(name, 9) for name in set(names)), Counter())
    for name in set(names):
        assert table.offsets(name) == {0: 9, 1: 9}
