"""A cluster as child processes: brokers may die, topics stay, and nothing outlives us."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

import pyspark_kafkalog
from pyspark_kafkalog import EmbeddedCluster
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.java import JavaNotFoundError
from tests.pyspark_kafkalog.client.conftest import write
from tests.pyspark_kafkalog.test_embedded import wait_for_end
from tests.support.patience import EVENT_S, wait_until

ROOT = Path(pyspark_kafkalog.__file__).parent.parent
PLACE = TopicPartition("t", 0)


def config(cluster: EmbeddedCluster) -> ClientConfig:
    return ClientConfig.from_options({"bootstrap.servers": cluster.bootstrap_servers})


def end_offset(cluster: EmbeddedCluster) -> int:
    with Cluster(config(cluster)) as client:
        return int(client.list_offsets([PLACE], LATEST)[PLACE].offset)


@pytest.mark.slow
def test_a_broker_may_die_and_come_back_and_topics_outlive_all(tmp_path: Path) -> None:
    short = {"zookeeper.session.timeout.ms": "3000"}
    with EmbeddedCluster(data_dir=tmp_path, config=short) as cluster:
        servers = cluster.bootstrap_servers
        assert len(set(servers.split(","))) == 3
        assert repr(cluster) == f"EmbeddedCluster({servers})"
        with Cluster(config(cluster)) as client:
            admin.create_topic(client, "t", 1)
        write(config(cluster), PLACE, [b"a"])
        for kill in (cluster.kill_broker, cluster.stop_broker):
            kill(1)
            assert cluster.broker_ids == [2, 3]
            write(config(cluster), PLACE, [b"b"])
            cluster.start_broker(1)
            assert cluster.bootstrap_servers == servers
        assert end_offset(cluster) == 3
        with pytest.raises(RuntimeError, match="is running already"):
            cluster.start()
    with pytest.raises(RuntimeError, match="is not running"):
        _ = cluster.bootstrap_servers
    assert repr(cluster) == "EmbeddedCluster(stopped)"
    cluster.stop()
    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        assert end_offset(cluster) == 3


def test_properties_are_handed_on_and_a_temporary_folder_is_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with EmbeddedCluster(1, config={"num.partitions": "4"}) as cluster:
        assert list(tmp_path.iterdir())
        with Cluster(config(cluster)) as client:
            admin.create_topic(client, "t")
            assert client.topics(["t"]) == {"t": [0, 1, 2, 3]}
    assert not list(tmp_path.iterdir())


def test_a_broker_that_is_not_there_is_said_with_those_that_are() -> None:
    cluster = EmbeddedCluster(2)
    for start in (lambda: cluster.start_broker(1), lambda: cluster.zookeeper_connect):
        with pytest.raises(RuntimeError, match="is not running"):
            start()
    with cluster:
        for end in (cluster.kill_broker, cluster.stop_broker):
            with pytest.raises(InvalidOptionError, match=r"No broker 9 .* Running: 1, 2\."):
                end(9)
        with pytest.raises(InvalidOptionError, match="no broker 9: its brokers are 1 to 2"):
            cluster.start_broker(9)
        with pytest.raises(RuntimeError, match="Broker 2 runs already"):
            cluster.start_broker(2)
        cluster.kill_broker(2)
        with pytest.raises(InvalidOptionError, match=r"No broker 2 .* Running: 1\."):
            cluster.kill_broker(2)


def test_what_it_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOptionError, match="one broker or more"):
        EmbeddedCluster(0)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaNotFoundError, match="no java on the PATH"):
        EmbeddedCluster().start()


PARENT = """
import sys
from pyspark_kafkalog import EmbeddedCluster
cluster = EmbeddedCluster(2).start()
print(*(cluster._brokers[each].pid for each in (1, 2)), cluster._data_dir, flush=True)
sys.stdin.read()
"""


@pytest.mark.crash
def test_a_killed_parent_takes_all_and_their_folder_along(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    with parent, parent.stdout, parent.stdin:
        *pids, data_dir = parent.stdout.readline().decode().split()
        assert Path(data_dir).is_dir()
        parent.send_signal(signal.SIGKILL)
        parent.wait(EVENT_S)
        for pid in pids:
            wait_for_end(int(pid))
    wait_until(lambda: not Path(data_dir).exists(), "the folder's end", pause_s=0.1)


@pytest.mark.parametrize("arguments", [[], ["--cluster", "2"]])
def test_the_command_runs_until_it_is_told_to_end(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pyspark_kafkalog.cli", "broker", *arguments]
    with subprocess.Popen(
        [*command, "--override", "num.partitions=3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        servers = process.stdout.readline().decode().strip()
        given = ClientConfig.from_options({"bootstrap.servers": servers})
        with Cluster(given) as client:
            admin.create_topic(client, "t")
            assert client.topics(["t"]) == {"t": [0, 1, 2]}
        process.send_signal(signal.SIGTERM)
        assert process.wait(EVENT_S) == 0
        assert process.stderr.read() == b""
    assert not list(tmp_path.iterdir())


TESTS = """
import pyspark_kafkalog.client.admin as admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig

def replicas(servers):
    with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as client:
        return len(client.brokers())

def test_a_broker(kafka_broker):
    assert replicas(kafka_broker.bootstrap_servers) == 1

def test_a_cluster(kafka_cluster):
    assert replicas(kafka_cluster.bootstrap_servers) == 3
"""


def test_pytest_has_a_broker_and_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "test_job.py").write_text(TESTS)
    began_s = time.monotonic()
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pyspark_kafkalog.testing"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=10 * EVENT_S,
    )
    assert "2 passed" in found.stdout, found.stdout + found.stderr + f"{time.monotonic() - began_s}"
