"""What happens to topics in a history: steps of load_model.py."""

from dataclasses import dataclass

from tests.property.load_model import SHORTS, Step, World
from tests.property.topic_model import Transaction, picked

MOST_PARTITIONS = 3


@dataclass(frozen=True, slots=True, repr=False)
class Create(Step):
    topic: int = 0
    partitions: int = 1

    def do(self, world: World) -> str:
        short = picked(SHORTS, self.topic)
        if short in world.topics.topics:
            return "is there"
        world.topics.create(short, self.partitions)
        return f"{short}, {self.partitions} partitions"


@dataclass(frozen=True, slots=True, repr=False)
class Delete(Step):
    topic: int = 0

    def do(self, world: World) -> str:
        topic = world.topic(self.topic)
        if topic is None:
            return "there is none"
        world.topics.delete(topic.short)
        return topic.short


@dataclass(frozen=True, slots=True, repr=False)
class Recreate(Step):
    """Deletes a topic and creates it again, with as many records as it had, or others."""

    topic: int = 0
    partitions: int = 1
    records: int = 0

    def do(self, world: World) -> str:
        topic = world.topic(self.topic)
        if topic is None:
            return "there is none"
        world.topics.delete(topic.short)
        world.topics.create(topic.short, self.partitions)
        again = world.topics.topics[topic.short]
        for partition in again.partitions if self.records else ():
            world.topics.produce(partition, self.records)
        return f"{topic.short}: {world.topics!r}"


@dataclass(frozen=True, slots=True, repr=False)
class AddPartition(Step):
    topic: int = 0

    def do(self, world: World) -> str:
        topic = world.topic(self.topic)
        if topic is None or len(topic.partitions) >= MOST_PARTITIONS:
            return "nothing"
        world.topics.add_partition(topic)
        return f"{topic.short} has {len(topic.partitions)}"


@dataclass(frozen=True, slots=True, repr=False)
class Produce(Step):
    """`how`: plain, idempotent, or of a transaction that is committed, aborted or left open."""

    partition: int = 0
    records: int = 1
    how: str = "plain"
    is_absurd: bool = False

    def do(self, world: World) -> str:
        partition = world.partition(self.partition)
        if partition is None:
            return "there is none"
        transaction = None
        if self.how in ("committed", "aborted", "open"):
            transaction = world.topics.begin()
        world.topics.produce(
            partition,
            self.records,
            is_idempotent=self.how == "idempotent",
            transaction=transaction,
            is_absurd=self.is_absurd,
        )
        if transaction is not None and self.how != "open":
            world.topics.end(transaction, self.how == "committed")
        return f"{partition.topic.short}-{partition.number} ends at {partition.end}"


@dataclass(frozen=True, slots=True, repr=False)
class EndTransaction(Step):
    transaction: int = 0
    commit: bool = True

    def do(self, world: World) -> str:
        is_open = world.topics.open_transactions()
        if not is_open:
            return "none is open"
        transaction: Transaction = picked(is_open, self.transaction)
        world.topics.end(transaction, self.commit)
        return "committed" if self.commit else "aborted"


@dataclass(frozen=True, slots=True, repr=False)
class DeleteRecords(Step):
    """Leaves the last `keep` offsets of a partition."""

    partition: int = 0
    keep: int = 0

    def do(self, world: World) -> str:
        partition = world.partition(self.partition)
        if partition is None or partition.end - self.keep <= partition.start:
            return "nothing"
        world.topics.delete_records(partition, partition.end - self.keep)
        return f"{partition.topic.short}-{partition.number} begins at {partition.start}"


@dataclass(frozen=True, slots=True, repr=False)
class Retention(Step):
    """Takes all of a topic's segments."""

    topic: int = 0

    def do(self, world: World) -> str:
        topic = world.topic(self.topic)
        if topic is None or not all(each.is_quiet() for each in topic.partitions):
            return "nothing"
        world.topics.expire(topic)
        return repr(world.topics)


@dataclass(frozen=True, slots=True, repr=False)
class Compact(Step):
    topic: int = 0

    def do(self, world: World) -> str:
        topic = world.topic(self.topic)
        if topic is None or not all(each.is_quiet() for each in topic.partitions):
            return "nothing"
        if any(each.is_absurd for part in topic.partitions for each in part.records):
            return "nothing"
        world.topics.compact(topic)
        return repr(world.topics)
