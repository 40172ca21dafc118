"""`kafkalog groups`: lists, describes, resets and deletes consumer groups."""

import re
import time
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from pyspark_kafkalog.cli.arguments import Client, takes, takes_client, takes_output
from pyspark_kafkalog.cli.names import complete_groups, complete_topics
from pyspark_kafkalog.cli.output import Output
from pyspark_kafkalog.errors import KafkalogError, UnknownGroupError
from pyspark_kafkalog.source.places import Place

if TYPE_CHECKING:
    from kafka.structs import TopicPartition

    from pyspark_kafkalog.client.cluster import Cluster
    from pyspark_kafkalog.client.groups import GroupDescription, GroupMember

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?"
    r"(?:(?P<seconds>\d+(?:\.\d{1,3})?)S)?)?"
)
_UNIT_S = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


@click.group
def command() -> None:
    """List, describe, reset and delete consumer groups."""


@command.command("list")
@takes_client
@takes_output
def list_groups(client: Client, output: Output) -> None:
    """List groups with their states and types.

    A type is classic, consumer, share or streams.
    """
    from pyspark_kafkalog.client.groups import list_groups

    with client.cluster() as cluster:
        for group in list_groups(cluster):
            output.row(
                f"{group.name} state={group.state or '-'} type={group.kind or '-'}",
                group=group.name,
                state=group.state,
                type=group.kind,
                protocol_type=group.protocol_type,
            )


@command.command
@click.argument("groups", nargs=-1, metavar="[GROUP]...", shell_complete=complete_groups)
@takes_client
@takes_output
def describe(client: Client, output: Output, groups: tuple[str, ...]) -> None:
    """Show state, members, offsets and lag of groups.

    Of all groups when none is named.
    """
    from pyspark_kafkalog.client.groups import describe_group, list_groups

    with client.cluster() as cluster:
        readers = ("classic", "consumer", "")
        names = groups or [each.name for each in list_groups(cluster) if each.kind in readers]
        for name in names:
            # Of those that nobody named, one may be gone since it was listed.
            with nullcontext() if groups else suppress(UnknownGroupError):
                _tell(output, describe_group(cluster, name), _places_of(cluster, name))


@dataclass(frozen=True, slots=True)
class _GroupPlaces:
    """Where a group is, and where the partitions end that are there."""

    committed: "Mapping[TopicPartition, int]"
    ends: "Mapping[TopicPartition, int]"

    def lag(self, topic_partition: "TopicPartition") -> int | None:
        if topic_partition in self.committed and topic_partition in self.ends:
            return self.ends[topic_partition] - self.committed[topic_partition]
        return None


def _places_of(
    cluster: "Cluster", group: str, more: "Collection[TopicPartition]" = ()
) -> _GroupPlaces:
    from pyspark_kafkalog.client.group import committed_offsets, ends_of

    committed = committed_offsets(cluster, group)
    return _GroupPlaces(committed, ends_of(cluster, {*committed, *more}))


def _tell(output: Output, group: "GroupDescription", places: _GroupPlaces) -> None:
    owners = {
        topic_partition: member for member in group.members for topic_partition in member.partitions
    }
    rows = [
        _row(topic_partition, owners.get(topic_partition), places)
        for topic_partition in sorted({*places.committed, *owners})
    ]
    lag = sum(row["lag"] or 0 for row in rows)
    lines = [
        f"{group.name}  state={group.state} type={group.kind}"
        f" assignor={group.assignor or '-'} members={len(group.members)} lag={lag}"
    ]
    lines += [f"  {_text(row)}" for row in rows]
    lines += [
        f"  no partition {_of_member(member)}" for member in group.members if not member.partitions
    ]
    output.row(
        *lines,
        group=group.name,
        state=group.state,
        type=group.kind,
        protocol_type=group.protocol_type,
        assignor=group.assignor,
        coordinator="{}:{}".format(*group.coordinator),
        members=[
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": len(member.partitions),
            }
            for member in group.members
        ],
        partitions=rows,
        lag=lag,
    )


def _row(
    topic_partition: "TopicPartition", member: "GroupMember | None", places: _GroupPlaces
) -> dict[str, Any]:
    return {
        "topic": topic_partition.topic,
        "partition": topic_partition.partition,
        "committed": places.committed.get(topic_partition),
        "end": places.ends.get(topic_partition),
        "lag": places.lag(topic_partition),
        "client_id": member and member.client_id,
        "host": member and member.host,
        "member_id": member and member.member_id,
    }


def _text(row: Mapping[str, Any]) -> str:
    names = ("partition", "committed", "end", "lag", "client_id", "host", "member_id")
    values = {name: "-" if row[name] is None else row[name] for name in names}
    if row["end"] is None:
        values["end"] = "gone"
    shown = (f"{name}={value}" for name, value in values.items())
    return " ".join([row["topic"], *shown])


def _of_member(member: "GroupMember") -> str:
    return f"client_id={member.client_id} host={member.host} member_id={member.member_id}"


@command.command
@click.argument(
    "groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups
)
@takes_client
@takes_output
def delete(client: Client, output: Output, groups: tuple[str, ...]) -> None:
    """Delete groups that have no members, and their offsets."""
    from pyspark_kafkalog.client.groups import delete_groups

    with client.cluster() as cluster:
        for name in groups:
            delete_groups(cluster, [name])
            output.say(f"Deleted group {name}.", group=name, deleted=True)


_WHERE_TO = (
    click.option("--to-earliest", is_flag=True, help="To the first offset that is there."),
    click.option("--to-latest", is_flag=True, help="To the end."),
    click.option(
        "--to-offset",
        type=click.IntRange(min=0),
        metavar="N",
        help="To this offset, or the nearest that is there.",
    ),
    click.option(
        "--shift-by",
        type=int,
        metavar="N",
        help="By so many offsets from where the group is, back if negative.",
    ),
    click.option(
        "--to-datetime",
        metavar="TIME",
        help="To the first record at or after a time, as 2026-11-01T00:00:00.000, by this "
        "machine's clock unless it names a zone.",
    ),
    click.option(
        "--by-duration",
        metavar="DURATION",
        help="To the first record of the last PnDTnHnMnS, such as PT1H30M.",
    ),
)
"""As kafka-consumer-groups has them."""


@command.command
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:N,...]",
    shell_complete=complete_topics,
    help="A topic, or partitions of it; may be repeated. Default: what the group committed.",
)
@takes(_WHERE_TO)
@click.option("--execute", is_flag=True, help="Do it. Without, only say what would be done.")
@takes_client
@takes_output
def reset(
    client: Client,
    output: Output,
    group: str,
    topics: tuple[str, ...],
    execute: bool,
    **where: Any,
) -> None:
    """Set where a group goes on, which must have no members. Changes nothing without --execute.

    \b
    kafkalog groups reset readers --to-earliest
    kafkalog groups reset readers --topic orders:0,2 --to-datetime 2026-11-01T00:00:00 --execute
    """
    place = _place(where)
    with client.cluster() as cluster:
        _refuse_members(cluster, group)
        topic_partitions = _partitions(cluster, topics)
        places = _places_of(cluster, group, topic_partitions or ())
        topic_partitions = (
            sorted(
                topic_partition
                for topic_partition in places.committed
                if topic_partition in places.ends
            )
            if topic_partitions is None
            else topic_partitions
        )
        if not topic_partitions:
            raise KafkalogError(
                f"Group {group} has committed no offsets of topics that are there. Check its name, "
                "or say what to set: --topic TOPIC."
            )
        wanted = _wanted(cluster, group, topic_partitions, place or where["shift_by"], places)
        if execute:
            from pyspark_kafkalog.client.group import commit_offsets

            commit_offsets(cluster, group, wanted)
    for topic_partition, offset in wanted.items():
        before = places.committed.get(topic_partition)
        output.row(
            f"{topic_partition.topic} partition={topic_partition.partition}"
            f" before={'-' if before is None else before} offset={offset}",
            group=group,
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            before=before,
            offset=offset,
            executed=execute,
        )
    if not execute and not output.as_json:
        output.say("Nothing was changed: --execute does it.")


def _place(where: Mapping[str, Any]) -> Place | None:
    """The place that is asked for; None for --shift-by."""
    given = [name for name, value in where.items() if value is not None and value is not False]
    if len(given) != 1:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in where)
        raise click.UsageError(f"Say where to by one of {flags}.")
    if where["to_earliest"] or where["to_latest"]:
        return Place("beginning" if where["to_earliest"] else "end")
    if where["to_offset"] is not None:
        return Place(offset=where["to_offset"])
    if where["to_datetime"] is not None:
        return Place(time_ms=_time_ms(where["to_datetime"]))
    if where["by_duration"] is not None:
        return Place(time_ms=time.time_ns() // 1_000_000 - _duration_ms(where["by_duration"]))
    return None


def _time_ms(text: str) -> int:
    from pyspark_kafkalog.source.places import parse_time

    moment: datetime | None = parse_time(text)
    if moment is None:
        raise click.UsageError(
            f"--to-datetime {text!r} is no time: write it as 2026-11-01T00:00:00.000."
        )
    return int(moment.timestamp() * 1000)


def _duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groupdict().values()):
        raise click.UsageError(
            f"--by-duration {text!r} is no duration: write it as PnDTnHnMnS, such as P1D or PT30M."
        )
    return int(sum(float(found[unit] or 0) * length for unit, length in _UNIT_S.items()) * 1000)


def _refuse_members(cluster: "Cluster", group: str) -> None:
    from pyspark_kafkalog.client.groups import describe_group

    try:
        found = describe_group(cluster, group)
    except UnknownGroupError:
        return  # a reset with --topic makes one
    if found.members:
        raise KafkalogError(
            f"Group {group} has {len(found.members)} members, which commit offsets of their own: "
            "stop them first."
        )


def _partitions(cluster: "Cluster", topics: tuple[str, ...]) -> "list[TopicPartition] | None":
    """What `--topic` names, sorted; None without any."""
    from pyspark_kafkalog.client.selection import Selection

    if not topics:
        return None
    found: set[TopicPartition] = set()
    for text in topics:
        name, _, numbers = text.partition(":")
        try:
            partitions = tuple(int(number) for number in numbers.split(",") if numbers)
        except ValueError:
            raise click.UsageError(f"--topic {text} is not written TOPIC:N,N.") from None
        found.update(Selection((name,), partitions=partitions).find(cluster))
    return sorted(found)


def _wanted(
    cluster: "Cluster",
    group: str,
    topic_partitions: "list[TopicPartition]",
    place: Place | int,
    places: _GroupPlaces,
) -> "dict[TopicPartition, int]":
    """Where each partition goes to; an int shifts it from where it is."""
    from pyspark_kafkalog.client.cluster import EARLIEST

    if isinstance(place, Place):
        found = place.offsets(cluster, topic_partitions)
    else:
        without = [
            topic_partition
            for topic_partition in topic_partitions
            if topic_partition not in places.committed
        ]
        if without:
            raise KafkalogError(
                f"Group {group} has committed no offset of {without[0].topic}-"
                f"{without[0].partition}, so that nothing can be shifted there."
            )
        found = {
            topic_partition: places.committed[topic_partition] + place
            for topic_partition in topic_partitions
        }
    firsts = cluster.list_offsets(topic_partitions, EARLIEST)
    return {
        each: min(max(found[each], firsts[each].offset), places.ends[each])
        for each in topic_partitions
    }
