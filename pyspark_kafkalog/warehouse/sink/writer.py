"""Rows of DataFrames and streams into a load target: each once, whatever became of the checkpoint.

    plan     the driver asks the target where the load of this name goes on, and makes a stage
    write    each task leaves out the rows that are there already, writes the others into files of
             the stage, and reports these with the offsets of their rows
    commit   one commit of the target publishes all files, and moves each partition to after the
             greatest offset of its rows; it is refused if the load has moved since the plan

So the target's own offsets are the only truth. A micro-batch that is run again, after a kill or
because the checkpoint is gone, finds its rows there and leaves them out; a twin of a task reports
to nobody; of two queries that move one name at a time one gets a LoadConflictError, and gets it
again when Spark runs its batch again: rows that are below the place of the name are left out only
where this query moved it there, or a load did (query_number.py). Rows of one
partition may be spread over the tasks of a batch in any way, and a record may become many rows or
none. A micro-batch moves each partition to where it was read to, also without a row; a batch write
to after its rows. written_ranges.py says when that would leave records out.

Rows do not say of which incarnation of their topic they are. So the brokers are asked for the ids
of topics before the tasks begin: commits keep them, and a topic that was deleted and created again
since the last commit is refused. So is a log that was cut off before the place of the name, by the
epochs of its leaders (truncation.py), which were asked for after the source had planned what to
read.

What would break this is a row that comes in a later batch than a greater offset of its partition.
micro_batch.py finds such rows by the offsets in the checkpoint before anything is committed, also
for a write in foreachBatch that is told the checkpoint. Other batch writes have no such order:
whatever lies below the place of the name is left out, and that is logged.

Spark makes writers to plan, to commit and to abort in processes of its own; only one that is
pickled for tasks takes a stage, and only messages travel back. After a commit that failed Spark
aborts, though it may have published: files are dropped only where a task failed.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, IntegerType, LongType, ShortType, StringType, StructType

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.errors import (
    DataLossError,
    InvalidOptionError,
    InvalidRowError,
    KafkalogError,
    LoadConflictError,
)
from pyspark_kafkalog.source.log_identity import LogIdentity
from pyspark_kafkalog.source.offsets import (
    EARLIEST,
    Limit,
    LogBounds,
    OffsetLimit,
    Offsets,
    describe,
    parse_start,
)
from pyspark_kafkalog.source.option_table import Option, names
from pyspark_kafkalog.source.options import client_config, parse_boolean, parse_bytes, warn_unknown
from pyspark_kafkalog.source.partitions import OffsetRange, log_bounds
from pyspark_kafkalog.source.plain_errors import PlainErrors
from pyspark_kafkalog.source.planned_on_pickle import PlannedOnPickle
from pyspark_kafkalog.source.python_worker import freeze_imports
from pyspark_kafkalog.source.second_look import look_twice
from pyspark_kafkalog.warehouse.commit import (
    NO_EPOCHS,
    NO_IDS,
    NO_QUERIES,
    OTHER_NAME,
    Commit,
    DataFile,
    Epochs,
    PendingCommit,
    Position,
    Stage,
    TopicIds,
    without_recreated,
)
from pyspark_kafkalog.warehouse.marks import marks_of
from pyspark_kafkalog.warehouse.rows.allowed_change import UNSAID, SchemaChange, parse_schema_change
from pyspark_kafkalog.warehouse.rows.layout import PLAIN, Layout, check_layout, make_layout
from pyspark_kafkalog.warehouse.rows.row_types import storable
from pyspark_kafkalog.warehouse.sink.micro_batch import MicroBatch, micro_batch
from pyspark_kafkalog.warehouse.sink.query_number import is_same_query, query_number
from pyspark_kafkalog.warehouse.sink.row_places import NewRows, Spans, joined
from pyspark_kafkalog.warehouse.sink.written_ranges import Begins, quiet_places, written_ranges
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.target import open_target
from pyspark_kafkalog.warehouse.truncation import truncated

_INTEGERS = (ShortType, IntegerType, LongType)
_PLACE_TYPES: Mapping[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "partition": _INTEGERS,
    "offset": _INTEGERS,
}
OPTIONS = (
    Option("target", "", "That of `load`, such as `delta:/lake/orders`. Must be set."),
    Option("name", "", "That of `load`: its place in the target. Must be set."),
    Option("partitionBy", "", "As `partition_by` of `load`."),
    Option("sortBy", "", "As `sort_by` of `load`."),
    Option("compression", "`zstd`", "As that of `load`."),
    Option("targetFileBytes", "`512m`", "As `target_file_bytes` of `load`."),
    Option(
        "onSchemaChange",
        "",
        "As `on_schema_change` of `load`; `fail` unless it is set, but for Parquet.",
    ),
    Option(
        "startingOffsets",
        "",
        "That of the read: where a name without a place begins, or rows were filtered, nothing "
        "else says that no record was left out.",
    ),
    Option(
        "failOnDataLoss",
        "`true`",
        "With `false`, records that would be left out are a gap in the commit, and no "
        "`DataLossError`.",
    ),
    Option(
        "uncheckedTopicIds",
        "`false`",
        "`true`: `kafka.bootstrap.servers` need not be set, where the driver cannot ask the "
        "brokers. A topic that was deleted and created again is not noticed then.",
    ),
    Option(
        "uncheckedOffsets",
        "`false`",
        "`true` where Python cannot read the checkpoint, for a query that holds no rows back; its "
        "places move with rows alone.",
    ),
)
"""All that a write takes, beside Spark's own and `kafka.*`; the documentation's table, too."""

_BEGIN_ANEW = (
    "read it from there (a stream with a new checkpoint in the place of the old one, in which "
    "offsets mean other records, too) and set the option failOnDataLoss of the write to false"
)
_ANOTHER_NAME = (
    "What one query has passed counts as loaded for the others of its name, whatever it filtered: "
    "give each query, and each flow of a pipeline, another name."
)
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""What Spark calls them among the properties of a task."""
_MOST_MS_FOR_OTHERS = 5_000
"""For where logs begin of topics that a load does not know: it goes on without."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadSinkOptions:
    """What a write was asked for; `layout` is that of `load`, `checkpoint_location` Spark's own.

    With `unchecked_offsets` a stream runs whose checkpoint cannot be read from Python. `client` is
    there to ask for the ids of topics, and none where that was forgone; recreated ones, and records
    that would be left out, are refused with `fail_on_data_loss`. `starting` is where the user says
    that the read begins.
    """

    target: str
    name: str
    layout: Layout = PLAIN
    checkpoint_location: str | None = None
    unchecked_offsets: bool = False
    client: ClientConfig | None = None
    fail_on_data_loss: bool = True
    starting: Limit | None = None
    change: SchemaChange = UNSAID


def load_sink_options(options: Mapping[str, str]) -> LoadSinkOptions:
    """The options of `format("kafkalog_load")`; raises InvalidOptionError."""
    values = {name.lower(): value for name, value in options.items()}
    for name, example in (("target", "parquet:/data/orders"), ("name", "nightly")):
        if not values.get(name, "").strip():
            raise InvalidOptionError(f"Option {name} must be set, for example to {example}.")
    if "mode" in values or "key" in values:
        raise InvalidOptionError(
            "kafkalog_load appends rows, and takes neither mode nor key: upserts are made by "
            "pyspark_kafkalog.load(mode='upsert') and kafkalog load --mode upsert"
        )
    warn_unknown(values, names(OPTIONS))
    starting = values.get("startingoffsets")
    open_target(values["target"])
    return LoadSinkOptions(
        values["target"],
        values["name"],
        make_layout(
            values.get("partitionby", ""),
            values.get("sortby", ""),
            values.get("compression", PLAIN.compression),
            parse_bytes("targetFileBytes", values.get("targetfilebytes", str(PLAIN.file_bytes))),
        ),
        values.get("checkpointlocation"),
        unchecked_offsets=parse_boolean(values, "uncheckedOffsets", default=False),
        client=_client(values),
        fail_on_data_loss=parse_boolean(values, "failOnDataLoss", default=True),
        starting=None if starting is None else parse_start("startingOffsets", starting),
        change=parse_schema_change(values.get("onschemachange"), "onSchemaChange"),
    )


def _client(values: Mapping[str, str]) -> ClientConfig | None:
    if "kafka.bootstrap.servers" not in values:
        if parse_boolean(values, "uncheckedTopicIds", default=False):
            return None
        raise InvalidOptionError(
            "Option kafka.bootstrap.servers must be set on the write, too, with the other options "
            "kafka.* that it takes to connect: rows do not tell that their topic was deleted and "
            "created again, and would be taken for loaded ones. Where the driver cannot ask the "
            "brokers, set the option uncheckedTopicIds to true."
        )
    return client_config(values)


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """What was found out before the tasks began.

    The target was at `planned_from`; rows are new from `next_offsets` on, which differ from these
    where a topic was recreated. `topic_ids` are those of all topics, and `earliest` is where the
    partitions begin of those that brokers were asked for, `epochs` those of their leaders.
    """

    stage: Stage
    planned_from: Position
    next_offsets: Offsets
    topic_ids: TopicIds
    earliest: Offsets = field(default_factory=dict)
    epochs: Epochs = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedRows(WriterCommitMessage):
    """What one task reports: its files, and the places of its rows.

    `seen` are those of all its rows, also of those that it left out; `query_id` and `batch` are of
    the query and the micro-batch, where it is one's. With it goes the plan, which the commit needs
    in another process: with the first task's all that brokers said, with the others' nothing of it.
    """

    plan: SinkPlan
    files: tuple[DataFile, ...]
    seen: Spans
    left_out_count: int
    query_id: str | None = None
    batch: str | None = None


class LoadSinkWriter(PlannedOnPickle[SinkPlan]):
    """What the writers of batches and streams share."""

    _knows_topics_later = False
    """Whether, of topics that are new to the name, only those are asked about that a commit brings:
    each micro-batch would else ask for all topics of the cluster, and wait for a leader that is
    away. A batch write asks before its tasks begin, since in no checkpoint there is where those
    partitions begin that give no row."""

    def __init__(self, options: LoadSinkOptions, schema: StructType) -> None:
        freeze_imports()
        check_place_columns(schema)
        self._options = options
        self._schema = schema

    def for_tasks(self) -> dict[str, Any]:
        """Tasks ask no brokers, and need no passwords."""
        return {**vars(self), "_options": replace(self._options, client=None)}

    def make_plan(self) -> SinkPlan:
        """Asks brokers and target, and makes the stage."""
        options = self._options
        schema = storable(to_arrow_schema(self._schema, timezone="UTC"))
        check_layout(options.layout, schema)
        target = open_target(options.target)
        position = target.position(options.name)
        goes_on, ids, bounds = self._asked(position)
        stage = target.stage(schema, options.layout.partition_by, options.change)
        return SinkPlan(stage, position, goes_on, ids, bounds.earliest, bounds.epochs)

    def _asked(self, position: Position) -> tuple[Offsets, TopicIds, LogBounds]:
        """Where rows are new, the ids of all topics that are there, and where the partitions begin
        and end of topics with a place, and perhaps of others, as far as brokers say all that.

        Raises TopicRecreatedError, and DataLossError for logs that were cut off before that."""
        name, client, fails = (
            self._options.name,
            self._options.client,
            self._options.fail_on_data_loss,
        )
        if client is None:
            return without_recreated(position, NO_IDS, name, fails), NO_IDS, LogBounds({}, {})
        known = {each.topic for each in position.offsets}
        with Cluster(client) as cluster:
            topics = cluster.topics()
            # Internal topics are not among all of them, and may be read by name.
            said = {topic: cluster.topic_id(topic) for topic in {*topics, *known}}
            ids = {topic: topic_id for topic, topic_id in said.items() if topic_id is not None}
            goes_on = without_recreated(position, ids, name, fails, _BEGIN_ANEW)

            at = Position(goes_on, ids, position.epochs, position.marks)

            def look(fails: bool) -> tuple[Offsets, LogBounds]:
                bounds = log_bounds(cluster, _partitions(topics, known))
                return truncated(cluster, at, bounds, name, fails), bounds

            try:
                cut, bounds = look_twice(cluster, look, fails)
            except DataLossError as error:
                raise DataLossError(f"{error} To have all of it, {_BEGIN_ANEW}.") from error
            goes_on |= cut
        if not self._knows_topics_later:
            bounds = _joined(bounds, _soon_asked(client, topics.keys() - known))
        return goes_on, ids, bounds

    @PlainErrors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> LoadedRows:
        """Writes those of one task's rows that the target does not have; they are on disk when it
        returns."""
        plan = self.plan
        assert plan is not None
        freeze_imports()
        context = TaskContext.get()
        assert context is not None
        rows = NewRows(plan.next_offsets)
        label = f"task-{context.partitionId()}"
        stage, layout = plan.stage, self._options.layout
        files = tuple(write_files(stage, label, rows.of(iterator), layout))
        if sum(file.records for file in files) != rows.row_count - rows.left_out_count:
            raise AssertionError(f"{rows.row_count} rows came, and {files} are written")
        if context.partitionId():
            # A cluster may have many topics, and each task reports.
            plan = replace(plan, topic_ids=NO_IDS, earliest={}, epochs=NO_EPOCHS)
        of_query = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        return LoadedRows(plan, files, rows.seen, rows.left_out_count, *of_query)

    def _commit(
        self, messages: Sequence[WriterCommitMessage | None], batch: int | None
    ) -> Commit | None:
        reports = [message for message in messages if isinstance(message, LoadedRows)]
        if not reports:
            return None
        target = open_target(self._options.target)
        plan = reports[0].plan
        stage = plan.stage
        files = [file for report in reports for file in report.files]
        seen: Spans = {}
        for report in reports:
            seen = joined(seen, report.seen)
        query = self._query(reports[0].query_id)
        try:
            self._refuse_passed_by_others(plan, seen, query)
            if batch is None:
                self._refuse_held_back(reports[0], seen)
            ranges, logs = self._ranges(plan, seen, batch)
            # Asked before the read, so never the id of a topic that was created again since then.
            moved = {piece.topic for piece in ranges}
            ids = {topic: one for topic, one in logs.topic_ids.items() if topic in moved}
            self._check_back(plan, moved - ids.keys())
            client = self._options.client
            marks = {} if client is None else marks_of(client, ranges, ids)
        except BaseException:
            target.discard(stage)
            raise
        left_out = sum(report.left_out_count for report in reports)
        if left_out:
            _log.warning(
                "%d rows are left out: load %r has gone past their offsets in %s.",
                left_out,
                self._options.name,
                target,
            )
        if not ranges:
            target.discard(stage)
            return None
        name, planned_from = self._options.name, plan.planned_from
        queries = {piece.topic_partition: query for piece in ranges} if query else NO_QUERIES
        pending = PendingCommit(
            stage, name, planned_from, ranges, files, ids, logs.epochs, marks, queries
        )
        try:
            return target.commit(pending)
        except LoadConflictError as error:
            raise LoadConflictError(f"{error} {_ANOTHER_NAME}") from error

    def _query(self, query_id: str | None) -> int:
        """The number of the query whose micro-batches these are; 0 of what is no query."""
        return query_number(query_id, self._options.checkpoint_location) if query_id else 0

    def _refuse_passed_by_others(self, plan: SinkPlan, seen: Spans, query: int) -> None:
        """Raises LoadConflictError where rows of a query would be left out because another query of
        the name has passed their offsets."""
        passed_by = plan.planned_from.queries
        others = [
            each
            for each, span in sorted(seen.items())
            if query
            and span.first < plan.next_offsets.get(each, 0)
            and not is_same_query(query, passed_by.get(each, query))
        ]
        if others:
            first = others[0]
            raise LoadConflictError(
                f"Another query of the load {self._options.name!r} has passed offset "
                f"{seen[first].first} of {describe(others)}, up to {plan.next_offsets[first]}, of "
                "which this query, with a checkpoint in another place, has rows: they would be "
                f"left out, and nothing of this micro-batch was committed. {_ANOTHER_NAME} If this "
                "query is to go on in the place of the other one, give it a new checkpoint, and "
                "its read the startingOffsets of pyspark_kafkalog.loaded_offsets(target, name); or "
                "the checkpointLocation of the other one."
            )

    def _refuse_held_back(self, report: LoadedRows, seen: Spans) -> None:
        """Raises InvalidRowError where a write in foreachBatch has rows that its query reads, but
        not in this micro-batch, and InvalidOptionError where the checkpoint that it names cannot be
        read, or nothing says which micro-batch it is. Rows of other partitions it has read by
        itself."""
        if self._options.checkpoint_location is None or self._options.unchecked_offsets:
            return
        if report.query_id is None and report.batch is None:
            raise InvalidOptionError(
                "The option checkpointLocation says that these rows are of a query's micro-batch, "
                "and Spark does not say of which, as in threads of your own and with Spark "
                "Connect. Write in the thread that foreachBatch calls, or load by "
                "writeStream.format('kafkalog_load'); or set the option uncheckedOffsets to true: "
                "rows that an operator held back are left out as loaded ones then. A DataFrame "
                "that is no micro-batch has no checkpointLocation."
            )
        reads = None if report.batch is None else self._micro_batch(int(report.batch))
        if reads is not None:
            reads.check({each: span for each, span in seen.items() if each in reads.untils})

    def _check_back(self, plan: SinkPlan, without_id: Set[str]) -> None:
        """Raises TopicRecreatedError for a topic that the load goes on without, and that is there
        again: a commit that has no id for it could not say that its offsets count from now on."""
        plan.planned_from.check_back(
            without_id,
            self._options.name,
            "set the option kafka.bootstrap.servers on the write, too, and leave "
            f"uncheckedTopicIds out; or {OTHER_NAME}",
        )

    def _ranges(
        self, plan: SinkPlan, seen: Spans, batch: int | None
    ) -> tuple[list[OffsetRange], LogIdentity]:
        """By what the name moves, and which logs that is of: what the read has noted of a leader
        goes before what brokers said later, when the log may have been cut off.

        Raises InvalidRowError, InvalidOptionError, DataLossError."""
        options = self._options
        reads = None if batch is None else self._micro_batch(batch)
        noted = LogIdentity()
        starting = options.starting
        if batch is not None:
            if reads is not None:
                noted = reads.logs
                reads = reads.without_recreated(plan.topic_ids, seen)
                reads.check(seen)
            elif starting is None:
                # Of such a query nothing is known but its rows.
                starting = OffsetLimit(everywhere=EARLIEST)
        is_blind = reads is None and batch is not None and (options.starting is None or batch > 0)
        bounds = LogBounds(plan.earliest, {}, plan.epochs)
        if self._knows_topics_later:
            read = {each.topic for each in (*seen, *(reads.untils if reads is not None else ()))}
            new = read - {each.topic for each in plan.next_offsets}
            bounds = _joined(bounds, _soon_asked(options.client, new))
        begins = Begins(starting, bounds.earliest, options.fail_on_data_loss, is_blind)
        ranges = written_ranges(options.name, plan.next_offsets, seen, reads, begins)
        ids = {**noted.topic_ids, **plan.topic_ids}
        logs = LogIdentity(ids, {**bounds.epochs, **noted.epochs})
        return [*ranges, *quiet_places(plan.next_offsets, ranges, begins)], logs

    def _micro_batch(self, batch: int) -> MicroBatch | None:
        checkpoint = self._options.checkpoint_location
        is_needed = not self._options.unchecked_offsets
        reads = None if checkpoint is None else micro_batch(checkpoint, batch, is_needed)
        if reads is None and is_needed:
            raise InvalidOptionError(
                "Cannot determine which offsets this micro-batch reads: "
                + (
                    "the option checkpointLocation is not set on the query"
                    if checkpoint is None
                    else f"the checkpoint {checkpoint} cannot be read from Python"
                )
                + ". Rows that an operator held back for a later batch, such as a join of streams, "
                "would be taken for loaded ones. If the query has no such operator, set the option "
                "uncheckedOffsets to true."
            )
        return reads

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # Where all tasks reported, commit() may have published and failed after that.
        if all(message is not None for message in messages):
            return
        for message in messages:
            if isinstance(message, LoadedRows):
                open_target(self._options.target).discard(message.plan.stage)
                return


class LoadWriter(LoadSinkWriter, DataSourceArrowWriter):
    """Loads the rows of a DataFrame."""

    @PlainErrors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, None)

    @PlainErrors()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class LoadStreamWriter(LoadSinkWriter, DataSourceStreamArrowWriter):
    """Loads the rows of micro-batches."""

    _knows_topics_later = True

    @PlainErrors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    @PlainErrors()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


def check_place_columns(schema: StructType) -> None:
    """Raises InvalidRowError unless rows say which record each was made of."""
    types = {field.name: field.dataType for field in schema.fields}
    for name, expected in _PLACE_TYPES.items():
        if name not in types:
            raise InvalidRowError(
                f"Rows to be loaded need the columns topic, partition and offset of their records, "
                f"to be loaded once, and have only {', '.join(types)}. Aggregates have none: load "
                "the rows, and aggregate what was loaded."
            )
        if not isinstance(types[name], expected):
            raise InvalidRowError(
                f"Column {name!r} must be that of the records, and is "
                f"{types[name].simpleString()}: cast it."
            )


def _soon_asked(client: ClientConfig | None, wanted: Collection[str]) -> LogBounds:
    """Where the partitions of some topics begin and end; nothing where that takes too long."""
    if client is None or not wanted:
        return LogBounds({}, {})
    hasty = replace(client, request_timeout_ms=min(client.request_timeout_ms, _MOST_MS_FOR_OTHERS))
    # One may be without a leader, or deleted meanwhile, and have nothing to do with this write.
    with suppress(KafkalogError, KafkaError), Cluster(hasty) as cluster:
        return log_bounds(cluster, _partitions(cluster.topics(), wanted))
    return LogBounds({}, {})


def _joined(some: LogBounds, others: LogBounds) -> LogBounds:
    return LogBounds(
        some.earliest | others.earliest,
        some.latest | others.latest,
        {**some.epochs, **others.epochs},
    )


def _partitions(topics: Mapping[str, list[int]], wanted: Collection[str]) -> list[TopicPartition]:
    return [
        TopicPartition(t, number) for t in sorted(topics) if t in wanted for number in topics[t]
    ]
