"""The broker as a child process: it starts fast, keeps what it should, and never outlives us."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

import pyspark_kafkalog
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import BrokerStartError
from tests.pyspark_kafkalog.client.conftest import write
from tests.support.patience import BUSY_S, EVENT_S

ROOT = Path(pyspark_kafkalog.__file__).parent.parent


def config(broker: EmbeddedBroker) -> ClientConfig:
    return ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers})


def wait_for_end(pid: int) -> None:
    """Returns when a process that is not our child is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], EVENT_S)[0], f"process {pid} is still there"
    finally:
        os.close(descriptor)


def test_a_property_that_no_broker_has_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker(config={"num.partition": "2", "xyz": "1", "num.partitions": "2"}):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        "No broker has a property num.partition: write num.partitions?",
        "No broker has a property xyz.",
    ]


def test_it_starts_serves_and_leaves_nothing_behind() -> None:
    began = time.monotonic()
    with pyspark_kafkalog.EmbeddedBroker() as broker:
        assert time.monotonic() - began < 5 + BUSY_S
        data_dir, pid = broker.data_dir, broker.pid
        assert data_dir is not None
        assert broker.bootstrap_servers.startswith("127.0.0.1:")
        assert repr(broker) == f"EmbeddedBroker({broker.bootstrap_servers})"
        with Cluster(config(broker)) as cluster:
            admin.create_topic(cluster, "t")
        assert any(data_dir.iterdir())
    assert not data_dir.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(RuntimeError, match="is not running"):
        _ = broker.bootstrap_servers
    assert repr(broker) == "EmbeddedBroker(stopped)"
    broker.stop()


def test_a_given_folder_keeps_its_records(tmp_path: Path) -> None:
    data_dir = tmp_path / "new" / "data"
    topic_partition = TopicPartition("t", 0)
    with EmbeddedBroker(data_dir) as broker:
        with Cluster(config(broker)) as cluster:
            admin.create_topic(cluster, "t", 1)
        write(config(broker), topic_partition, [b"a", b"b"])
    assert data_dir.is_dir()
    with EmbeddedBroker(str(data_dir)) as broker, Cluster(config(broker)) as cluster:
        assert cluster.list_offsets([topic_partition], LATEST)[topic_partition].offset == 2


def test_broker_properties_and_port_are_handed_on() -> None:
    with EmbeddedBroker(config={"num.partitions": "3"}) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with Cluster(config(broker)) as cluster:
            admin.create_topic(cluster, "t")
            assert cluster.topics(["t"]) == {"t": [0, 1, 2]}
    broker = EmbeddedBroker(port=port).start()
    assert broker.bootstrap_servers == f"127.0.0.1:{port}"
    with pytest.raises(RuntimeError, match="is running already"):
        broker.start()
    broker.stop()


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = EmbeddedBroker(config={"num.partitions": "many"})
    with pytest.raises(BrokerStartError, match=r"did not start: .*num\.partitions"):
        broker.start()
    assert broker.data_dir is None
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        EmbeddedBroker(tmp_path / "file").start()


def test_a_port_in_use_says_so() -> None:
    with EmbeddedBroker() as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with pytest.raises(BrokerStartError, match=f"(?i){port}.*in use"):
            EmbeddedBroker(port=port).start()


PARENT = """
import sys
from pyspark_kafkalog import EmbeddedBroker
broker = EmbeddedBroker().start()
print(broker.pid, broker.data_dir, flush=True)
sys.stdin.read()
"""


@pytest.mark.crash
def test_a_killed_parent_takes_the_broker_and_its_folder_along(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    with parent, parent.stdout, parent.stdin:
        pid, data_dir = parent.stdout.readline().decode().split()
        assert Path(data_dir).is_dir()
        parent.send_signal(signal.SIGKILL)
        parent.wait(EVENT_S)
        wait_for_end(int(pid))
    assert not Path(data_dir).exists()


def test_the_broker_is_found_from_any_folder_and_not_mistaken(tmp_path: Path) -> None:
    """A relative PYTHONPATH still counts, and a module of the user's is not taken for ours."""
    (tmp_path / "broker.py").write_text("raise SystemExit('the wrong broker')")
    script = (
        "from pyspark_kafkalog import EmbeddedBroker\n"
        "with EmbeddedBroker() as broker: print(broker.bootstrap_servers)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.path.relpath(ROOT, tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert found.stdout.startswith("127.0.0.1:")


def test_a_broker_that_was_killed_leaves_nothing_behind_either() -> None:
    broker = EmbeddedBroker().start()
    folder = broker.data_dir
    assert folder is not None
    os.kill(broker.pid, signal.SIGKILL)
    broker.stop()
    assert not folder.exists()


def test_relative_places_of_modules_mean_what_they_mean_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker runs in its own folder."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text(
        f"open({str(tmp_path / 'found')!r}, 'w').close()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["mine", str(ROOT)]))
    with EmbeddedBroker():
        assert (tmp_path / "found").exists()
