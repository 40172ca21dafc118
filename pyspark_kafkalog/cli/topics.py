"""`kafkalog topics`: creates, lists, describes, changes and deletes them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from pyspark_kafkalog.cli.arguments import Client, read_settings, takes_client, takes_output
from pyspark_kafkalog.cli.names import complete_topics
from pyspark_kafkalog.cli.output import Output, say_error
from pyspark_kafkalog.cli.places import PLACE, WAYS
from pyspark_kafkalog.errors import BrokersUnreachableError, UnknownTopicError, sentence
from pyspark_kafkalog.source.places import Place

if TYPE_CHECKING:
    from kafka.structs import TopicPartition

    from pyspark_kafkalog.client.admin import TopicDescription
    from pyspark_kafkalog.client.cluster import Cluster, ClusterOverview


@click.group
def command() -> None:
    """Create, list, describe, change, trim and delete topics."""


@command.command
@click.argument("topic")
@click.option(
    "--partitions",
    type=int,
    default=-1,
    metavar="N",
    help="Default: the brokers' num.partitions.",
)
@click.option(
    "--replication-factor",
    type=int,
    default=-1,
    metavar="N",
    help="Default: the brokers' default.replication.factor.",
)
@click.option(
    "--config", multiple=True, metavar="NAME=VALUE", help="A topic property; may be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="A topic that is there is left as it is.")
@takes_client
@takes_output
def create(
    client: Client,
    output: Output,
    topic: str,
    partitions: int,
    replication_factor: int,
    config: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Create a topic."""
    from kafka.errors import TopicAlreadyExistsError

    from pyspark_kafkalog.client import admin

    configs = read_settings("--config", config)
    with client.cluster() as cluster:
        try:
            admin.create_topic(cluster, topic, partitions, replication_factor, configs)
        except TopicAlreadyExistsError:
            if not if_not_exists:
                raise
            output.say(f"Topic {topic} exists.", topic=topic, created=False)
            return
    output.say(f"Created topic {topic}.", topic=topic, created=True)


@command.command("list")
@click.option("--internal", is_flag=True, help="Also those that brokers keep for themselves.")
@takes_client
@takes_output
def list_topics(client: Client, output: Output, internal: bool) -> None:
    """List the names of topics."""
    with client.cluster() as cluster:
        overview = cluster.overview()
    for name, partitions in overview.topics.items():
        if internal or name not in overview.internal:
            output.row(
                name,
                topic=name,
                partitions=len(partitions),
                replication_factor=max((len(each.replicas) for each in partitions), default=0),
                internal=name in overview.internal,
            )


@command.command
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@click.option(
    "--all-configs", is_flag=True, help="All properties, not only those set for the topic."
)
@takes_client
@takes_output
def describe(client: Client, output: Output, topics: tuple[str, ...], all_configs: bool) -> None:
    """Show offsets, sizes, replicas and properties.

    Of all topics when none is named.
    begin and end are offsets, the first record's and the next one's; size is that of the leader's
    log in bytes. Both are - where no broker tells.
    """
    with client.cluster() as cluster:
        found = _described(cluster, topics, all_configs)
    for topic, partitions in found:
        _tell(output, topic, partitions)


_Found = list[tuple["TopicDescription", list[dict[str, Any]]]]


def _described(cluster: "Cluster", wanted: Sequence[str], all_configs: bool) -> _Found:
    """Those that are wanted, or all."""
    from pyspark_kafkalog.client.deadline import Deadline

    deadline = Deadline(cluster.config.request_timeout_ms)
    while True:
        overview = cluster.overview()
        names = wanted or sorted(set(overview.topics).difference(overview.internal))
        try:
            return _found(cluster, overview, names, all_configs)
        except UnknownTopicError:
            # Of those that nobody named, one may be gone since it was listed.
            if wanted or deadline.expired:
                raise


def _found(
    cluster: "Cluster", overview: "ClusterOverview", names: Sequence[str], all_configs: bool
) -> _Found:
    """Topics, and what is told of each of their partitions."""
    from kafka.structs import TopicPartition

    from pyspark_kafkalog.client import admin
    from pyspark_kafkalog.client.brokers import replica_sizes

    topics = admin.describe_topics(cluster, names, all_configs)
    led = [
        TopicPartition(topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if each.leader >= 0
    ]
    sizes = replica_sizes(
        cluster, overview.brokers, {topic.name: topic.partitions for topic in topics}
    )
    watermarks = _watermarks(cluster, led)
    found = []
    for topic in topics:
        partitions = []
        for each in topic.partitions:
            topic_partition = TopicPartition(topic.name, each.partition)
            begin, end = watermarks.get(topic_partition, (None, None))
            bytes_of = sizes.get(topic_partition, {})
            measures = {"begin": begin, "end": end, "size": bytes_of.get(each.leader)}
            partitions.append({**asdict(each), **measures, "replica_sizes": bytes_of})
        found.append((topic, partitions))
    return found


def _watermarks(
    cluster: "Cluster", topic_partitions: "list[TopicPartition]"
) -> "dict[TopicPartition, tuple[int, int]]":
    from pyspark_kafkalog.client.cluster import EARLIEST, LATEST

    try:
        firsts, ends = (
            cluster.list_offsets(topic_partitions, which) for which in (EARLIEST, LATEST)
        )
    except BrokersUnreachableError:
        return {}  # what else is known of a cluster in trouble is wanted all the more
    return {
        topic_partition: (firsts[topic_partition].offset, ends[topic_partition].offset)
        for topic_partition in topic_partitions
    }


def _tell(output: Output, topic: "TopicDescription", partitions: list[dict[str, Any]]) -> None:
    configs = " ".join(f"{name}={value}" for name, value in sorted(topic.configs.items()))
    lines = [f"{topic.name}  partitions={len(partitions)}  {configs}".rstrip()]
    for each in partitions:
        shown = ("partition", "begin", "end", "size", "leader", "leader_epoch")
        numbers = (f"{name}={'-' if each[name] is None else each[name]}" for name in shown)
        brokers = (f"{name}={','.join(map(str, each[name]))}" for name in ("replicas", "isr"))
        lines.append(f"  {' '.join((*numbers, *brokers))}")
    output.row(*lines, topic=topic.name, configs=dict(topic.configs), partitions=partitions)


@command.command
@click.argument(
    "topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics
)
@click.option("--if-exists", is_flag=True, help="Topics that are not there are no error.")
@takes_client
@takes_output
def delete(client: Client, output: Output, topics: tuple[str, ...], if_exists: bool) -> None:
    """Delete topics."""
    from pyspark_kafkalog.client import admin

    with client.cluster() as cluster:
        if if_exists:
            topics = tuple(name for name in topics if _is_there(cluster, name))
        admin.delete_topics(cluster, topics)
    for name in topics:
        output.say(f"Deleted topic {name}.", topic=name, deleted=True)


def _is_there(cluster: "Cluster", name: str) -> bool:
    try:
        cluster.describe([name])
    except UnknownTopicError:
        return False
    return True


@command.command
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--config", multiple=True, metavar="NAME=VALUE", help="A property to set; may be repeated."
)
@click.option(
    "--delete-config",
    multiple=True,
    metavar="NAME",
    help="A property to take back to the brokers' default; may be repeated.",
)
@takes_client
@takes_output
def alter(
    client: Client,
    output: Output,
    topic: str,
    config: tuple[str, ...],
    delete_config: tuple[str, ...],
) -> None:
    """Change properties of a topic.

    Those that are not named stay.
    """
    from pyspark_kafkalog.client import admin

    configs = read_settings("--config", config)
    if not configs and not delete_config:
        raise click.UsageError("Give --config NAME=VALUE or --delete-config NAME.")
    with client.cluster() as cluster:
        admin.alter_configs(cluster, topic, configs, delete_config)
    output.say(f"Changed topic {topic}.", topic=topic, changed=True)


@command.command
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--total",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="How many partitions the topic is to have then.",
)
@takes_client
@takes_output
def add_partitions(client: Client, output: Output, topic: str, total: int) -> None:
    """Add partitions to a topic. Records with a key may go to others than before."""
    from pyspark_kafkalog.client import admin

    with client.cluster() as cluster:
        admin.add_partitions(cluster, topic, total)
    output.say(f"Topic {topic} has {total} partitions.", topic=topic, partitions=total)


@command.command
@click.argument("topic", shell_complete=complete_topics)
@click.option("--before", type=PLACE, required=True, help=f"Delete what lies before this: {WAYS}.")
@click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Of this partition only; may be repeated.",
)
@takes_client
@takes_output
def trim(
    client: Client, output: Output, topic: str, before: Place, partitions: tuple[int, ...]
) -> None:
    """Delete the first records of a topic. They are gone for all of its readers."""
    from pyspark_kafkalog.client import admin
    from pyspark_kafkalog.client.selection import Selection

    def tell(topic_partition: "TopicPartition", begin: int) -> None:
        partition = topic_partition.partition
        output.say(
            f"{topic} partition={partition} begin={begin}",
            topic=topic,
            partition=partition,
            begin=begin,
        )

    with client.cluster() as cluster:
        topic_partitions = Selection((topic,), partitions=partitions).find(cluster)
        wanted = before.offsets(cluster, topic_partitions)
        refused = admin.delete_records(cluster, wanted, tell)
    for _, error in sorted(refused.items()):
        say_error(sentence(error))
    if refused:
        click.get_current_context().exit(1)
