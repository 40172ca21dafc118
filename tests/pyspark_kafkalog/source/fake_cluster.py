"""A cluster that is a dictionary: what the planning of reads asks, without a broker."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast
from uuid import UUID

from kafka.structs import OffsetAndTimestamp, TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.source.offsets import EARLIEST, LATEST


def as_cluster(cluster: "FakeCluster") -> Cluster:
    """As what it stands for."""
    return cast(Cluster, cluster)


class FakeCluster:
    """Logs are given as {topic: [(earliest, latest) of each partition]} and may be changed.

    The record at offset n has the time n * 1000. A reader of committed records sees up to
    `stable`, where that says an offset of a partition. Leaders say their `epochs`. `topic_ids` may
    be changed, too: a client hears of it when it asks for topics again.
    """

    def __init__(self, **logs: list[tuple[int, int]]) -> None:
        self.logs = {name.replace("_", "-"): bounds for name, bounds in logs.items()}
        self.closed = False
        self.topic_ids: dict[str, UUID] = {}
        self._heard: dict[str, UUID] = {}
        self.config = SimpleNamespace(request_timeout_ms=30_000, isolation_level=0)
        self.stable: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}

    def topics(self, names: Iterable[str] | None = None) -> dict[str, list[int]]:
        if missing := [name for name in names or () if name not in self.logs]:
            raise UnknownTopicError(f"no topic {missing[0]}")
        wanted = self.logs if names is None else names
        self._heard |= {name: one for name, one in self.topic_ids.items() if name in wanted}
        return {name: list(range(len(self.logs[name]))) for name in wanted}

    def overview(self) -> SimpleNamespace:
        partitions = {
            name: [SimpleNamespace(partition=number) for number in numbers]
            for name, numbers in self.topics().items()
        }
        return SimpleNamespace(topics=partitions)

    def topic_id(self, topic: str) -> UUID | None:
        return self._heard.get(topic)

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        if timestamp >= 0:
            return self._offsets_at_time(partitions, timestamp)
        end = {EARLIEST: 0, LATEST: 1}[timestamp]
        for topic_partition in partitions:
            if topic_partition.partition >= len(self.logs.get(topic_partition.topic, ())):
                raise UnknownTopicError(
                    f"no partition {topic_partition.partition} of {topic_partition.topic}"
                )
        found = {each: self.logs[each.topic][each.partition][end] for each in partitions}
        level = self.config.isolation_level if isolation is None else isolation
        if timestamp == LATEST and level:
            found = {
                each: min(offset, self.stable.get(each, offset)) for each, offset in found.items()
            }
        return {
            each: OffsetAndTimestamp(offset, -1, self.epochs.get(each, -1))
            for each, offset in found.items()
        }

    def _offsets_at_time(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        found = {}
        for topic_partition in partitions:
            earliest, latest = self.logs[topic_partition.topic][topic_partition.partition]
            offset = max(earliest, -(-timestamp // 1000))
            if offset < latest:
                found[topic_partition] = OffsetAndTimestamp(offset, offset * 1000, -1)
        return found

    def refresh(self, topics: Iterable[str] | None = None) -> None:
        self.topics(topics)

    def ask_all(self, topics: Iterable[str] = ()) -> None:
        self.refresh()

    def close(self) -> None:
        self.closed = True


class Recreated(FakeCluster):
    """The topic orders, deleted and created again just before offsets `at` are asked for; its log
    then ends at `end`. Unless the client `hears` of it, the next leader answers as if nothing was.
    """

    def __init__(self, end: int, at: int = LATEST, times: int = 1, hears: bool = False) -> None:
        super().__init__(orders=[(500, 600)], payments=[(0, 1)])
        self.topic_ids = {"orders": UUID(int=1), "payments": UUID(int=7)}
        self.end, self.at, self.times, self.hears = end, at, times, hears

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        if self.times and timestamp == self.at:
            self.times -= 1
            self.logs["orders"] = [(0, self.end)]
            self.topic_ids["orders"] = UUID(int=self.topic_ids["orders"].int + 1)
            if self.hears:
                self.refresh(["orders"])
        return super().list_offsets(partitions, timestamp, isolation)
