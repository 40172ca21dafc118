"""Where else than in one local process: Spark Connect, several executors, a thousand partitions."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pyspark_kafkalog import DefaultSource, EmbeddedBroker

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).with_name("jobs.py")
TIMEOUT_S = 300


@pytest.fixture
def two_partitions() -> Iterator[str]:
    """The address of a broker whose topics have two partitions."""
    with EmbeddedBroker(config={"num.partitions": "2"}) as broker:
        yield broker.bootstrap_servers


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run_jobs(where: str, servers: str, directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(JOBS), where, servers, str(directory)],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """The address of a Spark Connect server in a process of its own."""
    with (directory / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, str(JOBS), "serve"],
            cwd=directory,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    with server:
        assert server.stdin is not None
        assert server.stdout is not None
        words = server.stdout.readline().split()
        assert words, (directory / "server.log").read_text()[-4000:]
        yield f"sc://127.0.0.1:{words[1].decode()}"
        server.stdin.close()


@pytest.mark.long
def test_spark_connect(two_partitions: str, tmp_path: Path) -> None:
    with connect_server(tmp_path) as address:
        run_jobs(address, two_partitions, tmp_path)


@pytest.mark.long
def test_several_executors(two_partitions: str, tmp_path: Path) -> None:
    run_jobs("local-cluster[2,1,1024]", two_partitions, tmp_path)


def test_a_thousand_partitions_are_planned_in_two_seconds() -> None:
    with EmbeddedBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic("wide", 1000, 1)])["wide"].result(60)
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "wide"}
        source = DefaultSource(options)
        # The best of three, since tests may share the machine with others.
        assert min(seconds(plan_batch, source) for _ in range(3)) < 2
        assert min(seconds(plan_stream, source) for _ in range(3)) < 2


def seconds(plan: Callable[[DefaultSource], int], source: DefaultSource) -> float:
    began_s = time.monotonic()
    assert plan(source) in (0, 1000)
    return time.monotonic() - began_s


def plan_batch(source: DefaultSource) -> int:
    return len(source.reader(source.schema()).partitions())


def plan_stream(source: DefaultSource) -> int:
    stream: Any = source.streamReader(source.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert stream.partitions(start, end) == []
    stream.stop()
    return len(end["wide"])
