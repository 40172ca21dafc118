"""Control batches: the markers that end a transaction, one record in a batch of its own.

A batch with the control and transactional bits, the ended producer's id and epoch, no sequence, and
one record (Kafka's "Message Format" document, control batches, and EndTxnMarker.json):

    key     version int16 = 0, type int16: 0 abort, 1 commit
    value   version int16 = 0, coordinator epoch int32

Consumers never see the record; its offset is counted. Pure functions: any thread.
"""

import struct
from dataclasses import dataclass

from kafka.errors import CorruptRecordError

from pyspark_kafkalog.record.batch import (
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    seal,
)
from pyspark_kafkalog.record.record_spans import record_spans

_ABORT, _COMMIT = 0, 1
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
# length, attributes, timestamp delta, offset delta, key length, key, value length, value, headers:
# each number fits one zigzag byte.
_RECORD = struct.Struct(">BBBBB4sB6sB")
_RECORD_LENGTH = _RECORD.size - 1


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """How a producer's transaction ended, by the word of a coordinator of this epoch."""

    is_commit: bool
    coordinator_epoch: int


def encode_marker(
    marker: TransactionMarker, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytearray:
    """A whole batch at offset 0, to be stamped and appended."""
    record = _RECORD.pack(
        _zigzag(_RECORD_LENGTH),
        0,
        0,
        0,
        _zigzag(_KEY.size),
        _KEY.pack(0, _COMMIT if marker.is_commit else _ABORT),
        _zigzag(_VALUE.size),
        _VALUE.pack(0, marker.coordinator_epoch),
        0,
    )
    batch = bytearray(HEADER_BYTES + len(record))
    HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - LOG_OVERHEAD_BYTES,
        -1,
        MAGIC,
        0,
        TRANSACTIONAL_BIT | CONTROL_BIT,
        0,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        NO_SEQUENCE,
        1,
    )
    batch[HEADER_BYTES:] = record
    seal(batch, producer_id, producer_epoch, NO_SEQUENCE)
    return batch


def decode_marker(batch: bytes) -> TransactionMarker | None:
    """The marker in one whole control batch; None for a control record of another type.

    Raises CorruptRecordError when the record makes no sense. An empty batch, which compaction
    leaves of a marker, is None too.
    """
    header = BatchHeader(batch, 0)
    if not header.record_count:
        return None
    records = memoryview(batch)[HEADER_BYTES:]
    span = next(record_spans(records, header.record_count))
    if span.key_end - span.key_start < _KEY.size:
        return None
    _, kind = _KEY.unpack_from(records, span.key_start)
    if kind not in (_ABORT, _COMMIT):
        return None
    # The value's length fits one byte; it may grow in later versions, and so may the key.
    if span.end - span.key_end <= _VALUE.size or records[span.key_end] < _zigzag(_VALUE.size):
        raise CorruptRecordError(f"the control batch at {header.base_offset} has a short value")
    _, coordinator_epoch = _VALUE.unpack_from(records, span.key_end + 1)
    return TransactionMarker(kind == _COMMIT, coordinator_epoch)


def _zigzag(number: int) -> int:
    return number << 1
