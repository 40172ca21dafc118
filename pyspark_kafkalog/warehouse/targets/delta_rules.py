"""Which Delta tables may have files added as tasks wrote them, and which files.

Delta leaves it to the writer to keep a table's rules, and whoever adds files by a log entry is the
writer: nothing else looks into them. What can be told from the files is checked (columns that may
not be null); rules that would take an expression of SQL, or a value that is made by the writer, are
refused before anything lands, by name.

Called by delta.py and delta_upkeep.py. Changes nothing; errors are TargetErrors.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.schema import ArrayType, DataType, Field, MapType, StructType

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.warehouse.commit import DataFile, Stage
from pyspark_kafkalog.warehouse.rows.layout import PartitionField
from pyspark_kafkalog.warehouse.targets.delta_statistics import FileStatistics
from pyspark_kafkalog.warehouse.targets.staging import staged_file
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_stage

# Of those that deltalake can write: they ask nothing of an append, or what they ask is looked for
# in columns and properties below. Tables of writer versions before 7 have no others.
_FEATURES = frozenset(
    (
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    )
)
_NEWEST_WRITER_VERSION = 7
_BOUNDED_TEXT = "__CHAR_VARCHAR_TYPE_STRING"
"""How Spark notes a CHAR or VARCHAR, at any depth; Delta itself has texts of any length only."""


def with_partitions(schema: pa.Schema, fields: Sequence[PartitionField]) -> pa.Schema:
    """The table's columns: those of days and hours are beside the rows' own."""
    for field in fields:
        if field.type is not None:
            schema = schema.append(pa.field(field.name, field.type))
    return schema


def refuse_unfit(
    table: DeltaTable,
    columns: Schema,
    schema: pa.Schema,
    partition_by: Sequence[PartitionField],
    path: object,
) -> None:
    """Raises TargetError unless files of `schema` can be added to the table as they are, when it
    has `columns`, those of now or as a commit leaves them."""
    wanted = {
        field.name: field
        for field in Schema.from_arrow(with_partitions(schema, partition_by)).fields
    }
    there = {field.name: field for field in columns.fields}
    problems = [
        *_rules_of_table(table, [field.name for field in partition_by]),
        *(rule for field in there.values() for rule in _rules_of_column(field)),
        *_lacking(there, wanted),
    ]
    if problems:
        raise TargetError(
            f"the Delta table {path} {problems[0]}: landed files cannot be added to it; name "
            "another table, or alter this one"
        )


def refuse_nulls(
    table: DeltaTable,
    stage: Stage,
    files: Sequence[DataFile],
    statistics: Sequence[FileStatistics],
    path: object,
) -> None:
    """Raises TargetError for a file with nulls in a column of the table that may not have any."""
    required = [field.name for field in table.schema().fields if not field.nullable]
    fields = stage.partitioning.fields if stage.partitioning else ()
    numbers = {field.name: number for number, field in enumerate(fields)}
    for file, known in zip(files, statistics, strict=True):
        for name in required:
            if name in numbers:
                nulls = 0 if file.partition[numbers[name]] is not None else known.records
            elif name in known.nulls:
                nulls = known.nulls[name]
            else:
                staged = open_stage(stage.path).source(staged_file(stage, file.name))
                nulls = _count_nulls(staged, name)
            if nulls:
                raise TargetError(
                    f"the column {name} of the Delta table {path} may not be null, and {nulls} of "
                    f"{known.records} rows of one file are: nothing was committed. Leave these "
                    "rows out or fill them by a transform, or let the column be null."
                )


def _count_nulls(source: Any, name: str) -> int:
    """Of a column that has no statistics, from its values."""
    with pq.ParquetFile(source) as file:
        return sum(int(rows.column(0).null_count) for rows in file.iter_batches(columns=[name]))


def _rules_of_table(table: DeltaTable, partition_columns: Sequence[str]) -> Iterator[str]:
    metadata = table.metadata()
    if list(metadata.partition_columns) != list(partition_columns):
        now = ", ".join(metadata.partition_columns) or "nothing"
        yield f"is partitioned by {now}, not by {', '.join(partition_columns) or 'nothing'}"
    yield from rules_of_rewriting(table)
    for key, expression in metadata.configuration.items():
        if key.startswith("delta.constraints."):
            yield f"has constraints ({key} = {expression})"


def rules_of_rewriting(table: DeltaTable) -> Iterator[str]:
    """What of the table is in the way of files with the very rows that others have."""
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        yield f"has column mapping (delta.columnMapping.mode = {mode})"
    yield from unknown_features(table)


def unknown_features(table: DeltaTable) -> Iterator[str]:
    """What of the table may be in the way of any change: a feature may have files of its own, which
    nobody here would know to be needed, as deletion vectors are."""
    protocol = table.protocol()
    unknown = sorted(set(protocol.writer_features or ()) - _FEATURES)
    if unknown:
        yield f"wants writers to have the features {', '.join(unknown)}"
    if protocol.min_writer_version > _NEWEST_WRITER_VERSION:
        yield f"wants writers of version {protocol.min_writer_version}"


def _rules_of_column(field: Field, parent: str = "") -> Iterator[str]:
    """The rules that files would break unseen, at any depth, but for what may be null."""
    name = f"{parent}{field.name}"
    metadata: Mapping[str, object] = field.metadata
    if "delta.invariants" in metadata:
        yield f"has an invariant on the column {name} ({metadata['delta.invariants']})"
    if "delta.generationExpression" in metadata:
        expression = metadata["delta.generationExpression"]
        yield f"has a generated column {name} ({expression})"
    if any(key.startswith("delta.identity.") for key in metadata):
        yield f"has an identity column {name}"
    if "CURRENT_DEFAULT" in metadata:
        yield f"has a column {name} with a default ({metadata['CURRENT_DEFAULT']})"
    for child in _structs_in(field.type):
        for inner in child.fields:
            yield from _rules_of_column(inner, f"{name}.")


def _lacking(there: Mapping[str, Field], wanted: Mapping[str, Field]) -> Iterator[str]:
    for name, field in wanted.items():
        if name not in there or not _same_type(there[name].type, field.type):
            yield f"has no column {name} of type {_in_sql(field.type)}"
        elif kind := there[name].metadata.get(_BOUNDED_TEXT):
            yield f"has a column {name} of texts of bounded length ({kind})"
        elif inner := next(_required_in(there[name].type, name), None):
            yield f"has a column {name} in which {inner} may not be null"
    for name, field in there.items():
        if name not in wanted and not field.nullable:
            yield f"has a column {name} that may not be null, which the rows do not have"


def _same_type(there: DataType, wanted: DataType) -> bool:
    """Whether values are of one type, whatever of them may be null, and whatever is noted there."""
    if isinstance(there, StructType) and isinstance(wanted, StructType):
        return [field.name for field in there.fields] == [
            field.name for field in wanted.fields
        ] and all(
            _same_type(one.type, other.type)
            for one, other in zip(there.fields, wanted.fields, strict=True)
        )
    if isinstance(there, ArrayType) and isinstance(wanted, ArrayType):
        return _same_type(there.element_type, wanted.element_type)
    if isinstance(there, MapType) and isinstance(wanted, MapType):
        return _same_type(there.key_type, wanted.key_type) and _same_type(
            there.value_type, wanted.value_type
        )
    return bool(there == wanted)


def _required_in(kind: DataType, name: str) -> Iterator[str]:
    """What within a value may not be null; keys of maps never are."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            if not field.nullable:
                yield f"{name}.{field.name}"
            yield from _required_in(field.type, f"{name}.{field.name}")
    elif isinstance(kind, ArrayType):
        if not kind.contains_null:
            yield f"an element of {name}"
        yield from _required_in(kind.element_type, f"{name}.element")
    elif isinstance(kind, MapType):
        if not kind.value_contains_null:
            yield f"a value of {name}"
        yield from _required_in(kind.key_type, f"{name}.key")
        yield from _required_in(kind.value_type, f"{name}.value")


def _in_sql(kind: DataType) -> str:
    """A type as ALTER TABLE ... ADD COLUMNS takes it."""
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'`{one.name}`: {_in_sql(one.type)}' for one in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_in_sql(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_in_sql(kind.key_type)}, {_in_sql(kind.value_type)}>"
    return str(kind.type).upper()


def _structs_in(kind: DataType) -> Iterator[StructType]:
    """The outermost structs of a type."""
    if isinstance(kind, StructType):
        yield kind
    elif isinstance(kind, ArrayType):
        yield from _structs_in(kind.element_type)
    elif isinstance(kind, MapType):
        yield from _structs_in(kind.key_type)
        yield from _structs_in(kind.value_type)
