"""Ctrl-C while `kafkalog load` works: nothing of it is left, and nothing is said in traces."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.spark.conftest import Topics
from tests.support.patience import wait_until

INTERRUPTED = 130
SLOW = """
import time
from pathlib import Path

import pyarrow as pa

def slowly(rows: pa.RecordBatch) -> pa.RecordBatch:
    if rows.num_rows:
        Path("begun").touch()
        time.sleep(60)
    return rows
"""


@pytest.fixture
def command(
    servers: str, topics: Topics, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """command(stderr) -> the load in a session of its own, as a terminal gives it one."""
    topic = topics.create()
    topics.fill(topic, 3)
    started = []

    def start(said: Path, *more: str) -> subprocess.Popen[bytes]:
        given = ["--bootstrap-servers", servers, "--name", "nightly", "--master", "local[1]"]
        given += ["--to", f"parquet:{tmp_path / 'table'}", *more]
        with said.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pyspark_kafkalog.cli", "load", topic, *given],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": os.getcwd()},
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if members := processes_of(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not members


def test_an_interrupt_while_the_jvm_starts_leaves_nothing_behind(
    command: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    said = tmp_path / "said"
    process = command(said)
    wait_until(lambda: "java" in processes_of(process.pid).values(), "the JVM")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == INTERRUPTED
    wait_until(lambda: not processes_of(process.pid), lambda: processes_of(process.pid))
    assert "Exception" not in said.read_text()
    assert "Traceback" not in said.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["it starts", "a task runs"])
def test_a_jvm_that_is_killed_is_a_sentence(
    command: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, when: str
) -> None:
    said = tmp_path / "said"
    (tmp_path / "slow.py").write_text(SLOW)
    process = command(said, "--transform", "slow:slowly")
    if when == "a task runs":
        wait_until((tmp_path / "begun").exists, said.read_text)
    wait_until(lambda: jvm_of(process.pid), "the JVM")
    os.kill(jvm_of(process.pid), signal.SIGKILL)
    assert process.wait(60) == 1
    wait_until(lambda: not processes_of(process.pid), lambda: processes_of(process.pid))
    sentences = [line for line in said.read_text().splitlines() if line.startswith("kafkalog: ")]
    assert len(sentences) == 1
    assert "The JVM that Spark runs in has ended" in sentences[0]
    assert "Traceback" not in said.read_text()


def jvm_of(session: int) -> int:
    """That of Spark itself, and neither what asks its version nor its launcher; 0 where none is."""
    for pid, name in processes_of(session).items():
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if name == "java" and b"deploy.SparkSubmit" in line and b"launcher.Main" not in line:
                return pid
    return 0


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
