"""Records of groups of the consumer protocol (KIP-848) in `__consumer_offsets`, in Kafka's form.

Schemas: ConsumerGroup*Key/Value.json of kafka-group-coordinator 4.3. Keys are not flexible, values
are (in version 0, all that there is); keys 5, 7 and 8 end in a member's id, 16 in the expression.

    3   group, epoch       epoch int32 | tag 0: hash of the subscribed topics int64
    4   partition metadata gone since Kafka 4.1; only ever deleted here
    5   member             instance id?, rack id?, client id, client host, topic names,
                           expression?, rebalance timeout int32, assignor? | tag 0: classic member
    6   target, epoch      epoch int32 | tag 0: timestamp int64
    7   target of a member topics: id, partitions int32
    8   current of a member epoch, previous epoch int32, state int8, assigned, to be revoked
                           (topics: id, partitions int32 | tag 0: epochs of assignment int32)
    16  expression         topic names, version int64, timestamp int64

What a record says is an Update: state is made of updates alone, as they are decided and as they are
read back. Pure functions: any thread.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

from kafka.errors import CorruptRecordError, UnknownError

from broker.coordinator.state_records import (
    INT16,
    INT32,
    INT64,
    NO_TAGS,
    FieldReader,
    StateRecord,
    string,
    unsigned_varint,
)

_VERSION = 0
_LONGEST_STRING_BYTES = 2**15 - 1
_NULL = b"\x00"
_FIRST_TAG = 0


class Kind(IntEnum):
    """What an update is about: the number of its key."""

    GROUP = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET = 6
    TARGET_MEMBER = 7
    CURRENT = 8
    REGEX = 16


_NAMED = frozenset((Kind.MEMBER, Kind.TARGET_MEMBER, Kind.CURRENT, Kind.REGEX))


class TopicIdPartition(NamedTuple):
    """A partition, by its topic's id."""

    topic_id: uuid.UUID
    partition: int


Partitions = frozenset[TopicIdPartition]
# Each partition with the epoch in which the member was given it.
OwnedPartitions = Mapping[TopicIdPartition, int]


class MemberState(IntEnum):
    """How far a member is on its way to its target."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """Changes with the members, what they subscribe to, and the topics themselves."""

    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """What only a member of the classic protocol has: protocols by name and metadata."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member as it describes itself; no expression is an empty one."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """The group's epoch for which the target was computed, and when."""

    epoch: int
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """What a member may own now (`assigned`) and has still to give up (`revoking`)."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: OwnedPartitions = field(default_factory=dict)
    revoking: OwnedPartitions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that matched an expression, at a time and version of the cluster's metadata."""

    topics: frozenset[str]
    version: int = 0
    timestamp_ms: int = 0


class Update(NamedTuple):
    """One record's meaning; no value deletes. `name`: a member's id, or an expression."""

    kind: Kind
    group_id: str
    name: str
    value: Any


# Encoding. Raises UnknownError for a text that is too long for its field.


def encode(update: Update) -> StateRecord:
    key = INT16.pack(update.kind) + string(update.group_id)
    if update.kind in _NAMED:
        key += string(update.name)
    if update.value is None:
        return StateRecord(key, None)
    return StateRecord(key, INT16.pack(_VERSION) + _ENCODERS[update.kind](update.value))


def _encode_group(value: GroupEpoch) -> bytes:
    return INT32.pack(value.epoch) + _tag(
        INT64.pack(value.metadata_hash), bool(value.metadata_hash)
    )


def _encode_member(value: Subscription) -> bytes:
    classic = _NULL  # written out, as Kafka does
    if value.classic is not None:
        classic = b"".join(
            (
                b"\x01",  # the structure is there
                INT32.pack(value.classic.session_timeout_ms),
                _array(_encode_protocol(*each) for each in value.classic.protocols),
                NO_TAGS,
            )
        )
    return b"".join(
        (
            _nullable_text(value.instance_id),
            _nullable_text(value.rack_id),
            _text(value.client_id),
            _text(value.client_host),
            _array(_text(topic) for topic in sorted(value.topics)),
            _text(value.regex),
            INT32.pack(value.rebalance_timeout_ms),
            _nullable_text(value.assignor),
            _tag(classic, True),
        )
    )


def _encode_protocol(name: str, metadata: bytes) -> bytes:
    return _text(name) + unsigned_varint(len(metadata) + 1) + metadata + NO_TAGS


def _encode_target(value: TargetEpoch) -> bytes:
    return INT32.pack(value.epoch) + _tag(INT64.pack(value.timestamp_ms), bool(value.timestamp_ms))


def _encode_target_member(value: Partitions) -> bytes:
    topics = (
        topic_id.bytes + _int32s(sorted(parts)) + NO_TAGS
        for topic_id, parts in by_topic(value).items()
    )
    return _array(topics) + NO_TAGS


def _encode_current(value: CurrentAssignment) -> bytes:
    return b"".join(
        (
            INT32.pack(value.epoch),
            INT32.pack(value.previous_epoch),
            bytes((value.state,)),
            _encode_owned(value.assigned),
            _encode_owned(value.revoking),
            NO_TAGS,
        )
    )


def _encode_owned(owned: OwnedPartitions) -> bytes:
    topics = []
    for topic_id, parts in by_topic(owned).items():
        parts.sort()
        epochs = _int32s(owned[TopicIdPartition(topic_id, part)] for part in parts)
        topics.append(topic_id.bytes + _int32s(parts) + _tag(epochs, True))
    return _array(topics)


def _encode_regex(value: ResolvedRegex) -> bytes:
    topics = _array(_text(topic) for topic in sorted(value.topics))
    return topics + INT64.pack(value.version) + INT64.pack(value.timestamp_ms) + NO_TAGS


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[uuid.UUID, list[int]]:
    """The partitions' numbers for each topic."""
    topics: dict[uuid.UUID, list[int]] = {}
    for topic_id, partition in partitions:
        topics.setdefault(topic_id, []).append(partition)
    return topics


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > _LONGEST_STRING_BYTES:
        raise UnknownError(f"a text of {len(data)} bytes is too long to be written down")
    return unsigned_varint(len(data) + 1) + data


def _nullable_text(text: str | None) -> bytes:
    return _NULL if text is None else _text(text)


def _array(items: Iterable[bytes]) -> bytes:
    encoded = list(items)
    return unsigned_varint(len(encoded) + 1) + b"".join(encoded)


def _int32s(numbers: Iterable[int]) -> bytes:
    return _array(INT32.pack(number) for number in numbers)


def _tag(data: bytes, is_there: bool) -> bytes:
    """The one tagged field that a structure may have."""
    if not is_there:
        return NO_TAGS
    return bytes((1, _FIRST_TAG)) + unsigned_varint(len(data)) + data


# Decoding. Raises CorruptRecordError.


def decode(key: bytes, value: bytes) -> Update | None:
    """None for a key of another kind."""
    reader = FieldReader(key)
    try:
        kind = Kind(reader.int16())
    except ValueError:
        return None
    group_id = reader.string()
    name = reader.string() if kind in _NAMED else ""
    values = FieldReader(value)
    version = values.int16()
    if version != _VERSION:
        raise CorruptRecordError(f"a value of the unknown version {version}")
    values.flexible = True
    return Update(kind, group_id, name, _DECODERS[kind](values))


def _decode_group(reader: FieldReader) -> GroupEpoch:
    epoch = reader.int32()
    return GroupEpoch(epoch, _tagged_int64(reader))


def _decode_partition_metadata(reader: FieldReader) -> bool:
    return True


def _decode_member(reader: FieldReader) -> Subscription:
    subscription = Subscription(
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        topics=frozenset(reader.string() for _ in range(reader.array_length())),
        regex=reader.string(),
        rebalance_timeout_ms=reader.int32(),
        assignor=reader.nullable_string(),
    )
    classic = None
    for tag, data in reader.tags():
        if tag == _FIRST_TAG and data[:1] == b"\x01":
            classic = _decode_classic(data[1:])
    return replace(subscription, classic=classic)


def _decode_classic(data: bytes) -> ClassicMember:
    reader = FieldReader(data)
    reader.flexible = True
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in range(reader.array_length()):
        protocols.append((reader.string(), reader.data()))
        reader.tags()
    return ClassicMember(session_timeout_ms, tuple(protocols))


def _decode_target(reader: FieldReader) -> TargetEpoch:
    epoch = reader.int32()
    return TargetEpoch(epoch, _tagged_int64(reader))


def _decode_target_member(reader: FieldReader) -> Partitions:
    partitions = []
    for _ in range(reader.array_length()):
        topic_id = reader.uuid()
        partitions += [
            TopicIdPartition(topic_id, reader.int32()) for _ in range(reader.array_length())
        ]
        reader.tags()
    reader.tags()
    return frozenset(partitions)


def _decode_current(reader: FieldReader) -> CurrentAssignment:
    epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
    try:
        member_state = MemberState(state)
    except ValueError:
        raise CorruptRecordError(f"a member in the unknown state {state}") from None
    assigned, revoking = _decode_owned(reader), _decode_owned(reader)
    reader.tags()
    return CurrentAssignment(epoch, previous_epoch, member_state, assigned, revoking)


def _decode_owned(reader: FieldReader) -> OwnedPartitions:
    owned: dict[TopicIdPartition, int] = {}
    for _ in range(reader.array_length()):
        topic_id = reader.uuid()
        parts = [reader.int32() for _ in range(reader.array_length())]
        # Before Kafka 4.3 there were no epochs: any member's epoch is a later one.
        epochs = [0] * len(parts)
        for tag, data in reader.tags():
            if tag == _FIRST_TAG:
                epochs = _decode_int32s(data, epochs)
        owned |= {
            TopicIdPartition(topic_id, part): epoch
            for part, epoch in zip(parts, epochs, strict=True)
        }
    return owned


def _decode_int32s(data: bytes, instead: list[int]) -> list[int]:
    reader = FieldReader(data)
    reader.flexible = True
    numbers = [reader.int32() for _ in range(reader.array_length())]
    return numbers if len(numbers) == len(instead) else instead


def _decode_regex(reader: FieldReader) -> ResolvedRegex:
    topics = frozenset(reader.string() for _ in range(reader.array_length()))
    version, timestamp_ms = reader.int64(), reader.int64()
    reader.tags()
    return ResolvedRegex(topics, version, timestamp_ms)


def _tagged_int64(reader: FieldReader) -> int:
    number = 0
    for tag, data in reader.tags():
        if tag == _FIRST_TAG and len(data) == INT64.size:
            (number,) = INT64.unpack(data)
    return number


_ENCODERS: Mapping[Kind, Callable[[Any], bytes]] = {
    Kind.GROUP: _encode_group,
    Kind.MEMBER: _encode_member,
    Kind.TARGET: _encode_target,
    Kind.TARGET_MEMBER: _encode_target_member,
    Kind.CURRENT: _encode_current,
    Kind.REGEX: _encode_regex,
}
_DECODERS: Mapping[Kind, Callable[[FieldReader], Any]] = {
    Kind.GROUP: _decode_group,
    Kind.PARTITION_METADATA: _decode_partition_metadata,
    Kind.MEMBER: _decode_member,
    Kind.TARGET: _decode_target,
    Kind.TARGET_MEMBER: _decode_target_member,
    Kind.CURRENT: _decode_current,
    Kind.REGEX: _decode_regex,
}
