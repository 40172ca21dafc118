"""What the columns of a Parquet target's files may be: as its newest commit says, and more.

A directory of files has no schema of its own, so later files may have more columns than earlier
ones, unless the load is told to fail. No column gets another type: readers that take the schema of
one file could not read the others. Rows of a narrower type can take the column's.

Called by parquet.py alone. Pure functions.
"""

import re
from collections.abc import Sequence

import pyarrow as pa

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.warehouse.commit import Commit
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.rows.schema_change import joined

_DECIMAL = re.compile(r"decimal128\((\d+), (\d+)\)")


def types_of(schema: pa.Schema) -> dict[str, str]:
    """The columns as commits have them."""
    return {field.name: str(field.type) for field in schema}


def joined_columns(newest: Commit | None, schema: pa.Schema, change: SchemaChange) -> pa.Schema:
    """The columns of rows as files get them."""
    if newest is None or not newest.columns or not (change.widens or change.sorted_out):
        return schema
    types = {name: _type(text) for name, text in newest.columns.items()}
    there = pa.schema([(name, kind) for name, kind in types.items() if kind is not None])
    return joined(there, schema, change)


def check_shape(
    place: str,
    newest: Commit | None,
    schema: pa.Schema,
    partition_by: Sequence[str],
    change: SchemaChange,
) -> None:
    """Raises TargetError for a column that committed files have with another type or in other case,
    for a new one if none may be added, and when files are partitioned in another way: readers could
    not read both."""
    there = newest.columns if newest else {}
    spelled = {name.lower(): name for name in there}
    for name, kind in types_of(schema).items():
        known = spelled.get(name.lower(), name)
        if known != name:
            raise TargetError(
                f"the files in {place} have a column {known}, and these rows one named "
                f"{name}, which Spark takes for the same: rename it, or name another directory"
            )
        if there.get(name, kind) != kind:
            raise TargetError(
                f"the files in {place} have a column {name} of type {there[name]}, not "
                f"{kind}, so readers could not read both: name another directory"
            )
        if there and name not in there and change.adds is False:
            raise TargetError(
                f"the files in {place} have no column {name}, and on_schema_change is fail: let "
                "the load add it, leave it out in a transform, or name another directory"
            )
    if newest and there and tuple(partition_by) != newest.partition_by:
        raise TargetError(
            f"the files in {place} are partitioned by "
            f"{', '.join(newest.partition_by) or 'nothing'}, not by "
            f"{', '.join(partition_by) or 'nothing'}: say the same, or name another directory"
        )


def _type(text: str) -> pa.DataType | None:
    """The type that a commit writes so; None of one that is nested."""
    decimal = _DECIMAL.fullmatch(text)
    if decimal:
        return pa.decimal128(*map(int, decimal.groups()))
    plain = [pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32()]
    times = [pa.timestamp("us"), pa.timestamp("us", "UTC")]
    return {str(kind): kind for kind in (*plain, *times, pa.string(), pa.binary())}.get(text)
