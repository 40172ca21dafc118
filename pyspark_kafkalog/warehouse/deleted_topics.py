"""Partitions that a load has read from and that are not there any more: nothing is lost unsaid.

A topic that is subscribed by its name is missed anyway. A pattern just does not find it, and what
came since the last commit is gone with it. Whoever chose to go on is told once: the commit marks
the topic's id (commit.deleted), and the load has no place in it from then on, unless it is the very
same topic that is back.

No topic loses partitions: one that has fewer was created again. Its id says so, where brokers say
one; else the partitions that it lacks do.

Runs on the driver, with a Cluster handed in.
"""

import time
from collections.abc import Collection, Sequence

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import DataLossError, UnknownTopicError
from pyspark_kafkalog.source.offsets import describe, report_data_loss
from pyspark_kafkalog.source.options import SourceOptions
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import Position

_RETRIES = 5
_RETRY_INTERVAL_S = 0.2


def partitions_now(
    cluster: Cluster, source: SourceOptions, position: Position
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """The partitions to read, and those of `position` that should be read and are gone: of topics
    that are, and of such as have them no more, if no id tells what became of the topic.

    As a stream does: asked again while some are missing, since a broker that has just started may
    answer without its topics. Raises UnknownTopicError, and Kafka's error for a topic that may not
    be seen any more.
    """
    partitions = source.subscription.partitions(cluster)
    for _ in range(_RETRIES):
        if not _gone(cluster, source, position, partitions):
            return partitions, []
        time.sleep(_RETRY_INTERVAL_S)
        partitions = source.subscription.partitions(cluster)
    return partitions, _gone(cluster, source, position, partitions)


def places_of_gone(
    gone: Sequence[TopicPartition],
    position: Position,
    there: Collection[str],
    name: str,
    fail_on_data_loss: bool,
    other_load: str,
) -> list[OffsetRange]:
    """Ranges of no offsets, which let load `name` go on without the partitions that are gone.

    Raises DataLossError where it may not. There are none for topics without an id: one that is
    created again could not be told from the old one. One of a topic that is `there` is at its
    beginning: if it gets that partition, it is a new one.
    """
    if not gone:
        return []
    to_mark = position.topic_ids.keys() - set(there)
    nameless = sorted({each.topic for each in gone} - to_mark)
    try:
        report_data_loss(
            f"Partitions are gone: {describe(gone)}. Load {name!r} has commits of them.",
            fail_on_data_loss,
        )
    except DataLossError as error:
        once = "One load with it is enough: it records that they are gone."
        if nameless:
            once = (
                f"Each load needs it, since brokers said no id of {', '.join(nameless)} by which "
                "a new topic could be told from the old one; or let subscribePattern leave that "
                f"name out, or {other_load}."
            )
        raise DataLossError(f"{error} {once}") from error
    at = position.offsets
    marked = {each: at[each] for each in gone if each.topic in to_mark}
    marked |= {each: 0 for each in gone if each.topic in there and at[each]}
    return [OffsetRange.of(each, n, n) for each, n in marked.items()]


def _gone(
    cluster: Cluster,
    source: SourceOptions,
    position: Position,
    partitions: Sequence[TopicPartition],
) -> list[TopicPartition]:
    there, read = set(partitions), {each.topic for each in partitions}
    covers = source.subscription.covers
    missing = [each for each in position.offsets if each not in there and covers(each)]
    # With both ids it is the same topic, of which a broker did not know all for a moment; or it is
    # another one, and the load is refused, or begins anew.
    lacking = {topic for topic in read if _has_no_id(cluster, position, topic)}
    # Some are there and left out: those for dead letters. An answer for all topics is silent of
    # those that may not be seen, or have no leader for a moment; one that asks for a name is not.
    gone = {t for t in {each.topic for each in missing} - read if not _is_there(cluster, t)}
    return sorted(each for each in missing if each.topic in gone | lacking)


def _has_no_id(cluster: Cluster, position: Position, topic: str) -> bool:
    """Whether the topic that is there cannot be told from the one of `position` by its id."""
    return topic not in position.topic_ids or cluster.topic_id(topic) is None


def _is_there(cluster: Cluster, topic: str) -> bool:
    try:
        cluster.topics([topic])
    except UnknownTopicError:
        return False
    return True
