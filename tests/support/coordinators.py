"""Coordinators that only write down what they are told."""

from kafka.structs import TopicPartition


class ToldCoordinators:
    """`led` with the leader epochs, `resigned`, and `deleted` topics, in their order."""

    def __init__(self) -> None:
        self.led: list[tuple[TopicPartition, int]] = []
        self.resigned: list[TopicPartition] = []
        self.deleted: list[str] = []

    def lead(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        self.led.append((topic_partition, leader_epoch))

    def resign(self, topic_partition: TopicPartition) -> None:
        self.resigned.append(topic_partition)

    def topic_deleted(self, name: str) -> None:
        self.deleted.append(name)
