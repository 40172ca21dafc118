"""`kafkalog`: the quick start, brokers, topics, produce, consume, lag and load from a shell.

One Command for each word, listed in COMMANDS: adding one there is all that a new word needs. What
a command raises as one of the connector's, Kafka's or the system's errors is printed as a sentence
on stderr, with exit code 1; wrong usage exits with 2, Ctrl-C with 130. Records go to stdout as raw
lines or as one JSON object a line. What is slow to import is imported where it is used.
"""

import argparse
import base64
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka.errors import BrokerResponseError, KafkaError

from pyspark_kafkalog import __version__
from pyspark_kafkalog.client import admin, properties
from pyspark_kafkalog.client.cluster import EARLIEST, LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError, UnknownTopicError

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa
    from kafka.structs import TopicPartition

    from pyspark_kafkalog.warehouse.load import LoadResult
    from pyspark_kafkalog.warehouse.options import LoadArguments

_REQUEST_TIMEOUT_MS = "10000"
"""Shorter than the client's: somebody is waiting at the keyboard."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_POLL_S = 0.2
_READ_BYTES = 1 << 18
_LARGEST_LINE_BYTES = 64 << 20
_LARGEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Command:
    """One word of the command line: its help, its arguments, and what it does."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit code."""
    if sys.stdout is None:  # closed by who started us
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    options = _parser().parse_args(arguments)
    logging.getLogger().addFilter(_is_no_interrupt)
    try:
        options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError as error:
        # Whoever read our output has seen enough; nothing may be written to it at exit either. A
        # connection to a server that broke is another thing.
        if not _is_stdout_closed():
            print(f"kafkalog: {_sentence(error)}", file=sys.stderr)
            return 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KafkalogError, KafkaError, OSError) as error:
        print(f"kafkalog: {_sentence(error)}", file=sys.stderr)
        return 1
    return 0


def _is_stdout_closed() -> bool:
    """Whether nobody reads the pipe, or the socket, that we write to."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Spark's bridge to its JVM logs a traceback for each call that Ctrl-C cuts short."""
    error = record.exc_info and record.exc_info[1]
    while error:
        # PySpark's handler of Ctrl-C asks the JVM, maybe in the middle of another answer.
        if isinstance(error, KeyboardInterrupt) or "reentrant call" in str(error):
            return False
        error = error.__context__
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kafkalog", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = commands.add_parser(command.name, help=command.help, description=command.help)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run, refuse=subparser.error)
    return parser


def add_client_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """The arguments of every command that talks to a cluster; `client_config` reads them."""
    parser.add_argument(
        "--bootstrap-servers",
        required=required,
        metavar="HOST:PORT,...",
        help="brokers to ask first",
    )
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a Kafka client property, such as security.protocol=SSL; may be repeated",
    )
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE", help="a file of such properties"
    )


def client_properties(options: argparse.Namespace) -> dict[str, str]:
    """The properties given by `add_client_arguments`; raises InvalidOptionError."""
    lines = list(options.property)
    if options.command_config is not None:
        file_lines = (line.strip() for line in _read_text(options.command_config).splitlines())
        lines = [line for line in file_lines if line and not line.startswith("#")] + lines
    given = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals:
            raise InvalidOptionError("Write each --property as NAME=VALUE; one is not.")
        given[name.strip().removeprefix("kafka.")] = value.strip()
    for name, nearest in properties.unknown(given).items():
        hint = f" Did you mean {nearest}?" if nearest else ""
        raise InvalidOptionError(f"{name} is no property of a Kafka client.{hint}")
    return given | {"bootstrap.servers": options.bootstrap_servers}


def client_config(options: argparse.Namespace) -> ClientConfig:
    """The config of `add_client_arguments`; raises InvalidOptionError."""
    defaults = {"request.timeout.ms": _REQUEST_TIMEOUT_MS}
    return ClientConfig.from_options(defaults | client_properties(options))


def _read_text(path: Path) -> str:
    """A file that an argument names; raises InvalidOptionError for one that is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidOptionError(f"{path} is not valid UTF-8: save it as UTF-8.") from None


def _settings(flag: str, settings: Iterable[str]) -> dict[str, str]:
    """What an argument that is written NAME=VALUE was given; raises InvalidOptionError."""
    given = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            # Not quoted: it may hold a password.
            raise InvalidOptionError(f"Write each {flag} as NAME=VALUE; one is not.")
        given[name] = value
    return given


def _topics_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    create = actions.add_parser("create", help="create a topic")
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument("--partitions", type=int, default=admin.BROKER_DEFAULT)
    create.add_argument("--replication-factor", type=int, default=admin.BROKER_DEFAULT)
    create.add_argument(
        "--config", action="append", default=[], metavar="NAME=VALUE", help="a topic property"
    )
    describe = actions.add_parser("describe", help="show leaders, replicas and properties")
    describe.add_argument("topics", nargs="*", metavar="TOPIC", help="all when none is named")
    delete = actions.add_parser("delete", help="delete topics")
    delete.add_argument("topics", nargs="+", metavar="TOPIC")
    listing = actions.add_parser("list", help="list the names of topics")
    for action, act in (
        (create, _create_topic),
        (describe, _describe_topics),
        (delete, _delete_topics),
        (listing, _list_topics),
    ):
        add_client_arguments(action)
        action.set_defaults(act=act)


def _topics(options: argparse.Namespace) -> None:
    with Cluster(client_config(options), fails_fast=True) as cluster:
        options.act(cluster, options)


def _create_topic(cluster: Cluster, options: argparse.Namespace) -> None:
    configs = _settings("--config", options.config)
    admin.create_topic(
        cluster, options.topic, options.partitions, options.replication_factor, configs
    )
    print(f"Created topic {options.topic}.")


def _list_topics(cluster: Cluster, options: argparse.Namespace) -> None:
    for name in admin.list_topics(cluster):
        print(name)


def _describe_topics(cluster: Cluster, options: argparse.Namespace) -> None:
    names = options.topics or admin.list_topics(cluster)
    for topic in admin.describe_topics(cluster, names):
        configs = " ".join(f"{name}={value}" for name, value in sorted(topic.configs.items()))
        print(f"{topic.name}  partitions={len(topic.partitions)}  {configs}".rstrip())
        for p in topic.partitions:
            print(
                f"  partition={p.partition} leader={p.leader} leader_epoch={p.leader_epoch}"
                f" replicas={','.join(map(str, p.replicas))} isr={','.join(map(str, p.isr))}"
            )


def _delete_topics(cluster: Cluster, options: argparse.Namespace) -> None:
    admin.delete_topics(cluster, options.topics)
    for name in options.topics:
        print(f"Deleted topic {name}.")


def _produce_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--key-separator",
        metavar="TEXT",
        help="what stands before it in a line is the key; without it records have no key",
    )
    add_client_arguments(parser)


def _produce(options: argparse.Namespace) -> None:
    """Sends what has been read whenever nothing more is ready: a keyboard needs no waiting."""
    from pyspark_kafkalog.arrow.encode import RecordEncoder
    from pyspark_kafkalog.client.producer import Producer

    if sys.stdin is None:
        raise InvalidOptionError("produce reads its records from stdin, which is closed.")
    config = client_config(options)
    separator = (options.key_separator or "").encode()
    count = 0
    with Cluster(config, fails_fast=True) as cluster, Producer(cluster) as producer:
        partitions = producer.partitions_for(options.topic)
        encoder = RecordEncoder(
            len(partitions), config.compression_type, max_batch_bytes=config.batch_size
        )
        for lines, more_is_ready in _lines(sys.stdin.buffer):
            _send(producer, options.topic, encoder.encode(_rows(lines, separator)))
            count += len(lines)
            if not more_is_ready:
                _send(producer, options.topic, encoder.finish())
                producer.flush()
        _send(producer, options.topic, encoder.finish())
    print(f"{count} records written to {options.topic}.", file=sys.stderr)


def _send(producer: Any, topic: str, batches: Iterable[tuple[int, bytearray]]) -> None:
    from kafka.structs import TopicPartition

    for partition, batch in batches:
        producer.send(TopicPartition(topic, partition), batch)


def _lines(source: Any) -> Iterator[tuple[list[bytes], bool]]:
    """Lines as they come, without their ends, and whether more can be read without waiting."""
    # Of a line whose end has not come, the pieces: joining them each time would be quadratic.
    begun: list[bytes] = []
    begun_bytes = 0
    while chunk := source.read1(_READ_BYTES):
        whole, end, rest = chunk.rpartition(b"\n")
        if end:
            lines = b"".join([*begun, whole]).split(b"\n")
            yield [line.removesuffix(b"\r") for line in lines], _is_readable(source)
            begun, begun_bytes = [], 0
        begun.append(rest)
        begun_bytes += len(rest)
        if begun_bytes > _LARGEST_LINE_BYTES:
            raise InvalidOptionError(f"A line is longer than {_LARGEST_LINE_BYTES} bytes.")
    if begun_bytes:
        yield [b"".join(begun)], False


def _is_readable(source: Any) -> bool:
    return bool(select.select([source], [], [], 0)[0])


def _rows(lines: list[bytes], separator: bytes) -> "pa.RecordBatch":
    import pyarrow as pa

    if not separator:
        return pa.record_batch({"value": pa.array(lines, pa.binary())})
    parts = [line.partition(separator) for line in lines]
    # A line without the separator is a value without key, not a key without value.
    keys = [key if found else None for key, found, _ in parts]
    values = [value if found else key for key, found, value in parts]
    return pa.record_batch(
        {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    )


def _consume_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--from-beginning", action="store_true", help="begin with the oldest record, not at the end"
    )
    parser.add_argument(
        "--exit-at-end", action="store_true", help="stop where the topic ended when this began"
    )
    parser.add_argument("--max", type=_count, metavar="N", help="stop after N records")
    parser.add_argument(
        "--format",
        choices=("raw", "json"),
        default="raw",
        help="raw: values, one a line; json: one object a line, bytes that are no UTF-8 as base64",
    )
    add_client_arguments(parser)


def _consume(options: argparse.Namespace) -> None:
    write = _write_json if options.format == "json" else _write_raw
    left = sys.maxsize if options.max is None else options.max
    with Cluster(client_config(options), fails_fast=True) as cluster:
        for batch in _batches(cluster, options):
            batch = batch.slice(0, min(left, batch.num_rows))
            write(batch)
            left -= batch.num_rows
            if left <= 0:
                return


def _batches(cluster: Cluster, options: argparse.Namespace) -> Iterator["pa.RecordBatch"]:
    """The topic's rows as Arrow batches, partition by partition, round after round."""
    from kafka.structs import TopicPartition

    tps = [TopicPartition(options.topic, p) for p in cluster.topics([options.topic])[options.topic]]
    known_until = Deadline(cluster.config.metadata_max_age_ms)
    # Before any offset: of a topic that is created again these would mean other records.
    topic_id = cluster.topic_id(options.topic)
    begin = EARLIEST if options.from_beginning else LATEST
    positions = {tp: at.offset for tp, at in cluster.list_offsets(tps, begin).items()}
    while True:
        if known_until.expired:
            known_until = Deadline(cluster.config.metadata_max_age_ms)
            added = _added_partitions(cluster, options.topic, positions)
            tps += added
            # From their beginning, wherever this began: what is in them came after that.
            starts = cluster.list_offsets(added, EARLIEST)
            positions |= {tp: at.offset for tp, at in starts.items()}
        ends = {tp: at.offset for tp, at in cluster.list_offsets(tps, LATEST).items()}
        for tp in tps:
            if positions[tp] < ends[tp]:
                yield from _range(cluster, tp, positions[tp], ends[tp], topic_id)
                positions[tp] = ends[tp]
        if options.exit_at_end:
            return
        sys.stdout.flush()
        time.sleep(_POLL_S)


def _added_partitions(
    cluster: Cluster, topic: str, known: Collection["TopicPartition"]
) -> list["TopicPartition"]:
    from kafka.structs import TopicPartition

    # A broker that denies the topic may have just started: whoever asks for offsets finds out.
    with suppress(UnknownTopicError):
        asked = (TopicPartition(topic, p) for p in cluster.topics([topic])[topic])
        return [tp for tp in asked if tp not in known]
    return []


def _range(
    cluster: Cluster,
    tp: "TopicPartition",
    start_offset: int,
    until_offset: int,
    topic_id: "UUID | None",
) -> Iterator["pa.RecordBatch"]:
    from pyspark_kafkalog.arrow.decode import RecordDecoder
    from pyspark_kafkalog.arrow.schema import COLUMN_TYPES
    from pyspark_kafkalog.client.fetcher import Fetcher

    decoder = RecordDecoder(tp.topic, tp.partition, tuple(COLUMN_TYPES), permissive=True)
    fetcher = Fetcher(cluster, tp, start_offset, until_offset, topic_id=topic_id)
    for fetched in fetcher.records():
        yield from decoder.decode(
            fetched.records, fetched.start_offset, until_offset, fetched.aborted
        )
    yield from decoder.finish()


def _write_raw(batch: "pa.RecordBatch") -> None:
    out = sys.stdout.buffer
    for value in batch.column("value"):
        out.write((value.as_py() or b"") + b"\n")


def _write_json(batch: "pa.RecordBatch") -> None:
    index = batch.schema.get_field_index("timestamp")
    micros = batch.column(index).cast("int64")
    for row in batch.set_column(index, "timestamp", micros).to_pylist():
        document = {
            "topic": row["topic"],
            "partition": row["partition"],
            "offset": row["offset"],
            "timestamp": _time(row["timestamp"]),
            "key": _readable(row["key"]),
            "value": _readable(row["value"]),
        }
        if row["headers"]:
            document["headers"] = [[h["key"], _readable(h["value"])] for h in row["headers"]]
        # In UTF-8 as JSON is, whatever the terminal's encoding.
        sys.stdout.buffer.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")


def _time(micros: int | None) -> str | int | None:
    """ISO 8601; the number of milliseconds where a producer's clock counts beyond year 9999."""
    if micros is None:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="milliseconds")
    except OverflowError:
        return micros // 1000


def _readable(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _load_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "topics", nargs="*", metavar="TOPIC", help="several go into one atomic commit"
    )
    parser.add_argument(
        "--to",
        required=True,
        metavar="KIND:PLACE",
        help="the target: parquet:PATH, delta:PATH, "
        "iceberg:NAMESPACE.TABLE?uri=...&warehouse=... or sql:SQLALCHEMY_URL#TABLE",
    )
    parser.add_argument("--name", help="a load goes on where the last one of its name ended")
    parser.add_argument(
        "--from",
        dest="starting",
        metavar="PLACE",
        help="where a topic's first load begins: a time (2026-11-01T00:00, by this machine's "
        "clock unless it names a zone, or ms since the epoch), offsets as JSON, earliest, or "
        "counted back such as '-10 minutes'",
    )
    parser.add_argument(
        "--until",
        metavar="PLACE",
        help="where this load ends: a time, offsets as JSON, or latest (the default)",
    )
    parser.add_argument(
        "--max-bytes", metavar="SIZE", help="take about so much of the log at most, such as 10GiB"
    )
    parser.add_argument(
        "--chunk-bytes",
        metavar="SIZE",
        help="commit about so much of the log at a time, until nothing is left",
    )
    _instead_of_loading_arguments(parser)
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a read option, such as startingOffsets or includeHeaders; may be repeated",
    )
    parser.add_argument(
        "--master", metavar="URL", help="where Spark runs (default: Spark's own, all cores here)"
    )
    _rows_and_files_arguments(parser.add_argument_group("rows and files"))
    add_client_arguments(parser, required=False)


def _instead_of_loading_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would be loaded (or removed), and change nothing",
    )
    parser.add_argument(
        "--vacuum",
        action="store_true",
        help="load nothing, but remove what killed loads left in the target; needs --to alone",
    )
    parser.add_argument(
        "--forget",
        action="store_true",
        help="load nothing, but forget where the load --name goes on: its next load lands "
        "everything again, beside the rows that are there; needs --to and --name alone",
    )
    parser.add_argument(
        "--retention-hours",
        type=float,
        default=24.0,
        metavar="HOURS",
        help="how long --vacuum leaves alone what a load may be at (default: 24)",
    )
    parser.add_argument(
        "--force", action="store_true", help="let --retention-hours be less than 24"
    )


def _vacuum(options: argparse.Namespace) -> None:
    from pyspark_kafkalog.warehouse.vacuum import vacuum

    how = {"dry_run": options.dry_run, "force": options.force}
    removed = vacuum(options.to, options.retention_hours, **how)
    for path in removed:
        print(path)
    what = "would be removed" if options.dry_run else "removed"
    print(f"{len(removed)} directories and files of dead loads {what}.")


def _forget(options: argparse.Namespace) -> None:
    from pyspark_kafkalog.warehouse.forget import forget

    if forget(options.to, options.name):
        print(
            f"Load {options.name} is forgotten: its next load is a first one and lands everything "
            "again. Rows that it loaded are still there."
        )
    else:
        print(f"Nothing to forget: the target knows no load {options.name}.")


def _rows_and_files_arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--value-format",
        default="binary",
        metavar="FORMAT",
        help="binary (the default), string, json, avro or protobuf: fields become columns",
    )
    parser.add_argument(
        "--value-schema",
        metavar="FILE",
        type=Path,
        help="a file with the values' schema: DDL or JSON Schema, Avro, ...",
    )
    parser.add_argument("--registry", metavar="URL", help="the schema registry to ask instead")
    parser.add_argument(
        "--registry-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the registry, such as subject or basic.auth.user.info",
    )
    parser.add_argument(
        "--on-error",
        default="fail",
        choices=["fail", "deadletter", "null"],
        help="what becomes of a value that cannot be decoded (default: fail)",
    )
    parser.add_argument(
        "--dead-letter-topic", metavar="TOPIC", help="default: the topic's name and -dead-letters"
    )
    parser.add_argument(
        "--transform",
        metavar="MODULE:FUNCTION",
        help="a function of DataFrames, or of pyarrow.RecordBatch if its parameter says so",
    )
    parser.add_argument(
        "--partition-by",
        default="",
        metavar="FIELD,...",
        help="columns, or the days(timestamp) or hours(timestamp) of a time",
    )
    parser.add_argument(
        "--sort-by", default="", metavar="COLUMN[ desc],...", help="the order within each file"
    )
    parser.add_argument(
        "--compression", default="zstd", help="zstd (the default), snappy, gzip, lz4 or none"
    )
    parser.add_argument("--target-file-size", default="512m", metavar="SIZE", help="default: 512m")


def _as_load_arguments(options: argparse.Namespace) -> "LoadArguments":
    """What the command line says, as the keyword arguments of `load`."""
    registry = _settings("--registry-option", options.registry_option)
    if options.registry:
        registry["schema.registry.url"] = options.registry
    schema: Path | None = options.value_schema
    if schema is not None and not schema.is_file():
        raise InvalidOptionError(f"--value-schema takes a file, and there is no {schema}.")
    return {
        "starting": _place("--from", options.starting),
        "until": _place("--until", options.until),
        "max_bytes": options.max_bytes,
        "chunk_bytes": options.chunk_bytes,
        "transform": options.transform and _function(options.transform),
        "value_format": options.value_format,
        "value_schema": None if schema is None else _read_text(schema),
        "registry": registry or None,
        "on_error": options.on_error,
        "dead_letter_topic": options.dead_letter_topic,
        "partition_by": options.partition_by,
        "sort_by": options.sort_by,
        "compression": options.compression,
        "target_file_bytes": options.target_file_size,
    }


def _function(name: str) -> Callable[..., Any]:
    """The function MODULE:FUNCTION; modules are looked for in this directory, too."""
    from pyspark import cloudpickle

    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
        function: Callable[..., Any] = getattr(module, function_name)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise InvalidOptionError(
            f"--transform {name} cannot be imported: {error}. Write MODULE:FUNCTION."
        ) from None
    # Else tasks would have to find the module where they run.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return function


def _load(options: argparse.Namespace) -> None:
    if options.vacuum:
        if options.topics or options.name or options.forget:
            options.refuse("--vacuum loads nothing: leave TOPIC, --name and --forget out")
        _vacuum(options)
        return
    if options.forget:
        if options.topics or not options.name or options.dry_run:
            options.refuse("--forget loads nothing: give --to and --name alone")
        _forget(options)
        return
    if not (options.topics and options.name and options.bootstrap_servers):
        options.refuse("give --bootstrap-servers, a TOPIC and --name NAME, --vacuum or --forget")
    _load_topics(options)


def _load_topics(options: argparse.Namespace) -> None:
    from pyspark_kafkalog.java import JavaDiedError, check_java, has_jvm_died, start_jvm
    from pyspark_kafkalog.warehouse.engines.spark import SparkEngine
    from pyspark_kafkalog.warehouse.load import run_load
    from pyspark_kafkalog.warehouse.options import load_options
    from pyspark_kafkalog.warehouse.plan import has_work, plan_load

    source = {f"kafka.{name}": value for name, value in client_properties(options).items()}
    source |= _settings("--option", options.option) | {"subscribe": ",".join(options.topics)}
    # What can be wrong, or that nothing is to be done, is said before Spark starts, in seconds.
    wanted = load_options(options.name, options.to, source, **_as_load_arguments(options))
    if options.dry_run:
        print(plan_load(wanted))
        return
    if not has_work(wanted):
        print(f"Nothing new for {options.name}.")
        return
    check_java()

    from pyspark.sql import SparkSession

    if (options.master or "local").startswith("local"):
        _let_spark_workers_be_this_python()
    settings: dict[str, Any] = {
        "spark.app.name": f"kafkalog load {options.name}",
        "spark.ui.showConsoleProgress": "false",
    }
    if options.master:
        settings["spark.master"] = options.master
    result = None
    try:
        start_jvm(settings)
        spark = SparkSession.builder.config(map=settings).getOrCreate()
        try:
            result = run_load(SparkEngine(spark, wanted.query), wanted, progress=True)
        finally:
            spark.stop()
    except Exception as error:
        if not has_jvm_died():
            raise
        # Nor is a load that is committed one that failed.
        if result is None:
            raise JavaDiedError from error
    _tell_result(result, options.on_error)


def _tell_result(result: "LoadResult", on_error: str) -> None:
    try:
        _print_result(result, on_error)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise KafkalogError(
            f"All is committed; what is not done is to say so: standard output, {error.strerror}."
        ) from error


def _print_result(result: "LoadResult", on_error: str) -> None:
    if result.commit_id is None:
        print(f"Nothing new for {result.name}.")
    else:
        commits = f"{result.commits} commits, the last one" if result.commits > 1 else "Commit"
        print(
            f"{commits} {result.commit_id}: {result.records} records in {len(result.files)} files "
            f"of {result.bytes} bytes."
        )
        if result.gaps:
            gone = sum(gap.offset_count for gap in result.gaps)
            print(f"{gone} offsets were gone, in {len(result.gaps)} gaps.")
        if result.bad_records:
            print(f"{result.bad_records} records could not be decoded ({on_error}).")


def _place(flag: str, text: str | None) -> str | datetime | None:
    """A place of a load; says of a time without a zone which one it is."""
    from pyspark_kafkalog.warehouse.places import parse_time

    moment = None if text is None else parse_time(text)
    if moment is None or moment.tzinfo is not None:
        return text if moment is None else moment
    moment = moment.astimezone()
    print(f"{flag} {text} is {moment.isoformat()}.")
    return moment


def _let_spark_workers_be_this_python() -> None:
    """Without an activated environment Spark would start its workers as another `python3`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _sentence(error: Exception) -> str:
    """What an error says, without the class names that are for programs."""
    if isinstance(error, OSError) and not isinstance(error, KafkalogError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, BrokerResponseError) and not error.args:
        return f"The broker refused: {error.description or type(error).__name__}"
    return ", ".join(map(str, error.args)) or type(error).__name__


def _quickstart_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir", metavar="DIR", help="keep log and warehouse in this new folder (default: neither)"
    )
    parser.add_argument(
        "--port", type=_port, default=0, help="the broker's port (default: a free one)"
    )


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} is no number of records")
    return int(text)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > _LARGEST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is no port: give a number from 0 to 65535")
    return int(text)


def _quickstart(options: argparse.Namespace) -> None:
    from rich.console import Console

    from pyspark_kafkalog.quickstart import run_quickstart

    _let_spark_workers_be_this_python()
    run_quickstart(options.dir, options.port, Console())


def _broker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", metavar="DIR", help="keep topics there (default: a folder that is deleted)"
    )
    parser.add_argument(
        "--cluster",
        type=_count,
        metavar="BROKERS",
        help="so many brokers, and a ZooKeeper, instead of one broker alone",
    )
    parser.add_argument(
        "--port", type=_port, default=0, help="of a broker alone (default: a free one)"
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="PROPERTY=VALUE",
        help="a broker property under Kafka's name; may be repeated",
    )


def _broker(options: argparse.Namespace) -> None:
    """Until SIGTERM or Ctrl-C."""
    from pyspark_kafkalog.embedded import EmbeddedBroker
    from pyspark_kafkalog.embedded_cluster import EmbeddedCluster

    if options.cluster is not None and options.port:
        options.refuse("--port is for a broker alone: those of a cluster take free ports")
    config = _settings("--override", options.override)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = (
        EmbeddedBroker(options.data_dir, options.port, config)
        if options.cluster is None
        else EmbeddedCluster(options.cluster, options.data_dir, config)
    )
    with suppress(KeyboardInterrupt), started:
        print(started.bootstrap_servers, flush=True)
        while True:
            signal.pause()


def _lag_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP", help="a consumer group, of a stream or any other")
    add_client_arguments(parser)


def _lag(options: argparse.Namespace) -> None:
    from pyspark_kafkalog.client.group import committed_offsets

    with Cluster(client_config(options), fails_fast=True) as cluster:
        committed = committed_offsets(cluster, options.group)
        if not committed:
            raise KafkalogError(f"Group {options.group} has committed no offsets. Check its name.")
        # Committed offsets may outlive their topic.
        topics = cluster.topics(None)
        there = [tp for tp in committed if tp.partition in topics.get(tp.topic, ())]
        ends = {tp: at.offset for tp, at in cluster.list_offsets(there, LATEST).items()}
    for tp, offset in sorted(committed.items()):
        at = f"{tp.topic} partition={tp.partition} committed={offset}"
        print(f"{at} end={ends[tp]} lag={ends[tp] - offset}" if tp in ends else f"{at} end=gone")
    print(f"total lag={sum(end - committed[tp] for tp, end in ends.items())}")


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def _compile_pyspark(options: argparse.Namespace) -> None:
    from pyspark_kafkalog.compile_pyspark import compile_archive, imported_archives

    for archive in imported_archives():
        print(f"{archive}: {compile_archive(archive)} modules compiled")


COMMANDS = (
    Command("quickstart", "real flights through every part", _quickstart_arguments, _quickstart),
    Command("broker", "run a broker, or a cluster of them", _broker_arguments, _broker),
    Command("topics", "create, list, describe and delete topics", _topics_arguments, _topics),
    Command("produce", "write the lines of stdin as records", _produce_arguments, _produce),
    Command("consume", "print a topic's records", _consume_arguments, _consume),
    Command("lag", "show how far a consumer group is behind", _lag_arguments, _lag),
    Command("load", "land what is new in topics in a warehouse", _load_arguments, _load),
    Command(
        "compile-pyspark",
        "let Spark's Python processes start sooner, while none is running",
        _no_arguments,
        _compile_pyspark,
    ),
)

if __name__ == "__main__":
    sys.exit(main())
