"""Values to one Arrow array by way of Python objects, with an error for each row that is bad.

Objects take far more room than the bytes they came from, so no more than CHUNK_BYTES of values are
objects at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.decoding.decoder import BadValueError, Decoded

CHUNK_BYTES = 1 << 20
_MOST_BYTES = (1 << 31) - 1
_ROWS_AT_A_TIME = 1_000
_LONGEST_REASON = 200


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
    for row, value in enumerate(_python_values(values)):
        decoded = None
        if value is not None:
            size += len(value)
            try:
                decoded = decode(value)
            except BadValueError as error:
                errors[row] = str(error)[:_LONGEST_REASON]
        rows.append(decoded)
        if size > CHUNK_BYTES:
            _append(arrays, rows, first, data_type, errors)
            first, size, rows = row + 1, 0, []
    if rows or not arrays:
        _append(arrays, rows, first, data_type, errors)
    if sum(array.nbytes for array in arrays) > _MOST_BYTES:
        raise OverflowError("a batch decodes to more than 2 GiB: use smaller ones")
    return Decoded(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), errors)


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
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if len(rows) == 1:
            errors[first] = str(error).splitlines()[0][:_LONGEST_REASON]
            arrays.append(pa.nulls(1, data_type))
            return
        half = len(rows) // 2
        _append(arrays, rows[:half], first, data_type, errors)
        _append(arrays, rows[half:], first + half, data_type, errors)
        return
    arrays.extend(array.chunks if isinstance(array, pa.ChunkedArray) else [array])
