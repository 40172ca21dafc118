"""SIGKILL of the driver during a load, again and again; then one clean load: each record once.

KAFKALOG_CRASH_KILLS says how often (2; `make crash` asks for 20), KAFKALOG_CRASH_SEED replays a
run. Each kill waits for something that a load does, then for a random time, so that it falls into
the landing, the commit or the renames, not into Spark's start. Sometimes the JVM is killed too,
sometimes it is left to find out, so that tasks of the dead load go on writing into the next one.
"""

import glob
import os
import random
import signal
import subprocess
import sys
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pyspark_kafkalog import EmbeddedBroker, committed_files
from tests.support.patience import at_random, wait_until

# test_load_kills kills more kinds of things in its short run.
pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KAFKALOG_CRASH_KILLS", "2"))
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
PARTITIONS = 3
RECORDS_PER_ROUND = 30_000
START_TIMEOUT_S = 120.0

# What a kill waits for, as a pattern below the target, and for how long at most after it.
MOMENTS = {
    "it staged": ("_kafkalog/staging/*Z-*", 2.0),
    "it wrote a file": ("_kafkalog/staging/*Z-*/*.staged", 0.5),
    "it was about to commit": ("_kafkalog/staging/*Z-*/commit-*.json", 0.003),
    "it had committed": ("_kafkalog/commits/*.json", 0.01),
}


class Records:
    """A topic that grows before each load; knows every value that was acknowledged."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.topic = "orders"
        self.values: Counter[bytes] = Counter()
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(30)
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})

    def grow(self) -> None:
        failed: list[object] = []
        for number in range(RECORDS_PER_ROUND):
            value = b"%d %s" % (number, uuid.uuid4().hex.encode())
            self.values[value] += 1
            self._producer.produce(
                self.topic,
                value,
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            if number % 10_000 == 0:
                self._producer.poll(0)
        assert self._producer.flush(60) == 0
        assert not failed


class Driver:
    """A child process that loads; the leader of a process group, which its JVM is in too."""

    def __init__(self, records: Records, target: Path, mark: str) -> None:
        self._log = open(target.with_suffix(".log"), "ab")  # noqa: SIM115
        python_path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        arguments = [records.servers, records.topic, f"parquet:{target}"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.load_driver", *arguments],
            stdout=self._log,
            stderr=self._log,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(python_path), "KAFKALOG_MARK": mark},
            start_new_session=True,
        )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self, jvm_too: bool) -> None:
        """Kills the driver, unless it ended by itself before, which it may only do well."""
        with suppress(ProcessLookupError):
            if jvm_too:
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        assert self._process.wait() in (0, -signal.SIGKILL)
        self._log.close()

    def wait(self) -> None:
        assert self._process.wait(START_TIMEOUT_S) == 0
        self._log.close()


def processes_with(mark: str) -> list[str]:
    """Ids of the processes whose environment names `mark`."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            environment = Path(path).read_bytes()
        except OSError:
            continue
        if f"KAFKALOG_MARK={mark}".encode() in environment:
            found.append(path.split("/")[2])
    return found


def new_match(target: Path, pattern: str, known: set[str]) -> bool:
    return not known.issuperset(glob.glob(str(target / pattern)))


def rows_of(files: list[str]) -> Counter[tuple[int, int]]:
    rows: Counter[tuple[int, int]] = Counter()
    for name in files:
        table = pq.read_table(name, columns=["partition", "offset"])
        rows.update(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return rows


def check_after_kill(target: Path) -> str:
    """Whatever the instant was, readers see whole commits, each row once; what was caught."""
    committed = committed_files(target)
    visible = glob.glob(str(target / "**" / "*.parquet"), recursive=True)
    rows = rows_of(committed)
    assert not rows or max(rows.values()) == 1
    assert {os.path.basename(name) for name in visible} <= {
        os.path.basename(name).removesuffix(".staged") for name in committed
    }
    staged = [name for name in committed if name.endswith(".staged")]
    if staged:
        return f"in the renames, {len(staged)} of {len(committed)} files to go"
    stages = glob.glob(str(target / "_kafkalog/staging/*"))
    return f"{len(stages)} dead staging directories, {len(rows)} rows committed"


def test_every_record_is_there_once_after_kills_at_random_instants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    mark = uuid.uuid4().hex
    target = tmp_path / "warehouse"
    with EmbeddedBroker() as broker:
        records = Records(broker.bootstrap_servers)
        with capsys.disabled():
            print(f"\n{KILLS} kills, KAFKALOG_CRASH_SEED={SEED}")
            for number in range(KILLS):
                records.grow()
                caught = kill_one(records, target, mark, chance)
                print(f"  kill {number + 1}: {caught}; {check_after_kill(target)}")
        records.grow()
        Driver(records, target, mark).wait()
        table = pq.read_table(target, columns=["partition", "offset", "value"])
        assert Counter(table.column("value").to_pylist()) == records.values
        rows = rows_of(committed_files(target))
        assert sum(rows.values()) == len(rows) == records.values.total()
        # No task of a dead load outlives the test.
        wait_until(lambda: not processes_with(mark), "the end of all tasks")


def kill_one(records: Records, target: Path, mark: str, chance: random.Random) -> str:
    moment = chance.choice(sorted(MOMENTS))
    pattern, most_s = MOMENTS[moment]
    jvm_too = chance.random() < 0.7
    known = set(glob.glob(str(target / pattern)))
    driver = Driver(records, target, mark)
    wait_until(
        lambda: driver.ended or new_match(target, pattern, known),
        moment,
        START_TIMEOUT_S,
        pause_s=0.0005,
    )
    delay_s = at_random(chance, most_s)
    driver.kill(jvm_too)
    victims = "driver and JVM" if jvm_too else "driver"
    return f"{victims} {delay_s * 1000:.1f} ms after {moment}"
