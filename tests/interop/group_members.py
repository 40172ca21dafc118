"""Members of consumer groups: each kind of client in a thread (kcat: a process) of its own.

What a member does: subscribe to one topic from its beginning, commit as its client does by itself,
and note which partitions it has and which values it has read.
"""

import asyncio
import contextlib
import gc
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from tests.support.patience import wait_until

TIMEOUT_S = 40
COMMIT_INTERVAL_MS = 200
SESSION_TIMEOUT_MS = 6000


class GroupMember:
    """A client at work since its making; `stop` ends it in order."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.settings = settings
        self.assigned: frozenset[int] = frozenset()
        self.values: list[bytes | None] = []
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self.start()

    def start(self) -> None:
        self.thread = threading.Thread(target=self._guarded, daemon=True)
        self.thread.start()

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failure = error
            raise

    def run(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Leaves the group, with what was read committed."""
        self.stopping.set()
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive()
        assert self.failure is None, repr(self.failure)
        self.assigned = frozenset()


class ConfluentMember(GroupMember):
    def run(self) -> None:
        from confluent_kafka import Consumer

        options = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": COMMIT_INTERVAL_MS,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 300,
            "partition.assignment.strategy": "range",
        }
        consumer = Consumer(options | self.settings)
        try:
            consumer.subscribe([self.topic])
            while not self.stopping.is_set():
                for message in consumer.consume(1000, timeout=0.1):
                    if message.error() is None:
                        self.values.append(message.value())
                self.assigned = frozenset(each.partition for each in consumer.assignment())
        finally:
            consumer.close()


class KafkaPythonMember(GroupMember):
    def run(self) -> None:
        from kafka import KafkaConsumer
        from kafka.errors import KafkaConnectionError

        consumer = KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=COMMIT_INTERVAL_MS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=300,
            **self.settings,
        )
        try:
            # As a leader it would assign nothing of a topic that it has not heard of yet.
            consumer.partitions_for_topic(self.topic)
            while not self.stopping.is_set():
                # While its broker is away, poll may say so: an application polls again.
                with contextlib.suppress(KafkaConnectionError):
                    for records in consumer.poll(timeout_ms=100).values():
                        self.values += [record.value for record in records]
                self.assigned = frozenset(each.partition for each in consumer.assignment())
        finally:
            consumer.close()
            # It leaves sockets to the garbage collector, which complains: here, not anywhere.
            del consumer
            gc.collect()


class AiokafkaMember(GroupMember):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=COMMIT_INTERVAL_MS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=[RangePartitionAssignor],
            **self.settings,
        )
        await consumer.start()
        try:
            while not self.stopping.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    self.values += [record.value for record in records]
                self.assigned = frozenset(each.partition for each in consumer.assignment())
        finally:
            await consumer.stop()


class KcatMember(GroupMember):
    """Its assignment is what it says on stderr."""

    def start(self) -> None:
        options = {
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": COMMIT_INTERVAL_MS,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 300,
            "partition.assignment.strategy": "range",
        }
        # -E: a broker that is gone is no reason to end.
        command = ["kcat", "-b", self.bootstrap, "-E", "-u", "-f", "%s\n", "-G", self.group]
        for name, value in (options | self.settings).items():
            command[1:1] = ["-X", f"{name}={value}"]
        self.process = subprocess.Popen(
            [*command, self.topic],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.threads = [
            threading.Thread(target=self._read_values, daemon=True),
            threading.Thread(target=self._read_assignments, daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def _read_values(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.values.append(line.rstrip("\n").encode())

    def _read_assignments(self) -> None:
        """Lines like `% Group orders rebalanced (memberid ...): assigned: t [0], t [1]`."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "rebalanced" in line:
                _, _, told = line.partition("): ")
                parts = [part.rpartition("[")[2] for part in told.split("]")[:-1]]
                is_assigned = told.startswith("assigned")
                self.assigned = frozenset(map(int, parts)) if is_assigned else frozenset()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(TIMEOUT_S)
        for thread in self.threads:
            thread.join(TIMEOUT_S)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        self.assigned = frozenset()


KINDS: dict[str, type[GroupMember]] = {
    "confluent-kafka": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
    "kcat": KcatMember,
}


def until_shared(members: Sequence[GroupMember], partitions: int) -> None:
    """Every partition has one owner, and every member has its fair share."""
    most = -(-partitions // len(members))

    def is_shared() -> bool:
        for member in members:
            assert member.failure is None, member.failure
        shares = [member.assigned for member in members]
        return (
            sorted(index for share in shares for index in share) == list(range(partitions))
            and max(map(len, shares)) <= most
        )

    wait_until(is_shared, lambda: [sorted(member.assigned) for member in members])
