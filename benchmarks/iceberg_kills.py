"""Rows that SIGKILLs lose and double in Iceberg tables: `kafkalog serve` and Iceberg's own sink.

`python -m benchmarks.iceberg_kills [--kills 20] [--seed N] [--only SIDE ...]`, where
KAFKALOG_PEERS has the sink. Records are produced to one Apache Kafka all the time. A side is one
process that commits every two seconds; it is killed at an instant at random after its first commit
(once in four times after it was started, whether it has committed or not) and started again. After
the last kill the topic ends, and it goes on until no more rows come. Then its table's rows are
compared, by partition and offset, with the records that were acknowledged.

Sides: kafkalog; sink, with its defaults; sink-earliest, whose consumers of the control topic begin
at its beginning where they have no offset (`iceberg.kafka.auto.offset.reset=earliest`).
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow.compute as pc
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table as Printed

from benchmarks.iceberg_sink import BYTES, TASKS, total
from benchmarks.running import Broker, kafka, topic
from tests.support.iceberg_connect import IcebergSink, Lake
from tests.support.jvm import short_lived
from tests.support.patience import at_random, for_seconds

# Twenty are to start, soon.
JVM = ("-Xmx1G", *short_lived("iceberg-connect"), "-Dorg.slf4j.simpleLogger.showDateTime=true")
PARTITIONS = 4
INTERVAL_S = 2
_RECORDS_PER_S = 2000
_TICK_S = 0.05
# A group learns of a member that was killed when its session has ended: 45 s by default.
_SESSION = {"consumer.override.session.timeout.ms": "6000"}
_TO_FIRST_COMMIT_S = 120
_AWAITED = 0.75
_UNTIL_QUIET_S = 60
_TABLE = "rows"


class Side(Protocol):
    def start(self) -> None: ...

    def kill(self) -> None: ...


class Service:
    """`kafkalog serve` with one load."""

    def __init__(self, folder: Path, lake: Lake, servers: str, name: str) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "loads.toml").write_text(
            f'[[load]]\nname = "kills"\ntopics = ["{name}"]\nto = "{lake.target(_TABLE)}"\n'
            f'bootstrap-servers = "{servers}"\nevery = "{INTERVAL_S} s"\n'
        )

    def start(self) -> None:
        with (self._folder / "serve.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pyspark_kafkalog.cli", "serve", "loads.toml"],
                cwd=self._folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def sink(folder: Path, lake: Lake, servers: str, name: str, more: dict[str, str]) -> Side:
    properties = {
        **lake.of_sink(_TABLE),
        **BYTES.peer,
        **_SESSION,
        "tasks.max": str(TASKS),
        "iceberg.control.topic": f"control-{name}",
        "iceberg.control.commit.interval-ms": str(INTERVAL_S * 1000),
        **more,
    }
    return IcebergSink(folder, servers, name, properties, JVM)


SIDES: dict[str, Callable[[Path, Lake, str, str], Side]] = {
    "kafkalog": Service,
    "sink": partial(sink, more={}),
    "sink-earliest": partial(sink, more={"iceberg.kafka.auto.offset.reset": "earliest"}),
}


@dataclass
class Outcome:
    """What became of one side. `back_s`: from a start to its first commit, where it was awaited.

    `missing` has how many records a table lacks before a partition's last row, which have been
    passed over for good, and behind it, which might come.
    """

    records: int = 0
    rows: int = 0
    distinct: int = 0
    missing: tuple[int, int] = (0, 0)
    back_s: list[float] = field(default_factory=list)
    idle: int = 0
    """Starts after which no commit came in time."""

    def cells(self) -> list[str]:
        doubled = self.rows - self.distinct
        back_s = statistics.median(self.back_s) if self.back_s else float("nan")
        counts = self.records, self.rows, *self.missing, doubled, self.idle
        return [*(f"{each:,}" for each in counts), f"{back_s:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.iceberg_kills")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--only", nargs="*", choices=SIDES, default=list(SIDES))
    given = parser.parse_args()
    console = Console()
    title = f"{given.kills} kills, seed {given.seed}"
    columns = "side", "records", "rows", "lost", "not there", "doubled", "idle", "back, s"
    printed = Printed(*columns, title=title)
    with kafka() as broker:
        for name in given.only:
            outcome = killed(name, broker, given.kills, random.Random(given.seed))
            printed.add_row(name, *outcome.cells())
            console.print(f"{name}: {outcome}", highlight=False)
    console.print(printed)


def killed(name: str, broker: Broker, kills: int, chance: random.Random) -> Outcome:
    outcome = Outcome()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lake = Lake(folder)
        if name != "kafkalog":
            # As ours makes it itself, but for the key.
            lake.create(_TABLE, BYTES.schema)
        source = stack.enter_context(topic(broker, PARTITIONS))
        side = SIDES[name](folder, lake, broker.bootstrap_servers, source)
        stack.callback(side.kill)
        with produced(broker.bootstrap_servers, source) as ends:
            for _ in range(kills):
                before, began_s = rows_in(lake), time.monotonic()
                side.start()
                if chance.random() < _AWAITED:
                    if grows(lake, before, _TO_FIRST_COMMIT_S):
                        outcome.back_s.append(time.monotonic() - began_s)
                    else:
                        outcome.idle += 1
                at_random(chance, 3 * INTERVAL_S)
                side.kill()
        side.start()
        while grows(lake, rows_in(lake), _UNTIL_QUIET_S):
            pass
        side.kill()
        outcome.records = sum(ends)
        outcome.rows, landed = places_in(lake)
        outcome.distinct = sum(map(len, landed.values()))
        behind = sum(end - 1 - max(landed[number], default=-1) for number, end in enumerate(ends))
        outcome.missing = (outcome.records - outcome.distinct - behind, behind)
    return outcome


@contextmanager
def produced(servers: str, name: str) -> Iterator[list[int]]:
    """Records while the context lasts; then the list has how many were acknowledged of each
    partition."""
    ends = [0] * PARTITIONS
    done = threading.Event()
    failed: list[object] = []

    def feed() -> None:
        producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        while not done.wait(_TICK_S):
            for number in range(int(_RECORDS_PER_S * _TICK_S)):
                partition = number % PARTITIONS
                producer.produce(
                    name,
                    b"%d" % ends[partition],
                    partition=partition,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                ends[partition] += 1
            producer.poll(0)
        assert producer.flush(60) == 0
        assert not failed

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield ends
    finally:
        done.set()
        thread.join()


def grows(lake: Lake, rows: int, within_s: float) -> bool:
    """Whether the table comes to have more than `rows` in time."""
    return any(rows_in(lake) > rows for _ in paced(within_s))


def paced(seconds: float) -> Iterator[None]:
    pause = threading.Event()
    for _ in for_seconds(seconds):
        yield
        pause.wait(0.2)


def rows_in(lake: Lake) -> int:
    # A load makes its table.
    return total(lake.table(_TABLE).current_snapshot()) if lake.has(_TABLE) else 0


def places_in(lake: Lake) -> tuple[int, dict[int, set[int]]]:
    """Rows, and the offsets of which there are some, by partition."""
    rows = lake.table(_TABLE).scan(selected_fields=("partition", "offset")).to_arrow()
    landed = {}
    for number in range(PARTITIONS):
        ours = rows.filter(pc.field("partition") == number)
        landed[number] = set(ours["offset"].to_pylist())
    return rows.num_rows, landed


if __name__ == "__main__":
    main()
