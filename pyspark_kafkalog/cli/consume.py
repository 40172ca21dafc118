"""`kafkalog consume`: prints the records of topics."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from pyspark_kafkalog.cli.arguments import (
    VALUE_OPTIONS,
    Client,
    read_registry,
    read_schema,
    suit_arrow,
    takes,
    takes_client,
    takes_quiet,
)
from pyspark_kafkalog.cli.names import complete_groups, complete_topics
from pyspark_kafkalog.cli.output import is_stdout_closed
from pyspark_kafkalog.cli.places import PLACE, WAYS
from pyspark_kafkalog.errors import DataLossError, InvalidOptionError
from pyspark_kafkalog.source.places import Place

if TYPE_CHECKING:
    from kafka.structs import TopicPartition

    from pyspark_kafkalog.cli.topic_reader import TopicReader
    from pyspark_kafkalog.client.cluster import Cluster
    from pyspark_kafkalog.client.deadline import Deadline
    from pyspark_kafkalog.client.group import CommittedOffset
    from pyspark_kafkalog.decoding.decoder import Decoder

_COMMIT_MS = 5_000
"""As Kafka's auto.commit.interval.ms."""

_WITH_SCHEMA = ("json", "avro", "protobuf")

_WHERE = (
    click.option(
        "--pattern", metavar="REGEX", help="Instead of topics: all in whose name this is found."
    ),
    click.option(
        "--partition",
        "-p",
        "partitions",
        type=click.IntRange(min=0),
        multiple=True,
        metavar="N",
        help="This partition only; may be repeated.",
    ),
    click.option(
        "--offset",
        "-o",
        type=PLACE,
        help=f"Where to begin: {WAYS}. Default: the end.",
    ),
    click.option("--from-beginning", is_flag=True, help="The same as --offset beginning."),
    click.option(
        "--until",
        type=PLACE,
        help="Where to stop, the record there not included; what is said is found out at the "
        "beginning. Without it, more is waited for.",
    ),
    click.option("--exit-at-end", "-e", is_flag=True, help="The same as --until end."),
    click.option(
        "--max", "most", type=click.IntRange(min=0), metavar="N", help="Stop after N records."
    ),
    click.option(
        "--group",
        "-G",
        metavar="GROUP",
        shell_complete=complete_groups,
        help="Begin where this consumer group is (where it is nowhere: at --offset), and commit "
        "what was read. Does not join the group: one reader at a time.",
    ),
)


@click.command
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@takes(_WHERE)
@click.option(
    "--format",
    "-f",
    "wanted",
    default="raw",
    metavar="FORMAT",
    shell_complete=lambda _, __, text: [each for each in ("raw", "json") if each.startswith(text)],
    help="raw: values, one a line (the default). json: one object a line, bytes that are no UTF-8 "
    "as base64. Else a template: %t topic, %p partition, %o offset, %k key, %v value, "
    "%T timestamp in ms, %h headers, %K %S lengths, \\n a line's end.",
)
@takes(VALUE_OPTIONS)
@takes_client
@takes_quiet
def command(client: Client, topics: tuple[str, ...], wanted: str, **options: Any) -> None:
    """Print the records of topics.

    \b
    kafkalog consume orders --offset -10 --exit-at-end
    kafkalog consume orders --offset '-1 hour' --format '%T %k=%v\\n'
    kafkalog consume --pattern '^web-' --format json --max 100
    """
    if bool(topics) == bool(options["pattern"]):
        raise click.UsageError("Give one or more TOPICs, or --pattern.")
    decoder = _decoder(topics, options)
    if decoder is None:
        suit_arrow()
    from pyspark_kafkalog.cli.record_text import RecordText

    try:
        text = RecordText(wanted, decoder)
    except InvalidOptionError as error:
        raise click.UsageError(str(error)) from None
    with client.cluster() as cluster, _saying_how_to_go_on(cluster, options["group"]):
        reader, group = _reader(cluster, topics, text.columns, options)
        if not reader.positions and not options["quiet"]:
            print(f"No topic has {options['pattern']!r} in its name.", file=sys.stderr)
        with group:
            _print(reader, text, group, options["most"])


@contextmanager
def _saying_how_to_go_on(cluster: "Cluster", group: str | None) -> Iterator[None]:
    """A group that is where no record is any more stays there."""
    try:
        yield
    except DataLossError as error:
        if group is None or not (lost := _lost(cluster, group)):
            raise
        topics = "".join(
            f" --topic {topic}:{','.join(map(str, sorted(partitions)))}"
            for topic, partitions in sorted(lost.items())
        )
        raise DataLossError(
            f"{error} To go on with what is there: kafkalog groups reset {shlex.quote(group)}"
            f"{topics} --to-earliest --execute"
        ) from error


def _lost(cluster: "Cluster", group: str) -> dict[str, list[int]]:
    """The partitions, by topic, of which a group has committed an offset that is not there, or is
    of another log."""
    from pyspark_kafkalog.cli.topic_reader import others_of_group
    from pyspark_kafkalog.client.cluster import EARLIEST, LATEST
    from pyspark_kafkalog.client.config import Isolation
    from pyspark_kafkalog.client.group import committed_places

    committed = committed_places(cluster, group)
    there = cluster.topics()
    found = [each for each in committed if each.partition in there.get(each.topic, ())]
    begins = cluster.list_offsets(found, EARLIEST)
    ends = cluster.list_offsets(found, LATEST, Isolation.READ_UNCOMMITTED)
    others = others_of_group(cluster, committed, ends)
    lost: dict[str, list[int]] = {}
    for each in found:
        is_there = begins[each].offset <= committed[each].offset <= ends[each].offset
        if each in others or not is_there:
            lost.setdefault(each.topic, []).append(each.partition)
    return lost


def _decoder(topics: tuple[str, ...], options: dict[str, Any]) -> "Decoder | None":
    schema = read_schema(options["value_schema"])
    registry = read_registry(options["registry"], options["registry_option"])
    if schema is None and registry is None:
        if options["value_format"] == "binary":
            return None
        if options["value_format"] in _WITH_SCHEMA:
            raise click.UsageError(
                f"--value-format {options['value_format']} needs --value-schema or --registry."
            )
    from pyspark_kafkalog.decoding.formats import open_decoder

    if registry is not None and schema is None and len(topics) == 1:
        registry.setdefault("subject", f"{topics[0]}-value")
    return open_decoder(options["value_format"], schema, registry)


def _reader(
    cluster: "Cluster", topics: tuple[str, ...], columns: tuple[str, ...], options: dict[str, Any]
) -> "tuple[TopicReader, _Group]":
    from pyspark_kafkalog.cli.topic_reader import TopicReader
    from pyspark_kafkalog.client.selection import Selection

    group = _Group(cluster, options["group"])
    selection = Selection(topics, options["pattern"], options["partitions"])
    begin = _place(options["offset"], options["from_beginning"], Place("beginning"))
    until = _place(options["until"], options["exit_at_end"], Place("end"))
    committed = group.committed()
    reader = TopicReader(cluster, selection, columns, begin or Place("end"), until, committed)
    group.reader = reader
    if not options["quiet"]:
        _tell_of_others(
            begin, {each: at for each, at in reader.positions.items() if each not in committed}
        )
    return reader, group


def _tell_of_others(begin: Place | None, positions: "Mapping[TopicPartition, int]") -> None:
    """Says where records are read from another offset than was asked for."""
    from pyspark_kafkalog.source.offsets import describe

    wanted = -1 if begin is None or begin.offset is None else begin.offset
    others = [each for each, offset in positions.items() if offset != wanted]
    if wanted >= 0 and others:
        print(
            f"Offset {wanted} is not in {describe(others)}: read from the nearest that is.",
            file=sys.stderr,
        )


def _place(given: Place | None, is_short: bool, short: Place) -> Place | None:
    if given is not None and is_short:
        raise click.UsageError(f"{short.symbol} and another place are given: leave one out.")
    return short if is_short else given


def _print(reader: "TopicReader", text: Any, group: "_Group", most: int | None) -> None:
    left = sys.maxsize if most is None else most
    if not left:
        return
    for rows in reader.rows():
        if rows is None:
            group.has_read_to(reader.positions)
            group.commit_if_due()
            if is_stdout_closed():  # of `| head` nothing is heard before the next record
                return
            continue
        records, next_offset = rows.records, rows.next_offset
        if records.num_rows > left:
            records = records.slice(0, left)
            next_offset = records.column("offset")[left - 1].as_py() + 1
        sys.stdout.buffer.write(text.of(records))
        sys.stdout.flush()
        group.printed(rows.topic_partition, next_offset)
        group.commit_if_due()
        left -= records.num_rows
        if left <= 0:
            return
    group.has_read_to(reader.positions)


class _Group:
    """Where a consumer group is told what was read for it; of no group nothing is told."""

    def __init__(self, cluster: "Cluster", name: str | None) -> None:
        self._cluster = cluster
        self._name = name
        self.reader: TopicReader | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._read: dict[TopicPartition, int] = {}
        """What is to be committed."""
        self._due: Deadline | None = None

    def __enter__(self) -> "_Group":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After any other error the brokers may be gone, and that error is the one to be heard.
        if error is None or isinstance(error, KeyboardInterrupt):
            self.commit()

    def committed(self) -> "dict[TopicPartition, CommittedOffset]":
        if self._name is None:
            return {}
        from pyspark_kafkalog.client.group import committed_places

        places = committed_places(self._cluster, self._name)
        self._committed = {each: at.offset for each, at in places.items()}
        return places

    def printed(self, topic_partition: "TopicPartition", next_offset: int) -> None:
        self._read[topic_partition] = next_offset

    def has_read_to(self, positions: "Mapping[TopicPartition, int]") -> None:
        """Also where no record was: else a group that begins at the end would begin at another end
        the next time."""
        self._read |= {
            each: offset
            for each, offset in positions.items()
            if self._committed.get(each) != offset
        }

    def commit_if_due(self) -> None:
        from pyspark_kafkalog.client.deadline import Deadline

        if self._due is None:
            self._due = Deadline(_COMMIT_MS)
        if self._due.expired:
            self._due = None
            self.commit()

    def commit(self) -> None:
        """Raises what commits raise, such as UnknownMemberIdError where the group has members.

        Not of what a pipe took whose reader went away: nobody knows how much of it was read. kcat
        and rpk, which SIGPIPE ends, commit nothing then."""
        if self._name is None or self.reader is None or not self._read or is_stdout_closed():
            return
        from pyspark_kafkalog.client.group import commit_offsets

        read, self._read = self._read, {}
        epochs, topic_ids = self.reader.epochs, self.reader.topic_ids
        commit_offsets(self._cluster, self._name, read, epochs=epochs, topic_ids=topic_ids)
        self._committed = self._committed | read
