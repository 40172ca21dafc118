"""`pyspark_kafkalog.load`: topics into a warehouse, each record exactly once.

The driver plans ranges of offsets from the target's last commit up to what the log holds now, Spark
tasks land them (landing.py) and report their files, and one commit publishes files and offsets
together (target.py). The last commit IS the next start: no checkpoint, no consumer group. Killed at
any instant, a load leaves the target as it was or as it should be, and the next load goes on.

Runs on the driver, also with Spark Connect; several loads may run at a time, in any processes.
Rows never reach the driver or the JVM.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog import errors
from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import DataLossError, InvalidOptionError, KafkalogError
from pyspark_kafkalog.source.offsets import Offsets, resolve
from pyspark_kafkalog.source.options import SourceOptions, batch_options, warn_once
from pyspark_kafkalog.source.partitions import OffsetRange, clamp_starts, locate, log_bounds
from pyspark_kafkalog.source.splitting import FEW_OFFSETS as FEW_OFFSETS
from pyspark_kafkalog.source.splitting import Splitting, share_tasks
from pyspark_kafkalog.warehouse.commit import Commit, DataFile
from pyspark_kafkalog.warehouse.landing import Landed, Landing, land, landed_offsets
from pyspark_kafkalog.warehouse.target import open_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_OFFSETS_PER_TASK = 5_000_000
"""A longer range is split, so that one large partition keeps more than one core busy."""

Progress = Callable[[int, int], None]
"""Called with the offsets landed so far and in all, from another thread."""

_POLL_S = 0.2


@dataclass(frozen=True, slots=True, repr=False)
class LoadResult:
    """What one load published.

    `records` and `bytes` (of Parquet) count what is in `files`; `ranges` are the offsets that were
    passed, which compaction and transaction markers may make more. `commit_id` is None, and the
    rest empty, when there was nothing new.
    """

    name: str
    target: str
    records: int
    bytes: int
    ranges: tuple[OffsetRange, ...]
    files: tuple[DataFile, ...]
    commit_id: str | None

    def __repr__(self) -> str:
        if self.commit_id is None:
            return f"<LoadResult {self.name!r} to {self.target}: nothing new>"
        partitions = {piece.topic_partition for piece in self.ranges}
        return (
            f"<LoadResult {self.name!r} to {self.target}: commit {self.commit_id}, "
            f"{self.records:,} records of {len(partitions)} partitions, "
            f"{self.bytes:,} bytes in {len(self.files)} files>"
        )


def load(
    spark: "SparkSession",
    name: str,
    target: str,
    options: Mapping[str, str],
    progress: bool | Progress = False,
) -> LoadResult:
    """Lands what is new in some topics since the last load of this `name` into this `target`.

        load(spark, name="nightly", target="parquet:/data/orders",
             options={"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"})

    `options` are those of `spark.read.format("kafkalog")`. The first load of a name begins at
    startingOffsets (earliest by default), later ones where the last commit ended, partitions that
    are new since then at their earliest offset. `progress` shows a bar, or is a `Progress`.

    Raises LoadConflictError when another load of the same name committed meanwhile; DataLossError
    when retention took offsets before they were loaded, or the topic was recreated (with
    failOnDataLoss=false: warns and goes on with what is there); TargetError; InvalidOptionError;
    UnknownTopicError; BrokersUnreachableError. After any error and after a kill, nothing of the
    load is published or all of it, and loading again is right.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidOptionError(
            "a load needs a name, for example nightly: it finds its place by it"
        )
    source = batch_options(options)
    if source.splitting != Splitting():
        warn_once(
            "Options minPartitions, maxRecordsPerPartition and maxPartitionsPerTask have no effect "
            "on a load."
        )
    opened = open_target(target)
    last = opened.last_offsets(name)
    with Cluster(source.client, fails_fast=True) as cluster:
        ranges = plan(cluster, source, last, name)
        topic_ids = {
            topic: topic_id
            for topic in {piece.topic for piece in ranges}
            if (topic_id := cluster.topic_id(topic)) is not None
        }
    if not ranges:
        return LoadResult(name, str(opened), 0, 0, (), (), None)
    columns = (*DEFAULT_COLUMNS, "headers") if source.include_headers else DEFAULT_COLUMNS
    stage = opened.stage(row_schema(columns))
    try:
        with _reported(progress, stage.path, ranges):
            landed = _run_tasks(spark, Landing(source, stage, topic_ids), ranges)
        files = verified_files(ranges, landed)
    except BaseException:
        # Once commit() was called this would not be safe: it may have published.
        opened.discard(stage)
        raise
    return _result(str(opened), opened.commit(stage, name, last, ranges, files))


def plan(cluster: Cluster, options: SourceOptions, last: Offsets, name: str) -> list[OffsetRange]:
    """What a load has to do, in pieces of at most MOST_OFFSETS_PER_TASK, sorted.

    A range of no offsets records a place that lost data moved (failOnDataLoss=false): otherwise the
    next load would not know that the records before it were given up.
    """
    partitions = options.subscription.partitions(cluster)
    ending = locate(cluster, options.ending, partitions)
    starting = None if last else locate(cluster, options.starting, partitions)
    bounds = log_bounds(cluster, partitions)
    untils = resolve("endingOffsets", ending, partitions, bounds)
    if starting is None:
        wanted = {tp: last.get(tp, bounds.earliest[tp]) for tp in partitions}
    else:
        wanted = resolve("startingOffsets", starting, partitions, bounds)
    try:
        starts = clamp_starts(wanted, bounds, options.fail_on_data_loss)
    except DataLossError as error:
        raise DataLossError(
            f"{error} This is where the last commit of load {name!r} ended; a load of another name "
            "begins at startingOffsets, which is right for a topic that was recreated."
            if last
            else str(error)
        ) from error
    return sorted(
        piece
        for tp in partitions
        for piece in _pieces(
            OffsetRange(
                tp.topic,
                tp.partition,
                starts[tp],
                max(starts[tp], min(untils[tp], bounds.latest[tp])),
            ),
            keep_empty=starts[tp] != wanted[tp],
        )
    )


def verified_files(ranges: Sequence[OffsetRange], landed: Sequence[Landed]) -> list[DataFile]:
    """The files of a load, in the order of `ranges`; raises unless they account for every range."""
    by_range = {result.offset_range: result for result in landed}
    wanted = [piece for piece in ranges if piece.offset_count]
    if len(landed) != len(wanted) or by_range.keys() != set(wanted):
        raise KafkalogError(
            f"Spark returned {len(landed)} results for {len(wanted)} ranges of offsets; nothing "
            "was published. Run the load again."
        )
    for result in landed:
        _check(result)
    files = [file for piece in wanted for file in by_range[piece].files]
    if len({file.name for file in files}) < len(files):
        raise KafkalogError(f"two results name one file, nothing was published: {files}")
    return files


def _check(landed: Landed) -> None:
    piece, files = landed.offset_range, landed.files
    if landed.records:
        fits = (
            piece.start_offset <= landed.first_offset <= landed.last_offset < piece.until_offset
            and 0 < landed.records <= landed.last_offset - landed.first_offset + 1
        )
    else:
        fits = not files
    every_row = landed.records == sum(file.records for file in files)
    if not (fits and every_row and all(file.records > 0 for file in files)):
        raise KafkalogError(f"what landed does not fit {piece}, nothing was published: {landed}")


def _pieces(whole: OffsetRange, keep_empty: bool) -> Iterator[OffsetRange]:
    if keep_empty and not whole.offset_count:
        yield whole
    for start in range(whole.start_offset, whole.until_offset, MOST_OFFSETS_PER_TASK):
        until = min(start + MOST_OFFSETS_PER_TASK, whole.until_offset)
        yield OffsetRange(whole.topic, whole.partition, start, until)


def tasks_of(ranges: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
    """What each task does: short ranges together, long ones alone."""
    return share_tasks(ranges, few_offsets=FEW_OFFSETS)


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
    """The error that a task raised, from what Spark makes of it: a text that ends in a traceback.

    Ours as what it was; any other, such as a full disk, as a KafkalogError.
    """
    last = re.split(r"\n {2,}[^\n]*", text)[-1].strip()
    name, _, message = last.partition(": ")
    kind = getattr(errors, name.removeprefix(f"{errors.__name__}."), None)
    if isinstance(kind, type) and issubclass(kind, KafkalogError):
        return kind(message)
    return KafkalogError(f"A task of the load failed and nothing was published: {last}")


def _result(target: str, commit: Commit) -> LoadResult:
    return LoadResult(
        name=commit.name,
        target=target,
        records=sum(file.records for file in commit.files),
        bytes=sum(file.size_bytes for file in commit.files),
        ranges=commit.ranges,
        files=commit.files,
        commit_id=commit.commit_id,
    )


@contextmanager
def _reported(
    progress: bool | Progress, stage_path: str, ranges: Sequence[OffsetRange]
) -> Iterator[None]:
    """Reports progress while the body runs."""
    total = sum(piece.offset_count for piece in ranges)
    if progress is True:
        with _bar(total) as tell, _polled(tell, stage_path, total):
            yield
    elif progress:
        with _polled(progress, stage_path, total):
            yield
    else:
        yield


@contextmanager
def _bar(total: int) -> Iterator[Progress]:
    from rich.progress import Progress as Bar

    with Bar() as bar:
        task = bar.add_task("records landed", total=total)
        yield lambda landed, _total: bar.update(task, completed=landed)


@contextmanager
def _polled(tell: Progress, stage_path: str, total: int) -> Iterator[None]:
    """Tells what the tasks wrote down, every _POLL_S, and the whole at the end."""
    done = threading.Event()

    def poll() -> None:
        while not done.wait(_POLL_S):
            # A task that ran twice counted twice.
            tell(min(landed_offsets(stage_path), total), total)

    thread = threading.Thread(target=poll, name="kafkalog-load-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    tell(total, total)
