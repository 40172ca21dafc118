"""OtherLogs: logs here of other topics than those that have their names now.

Owns: which they are, by the topic's node and the log's partition.metadata, and that they are set
aside, never deleted: StopReplica names no topic id. A log that was made before the topic that has
its name now is of one that was deleted, and the new topic's takes its place. One that was made
after it may count: ZooKeeper may have come back from an older copy. Called by: threads that may
block.
"""

from collections.abc import Collection, Mapping
from uuid import UUID

from kafka.structs import TopicPartition

from broker.cluster.records import MetadataRecords, TopicMade
from broker.log.manager import LogManager


class OtherLogs:
    """Of one broker. Raises MetadataStoreError where the store does not answer, and OSError."""

    def __init__(self, logs: LogManager, records: MetadataRecords) -> None:
        self._logs = logs
        self._records = records

    def older_than(self, topic_ids: Mapping[TopicPartition, UUID]) -> list[TopicPartition]:
        """Which of these logs were made before the topics of those ids, which are there now."""
        made = self._made(topic_ids)
        return [
            place
            for place, topic_id in topic_ids.items()
            if (there := made[place.topic]) is not None
            and there.topic_id == topic_id
            and self._logs.made_ms(place) < there.made_ms
        ]

    def of(self, places: Collection[TopicPartition]) -> set[TopicPartition]:
        """Which of these logs say that they are of other topics than those that are there now."""
        made = self._made(places)
        return {
            place
            for place in places
            if self._logs.kept(place) is not None
            and (there := made[place.topic]) is not None
            and self._logs.topic_id(place) not in (None, there.topic_id)
        }

    def partition_counts(self, names: Collection[str]) -> dict[str, int]:
        """How many partitions these topics have: none where they are gone, or on their way out.
        Of one whose node is nonsense nothing is known."""
        counts = self._records.partition_counts(names)
        return counts | dict.fromkeys(counts.keys() & {*self._records.deleted_topics()}, 0)

    def set_aside(self, place: TopicPartition) -> None:
        """After it is served no more. Raises KafkaStorageError, too."""
        self._logs.set_aside(place)

    def _made(self, places: Collection[TopicPartition]) -> dict[str, TopicMade | None]:
        return {name: self._records.topic_made(name) for name in {place.topic for place in places}}
