"""A load with Spark SQL in between: planned ranges as a DataFrame, its result as staged files.

A Python data source that a session learns of with its first such load: it reads exactly the ranges
that were planned, as rows (landing.py), and writes the partitions of what the function made of them
as files of the stage (staged_files.py). What it is to do comes in an option, pickled, since a class
for each load would stay in a session that lives for months. Spark hands the files of the
attempts that count to the writer's commit, which runs in a process beside the JVM and leaves their
list in the stage for the driver; a twin's files are in no list. Reading tasks leave beside it what
they could not decode or find.

The driver calls `planned_rows` and `written_files`, in one thread for each load. Never commits.
"""

import base64
import json
import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.plain_errors import PlainErrors
from pyspark_kafkalog.source.python_worker import freeze_imports, kept_cluster
from pyspark_kafkalog.warehouse.commit import DataFile, Stage
from pyspark_kafkalog.warehouse.landing import (
    Landed,
    Reading,
    Records,
    file_from_json,
    range_label,
)
from pyspark_kafkalog.warehouse.rows.layout import Layout
from pyspark_kafkalog.warehouse.rows.row_types import fitted, storable
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Frames = Callable[["DataFrame"], "DataFrame"]

_OPTION = "secretPlan"
"""Spark redacts options of such a name wherever it shows them: the plan may hold passwords."""

_WRITTEN = "written.json"
_READ_SUFFIX = ".read"


def result_schema(result: object) -> pa.Schema:
    """The columns of what a function of DataFrames returned; raises InvalidOptionError when that
    is no DataFrame, or has columns that cannot be loaded."""
    schema = getattr(result, "schema", None)
    if not isinstance(schema, StructType):
        raise InvalidOptionError(
            f"transform returned a {type(result).__name__} for a DataFrame: return a DataFrame, or "
            "annotate its parameter as pyarrow.RecordBatch if it is a function of Arrow batches"
        )
    if getattr(result, "isStreaming", False):
        raise InvalidOptionError("transform returned a streaming DataFrame: return a plain one")
    return storable(to_arrow_schema(schema, timezone="UTC"))


def planned_rows(
    spark: "SparkSession",
    reading: Reading,
    tasks: Sequence[Sequence[OffsetRange]],
    stage_path: str | None,
) -> "DataFrame":
    """The rows of the planned ranges, each element of `tasks` a partition; nothing is read yet.

    What is read leaves its counts in the stage at `stage_path`, if there is one.
    """
    schema = reading.schema()
    reader = _Reader(reading, schema, [tuple(task) for task in tasks], stage_path)
    source = spark.read.format(_registered(spark))
    return source.option(_OPTION, _packed(_Source(schema, reader=reader))).load()


def written_files(
    spark: "SparkSession", result: "DataFrame", stage: Stage, layout: Layout
) -> list[DataFile]:
    """Runs the query and writes its rows to the stage; the files that count."""
    source = _packed(_Source(stage.schema, writer=_Writer(stage, layout)))
    # Spark looks for a format to write to in the session that is active in this thread, and in a
    # thread of a program's own there is none. This makes it so.
    spark.createDataFrame([], "nothing INT")
    sink = result.write.format(_registered(spark)).mode("append")
    sink.option(_OPTION, source).save()
    lists = open_stage(stage.path).read(_WRITTEN)
    if not lists:
        raise KafkalogError(
            f"Spark ended the query and left no list of files in {stage.path}, where the driver "
            "looks for it: nothing was published. The target has to be where the driver and all "
            "executors reach it."
        )
    return [file_from_json(fields) for fields in json.loads(lists[0])]


def read_counts(stage_path: str) -> tuple[int, list[OffsetRange]]:
    """What the readers left in a stage: how many records they could not decode, and which offsets
    were gone and given up.

    Raises KafkalogError where one attempt of a task found offsets that were gone for another one:
    Spark does not say whose rows it took.
    """
    of_ranges: dict[OffsetRange, Landed] = {}
    for text in open_stage(stage_path).read(_READ_SUFFIX):
        # What a twin that nobody waits for has not written to its end yet.
        with suppress(ValueError):
            landed = Landed.from_json(text.decode())
            known = of_ranges.setdefault(landed.offset_range, landed)
            if landed.gaps != known.gaps:
                raise KafkalogError(
                    f"Spark had {landed.offset_range} read twice, and retention took offsets of it "
                    "in between: which of the two counts is not known. Nothing was published; run "
                    "the load again."
                )
    gaps = [gap for landed in of_ranges.values() for gap in landed.gaps]
    return sum(landed.bad_records for landed in of_ranges.values()), gaps


@dataclass(frozen=True, slots=True)
class _Source:
    """What the data source is to do: read or write."""

    schema: pa.Schema
    reader: "_Reader | None" = None
    writer: "_Writer | None" = None


def _packed(source: _Source) -> str:
    pickled: bytes = cloudpickle.dumps(source)  # type: ignore[no-untyped-call]
    return base64.b64encode(pickled).decode()


class _LoadFrames(DataSource):
    """The format by which one load reads its ranges, or writes its files; in no other's way, as it
    gets both from its option."""

    @classmethod
    def name(cls) -> str:
        return "kafkalog_load_frames"

    def schema(self) -> StructType:
        return from_arrow_schema(self._source().schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        reader = self._source().reader
        assert reader is not None
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = self._source().writer
        assert writer is not None
        return writer

    def _source(self) -> _Source:
        source = pickle.loads(base64.b64decode(self.options[_OPTION]))
        assert isinstance(source, _Source)
        return source


_knowing: "WeakSet[SparkSession]" = WeakSet()


def _registered(spark: "SparkSession") -> str:
    """The name of the data source, which this session knows from now on."""
    if spark not in _knowing:
        spark.dataSource.register(_LoadFrames)
        _knowing.add(spark)
    return _LoadFrames.name()


class _Reader(DataSourceReader):
    """Reads planned ranges, a task for each item of `tasks`, and leaves in the stage what was found
    of each."""

    def __init__(
        self,
        reading: Reading,
        schema: pa.Schema,
        tasks: Sequence[tuple[OffsetRange, ...]],
        stage_path: str | None,
    ) -> None:
        self._reading = reading
        self._schema = schema
        self._tasks = tasks
        self._stage_path = stage_path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        freeze_imports()
        with PlainErrors(), kept_cluster(self._reading.options.client) as cluster:
            for offset_range in partition.value:
                records = Records(cluster, self._reading, offset_range, self._stage_path)
                for batch in records.rows():
                    yield fitted(batch, self._schema)
                landed = records.landed()
                # Also that nothing was gone, where a twin may find otherwise.
                counts = landed.bad_records or not self._reading.options.fail_on_data_loss
                if counts and self._stage_path:
                    name = f"{range_label(offset_range)}-{uuid.uuid4().hex}{_READ_SUFFIX}"
                    open_stage(self._stage_path).write(name, landed.to_json().encode())


@dataclass(frozen=True, slots=True)
class _Written(WriterCommitMessage):
    """What a task has written."""

    files: tuple[DataFile, ...]


class _Writer(DataSourceArrowWriter):
    """Writes rows into files of the stage, and their list beside them when Spark commits."""

    def __init__(self, stage: Stage, layout: Layout) -> None:
        self._stage = stage
        self._layout = layout

    @PlainErrors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Written:
        freeze_imports()
        context = TaskContext.get()
        label = f"sql-{context.partitionId() if context else 0}"
        return _Written(tuple(write_files(self._stage, label, iterator, self._layout)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files = [
            asdict(file)
            for message in messages
            if isinstance(message, _Written)
            for file in message.files
        ]
        open_stage(self._stage.path).write(_WRITTEN, json.dumps(files).encode())
