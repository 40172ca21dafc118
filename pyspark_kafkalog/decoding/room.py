"""How much room values take when they are columns: what hostile ones could make of a few bytes.

An item of an array takes a byte or two where it is written, and as an empty struct of 300 fields
2,700 bytes in Arrow. So what the items of one value take is bounded, by value_room(); and where
many small values could come to much together, a batch of them is decoded in slices. Counted is what
items take when they are empty; what is in them is bounded by the value's bytes.

Pure functions.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

MOST_BYTES = 64 << 20
"""Of columns, that the items of one value may take, and those of a slice of values."""

BYTES_FOR_A_BYTE = 16
"""What large values may take for each of their bytes, beyond MOST_BYTES."""

_VALIDITY_BYTES = 1
_OFFSET_BYTES = 4
_NUMBER_BYTES = 8
_DECIMAL_BYTES = 16


def value_room(size_bytes: int) -> int:
    """How many bytes the items of a value of this size may take."""
    return max(MOST_BYTES, BYTES_FOR_A_BYTE * size_bytes)


def empty_bytes(data_type: pa.DataType) -> int:
    """What a null, or a value without items, takes in a column that is being filled."""
    if pa.types.is_struct(data_type):
        return _VALIDITY_BYTES + sum(empty_bytes(field.type) for field in data_type)
    if pa.types.is_decimal(data_type):
        return _VALIDITY_BYTES + _OFFSET_BYTES + _DECIMAL_BYTES
    if pa.types.is_nested(data_type) or data_type in (pa.string(), pa.binary()):
        return _VALIDITY_BYTES + _OFFSET_BYTES
    return _VALIDITY_BYTES + _NUMBER_BYTES


def item_bytes(data_type: pa.DataType) -> int:
    """What an empty item of an array or a map takes."""
    if pa.types.is_map(data_type):
        return empty_bytes(data_type.key_type) + empty_bytes(data_type.item_type)
    return empty_bytes(data_type.value_type)


def largest_item_bytes(data_type: pa.DataType) -> int:
    """The most that an item of any array or map in the type takes; 0 without any."""
    if pa.types.is_struct(data_type):
        return max((largest_item_bytes(field.type) for field in data_type), default=0)
    if pa.types.is_map(data_type):
        return max(item_bytes(data_type), largest_item_bytes(data_type.item_type))
    if pa.types.is_list(data_type):
        return max(item_bytes(data_type), largest_item_bytes(data_type.value_type))
    return 0


def small_bytes(data_type: pa.DataType) -> int:
    """Values up to this size have too few items to matter."""
    return MOST_BYTES // max(1, largest_item_bytes(data_type))


def slices(values: pa.Array, data_type: pa.DataType) -> Iterator[tuple[int, int]]:
    """The start and the length of slices of `values`, an array of type binary, whose items take no
    more than MOST_BYTES together; of single values where these may take more."""
    largest = largest_item_bytes(data_type)
    if values.nbytes * largest <= MOST_BYTES:
        yield 0, len(values)
        return
    start = taken = 0
    for row, size_bytes in enumerate(pc.binary_length(values).to_pylist()):
        takes = (size_bytes or 0) * largest
        if row > start and taken + takes > MOST_BYTES:
            yield start, row - start
            start, taken = row, 0
        taken += takes
    yield start, len(values) - start
