"""The memory of a Spark application that reads a topic, with either connector."""

import sys

from benchmarks.made_rows import Kind, MadeTopic
from benchmarks.pairs import Comparison, Measures, Row
from benchmarks.processes import output_of
from benchmarks.running import OURS, SPARK_CONNECTOR, THEIRS, Running


def comparisons(running: Running) -> list[Comparison]:
    made = MadeTopic(lambda: running.kafka, int(1_000_000 * running.scale), Kind(1000))
    rows = tuple(
        Row(
            *("Connector, beyond the goals", f"{what} reading {made.title}", "MB"),
            higher_is_better=False,
            peer_name=SPARK_CONNECTOR,
            settings={"both": "JVM and Python workers, spark.driver.memory=1g"},
        )
        for what in ("peak memory of an application", "memory that came with")
    )
    ours, theirs = _application(made, OURS), _application(made, THEIRS)
    return [Comparison(rows, ours, theirs, pair_s=18, quick=False)]


def _application(made: MadeTopic, connector: str) -> Measures:
    def measure() -> tuple[float, float]:
        program = [sys.executable, "-m", "benchmarks.read_application"]
        command = [*program, made.servers, made.name, connector, str(made.size_bytes)]
        most, added = map(float, output_of(command).split())
        return most, added

    return measure
