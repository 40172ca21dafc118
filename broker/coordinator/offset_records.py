"""The records of `__consumer_offsets`, in Apache Kafka's own format.

Keys and values begin with an int16: the kind of key, the version of the value. In keys, and in
values before version 4, strings have an int16 length, bytes an int32 one (-1 = null); in values of
version 4 lengths are unsigned varints plus one, and tagged fields follow. No value: a tombstone.
(Schemas: OffsetCommitKey/Value.json, GroupMetadataKey/Value.json of kafka-group-coordinator 4.3.)

    key    0 or 1 | group, topic, partition int32                     a committed offset
    value  0..4   | offset int64, leader epoch int32 (3+), metadata, commit timestamp int64,
                    expire timestamp int64 (1 only), tag 0: topic id (4+)
    key    2      | group                                             a group
    value  0..4   | protocol type, generation int32, protocol?, leader?, state timestamp int64 (2+),
                    members: id, instance id? (3+), client id, client host,
                    rebalance timeout int32 (1+), session timeout int32, subscription, assignment

Written are a commit in version 4 (in 1 where it expires at a time of its own) and a group in 3, as
by Apache Kafka 4.3. Keys of other kinds (those of KIP-848) are passed over. Pure functions: any
thread.
"""

import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kafka.errors import CorruptRecordError, UnknownError
from kafka.structs import TopicPartition

from pyspark_kafkalog.record.batch import BatchHeader
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.record.records import Record, build_batch, read_records

NO_TIMESTAMP = -1
NO_EPOCH = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET_KEYS = (0, 1)
_OFFSET_KEY, _GROUP_KEY = 1, 2
_LONGEST_STRING_BYTES = 2**15 - 1
_COMMIT_VERSION, _EXPIRING_COMMIT_VERSION, _GROUP_VERSION = 4, 1, 3
_FIRST_FLEXIBLE_VERSION = 4
_LAST_VERSION = 4
_TOPIC_ID_TAG = 0
# Batches that others have written here may be compressed.
_MOST_PLAIN_BYTES = 256 << 20


class OffsetRecord(NamedTuple):
    """What is to be appended; no value deletes what the key had."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Up to where a group has read a partition; `expire_timestamp_ms` only where the client set a
    retention of its own."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: uuid.UUID | None = None


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


def commit_record(key: OffsetKey, committed: CommittedOffset) -> OffsetRecord:
    expires = committed.expire_timestamp_ms != NO_TIMESTAMP
    encode = _expiring_commit_value if expires else _commit_value
    return OffsetRecord(_offset_key(key), encode(committed))


def commit_tombstone(key: OffsetKey) -> OffsetRecord:
    return OffsetRecord(_offset_key(key), None)


def group_record(group_id: str, group: GroupSnapshot) -> OffsetRecord:
    parts = [
        _INT16.pack(_GROUP_VERSION),
        _string(group.protocol_type),
        _INT32.pack(group.generation),
        _nullable_string(group.protocol_name),
        _nullable_string(group.leader_id),
        _INT64.pack(group.state_timestamp_ms),
        _INT32.pack(len(group.members)),
    ]
    for member in group.members:
        parts += [
            _string(member.member_id),
            _nullable_string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        ]
    return OffsetRecord(_group_key(group_id), b"".join(parts))


def group_tombstone(group_id: str) -> OffsetRecord:
    return OffsetRecord(_group_key(group_id), None)


def encode_batch(records: Sequence[OffsetRecord], timestamp_ms: int) -> bytearray:
    """One uncompressed batch at offset 0, to be stamped and appended."""
    return build_batch(
        (Record(0, timestamp_ms, record.key, record.value) for record in records), Codec.NONE
    )


def _offset_key(key: OffsetKey) -> bytes:
    topic, partition = key.topic_partition
    return b"".join(
        (_INT16.pack(_OFFSET_KEY), _string(key.group_id), _string(topic), _INT32.pack(partition))
    )


def _group_key(group_id: str) -> bytes:
    return _INT16.pack(_GROUP_KEY) + _string(group_id)


def _commit_value(committed: CommittedOffset) -> bytes:
    metadata = committed.metadata.encode()
    tags = b"\x00"
    if committed.topic_id is not None:
        topic_id = committed.topic_id.bytes
        tags = bytes((1, _TOPIC_ID_TAG, len(topic_id))) + topic_id
    return b"".join(
        (
            _INT16.pack(_COMMIT_VERSION),
            _INT64.pack(committed.offset),
            _INT32.pack(committed.leader_epoch),
            _varint(len(metadata) + 1),
            metadata,
            _INT64.pack(committed.commit_timestamp_ms),
            tags,
        )
    )


def _expiring_commit_value(committed: CommittedOffset) -> bytes:
    return b"".join(
        (
            _INT16.pack(_EXPIRING_COMMIT_VERSION),
            _INT64.pack(committed.offset),
            _string(committed.metadata),
            _INT64.pack(committed.commit_timestamp_ms),
            _INT64.pack(committed.expire_timestamp_ms),
        )
    )


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > _LONGEST_STRING_BYTES:
        raise UnknownError(f"a text of {len(data)} bytes is too long to be written down")
    return _INT16.pack(len(data)) + data


def _nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _string(text)


def _bytes(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


# Decoding. Raises CorruptRecordError.


def decode_records(batch: memoryview, header: BatchHeader) -> Iterator[OffsetRecord]:
    """The records of one whole batch; what has no key is none of ours."""
    for record in read_records(batch, header, _MOST_PLAIN_BYTES):
        if record.key is not None:
            yield OffsetRecord(
                bytes(record.key), None if record.value is None else bytes(record.value)
            )


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """None for a key of another kind."""
    reader = _Reader(key)
    kind = reader.int16()
    if kind in _OFFSET_KEYS:
        return OffsetKey(reader.string(), TopicPartition(reader.string(), reader.int32()))
    if kind == _GROUP_KEY:
        return GroupKey(reader.string())
    return None


def decode_commit(value: bytes) -> CommittedOffset:
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
        offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms, topic_id
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


def _member(reader: "_Reader", version: int) -> MemberSnapshot:
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


def _value_reader(value: bytes) -> "_Reader":
    reader = _Reader(value)
    reader.version = reader.int16()
    if not 0 <= reader.version <= _LAST_VERSION:
        raise CorruptRecordError(f"a value of the unknown version {reader.version}")
    reader.flexible = reader.version >= _FIRST_FLEXIBLE_VERSION
    return reader


class _Reader:
    """Reads fields one after the other; what would lie behind the end is a CorruptRecordError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.version = 0
        self.flexible = False

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self._take(8))[0])

    def string(self) -> str:
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        length = self._varint() - 1 if self.flexible else self.int16()
        if length < 0:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptRecordError(f"a text is no UTF-8: {error}") from None

    def data(self) -> bytes:
        length = self._varint() - 1 if self.flexible else self.int32()
        return self._take(length) if length > 0 else b""

    def array_length(self) -> int:
        return self._varint() - 1 if self.flexible else self.int32()

    def tags(self) -> Iterable[tuple[int, bytes]]:
        """Tagged fields, which only flexible versions have."""
        if not self.flexible:
            return ()
        return [(self._varint(), self._take(self._varint())) for _ in range(self._varint())]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise CorruptRecordError("a length of more than 32 bits")

    def _take(self, size_bytes: int) -> bytes:
        start, end = self._position, self._position + size_bytes
        if end > len(self._data):
            raise CorruptRecordError(f"{len(self._data)} bytes end before {end}")
        self._position = end
        return self._data[start:end]
