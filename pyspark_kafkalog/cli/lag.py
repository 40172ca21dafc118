"""`kafkalog lag`: how far a consumer group is behind."""

import click

from pyspark_kafkalog.cli.arguments import Client, takes_client, takes_output
from pyspark_kafkalog.cli.names import complete_groups
from pyspark_kafkalog.cli.output import Output
from pyspark_kafkalog.errors import KafkalogError


@click.command
@click.argument("group", shell_complete=complete_groups)
@takes_client
@takes_output
def command(client: Client, output: Output, group: str) -> None:
    """Show how far a consumer group is behind, in each partition and in all.

    A stream has a group where its option commitOffsetsToGroup names one, a load by --group.
    """
    from pyspark_kafkalog.client.group import committed_offsets, ends_of

    with client.cluster() as cluster:
        committed = committed_offsets(cluster, group)
        ends = ends_of(cluster, committed)
    if not committed:
        raise KafkalogError(f"Group {group} has committed no offsets. Check its name.")
    for topic_partition, offset in sorted(committed.items()):
        end = ends.get(topic_partition)
        lag = None if end is None else end - offset
        at = f"{topic_partition.topic} partition={topic_partition.partition} committed={offset}"
        output.row(
            f"{at} end=gone" if end is None else f"{at} end={end} lag={lag}",
            group=group,
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            committed=offset,
            end=end,
            lag=lag,
        )
    if not output.as_json:
        total = sum(end - committed[each] for each, end in ends.items())
        output.row(f"total lag={total}")
