"""Ctrl-C while `kafkalog load` works: nothing of it is left, and nothing is said in traces."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import Topics
from tests.support.patience import wait_until

INTERRUPTED = 130


@pytest.fixture
def command(servers: str, topics: Topics, tmp_path: Path):
    """command(stderr) -> the load in a session of its own, as a terminal gives it one."""
    topic = topics.create()
    topics.fill(topic, 3)
    started = []

    def start(said: Path) -> subprocess.Popen[bytes]:
        given = ["--bootstrap-servers", servers, "--name", "nightly", "--master", "local[1]"]
        given += ["--to", f"parquet:{tmp_path / 'table'}"]
        with said.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pyspark_kafkalog.cli", "load", topic, *given],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if members := processes_of(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not members


def test_an_interrupt_while_the_jvm_starts_leaves_nothing_behind(command, tmp_path):
    said = tmp_path / "said"
    process = command(said)
    wait_until(lambda: "java" in processes_of(process.pid).values(), "the JVM")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == INTERRUPTED
    wait_until(lambda: not processes_of(process.pid), lambda: processes_of(process.pid))
    assert "Exception" not in said.read_text()
    assert "Traceback" not in said.read_text()


def processes_of(session: int) -> dict[int, str]:
    """The name of each process of the session that has not ended."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            if os.getsid(int(pid)) == session:
                name, _, rest = stat.partition("(")[2].rpartition(")")
                if rest.split()[0] != "Z":
                    found[int(pid)] = name
        except (OSError, IndexError):
            continue
    return found
