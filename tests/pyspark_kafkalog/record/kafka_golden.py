"""Records as Apache Kafka 3.9.1's own client wrote them (MemoryRecordsBuilder), one set a line:

magic, codec, timestamp type, bytes in hexadecimal
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark_kafkalog.record.records import Record

_FILE = Path(__file__).parent / "data" / "kafka-3.9.1-records.txt"
APPEND_TIME_MS = 1_700_000_009_999
BASE_MS = 1_700_000_000_000

Row = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp, key, value."""


class Golden(NamedTuple):
    magic: int
    codec: str
    append_time: bool
    data: bytes

    @property
    def rows(self) -> list[Row]:
        """What is in each set; the offsets have gaps, as compaction leaves them."""
        contents = [
            (100, BASE_MS, b"k0", b"value-0"),
            (102, BASE_MS + 5, None, b"value-1"),
            (105, BASE_MS + 3, b"k2", None),
            (106, -1, b"", b""),
        ]
        return [
            (offset, self._timestamp(timestamp_ms), key, value)
            for offset, timestamp_ms, key, value in contents
        ]

    def _timestamp(self, timestamp_ms: int) -> int:
        if self.magic == 0:
            return -1
        return APPEND_TIME_MS if self.append_time else timestamp_ms

    def __str__(self) -> str:
        return f"{self.magic}-{self.codec}{'-append-time' if self.append_time else ''}"


def _sets() -> Iterator[Golden]:
    for line in _FILE.read_text(encoding="ascii").splitlines():
        magic, codec, timestamp_type, data = line.split()
        yield Golden(int(magic), codec, timestamp_type == "1", bytes.fromhex(data))


GOLDEN = list(_sets())


def row_of(record: Record) -> Row:
    """A record of ours, comparable."""
    key, value = record.key, record.value
    return (
        record.offset,
        record.timestamp_ms,
        None if key is None else bytes(key),
        None if value is None else bytes(value),
    )
