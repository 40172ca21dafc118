"""`kafkalog load`: lands what is new in topics in a warehouse."""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyspark_kafkalog.cli.arguments import (
    TARGET,
    VALUE_OPTIONS,
    Client,
    let_spark_workers_be_this_python,
    read_registry,
    read_schema,
    read_settings,
    takes,
    takes_client,
    takes_output,
)
from pyspark_kafkalog.cli.names import complete_groups, complete_topics
from pyspark_kafkalog.cli.output import Output, say_error
from pyspark_kafkalog.cli.sigterm import end_on_sigterm
from pyspark_kafkalog.errors import KafkalogError, counted, sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_kafkalog.warehouse.each_topic import EachTopic, TopicLoad
    from pyspark_kafkalog.warehouse.load import LoadResult
    from pyspark_kafkalog.warehouse.options import LoadArguments, LoadOptions
    from pyspark_kafkalog.warehouse.plan import LoadPlan

_Done = TypeVar("_Done")

_MOST_NAMED = 20

_PLACES = (
    click.option(
        "--to",
        required=True,
        metavar="KIND:PLACE",
        help=f"{TARGET} With {{topic}} in it, each topic is a load of its own into a place of its "
        "own.",
    ),
    click.option(
        "--pattern",
        metavar="REGEX",
        help="Load all topics in whose name this is found, instead of TOPICs.",
    ),
    click.option(
        "--name", metavar="NAME", help="A load goes on where the last one of its name ended."
    ),
    click.option(
        "--from",
        "starting",
        metavar="PLACE",
        help="Where a topic's first load begins: a time (2026-11-01T00:00, by this machine's "
        "clock unless it names a zone, or ms since the epoch), offsets as JSON, earliest, or "
        "counted back such as '-10 minutes'.",
    ),
    click.option(
        "--until",
        metavar="PLACE",
        help="Where this load ends: a time, offsets as JSON, or latest (the default).",
    ),
    click.option(
        "--max-bytes",
        metavar="SIZE",
        help="Take about so much of the log at most, such as 10GiB.",
    ),
    click.option(
        "--chunk-bytes",
        metavar="SIZE",
        help="Commit about so much of the log at a time, until nothing is left.",
    ),
    click.option(
        "--group",
        metavar="GROUP",
        shell_complete=complete_groups,
        help="Commit the offsets of this consumer group after each commit, for tools that show "
        "lag.",
    ),
    click.option(
        "--option",
        multiple=True,
        metavar="NAME=VALUE",
        help="A read option, such as startingOffsets or includeHeaders; may be repeated.",
    ),
)

_ENGINE = (
    click.option(
        "--engine",
        type=click.Choice(["local", "spark"]),
        help="What runs the tasks: processes of this machine (local), or Spark (the default where "
        "--master or a --transform of DataFrames asks for it).",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="The most processes of the local engine, each with 150 to 500 MiB (default: one for "
        "each processor).",
    ),
    click.option(
        "--at-once",
        type=click.IntRange(min=1),
        default=4,
        metavar="N",
        help="How many topics of a target with {topic} are at work at a time (default: 4; with "
        "Spark one).",
    ),
    click.option(
        "--master", metavar="URL", help="Where Spark runs (default: Spark's own, all cores here)."
    ),
    click.option(
        "--spark-log",
        type=click.Path(dir_okay=False),
        default=os.devnull,
        metavar="FILE",
        help="Add to this file what Spark logs (default: it is not kept).",
    ),
)

_INSTEAD_OF_LOADING = (
    click.option(
        "--dry-run",
        is_flag=True,
        help="Print what would be loaded, and change nothing.",
    ),
    click.option(
        "--forget",
        is_flag=True,
        help="Load nothing, but forget where the load --name goes on: its next load lands "
        "everything again, beside the rows that are there; needs --to and --name alone.",
    ),
    click.option(
        "--rewind",
        metavar="PLACE",
        help="Load nothing, but have the load --name go back to PLACE, written as for --from, from "
        "where its next load lands again; refused where it would land rows a second time. Brokers "
        "are asked if they are named, and must be unless PLACE is offsets as JSON and no rows are "
        "deleted.",
    ),
    click.option(
        "--truncate-after",
        is_flag=True,
        help="Of --rewind: delete the rows that would be landed a second time, in the same "
        "commit; Delta, Iceberg and SQL targets. Rows whose records may be gone stay, and are an "
        "error, unless --option failOnDataLoss=false.",
    ),
)

_ROWS_AND_FILES = (
    *VALUE_OPTIONS,
    click.option(
        "--on-error",
        default="fail",
        type=click.Choice(["fail", "deadletter", "null"]),
        help="What becomes of a value that cannot be decoded (default: fail).",
    ),
    click.option(
        "--dead-letter-topic",
        metavar="TOPIC",
        help="Where bad records go with --on-error deadletter (default: the topic's name and "
        "-dead-letters).",
    ),
    click.option(
        "--transform",
        metavar="MODULE:FUNCTION",
        help="A function of DataFrames, or of pyarrow.RecordBatch if its parameter says so.",
    ),
    click.option(
        "--partition-by",
        default="",
        metavar="FIELD,...",
        help="Columns, the years(...), months(...), days(...) or hours(...) of a time, or, for "
        "Iceberg, truncate(WIDTH, COLUMN) and bucket(COUNT, COLUMN).",
    ),
    click.option(
        "--sort-by", default="", metavar="COLUMN[ desc],...", help="The order within each file."
    ),
    click.option(
        "--compression",
        default="zstd",
        metavar="CODEC",
        help="zstd (the default), snappy, gzip, lz4 or none.",
    ),
    click.option(
        "--target-file-size",
        default="512m",
        metavar="SIZE",
        help="About how large files become (default: 512m).",
    ),
    click.option(
        "--mode",
        default="append",
        type=click.Choice(["append", "upsert"]),
        help="Append every record (the default), or keep the newest of each key "
        "(Delta, Iceberg and SQL targets).",
    ),
    click.option(
        "--key",
        metavar="COLUMN,...",
        help="The columns that make a key, for --mode upsert (default: the record's key).",
    ),
    click.option(
        "--order-by",
        metavar="COLUMN",
        help="The column whose greater value is the newer row of a key, for --mode upsert "
        "(default: the order of a partition).",
    ),
    click.option(
        "--envelope",
        type=click.Choice(["debezium"]),
        help="Values are Debezium's change events, for --mode upsert.",
    ),
    click.option(
        "--on-schema-change",
        type=click.Choice(["fail", "add", "widen"]),
        help="What becomes of the table when rows have other columns (default: add where values "
        "are decoded and the load has loaded into it before, else fail).",
    ),
)


@click.command
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@takes(_PLACES)
@takes(_ENGINE)
@takes(_INSTEAD_OF_LOADING)
@takes(_ROWS_AND_FILES)
@takes_client
@takes_output
def command(client: Client, output: Output, **options: Any) -> None:
    """Land what is new in topics in a warehouse, each record exactly once.

    Several topics go into one atomic commit, or into a table each where --to says {topic}.
    """
    said = SimpleNamespace(**options)
    if said.truncate_after and said.rewind is None:
        raise click.UsageError("--truncate-after goes with --rewind")
    if said.rewind is not None:
        if said.topics or said.pattern or not said.name or said.dry_run or said.forget:
            raise click.UsageError("--rewind loads nothing: give --to and --name with it alone")
        _rewind(client, said, output)
    elif said.forget:
        if said.topics or said.pattern or not said.name or said.dry_run:
            raise click.UsageError("--forget loads nothing: give --to and --name alone")
        _forget(said, output)
    elif not ((said.topics or said.pattern) and said.name):
        raise click.UsageError("give a TOPIC and --name NAME, or --forget or --rewind")
    elif said.topics and said.pattern:
        raise click.UsageError("--pattern finds the topics: leave TOPIC or --pattern out")
    else:
        _load(client, said, output)


def _forget(options: SimpleNamespace, output: Output) -> None:
    from pyspark_kafkalog.warehouse.forget import forget

    is_forgotten = forget(options.to, options.name)
    said = (
        f"Load {options.name} is forgotten: its next load is a first one and lands everything "
        "again. Rows that it loaded are still there."
        if is_forgotten
        else f"Nothing to forget: the target knows no load {options.name}."
    )
    output.say(said, name=options.name, forgotten=is_forgotten)


def _rewind(client: Client, options: SimpleNamespace, output: Output) -> None:
    from pyspark_kafkalog.warehouse.rewind import rewind

    given = {f"kafka.{name}": value for name, value in client.properties_if_named().items()}
    given |= read_settings("--option", options.option)
    done = rewind(options.to, options.name, options.rewind, options.truncate_after, given)
    places = [
        f"{one.topic}-{one.partition} at {one.start_offset} (was {one.until_offset})"
        for one in done.ranges
    ]
    shown = ", ".join(places[:_MOST_NAMED]) + (", ..." if len(places) > _MOST_NAMED else "")
    went = f"goes on in {shown}" if places else "is there already"
    output.say(
        f"Load {done.name} {went}; rows deleted: {done.deleted_rows:,}.",
        name=done.name,
        ranges=[asdict(one) for one in done.ranges],
        deleted_rows=done.deleted_rows,
    )


def _load(client: Client, options: SimpleNamespace, output: Output) -> None:
    from pyspark_kafkalog.warehouse.options import load_options
    from pyspark_kafkalog.warehouse.plan import has_work, plan_load
    from pyspark_kafkalog.warehouse.topic_places import names_topic

    source = {f"kafka.{name}": value for name, value in client.properties().items()}
    source |= read_settings("--option", options.option)
    if options.pattern:
        source["subscribePattern"] = options.pattern
    else:
        source["subscribe"] = ",".join(options.topics)
    if names_topic(options.to):
        _load_each(source, options, output)
        return
    # What can be wrong, or that nothing is to be done, is said before Spark starts, in seconds.
    wanted = load_options(options.name, options.to, source, **_as_load_arguments(options, output))
    is_local = _is_local(options, needs_spark=wanted.query is not None)
    if options.dry_run:
        _tell_plan(plan_load(wanted), output)
        return
    progress = not (output.is_quiet or output.as_json)
    end_on_sigterm()
    if is_local:
        from pyspark_kafkalog.warehouse.engines.local import LocalEngine
        from pyspark_kafkalog.warehouse.load import run_load

        with LocalEngine(options.workers) as engine:
            result = run_load(engine, wanted, progress)
        _tell_result(result, output)
    elif not has_work(wanted):
        output.say(f"Nothing new for {options.name}.", name=options.name, commit=None)
    else:
        _tell_result(_run_in_spark(wanted, options, progress), output)


def _load_each(source: dict[str, str], options: SimpleNamespace, output: Output) -> None:
    """Each topic into a target of its own; raises KafkalogError when one of them failed."""
    from pyspark_kafkalog.warehouse.each_topic import EachTopic, load_each
    from pyspark_kafkalog.warehouse.engines.local import LocalEngine
    from pyspark_kafkalog.warehouse.engines.spark import SparkEngine
    from pyspark_kafkalog.warehouse.rows.transformation import takes_batches

    arguments = _as_load_arguments(options, output)
    transform = arguments["transform"]
    each = EachTopic(options.name, options.to, source, arguments)
    needs_spark = transform is not None and not takes_batches(transform)
    is_local = _is_local(options, needs_spark)

    def tell(one: "TopicLoad") -> None:
        if one.error is not None:
            say_error(f"topic {one.topic}: {sentence(one.error)}")
        elif one.result is not None and (one.result.commit_id is not None or output.as_json):
            _tell_result(one.result, output, one.topic)

    if options.dry_run:
        _tell_plans(each, output)
        return
    end_on_sigterm()
    if is_local:
        with LocalEngine(options.workers, options.at_once) as engine:
            done = load_each(lambda _: engine, each, options.at_once, tell)
    else:

        def run(spark: "SparkSession") -> "list[TopicLoad]":
            return load_each(lambda one: SparkEngine(spark, one.query), each, 1, tell)

        done = _in_spark(options, run)
    _tell_all(done, output)


def _tell_plans(each: "EachTopic", output: Output) -> None:
    from pyspark_kafkalog.warehouse.plan import plan_load

    topics = each.topics()
    failed = []
    for topic in topics:
        try:
            _tell_plan(plan_load(each.of(topic)), output)
        except (KafkalogError, OSError) as error:
            say_error(f"topic {topic}: {sentence(error)}")
            failed.append(topic)
    _refuse_failed(failed, len(topics), "cannot be loaded")


def _tell_all(done: "list[TopicLoad]", output: Output) -> None:
    new = [one for one in done if one.result is not None and one.result.commit_id is not None]
    failed = sorted(one.topic for one in done if one.error is not None)
    if not output.as_json:
        output.say(
            f"{counted(len(done), 'topic')}: {len(new)} with something new, "
            f"{len(done) - len(new) - len(failed)} without, {len(failed)} failed."
        )
    sys.stdout.flush()
    _refuse_failed(failed, len(done), "failed, all others are loaded")


def _refuse_failed(failed: list[str], count: int, what: str) -> None:
    if failed:
        shown = ", ".join(failed[:_MOST_NAMED]) + (", ..." if len(failed) > _MOST_NAMED else "")
        raise KafkalogError(f"{len(failed)} of {count} topics {what}: {shown}.")


def _is_local(options: SimpleNamespace, needs_spark: bool) -> bool:
    """Whether the local engine runs the tasks. More of Spark than this machine's processors is to
    be had by --master alone, so the size of a plan does not ask for it."""
    if options.engine == "local" and needs_spark:
        raise click.UsageError(
            "--transform names a function of DataFrames, which are Spark's: leave --engine local "
            "out, or annotate its parameter as pyarrow.RecordBatch"
        )
    if options.engine == "local" and options.master:
        raise click.UsageError("--master is Spark's: leave it or --engine local out")
    is_local = options.engine == "local" or not (options.engine or options.master or needs_spark)
    if options.workers and not is_local:
        raise click.UsageError("--workers are the local engine's: Spark has as many as it is given")
    return is_local


def _run_in_spark(wanted: "LoadOptions", options: SimpleNamespace, progress: bool) -> "LoadResult":
    from pyspark_kafkalog.warehouse.engines.spark import SparkEngine
    from pyspark_kafkalog.warehouse.load import run_load

    def run(spark: "SparkSession") -> "LoadResult":
        return run_load(SparkEngine(spark, wanted.query), wanted, progress=progress)

    return _in_spark(options, run)


def _in_spark(options: SimpleNamespace, run: "Callable[[SparkSession], _Done]") -> _Done:
    """What `run` does with a session of its own."""
    from pyspark_kafkalog.java import JavaDiedError, check_java, has_jvm_died, start_jvm

    check_java()

    from pyspark.sql import SparkSession

    if (options.master or "local").startswith("local"):
        let_spark_workers_be_this_python()
    settings: dict[str, Any] = {
        "spark.app.name": f"kafkalog load {options.name}",
        "spark.ui.showConsoleProgress": "false",
    }
    if options.master:
        settings["spark.master"] = options.master
    result = None
    try:
        start_jvm(settings, options.spark_log)
        spark = SparkSession.builder.config(map=settings).getOrCreate()
        try:
            result = run(spark)
        finally:
            spark.stop()
    except Exception as error:
        if not has_jvm_died():
            raise
        # Nor is a load that is committed one that failed.
        if result is None:
            raise JavaDiedError from error
    return result


def _tell_plan(plan: "LoadPlan", output: Output) -> None:
    output.row(
        *str(plan).split("\n"),
        name=plan.name,
        target=plan.target,
        ranges=[asdict(piece) for piece in plan.ranges],
        bytes=sum(plan.bytes.values()),
        tasks=plan.tasks,
        commits=plan.commits,
    )


def _tell_result(result: "LoadResult", output: Output, topic: str | None = None) -> None:
    try:
        _print_result(result, output, topic)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise KafkalogError(
            f"All is committed; what is not done is to say so: standard output, {error.strerror}."
        ) from error


def _print_result(result: "LoadResult", output: Output, topic: str | None) -> None:
    gone = sum(gap.offset_count for gap in result.gaps)
    said = f"Nothing new for {result.name}."
    if result.commit_id is not None:
        commits = f"{result.commits} commits, the last one" if result.commits > 1 else "Commit"
        said = (
            f"{commits} {result.commit_id}: {counted(result.records, 'record')} "
            f"in {counted(len(result.files), 'file')} of {counted(result.bytes, 'byte')}."
        )
        if result.gaps:
            said += f"\nGone: {counted(gone, 'offset')}, in {counted(len(result.gaps), 'gap')}."
        if result.bad_records:
            said += f"\nCould not be decoded: {counted(result.bad_records, 'record')}."
    of_topic = {} if topic is None else {"topic": topic}
    output.say(
        *(f"{topic}: {said}" if topic else said).split("\n"),
        **of_topic,
        name=result.name,
        commit=result.commit_id,
        commits=result.commits,
        records=result.records,
        files=len(result.files),
        bytes=result.bytes,
        offsets_gone=gone,
        bad_records=result.bad_records,
    )


def _as_load_arguments(options: SimpleNamespace, output: Output) -> "LoadArguments":
    """What the command line says, as the keyword arguments of `load`."""
    from pyspark_kafkalog.warehouse.named_function import function_named

    return {
        "starting": _place("--from", options.starting, output),
        "until": _place("--until", options.until, output),
        "max_bytes": options.max_bytes,
        "chunk_bytes": options.chunk_bytes,
        "transform": options.transform and function_named(options.transform),
        "value_format": options.value_format,
        "value_schema": read_schema(options.value_schema),
        "registry": read_registry(options.registry, options.registry_option),
        "on_error": options.on_error,
        "dead_letter_topic": options.dead_letter_topic,
        "partition_by": options.partition_by,
        "sort_by": options.sort_by,
        "compression": options.compression,
        "target_file_bytes": options.target_file_size,
        "group": options.group,
        "mode": options.mode,
        "key": options.key,
        "order_by": options.order_by,
        "envelope": options.envelope,
        "on_schema_change": options.on_schema_change,
    }


def _place(flag: str, text: str | None, output: Output) -> str | datetime | None:
    """A place of a load; says of a time without a zone which one it is, unless to be quiet."""
    from pyspark_kafkalog.source.places import parse_time

    moment = None if text is None else parse_time(text)
    if moment is None or moment.tzinfo is not None:
        return text if moment is None else moment
    moment = moment.astimezone()
    if not output.is_quiet:
        print(f"{flag} {text} is {moment.isoformat()}.", file=sys.stderr)
    return moment
