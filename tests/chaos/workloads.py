"""Clients at work in a cluster that is harmed; each is a thread, and notes what it was told."""

import random
import subprocess
import sys
import threading
import traceback
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.support.cluster import Cluster
from tests.support.patience import BUSY_S, EVENT_S, attempts, wait_until

PARTITIONS = 3
TOPIC = "chaos"
TRANSACTIONS = "chaos-transactions"
ONE_IN_FLIGHT = {"max.in.flight.requests.per.connection": 1}
"""Of several, librdkafka gives up (a fatal error) where a leader was started anew and has the first
of them, but remembers the last alone: snapshots of producers hold no more, here as in Apache Kafka
3.9.1, which does the same after a kill too, and which doubles them where one of them is refused for
want of replicas in sync and the next one is not: see `broker.replica.refused`."""
PASSING = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TIMED_OUT_QUEUE")
COORDINATORS_PASSING = (
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
)
"""A member may be told of them where its coordinator is lost as it asks how far the group is."""
Place = tuple[int, int]
"""Partition and offset."""


def place_and_value(message: Message) -> tuple[int, int, bytes]:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert value is not None
    return partition, offset, value


class Worker:
    """Runs `_work` again and again in a thread of its own; what it raises is in `errors`."""

    def __init__(self, cluster: Cluster) -> None:
        self._servers: dict[str, str | int | float | bool] = {
            "bootstrap.servers": ",".join(cluster.bootstrap),
            "socket.timeout.ms": 5_000,
            "retry.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            # Else librdkafka (2.16), whose brokers were all out of reach at once, begins anew with
            # its bootstrap servers, and may wait for its own threads for ever.
            "metadata.recovery.strategy": "none",
        }
        self.errors: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(2 * EVENT_S)
        assert not self._thread.is_alive(), f"{self} does not end"

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self._work()
        except Exception as error:
            self.errors.append("".join(traceback.format_exception(error)))

    def _work(self) -> None:
        raise NotImplementedError


class Producing(Worker):
    """An idempotent producer with acks=all that never gives up.

    librdkafka acknowledges what a lost answer was about when the batch behind it is there, which
    could not be otherwise; at which offset it does not know.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.acknowledged: dict[Place, bytes] = {}
        self.acknowledged_somewhere: set[tuple[int, bytes]] = set()
        self._number = 0
        self._producer = Producer(
            {
                **self._servers,
                **ONE_IN_FLIGHT,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 0,  # for ever
            }
        )

    def wait_for(self, more: int) -> None:
        enough = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= enough, lambda: self.errors, 2 * EVENT_S, 0.05)

    def stop(self) -> None:
        super().stop()
        assert self._producer.flush(2 * EVENT_S) == 0

    def _work(self) -> None:
        if len(self._producer) < 200:
            value, partition = b"%d" % self._number, self._number % PARTITIONS
            self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._told)
            self._number += 1
        self._producer.poll(0.002)

    def _told(self, error: Any, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert value is not None
        if offset is None:
            self.acknowledged_somewhere.add((partition, value))
            return
        if (partition, offset) in self.acknowledged:
            self.errors.append(f"{partition}:{offset} acknowledged twice")
        self.acknowledged[partition, offset] = value


class Reading(Worker):
    """A consumer of all partitions of a topic from their beginnings."""

    def __init__(self, cluster: Cluster, topic: str = TOPIC) -> None:
        super().__init__(cluster)
        self.found: dict[Place, bytes] = {}
        self._last = [-1] * PARTITIONS
        self._consumer = Consumer(
            {
                **self._servers,
                "group.id": "chaos-reading",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)]
        )

    def stop(self) -> None:
        super().stop()
        self._consumer.close()

    def _work(self) -> None:
        message = self._consumer.poll(0.1)
        if message is None:
            return
        if (error := message.error()) is not None:
            if not error.retriable() and error.name() not in PASSING:
                self.errors.append(str(error))
            return
        partition, offset, value = place_and_value(message)
        if offset <= self._last[partition]:
            self.errors.append(f"{partition}:{offset} read after {self._last[partition]}")
        self._last[partition] = offset
        self.found[partition, offset] = value


class Transacting(Worker):
    """A transactional producer: one record to each partition in each transaction, with the
    transaction's number as value; it commits four of five."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        super().__init__(cluster)
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.made_anew = 0
        self._chance = random.Random(chance.random())
        self._number = 0
        self._producer: Producer | None = None

    def stop(self) -> None:
        """Leaves no transaction open."""
        super().stop()
        self._is_over.clear()
        self._begin()

    def _work(self) -> None:
        if self._producer is None:
            self._producer = self._begin()
        else:
            self._transaction(self._producer)

    def _begin(self) -> Producer | None:
        producer = Producer({**self._servers, "transactional.id": "chaos", "linger.ms": 2})
        self.made_anew += 1
        return producer if self._done(lambda: producer.init_transactions(5)) else None

    def _transaction(self, producer: Producer) -> None:
        value = b"%d" % self._number
        self._number += 1
        self.unknown.add(value)
        try:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(TRANSACTIONS, value, partition=partition)
            is_good = self._chance.random() < 0.8
            if is_good and self._done(lambda: producer.commit_transaction(5)):
                self._became(value, self.committed)
            elif not is_good and self._done(lambda: producer.abort_transaction(5)):
                self._became(value, self.aborted)
        except KafkaException as error:
            self._after(error, producer, value)

    def _done(self, call: Any) -> bool:
        """Calls it as often as it asks for that; not done where that is the end of the test."""
        while True:
            try:
                call()
                return True
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                if self._is_over.is_set():
                    return False

    def _after(self, error: KafkaException, producer: Producer, value: bytes) -> None:
        if error.args[0].txn_requires_abort():
            try:
                if self._done(lambda: producer.abort_transaction(5)):
                    self._became(value, self.aborted)
                return
            except KafkaException as other:
                error = other
        if not error.args[0].fatal():
            self.errors.append(f"{error}: neither to abort nor fatal")
        self._producer = None

    def _became(self, value: bytes, end: set[bytes]) -> None:
        self.unknown.discard(value)
        end.add(value)

    def check(self, found: dict[Place, bytes]) -> None:
        """What a reader of committed records found in the end."""
        partitions: dict[bytes, list[int]] = defaultdict(list)
        for (partition, _), value in sorted(found.items()):
            partitions[value].append(partition)
        whole = list(range(PARTITIONS))
        for value in self.committed | self.aborted | self.unknown:
            there = partitions.pop(value, [])
            may_be = [whole] if value in self.committed else [[]]
            if value in self.unknown:
                may_be = [[], whole]
            assert there in may_be, (value, there, value in self.committed, value in self.unknown)
        assert not partitions


class Grouping(Worker):
    """A member of a group that commits what it has processed, and goes and comes again: it goes on
    where it had committed, and leaves nothing out."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        super().__init__(cluster)
        self.processed: dict[Place, bytes] = {}
        self.lives = 0
        self._chance = random.Random(chance.random())
        self._next = [0] * PARTITIONS
        # What is certain, and what was tried, where an answer may have been lost.
        self._committed = [0] * PARTITIONS
        self._tried = [0] * PARTITIONS
        self._under_way: list[set[int]] = [set() for _ in range(PARTITIONS)]
        """Commits of this life without a good end: librdkafka sends some again, after later ones
        that the coordinator has taken."""

    def stop(self) -> None:
        """Commits and goodbyes of librdkafka's may wait for ever once the coordinator was gone (its
        issue 5456): who is stuck is left behind."""
        self._is_over.set()
        self._thread.join(BUSY_S)

    def _work(self) -> None:
        consumer = Consumer(
            {
                **self._servers,
                "group.id": "chaos-group",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "on_commit": self._told,
            }
        )
        self.lives += 1
        self._committed = [self._least(each) for each in range(PARTITIONS)]
        self._under_way = [set() for _ in range(PARTITIONS)]
        try:
            consumer.subscribe([TOPIC])
            for _ in range(self._chance.randrange(5, 200)):
                if self._is_over.is_set():
                    return
                self._process(consumer, consumer.consume(100, 0.2))
        finally:
            consumer.close()

    def _process(self, consumer: Consumer, messages: list[Message]) -> None:
        processed: set[int] = set()
        for message in messages:
            if (error := message.error()) is not None:
                if not error.retriable() and error.name() not in (*PASSING, *COORDINATORS_PASSING):
                    self.errors.append(f"group: {error}")
                continue
            partition, offset, value = place_and_value(message)
            processed.add(partition)
            self.processed[partition, offset] = value
            least, most = self._least(partition), self._tried[partition]
            if offset != self._next[partition] and not least <= offset <= most:
                known = self._next[partition], least, most
                self.errors.append(f"group: {partition}:{offset}, {known} were next and committed")
            self._next[partition] = offset + 1
        self._commit(consumer, processed)

    def _least(self, partition: int) -> int:
        """Where the group is at least."""
        return min({self._committed[partition], *self._under_way[partition]})

    def _commit(self, consumer: Consumer, processed: set[int]) -> None:
        """Of these alone: of others it may not have seen yet how far its life before has got."""
        assigned = {place.partition for place in consumer.assignment()}
        ends = {each: self._next[each] for each in assigned & processed}
        if not ends:
            return
        for partition, end in ends.items():
            self._tried[partition] = max(self._tried[partition], end)
            self._under_way[partition].add(end)
        places = [TopicPartition(TOPIC, each, end) for each, end in ends.items()]
        with suppress(KafkaException):  # it is no member any more, and will be again
            consumer.commit(offsets=places, asynchronous=True)

    def _told(self, error: Any, places: list[TopicPartition]) -> None:
        """The end of a commit; what failed is tried again with the next records."""
        for place in places:
            if error is None and place.error is None:
                self._committed[place.partition] = place.offset
                self._under_way[place.partition].discard(place.offset)


class Loading(Worker):
    """Loads the topic into a Parquet table, again and again, each time as a process of its own
    whose tasks are run by others. A load may fail while the cluster is harmed; the next goes on."""

    def __init__(self, cluster: Cluster, path: Path, chance: random.Random) -> None:
        super().__init__(cluster)
        self.ends: Counter[str] = Counter()
        self.path = path
        self._chance = random.Random(chance.random())
        self._log = path.with_suffix(".log").open("wb")
        servers = ",".join(cluster.bootstrap)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.loader_child", f"parquet:{path}", servers, TOPIC],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def stop(self) -> None:
        """When a load has succeeded that began after all was written."""
        super().stop()
        wait_until(lambda: self._load() == "0", lambda: self.ends, 2 * EVENT_S)
        self._child.communicate()
        self._log.close()

    def rows(self) -> dict[Place, bytes]:
        """The table's; each of its places once."""
        table = pq.read_table(self.path, columns=["partition", "offset", "value"]).to_pylist()
        rows = {(row["partition"], row["offset"]): row["value"] for row in table}
        assert len(rows) == len(table)
        return rows

    def _work(self) -> None:
        self._load()
        self._is_over.wait(self._chance.random())

    def _load(self) -> str:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"chaos {self._chance.randrange(1 << 32)}\n")
        self._child.stdin.flush()
        result = ""
        for line in self._child.stdout:
            if line.startswith("result"):
                result = line
            if line.startswith("ended"):
                self.ends[result.split()[2] if result.startswith("result 1") else line] += 1
                return line.split()[1]
        raise RuntimeError("the loader has ended")


def read_all(cluster: Cluster, topic: str) -> dict[Place, bytes]:
    """What is committed there, when no transaction is open."""
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap),
            "group.id": "chaos-reading",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: dict[Place, bytes] = {}
    ends: set[int] = set()
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
    for _ in attempts(lambda: f"the ends of {topic}: only of {ends}"):
        if len(ends) == PARTITIONS:
            break
        if (message := consumer.poll(1)) is None:
            continue
        if (error := message.error()) is None:
            partition, offset, value = place_and_value(message)
            found[partition, offset] = value
        elif error.code() == KafkaError._PARTITION_EOF:
            partition = message.partition() or 0
            _, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), EVENT_S)
            if message.offset() == high:
                ends.add(partition)
    consumer.close()
    return found


def check_ordered_once(found: dict[Place, bytes]) -> None:
    """Numbers in their order, none twice."""
    counts = Counter(found.values())
    assert [value for value, count in counts.items() if count > 1] == []
    for partition in range(PARTITIONS):
        ordered = [int(found[place]) for place in sorted(found) if place[0] == partition]
        assert ordered == sorted(ordered)
