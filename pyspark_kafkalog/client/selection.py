"""Which partitions of a cluster somebody means: by topics' names or a pattern, and by number."""

import re
from dataclasses import dataclass

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import InvalidOptionError, UnknownTopicError


@dataclass(frozen=True, slots=True)
class Selection:
    """Which partitions: all of `topics`, or of those in whose name `pattern` is found, or of these
    the ones that `partitions` numbers."""

    topics: tuple[str, ...]
    pattern: str | None = None
    partitions: tuple[int, ...] = ()

    def find(self, cluster: Cluster) -> list[TopicPartition]:
        """Sorted; raises UnknownTopicError, InvalidOptionError."""
        if self.pattern is None:
            topics = cluster.topics(self.topics)
        else:
            try:
                pattern = re.compile(self.pattern)
            except re.error as error:
                raise InvalidOptionError(
                    f"--pattern {self.pattern!r} is not a valid regular expression: {error}."
                ) from None
            topics = {
                name: partitions
                for name, partitions in cluster.topics().items()
                if pattern.search(name)
            }
        for name, partitions in topics.items():
            for partition in sorted(set(self.partitions).difference(partitions)):
                raise UnknownTopicError(
                    f"Topic {name} has no partition {partition}, only 0 to {len(partitions) - 1}."
                )
        return [
            TopicPartition(name, partition)
            for name, partitions in topics.items()
            for partition in self.partitions or partitions
        ]
