"""SIGKILL of drivers, of executors' workers and of the broker at random instants, for every target.

Each kill falls on a load of what a topic has grown by, half of the time with another loader beside
it, of the same name or of another one; one task in four has a twin. Once all have ended, readers
see whole commits, each record once, and the offsets equal the data; then the next load goes on from
there, and is killed. At the end one clean load of each name has every record.

Only kills of a load at work count, of each kind of victim a third. After some kills the next ones
fall on a new table.

Spark's part, to run tasks and to try them again, is played by loader_child.py, which makes a kill
cost about a second; a third as many kills meet Spark itself, with a JVM that stays warm unless its
driver is killed. KAFKALOG_CRASH_KILLS says how often each target is killed (3; `make loads` asks
for 300), KAFKALOG_CRASH_SEED replays a run, KAFKALOG_CRASH_VERBOSE=1 tells of each kill.
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
from tests.crash.spark_loader_child import DAEMON
from tests.pyspark_kafkalog.warehouse.rows_loader import PARTITIONS
from tests.pyspark_kafkalog.warehouse.tables import KINDS, Table
from tests.support.patience import at_random, attempts

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KAFKALOG_CRASH_KILLS", "3"))
# Of a kill that comes too late now and then.
MOST_TRIES = 50
VERBOSE = bool(os.environ.get("KAFKALOG_CRASH_VERBOSE"))
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
TOPIC = "orders"
MOST_RECORDS_PER_ROUND = 500
# On a busy machine a JVM needs minutes to begin.
TIMEOUT_S = 600.0

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
    victims: tuple[str, ...] = (
        *("driver", "worker", "broker"),
        *("driver and workers", "worker", "broker"),
    )
    # Each check reads all of a table.
    kills_per_table = 25
    # With what a load may end where a worker was killed, instead of having another one do its task.
    errors_of_workers: tuple[str, ...] = ()

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

    def is_at_work(self) -> bool:
        """Whether the load of which `wait_for` has told no end has none yet."""
        ends = ("result", "ended")
        return not any(line.startswith(ends) for line in list(self._lines.queue))

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
        self._process, self._lines = self._launch()

    def _launch(self) -> tuple["subprocess.Popen[str]", "queue.Queue[str]"]:
        """A child program, and the lines that it is going to print."""
        with self._log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", self.program, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
        self._groups.append(process.pid)
        lines: queue.Queue[str] = queue.Queue()
        self._threads.append(threading.Thread(target=_collect, args=(process.stdout, lines)))
        self._threads[-1].start()
        return process, lines

    def _next_line(self) -> str:
        for _ in attempts("a word of a loader", TIMEOUT_S):
            code = self._process.poll()
            with suppress(queue.Empty):
                line = self._lines.get(timeout=0.1)
                break
            if code is not None:
                line = f"ended {signal.Signals(-code).name if code < 0 else code}"
                break
        return line


def _collect(stdout: IO[str], lines: "queue.Queue[str]") -> None:
    with stdout:
        for line in stdout:
            lines.put(line.rstrip("\n"))


class LocalLoader(Loader):
    """One whose workers are the local engine's: the first that dies ends the load."""

    program = "tests.crash.local_loader_child"
    errors_of_workers = ("KafkalogError: A task of the load failed and nothing was published",)


class SparkLoader(Loader):
    """One with a JVM, which stays for as long as its driver. A spare one warms up meanwhile."""

    program = "tests.crash.spark_loader_child"
    # A driver costs a start of Spark: a sixth, not a third of the kills.
    victims = ("driver", "driver and workers", *("worker", "broker") * 5)
    kills_per_table = 50
    _spare: tuple["subprocess.Popen[str]", "queue.Queue[str]"] | None = None

    def close(self) -> None:
        super().close()
        if self._spare:
            process, _ = self._spare
            assert process.stdin
            process.stdin.close()
            process.wait()

    def _spawn(self) -> None:
        self._process, self._lines = self._spare or self._launch()
        self._spare = self._launch()

    def worker_ids(self) -> list[int]:
        """Spark's Python workers: children of its daemon, which has the same command line."""
        parents = {}
        for path in glob.glob("/proc/[0-9]*"):
            with suppress(OSError):
                if f"-m\0{DAEMON}\0".encode() in Path(path, "cmdline").read_bytes():
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
        self.phases: Counter[str] = Counter()
        # How long phases take, about: from their measure on, by which kills come too late.
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

    def kill_and_check(self, victim: str) -> bool:
        """Whether it was killed while the load was at work."""
        hit = self.kill_once(victim)
        self.check()
        return hit

    def kill_once(self, victim: str) -> bool:
        """Whether the load was at work when `victim` was killed; says when, and how it ended."""
        self.records.grow(self.chance)
        names = ["nightly"]
        self.victim.start("nightly", self.chance.randrange(1_000_000))
        if self.table.takes_two_processes and self.chance.random() < 0.5:
            names.append(self.chance.choice(NAMES))
            self.rival.start(names[1], self.chance.randrange(1_000_000))
        phases = {"worker": ["landing"], "broker": PHASES}.get(victim, [*PHASES, "landed"])
        phase = self.chance.choice(list(phases))
        ended = self.victim.wait_for(phase)
        delay_s = at_random(self.chance, self.durations_s[phase])
        hit = not ended and self.victim.is_at_work() and self.kill(victim)
        # Three of four kills hit, wherever in the phase.
        self.durations_s[phase] *= 1.13 if hit else 0.7
        ends = [ended.removeprefix("ended ") or self.victim.wait()]
        ends += [self.rival.wait()] if len(names) > 1 else []
        for end in ends:
            self.judge(end, victim)
        self.ends.update(end.split(":")[0].split("<")[0] for end in ends)
        self.phases.update([f"{victim} after {phase}"] if hit else [])
        if VERBOSE:
            print(
                f"    {'' if hit else 'too late for '}{victim} {delay_s * 1000:.0f} ms after "
                f"{phase}, {' and '.join(names)}: {'; '.join(end[:60] for end in ends)}"
            )
        return hit

    def kill(self, victim: str) -> bool:
        """False when it had ended."""
        if victim == "broker":
            self.server.kill()
            at_random(self.chance, 0.3)
            self.server.start()
            return True
        try:
            if victim == "driver and workers":
                os.killpg(self.victim.driver, signal.SIGKILL)
            elif victim == "driver":
                os.kill(self.victim.driver, signal.SIGKILL)
            else:
                os.kill(self.chance.choice(self.victim.worker_ids()), signal.SIGKILL)
        except (ProcessLookupError, IndexError):
            return False
        return True

    def judge(self, end: str, victim: str) -> None:
        allowed = ["0 ", "1 LoadConflictError"]
        allowed += [f"1 {error}" for error in BROKER_ERRORS] if victim == "broker" else []
        allowed += [f"1 {error}" for error in self.victim.errors_of_workers if "worker" in victim]
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
SHORT_RUN = ["parquet"]


@pytest.fixture(
    params=[
        pytest.param(kind, marks=() if kind in SHORT_RUN else pytest.mark.long) for kind in KINDS
    ]
)
def make_table(request: pytest.FixtureRequest) -> type[Table]:
    kind: type[Table] = KINDS[request.param]
    return kind


def test_every_record_is_there_once_after_kills_at_random_instants(
    make_table: type[Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        run_campaigns(make_table, tmp_path, Loader, KILLS)


def test_every_record_is_there_once_after_kills_without_spark(
    make_table: type[Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        run_campaigns(make_table, tmp_path, LocalLoader, KILLS)


@pytest.mark.spark
@pytest.mark.long
def test_every_record_is_there_once_after_kills_of_spark(
    make_table: type[Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        run_campaigns(make_table, tmp_path, SparkLoader, max(1, KILLS // 3))


def run_campaigns(make_table: type[Table], directory: Path, kind: type[Loader], kills: int) -> None:
    """As many kills as asked for, on some tables; prints what came of them."""
    label = f"{make_table.__name__}, {kind.__name__}"
    chance = random.Random(f"{SEED} {label}")
    victims = list(itertools.islice(itertools.cycle(kind.victims), kills))
    chance.shuffle(victims)
    print(f"\n  {label}: {kills} kills, KAFKALOG_CRASH_SEED={SEED}", flush=True)
    began = time.monotonic()
    ends, phases, records = Counter[str](), Counter[str](), 0
    for first in range(0, kills, kind.kills_per_table):
        place = directory / f"from-kill-{first}"
        (place / "place").mkdir(parents=True)
        table = make_table(place / "place")
        campaign = run_campaign(
            table, place, kind, victims[first : first + kind.kills_per_table], chance
        )
        ends, phases = ends + campaign.ends, phases + campaign.phases
        records += campaign.records.values.total()
        print(f"    {phases.total()} kills in {time.monotonic() - began:.0f} s", flush=True)
    print(f"    killed: {in_words(phases)}")
    print(f"    loads ended: {in_words(ends)}; {records} records, each once", flush=True)


def in_words(counts: Counter[str]) -> str:
    return ", ".join(f"{name.strip()} {count}" for name, count in sorted(counts.items()))


def run_campaign(
    table: Table,
    directory: Path,
    kind: type[Loader],
    victims: Sequence[str],
    chance: random.Random,
) -> Campaign:
    server = Kafkalog(directory / "broker")
    server.start()
    log = directory / "loaders.log"
    with ExitStack() as stack:
        stack.callback(server.stop)
        loaders = [each(table, server.bootstrap_servers, log) for each in (kind, Loader)]
        for each in loaders:
            stack.callback(each.close)
        campaign = Campaign(table, server, loaders, chance)
        try:
            campaign.measure()
            for victim in victims:
                assert any(campaign.kill_and_check(victim) for _ in range(MOST_TRIES))
            campaign.finish()
        except BaseException:
            print(log.read_text()[-4000:])
            raise
    return campaign
