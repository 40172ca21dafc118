"""Python values into one Arrow array, with an error for each row that is not of the type."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.decoding.decoder import Decoded

_LONGEST_REASON = 200


def to_column(rows: Sequence[Any], data_type: pa.DataType, errors: dict[int, str]) -> Decoded:
    """`rows` as an array of `data_type`; adds to `errors` why a row is not of it.

    Bad rows are found by halving, so that few of them cost little.
    """
    arrays: list[pa.Array] = []
    _append(arrays, rows, 0, data_type, errors)
    return Decoded(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), errors)


def _append(
    arrays: list[pa.Array],
    rows: Sequence[Any],
    first: int,
    data_type: pa.DataType,
    errors: dict[int, str],
) -> None:
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
    if isinstance(array, pa.ChunkedArray):
        raise OverflowError("a batch decodes to more than 2 GiB in one column: use smaller ones")
    arrays.append(array)
