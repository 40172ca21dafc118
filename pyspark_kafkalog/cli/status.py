"""`kafkalog status`: where the loads of a target are, and how far behind."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from pyspark_kafkalog.cli.arguments import TARGET, Client, takes_client, takes_output
from pyspark_kafkalog.cli.output import Output
from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError, sentence

if TYPE_CHECKING:
    from pyspark_kafkalog.client.cluster import Cluster, ClusterOverview
    from pyspark_kafkalog.warehouse.commit import Position
    from pyspark_kafkalog.warehouse.status import LoadStatus, PartitionProgress


@click.command
@click.option("--to", "target", required=True, metavar="KIND:PLACE", help=TARGET)
@click.option("--name", metavar="NAME", help="This load alone. Default: all of the target.")
@click.option(
    "--gaps",
    is_flag=True,
    help="Offsets that were given up in any commit that the target tells of, not the last alone.",
)
@takes_client
@takes_output
def command(client: Client, output: Output, target: str, name: str | None, gaps: bool) -> None:
    """Show the last commit of loads, where they go on, and how far they are behind.

    Without a cluster, lag is not shown. A target that says {topic} stands for those of all topics
    of the cluster. A target that no load has committed to is no error, but said on stderr; a --name
    that it does not know is one.
    """
    from pyspark_kafkalog.warehouse.topic_places import names_topic

    if names_topic(target):
        _tell_topics(client, output, target, name, gaps)
    else:
        _tell_target(client, output, target, name, gaps)


def _tell_target(client: Client, output: Output, target: str, name: str | None, gaps: bool) -> None:
    from pyspark_kafkalog.warehouse.status import load_status
    from pyspark_kafkalog.warehouse.targets.target import open_target

    found = load_status(target, name, gaps)
    if not found:
        _tell_none(output, f"to {open_target(target)}")  # which shows no password
    cluster = client.cluster_if_named()
    if cluster is None:
        for status in found:
            _tell(output, status, _alone(status.position))
        return
    with cluster:
        overview = cluster.overview()
        rows = [_beside(cluster, overview, status.position) for status in found]
    for status, partitions in zip(found, rows, strict=True):
        _tell(output, status, partitions)


def _tell_topics(client: Client, output: Output, target: str, name: str | None, gaps: bool) -> None:
    """Each as soon as it is known; raises KafkalogError in the end where one could not be read."""
    from pyspark_kafkalog.warehouse.status import LoadStatus, load_status_of_topics

    cluster = client.cluster_if_named()
    if cluster is None:
        raise InvalidOptionError(
            "the target says {topic}, and nobody says of which cluster: give --bootstrap-servers"
        )
    failures = []
    found = []
    with cluster:
        overview = cluster.overview()
        for each in load_status_of_topics(target, overview.topics, name, gaps):
            if isinstance(each, LoadStatus):
                found.append(each)
                _tell(output, each, _beside(cluster, overview, each.position))
            else:
                failures.append(each)
    if failures:
        others = f" (and {len(failures) - 1} more topics)" if len(failures) > 1 else ""
        raise KafkalogError(f"{sentence(failures[0])}{others}") from failures[0]
    if not found:
        _tell_none(output, "to the target of any topic")


def _tell_none(output: Output, where: str) -> None:
    if not output.is_quiet:
        print(f"No load has committed {where}.", file=sys.stderr)


def _alone(position: "Position") -> "list[PartitionProgress]":
    """Where the load goes on, with no word of the brokers."""
    from pyspark_kafkalog.warehouse.status import PartitionProgress

    return [
        PartitionProgress(topic_partition.topic, topic_partition.partition, offset)
        for topic_partition, offset in sorted(position.offsets.items())
    ]


def _beside(
    cluster: "Cluster", overview: "ClusterOverview", position: "Position"
) -> "list[PartitionProgress]":
    """The same beside the ends of the topics, as a load reads them: up to the first transaction
    that is open."""
    from kafka.structs import TopicPartition

    from pyspark_kafkalog.client.cluster import EARLIEST, LATEST
    from pyspark_kafkalog.client.config import Isolation
    from pyspark_kafkalog.warehouse.status import progress_beside

    topics = sorted({each.topic for each in position.offsets} & overview.topics.keys())
    there = {
        TopicPartition(name, each.partition) for name in topics for each in overview.topics[name]
    }
    ends = cluster.list_offsets(there, LATEST, Isolation.READ_COMMITTED)
    begins = cluster.list_offsets(there.difference(position.offsets), EARLIEST)
    return progress_beside(
        position,
        there,
        {each: at.offset for each, at in begins.items()},
        {each: at.offset for each, at in ends.items()},
        {name: cluster.topic_id(name) for name in topics},
    )


def _tell(output: Output, status: "LoadStatus", progress: "Sequence[PartitionProgress]") -> None:
    partitions = [asdict(each) for each in progress]
    last = status.last
    at = last and datetime.fromtimestamp(last.committed_at_ms / 1000, timezone.utc)
    lags = [row["lag"] for row in partitions if row["lag"] is not None]
    lag = sum(lags) if lags else None
    given_up = sum(gap.offset_count for gap in status.gaps)
    lines = [
        f"{status.name}  commit={last.commit_id if last else '-'}"
        f" at={at.isoformat(timespec='seconds') if at else '-'}"
        f" lag={'-' if lag is None else lag} offsets_gone={given_up}"
    ]
    lines += [f"  {_text(row)}" for row in partitions]
    lines += [
        f"  gone: {gap.topic} partition={gap.partition} from={gap.start_offset}"
        f" until={gap.until_offset}"
        for gap in status.gaps
    ]
    output.row(
        *lines,
        name=status.name,
        target=status.target,
        commit=last and last.commit_id,
        committed_at=at and at.isoformat(),
        lag=lag,
        offsets_gone=given_up,
        gaps=[asdict(gap) for gap in status.gaps],
        partitions=partitions,
    )


def _text(row: dict[str, Any]) -> str:
    shown = (
        f"{name}={'-' if row[name] is None else row[name]}"
        for name in ("partition", "next", "end", "lag")
    )
    state = "" if row["state"] in ("ok", "unknown") else f" {row['state']}"
    return f"{row['topic']} {' '.join(shown)}{state}"
