"""Commit files: what is written is read back, and nothing else is taken for a commit."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import LoadConflictError, TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    Commit,
    DataFile,
    PendingCommit,
    Position,
    Stage,
    Step,
    deleted,
    without_gaps,
)
from pyspark_kafkalog.warehouse.targets.commit_file import CommitLog, checksum, encode, next_commit
from pyspark_kafkalog.warehouse.targets.directory_storage import DirectoryStorage
from pyspark_kafkalog.warehouse.targets.storage import COMMITS

ORDERS_ID = UUID(int=7)
ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
STAGE = Stage("load-1", "/never/made", row_schema())


def commit_after(
    newest: Commit | None,
    name: str = "nightly",
    ranges: Sequence[tuple[int, int, int]] = ((0, 0, 10),),
    load_id: str = "load-1",
    abandoned: Sequence[str] = (),
) -> Commit:
    pieces = [OffsetRange("orders", *piece) for piece in ranges]
    files = [DataFile(f"part-{p.partition}.parquet", 10, 123) for p in pieces]
    known = newest.position(name) if newest else NOWHERE
    stage = replace(STAGE, load_id=load_id)
    pending = PendingCommit(stage, name, known, pieces, files, {"orders": ORDERS_ID})
    step = replace(pending.step_from(known), gaps=[OffsetRange("orders", 0, 3, 4)])
    commit = pending.committed(1, step)
    return next_commit(newest, commit, {"value": "binary"}, ["days(timestamp)"], abandoned)


def test_a_recreated_topic_keeps_nothing_of_what_was() -> None:
    known = Position({ORDERS_0: 5, ORDERS_1: 7}, {"orders": ORDERS_ID})
    moved = known.moved(
        [OffsetRange("orders", 0, 0, 3)], {"orders": UUID(int=8), "other": UUID(int=9)}
    )
    assert moved == Position({ORDERS_0: 3}, {"orders": UUID(int=8)})
    assert known.moved([OffsetRange("orders", 0, 5, 6)], {}).offsets == {ORDERS_0: 6, ORDERS_1: 7}


def test_gaps_are_what_the_pieces_of_a_partition_leave_out() -> None:
    known = Position({ORDERS_0: 5, ORDERS_1: 7}, {"orders": ORDERS_ID})
    pieces = [OffsetRange("orders", 0, 12, 20), OffsetRange("orders", 0, 9, 12)]
    pieces += [OffsetRange("orders", 0, 25, 30), OffsetRange("orders", 1, 3, 4)]
    pieces += [OffsetRange("orders", 2, 3, 4), OffsetRange("payments", 0, 3, 4)]
    for topic_ids in ({}, {"orders": ORDERS_ID}):
        assert known.gaps(pieces, topic_ids) == [
            OffsetRange("orders", 0, 5, 9),
            OffsetRange("orders", 0, 20, 25),
        ]
    assert known.gaps(pieces, {"orders": UUID(int=8)}) == [OffsetRange("orders", 0, 20, 25)]
    # New in a topic with a place: whoever gives up its beginning says so.
    pieces = [OffsetRange("orders", 2, 3, 4), OffsetRange("orders", 2, 0, 0)]
    assert known.gaps(pieces, {}) == [OffsetRange("orders", 2, 0, 3)]


def test_one_offset_that_is_gone_is_a_gap() -> None:
    known = Position({ORDERS_0: 5}, {})
    assert known.gaps([OffsetRange("orders", 0, 5, 9)], {}) == []
    assert known.gaps([OffsetRange("orders", 0, 6, 9)], {}) == [OffsetRange("orders", 0, 5, 6)]


def test_what_was_gone_while_it_was_read_is_a_gap_wherever_it_lay() -> None:
    pieces = [OffsetRange("orders", 0, 5, 10), OffsetRange("orders", 0, 10, 20)]
    gone = [OffsetRange("orders", 0, 5, 7), OffsetRange("orders", 0, 12, 15)]
    gone += [OffsetRange("orders", 0, 18, 20)]
    for known in (NOWHERE, Position({ORDERS_0: 5}, {})):
        passed = without_gaps(pieces, gone)
        assert known.gaps(passed, {}) == gone
        assert known.moved(passed, {}).offsets == {ORDERS_0: 20}
    assert without_gaps(pieces, []) == pieces


@pytest.mark.parametrize("current", [4, 6])
def test_a_load_that_another_one_moved_either_way_conflicts(current: int) -> None:
    """Back, too: a rival found its topic created again, and was told to go on."""
    ranges = [OffsetRange("orders", 0, 5, 9)]
    planned = Position({ORDERS_0: 5}, {})
    pending = PendingCommit(STAGE, "nightly", planned, ranges, [])
    with pytest.raises(LoadConflictError, match=f"moved orders-0 from 5 to {current}"):
        pending.check_unmoved(Position({ORDERS_0: current}, {}), "the place")
    pending.check_unmoved(Position({ORDERS_0: 5, ORDERS_1: 4}, {}), "the place")


@pytest.mark.parametrize("planned", [None, UUID(int=1)])
@pytest.mark.parametrize(
    ("now", "conflicts"),
    [(UUID(int=1), False), (UUID(int=2), True), (deleted(UUID(int=2)), True)],
)
def test_a_rival_that_found_the_topic_created_again_conflicts_at_the_same_offset(
    planned: UUID | None, now: UUID, conflicts: bool
) -> None:
    known = Position({ORDERS_0: 5}, {"orders": planned} if planned else {})
    ranges = [OffsetRange("orders", 0, 5, 9)]
    pending = PendingCommit(STAGE, "nightly", known, ranges, [], {"orders": UUID(int=1)})
    current = Position({ORDERS_0: 5}, {"orders": now})
    if not conflicts:
        pending.check_unmoved(current, "the place")
        return
    with pytest.raises(LoadConflictError, match="orders created again"):
        pending.check_unmoved(current, "the place")


def test_a_rival_that_went_on_without_the_topic_for_a_moment_is_none() -> None:
    """It is the same one that was read meanwhile: what it holds is not lost."""
    known = Position({ORDERS_0: 5}, {"orders": UUID(int=1)})
    ranges = [OffsetRange("orders", 0, 5, 9)]
    pending = PendingCommit(STAGE, "nightly", known, ranges, [], {"orders": UUID(int=1)})
    pending.check_unmoved(Position({ORDERS_0: 5}, {"orders": deleted(UUID(int=1))}), "the place")


def test_a_commit_of_an_older_version_has_no_ids(tmp_path: Path) -> None:
    path = published(tmp_path, commit_after(None))
    fields = json.loads(path.read_text())
    for name in ("crc32", "topic_ids", "gaps"):
        del fields[name]
    path.write_text(json.dumps({**fields, "crc32": checksum(fields)}))
    newest = log_in(tmp_path).newest()
    assert newest is not None
    assert newest.offsets == {"nightly": {ORDERS_0: 10}}
    assert (newest.topic_ids, newest.gaps) == ({}, ())


def log_in(directory: Path) -> CommitLog:
    return CommitLog(DirectoryStorage(str(directory)))


def publish(directory: Path, commit: Commit) -> bool:
    DirectoryStorage(str(directory)).make_stage(commit.load_id)
    return log_in(directory).publish(commit)


def published(directory: Path, commit: Commit) -> Path:
    assert publish(directory, commit)
    return directory / COMMITS / f"{commit.sequence:020}.json"


def test_the_first_commit_starts_at_one_and_reads_back_equal(tmp_path: Path) -> None:
    commit = commit_after(None, ranges=[(0, 0, 10), (1, 5, 7)], abandoned=["dead"])
    published(tmp_path, commit)
    assert commit.commit_id == "1"
    assert log_in(tmp_path).newest() == commit
    assert commit.offsets == {"nightly": {ORDERS_0: 10, ORDERS_1: 7}}


def test_each_commit_repeats_the_offsets_of_every_name(tmp_path: Path) -> None:
    first = commit_after(None)
    second = commit_after(first, name="hourly", ranges=[(0, 0, 3)])
    third = commit_after(second, ranges=[(0, 10, 20)])
    assert third.offsets == {"nightly": {ORDERS_0: 20}, "hourly": {ORDERS_0: 3}}
    assert first.offsets == {"nightly": {ORDERS_0: 10}}


def test_the_pieces_of_one_partition_move_it_to_the_last_end_in_any_order() -> None:
    commit = commit_after(None, ranges=[(0, 10, 20), (0, 0, 10)])
    assert commit.offsets == {"nightly": {ORDERS_0: 20}}


def test_a_partition_may_move_back() -> None:
    """When its topic was recreated and the user chose to go on with what is there."""
    commit = commit_after(commit_after(None, ranges=[(0, 0, 10)]), ranges=[(0, 3, 3)])
    assert commit.offsets == {"nightly": {ORDERS_0: 3}}


def test_an_absent_directory_has_no_commits(tmp_path: Path) -> None:
    log = log_in(tmp_path / "absent")
    assert log.newest() is None
    assert list(log) == []


def test_only_one_of_two_racing_commits_gets_a_number(tmp_path: Path) -> None:
    assert publish(tmp_path, commit_after(None, load_id="first"))
    assert not publish(tmp_path, commit_after(None, load_id="second"))
    newest = log_in(tmp_path).newest()
    assert newest is not None
    assert newest.load_id == "first"


def test_a_link_whose_answer_was_lost_counts_as_won(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def link_twice(source: str, destination: str) -> None:
        real(source, destination)
        real(source, destination)

    commit = commit_after(None)
    DirectoryStorage(str(tmp_path)).make_stage(commit.load_id)
    monkeypatch.setattr(os, "link", link_twice)
    assert log_in(tmp_path).publish(commit)


def test_the_newest_is_the_highest_number_and_other_files_are_ignored(tmp_path: Path) -> None:
    commits = [commit_after(None)]
    for _ in range(10):
        commits.append(commit_after(commits[-1]))
    log = log_in(tmp_path)
    for commit in commits:
        assert publish(tmp_path, commit)
    for name in (".DS_Store", "00000000000000000099.json.tmp", "99.json", "commit-5.json"):
        (tmp_path / COMMITS / name).write_text("not mine")
    assert log.newest() == commits[-1]
    assert [commit.sequence for commit in log] == list(range(1, 12))


def test_every_flipped_byte_and_every_prefix_is_refused_or_reads_the_same(tmp_path: Path) -> None:
    commit = commit_after(None)
    path = published(tmp_path, commit)
    content = path.read_bytes()
    damaged = [content[:size] for size in range(len(content) - 2)]
    for position in range(len(content)):
        for bit in (0x01, 0x10, 0x20):
            flipped = bytearray(content)
            flipped[position] ^= bit
            damaged.append(bytes(flipped))
    refused = 0
    for variant in damaged:
        path.write_bytes(variant)
        try:
            # White space between JSON's tokens may change without harm.
            assert log_in(tmp_path).newest() == commit
        except TargetError:
            refused += 1
    assert refused > 0.8 * len(damaged)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b'{"format": "kafkalog-commit"}',
        b'{"format": "delta", "version": 1}',
        b'{"format": "kafkalog-commit", "version": "one"}',
        b'{"format": "kafkalog-commit", "version": 1, "crc32": 7}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_foreign_file_is_a_target_error_that_says_what_to_do(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / COMMITS).mkdir(parents=True)
    (tmp_path / COMMITS / f"{1:020}.json").write_bytes(content)
    with pytest.raises(TargetError, match=r"0001\.json .*Restore the file"):
        log_in(tmp_path).newest()


def test_a_commit_under_another_number_is_refused(tmp_path: Path) -> None:
    path = published(tmp_path, commit_after(None))
    path.rename(path.with_name(f"{2:020}.json"))
    with pytest.raises(TargetError, match="it says it is commit 1"):
        log_in(tmp_path).newest()


@pytest.mark.parametrize("name", ["../escape.parquet", "/etc/passwd", "..", "", "a/../b", "a//b"])
def test_a_file_name_that_leads_out_of_the_target_is_refused(tmp_path: Path, name: str) -> None:
    piece = OffsetRange("orders", 0, 0, 1)
    file = DataFile(name, 1, 1)
    pending = PendingCommit(STAGE, "nightly", NOWHERE, [piece], [file])
    commit = pending.committed(1, Step(NOWHERE, []))
    published(tmp_path, next_commit(None, commit, {}))
    with pytest.raises(TargetError, match="is not a file name"):
        log_in(tmp_path).newest()


def test_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    fields = json.loads(encode(commit_after(None)))
    (tmp_path / COMMITS).mkdir(parents=True)
    (tmp_path / COMMITS / f"{1:020}.json").write_text(json.dumps({**fields, "version": 2}))
    with pytest.raises(TargetError, match=f"{1:020}.json has version 2.*upgrade pyspark-kafkalog"):
        log_in(tmp_path).newest()
