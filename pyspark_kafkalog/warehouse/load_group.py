"""The consumer group that lag tools see a load as: its offsets follow the load's commits.

What counts are the target's offsets. A commit here that fails is logged, costs the load a few
seconds, and is made up for by the next one. Runs on the driver.
"""

import logging

from kafka.errors import KafkaError

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.group import commit_offsets
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.warehouse.commit import Position
from pyspark_kafkalog.warehouse.options import LoadOptions

_TIMEOUT_MS = 5_000

_log = logging.getLogger(__name__)


def tell_group(wanted: LoadOptions, position: Position) -> None:
    """Commits where the load goes on, of what it reads, if it has a group. Never raises."""
    if wanted.group is None:
        return
    covers = wanted.source.subscription.covers
    known = position.without_deleted()
    offsets = {each: offset for each, offset in known.offsets.items() if covers(each)}
    if not offsets:
        return
    try:
        with Cluster(wanted.source.client, fails_fast=True) as cluster:
            deadline = Deadline(_TIMEOUT_MS)
            commit_offsets(cluster, wanted.group, offsets, deadline, known.epochs, known.topic_ids)
    except (KafkaError, KafkalogError) as error:
        _log.warning(
            "The offsets of group %s were not committed (%s); the load is, and lag tools show "
            "where it was before.",
            wanted.group,
            error,
        )
