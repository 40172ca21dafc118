"""Tells a consumer group how far a stream has come, for tools that show lag.

The offsets that count are those of the checkpoint: a commit here that fails is logged, and costs
the query no more than a few seconds. Lives with the query on the driver; one thread.
"""

import logging

from kafka.errors import KafkaError

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.group import commit_offsets
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.source.log_identity import LogIdentity
from pyspark_kafkalog.source.offsets import Offsets

_TIMEOUT_MS = 5_000
_AGAIN_AFTER_FAILURE_MS = 30_000
_AGAIN_UNCHANGED_MS = 3_600_000
"""Brokers forget a group's offsets some time after the last commit (7 days by default)."""

_log = logging.getLogger(__name__)


class GroupProgress:
    """What one query tells `group_id`."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._told: Offsets = {}
        self._not_before = Deadline(0)
        self._tell_again = Deadline(0)

    def completed(self, cluster: Cluster, offsets: Offsets, logs: LogIdentity) -> None:
        """Commits `offsets`, of `logs`, below which all batches are complete. Never raises."""
        unchanged = offsets == self._told and not self._tell_again.expired
        if unchanged or not self._not_before.expired:
            return
        timeout_ms = min(_TIMEOUT_MS, cluster.config.request_timeout_ms)
        try:
            deadline = Deadline(timeout_ms)
            commit_offsets(cluster, self._group_id, offsets, deadline, logs.epochs, logs.topic_ids)
        except (KafkaError, KafkalogError) as error:
            self._not_before = Deadline(_AGAIN_AFTER_FAILURE_MS)
            _log.warning(
                "Option commitOffsetsToGroup: the offsets were not committed (%s); the query goes "
                "on, lag tools show where it was before.",
                error,
            )
        else:
            self._told = dict(offsets)
            self._tell_again = Deadline(_AGAIN_UNCHANGED_MS)
