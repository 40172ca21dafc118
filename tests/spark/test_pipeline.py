"""The documentation's declarative pipeline, which reads a topic, lands it and writes it back."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from pyspark_kafkalog import EmbeddedBroker, committed_files
from tests.spark.conftest import Topics
from tests.support.present import present

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pipelines.md"
TIMEOUT_S = 300


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A folder with the page's two files."""
    pytest.importorskip("grpc", reason="needs the extra connect")
    found = re.findall(r"^```(yaml|python)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    files = dict(found)
    assert sorted(language for language, _ in found) == ["python", "yaml"]
    spec = files["yaml"].replace("/tmp/orders-pipeline", str(tmp_path / "storage"))
    (tmp_path / "spark-pipeline.yml").write_text(spec)
    (tmp_path / "orders.py").write_text(files["python"])
    return tmp_path


def run(pipeline: Path, servers: str) -> None:
    (arguments,) = re.findall(r"^spark-pipelines (.*)$", PAGE.read_text(), re.MULTILINE)
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), *arguments.split()],
        cwd=pipeline,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SERVERS": servers,
            "LAKE": str(pipeline / "lake"),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Run is COMPLETED" in done.stdout + done.stderr


def landed(pipeline: Path) -> list[Any]:
    files = committed_files(pipeline / "lake")
    return sorted(value for file in files for value in pq.read_table(file)["value"].to_pylist())


def written(servers: str, topic: str) -> list[Any]:
    """The values of the one partition of `topic`."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "any", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values = []
    try:
        while (present(message := consumer.poll(TIMEOUT_S))).error() is None:
            values.append(present(message).value())
        return sorted(values)
    finally:
        consumer.close()


def test_each_run_reads_what_is_new_lands_it_and_writes_it_back(pipeline: Path) -> None:
    with EmbeddedBroker() as broker:
        servers = broker.bootstrap_servers
        topics = Topics(servers)
        topics.create_again("orders", partitions=2)
        topics.fill("orders", 3, 2)
        run(pipeline, servers)
        assert landed(pipeline) == [b"0-0", b"0-1", b"0-2", b"1-0", b"1-1"]
        topics.append("orders", [b"new"])
        run(pipeline, servers)
        values = [b"0-0", b"0-1", b"0-2", b"1-0", b"1-1", b"new"]
        assert landed(pipeline) == values
        assert written(servers, "shouted") == sorted(value.upper() for value in values)
