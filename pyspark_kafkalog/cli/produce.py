"""`kafkalog produce`: lines, files or JSON as records of a topic."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pyspark_kafkalog.cli.arguments import (
    Client,
    read_pairs,
    suit_arrow,
    takes,
    takes_client,
    takes_quiet,
)
from pyspark_kafkalog.cli.names import complete_topics
from pyspark_kafkalog.errors import InvalidOptionError, counted

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.cli.record_input import RecordInput

_RECORDS = (
    click.option(
        "--format",
        "-f",
        "wanted",
        type=click.Choice(["raw", "json"]),
        default="raw",
        help="raw: each line is a value (the default). json: an object a line as `consume` writes "
        "it, with key, value, headers, timestamp and partition as far as they are there; what is "
        "not there is null.",
    ),
    click.option(
        "--key-separator",
        "-K",
        metavar="TEXT",
        default="",
        help="What stands before this text in a line is the key, what follows the value. Default: "
        "lines have no keys.",
    ),
    click.option("--key", "-k", metavar="TEXT", help="The key of all records."),
    click.option(
        "--header",
        "-H",
        "headers",
        multiple=True,
        metavar="NAME=VALUE",
        help="A header of all records; may be repeated.",
    ),
    click.option(
        "--partition",
        "-p",
        type=click.IntRange(min=0),
        metavar="N",
        help="Where all records go. Default: by their key, as Kafka's clients do.",
    ),
    click.option(
        "--null", metavar="TEXT", help="A key or value of this text is null: a tombstone."
    ),
    click.option(
        "--whole-files", is_flag=True, help="Each FILE is the value of one record, not lines."
    ),
)

_SENDING = (
    click.option(
        "--acks",
        type=click.Choice(["all", "1", "0"]),
        help="Which replicas must have a record before it counts as written: all in sync (the "
        "default), the leader alone (1), or none (0).",
    ),
    click.option(
        "--compression",
        "-z",
        type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
        help="Default: none.",
    ),
)


@click.command
@click.argument("topic", shell_complete=complete_topics)
@click.argument(
    "files", nargs=-1, type=click.Path(exists=True, dir_okay=False), metavar="[FILE]..."
)
@takes(_RECORDS)
@takes(_SENDING)
@takes_client
@takes_quiet
def command(client: Client, topic: str, files: tuple[str, ...], **options: Any) -> None:
    """Write the lines of stdin, or of FILEs, as records.

    What has been read is sent whenever nothing more is ready. A topic that is not there is created
    if the brokers allow that (auto.create.topics.enable).

    \b
    echo 'ann:/home' | kafkalog produce clicks --key-separator :
    kafkalog consume a --format json --exit-at-end | kafkalog produce b --format json
    kafkalog produce pictures --whole-files *.png
    """
    if options["whole_files"] and (not files or options["wanted"] == "json"):
        raise click.UsageError("--whole-files takes FILEs, each of them a value as it is.")
    if (options["whole_files"] or options["wanted"] == "json") and (
        options["key_separator"] or options["null"] is not None
    ):
        raise click.UsageError("--key-separator and --null are for lines that are values.")
    suit_arrow()
    settings = {"acks": options["acks"], "compression.type": options["compression"]}
    given = tuple(f"{name}={value}" for name, value in settings.items() if value is not None)
    count = _produce(
        replace(client, settings=(*client.settings, *given)),
        topic,
        _sources(files),
        _record_input(options),
        options["whole_files"],
    )
    if not options["quiet"]:
        print(f"{counted(count, 'record')} written to {topic}.", file=sys.stderr)


def _produce(
    client: Client,
    topic: str,
    sources: Iterable[Any],
    record_input: "RecordInput",
    are_whole: bool,
) -> int:
    """Writes all records; returns how many."""
    from pyspark_kafkalog.cli.record_writer import RecordWriter
    from pyspark_kafkalog.client.cluster import Cluster
    from pyspark_kafkalog.client.producer import Producer

    config = client.config()
    with Cluster(config, fails_fast=True) as cluster, Producer(cluster) as producer:
        writer = RecordWriter(producer, config, topic)
        count = len(writer.partitions)
        if record_input.partition is not None and record_input.partition not in writer.partitions:
            raise InvalidOptionError(
                f"Topic {topic} has no partition {record_input.partition}, only 0 to {count - 1}."
            )
        record_input = replace(record_input, partition_count=count)
        for rows, more_is_ready in _rows(sources, record_input, are_whole):
            if rows is not None:
                writer.write(rows)
            if not more_is_ready:
                writer.flush()
        writer.flush()
    return writer.count


def _sources(files: tuple[str, ...]) -> Iterator[Any]:
    """What is read, one after the other, in bytes."""
    if files:
        for path in files:
            with open(path, "rb") as file:
                yield file
    elif sys.stdin is None:
        raise InvalidOptionError("produce reads its records from stdin, which is closed.")
    else:
        yield sys.stdin.buffer


def _record_input(options: dict[str, Any]) -> "RecordInput":
    from pyspark_kafkalog.cli.record_input import RecordInput

    def encoded(text: str | None) -> bytes | None:
        return None if text is None else text.encode(errors="surrogateescape")

    headers = read_pairs("--header", options["headers"])
    return RecordInput(
        options["wanted"] == "json",
        options["key_separator"].encode(errors="surrogateescape"),
        encoded(options["null"]),
        encoded(options["key"]),
        tuple((name, value.encode(errors="surrogateescape")) for name, value in headers),
        options["partition"],
    )


def _rows(
    sources: Iterable[Any], record_input: "RecordInput", are_whole: bool
) -> "Iterator[tuple[pa.RecordBatch | None, bool]]":
    """Records as they come, and whether more are there already; None where there are none now.

    Raises InvalidOptionError for a line that is no record, once all before it are written: whoever
    mends the line begins with it.
    """
    from pyspark_kafkalog.cli.record_input import BadLineError, chunks

    count = 0
    for source in sources:
        if are_whole:
            yield record_input.whole(source.read()), True
            continue
        line = 1
        try:
            for lines, more_is_ready in chunks(source):
                rows = None if lines is None else record_input.rows(lines)
                yield rows, more_is_ready
                if lines is not None and rows is not None:
                    line += lines.count(b"\n") + 1
                    count += rows.num_rows
        except BadLineError as error:
            rows = record_input.rows(b"\n".join(error.before)) if error.before else None
            yield rows, False
            line += len(error.before)
            count += rows.num_rows if rows is not None else 0
            raise InvalidOptionError(
                f"Line {line} of {_name(source)}: {error}. Records written before it: {count}; "
                "after it: none."
            ) from None


def _name(source: Any) -> str:
    return "stdin" if source is getattr(sys.stdin, "buffer", None) else str(source.name)
