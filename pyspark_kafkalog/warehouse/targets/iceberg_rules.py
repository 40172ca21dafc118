"""Which Iceberg tables may have files added as tasks wrote them.

What a table asks of its files is looked for before rows land, and again before they are committed.
An order of sorting is a wish, which a file may leave (it says so), and files of several formats may
be mixed; columns that may not be null, at any depth, are rules that nobody would check. Newer
formats, with their default values and row ids, are not written by pyiceberg.

Called by iceberg.py and iceberg_upkeep.py. Changes nothing; errors are TargetErrors.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.schema import Schema, index_by_name
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from pyspark_kafkalog.errors import LoadConflictError, TargetError
from pyspark_kafkalog.warehouse.rows.layout import (
    BUCKET,
    DAYS,
    HOURS,
    MONTHS,
    TRUNCATE,
    YEARS,
    PartitionField,
)

_TRANSFORMS: Mapping[str | None, type[Transform[Any, Any]]] = {
    None: IdentityTransform,
    YEARS: YearTransform,
    MONTHS: MonthTransform,
    DAYS: DayTransform,
    HOURS: HourTransform,
    TRUNCATE: TruncateTransform,
    BUCKET: BucketTransform,
}

_NEWEST_FORMAT = 2


def transform_of(field: PartitionField) -> Transform[Any, Any]:
    made: Any = _TRANSFORMS[field.transform]
    transform: Transform[Any, Any] = made(field.width) if field.width else made()
    return transform


def is_left_over(schema: Schema, field: IcebergField) -> bool:
    """Whether a table of format version 1 is no longer partitioned by the field: it stays, with
    null for all. pyiceberg needs its column to be there."""
    is_void = isinstance(field.transform, VoidTransform)
    return is_void and schema.find_column_name(field.source_id) is not None


def refuse_unfit(
    table: Table,
    columns: Schema,
    schema: pa.Schema,
    partition_by: Sequence[PartitionField],
    identifier: str,
) -> None:
    """Raises TargetError unless files of `schema` can be added to the table as they are, when it
    has `columns`, those of now or as a commit leaves them."""
    for rule in rules_of_table(table):
        raise TargetError(
            f"the Iceberg table {identifier} {rule}: landed files cannot be added to it; name "
            "another table"
        )
    fields = [each for each in table.spec().fields if not is_left_over(table.schema(), each)]
    spec = [
        (table.schema().find_column_name(field.source_id), str(field.transform)) for field in fields
    ]
    if spec != [(field.column, str(transform_of(field))) for field in partition_by]:
        there = ", ".join(f"{transform}({column})" for column, transform in spec) or "nothing"
        ours = tuple(_TRANSFORMS.values())
        is_known = all(isinstance(field.transform, ours) for field in fields)
        raise TargetError(
            f"the Iceberg table {identifier} is partitioned by {there}, not by "
            f"{', '.join(map(str, partition_by)) or 'nothing'}: "
            + ("say the same, or name another table" if is_known else "name another table")
        )
    there = schema_to_pyarrow(columns, include_field_ids=False)
    for field in schema:
        index = there.get_field_index(field.name)
        if index < 0 or not same_type(there.field(index).type, field.type):
            raise TargetError(
                f"the Iceberg table {identifier} has no column {field.name} of type {field.type}: "
                "add it, or name another table"
            )
    for field in table.schema().fields:
        name = next(_required_in(field, field.name, field.name in schema.names), None)
        if name is not None:
            raise TargetError(
                f"the Iceberg table {identifier} has a column {name} that may not be null: "
                "make it optional, or name another table"
            )


def rules_of_table(table: Table) -> Iterator[str]:
    """What of the table is in the way of any files that are written here."""
    if table.metadata.format_version > _NEWEST_FORMAT:
        yield (
            f"is of format version {table.metadata.format_version}, and {_NEWEST_FORMAT} is the "
            "newest that pyiceberg writes"
        )
    if "encryption.key-id" in table.metadata.properties:
        yield "is encrypted (encryption.key-id), and landed files are not"


def refuse_other_ids(
    columns: Schema, written: pa.Schema, is_changed: bool, identifier: str
) -> None:
    """Raises TargetError unless the table's columns have the ids that files were written with, and
    LoadConflictError where the load may have chosen some of these itself."""
    there = index_by_name(columns)
    for name, field_id in index_by_name(pyarrow_to_schema(written)).items():
        if there[name] != field_id:
            raise (LoadConflictError if is_changed else TargetError)(
                f"column {name} of the Iceberg table {identifier} was made anew while rows landed: "
                "run the load again"
            )


def _required_in(field: NestedField, name: str, written: bool) -> Iterator[str]:
    """A column, or what is within it, that may not be null. A column that is not `written` is null
    as a whole, and nothing is within it; keys of maps never are null."""
    if field.required:
        yield name
    if written:
        yield from _required_within(field.field_type, name)


def _required_within(kind: IcebergType, name: str) -> Iterator[str]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _required_in(field, f"{name}.{field.name}", True)
    elif isinstance(kind, ListType):
        yield from _required_in(kind.element_field, f"{name}.element", True)
    elif isinstance(kind, MapType):
        yield from _required_within(kind.key_type, f"{name}.key")
        yield from _required_in(kind.value_field, f"{name}.value", True)


def same_type(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two types are one in Iceberg, which knows no large and small ones."""
    if pa.types.is_large_list(there) or pa.types.is_list(there):
        return pa.types.is_list(wanted) and same_type(there.value_type, wanted.value_type)
    if pa.types.is_map(there) and pa.types.is_map(wanted):
        return same_type(there.key_type, wanted.key_type) and same_type(
            there.item_type, wanted.item_type
        )
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        return there.num_fields == wanted.num_fields and all(
            left.name == right.name and same_type(left.type, right.type)
            for left, right in zip(there, wanted, strict=True)
        )
    small = {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}
    return bool(small.get(there, there) == wanted)
