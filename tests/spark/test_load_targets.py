"""`load()` with Spark and a broker into each kind of target beside Parquet directories."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession

import pyspark_kafkalog
from pyspark_kafkalog.warehouse import portions
from pyspark_kafkalog.warehouse.load import LoadResult
from tests.pyspark_kafkalog.warehouse.tables import (
    IN_AZURE,
    KINDS,
    TABLES_IN_STORES,
    Table,
    table_of,
)
from tests.spark.conftest import Topics

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).parents[2]


@pytest.fixture(
    params=[kind for kind in [*KINDS, *TABLES_IN_STORES, *IN_AZURE] if kind != "parquet"]
)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "place"
    directory.mkdir()
    return table_of(request.param, directory)


def places(table: Table, topic: str) -> list[Any]:
    """The (partition, offset) of every row of a topic."""
    rows = table.arrow().select(["topic", "partition", "offset"]).to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows if row["topic"] == topic)


def test_loads_land_each_record_once(
    spark: SparkSession, servers: str, table: Table, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "MOST_OFFSETS_PER_TASK", 7)
    monkeypatch.setattr(portions, "FEW_OFFSETS", 10)
    topic = topics.create(2)
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true"}

    def load() -> LoadResult:
        return pyspark_kafkalog.load(spark, "nightly", table.name, options)

    assert load().records == 0
    topics.fill(topic, 20, 3)
    topics.append(topic, [b"with", None], partition=1, headers=[("trace", b"\xff")])
    result = load()
    assert (result.records, len(result.files)) == (25, 4)
    assert result.commit_id is not None
    assert repr(result).startswith(f"<LoadResult 'nightly' to {table.open()}: commit ")
    assert load().records == 0
    topics.fill(topic, 5)
    assert load().records == 5
    assert places(table, topic) == [(0, n) for n in range(25)] + [(1, n) for n in range(5)]
    last = table.open().position("nightly").offsets
    assert last == {TopicPartition(topic, 0): 25, TopicPartition(topic, 1): 5}
    [row] = [row for row in table.arrow().to_pylist() if row["value"] == b"with"]
    assert table.headers(row["headers"]) == [("trace", b"\xff")]


def test_the_command_line_loads(servers: str, topics: Topics, tmp_path: Path) -> None:
    table = KINDS["sqlite"](tmp_path)
    topic = topics.create()
    topics.fill(topic, 10)
    arguments = ["load", topic, "--bootstrap-servers", servers, "--name", "nightly"]
    # A process of its own: the command stops its Spark session at the end.
    command = [sys.executable, "-m", "pyspark_kafkalog.cli", *arguments, "--to", table.name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("Commit 1: 10 records in 1 file")
    assert places(table, topic) == [(0, n) for n in range(10)]
