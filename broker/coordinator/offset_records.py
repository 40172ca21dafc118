"""The records of `__consumer_offsets`, in Apache Kafka's own format.

Schemas: OffsetCommitKey/Value.json, GroupMetadataKey/Value.json of kafka-group-coordinator 4.3;
values are flexible from version 4 on.

    key    0 or 1 | group, topic, partition int32                     a committed offset
    value  0..4   | offset int64, leader epoch int32 (3+), metadata, commit timestamp int64,
                    expire timestamp int64 (1 only), tag 0: topic id (4+)
    key    2      | group                                             a group
    value  0..4   | protocol type, generation int32, protocol?, leader?, state timestamp int64 (2+),
                    members: id, instance id? (3+), client id, client host,
                    rebalance timeout int32 (1+), session timeout int32, subscription, assignment

Written are a commit in version 4 (in 1 where it expires at a time of its own) and a group in 3, as
by Apache Kafka 4.3. Keys of other kinds (KIP-848's are in `consumer_group_records`) are passed
over. Pure functions: any thread.
"""

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from kafka.errors import CorruptRecordError
from kafka.structs import TopicPartition

from broker.coordinator.state_records import (
    INT16,
    INT32,
    INT64,
    NO_TAGS,
    NO_TIMESTAMP,
    FieldReader,
    StateRecord,
    nullable_string,
    sized_bytes,
    string,
    unsigned_varint,
)

NO_EPOCH = -1
NO_LOG_OFFSET = -1

_OFFSET_KEYS = (0, 1)
_OFFSET_KEY, _GROUP_KEY = 1, 2
_COMMIT_VERSION, _EXPIRING_COMMIT_VERSION, _GROUP_VERSION = 4, 1, 3
_FIRST_FLEXIBLE_VERSION = 4
_LAST_VERSION = 4
_TOPIC_ID_TAG = 0


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Up to where a group has read a partition; `expire_timestamp_ms` only where the client set a
    retention of its own. `log_offset`: where the batch that holds its record begins in the log (not
    a part of the record)."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: uuid.UUID | None = None
    log_offset: int = NO_LOG_OFFSET


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A member as it is written down."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group as it is written down: with its members it was stable, without them empty."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader_id: str | None
    state_timestamp_ms: int
    members: tuple[MemberSnapshot, ...]


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group_id: str
    topic_partition: TopicPartition


class GroupKey(NamedTuple):
    """The key of a group."""

    group_id: str


# Encoding. Raises UnknownError for a text that is too long for its field.


def commit_record(key: OffsetKey, committed: CommittedOffset) -> StateRecord:
    expires = committed.expire_timestamp_ms != NO_TIMESTAMP
    encode = _expiring_commit_value if expires else _commit_value
    return StateRecord(_offset_key(key), encode(committed))


def commit_tombstone(key: OffsetKey) -> StateRecord:
    return StateRecord(_offset_key(key), None)


def group_record(group_id: str, group: GroupSnapshot) -> StateRecord:
    parts = [
        INT16.pack(_GROUP_VERSION),
        string(group.protocol_type),
        INT32.pack(group.generation),
        nullable_string(group.protocol_name),
        nullable_string(group.leader_id),
        INT64.pack(group.state_timestamp_ms),
        INT32.pack(len(group.members)),
    ]
    for member in group.members:
        parts += [
            string(member.member_id),
            nullable_string(member.instance_id),
            string(member.client_id),
            string(member.client_host),
            INT32.pack(member.rebalance_timeout_ms),
            INT32.pack(member.session_timeout_ms),
            sized_bytes(member.subscription),
            sized_bytes(member.assignment),
        ]
    return StateRecord(_group_key(group_id), b"".join(parts))


def group_tombstone(group_id: str) -> StateRecord:
    return StateRecord(_group_key(group_id), None)


def _offset_key(key: OffsetKey) -> bytes:
    topic, partition = key.topic_partition
    return b"".join(
        (INT16.pack(_OFFSET_KEY), string(key.group_id), string(topic), INT32.pack(partition))
    )


def _group_key(group_id: str) -> bytes:
    return INT16.pack(_GROUP_KEY) + string(group_id)


def _commit_value(committed: CommittedOffset) -> bytes:
    metadata = committed.metadata.encode()
    tags = NO_TAGS
    if committed.topic_id is not None:
        topic_id = committed.topic_id.bytes
        tags = bytes((1, _TOPIC_ID_TAG, len(topic_id))) + topic_id
    return b"".join(
        (
            INT16.pack(_COMMIT_VERSION),
            INT64.pack(committed.offset),
            INT32.pack(committed.leader_epoch),
            unsigned_varint(len(metadata) + 1),
            metadata,
            INT64.pack(committed.commit_timestamp_ms),
            tags,
        )
    )


def _expiring_commit_value(committed: CommittedOffset) -> bytes:
    return b"".join(
        (
            INT16.pack(_EXPIRING_COMMIT_VERSION),
            INT64.pack(committed.offset),
            string(committed.metadata),
            INT64.pack(committed.commit_timestamp_ms),
            INT64.pack(committed.expire_timestamp_ms),
        )
    )


# Decoding. Raises CorruptRecordError.


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """None for a key of another kind."""
    reader = FieldReader(key)
    kind = reader.int16()
    if kind in _OFFSET_KEYS:
        return OffsetKey(reader.string(), TopicPartition(reader.string(), reader.int32()))
    if kind == _GROUP_KEY:
        return GroupKey(reader.string())
    return None


def decode_commit(value: bytes, log_offset: int = NO_LOG_OFFSET) -> CommittedOffset:
    reader = _value_reader(value)
    version = reader.version
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_EPOCH
    metadata = reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == 1 else NO_TIMESTAMP
    topic_id = None
    for tag, data in reader.tags():
        if tag == _TOPIC_ID_TAG and len(data) == 16:
            topic_id = uuid.UUID(bytes=data)
    return CommittedOffset(
        offset,
        leader_epoch,
        metadata,
        commit_timestamp_ms,
        expire_timestamp_ms,
        topic_id,
        log_offset,
    )


def decode_group(value: bytes) -> GroupSnapshot:
    reader = _value_reader(value)
    version = reader.version
    protocol_type = reader.string()
    generation = reader.int32()
    protocol_name = reader.nullable_string()
    leader_id = reader.nullable_string()
    state_timestamp_ms = reader.int64() if version >= 2 else NO_TIMESTAMP
    members = tuple(_member(reader, version) for _ in range(reader.array_length()))
    return GroupSnapshot(
        protocol_type, generation, protocol_name, leader_id, state_timestamp_ms, members
    )


def _member(reader: FieldReader, version: int) -> MemberSnapshot:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription, assignment = reader.data(), reader.data()
    for _ in reader.tags():
        pass
    return MemberSnapshot(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def _value_reader(value: bytes) -> FieldReader:
    reader = FieldReader(value)
    reader.version = reader.int16()
    if not 0 <= reader.version <= _LAST_VERSION:
        raise CorruptRecordError(f"a value of the unknown version {reader.version}")
    reader.flexible = reader.version >= _FIRST_FLEXIBLE_VERSION
    return reader
