"""The records of __consumer_offsets: bytes that Apache Kafka 4.3 wrote, and our own read back."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError, UnknownError
from kafka.structs import TopicPartition

from broker.coordinator.offset_records import (
    CommittedOffset,
    GroupKey,
    GroupSnapshot,
    MemberSnapshot,
    OffsetKey,
    commit_record,
    commit_tombstone,
    decode_commit,
    decode_group,
    decode_key,
    group_record,
    group_tombstone,
)
from broker.coordinator.state_records import StateRecord, decode_records, encode_batch
from pyspark_kafkalog.record.batch import check_crc, read_header
from tests.support.present import present

KEY = OffsetKey("g1", TopicPartition("t", 0))
TOPIC_ID = uuid.UUID(bytes=b"\x10<\x8f\xa4\x81\x02\x0bM\x86\xab7\x0e\xf8\x06r\xa5"[:16])
COMMITTED = CommittedOffset(5, -1, "md", 0x1A1FDE457C9, topic_id=TOPIC_ID)

# As Apache Kafka 4.3.0 wrote them.
KAFKA_COMMIT = StateRecord(
    b"\x00\x01\x00\x02g1\x00\x01t\x00\x00\x00\x00",
    b"\x00\x04\x00\x00\x00\x00\x00\x00\x00\x05\xff\xff\xff\xff\x03md\x00\x00\x01\xa1\xfd\xe4W\xc9"
    b"\x01\x00\x10<\x8f\xa4\x81\x02\x0bM\x86\xab7\x0e\xf8\x06r\xa5\x18",
)
KAFKA_EMPTY_GROUP = StateRecord(
    b"\x00\x02\x00\x02g1",
    b"\x00\x03\x00\x08consumer\x00\x00\x00\x02\xff\xff\xff\xff\x00\x00\x01\xa1\xfd\xe4W\xc0"
    b"\x00\x00\x00\x00",
)

texts = st.text(max_size=20)
ints = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
members = st.builds(
    MemberSnapshot,
    texts,
    st.none() | texts,
    texts,
    texts,
    st.integers(0, 2**31 - 1),
    ints,
    st.binary(max_size=30),
    st.binary(max_size=30),
)
groups = st.builds(
    GroupSnapshot,
    texts,
    ints,
    st.none() | texts,
    st.none() | texts,
    longs,
    st.lists(members, max_size=3).map(tuple),
)


def test_a_commit_is_written_as_kafka_writes_it() -> None:
    topic_id = uuid.UUID(bytes=present(KAFKA_COMMIT.value)[-16:])
    committed = CommittedOffset(5, -1, "md", 0x1A1FDE457C9, topic_id=topic_id)
    assert commit_record(KEY, committed) == KAFKA_COMMIT
    assert decode_key(KAFKA_COMMIT.key) == KEY
    assert decode_commit(present(KAFKA_COMMIT.value)) == committed


def test_a_group_is_written_as_kafka_writes_it() -> None:
    empty = GroupSnapshot("consumer", 2, None, None, 0x1A1FDE457C0, ())
    assert group_record("g1", empty) == KAFKA_EMPTY_GROUP
    assert decode_key(KAFKA_EMPTY_GROUP.key) == GroupKey("g1")
    assert decode_group(present(KAFKA_EMPTY_GROUP.value)) == empty


def test_tombstones_have_the_key_alone() -> None:
    assert commit_tombstone(KEY) == StateRecord(KAFKA_COMMIT.key, None)
    assert group_tombstone("g1") == StateRecord(KAFKA_EMPTY_GROUP.key, None)


@given(longs, st.integers(-1, 2**31 - 1), texts, longs, st.none() | st.uuids())
def test_commits_round_trip(
    offset: int, leader_epoch: int, metadata: str, timestamp_ms: int, topic_id: uuid.UUID | None
) -> None:
    committed = CommittedOffset(offset, leader_epoch, metadata, timestamp_ms, topic_id=topic_id)
    assert decode_commit(present(commit_record(KEY, committed).value)) == committed


def test_a_commit_with_a_retention_of_its_own_keeps_its_end() -> None:
    committed = CommittedOffset(5, -1, "md", 7, expire_timestamp_ms=99)
    assert decode_commit(present(commit_record(KEY, committed).value)) == committed


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\x00\x00" + bytes(7) + b"\x05\x00\x01m" + bytes(7) + b"\x09", (5, -1, 9)),
        (b"\x00\x02" + bytes(7) + b"\x05\x00\x01m" + bytes(7) + b"\x09", (5, -1, 9)),
        (b"\x00\x03" + bytes(7) + b"\x05\0\0\0\x04\x00\x01m" + bytes(7) + b"\x09", (5, 4, 9)),
    ],
)
def test_commits_of_older_brokers(value: bytes, expected: tuple[int, int, int]) -> None:
    committed = decode_commit(value)
    found = (committed.offset, committed.leader_epoch, committed.commit_timestamp_ms)
    assert (found, committed.metadata) == (expected, "m")


@given(groups)
def test_groups_round_trip(group: GroupSnapshot) -> None:
    assert decode_group(present(group_record("g", group).value)) == group


@given(groups, st.data())
def test_a_value_that_is_cut_off_is_corrupt(group: GroupSnapshot, data: st.DataObject) -> None:
    value = group_record("g", group).value
    end = data.draw(st.integers(0, len(present(value)) - 1))
    with pytest.raises(CorruptRecordError):
        decode_group(present(value)[:end])


def test_a_value_of_an_unknown_version_is_corrupt() -> None:
    with pytest.raises(CorruptRecordError):
        decode_commit(b"\x00\x05" + bytes(40))


def test_keys_of_other_kinds_are_passed_over() -> None:
    assert decode_key(b"\x00\x03\x00\x01g") is None


def test_a_text_that_fits_no_field_is_refused() -> None:
    with pytest.raises(UnknownError):
        group_tombstone("g" * 32768)


def test_a_batch_holds_its_records() -> None:
    records = [KAFKA_COMMIT, KAFKA_EMPTY_GROUP, commit_tombstone(KEY)]
    batch = memoryview(encode_batch(records, 1000))
    header = read_header(batch)
    check_crc(batch, header)
    assert list(decode_records(batch, header)) == records
