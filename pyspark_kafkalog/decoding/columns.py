"""Values to one Arrow array by way of Python objects, with an error for each row that is bad.

Objects take far more room than the bytes they came from, so no more than CHUNK_BYTES of values are
objects at a time, and fewer where many items could be in them (room.py).
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.decoding.decoder import BadValueError, Decoded
from pyspark_kafkalog.decoding.room import MOST_BYTES, item_bytes, largest_item_bytes, value_room

CHUNK_BYTES = 1 << 20
_MOST_BYTES = (1 << 31) - 1
_ROWS_AT_A_TIME = 1_000
_LONGEST_REASON = 200
_LONGEST_SHOWN = 80


@contextmanager
def without_collections() -> Iterator[None]:
    """Leaves objects to their counts of references in this block.

    What values are read to has no cycles, but is so much at a time that it would start a collection
    of all generations every few batches, which goes through every module, pandas among them: 16 ms,
    up to a third of the time."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


@without_collections()
def decode_column(
    values: pa.Array, data_type: pa.DataType, decode: Callable[[bytes], Any]
) -> Decoded:
    """Each of `values` through `decode`, as an array of `data_type`; null stays null.

    `decode` raises BadValueError.
    """
    errors: dict[int, str] = {}
    arrays: list[pa.Array] = []
    rows: list[Any] = []
    first = size = 0
    # Objects take several times what columns do.
    most_bytes = min(CHUNK_BYTES, MOST_BYTES // (8 * max(1, largest_item_bytes(data_type))))
    for row, value in enumerate(_python_values(values)):
        decoded = None
        if value is not None:
            size += len(value)
            try:
                decoded = decode(value)
            except BadValueError as error:
                errors[row] = str(error)[:_LONGEST_REASON]
        rows.append(decoded)
        if size > most_bytes:
            _append(arrays, rows, first, data_type, errors)
            first, size, rows = row + 1, 0, []
    if rows or not arrays:
        _append(arrays, rows, first, data_type, errors)
    return Decoded(_concatenated(arrays), errors)


def joined(parts: Sequence[Decoded]) -> Decoded:
    """What batches that follow each other were decoded to, as that of one; at least one of them."""
    errors: dict[int, str] = {}
    first = 0
    for part in parts:
        errors |= {first + row: error for row, error in part.errors.items()}
        first += len(part.column)
    return Decoded(_concatenated([part.column for part in parts]), errors)


def _concatenated(arrays: Sequence[pa.Array]) -> pa.Array:
    if sum(array.nbytes for array in arrays) > _MOST_BYTES:
        raise OverflowError("a batch decodes to more than 2 GiB: use smaller ones")
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def check_room(
    value: Any, data_type: pa.DataType, size_bytes: int, member: Callable[[Any, str], Any]
) -> None:
    """Raises BadValueError for a value of which `size_bytes` are items without end.

    `member` gives a member of what a struct is made of, by its name, or None.
    """
    room = value_room(size_bytes)
    if size_bytes * largest_item_bytes(data_type) > room and (
        _items_bytes(value, data_type, member) > room
    ):
        raise BadValueError(f"the items of {size_bytes} bytes would take more than {room} bytes")


def _items_bytes(value: Any, data_type: pa.DataType, member: Callable[[Any, str], Any]) -> int:
    """What the items in a value take when they are empty."""
    if value is None or isinstance(value, (str, bytes, int, float, Decimal)):
        return 0
    if pa.types.is_struct(data_type):
        return sum(
            _items_bytes(member(value, one.name), one.type, member)
            for one in data_type
            if pa.types.is_nested(one.type)
        )
    if pa.types.is_map(data_type):
        items, kind = value.values() if hasattr(value, "values") else (), data_type.item_type
    else:
        items, kind = value, data_type.value_type
    taken = len(items) * item_bytes(data_type)
    if largest_item_bytes(kind):
        taken += sum(_items_bytes(item, kind, member) for item in items)
    return taken


def _python_values(values: pa.Array) -> Iterable[bytes | None]:
    for start in range(0, len(values), _ROWS_AT_A_TIME):
        yield from values.slice(start, _ROWS_AT_A_TIME).to_pylist()


def _append(
    arrays: list[pa.Array],
    rows: Sequence[Any],
    first: int,
    data_type: pa.DataType,
    errors: dict[int, str],
) -> None:
    """Adds `rows` to `arrays`. Rows that are not of the type are found by halving, so that few of
    them cost little."""
    try:
        array = pa.array(rows, data_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        if len(rows) == 1:
            errors[first] = _misfit(rows[0], data_type)[:_LONGEST_REASON]
            arrays.append(pa.nulls(1, data_type))
            return
        half = len(rows) // 2
        _append(arrays, rows[:half], first, data_type, errors)
        _append(arrays, rows[half:], first + half, data_type, errors)
        return
    arrays.extend(array.chunks if isinstance(array, pa.ChunkedArray) else [array])


def _misfit(value: Any, data_type: pa.DataType, name: str = "") -> str:
    """What of a value is not of the type: libraries say it in words that name no field."""
    for child, child_type, child_name in _children(value, data_type):
        try:
            pa.array([child], child_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return _misfit(child, child_type, f"{name}.{child_name}" if name else child_name)
    shown = str(value) if isinstance(value, Decimal) else repr(value)
    shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[: _LONGEST_SHOWN - 3]}..."
    return f"{name + ': ' if name else ''}{shown} does not fit {data_type}"


def _children(value: Any, data_type: pa.DataType) -> Iterable[tuple[Any, pa.DataType, str]]:
    if isinstance(value, dict) and pa.types.is_struct(data_type):
        return [(value.get(one.name), one.type, one.name) for one in data_type]
    if isinstance(value, dict) and pa.types.is_map(data_type):
        keys = [(key, data_type.key_type, "key") for key in value]
        return [*keys, *((item, data_type.item_type, str(key)) for key, item in value.items())]
    if isinstance(value, list) and pa.types.is_list(data_type):
        return [(item, data_type.value_type, f"[{at}]") for at, item in enumerate(value)]
    return []
