"""The records of `__transaction_state`, in Apache Kafka's own format.

Schemas: TransactionLogKey/Value.json of kafka-transaction-coordinator 4.3; values are flexible from
version 1 on.

    key    0     | transactional id
    value  0..1  | producer id int64, producer epoch int16, timeout int32 (ms), state int8,
                   partitions (null while empty): topic, partition ids int32;
                   last update int64 (ms), start int64 (ms);
                   from 1 on tag 0: previous producer id int64 (-1), 1: next producer id int64 (-1),
                   2: the client's transaction version int16 (0)

Written is version 1, tags only where they are not the default. The last producer epoch is not
written down, as in Apache Kafka: who asks again after the coordinator's restart is fenced. Pure
functions: any thread.
"""

import struct
from collections.abc import Iterable

from kafka.errors import CorruptRecordError
from kafka.structs import TopicPartition

from broker.coordinator.state_records import (
    INT16,
    INT64,
    FieldReader,
    StateRecord,
    string,
    unsigned_varint,
)
from broker.coordinator.transaction_metadata import (
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)

_KEY_KIND = 0
_VERSION = 1
_FIRST_FLEXIBLE_VERSION = 1
_HEAD = struct.Struct(">hqhib")
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG = 0, 1, 2
_NO_PARTITIONS = unsigned_varint(0)


def transaction_record(transactional_id: str, transaction: TransactionMetadata) -> StateRecord:
    """Raises UnknownError for an id that is too long for its field."""
    return StateRecord(_key(transactional_id), _value(transaction))


def transaction_tombstone(transactional_id: str) -> StateRecord:
    return StateRecord(_key(transactional_id), None)


def _key(transactional_id: str) -> bytes:
    return INT16.pack(_KEY_KIND) + string(transactional_id)


def _value(transaction: TransactionMetadata) -> bytes:
    head = _HEAD.pack(
        _VERSION,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.timeout_ms,
        transaction.state.number,
    )
    times = INT64.pack(transaction.last_update_ms) + INT64.pack(transaction.start_ms)
    return b"".join((head, *_partitions(transaction), times, *_tags(transaction)))


def _partitions(transaction: TransactionMetadata) -> Iterable[bytes]:
    if transaction.state is TransactionState.EMPTY:
        yield _NO_PARTITIONS
        return
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    yield unsigned_varint(len(topics) + 1)
    for topic, partitions in topics.items():
        name = topic.encode()
        yield unsigned_varint(len(name) + 1) + name
        yield unsigned_varint(len(partitions) + 1)
        yield struct.pack(f">{len(partitions)}i", *partitions)
        yield unsigned_varint(0)


def _tags(transaction: TransactionMetadata) -> list[bytes]:
    tags = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags.append(_tag(_PREVIOUS_ID_TAG, INT64.pack(transaction.previous_producer_id)))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags.append(_tag(_NEXT_ID_TAG, INT64.pack(transaction.next_producer_id)))
    if transaction.client_version:
        tags.append(_tag(_CLIENT_VERSION_TAG, INT16.pack(transaction.client_version)))
    return [unsigned_varint(len(tags)), *tags]


def _tag(number: int, data: bytes) -> bytes:
    return unsigned_varint(number) + unsigned_varint(len(data)) + data


# Decoding. Raises CorruptRecordError.


def decode_key(key: bytes) -> str | None:
    """The transactional id; None for a key of another kind."""
    reader = FieldReader(key)
    return reader.string() if reader.int16() == _KEY_KIND else None


def decode_transaction(value: bytes) -> TransactionMetadata:
    reader = FieldReader(value)
    reader.version = reader.int16()
    if not 0 <= reader.version <= _VERSION:
        raise CorruptRecordError(f"a value of the unknown version {reader.version}")
    reader.flexible = reader.version >= _FIRST_FLEXIBLE_VERSION
    producer_id, producer_epoch = reader.int64(), reader.int16()
    timeout_ms = reader.int32()
    number = reader.int8()
    state = next((each for each in TransactionState if each.number == number), None)
    if state is None:
        raise CorruptRecordError(f"a transaction in the unknown state {number}")
    partitions = []
    for _ in range(reader.array_length()):
        topic = reader.string()
        partitions += [TopicPartition(topic, reader.int32()) for _ in range(reader.array_length())]
        reader.tags()
    last_update_ms, start_ms = reader.int64(), reader.int64()
    tags = dict(reader.tags())
    return TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=frozenset(partitions),
        last_update_ms=last_update_ms,
        start_ms=start_ms,
        previous_producer_id=_tagged(tags, _PREVIOUS_ID_TAG, INT64, NO_PRODUCER_ID),
        next_producer_id=_tagged(tags, _NEXT_ID_TAG, INT64, NO_PRODUCER_ID),
        client_version=_tagged(tags, _CLIENT_VERSION_TAG, INT16, 0),
    )


def _tagged(tags: dict[int, bytes], tag: int, field: struct.Struct, default: int) -> int:
    data = tags.get(tag)
    if data is None:
        return default
    if len(data) != field.size:
        raise CorruptRecordError(f"tag {tag} has {len(data)} bytes")
    return int(field.unpack(data)[0])
