"""The files of an Iceberg table as it names them, and as its manifests describe them.

Called by iceberg.py and iceberg_upkeep.py. Writes nothing; errors are TargetErrors and
pyiceberg's.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    MonthTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import BooleanType, DateType, IcebergType, IntegerType, LongType

from pyspark_kafkalog.warehouse.commit import DataFile, Stage
from pyspark_kafkalog.warehouse.targets.iceberg_rules import is_left_over
from pyspark_kafkalog.warehouse.targets.staging import check_rows, staged_file
from pyspark_kafkalog.warehouse.targets.storage import is_url
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_stage

_NO_METRICS, _COUNTS = MetricsMode(MetricModeTypes.NONE), MetricsMode(MetricModeTypes.COUNTS)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def file_url(table: Table, stage: Stage, name: str) -> str:
    """A staged file as the table names its files."""
    path = open_stage(stage.path).path_of(staged_file(stage, name))
    return f"file://{path}" if urlsplit(table.location()).scheme and not is_url(path) else path


def data_files(
    table: Table, schema: Schema, stage: Stage, files: Mapping[str, tuple[DataFile, Record]]
) -> Iterator[IcebergFile]:
    """The files of a stage, by `file_url`, each with its partition, as Iceberg describes them.
    pyiceberg's own way to do so takes partitions from bounds, which are not there where a time has
    no date, and the bounds of some row groups for those of all (`_collectors`)."""
    wanted = compute_statistics_plan(schema, table.properties)
    field_ids = parquet_path_to_id_mapping(schema)
    staged = open_stage(stage.path)

    def describe(path: str) -> IcebergFile:
        file, partition = files[path]
        footer = pq.read_metadata(staged.source(staged_file(stage, file.name)))
        check_rows(path, file, footer.num_rows)
        collectors = _collectors(wanted, field_ids, footer)
        statistics = data_file_statistics_from_parquet_metadata(footer, collectors, field_ids)
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=file.size_bytes,
            sort_order_id=None,
            spec_id=table.spec().spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    with ThreadPoolExecutor() as threads:
        yield from threads.map(describe, files)


def partition_of(table: Table, schema: Schema, file: DataFile) -> Record:
    """The partition of a file in the table's own, from the texts that it was staged with."""
    texts = iter(file.partition)
    return Record(
        *(
            None
            if is_left_over(schema, field)
            else _partition_value(field, schema.find_type(field.source_id), next(texts))
            for field in table.spec().fields
        )
    )


def _collectors(
    wanted: dict[int, StatisticsCollector], field_ids: Mapping[str, int], footer: pq.FileMetaData
) -> dict[int, StatisticsCollector]:
    """What to tell of a file's columns: no more than the table's properties want, and only what
    every row group says. pyiceberg would take the bounds of the others for all."""
    collectors = dict(wanted)
    seen: set[int] = set()
    for index in range(footer.num_columns):
        groups = [footer.row_group(number).column(index) for number in range(footer.num_row_groups)]
        field_id = field_ids[footer.schema.column(index).path]
        kinds = {_metrics_of(group) for group in groups}
        if MetricModeTypes.NONE in kinds or field_id in seen:
            collectors[field_id] = replace(wanted[field_id], mode=_NO_METRICS)
        elif MetricModeTypes.COUNTS in kinds and wanted[field_id].mode != _NO_METRICS:
            collectors[field_id] = replace(wanted[field_id], mode=_COUNTS)
        seen.add(field_id)
    return collectors


def _metrics_of(column: pq.ColumnChunkMetaData) -> MetricModeTypes:
    """What a row group says of a column: nothing, how many values and nulls, or bounds as well."""
    statistics = column.statistics if column.is_stats_set else None
    if statistics is None or not statistics.has_null_count:
        return MetricModeTypes.NONE
    if not statistics.has_min_max:
        # Without any value there are none; of values that are too long there are none either.
        return MetricModeTypes.COUNTS if statistics.num_values else MetricModeTypes.FULL
    try:
        _ = statistics.min, statistics.max
    except OverflowError:
        # A producer's clock may count beyond what Python has dates for.
        return MetricModeTypes.COUNTS
    return MetricModeTypes.FULL


def _partition_value(field: IcebergField, kind: IcebergType, text: str | None) -> Any:
    if text is None:
        return None
    if isinstance(field.transform, BucketTransform):
        return int(text)
    if isinstance(field.transform, YearTransform):
        return int(text) - _EPOCH.year
    if isinstance(field.transform, MonthTransform):
        year, month = text.split("-")
        return (int(year) - _EPOCH.year) * 12 + int(month) - 1
    if isinstance(field.transform, HourTransform):
        moment = datetime.strptime(text, "%Y-%m-%d-%H").replace(tzinfo=timezone.utc)
        return (moment - _EPOCH) // timedelta(hours=1)
    if isinstance(field.transform, DayTransform) or isinstance(kind, DateType):
        return (date.fromisoformat(text) - _EPOCH.date()).days
    if isinstance(kind, BooleanType):
        return text == "true"
    return int(text) if isinstance(kind, (IntegerType, LongType)) else text


def with_field_ids(schema: pa.Schema, columns: Schema) -> pa.Schema:
    """`schema` with the field ids of the table's `columns`, by which Iceberg's readers find them in
    files."""
    there = schema_to_pyarrow(columns, include_field_ids=True)
    return pa.schema([_with_field_id(field, there.field(field.name)) for field in schema])


def _with_field_id(field: pa.Field, there: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_list(kind):
        element = there.type.value_field
        kind = pa.list_(_with_field_id(kind.value_field.with_name(element.name), element))
    elif pa.types.is_map(kind):
        kind = pa.map_(
            _with_field_id(kind.key_field, there.type.key_field).with_nullable(False),
            _with_field_id(kind.item_field, there.type.item_field),
        )
    elif pa.types.is_struct(kind):
        kind = pa.struct([_with_field_id(child, there.type.field(child.name)) for child in kind])
    return pa.field(field.name, kind, metadata=there.metadata)
