"""What `transform=` of a load may be, and how the two kinds are told apart.

    def large(batch: pa.RecordBatch) -> pa.RecordBatch: ...    Arrow batches, in the landing task
    def by_day(df: DataFrame) -> DataFrame: ...                 a DataFrame, Spark SQL in between

By the annotation of the first parameter: `pyarrow.RecordBatch` or `pyarrow.Table` means batches,
anything else, or none, as of a lambda, a DataFrame. A function of batches may be given any batch of
rows that follow one another in a partition, also an empty one, and returns a batch, a table, or
None for no rows. It is called with no rows on the driver, to learn which columns it makes.
"""

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.rows.row_types import storable

Batches = Callable[[Any], pa.RecordBatch | pa.Table | None]


def takes_batches(function: Callable[..., Any]) -> bool:
    """Whether a function is of Arrow batches; raises InvalidOptionError for what is no function."""
    if not callable(function):
        raise InvalidOptionError(f"transform is a {type(function).__name__}: give a function")
    return _kind(function) is not None


def transformed(function: Batches, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """What a function of batches makes of one; raises InvalidOptionError when that is no batch."""
    is_table = _kind(function) == "Table"
    result = _called(function, pa.Table.from_batches([batch]) if is_table else batch)
    if isinstance(result, pa.RecordBatch):
        yield result
    elif isinstance(result, pa.Table):
        yield from result.to_batches()
    elif result is not None:
        raise InvalidOptionError(
            f"transform returned a {type(result).__name__}: return a pyarrow.RecordBatch, a "
            "pyarrow.Table, or None for no rows"
        )


def transformed_schema(function: Batches, schema: pa.Schema) -> pa.Schema:
    """The columns that a function of batches makes of rows with those of `schema`.

    Raises InvalidOptionError when it does not tell them without rows.
    """
    empty = schema.empty_table()
    if _kind(function) != "Table":
        columns = [pa.array([], field.type) for field in schema]
        empty = pa.RecordBatch.from_arrays(columns, schema=schema)
    result = _called(function, empty)
    if not isinstance(result, (pa.RecordBatch, pa.Table)):
        raise InvalidOptionError(
            f"transform returned a {type(result).__name__} for a batch without rows: it is called "
            "once like this before anything is read, and has to return a pyarrow.RecordBatch or "
            "Table with the columns that it makes"
        )
    return storable(result.schema)


def _called(function: Batches, rows: Any) -> Any:
    try:
        return function(rows)
    except SystemExit as error:
        # Else it would end a thread, or a worker, without a word.
        raise InvalidOptionError(
            "transform called sys.exit(): raise an error where the load is to fail"
        ) from error


def _kind(function: Callable[..., Any]) -> str | None:
    """`RecordBatch`, `Table` or None, by the annotation of the first parameter."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # A builtin tells nothing.
        return None
    if not parameters:
        return None
    annotation = parameters[0].annotation
    if isinstance(annotation, str):
        # As text, where `from __future__ import annotations` or quotes make it one.
        annotation = _resolved(function, parameters[0].name, annotation)
    for kind in (pa.RecordBatch, pa.Table):
        if annotation is kind or annotation in (kind.__name__, f"pa.{kind.__name__}"):
            return str(kind.__name__)
    return None


def _resolved(function: Callable[..., Any], parameter: str, text: str) -> Any:
    try:
        return typing.get_type_hints(function).get(parameter, text)
    except Exception:
        # A name that is only there for a type checker: whatever it is, the text is what is left.
        return text
