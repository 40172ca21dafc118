"""`pyspark_kafkalog.load`: topics into a warehouse, each record exactly once.

The driver plans ranges of offsets from the target's last commit up to what the log holds now, Spark
tasks land them (landing.py) and report their files, and one commit publishes files and offsets
together (target.py). The last commit IS the next start: no checkpoint, no consumer group. Killed at
any instant, a load leaves the target as it was or as it should be, and the next load goes on.

Runs on the driver, also with Spark Connect; several loads may run at a time, in any processes.
Rows never reach the driver or the JVM.
"""

import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timezone, tzinfo
from typing import TYPE_CHECKING, Any, Literal, overload
from zoneinfo import ZoneInfo

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafkalog import errors
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import DataLossError, InvalidOptionError, KafkalogError
from pyspark_kafkalog.source.offsets import (
    LATEST,
    Limit,
    LogBounds,
    OffsetLimit,
    Offsets,
    RelativeLimit,
    describe,
    resolve,
    to_json,
)
from pyspark_kafkalog.source.options import SourceOptions
from pyspark_kafkalog.source.partitions import (
    OffsetRange,
    beyond_open_transactions,
    clamp_starts,
    locate,
    log_bounds,
)
from pyspark_kafkalog.source.splitting import FEW_OFFSETS as FEW_OFFSETS
from pyspark_kafkalog.source.splitting import share_tasks
from pyspark_kafkalog.warehouse.commit import (
    Commit,
    DataFile,
    TopicIds,
    deleted,
    recreated_topics,
    without_gaps,
    without_recreated,
)
from pyspark_kafkalog.warehouse.dead_letters import make_topics
from pyspark_kafkalog.warehouse.deleted_topics import partitions_now, places_of_gone
from pyspark_kafkalog.warehouse.landing import Landed, Landing, Reading, land
from pyspark_kafkalog.warehouse.layout import FILE_BYTES, check_layout
from pyspark_kafkalog.warehouse.options import LoadArguments, LoadOptions, load_options
from pyspark_kafkalog.warehouse.plan import (
    LoadPlan,
    Place,
    bytes_of,
    chunks_of,
    within_bytes,
)
from pyspark_kafkalog.warehouse.progress import Progress, Watch, reported
from pyspark_kafkalog.warehouse.row_types import storable
from pyspark_kafkalog.warehouse.target import Target, open_target
from pyspark_kafkalog.warehouse.transformation import Batches, transformed_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Unpack

    from pyspark_kafkalog.warehouse.dataframe import Frames

MOST_OFFSETS_PER_TASK = 5_000_000
"""A longer range is split, so that one large partition keeps more than one core busy."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class LoadResult:
    """What one load published.

    `records` and `bytes` (of Parquet) count what is in `files`; `ranges` are the offsets that were
    passed, which compaction, transaction markers and transformations may make more. `bad_records`
    counts those that could not be decoded. `commit_id` is that of the last of its `commits`; None,
    and the rest empty, when there was nothing new. `gaps` are offsets that were gone before they
    could be loaded and were given up (failOnDataLoss=false); the commit records them, too.
    """

    name: str
    target: str
    records: int
    bytes: int
    ranges: tuple[OffsetRange, ...]
    files: tuple[DataFile, ...]
    commit_id: str | None
    commits: int = 1
    gaps: tuple[OffsetRange, ...] = ()
    bad_records: int = 0

    def __repr__(self) -> str:
        if self.commit_id is None:
            return f"<LoadResult {self.name!r} to {self.target}: nothing new>"
        partitions = {piece.topic_partition for piece in self.ranges}
        bad = f", {self.bad_records:,} bad records" if self.bad_records else ""
        commits = f"{self.commits} commits up to" if self.commits > 1 else "commit"
        lost = sum(gap.offset_count for gap in self.gaps)
        return (
            f"<LoadResult {self.name!r} to {self.target}: {commits} {self.commit_id}, "
            f"{self.records:,} records of {len(partitions)} partitions, "
            f"{self.bytes:,} bytes in {len(self.files)} files{bad}"
            f"{f', {lost:,} offsets were gone' if lost else ''}>"
        )


@dataclass(frozen=True, slots=True)
class _Work:
    """What was found out before anything is landed: what to do, and from which state of the target.

    `topic_ids` are those of the topics, where brokers say them.
    """

    target: Target
    last: Offsets
    ranges: tuple[OffsetRange, ...]
    topic_ids: TopicIds


@overload
def load(
    spark: "SparkSession",
    name: str,
    target: str,
    options: Mapping[str, str],
    progress: bool | Progress = False,
    *,
    dry_run: Literal[False] = False,
    **arguments: "Unpack[LoadArguments]",
) -> LoadResult: ...


@overload
def load(
    spark: "SparkSession",
    name: str,
    target: str,
    options: Mapping[str, str],
    progress: bool | Progress = False,
    *,
    dry_run: Literal[True],
    **arguments: "Unpack[LoadArguments]",
) -> LoadPlan: ...


def load(
    spark: "SparkSession",
    name: str,
    target: str,
    options: Mapping[str, str],
    progress: bool | Progress = False,
    *,
    starting: Place | None = None,
    until: Place | None = None,
    max_bytes: int | str | None = None,
    chunk_bytes: int | str | None = None,
    transform: "Batches | Frames | None" = None,
    value_format: str = "binary",
    value_schema: str | None = None,
    registry: Mapping[str, str] | None = None,
    on_error: str = "fail",
    dead_letter_topic: str | None = None,
    partition_by: str | Sequence[str] = (),
    sort_by: str | Sequence[str] = (),
    compression: str = "zstd",
    target_file_bytes: int | str = FILE_BYTES,
    dry_run: bool = False,
) -> LoadResult | LoadPlan:
    """Lands what is new in some topics since the last load of this `name` into this `target`.

        load(spark, name="nightly", target="parquet:/data/orders",
             options={"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"})

    `options` are those of `spark.read.format("kafkalog")`, but that `kafka.isolation.level` is
    read_committed where it is not said. The first load of a topic begins at
    startingOffsets (earliest by default), later ones where the last commit ended, partitions that
    are new in the topic since then at 0. `progress` shows bars, or is a `Progress`.

    `starting` and `until` say in one word what startingOffsets, startingTimestamp, endingOffsets
    and endingTimestamp do (see `Place`); a time without a zone is in Spark's session time zone.
    Where the name has a commit already, `starting` may not lie beyond it, and has no effect.
    `max_bytes` (such as "10g") bounds what one load takes, in bytes of the log as
    maxBytesPerTrigger estimates them; `chunk_bytes` what one commit takes, so that a long catch-up
    is many commits, up to an end that is fixed when it begins. `dry_run` returns the plan and
    changes nothing.

    `transform` changes the rows on the way: a function of Arrow batches, whose parameter is
    annotated as `pyarrow.RecordBatch` (or Table), runs in the tasks; any other function is called
    with a DataFrame of exactly the planned records and returns one (see transformation.py). Either
    is called once before that, to learn which columns it makes. The offsets committed are those
    planned, whatever it leaves out.

    `value_format` (binary, string, json, avro, protobuf) with `value_schema` or `registry` decodes
    values: the fields of a struct become columns in the place of `value` (see values.py). A
    `registry`, such as {"schema.registry.url": "http://..."}, gives the newest schema of its option
    `subject` (TOPIC-value), where no schema is given.
    `on_error` says what becomes of a value that cannot be decoded, and of a record whose timestamp
    is no time: `fail`; `null`, which keeps the row, with the reason in the column value_error; or
    `deadletter`, which sends the record to `dead_letter_topic` (the topic's name and
    -dead-letters), made when it is missing.

    `partition_by` takes columns, `days(column)` and `hours(column)`; `sort_by` columns, each with
    ` desc` or not, by which every file is sorted; `compression` zstd, snappy, gzip, lz4 or none; a
    file that has reached `target_file_bytes` is followed by another one.

    Raises LoadConflictError when another load of the same name committed meanwhile; DataLossError
    when retention took offsets before they were loaded, a topic was recreated, or one that
    subscribePattern found was deleted (with failOnDataLoss=false: warns and goes on with what is
    there); TargetError; InvalidOptionError;
    UnknownTopicError; BrokersUnreachableError; with value_format InvalidSchemaError, BadRecordError
    and DeliveryError. After any error and after a kill, nothing of the commit at work is published
    or all of it, and loading again is right.
    """

    def session_zone() -> tzinfo:
        return _zone(spark.conf.get("spark.sql.session.timeZone") or "UTC")

    wanted = load_options(
        name,
        target,
        options,
        session_zone,
        starting=starting,
        until=until,
        max_bytes=max_bytes,
        chunk_bytes=chunk_bytes,
        transform=transform,
        value_format=value_format,
        value_schema=value_schema,
        registry=registry,
        on_error=on_error,
        dead_letter_topic=dead_letter_topic,
        partition_by=partition_by,
        sort_by=sort_by,
        compression=compression,
        target_file_bytes=target_file_bytes,
    )
    return plan_load(wanted) if dry_run else run_load(spark, wanted, progress)


def run_load(
    spark: "SparkSession", wanted: LoadOptions, progress: bool | Progress = False
) -> LoadResult:
    """Loads what `wanted` says; raises what `load` does."""
    work = _find_work(wanted)
    chunks = chunks_of(work.ranges, _taker(wanted))
    commits: list[Commit] = []
    bad_records = 0
    _make_letter_topics(wanted, work)
    with reported(progress, work.ranges) as watch:
        for chunk in chunks:
            commit, bad = _land(spark, wanted, work, pieces_of(chunk), watch)
            commits.append(commit)
            bad_records += bad
            # What was just committed is what the next one is planned from.
            work = replace(work, last=commit.offsets[wanted.name])
    return _result(wanted.name, str(work.target), commits, bad_records)


def plan_load(wanted: LoadOptions) -> LoadPlan:
    """What `load` would do, without Spark. Changes nothing, neither in the target nor elsewhere.

    Raises what `load` does.
    """
    work = _find_work(wanted, read_only=True)
    with Cluster(wanted.source.client, fails_fast=True) as cluster:
        sizes = bytes_of(cluster, work.ranges)
    pieces = pieces_of(work.ranges)
    commits = 1 if work.ranges else 0
    if wanted.chunk_bytes is not None and commits:
        commits = max(1, -(-sum(sizes.values()) // wanted.chunk_bytes))
    tasks = len(tasks_of(pieces))
    return LoadPlan(wanted.name, str(work.target), work.ranges, sizes, tasks, commits)


def has_work(wanted: LoadOptions) -> bool:
    """Whether `load` would commit anything, without Spark. Finishes, as `load` does, what a load
    that was killed has published. Raises what `load` does."""
    return bool(_find_work(replace(wanted, max_bytes=None)).ranges)


def _find_work(wanted: LoadOptions, read_only: bool = False) -> _Work:
    name, source = wanted.name, wanted.source
    target = open_target(wanted.target)
    position = target.position(name, read_only)
    with Cluster(source.client, fails_fast=True) as cluster:
        partitions, gone = partitions_now(cluster, source, position.without_deleted())
        topic_ids = {
            topic: topic_id
            for topic in {tp.topic for tp in partitions}
            if (topic_id := cluster.topic_id(topic)) is not None
        }
        known = position.without_deleted(topic_ids)
        meant = without_recreated(known, topic_ids, name, source.fail_on_data_loss)
        if wanted.has_start and meant:
            check_passed(cluster, source, partitions, meant, name)
        recreated = recreated_topics(known, topic_ids)
        ranges = plan(cluster, source, partitions, meant, name, recreated)
        if wanted.max_bytes is not None:
            ranges = within_bytes(cluster, ranges, wanted.max_bytes)
    without = places_of_gone(gone, known, name, source.fail_on_data_loss)
    ranges = sorted([*ranges, *without])
    planned = {piece.topic for piece in ranges}
    ids = {topic: one for topic, one in topic_ids.items() if topic in planned}
    ids |= {piece.topic: deleted(known.topic_ids[piece.topic]) for piece in without}
    return _Work(target, position.offsets, tuple(ranges), ids)


def _make_letter_topics(wanted: LoadOptions, work: _Work) -> None:
    topics = {piece.topic for piece in work.ranges if piece.offset_count}
    if topics and wanted.values is not None and wanted.has_dead_letters:
        with Cluster(wanted.source.client) as cluster:
            make_topics(cluster, topics, wanted.values.letters_to)


def _land(
    spark: "SparkSession",
    wanted: LoadOptions,
    work: _Work,
    pieces: Sequence[OffsetRange],
    watch: Watch,
) -> tuple[Commit, int]:
    """Lands and commits some of the work; also how many records could not be decoded."""
    reading, layout = wanted.reading(work.topic_ids), wanted.layout
    schema = _columns_of(spark, reading, wanted.query, pieces)
    check_layout(layout, schema)
    stage = work.target.stage(schema, layout.partition_by)
    if reading.values is not None:
        # What a transformation has replaced by then does no harm.
        takes_nan = stage.takes_nan or wanted.batches is not None or wanted.query is not None
        values = replace(reading.values, takes_nul=stage.takes_nul, takes_nan=takes_nan)
        reading = replace(reading, values=values)
    try:
        with watch(stage.path, pieces):
            done = _run(spark, Landing(reading, stage, layout), wanted.query, pieces)
    except BaseException:
        # Once commit() was called this would not be safe: it may have published.
        work.target.discard(stage)
        raise
    passed = without_gaps(pieces, done.gaps)
    commit = work.target.commit(stage, wanted.name, work.last, passed, done.files, work.topic_ids)
    return commit, done.bad_records


def _columns_of(
    spark: "SparkSession", reading: Reading, query: "Frames | None", ranges: Sequence[OffsetRange]
) -> pa.Schema:
    """The columns that the load's files are going to have."""
    if query is not None:
        from pyspark_kafkalog.warehouse.dataframe import planned_rows, result_schema

        return result_schema(query(planned_rows(spark, reading, tasks_of(ranges), None)))
    if reading.transform is not None:
        return transformed_schema(reading.transform, reading.schema())
    return reading.schema()


@dataclass(frozen=True, slots=True)
class _Done:
    """What the tasks of a commit did: its files, how many records could not be decoded, and which
    offsets were gone and given up."""

    files: Sequence[DataFile] = ()
    bad_records: int = 0
    gaps: Sequence[OffsetRange] = ()


def _run(
    spark: "SparkSession", landing: Landing, query: "Frames | None", pieces: Sequence[OffsetRange]
) -> _Done:
    if query is None:
        landed = _run_tasks(spark, landing, pieces)
        return _Done(
            verified_files(pieces, landed, landing.reading.rows_of),
            sum(result.bad_records for result in landed),
            [gap for result in landed for gap in result.gaps],
        )
    return _run_query(spark, landing, query, pieces) if tasks_of(pieces) else _Done()


def _run_query(
    spark: "SparkSession", landing: Landing, query: "Frames", ranges: Sequence[OffsetRange]
) -> _Done:
    from pyspark.errors import PySparkException

    from pyspark_kafkalog.warehouse.dataframe import (
        planned_rows,
        read_counts,
        result_schema,
        written_files,
    )

    stage = landing.stage
    result = query(planned_rows(spark, landing.reading, tasks_of(ranges), stage.path))
    found = result_schema(result)
    if not found.equals(storable(stage.schema)):
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
    return _Done(files, *read_counts(stage.path))


def plan(
    cluster: Cluster,
    options: SourceOptions,
    partitions: list[TopicPartition],
    last: Offsets,
    name: str,
    recreated: Collection[str] = (),
) -> list[OffsetRange]:
    """What a load has to do: one range for each of the `partitions` that it is to read and that
    are new to it or have something new, sorted.

    A topic that is new begins at startingOffsets, a partition that is new in a topic which the last
    commit knows at 0, or at the offset that startingOffsets gives for it. A range of no offsets
    records the place of an empty partition, or one that lost data moved (failOnDataLoss=false), or
    that its topic is a `recreated` one: otherwise the next load would not know what came, and went,
    in between, and would refuse once more what was given up. One goes before the range of a
    partition without a place that does not begin where it should: what lies between is given up.
    """
    ending = locate(cluster, options.ending, partitions)
    loaded = {tp.topic for tp in last}
    first = [tp for tp in partitions if tp.topic not in loaded]
    starting = options.starting if not last else _only(options.starting, first)
    first = [tp for tp in first if not last or starting.names(tp)]
    begins = locate(cluster, starting, first)
    bounds = log_bounds(cluster, partitions)
    untils = resolve("endingOffsets", ending, partitions, bounds)
    chosen = resolve("startingOffsets", begins, first, bounds)
    added = [tp for tp in partitions if tp.topic in loaded and tp not in last]
    told = _named_offsets(options.starting, added)
    wanted = {tp: last.get(tp, chosen.get(tp, bounds.earliest[tp])) for tp in partitions}
    wanted |= dict.fromkeys(added, 0) | told
    new = [tp for tp in added if tp not in told]
    _check_added(new, bounds, options.fail_on_data_loss, name)
    bounds = beyond_open_transactions(cluster, wanted, bounds)
    try:
        starts = clamp_starts(wanted, bounds, options.fail_on_data_loss)
    except DataLossError as error:
        raise DataLossError(
            f"{error} This is where the last commit of load {name!r} ended; a load of another name "
            "begins at startingOffsets, which is right for a topic that was recreated."
            if last
            else str(error)
        ) from error
    given_up = [
        OffsetRange(tp.topic, tp.partition, wanted[tp], wanted[tp])
        for tp in partitions
        if tp not in last and tp.topic not in recreated and starts[tp] > wanted[tp]
    ]
    ranges = (
        OffsetRange(
            tp.topic,
            tp.partition,
            starts[tp],
            max(starts[tp], min(untils[tp], bounds.latest[tp])),
        )
        for tp in partitions
    )
    wholes = [
        whole
        for whole in ranges
        if whole.offset_count
        or starts[whole.topic_partition] != wanted[whole.topic_partition]
        or whole.topic_partition not in last
        or whole.topic in recreated
    ]
    return sorted([*given_up, *wholes])


def _named_offsets(starting: Limit, partitions: Sequence[TopicPartition]) -> Offsets:
    """The offsets that the user gives for some of these very partitions."""
    if not isinstance(starting, OffsetLimit):
        return {}
    return {tp: n for tp, n in starting.named_offsets().items() if tp in partitions}


def _check_added(
    added: Sequence[TopicPartition], bounds: LogBounds, fail_on_data_loss: bool, name: str
) -> None:
    late = {tp: bounds.earliest[tp] for tp in added if bounds.earliest[tp] > 0}
    if late and fail_on_data_loss:
        first = min(late)
        raise DataLossError(
            f"Load {name!r} has commits of the topic and sees these partitions for the first time, "
            f"which do not begin at offset 0: {describe(late)}, {describe([first])} at "
            f"{late[first]}. Retention may have taken records before they were loaded. If nothing "
            "was lost (the name was made by an earlier release, which kept no place of an empty "
            "partition, or other partitions were assigned), name them in the option "
            f"startingOffsets: '{json.dumps(to_json(late))}', with the other partitions of the "
            "load, whose offsets have no effect. To load what is there, and record the rest as "
            "given up, set the option failOnDataLoss to false."
        )


def check_passed(
    cluster: Cluster,
    options: SourceOptions,
    partitions: Sequence[TopicPartition],
    last: Offsets,
    name: str,
) -> None:
    """Raises InvalidOptionError if a load of `name`, which has commits, is told to start beyond
    them: it would leave records out. Warns that the start has no effect otherwise."""
    partitions = [tp for tp in partitions if tp in last]
    if not partitions:
        return
    starting = _only(options.starting, partitions)
    if not isinstance(starting, RelativeLimit):
        partitions = [tp for tp in partitions if starting.names(tp)]
        begins = locate(cluster, starting, partitions).of(partitions)
        beyond = [tp for tp in partitions if begins[tp] != LATEST and begins[tp] > last[tp]]
        if beyond:
            raise InvalidOptionError(
                f"Load {name!r} has commits and goes on at offset {last[beyond[0]]} of "
                f"{describe(beyond[:1])}, and is told to start at offset {begins[beyond[0]]}: the "
                "records between would be left out. Say no start, or give the load another name."
            )
    _log.warning(
        "Load %r has commits: it goes on where the last one ended. Where to start counts for "
        "the first load of a topic only.",
        name,
    )


def _only(limit: Limit, partitions: Sequence[TopicPartition]) -> Limit:
    """`limit` without what it says of other partitions than `partitions`."""
    if isinstance(limit, RelativeLimit) or limit.by_partition is None:
        return limit
    named = {tp: limit.by_partition[tp] for tp in partitions if tp in limit.by_partition}
    if not isinstance(limit, OffsetLimit):
        return replace(limit, by_partition=named)
    topics = {tp.topic for tp in partitions}
    by_topic = {topic: symbol for topic, symbol in limit.by_topic.items() if topic in topics}
    return replace(limit, by_partition=named, by_topic=by_topic)


def _taker(
    wanted: LoadOptions,
) -> Callable[[Sequence[OffsetRange]], list[OffsetRange]] | None:
    most_bytes = wanted.chunk_bytes
    if most_bytes is None:
        return None

    def take(left: Sequence[OffsetRange]) -> list[OffsetRange]:
        with Cluster(wanted.source.client) as cluster:
            return within_bytes(cluster, left, most_bytes)

    return take


def _zone(name: str) -> tzinfo:
    """A time zone by the name that Spark has for it."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        if name in ("Z", "UTC"):
            return timezone.utc
        raise InvalidOptionError(
            f"Spark's session time zone {name} is not known to Python: give times with a zone, "
            "such as 2026-11-01T00:00+01:00."
        ) from None


def verified_files(
    ranges: Sequence[OffsetRange],
    landed: Sequence[Landed],
    rows_of: Callable[[Landed], int | None],
) -> list[DataFile]:
    """The files of a load, in the order of `ranges`; raises unless they account for every range.

    `rows_of` says how many rows a range has to have become; None is any number.
    """
    by_range = {result.offset_range: result for result in landed}
    wanted = [piece for piece in ranges if piece.offset_count]
    if len(landed) != len(wanted) or by_range.keys() != set(wanted):
        raise KafkalogError(
            f"Spark returned {len(landed)} results for {len(wanted)} ranges of offsets; nothing "
            "was published. Run the load again."
        )
    for result in landed:
        _check(result, rows_of(result))
    files = [file for piece in wanted for file in by_range[piece].files]
    if len({file.name for file in files}) < len(files):
        raise KafkalogError(f"two results name one file, nothing was published: {files}")
    return files


def _check(landed: Landed, row_count: int | None) -> None:
    piece, files = landed.offset_range, landed.files
    if landed.records:
        fits = (
            piece.start_offset <= landed.first_offset <= landed.last_offset < piece.until_offset
            and 0 < landed.records <= landed.last_offset - landed.first_offset + 1
            and 0 <= landed.bad_records <= landed.records
        )
    else:
        fits = not files
    for gap in landed.gaps:
        fits &= (
            gap.topic_partition == piece.topic_partition
            and piece.start_offset <= gap.start_offset <= gap.until_offset <= piece.until_offset
        )
    if row_count is not None:
        fits &= row_count == sum(file.records for file in files)
    if not (fits and all(file.records > 0 for file in files)):
        raise KafkalogError(f"what landed does not fit {piece}, nothing was published: {landed}")


def pieces_of(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """`ranges` in pieces of at most MOST_OFFSETS_PER_TASK; empty ones stay."""
    return [piece for whole in ranges for piece in _cut(whole)]


def _cut(whole: OffsetRange) -> Iterator[OffsetRange]:
    if not whole.offset_count:
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


def _result(name: str, target: str, commits: Sequence[Commit], bad_records: int) -> LoadResult:
    files = tuple(file for commit in commits for file in commit.files)
    return LoadResult(
        name=name,
        target=target,
        records=sum(file.records for file in files),
        bytes=sum(file.size_bytes for file in files),
        ranges=tuple(piece for commit in commits for piece in commit.ranges),
        files=files,
        commit_id=commits[-1].commit_id if commits else None,
        commits=len(commits),
        gaps=tuple(gap for commit in commits for gap in commit.gaps),
        bad_records=bad_records,
    )
