"""What is read of __consumer_offsets at start, from real logs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.errors import CorruptRecordError
from kafka.structs import TopicPartition

from broker.config.log import LogConfig
from broker.coordinator.group_metadata import GroupState
from broker.coordinator.offset_records import (
    CommittedOffset,
    GroupSnapshot,
    MemberSnapshot,
    OffsetKey,
    commit_record,
    commit_tombstone,
    group_record,
    group_tombstone,
)
from broker.coordinator.offsets import read_groups
from broker.coordinator.state_records import ProducerIdAndEpoch, StateRecord, encode_batch
from broker.log.checkpoint import CLEAN
from broker.log.log import Log
from pyspark_kafkalog.record.batch import seal
from pyspark_kafkalog.record.control import TransactionMarker

NOW_MS = 1_700_000_000_000
MEMBER = MemberSnapshot("m", "one", "client", "/127.0.0.1", 20_000, 10_000, b"wish", b"part")
STABLE = GroupSnapshot("consumer", 3, "range", "m", NOW_MS, (MEMBER,))
EMPTY = GroupSnapshot("consumer", 4, None, None, NOW_MS, ())


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = Log(tmp_path, LogConfig(segment_bytes=4000, index_interval_bytes=200), known=CLEAN)
    yield opened
    opened.close()


def append(log: Log, *records: StateRecord) -> None:
    log.append(memoryview(encode_batch(records, NOW_MS)), 0)


def commit(group: str, partition: int, offset: int) -> StateRecord:
    key = OffsetKey(group, TopicPartition("t", partition))
    return commit_record(key, CommittedOffset(offset, -1, "", NOW_MS))


def test_an_empty_log_has_no_groups(log: Log) -> None:
    assert read_groups(log) == {}


def test_the_last_record_of_each_key_counts(log: Log) -> None:
    for offset in range(300):
        append(log, commit("g", offset % 3, offset), commit("h", 0, offset))
    assert log.segment_count > 3
    groups = read_groups(log)
    offsets = {place.partition: each.offset for place, each in groups["g"].offsets.items()}
    assert offsets == {0: 297, 1: 298, 2: 299}
    assert groups["h"].offsets[TopicPartition("t", 0)].offset == 299


def test_what_was_deleted_stays_away(log: Log) -> None:
    append(log, commit("g", 0, 1), commit("g", 1, 1), group_record("g", EMPTY))
    append(log, commit_tombstone(OffsetKey("g", TopicPartition("t", 0))))
    append(log, commit("gone", 0, 1), group_record("gone", EMPTY))
    append(
        log,
        commit_tombstone(OffsetKey("gone", TopicPartition("t", 0))),
        group_tombstone("gone"),
    )
    groups = read_groups(log)
    assert {place.partition for place in groups["g"].offsets} == {1}
    assert list(groups) == ["g"]


def test_offsets_outlive_the_record_of_their_group(log: Log) -> None:
    append(log, commit("g", 0, 1), group_record("g", EMPTY))
    append(log, group_tombstone("g"))
    group = read_groups(log)["g"]
    assert (group.state, group.protocol_type, len(group.offsets)) == (GroupState.EMPTY, None, 1)


def test_a_group_is_what_its_last_record_says(log: Log) -> None:
    append(log, group_record("g", EMPTY))
    append(log, group_record("g", STABLE))
    append(log, commit("g", 0, 1))
    group = read_groups(log)["g"]
    assert (group.state, group.generation, group.leader_id) == (GroupState.STABLE, 3, "m")
    assert group.snapshot() == STABLE
    assert group.static_member_id("one") == "m"
    assert len(group.offsets) == 1


def test_records_of_other_kinds_are_passed_over(log: Log) -> None:
    append(log, commit("g", 0, 1), StateRecord(b"\x00\x0b\x00\x01g", b"\x00\x00"))
    assert list(read_groups(log)) == ["g"]


def append_in_transaction(log: Log, producer_id: int, *records: StateRecord) -> None:
    batch = encode_batch(records, NOW_MS, ProducerIdAndEpoch(producer_id, 0))
    log.append(memoryview(batch), 0, transactional=True, numbered=False)


def end(log: Log, producer_id: int, *, is_commit: bool) -> None:
    log.append_end_marker(producer_id, 0, TransactionMarker(is_commit, coordinator_epoch=0), 0)


def test_transactions_are_committed_aborted_or_still_open(log: Log) -> None:
    append(log, *(commit("g", index, 0) for index in range(4)))
    for producer_id in (1, 2, 3):
        append_in_transaction(log, producer_id, commit("g", producer_id, 10 + producer_id))
        append_in_transaction(log, producer_id, commit("h", producer_id, 20 + producer_id))
    end(log, 1, is_commit=True)
    end(log, 2, is_commit=False)
    groups = read_groups(log)
    offsets = {place.partition: each.offset for place, each in groups["g"].offsets.items()}
    assert offsets == {0: 0, 1: 11, 2: 0, 3: 0}
    (pending,) = groups["g"].pending_offsets[3].values()
    assert (pending.offset, pending.log_offset) == (13, 8)
    assert groups["h"].unstable_partitions == {TopicPartition("t", 3)}
    end(log, 3, is_commit=True)
    assert read_groups(log)["g"].offsets[TopicPartition("t", 3)].offset == 13


def test_a_numbered_batch_of_a_transaction_counts_too(log: Log) -> None:
    """No coordinator writes one, but what is in the log is what it is."""
    batch = encode_batch([commit("g", 0, 9)], NOW_MS, ProducerIdAndEpoch(5, 0))
    seal(batch, 5, 0, 0)
    log.append(memoryview(batch), 0, transactional=True)
    assert read_groups(log)["g"].unstable_partitions == {TopicPartition("t", 0)}
    end(log, 5, is_commit=True)
    assert read_groups(log)["g"].offsets[TopicPartition("t", 0)].offset == 9


def test_a_flipped_bit_is_noticed(log: Log, tmp_path: Path) -> None:
    append(log, commit("g", 0, 1))
    path = tmp_path / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError):
        read_groups(log)


def test_reading_begins_where_the_log_begins(log: Log) -> None:
    for offset in range(100):
        append(log, commit("g", offset, offset))
    log.advance_log_start_offset(50)
    assert min(place.partition for place in read_groups(log)["g"].offsets) == 50
