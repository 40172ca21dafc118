"""SIGKILL of driver, tasks and broker at random instants: read_committed sees each row once.

KAFKALOG_CRASH_KILLS of 4 kills 4 times, of 20 (`make crash`) 100 times, against our broker and as
often against Apache Kafka; KAFKALOG_CRASH_SEED replays a run. A driver is killed alone, so that
its tasks write on into the next run, or together with them.
"""

import os
import random
import re
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.crash.sink_driver import rows_of
from tests.crash.sink_steps import has_open_transactions, visible
from tests.crash.test_load_crash import processes_with
from tests.support.broker_child import BrokerChild
from tests.support.kafka_server import KafkaServer, require_kafka
from tests.support.patience import at_random, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.long]

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KAFKALOG_CRASH_KILLS", "4")) ** 2 // 4
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
TIMEOUT_S = 240.0
LONGEST_WAIT_S = 2.0


class Broker(Protocol):
    @property
    def bootstrap_servers(self) -> str: ...

    def kill(self) -> None: ...

    def start(self) -> None: ...


class OurBroker:
    """A broker that comes back on the same port, with the same data."""

    def __init__(self, directory: Path, properties: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._properties = properties
        self._child = BrokerChild(directory, properties)
        self.bootstrap_servers = self._child.address

    def kill(self) -> None:
        self._child.kill()

    def start(self) -> None:
        self._child = BrokerChild(self._directory, self._properties, self._child.port)

    def stop(self) -> None:
        self._child.stop()


@pytest.fixture(params=["kafkalog", pytest.param("kafka", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    if request.param == "kafkalog":
        ours = OurBroker(tmp_path / "data")
        yield ours
        ours.stop()
        return
    require_kafka()
    with KafkaServer(tmp_path) as kafka:
        yield kafka


class Driver:
    """A run of a module of `tests.crash`, the leader of a process group that its tasks, or its JVM,
    are in too."""

    def __init__(self, module: str, arguments: list[str], mark: str, log: Path) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"tests.crash.{module}", *arguments],
                stdout=output,
                stderr=output,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": path, "KAFKALOG_MARK": mark},
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self, tasks_too: bool) -> None:
        with suppress(ProcessLookupError):
            if tasks_too:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()


def await_micro_batch(driver: Driver, done: Path) -> None:
    before = len(list(done.iterdir()))
    wait_until(
        lambda: driver.ended or len(list(done.iterdir())) > before, "a micro-batch", TIMEOUT_S
    )


def test_each_row_is_there_once_after_kills_at_random_instants(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    mark = uuid.uuid4().hex
    done, log = tmp_path / "done", tmp_path / "driver.log"
    done.mkdir()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("rows", 3, 1)])["rows"].result(30)

    def start(batches: int) -> Driver:
        arguments = [broker.bootstrap_servers, "rows", "sink", str(done), str(batches)]
        arguments.append(str(chance.randrange(1_000_000)))
        return Driver("sink_driver", arguments, mark, log)

    victims: Counter[str] = Counter()
    driver = start(1_000_000)
    for _ in range(KILLS):
        if chance.random() < 0.5:
            # From somewhere in a micro-batch on, not in the start of Python.
            await_micro_batch(driver, done)
        at_random(chance, LONGEST_WAIT_S)
        if driver.ended:
            driver = start(1_000_000)
        victim = chance.choices(["driver", "driver and tasks", "task", "broker"], [3, 3, 3, 1])[0]
        victims[victim] += 1
        if victim == "broker":
            broker.kill()
            broker.start()
        elif victim == "task":
            others = [pid for pid in processes_with(mark) if int(pid) != driver.process.pid]
            if others:
                with suppress(ProcessLookupError):
                    os.kill(int(chance.choice(others)), signal.SIGKILL)
        else:
            driver.kill(tasks_too=victim == "driver and tasks")
            driver = start(1_000_000)
    driver.kill(tasks_too=False)
    batches = len(list(done.iterdir())) + 1
    last = start(batches)
    while last.process.wait(TIMEOUT_S) != 0:
        last = start(batches)
    wait_until(lambda: not processes_with(mark), "the end of all tasks", TIMEOUT_S)
    start(batches + 1).process.wait(TIMEOUT_S)
    with capsys.disabled():
        print(f"\n{KILLS} kills, KAFKALOG_CRASH_SEED={SEED}: {dict(victims)}; {batches} batches")
        ends = Counter(re.findall(r"micro-batch \d+: (\w+)", log.read_text()))
        print(f"  drivers that ended by themselves: {dict(ends)}")
    wait_until(
        lambda: not has_open_transactions(broker.bootstrap_servers, "rows"),
        "the last markers",
        TIMEOUT_S,
    )
    expected = Counter(row for batch in range(batches + 1) for row in rows_of(batch))
    assert visible(broker.bootstrap_servers, "rows") == expected
