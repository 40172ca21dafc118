"""Waits until partitions hold records beyond what was read: a long poll, one for each broker.

Each broker that leads some of the partitions is sent one Fetch of all of them, which it holds back
until there is something or `fetch.max.wait.ms` are over. Only the ends that it states are believed;
the records are read by a Fetcher, which knows what may go wrong. So an idle reader costs each
broker two requests a second, and hears of a record as soon as the broker has it.

Nobody else should use the cluster's connections while a poll is under way on one of them: a broker
answers the requests of a connection in turn. Blocking; one thread at a time.
"""

import select
import time
from collections import defaultdict
from collections.abc import Mapping

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.errors import BrokersUnreachableError, UnknownTopicError
from pyspark_kafkalog.protocol import fetch

_MIN_VERSION = 4
_LEAST_BYTES = 1
"""A broker sends one record batch all the same, whole (KIP-74)."""


class News:
    """The polls that are under way on a cluster's connections."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._config = cluster.config
        self._polls: dict[Connection, tuple[int, int]] = {}

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, int] | None:
        """The ends of partitions that reach beyond their position; empty if none does in time.
        A leader in another epoch than `epochs` says is one that failed: its log may be another.

        None where a broker failed, leads a partition no more, or holds nothing at its position:
        whoever asks for the ends themselves hears what is the matter. Not at once, as that may be
        nothing, and a broker that refuses would be asked again without end.
        """
        try:
            self._ask(positions, epochs or {})
            found = self._answers(positions)
        except (KafkaError, BrokersUnreachableError, UnknownTopicError):
            self.give_up()
            found = None
        if found is None:
            self._pause()
        return found

    def give_up(self) -> None:
        """Lets go of all polls; a connection with one is closed, as its answer may take long."""
        polls, self._polls = self._polls, {}
        for connection in polls:
            connection.close()

    def _ask(
        self, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]
    ) -> None:
        by_leader: dict[Connection, list[fetch.FetchPartition]] = defaultdict(list)
        deadline = Deadline(self._config.request_timeout_ms)
        for topic_partition in sorted(positions):
            ask = fetch.FetchPartition(
                topic_partition.topic,
                topic_partition.partition,
                positions[topic_partition],
                _LEAST_BYTES,
                epochs.get(topic_partition, -1),
            )
            by_leader[self._cluster.leader(topic_partition, deadline)].append(ask)
        for connection, partitions in by_leader.items():
            if connection in self._polls:
                continue
            version = connection.version(fetch.API_KEY, fetch.LAST_FROM_LEADERS, _MIN_VERSION)
            request = fetch.FetchRequest(
                version,
                self._config.fetch_max_wait_ms,
                1,
                partitions,
                _LEAST_BYTES,
                int(self._config.isolation_level),
            )
            body = fetch.encode_fetch_request(request)
            sent = connection.send(fetch.API_KEY, version, [body], deadline)
            self._polls[connection] = sent, version

    def _answers(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int] | None:
        found: dict[TopicPartition, int] = {}
        is_beyond = False
        _wait_for_any(self._polls, self._config.fetch_max_wait_ms / 1000)
        for connection, (sent, version) in list(self._polls.items()):
            if not (connection.closed or connection.has_answer_to(sent)):
                continue
            del self._polls[connection]
            body = connection.receive(sent, Deadline(self._config.request_timeout_ms))
            answer = fetch.decode_fetch_response(body, version)
            if answer.error_code or any(each.error_code for each in answer.partitions):
                self.give_up()
                self._cluster.distrust()
                return None
            for each in answer.partitions:
                topic_partition = TopicPartition(each.topic, each.partition)
                end = self._end(each)
                position = positions.get(topic_partition, end)
                is_beyond |= end < position
                if end > position:
                    found[topic_partition] = end
        if is_beyond and not found:
            # In a transaction that is open: a broker may have nothing to wait for, and answer so.
            self._pause()
        return found

    def _pause(self) -> None:
        time.sleep(self._config.retry_backoff_ms / 1000)

    def _end(self, found: fetch.FetchedPartition) -> int:
        if self._config.isolation_level and found.last_stable_offset >= 0:
            return min(found.high_watermark, found.last_stable_offset)
        return found.high_watermark


def _wait_for_any(polls: Mapping[Connection, tuple[int, int]], wait_s: float) -> None:
    if any(
        connection.closed or connection.has_answer_to(polls[connection][0]) for connection in polls
    ):
        return
    waiting = select.poll()
    for connection in polls:
        waiting.register(connection, select.POLLIN)
    waiting.poll(wait_s * 1000)
