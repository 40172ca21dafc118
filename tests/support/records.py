"""Record batches for tests, made by kafka-python: code that is not ours."""

from collections.abc import Sequence

from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

# The codes that a batch's attributes carry.
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
NOW_MS = 1_700_000_000_000

Row = tuple[bytes | None, bytes | None]


def batch_of(
    rows: Sequence[Row] | int,
    *,
    timestamp_ms: int = NOW_MS,
    magic: int = 2,
    codec: str = "none",
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
) -> bytes:
    """One batch; `rows` is (key, value) pairs or how many of them; timestamps count up by 1 ms.

    `producer`: (producer id, epoch, base sequence) of an idempotent producer.
    """
    if isinstance(rows, int):
        rows = [(b"key", b"value-%d" % number) for number in range(rows)]
    builder = MemoryRecordsBuilder(magic, CODECS[codec], 1 << 30)
    if producer is not None:
        builder.set_producer_state(*producer, is_transactional=transactional)
    for number, (key, value) in enumerate(rows):
        assert builder.append(timestamp_ms + number, key, value) is not None
    builder.close()
    return bytes(builder.buffer())


def whole(records: object) -> bytes:
    """All of what a fetch has found, which is bytes of some kind."""
    return bytes(memoryview(records))  # type: ignore[arg-type]


def values_of(records: object) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record in whole batches."""
    if records is None:
        return []
    memory_records = MemoryRecords(whole(records))
    found = []
    while (batch := memory_records.next_batch()) is not None:
        found += [(record.offset, record.value) for record in batch]
    return found
