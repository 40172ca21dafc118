"""What a load was asked for: the arguments of `load`, parsed and checked once.

LoadArguments are the keyword arguments as a user writes them, LoadOptions what they mean. Whoever
plans, checks or runs a load takes LoadOptions and parses nothing again. Made on the driver, before
a broker or a target is asked anything; a schema registry is asked, if there is one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import TYPE_CHECKING, TypeAlias, TypedDict, cast

from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS
from pyspark_kafkalog.decoding.registry import SUBJECT
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.options import (
    SourceOptions,
    batch_options,
    parse_bytes,
    warn_once,
)
from pyspark_kafkalog.source.splitting import Splitting
from pyspark_kafkalog.warehouse.commit import NO_EPOCHS, NO_IDS, Epochs, TopicIds
from pyspark_kafkalog.warehouse.landing import Reading
from pyspark_kafkalog.warehouse.places import Place, with_places
from pyspark_kafkalog.warehouse.rows.allowed_change import ADD, SchemaChange, parse_schema_change
from pyspark_kafkalog.warehouse.rows.dead_letters import BesideLetters
from pyspark_kafkalog.warehouse.rows.layout import PLAIN, Layout, check_layout, make_layout
from pyspark_kafkalog.warehouse.rows.row_types import storable
from pyspark_kafkalog.warehouse.rows.transformation import Batches, takes_batches
from pyspark_kafkalog.warehouse.rows.upserts import APPEND, Upsert, parse_upsert
from pyspark_kafkalog.warehouse.rows.values import DEAD_LETTER, FAIL, Values, open_values

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pyspark_kafkalog.warehouse.engines.dataframe import Frames


Zone: TypeAlias = Callable[[], tzinfo | None]
"""Says where times without a zone are; None is this machine's."""


class LoadArguments(TypedDict, total=False):
    """The keyword arguments of `load` but `dry_run`, which its overloads tell apart."""

    starting: Place | None
    """Where a topic's first load begins: a time, offsets, `earliest`, or counted back such as
    `-7 days`."""
    until: Place | None
    """Where this load ends: a time, offsets, or `latest`."""
    max_bytes: int | str | None
    """The most that this load takes, in bytes of the log (an estimate): `10g`."""
    chunk_bytes: int | str | None
    """The most that one commit takes; a long catch-up becomes many commits."""
    transform: "Batches | Frames | None"
    """A function of `pyarrow.RecordBatch` (by its annotation), or of a DataFrame."""
    value_format: str
    """What values are: `binary`, `string`, `json`, `avro` or `protobuf`."""
    value_schema: str | None
    """Their schema: DDL or JSON Schema, Avro, the text of a .proto file."""
    registry: Mapping[str, str] | None
    """The schema registry to ask instead, such as `{"schema.registry.url": "http://..."}`; its
    `subject` is the topic's name and `-value` unless it is said."""
    on_error: str
    """What becomes of a bad record: `fail`, `null` or `deadletter`."""
    dead_letter_topic: str | None
    """The topic of dead letters; else the topic's name and `-dead-letters`."""
    partition_by: str | Sequence[str]
    """Columns, `days(column)` and such (see `load`) to partition files by."""
    sort_by: str | Sequence[str]
    """Columns, each with ` desc` or not, by which every file is sorted."""
    compression: str
    """`zstd`, `snappy`, `gzip`, `lz4` or `none`."""
    target_file_bytes: int | str
    """A file that has reached this is followed by another one; 1 MiB to 4 GiB."""
    group: str | None
    """A consumer group whose offsets are committed after each commit, for tools that show lag."""
    mode: str
    """`append` every record, or `upsert`: the newest one of each key is the table's row, and a
    tombstone deletes it. Not in directories of Parquet files."""
    key: str | Sequence[str] | None
    """The columns that make a key; else the record's key."""
    order_by: str | None
    """The column whose greater value is the newer row of a key; else the partition's order."""
    envelope: str | None
    """`debezium`: values are Debezium's change events, and rows what these are about."""
    on_schema_change: str | None
    """What becomes of the table when rows have other columns: `fail`, `add` or `widen`."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """One load: which records into which target, and what becomes of them on the way.

    `source` says where a topic's first load begins and where this one ends; with `has_start` the
    user said where to begin in `starting`, which a later load compares with its place. `batches`
    and `query` are the two kinds of a transformation, of Arrow batches or of DataFrames. What one
    load and one commit of it take is bounded by `max_bytes` and `chunk_bytes` of the log. A load
    of one topic whose target was named after it may meet no other one's there: `own_topic`. Lag
    tools see it as `group`.
    """

    name: str
    target: str
    source: SourceOptions
    layout: Layout = PLAIN
    values: Values | None = None
    batches: Batches | None = None
    query: "Frames | None" = None
    has_start: bool = False
    max_bytes: int | None = None
    chunk_bytes: int | None = None
    own_topic: str | None = None
    group: str | None = None
    on_schema_change: str | None = None
    upsert: Upsert | None = None

    @property
    def has_dead_letters(self) -> bool:
        return self.values is not None and self.values.on_error == DEAD_LETTER

    def reading(self, topic_ids: TopicIds = NO_IDS, epochs: Epochs = NO_EPOCHS) -> Reading:
        """How records become rows, of topics with `topic_ids`, and leaders in `epochs`."""
        columns = (*DEFAULT_COLUMNS, "headers") if self.source.include_headers else DEFAULT_COLUMNS
        return Reading(
            self.source, columns, topic_ids, self.values, self.batches, epochs, self.upsert
        )

    def schema_change(self, is_known: bool) -> SchemaChange:
        """What a load may do to the columns of its table; `is_known`: it has loaded into it before.

        A first load changes no table that is there unless it is told to: it may be the wrong one.
        """
        values, said = self.values, self.on_schema_change
        if said is None and is_known and values is not None and values.fields:
            said = ADD
        change = parse_schema_change(said)
        is_plain = self.batches is None and self.query is None
        if not change.adds or values is None or values.on_error == FAIL or not is_plain:
            return change
        return replace(change, sorted_out=frozenset(values.fields))


def load_options(
    name: str,
    target: str,
    options: Mapping[str, str],
    zone: Zone = lambda: None,
    **arguments: "Unpack[LoadArguments]",
) -> LoadOptions:
    """The arguments are those of `load`. `zone` says where times without one are; None is this
    machine's.

    Without a schema and a subject, a registry is asked for that of the one topic which `options`
    subscribe to, TOPIC-value. Raises InvalidOptionError, InvalidSchemaError, SchemaRegistryError.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidOptionError(
            "a load needs a name, for example nightly: under it the target remembers where to go on"
        )
    transform = arguments.get("transform")
    is_of_batches = transform is not None and takes_batches(transform)
    starting = arguments.get("starting")
    given = with_places(options, starting, arguments.get("until"), zone)
    wanted = LoadOptions(
        name,
        target,
        _source_options(given),
        _layout(arguments),
        _values(options, arguments),
        batches=cast("Batches", transform) if is_of_batches else None,
        query=None if is_of_batches else cast("Frames | None", transform),
        has_start=starting is not None,
        max_bytes=_bytes("max_bytes", arguments.get("max_bytes")),
        chunk_bytes=_bytes("chunk_bytes", arguments.get("chunk_bytes")),
        group=_group(arguments.get("group")),
        on_schema_change=arguments.get("on_schema_change"),
        upsert=_upsert(target, arguments),
    )
    parse_schema_change(wanted.on_schema_change)
    if transform is None:
        # The columns that a transformation makes are known when it is called.
        check_layout(wanted.layout, wanted.reading().schema())
    if wanted.upsert is not None:
        wanted.upsert.check(storable(wanted.reading().schema()))
        if wanted.values is not None:
            wanted = replace(wanted, values=wanted.values.for_upsert(wanted.upsert))
    if wanted.has_dead_letters and wanted.values is not None:
        beside = BesideLetters(wanted.source.subscription, wanted.values.letters_to)
        return replace(wanted, source=replace(wanted.source, subscription=beside))
    return wanted


def _source_options(options: Mapping[str, str]) -> SourceOptions:
    """Those of a read, but for what a warehouse must not keep: records of transactions that are
    aborted, or may be, are read only when it is said."""
    given = {name.lower(): value for name, value in options.items()}
    source = batch_options({"kafka.isolation.level": "read_committed", **given})
    if source.splitting != Splitting():
        warn_once(
            "Options minPartitions, maxRecordsPerPartition and maxPartitionsPerTask have no effect "
            "on a load."
        )
    return source


def _layout(arguments: LoadArguments) -> Layout:
    file_bytes = arguments.get("target_file_bytes", PLAIN.file_bytes)
    return make_layout(
        arguments.get("partition_by", ()),
        arguments.get("sort_by", ()),
        arguments.get("compression", PLAIN.compression),
        parse_bytes("target_file_bytes", str(file_bytes)),
    )


def _values(options: Mapping[str, str], arguments: LoadArguments) -> Values | None:
    if arguments.get("envelope") and arguments.get("mode", APPEND) == APPEND:
        raise InvalidOptionError("envelope has no effect without mode=upsert")
    schema, registry = arguments.get("value_schema"), arguments.get("registry")
    if registry is not None and schema is None:
        registry = _with_subject(registry, options)
    return open_values(
        arguments.get("value_format", "binary"),
        schema,
        registry,
        arguments.get("on_error", FAIL),
        arguments.get("dead_letter_topic"),
        arguments.get("envelope"),
    )


def _upsert(target: str, arguments: LoadArguments) -> Upsert | None:
    mode, key = arguments.get("mode", APPEND), arguments.get("key")
    upsert = parse_upsert(mode, key, arguments.get("order_by"))
    if upsert is not None and target.startswith("parquet:"):
        raise InvalidOptionError(
            "mode upsert is for delta:, iceberg: and sql: targets: append to this one, and choose "
            "the newest row of each key where it is read"
        )
    if upsert is not None and (arguments.get("partition_by") or arguments.get("sort_by")):
        raise InvalidOptionError(
            "mode upsert takes neither partition_by nor sort_by, as a row that changes is written "
            "anew: leave them out"
        )
    if upsert is not None and arguments.get("transform") is not None:
        raise InvalidOptionError(
            "transform and mode upsert do not go together, as rows that were changed do not say "
            "which are deleted: decode values by value_format, or change rows where they are read"
        )
    return upsert


def _with_subject(registry: Mapping[str, str], options: Mapping[str, str]) -> Mapping[str, str]:
    topics = {name.lower(): text for name, text in options.items()}.get("subscribe", "").split(",")
    if len(topics) != 1 or not topics[0].strip() or SUBJECT in map(str.lower, registry):
        return registry
    return {**registry, SUBJECT: f"{topics[0].strip()}-value"}


def _group(name: str | None) -> str | None:
    if name is not None and not name.strip():
        raise InvalidOptionError("group is empty: name a consumer group, or leave it out")
    return name


def _bytes(name: str, wanted: int | str | None) -> int | None:
    return None if wanted is None else parse_bytes(name, str(wanted))
