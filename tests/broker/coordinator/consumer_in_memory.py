"""The coordinator of the consumer protocol without a broker: time, log, topics and threads are the
test's own. What runs aside runs when `finish_aside` is called."""

import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from broker.coordinator.consumer_group import ConsumerGroup
from broker.coordinator.consumer_group_records import TopicIdPartition
from broker.coordinator.consumer_groups import (
    ConsumerGroupCoordinator,
    HeartbeatAnswer,
    HeartbeatAsk,
)
from tests.broker.coordinator.in_memory import GROUP, Coordinated

REBALANCE_MS = 30_000


@dataclass(frozen=True)
class FakeTopic:
    name: str
    topic_id: uuid.UUID
    partitions: tuple[int, ...]


class FakeTopics:
    """Topics that are made, grown and deleted by assignment."""

    def __init__(self) -> None:
        self.version = 0
        self._topics: dict[str, FakeTopic] = {}
        self._numbers = 0

    def put(self, name: str, partition_count: int) -> None:
        known = self._topics.get(name)
        self._numbers += 1
        topic_id = known.topic_id if known else uuid.UUID(int=self._numbers)
        self._topics[name] = FakeTopic(name, topic_id, tuple(range(partition_count)))
        self.version += 1

    def delete(self, name: str) -> None:
        del self._topics[name]
        self.version += 1

    def topics(self) -> Collection[FakeTopic]:
        return self._topics.values()

    def topic(self, name: str) -> FakeTopic | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> FakeTopic | None:
        return next((each for each in self.topics() if each.topic_id == topic_id), None)

    def all_partitions(self, names: Collection[str] | None = None) -> set[TopicIdPartition]:
        return {
            TopicIdPartition(topic.topic_id, number)
            for topic in self.topics()
            if names is None or topic.name in names
            for number in topic.partitions
        }


class ConsumerCoordinated(Coordinated):
    """A coordinator of both protocols."""

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        # A target at once, but for the tests of just that.
        super().__init__({"group.consumer.assignment.interval.ms": "0"} | (properties or {}))
        self.topics = FakeTopics()
        self.aside: list[Callable[[], None]] = []
        self.consumers = self._consumers()

    def _consumers(self) -> ConsumerGroupCoordinator:
        return ConsumerGroupCoordinator(
            self.config,
            self.groups,
            self.log,
            self.timers,
            self.time.clock_ms,
            self.topics,
            lambda function, done: self.aside.append(lambda: done(function())),
        )

    def finish_aside(self) -> None:
        while self.aside:
            self.aside.pop(0)()

    def restart(self) -> None:
        self.timers.cancel_all()
        self.aside.clear()
        self.groups = self._coordinator()
        self.consumers = self._consumers()
        groups = self.log.read()
        self.groups.take_over(groups)
        self.consumers.take_over(groups.values())

    def group(self) -> ConsumerGroup:
        return self.consumers.group(GROUP)

    def heartbeat(self, member_id: str, epoch: int, **fields: Any) -> HeartbeatAnswer:
        return self.consumers.heartbeat(
            HeartbeatAsk(
                group_id=GROUP,
                member_id=member_id,
                epoch=epoch,
                client_id="client",
                client_host="/127.0.0.1",
                **fields,
            )
        )


class Member:
    """A member as clients are: it takes what it is given and gives up what is taken."""

    def __init__(self, coordinated: ConsumerCoordinated, member_id: str, **fields: Any) -> None:
        self.coordinated = coordinated
        self.member_id = member_id
        self.instance_id: str | None = fields.pop("instance_id", None)
        self.fields = {"rebalance_timeout_ms": REBALANCE_MS, "topics": ("t",)} | fields
        self.epoch = 0
        self.owned: frozenset[TopicIdPartition] = frozenset()

    def join(self, **fields: Any) -> HeartbeatAnswer:
        self.epoch, self.owned = 0, frozenset()
        return self.beat(**self.fields | fields)

    def ask(self, **fields: Any) -> HeartbeatAnswer:
        """A heartbeat whose answer it does not act on yet."""
        told = {"owned": self.owned, "instance_id": self.instance_id}
        return self.coordinated.heartbeat(self.member_id, self.epoch, **told | fields)

    def beat(self, **fields: Any) -> HeartbeatAnswer:
        answer = self.ask(**fields)
        self.take(answer)
        return answer

    def take(self, answer: HeartbeatAnswer) -> None:
        self.epoch = answer.epoch
        if answer.assigned is not None:
            self.owned = frozenset(answer.assigned)

    def leave(self, epoch: int = -1) -> HeartbeatAnswer:
        return self.coordinated.heartbeat(self.member_id, epoch, instance_id=self.instance_id)

    @property
    def numbers(self) -> list[int]:
        return sorted(partition for _, partition in self.owned)


def settle(*members: Member, rounds: int = 6) -> None:
    for _ in range(rounds):
        for member in members:
            member.beat()
