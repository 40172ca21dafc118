"""Topics on a real broker, and beside them what must be in them: the log half of the load's model.

`Topics` does what users and the cluster do to topics, one request at a time over a connection of
kafka-python's protocol (no code of ours but the batches' framing), and writes down each offset that
came of it. What a reader may see is then a question to the model: `Partition.visible`.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

from kafka.protocol import admin
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from tests.broker.api.transaction_client import TransactionClient, until_settled
from tests.support.broker_child import RawClient
from tests.support.patience import wait_until
from tests.support.records import batch_of, values_of

KEYS = (b"k0", b"k1", b"k2")
ABSURD_MS = 1_700_000_000_000_000_000
"""Nanoseconds where milliseconds should be: no time in microseconds holds it."""

BROKER = {
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "20",
    "log.cleaner.backoff.ms": "20",
    "log.message.timestamp.after.max.ms": str((1 << 63) - 1),
    "log.segment.delete.delay.ms": "0",
    "num.partitions": "1",
    # One partition each: they are made at the first transaction, one log after the other.
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}
"""What the broker of these histories is started with."""

_TIMEOUT_S = 20
_TOPIC_RESOURCE = 2
_RETRIED = (5, 6, 7)


@dataclass(slots=True, eq=False)
class Transaction:
    """Of a producer of the user's: where it begins in each partition that it wrote to; `outcome`
    is None while it is open. Its markers go to the partitions of these names, also to those of a
    topic that was created again since."""

    number: int
    client: TransactionClient
    places: set[tuple[str, int]] = field(default_factory=set)
    begins: "dict[Partition, int]" = field(default_factory=dict)
    outcome: bool | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One record: where it lies, for good."""

    topic: str
    incarnation: int
    partition: int
    offset: int
    key: bytes
    value: bytes
    transaction: Transaction | None = None
    is_absurd: bool = False

    def is_visible(self, committed: bool) -> bool:
        return not committed or self.transaction is None or self.transaction.outcome is True


@dataclass(slots=True, eq=False)
class Partition:
    """The log of one partition. Offsets without a record are markers, or were compacted away."""

    topic: "Topic"
    number: int
    records: list[Record] = field(default_factory=list)
    start: int = 0
    end: int = 0
    transactions: list[Transaction] = field(default_factory=list)

    @property
    def stable_end(self) -> int:
        """The last stable offset: where the first transaction begins that is open, even if all of
        its records are gone by now."""
        is_open = (each.begins[self] for each in self.transactions if each.outcome is None)
        return max(self.start, min(is_open, default=self.end))

    def ends(self, committed: bool) -> int:
        return self.stable_end if committed else self.end

    def visible(self, committed: bool, start: int, until: int) -> Iterator[Record]:
        """What a reader of these offsets has to see."""
        for record in self.records:
            if start <= record.offset < until and record.is_visible(committed):
                yield record

    def is_quiet(self) -> bool:
        return self.stable_end == self.end


@dataclass(slots=True, eq=False)
class Topic:
    """A topic as long as it lives: what is created again under its name is another one."""

    short: str
    name: str
    incarnation: int
    topic_id: UUID
    partitions: list[Partition] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Seen:
    """A partition at one instant."""

    incarnation: int
    start: int
    end: int
    stable_end: int
    records: tuple[Record, ...]


class Topics:
    """The topics of one history, each by a short name; of others the broker may have any."""

    def __init__(self, client: RawClient, prefix: str) -> None:
        self.client = client
        self.prefix = prefix
        self.topics: dict[str, Topic] = {}
        self.by_value: dict[bytes, Record] = {}
        self.incarnations: dict[UUID, int] = {}
        self.transactions: list[Transaction] = []
        self._numbers_of_topics = count(1)
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[tuple[str, int], int] = {}
        self._numbers = count()

    def __repr__(self) -> str:
        return "; ".join(
            f"{topic.short}#{topic.incarnation} "
            + " ".join(f"{each.number}:[{each.start},{each.end})" for each in topic.partitions)
            for topic in self.topics.values()
        )

    def name(self, short: str) -> str:
        return f"{self.prefix}{short}"

    def seen(self) -> dict[tuple[str, int], Seen]:
        """All partitions as they are now, by short name and number."""
        return {
            (topic.short, each.number): Seen(
                topic.incarnation, each.start, each.end, each.stable_end, tuple(each.records)
            )
            for topic in self.topics.values()
            for each in topic.partitions
        }

    # What the cluster's owners do.

    def create(self, short: str, partitions: int) -> None:
        name = self.name(short)
        topic = admin.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        request = admin.CreateTopicsRequest(topics=[topic], timeout_ms=60_000, validate_only=False)
        (created,) = self.client.call(request, admin.CreateTopicsResponse, 7).topics
        assert created.error_code == 0, created
        made = Topic(short, name, next(self._numbers_of_topics), created.topic_id)
        made.partitions = [Partition(made, number) for number in range(partitions)]
        self.topics[short] = made
        self.incarnations[made.topic_id] = made.incarnation

    def delete(self, short: str) -> None:
        topic = self.topics.pop(short)
        request = admin.DeleteTopicsRequest(topic_names=[topic.name], timeout_ms=60_000)
        (deleted,) = self.client.call(request, admin.DeleteTopicsResponse, 5).responses
        assert deleted.error_code == 0, deleted
        for transaction in self.transactions:
            transaction.begins = {
                each: at for each, at in transaction.begins.items() if each.topic is not topic
            }
        self._sequences = {
            place: number for place, number in self._sequences.items() if place[0] != topic.name
        }

    def add_partition(self, topic: Topic) -> None:
        wanted = admin.CreatePartitionsRequest.CreatePartitionsTopic(
            name=topic.name, count=len(topic.partitions) + 1, assignments=None
        )
        request = admin.CreatePartitionsRequest(
            topics=[wanted], timeout_ms=60_000, validate_only=False
        )
        (added,) = self.client.call(request, admin.CreatePartitionsResponse, 3).results
        assert added.error_code == 0, added
        topic.partitions.append(Partition(topic, len(topic.partitions)))

    def delete_records(self, partition: Partition, before: int) -> None:
        """All below offset `before`."""
        asked = admin.DeleteRecordsRequest.DeleteRecordsTopic
        part = asked.DeleteRecordsPartition(partition_index=partition.number, offset=before)
        request = admin.DeleteRecordsRequest(
            topics=[asked(name=partition.topic.name, partitions=[part])], timeout_ms=5000
        )
        (topic,) = self.client.call(request, admin.DeleteRecordsResponse, 2).topics
        assert topic.partitions[0].error_code == 0, topic
        self._begins(partition, max(before, partition.start))

    def expire(self, topic: Topic) -> None:
        """Retention takes every segment of the topic; waits until it did."""
        self._configure(topic, **{"retention.bytes": "0"})
        for partition in topic.partitions:
            self._until(lambda each=partition: self._offset(each, -2) == each.end)
            self._begins(partition, partition.end)
        self._configure(topic, **{"retention.bytes": "-1"})

    def compact(self, topic: Topic) -> None:
        """Of each key the last record stays, in all but the newest segment; waits until it did."""
        self._configure(
            topic,
            **{"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0"},
        )
        for partition in topic.partitions:
            until = partition.end
            self.produce(partition, 1, key=b"newest")
            kept = {
                record.key: record for record in partition.visible(True, partition.start, until)
            }
            wanted = {record.value for record in kept.values()}
            self._until(lambda p=partition, u=until, w=wanted: self._compacted(p, u) == w)
            partition.records = [
                each for each in partition.records if each.offset >= until or each.value in wanted
            ]
        self._configure(topic, **{"cleanup.policy": "delete", "segment.ms": str(7 * 86_400_000)})

    # What producers do.

    def produce(
        self,
        partition: Partition,
        records: int,
        *,
        is_idempotent: bool = False,
        transaction: Transaction | None = None,
        is_absurd: bool = False,
        key: bytes | None = None,
    ) -> None:
        """One batch. An idempotent one is sent twice, as if its answer had been lost."""
        topic = partition.topic
        rows = []
        for _ in range(records):
            number = next(self._numbers)
            value = b"%s#%d/%d r%d" % (
                topic.short.encode(), topic.incarnation, partition.number, number
            )  # fmt: skip
            rows.append((key or KEYS[number % len(KEYS)], value))
        producer = None
        place = (topic.name, partition.number)
        if transaction is not None:
            producer = self._joined(transaction, partition, records)
        elif is_idempotent:
            producer = (*self._identity(), self._sequences.get(place, 0))
            self._sequences[place] = producer[2] + records
        batch = batch_of(
            rows,
            timestamp_ms=ABSURD_MS if is_absurd else int(time.time() * 1000),
            producer=producer,
            transactional=transaction is not None,
        )
        for _ in range(2 if is_idempotent and transaction is None else 1):
            transactional_id = transaction.client.transactional_id if transaction else None
            produced = self.client.produce(
                topic.name, partition.number, batch, transactional_id=transactional_id
            )
            assert (produced.error_code, produced.base_offset) == (0, partition.end), produced
        for offset, (row_key, value) in enumerate(rows, partition.end):
            record = Record(
                topic.short,
                topic.incarnation,
                partition.number,
                offset,
                row_key,
                value,
                transaction,
                is_absurd,
            )
            partition.records.append(record)
            self.by_value[value] = record
        partition.end += records

    def begin(self) -> Transaction:
        number = len(self.transactions)
        client = TransactionClient(self.client, f"{self.prefix}{number}")
        assert client.init().error_code == 0
        self.transactions.append(Transaction(number, client))
        return self.transactions[-1]

    def end(self, transaction: Transaction, commit: bool) -> None:
        """Ends it and waits for its markers."""
        assert transaction.client.end(commit).error_code == 0
        transaction.outcome = commit
        for topic in self.topics.values():
            for partition in topic.partitions:
                if (topic.name, partition.number) in transaction.places:
                    self._until(lambda each=partition: self._offset(each, -1) == each.end + 1)
                    partition.end += 1

    def open_transactions(self) -> list[Transaction]:
        return [each for each in self.transactions if each.outcome is None]

    def close(self) -> None:
        """Deletes what is left of the history."""
        for transaction in self.open_transactions():
            transaction.client.end(False)
        for short in list(self.topics):
            self.delete(short)
        letters = [f"{self.name(short)}-dead-letters" for short in ("a", "b")]
        self.client.call(
            admin.DeleteTopicsRequest(topic_names=letters, timeout_ms=60_000),
            admin.DeleteTopicsResponse,
            5,
        )

    def there(self, record: Record) -> list[Record]:
        """The records that its partition holds now; none if its topic is gone."""
        topic = self.topics.get(record.topic)
        if topic is None or topic.incarnation != record.incarnation:
            return []
        return topic.partitions[record.partition].records

    def dead_letters(self, short: str) -> list[bytes]:
        """The values of a topic's dead letters."""
        name = f"{self.name(short)}-dead-letters"
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name)],
            allow_auto_topic_creation=False,
        )
        (topic,) = self.client.call(request, MetadataResponse, 12).topics
        return [
            value
            for partition in topic.partitions
            for _, value in self._read(name, partition.partition_index, 0)
        ]

    def _begins(self, partition: Partition, start: int) -> None:
        partition.start = start
        partition.records = [each for each in partition.records if each.offset >= start]

    def _joined(
        self, transaction: Transaction, partition: Partition, records: int
    ) -> tuple[int, int, int]:
        client, place = transaction.client, (partition.topic.name, partition.number)
        if partition not in transaction.begins:
            assert client.add(*place) == 0
            transaction.begins[partition] = partition.end
            transaction.places.add(place)
            partition.transactions.append(transaction)
        sequence = client.sequences.get(place, 0)
        client.sequences[place] = sequence + records
        return client.producer_id, client.epoch, sequence

    def _identity(self) -> tuple[int, int]:
        if self._producer is None:
            request = InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout_ms=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            answer = until_settled(lambda: self.client.call(request, InitProducerIdResponse, 4))
            self._producer = answer.producer_id, answer.producer_epoch
        return self._producer

    def _offset(self, partition: Partition, timestamp: int) -> int:
        asked = ListOffsetsRequest.ListOffsetsTopic
        part = asked.ListOffsetsPartition(
            partition_index=partition.number, current_leader_epoch=-1, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[asked(name=partition.topic.name, partitions=[part])],
        )
        answer = self.client.call(request, ListOffsetsResponse, 5)
        return int(answer.topics[0].partitions[0].offset)

    def _configure(self, topic: Topic, **configs: str) -> None:
        resource = admin.IncrementalAlterConfigsRequest.AlterConfigsResource
        altered = [
            resource.AlterableConfig(name=name, config_operation=0, value=value)
            for name, value in configs.items()
        ]
        request = admin.IncrementalAlterConfigsRequest(
            resources=[
                resource(resource_type=_TOPIC_RESOURCE, resource_name=topic.name, configs=altered)
            ],
            validate_only=False,
        )
        (answer,) = self.client.call(request, admin.IncrementalAlterConfigsResponse, 1).responses
        assert answer.error_code == 0, answer

    def _compacted(self, partition: Partition, until: int) -> set[bytes]:
        found = self._read(partition.topic.name, partition.number, partition.start)
        return {value for offset, value in found if offset < until and value in self.by_value}

    def _read(self, name: str, partition: int, start: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while True:
            wanted = FetchPartition(name, partition, start, 1 << 20)
            (answer,) = self.client.fetch(FetchRequest(11, 0, 0, [wanted])).partitions
            rows = values_of(answer.records)
            # The first batch may begin before.
            found += [(at, value) for at, value in rows if at >= start and value is not None]
            if not rows or rows[-1][0] + 1 >= answer.high_watermark:
                return found
            start = rows[-1][0] + 1

    def _until(self, check: Any) -> None:
        wait_until(check, lambda: f"the broker gets there: {self!r}", _TIMEOUT_S, pause_s=0.002)


def picked(choices: Sequence[Any], number: int) -> Any:
    """One of `choices`, by any number."""
    return choices[number % len(choices)]
