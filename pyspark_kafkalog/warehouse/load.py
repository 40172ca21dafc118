"""`pyspark_kafkalog.load`: topics into a warehouse, each record exactly once.

    options    what the user said, parsed and checked once (options.py)
    plan       ranges of offsets from the target's last commit to what the log holds now (plan.py)
    land       tasks read them, write files into a stage of the target (landing.py), and report; an
               engine runs the tasks (engines/)
    verify     what they report accounts for every range (verify.py)
    commit     one commit publishes files and offsets together (target.py)

The last commit IS the next start: no checkpoint, no consumer group. Killed at any instant, a load
leaves the target as it was or as it should be, and the next load goes on.

Runs on the driver, also with Spark Connect, or without Spark; several loads may run at a time, in
any processes. Rows never reach the driver.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timezone, tzinfo
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, overload
from zoneinfo import ZoneInfo

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import InvalidOptionError, counted
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import Commit, DataFile, PendingCommit, without_gaps
from pyspark_kafkalog.warehouse.engines.local import LocalEngine
from pyspark_kafkalog.warehouse.engines.spark import SparkEngine
from pyspark_kafkalog.warehouse.landing import Landing, Reading
from pyspark_kafkalog.warehouse.load_group import tell_group
from pyspark_kafkalog.warehouse.lost_tombstones import report_lost_tombstones
from pyspark_kafkalog.warehouse.marks import marks_of
from pyspark_kafkalog.warehouse.options import LoadArguments, LoadOptions, load_options
from pyspark_kafkalog.warehouse.places import Place
from pyspark_kafkalog.warehouse.plan import LoadPlan, Work, find_work, plan_load
from pyspark_kafkalog.warehouse.portions import chunks_of, pieces_of, within_bytes
from pyspark_kafkalog.warehouse.progress import Progress, Watch, reported
from pyspark_kafkalog.warehouse.rows.dead_letters import make_topics
from pyspark_kafkalog.warehouse.rows.layout import FILE_BYTES, check_layout
from pyspark_kafkalog.warehouse.rows.schema_change import kept_columns
from pyspark_kafkalog.warehouse.rows.transformation import Batches
from pyspark_kafkalog.warehouse.verify import Outcome

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from typing_extensions import Unpack

    from pyspark_kafkalog.warehouse.engines.dataframe import Frames


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
        bad = f", {counted(self.bad_records, 'bad record')}" if self.bad_records else ""
        commits = f"{self.commits} commits up to" if self.commits > 1 else "commit"
        lost = sum(gap.offset_count for gap in self.gaps)
        gone = f", {counted(lost, 'offset')} gone" if lost else ""
        return (
            f"<LoadResult {self.name!r} to {self.target}: {commits} {self.commit_id}, "
            f"{counted(self.records, 'record')} of {counted(len(partitions), 'partition')}, "
            f"{counted(self.bytes, 'byte')} in {counted(len(self.files), 'file')}{bad}{gone}>"
        )


@overload
def load(
    spark: "SparkSession | None",
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
    spark: "SparkSession | None",
    name: str,
    target: str,
    options: Mapping[str, str],
    progress: bool | Progress = False,
    *,
    dry_run: Literal[True],
    **arguments: "Unpack[LoadArguments]",
) -> LoadPlan: ...


def load(
    spark: "SparkSession | None",
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
    group: str | None = None,
    mode: str = "append",
    key: str | Sequence[str] | None = None,
    order_by: str | None = None,
    envelope: str | None = None,
    on_schema_change: str | None = None,
    dry_run: bool = False,
) -> LoadResult | LoadPlan:
    """Lands what is new in some topics since the last load of this `name` into this `target`.

        load(spark, name="nightly", target="parquet:/data/orders",
             options={"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"})

    Without a session (`load(None, ...)`) tasks run in processes of this machine, one for each
    processor, and no JVM starts; a function of DataFrames needs one.

    `options` are those of `spark.read.format("kafkalog")`, but `kafka.isolation.level` is
    read_committed by default. The first load of a topic begins at startingOffsets (earliest by
    default), later ones where the last commit ended, and in partitions that are new since then at
    0. `progress` shows bars; or it is a function that is called with a LoadProgress.

    `starting` and `until` say in one word what startingOffsets, startingTimestamp, endingOffsets
    and endingTimestamp do: a time (a datetime, ISO text or ms since the epoch), offsets (a mapping
    or JSON), `earliest` or `latest`; `starting` may count back (`-7 days`, `-1000 offsets`). A time
    without a zone is in Spark's session time zone, or this machine's without Spark.
    Where the name has a commit already, `starting` may not lie beyond it, and has no effect.
    `max_bytes` (such as "10g") bounds what one load takes, in bytes of the log as
    maxBytesPerTrigger estimates them; `chunk_bytes` what one commit takes, so that a long catch-up
    is many commits, up to an end that is fixed when it begins. `dry_run` returns the plan and
    changes nothing.

    `transform` changes the rows on the way: a function of Arrow batches, whose parameter is
    annotated as `pyarrow.RecordBatch` (or Table), runs in the tasks; any other function is called
    with a DataFrame of exactly the planned records and returns one. Either is called once before
    that, to learn which columns it makes. The offsets committed are those planned, whatever it
    leaves out.

    `value_format` (binary, string, json, avro, protobuf) with `value_schema` or `registry`
    decodes values: the fields of a struct become columns in the place of `value`. A `registry`,
    such as {"schema.registry.url": "http://..."}, gives the newest schema of its option
    `subject` (TOPIC-value), where no schema is given.
    `on_error` says what becomes of a value that cannot be decoded, and of a record whose timestamp
    is no time: `fail`; `null`, which keeps the row, with the reason in the column value_error; or
    `deadletter`, which sends the record to `dead_letter_topic` (the topic's name and
    -dead-letters), made when it is missing.

    `partition_by` takes columns, `years(column)`, `months(column)`, `days(column)` and
    `hours(column)`, for Iceberg also `truncate(width, column)` and `bucket(count, column)`;
    `sort_by` columns, each with ` desc` or not, by which every file is sorted; `compression` zstd,
    snappy, gzip, lz4 or none; a file that has reached `target_file_bytes` is followed by another.

    `group` is a consumer group whose offsets are committed after each commit of the load, so that
    lag tools see how far it is. They are not where it goes on; a failure is a warning.

    With `mode` upsert the newest record of each key is the table's row, and a tombstone (a record
    without a value) deletes it. `key` names the columns that make a key; without it that is the
    record's. `order_by` names the column whose greater value is newer; without it the later record
    of a partition is, and one key in two partitions is an error. `envelope` debezium makes rows of
    Debezium's change events.

    `on_schema_change` says what becomes of a table when rows have other columns than it: `fail`;
    `add`, which makes new columns in the commit that first needs them; or `widen`, which also
    gives columns a wider type where the format loses nothing by it. Unless it is said, loads that
    decode values by a schema add columns to tables that they have loaded into before, and others
    fail, but for directories of Parquet files, which take more columns. A type that cannot become
    another one is an error, or, with `on_error` null or deadletter, makes a bad value of each that
    does not fit the column.

    Raises LoadConflictError when another load of the same name committed meanwhile; DataLossError
    when retention took offsets before they were loaded, a topic was recreated, or one that
    subscribePattern found was deleted (with failOnDataLoss=false: warns and goes on with what is
    there); TargetError; InvalidOptionError;
    UnknownTopicError; BrokersUnreachableError; with value_format InvalidSchemaError, BadRecordError
    and DeliveryError. After any error and after a kill, nothing of the commit at work is published
    or all of it, and loading again is right.
    """

    wanted = load_options(
        name,
        target,
        options,
        lambda: session_zone(spark),
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
        group=group,
        mode=mode,
        key=key,
        order_by=order_by,
        envelope=envelope,
        on_schema_change=on_schema_change,
    )
    if dry_run:
        return plan_load(wanted)
    if spark is not None:
        return run_load(SparkEngine(spark, wanted.query), wanted, progress)
    if wanted.query is not None:
        raise InvalidOptionError(
            "transform is a function of DataFrames, which are Spark's: give load() a SparkSession, "
            "or annotate its parameter as pyarrow.RecordBatch if it is a function of Arrow batches"
        )
    with LocalEngine() as engine:
        return run_load(engine, wanted, progress)


class Engine(Protocol):
    """Runs the tasks of a load."""

    def columns(self, reading: Reading, ranges: Sequence[OffsetRange]) -> "pa.Schema":
        """The columns that the load's files are going to have."""

    def run(self, landing: Landing, ranges: Sequence[OffsetRange]) -> Outcome:
        """Lands `ranges`; raises the error of a task that failed, and KafkalogError unless what
        landed fits them."""


Stop: TypeAlias = Callable[[], bool]
"""Whether a load is to end when the commit at work is made."""


def never() -> bool:
    """Nobody stops the load."""
    return False


def run_load(
    engine: Engine,
    wanted: LoadOptions,
    progress: bool | Progress = False,
    stop: Stop = never,
) -> LoadResult:
    """Loads what `wanted` says, with tasks run by `engine`, until that is done or `stop` says so
    between two commits; raises what `load` does. Thread-safe."""
    work = find_work(wanted)
    chunks = chunks_of(work.ranges, _taker(wanted))
    commits: list[Commit] = []
    bad_records = 0
    _make_letter_topics(wanted, work)
    with reported(progress, work.ranges) as watch:
        for chunk in chunks:
            if stop():
                break
            commit, bad = _land(engine, wanted, work, pieces_of(chunk), watch)
            commits.append(commit)
            bad_records += bad
            # What was just committed is what the next one is planned from.
            work = replace(work, position=commit.position(wanted.name))
            tell_group(wanted, work.position)
    if not commits:
        # It may not have heard of the last one.
        tell_group(wanted, work.position)
    return _result(wanted.name, str(work.target), commits, bad_records)


def _make_letter_topics(wanted: LoadOptions, work: Work) -> None:
    topics = {piece.topic for piece in work.ranges if piece.offset_count}
    if topics and wanted.values is not None and wanted.has_dead_letters:
        with Cluster(wanted.source.client) as cluster:
            make_topics(cluster, topics, wanted.values.letters_to)


def _land(
    engine: Engine,
    wanted: LoadOptions,
    work: Work,
    pieces: Sequence[OffsetRange],
    watch: Watch,
) -> tuple[Commit, int]:
    """Lands and commits some of the work; also how many records could not be decoded."""
    reading, layout = wanted.reading(work.topic_ids, work.epochs), wanted.layout
    schema = engine.columns(reading, pieces)
    check_layout(layout, schema)
    change = wanted.schema_change(is_known=bool(work.position.offsets))
    stage = work.target.stage(schema, layout.partition_by, change, wanted.upsert)
    if reading.values is not None:
        # What a transformation has replaced by then does no harm.
        may_replace = wanted.batches is not None or wanted.query is not None
        values = replace(
            reading.values,
            takes_nul=stage.takes_nul,
            takes_nan=stage.takes_nan or may_replace,
            takes_infinity=stage.takes_infinity or may_replace,
            days=None if may_replace else stage.days,
            narrower=kept_columns(change, schema, stage.schema),
        )
        reading = replace(reading, values=values)
    try:
        with watch(stage.path, pieces):
            # Before records are read: if their log is replaced meanwhile, the next load finds out.
            marks = marks_of(wanted.source.client, pieces, work.topic_ids)
            done = engine.run(Landing(reading, stage, layout, schema), pieces)
        report_lost_tombstones(wanted.source, wanted.name, work, done.holes)
    except BaseException:
        # Once commit() was called this would not be safe: it may have published.
        work.target.discard(stage)
        raise
    passed = without_gaps(pieces, done.gaps)
    name, planned_from, ids = wanted.name, work.position, work.topic_ids
    pending = PendingCommit(stage, name, planned_from, passed, done.files, ids, work.epochs, marks)
    if wanted.upsert is not None:
        places = {piece.topic_partition: piece.until_offset for piece in sorted(pieces)}
        caught_up = work.ends.caught_up(planned_from.caught_up, places)
        pending = replace(pending, caught_up=caught_up)
    return work.target.commit(pending), done.bad_records


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


def session_zone(spark: "SparkSession | None") -> tzinfo | None:
    """Where times without a zone are; None is this machine's."""
    if spark is None:
        return None
    return _zone(spark.conf.get("spark.sql.session.timeZone") or "UTC")


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
