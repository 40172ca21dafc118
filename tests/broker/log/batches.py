"""Real record batches for tests of the log, made by kafka-python; and a log read back."""

from collections.abc import Sequence

from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from broker.log.files import FileSlice
from broker.log.log import Log

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
NOW_MS = 1_700_000_000_000


def batch(
    values: Sequence[bytes | None] = (b"a",),
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamp_ms: int = NOW_MS,
    step_ms: int = 0,
    codec: int = 0,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
) -> memoryview:
    """One writable batch; `producer` is (id, epoch, first sequence)."""
    idempotent = {}
    if producer is not None:
        names = ("producer_id", "producer_epoch", "base_sequence")
        idempotent = dict(zip(names, producer, strict=True))
    builder = MemoryRecordsBuilder(
        magic=2,
        compression_type=codec,
        batch_size=1 << 30,
        transactional=transactional,
        **idempotent,
    )
    for number, value in enumerate(values):
        key = None if keys is None else keys[number]
        builder.append(timestamp=timestamp_ms + number * step_ms, key=key, value=value)
    builder.close()
    return memoryview(bytearray(builder.buffer()))


def together(*batches: memoryview) -> memoryview:
    return memoryview(bytearray(b"".join(batches)))


def bytes_of(found: FileSlice | None) -> bytes:
    """What a read of a log found, read from its file."""
    return b"" if found is None else found.read()


def contents(log: Log) -> dict[int, bytes]:
    """Offset to value of everything readable, fetched as a consumer does, batch by batch."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = bytes_of(log.read(offset, 2000, log.log_end_offset))
        assert data, f"nothing to read at {offset} below {log.log_end_offset}"
        records = values_in(data)
        found |= {each: value for each, value in records.items() if each >= offset}
        offset = max(records) + 1
    return found


def values_in(data: bytes) -> dict[int, bytes]:
    """Offset to value in the whole batches of `data`, checksums checked."""
    found: dict[int, bytes] = {}
    records = MemoryRecords(data)
    while (each := records.next_batch()) is not None:
        assert each.validate_crc()
        found |= {record.offset: record.value for record in each}
    return found
