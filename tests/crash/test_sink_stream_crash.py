"""SIGKILL of a stream through Spark: driver with JVM, Python worker, broker; then one clean run.

KAFKALOG_CRASH_KILLS says how often (once for 4, 5 times for 20), KAFKALOG_CRASH_SEED replays a run.
"""

import os
import random
import signal
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.crash.sink_steps import has_open_transactions, visible
from tests.crash.test_load_crash import processes_with
from tests.crash.test_sink_crash import Driver, OurBroker
from tests.support.patience import at_random, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KAFKALOG_CRASH_KILLS", "4")) // 4
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
RECORDS = 2_000
LONGEST_WAIT_S = 4.0
RUN_TIMEOUT_S = 240


def python_workers(mark: str, query: Driver) -> list[int]:
    found = []
    for pid in map(int, processes_with(mark)):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if pid != query.process.pid and b"pyspark.daemon" in command:
                found.append(pid)
    return found


def test_a_killed_stream_delivers_each_record_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    mark = uuid.uuid4().hex
    checkpoint, log = tmp_path / "checkpoint", tmp_path / "driver.log"
    broker = OurBroker(tmp_path / "data")
    servers = broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for topic in ("source", "target"):
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    values = [b"%d" % number for number in range(RECORDS)]
    for value in values:
        producer.produce("source", value)
    assert producer.flush(30) == 0
    arguments = [servers, "source", "target", str(checkpoint)]
    victims: Counter[str] = Counter()
    for _ in range(KILLS):
        query = Driver("sink_stream", arguments, mark, log)
        before = set(checkpoint.glob("offsets/*"))
        wait_until(
            lambda q=query, b=before: q.ended or b < set(checkpoint.glob("offsets/*")),
            "a micro-batch",
            RUN_TIMEOUT_S,
        )
        at_random(chance, LONGEST_WAIT_S)
        victim = chance.choice(["driver and JVM", "driver and JVM", "worker", "broker"])
        victims[victim] += 1
        if victim == "broker":
            broker.kill()
            broker.start()
            at_random(chance, LONGEST_WAIT_S)
        elif victim == "worker":
            workers = python_workers(mark, query)
            if workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
            at_random(chance, LONGEST_WAIT_S)
        query.kill(tasks_too=True)
    last = Driver("sink_stream", arguments, mark, log)
    assert last.process.wait(RUN_TIMEOUT_S) == 0, log.read_text()[-3000:]
    with capsys.disabled():
        print(f"\n{KILLS} kills, KAFKALOG_CRASH_SEED={SEED}: {dict(victims)}")
    wait_until(
        lambda: not has_open_transactions(servers, "target"), "the last markers", RUN_TIMEOUT_S
    )
    assert visible(servers, "target") == Counter(values)
    wait_until(lambda: not processes_with(mark), "the end of all processes", RUN_TIMEOUT_S)
    broker.stop()
