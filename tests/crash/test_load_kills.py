"""SIGKILL of drivers, of executors' workers and of the broker at random instants, for every target.

Each kill falls on a load of what a topic has grown by, half of the time with another loader beside
it, of the same name or of another one; one task in four has a twin. Once all have ended, readers
see whole commits, each record once, and the offsets equal the data; then the next load goes on from
there, and is killed. At the end one clean load of each name has every record.

Spark's part, to run tasks and to try them again, is played by loader_child.py, which makes a kill
cost half a second; test_load_crash kills the real one. KAFKALOG_CRASH_KILLS says how often each
target is killed (2; `make loads` asks for 100), KAFKALOG_CRASH_SEED replays a run.
"""

import itertools
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.crash.servers import Kafkalog
from tests.pyspark_kafkalog.warehouse.rows_loader import PARTITIONS
from tests.pyspark_kafkalog.warehouse.tables import KINDS, Table

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KAFKALOG_CRASH_KILLS", "2"))
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
TOPIC = "orders"
MOST_RECORDS_PER_ROUND = 500
TIMEOUT_S = 90.0

NAMES = ("nightly", "hourly")
# The phases of a load: which lines of its driver they begin with.
PHASES = ("driver", "landing", "landed")
# Where the broker was killed, a load may give up, which leaves the table as it was.
BROKER_ERRORS = ("BrokersUnreachableError", "FetchTimeoutError", "UnknownTopicError")


class Records:
    """A topic that grows before each load; knows every value that was acknowledged."""

    def __init__(self, servers: str) -> None:
        self.values: Counter[bytes] = Counter()
        self.ends = dict.fromkeys(PARTITIONS, 0)
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(TOPIC, len(PARTITIONS), 1)])[TOPIC].result(30)
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0})

    def grow(self, chance: random.Random) -> None:
        failed: list[object] = []
        for _ in range(chance.randrange(1, MOST_RECORDS_PER_ROUND)):
            partition = chance.choice(PARTITIONS)
            value = b"%d %d" % (partition, self.ends[partition])
            self.values[value] += 1
            self.ends[partition] += 1
            self._producer.produce(
                TOPIC,
                value,
                partition=partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert self._producer.flush(60) == 0
        assert not failed


@dataclass
class Loader:
    """A loader_child: one driver at a time."""

    process: "subprocess.Popen[str]"
    lines: "queue.Queue[str]" = field(default_factory=queue.Queue)
    driver: int = 0
    workers: list[int] = field(default_factory=list)

    def start(self, name: str, seed: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{name} {seed}\n")
        self.process.stdin.flush()

    def next_line(self) -> str:
        line = self.lines.get(timeout=TIMEOUT_S)
        assert line, "the loader ended"
        if line.startswith("driver"):
            self.driver, *self.workers = map(int, line.split()[1:])
        return line

    def wait_for(self, phase: str) -> str:
        """The end of the load when it comes before `phase`; otherwise nothing."""
        while not (line := self.next_line()).startswith("ended"):
            if line.startswith(phase):
                return ""
        return line

    def wait(self) -> str:
        """How the load ended."""
        return self.wait_for("ended").removeprefix("ended ")

    def collect(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put("")


@contextmanager
def loader(table: Table, servers: str, log: Path) -> Iterator[Loader]:
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.loader_child", table.name, servers, TOPIC],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    running = Loader(process)
    thread = threading.Thread(target=running.collect)
    thread.start()
    try:
        yield running
    finally:
        assert process.stdin
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(TIMEOUT_S)
        process.kill()
        thread.join()
        assert process.stdout
        process.stdout.close()


class Campaign:
    """A table, a topic and two loaders, one of which is killed again and again."""

    def __init__(
        self, table: Table, server: Kafkalog, loaders: Sequence[Loader], chance: random.Random
    ) -> None:
        self.table = table
        self.server = server
        self.victim, self.rival = loaders
        self.chance = chance
        self.records = Records(server.bootstrap_servers)
        self.ends: Counter[str] = Counter()
        self.durations_s: dict[str, float] = {}

    def load(self, name: str) -> None:
        """A load that nobody disturbs."""
        self.victim.start(name, self.chance.randrange(1_000_000))
        end = self.victim.wait()
        assert end.startswith("0 "), end

    def measure(self) -> None:
        """How long each phase of a load takes, undisturbed."""
        self.records.grow(self.chance)
        self.load("nightly")
        self.records.grow(self.chance)
        self.victim.start("nightly", 0)
        times = [time.monotonic()]
        for phase in PHASES[1:]:
            assert self.victim.wait_for(phase) == ""
            times.append(time.monotonic())
        assert self.victim.wait().startswith("0 ")
        times.append(time.monotonic())
        lasted = (after - before for before, after in itertools.pairwise(times))
        self.durations_s = dict(zip(PHASES, lasted, strict=True))

    def kill_once(self) -> str:
        """What was killed and when, and how the loads ended."""
        self.records.grow(self.chance)
        names = ["nightly"]
        self.victim.start("nightly", self.chance.randrange(1_000_000))
        if self.table.takes_two_processes and self.chance.random() < 0.5:
            names.append(self.chance.choice(NAMES))
            self.rival.start(names[1], self.chance.randrange(1_000_000))
        victim = self.chance.choice(["driver", "driver and workers", "worker", "broker"])
        phases = {"worker": ["landing"], "broker": PHASES}.get(victim, [*PHASES, "landed"])
        phase = self.chance.choice(list(phases))
        delay_s = self.chance.uniform(0, 1.2 * self.durations_s[phase])
        ended = self.victim.wait_for(phase)
        time.sleep(delay_s)
        self.kill(victim)
        ends = [ended.removeprefix("ended ") or self.victim.wait()]
        ends += [self.rival.wait()] if len(names) > 1 else []
        for end in ends:
            self.judge(end, victim)
        self.ends.update(end.split(":")[0].split("<")[0] for end in ends)
        return (
            f"{victim} {delay_s * 1000:.0f} ms after {phase}, {' and '.join(names)}: "
            f"{'; '.join(end[:60] for end in ends)}"
        )

    def kill(self, victim: str) -> None:
        if victim == "broker":
            self.server.kill()
            time.sleep(self.chance.uniform(0, 0.3))
            self.server.start()
            return
        with suppress(ProcessLookupError):
            if victim == "driver and workers":
                os.killpg(self.victim.driver, signal.SIGKILL)
            elif victim == "driver":
                os.kill(self.victim.driver, signal.SIGKILL)
            else:
                os.kill(self.chance.choice(self.victim.workers), signal.SIGKILL)

    def judge(self, end: str, victim: str) -> None:
        allowed = ["0 ", "1 LoadConflictError"]
        allowed += [f"1 {error}" for error in BROKER_ERRORS] if victim == "broker" else []
        allowed += ["SIGKILL"] if victim.startswith("driver") else []
        assert end.startswith(tuple(allowed)), end

    def check(self) -> None:
        """Readers see whole commits, each record once; the offsets equal the data."""
        self.table.settle()
        before = self.places()
        assert all(count <= len(NAMES) for count in before.values())
        # A Parquet directory shows the files of a commit when it is opened for the next one.
        self.table.open().last_offsets("nightly")
        rows, expected = self.places(), self.expected()
        assert before <= rows
        assert rows == expected, {"more": rows - expected, "less": expected - rows}

    def places(self) -> Counter[tuple[int, int]]:
        found = self.table.arrow()
        if not found.num_rows:
            return Counter()
        columns = [found.column(name).to_pylist() for name in ("partition", "offset")]
        return Counter(zip(*columns, strict=True))

    def expected(self) -> Counter[tuple[int, int]]:
        """Each offset once that a name has passed."""
        return Counter(
            (partition, offset)
            for name in NAMES
            for partition, end in self.table.offsets(name).items()
            for offset in range(end)
        )

    def finish(self) -> None:
        self.records.grow(self.chance)
        for name in NAMES:
            self.load(name)
            assert self.table.offsets(name) == self.records.ends
        twice = self.records.values + self.records.values
        assert Counter(self.table.arrow().column("value").to_pylist()) == twice


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "place"
    directory.mkdir()
    return KINDS[request.param](directory)


def test_every_record_is_there_once_after_kills_at_random_instants(table, tmp_path, capsys):
    chance = random.Random(f"{SEED} {type(table).__name__}")
    server = Kafkalog(tmp_path / "broker")
    server.start()
    with ExitStack() as stack, capsys.disabled():
        stack.callback(server.stop)
        log = tmp_path / "loaders.log"
        loaders = [
            stack.enter_context(loader(table, server.bootstrap_servers, log)) for _ in range(2)
        ]
        print(f"\n  {type(table).__name__}: {KILLS} kills, KAFKALOG_CRASH_SEED={SEED}")
        campaign = Campaign(table, server, loaders, chance)
        try:
            campaign.measure()
            for number in range(KILLS):
                caught = campaign.kill_once()
                if KILLS < 10 or os.environ.get("KAFKALOG_CRASH_VERBOSE"):
                    print(f"    kill {number + 1}: {caught}")
                campaign.check()
            campaign.finish()
        except BaseException:
            print(log.read_text()[-4000:])
            raise
        ends = ", ".join(f"{end.strip()} {count}" for end, count in sorted(campaign.ends.items()))
        print(f"    loads ended: {ends}; {campaign.records.values.total()} records, each once")
