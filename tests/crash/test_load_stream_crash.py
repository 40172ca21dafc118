"""SIGKILL of a stream into a load target: driver with JVM, or Python worker; its checkpoint is
thrown away now and then; then one clean run: each row once.

KAFKALOG_CRASH_KILLS says how often (once for 2, 10 times for 20), KAFKALOG_CRASH_SEED replays a
run. Half of the kills wait for a micro-batch, so that they fall into its tasks or its commit; the
other half for a commit of the target, so that they fall behind it, where the checkpoint lacks what
the target has.
"""

import os
import random
import shutil
import signal
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pyspark_kafkalog import EmbeddedBroker
from tests.crash.test_load_crash import processes_with
from tests.crash.test_sink_crash import Driver
from tests.crash.test_sink_stream_crash import python_workers
from tests.pyspark_kafkalog.warehouse.tables import KINDS, Table
from tests.support.patience import at_random, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.long]

KILLS = int(os.environ.get("KAFKALOG_CRASH_KILLS", "2")) // 2
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
PARTITIONS = 3
RECORDS_PER_ROUND = 1_500
LONGEST_WAIT_S = 2.0
RUN_TIMEOUT_S = 240


@pytest.fixture(params=["parquet", "delta", "iceberg", "sqlite"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "place"
    directory.mkdir()
    return KINDS[request.param](directory)


class Records:
    """A topic that grows before each run; knows every value that was acknowledged."""

    def __init__(self, servers: str) -> None:
        self.values: list[Counter[bytes]] = [Counter() for _ in range(PARTITIONS)]
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        admin.create_topics([NewTopic("orders", PARTITIONS, 1)])["orders"].result(30)
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0})

    def grow(self) -> None:
        for number in range(RECORDS_PER_ROUND):
            partition = number % PARTITIONS
            value = b"nightly %d %d" % (partition, self.values[partition].total())
            self.values[partition][value] += 1
            self._producer.produce("orders", value, partition=partition)
        assert self._producer.flush(60) == 0

    def loaded(self) -> Counter[bytes]:
        """What the query is to load: of every five records of a partition four."""
        return Counter(
            value for values in self.values for value in values if int(value.split()[2]) % 5 != 3
        )


def test_each_row_is_loaded_once_after_kills_and_lost_checkpoints(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    mark = uuid.uuid4().hex
    checkpoint, log = tmp_path / "checkpoint", tmp_path / "driver.log"
    victims: Counter[str] = Counter()
    with EmbeddedBroker() as broker:
        records = Records(broker.bootstrap_servers)

        def start() -> Driver:
            batches = [str(chance.randrange(100, 700)), str(chance.randrange(1, 4))]
            arguments = [broker.bootstrap_servers, "orders", table.name, str(checkpoint), *batches]
            return Driver("load_stream", arguments, mark, log)

        for _ in range(KILLS):
            records.grow()
            query = start()
            await_the_moment(query, table, checkpoint, chance)
            victim = chance.choice(["driver and JVM", "driver and JVM", "worker"])
            if victim == "worker":
                kill_a_worker(mark, query, chance)
                at_random(chance, LONGEST_WAIT_S)
            query.kill(tasks_too=True)
            rows = table.rows()
            assert not rows - records.loaded(), "rows that nobody wrote, or twice"
            if chance.random() < 0.5:
                shutil.rmtree(checkpoint, ignore_errors=True)
                victim += ", checkpoint thrown away"
            victims[victim] += 1
        records.grow()
        last = start()
        assert last.process.wait(RUN_TIMEOUT_S) == 0, log.read_text()[-3000:]
        assert table.rows() == records.loaded()
        wait_until(lambda: not processes_with(mark), "the end of all processes", RUN_TIMEOUT_S)
    with capsys.disabled():
        print(f"\n{KILLS} kills, KAFKALOG_CRASH_SEED={SEED}: {dict(victims)}")


def await_the_moment(query: Driver, table: Table, checkpoint: Path, chance: random.Random) -> None:
    """Waits for a micro-batch that is planned, or for rows to be committed, and then a while."""
    before = set(checkpoint.glob("offsets/*"))
    committed = table.offsets("nightly")
    if chance.random() < 0.5:
        wait_until(
            lambda: query.ended or before < set(checkpoint.glob("offsets/*")),
            "a batch",
            RUN_TIMEOUT_S,
        )
        at_random(chance, LONGEST_WAIT_S)
    else:
        wait_until(
            lambda: query.ended or table.offsets("nightly") != committed, "a commit", RUN_TIMEOUT_S
        )
        at_random(chance, 0.1)


def kill_a_worker(mark: str, query: Driver, chance: random.Random) -> None:
    workers = python_workers(mark, query)
    if workers:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
