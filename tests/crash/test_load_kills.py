"""SIGKILL of drivers, of executors' workers and of the broker at random instants, for every target.

Each kill falls on a load of what a topic has grown by, half of the time with another loader beside
it, of the same name or of another one; one task in four has a twin. Once all have ended, readers
see whole commits, each record once, and the offsets equal the data; then the next load goes on from
there, and is killed. At the end one clean load of each name has every record.

Spark's part, to run tasks and to try them again, is played by loader_child.py, which makes a kill
cost about a second; a fifth as many kills meet Spark itself, with a JVM that stays warm unless its
driver is killed. KAFKALOG_CRASH_KILLS says how often each target is killed (2; `make loads` asks
for 100), KAFKALOG_CRASH_SEED replays a run, KAFKALOG_CRASH_VERBOSE=1 tells of each kill.
"""

import glob
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
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

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
VERBOSE = bool(os.environ.get("KAFKALOG_CRASH_VERBOSE"))
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


class Loader:
    """A child program that loads, one driver at a time; started again when it was killed itself."""

    program = "tests.crash.loader_child"
    victims: tuple[str, ...] = ("driver", "driver and workers", "worker", "broker")

    def __init__(self, table: Table, servers: str, log: Path) -> None:
        self._arguments = [table.name, servers, TOPIC]
        self._log = log
        self._threads: list[threading.Thread] = []
        self._groups: list[int] = []
        self._workers: list[int] = []
        self._result = ""
        self.driver = 0
        self._spawn()

    def start(self, name: str, seed: int) -> None:
        if self._process.poll() is not None:
            self._close_stdin()
            self._spawn()
        assert self._process.stdin
        self._result = ""
        self._process.stdin.write(f"{name} {seed}\n")
        self._process.stdin.flush()

    def wait_for(self, phase: str) -> str:
        """The end of the load when it comes before `phase`; otherwise nothing."""
        while not (line := self._next_line()).startswith("ended"):
            if line.startswith("driver"):
                self.driver, *self._workers = map(int, line.split()[1:])
            elif line.startswith("result"):
                # A driver may be killed after that.
                self._result = line.removeprefix("result ")
            if line.startswith(phase):
                return ""
        return f"ended {self._result or line.removeprefix('ended ')}"

    def wait(self) -> str:
        """How the load ended."""
        return self.wait_for("ended").removeprefix("ended ")

    def worker_ids(self) -> list[int]:
        return self._workers

    def close(self) -> None:
        self._close_stdin()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(TIMEOUT_S)
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._process.wait()
        for thread in self._threads:
            thread.join()

    def _close_stdin(self) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def _spawn(self) -> None:
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.program, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
        self._groups.append(self._process.pid)
        self._lines: queue.Queue[str] = queue.Queue()
        self._threads.append(
            threading.Thread(target=_collect, args=(self._process.stdout, self._lines))
        )
        self._threads[-1].start()

    def _next_line(self) -> str:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            code = self._process.poll()
            with suppress(queue.Empty):
                return self._lines.get(timeout=0.1)
            if code is not None:
                return f"ended {signal.Signals(-code).name if code < 0 else code}"
        raise AssertionError(f"nothing heard from a loader for {TIMEOUT_S} s")


def _collect(stdout: IO[str], lines: "queue.Queue[str]") -> None:
    with stdout:
        for line in stdout:
            lines.put(line.rstrip("\n"))


class SparkLoader(Loader):
    """One with a JVM, which stays for as long as its driver."""

    program = "tests.crash.spark_loader_child"
    # A driver costs a start of Spark.
    victims = ("driver", *["worker"] * 3, "driver and workers", *["broker"] * 3)

    def worker_ids(self) -> list[int]:
        """Spark's Python workers: children of its daemon, which has the same command line."""
        parents = {}
        for path in glob.glob("/proc/[0-9]*"):
            with suppress(OSError):
                if b"pyspark.daemon" in Path(path, "cmdline").read_bytes():
                    fields = Path(path, "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == self._process.pid:
                        parents[int(path.rpartition("/")[2])] = int(fields[1])
        return [worker for worker, parent in parents.items() if parent in parents]


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
        victim = self.chance.choice(self.victim.victims)
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
                workers = self.victim.worker_ids()
                if workers:
                    os.kill(self.chance.choice(workers), signal.SIGKILL)

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
        self.table.open().position("nightly")
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


# Others when they are asked for, by `make loads`.
SHORT_RUN = ("parquet", "s3")


@pytest.fixture(
    params=[
        pytest.param(kind, marks=[] if kind in SHORT_RUN else [pytest.mark.long]) for kind in KINDS
    ]
)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "place"
    directory.mkdir()
    return KINDS[request.param](directory)


def test_every_record_is_there_once_after_kills_at_random_instants(table, tmp_path, capsys):
    run_campaign(table, tmp_path, Loader, KILLS, capsys)


@pytest.mark.spark
@pytest.mark.long
def test_every_record_is_there_once_after_kills_of_spark(table, tmp_path, capsys):
    run_campaign(table, tmp_path, SparkLoader, max(1, KILLS // 5), capsys)


def run_campaign(
    table: Table,
    directory: Path,
    kind: type[Loader],
    kills: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chance = random.Random(f"{SEED} {type(table).__name__}")
    server = Kafkalog(directory / "broker")
    server.start()
    log = directory / "loaders.log"
    with ExitStack() as stack, capsys.disabled():
        stack.callback(server.stop)
        loaders = [each(table, server.bootstrap_servers, log) for each in (kind, Loader)]
        for each in loaders:
            stack.callback(each.close)
        print(
            f"\n  {type(table).__name__}, {kind.__name__}: {kills} kills, "
            f"KAFKALOG_CRASH_SEED={SEED}"
        )
        campaign = Campaign(table, server, loaders, chance)
        try:
            campaign.measure()
            for number in range(kills):
                caught = campaign.kill_once()
                if VERBOSE:
                    print(f"    kill {number + 1}: {caught}")
                campaign.check()
            campaign.finish()
        except BaseException:
            print(log.read_text()[-4000:])
            raise
        ends = ", ".join(f"{end.strip()} {count}" for end, count in sorted(campaign.ends.items()))
        print(f"    loads ended: {ends}; {campaign.records.values.total()} records, each once")
