"""Landing tasks on Spark: a UDF over one row for each task, or the user's query of DataFrames.

Rows never reach the driver or the JVM, but those of a query the latter. Owns how an error of a task
comes back as what it was. Runs on the driver, also with Spark Connect. Never commits.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_kafkalog import errors
from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.landing import Landed, Landing, Reading, land
from pyspark_kafkalog.warehouse.portions import tasks_of
from pyspark_kafkalog.warehouse.rows.row_types import storable
from pyspark_kafkalog.warehouse.verify import Outcome, outcome_of, task_failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_kafkalog.warehouse.engines.dataframe import Frames


class SparkEngine:
    """Runs what lands the rows of one load; `query` is the user's transformation of DataFrames."""

    def __init__(self, spark: "SparkSession", query: "Frames | None") -> None:
        self._spark = spark
        self._query = query

    def columns(self, reading: Reading, ranges: Sequence[OffsetRange]) -> pa.Schema:
        """The columns that the load's files are going to have."""
        if self._query is not None:
            from pyspark_kafkalog.warehouse.engines.dataframe import planned_rows, result_schema

            rows = planned_rows(self._spark, reading, tasks_of(ranges), None)
            return result_schema(self._query(rows))
        return reading.stored_schema()

    def run(self, landing: Landing, ranges: Sequence[OffsetRange]) -> Outcome:
        """Lands `ranges`; raises the error of a task that failed, and KafkalogError unless what
        landed fits them."""
        if self._query is None:
            return outcome_of(landing, ranges, _run_tasks(self._spark, landing, ranges))
        if not tasks_of(ranges):
            return Outcome()
        return _run_query(self._spark, landing, self._query, ranges)


def _run_query(
    spark: "SparkSession", landing: Landing, query: "Frames", ranges: Sequence[OffsetRange]
) -> Outcome:
    from pyspark.errors import PySparkException

    from pyspark_kafkalog.warehouse.engines.dataframe import (
        planned_rows,
        read_counts,
        result_schema,
        written_files,
    )

    stage = landing.stage
    result = query(planned_rows(spark, landing.reading, tasks_of(ranges), stage.path))
    found = result_schema(result)
    if not found.equals(storable(landing.made or stage.schema)):
        raise InvalidOptionError(
            f"transform made other columns when it was called again: {found.names} of types "
            f"{[str(kind) for kind in found.types]}"
        )
    try:
        files = written_files(spark, result, stage, landing.layout)
    except PySparkException as error:
        raise task_error(str(error)) from error
    if len({file.name for file in files}) < len(files) or not all(file.records for file in files):
        raise KafkalogError(f"Spark's tasks name files twice, nothing was published: {files}")
    return Outcome(files, *read_counts(stage.path))


def _run_tasks(
    spark: "SparkSession", landing: Landing, ranges: Sequence[OffsetRange]
) -> list[Landed]:
    # At run time, so that what is imported with the package stays light. A plain UDF, because
    # mapInArrow would need pandas, which nothing else here does, and an RDD is not to be had with
    # Spark Connect.
    from pyspark.errors import PythonException
    from pyspark.sql.functions import udf

    tasks = tasks_of(ranges)
    if not tasks:
        return []

    def run(number: int) -> list[str]:
        return [landed.to_json() for landed in land(landing, tasks[number])]

    # Declared non-deterministic, so that Spark plans it once. One row for each task, each in a
    # partition of its own.
    landed = udf(run, "array<string>", useArrow=False).asNondeterministic()
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    try:
        rows: list[Any] = numbers.select(landed("id").alias("landed")).collect()
    except PythonException as error:
        raise task_error(str(error)) from error
    return [Landed.from_json(text) for row in rows for text in row.landed]


def task_error(text: str) -> KafkalogError:
    """The error that a task raised, from what Spark makes of it: a text that ends in a traceback,
    or in one line that names an error of ours.

    Ours as what it was; any other, such as a full disk, as a KafkalogError.
    """
    last = re.split(r"\n {2,}[^\n]*", text)[-1].strip()
    name, _, message = last.partition(f"{errors.__name__}.")[2].partition(": ")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, KafkalogError):
        return kind(message)
    return task_failed(last)
