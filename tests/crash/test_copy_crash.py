"""Consume, copy, produce in transactions, through SIGKILLs of the broker and of the copiers.

Three client libraries copy one topic, which grows meanwhile, each into a topic of its own. The
broker and the copiers are killed at random instants and started again, the copiers with the same
transactional ids. In the end each target, read committed, is the exact copy: every value once, each
key in order; and the checker finds nothing wrong with what all clients saw on the way.

Beside Apache Kafka 4.3 the copiers alone are killed. That broker, killed between PREPARE_COMMIT and
the markers, now and then notes the transaction as complete when it is back, without having written
them: a partition of a target and the group's offsets stay behind an open transaction for ever.

KAFKALOG_CRASH_KILLS says how often (5; `make transactions` asks for 200), KAFKALOG_CRASH_SEED
replays the choices of a run, though not what the processes were doing.
"""

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.crash.checker import Anomaly, check, check_copy
from tests.crash.history import read_history
from tests.crash.recorded import RecordedProducer, RecordedReader, commit_start, read_to_end
from tests.crash.servers import Server, make_server
from tests.crash.supervised import Supervised
from tests.support.jvm import peer_java
from tests.support.kafka_server import require_kafka
from tests.support.patience import at_random, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.interop, pytest.mark.long]

KILLS = int(os.environ.get("KAFKALOG_CRASH_KILLS", "5"))
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
PARTITIONS = 2
KEYS = 7
RECORDS_PER_S = 100
JAVA_BACKLOG = 200  # that many records of a partition are worth the start of a JVM
SOURCE = "source"
TARGETS = ("confluent-kafka", "kafka-python", "java")  # one topic, named like its client
PROGRESS_TIMEOUT_S = 180.0


class Feeder:
    """A thread that sends numbers to the source, at a steady rate, until it is stopped."""

    def __init__(self, history: Path, servers: str) -> None:
        self.count = 0
        self.sent: Counter[int] = Counter()  # by partition
        self._producer = RecordedProducer(history, "feeder", servers)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Returns when everything was acknowledged."""
        self._stopping.set()
        self._thread.join(30)
        self._producer.flush(60)

    def _run(self) -> None:
        while not self._stopping.wait(1 / RECORDS_PER_S):
            key = self.count % KEYS
            index = key % PARTITIONS
            self._producer.send(SOURCE, index, f"key {key}", str(self.count))
            self.count += 1
            self.sent[index] += 1


class Run:
    """A server, the feeder, a reader of all targets, and two copiers of each library."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.history = directory / "history"
        self.history.mkdir()
        self._directory = directory
        servers = server.bootstrap_servers
        create_topics(servers, (SOURCE, *TARGETS))
        for library in TARGETS:
            commit_start(self.history, servers, group_of(library), SOURCE, PARTITIONS)
        self.feeder = Feeder(self.history, servers)
        partitions = dict.fromkeys(TARGETS, PARTITIONS)
        self.reader = RecordedReader(self.history, "reader", servers, partitions, "read_committed")
        self.copiers = {
            f"{library}-{number}": self._copier(library, number)
            for library in TARGETS
            for number in range(PARTITIONS)
        }

    def _copier(self, library: str, number: int) -> Supervised:
        name = f"{library}-{number}"
        command_of = java_command if library == "java" else python_command
        return Supervised(
            name,
            self._directory / f"{name}.log",
            lambda client: command_of(self, library, number, client),
            lambda: self._has_work(library, number),
        )

    def _has_work(self, library: str, index: int) -> bool:
        backlog = self.feeder.sent[index] - self.reader.seen[library, index]
        return backlog > (0 if self.feeder.is_stopped else JAVA_BACKLOG)

    def progress(self, name: str) -> int:
        """How many records the victim `name` has made readable."""
        if name == "broker":
            return self.reader.seen.total()
        if name.startswith("java"):
            return self.reader.seen["java", int(name[-1])]
        # Of all its lives: it may begin another one meanwhile.
        return sum(self.reader.senders[f"{name}.{n + 1}"] for n in range(self.copiers[name].life))

    def await_progress(self, name: str) -> None:
        """Returns when `name` has copied something from now on."""
        before = self.progress(name)
        self.until(lambda: self.progress(name) > before, f"{name} copies")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            for copier in self.copiers.values():
                copier.revive()
            return condition()

        wait_until(holds, lambda: f"{what}; {self.state()}", PROGRESS_TIMEOUT_S)

    def state(self) -> str:
        failures = {name: each.failures for name, each in self.copiers.items() if each.failures}
        read = {target: self.copied(target) for target in TARGETS}
        return f"sent {self.feeder.count}, read {read}, failures {failures}"

    def copied(self, target: str) -> int:
        return sum(self.reader.seen[target, index] for index in range(PARTITIONS))

    def finish(self) -> list[Anomaly]:
        """Lets everything be copied, reads it all, and judges the whole run."""
        self.feeder.stop()
        wanted = self.feeder.count
        found: list[Anomaly] = []
        try:
            self.until(lambda: min(map(self.copied, TARGETS)) >= wanted, "all copied")
        except AssertionError as late:
            # What is not copied in time may be lost: the checker says which.
            found.append(Anomaly("late", str(late)))
        for copier in self.copiers.values():
            copier.retire()
        for topic in (SOURCE, *TARGETS):
            servers, isolation = self.server.bootstrap_servers, "read_committed"
            read_to_end(self.history, f"end-{topic}", servers, topic, PARTITIONS, isolation)
        self.reader.stop()
        history = read_history(self.history)
        found += check(history)
        for target in TARGETS:
            found += check_copy(history, SOURCE, target)
        return found

    def close(self) -> None:
        for copier in self.copiers.values():
            copier.kill()


def group_of(library: str) -> str:
    return f"copies-{library}"


def python_command(run: Run, library: str, number: int, client: str) -> list[str]:
    return [
        *(sys.executable, "-m", "tests.crash.copier", library, str(run.history), client),
        *(run.server.bootstrap_servers, group_of(library), SOURCE, library),
        f"{library}-{number}",
    ]


def java_command(run: Run, library: str, number: int, client: str) -> list[str]:
    """Kafka's own tool, of one partition: it ends at what was the end when it began."""
    return [
        *peer_java("kafka", "-Xmx96m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
        "org.apache.kafka.tools.TransactionalMessageCopier",
        *("--broker-list", run.server.bootstrap_servers),
        *("--input-topic", SOURCE, "--input-partition", str(number)),
        *("--output-topic", library, "--consumer-group", group_of(library)),
        *("--transactional-id", f"{library}-{number}", "--transaction-size", "20"),
        # It waits for its dead predecessor's offsets before it fences it: until it is timed out.
        *("--transaction-timeout", "3000", "--use-group-metadata"),
    ]


def create_topics(servers: str, names: tuple[str, ...]) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    topics = [NewTopic(name, PARTITIONS, 1) for name in names]
    for future in admin.create_topics(topics).values():
        future.result(30)


def kill_one(run: Run, victim: str, chance: random.Random) -> str:
    """Kills `victim` at some instant of its work, or of its start; what was done."""
    is_patient = chance.random() < 0.7
    if is_patient:
        run.await_progress(victim)
    delay_s = at_random(chance, 0.3)
    if victim == "broker":
        run.server.kill()
        run.server.start()
    else:
        run.copiers[victim].kill()
        run.copiers[victim].start()
    at = "its work" if is_patient else "whatever it did"
    return f"{victim}, {delay_s * 1000:.0f} ms into {at}"


def victims(chance: random.Random, server_name: str, names: list[str]) -> Iterator[str]:
    """Each library, and our broker, in turn, in random order."""
    groups = [[name for name in names if name.startswith(target)] for target in TARGETS]
    if server_name == "kafkalog":
        groups.append(["broker"])
    while True:
        chance.shuffle(groups)
        for group in groups:
            yield chance.choice(group)


@contextmanager
def running(server_name: str, directory: Path) -> Iterator[Run]:
    server = make_server(server_name, directory / "server")
    server.start()
    try:
        run = Run(server, directory)
        try:
            yield run
        finally:
            run.close()
    finally:
        server.kill()


@pytest.mark.parametrize("server_name", ["kafkalog", "kafka"])
def test_the_copies_are_exact_after_kills_at_random_instants(
    server_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_kafka()
    chance = random.Random(SEED)
    with running(server_name, tmp_path) as run, capsys.disabled():
        print(f"\n{KILLS} kills, KAFKALOG_CRASH_SEED={SEED}")
        began = time.monotonic()
        next_victim = victims(chance, server_name, sorted(run.copiers))
        for number in range(KILLS):
            done = kill_one(run, next(next_victim), chance)
            print(f"  {time.monotonic() - began:.1f} s, kill {number + 1}: {done}", flush=True)
        found = run.finish()
        print(f"  {time.monotonic() - began:.1f} s: {run.state()}")
        assert run.feeder.count > 0
        assert not found, "\n".join(map(str, found[:20]))
