"""A digest of a task's rows: equal for equal rows in the same order, however they are batched.

Each column's bytes, lengths and nulls go through two checksums of different polynomials (CRC-32C
and CRC-32: 64 bits, at some GB/s). Made to tell a replayed task from another one, not against
forgery. One task, one thread.
"""

import zlib
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.record.crc import crc32c

_NULL_LENGTH = -1
_NULL_NUMBER = -(2**63)
_DIGEST_BYTES = 8


class RowDigest:
    """Takes batches of one schema in turn; `text` at the end. Of rows for another topic, where no
    column says the topic, it is another one."""

    def __init__(self, topic: str | None = None) -> None:
        self._topic = topic
        self._rows = 0
        self._checksums: dict[str, tuple[int, int]] = {}

    def update(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._column(name, column)

    def text(self) -> str:
        """16 hexadecimal digits."""
        state = repr((self._topic, self._rows, sorted(self._checksums.items())))
        return blake2b(state.encode(), digest_size=_DIGEST_BYTES).hexdigest()

    def _column(self, name: str, column: pa.Array) -> None:
        if _has_bytes(column.type):
            self._add(f"{name} lengths", _numbers(pc.binary_length(column), _NULL_LENGTH))
            self._add(f"{name} bytes", _bytes(column))
        elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            self._add(f"{name} lengths", _numbers(pc.list_value_length(column), _NULL_LENGTH))
            self._column(f"{name}[]", column.flatten())
        elif pa.types.is_struct(column.type):
            fields = [column.type.field(number).name for number in range(column.type.num_fields)]
            for field, child in zip(fields, column.flatten(), strict=True):
                self._column(f"{name}.{field}", child)
        else:
            self._add(name, _numbers(column, _NULL_NUMBER))

    def _add(self, name: str, data: memoryview) -> None:
        first, second = self._checksums.get(name, (0, 0))
        self._checksums[name] = crc32c(data, first), zlib.crc32(data, second)


def _has_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
    )


def _numbers(column: pa.Array, null: int) -> memoryview:
    """The column as 64-bit integers, nulls as `null`."""
    numbers = column.cast(pa.int64())
    if numbers.null_count:
        numbers = numbers.fill_null(null)
    start = numbers.offset * 8
    return memoryview(numbers.buffers()[1])[start : start + len(numbers) * 8]


def _bytes(column: pa.Array) -> memoryview:
    """The bytes of all values, one after the other."""
    kind = column.type
    is_large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return memoryview(b"")
    bounds = memoryview(offsets).cast("q" if is_large else "i")
    return memoryview(data)[bounds[column.offset] : bounds[column.offset + len(column)]]
