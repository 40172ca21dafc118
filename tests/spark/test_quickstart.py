"""`kafkalog quickstart` as a user meets it: it works, and says in one line why it cannot."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pyspark_kafkalog.quickstart import flight_records, mean_delays, read_flights

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300


def quickstart(
    *arguments: str | Path, code: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own, after `code`."""
    program = f"{code}\nimport sys\nfrom pyspark_kafkalog.cli import main\nsys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, "quickstart", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("kafkalog: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.slow
@pytest.mark.spark
def test_every_step_runs_and_agrees_with_the_source(tmp_path: Path) -> None:
    done = quickstart("--dir", tmp_path / "new")
    assert (done.returncode, done.stderr) == (0, "")
    assert "WARN" in (tmp_path / "new" / "spark.log").read_text()
    rows = dict(re.findall(r"│ ([a-z ]+?) +│ +([\d,]+) │", done.stdout))
    assert rows == {
        "produced": "336,776",
        "read": "336,776",
        "streamed": "336,776",
        "landed": "336,776",
        "landed again": "0",
        "written back": "16",
    }
    assert re.search(r"│ EV +│ +54,173 │ +15\.8 │", done.stdout)
    assert pq.read_table(tmp_path / "new" / "warehouse").num_rows == 336_776


@pytest.mark.spark
@pytest.mark.long
def test_a_number_that_differs_from_the_source_fails(tmp_path: Path) -> None:
    wrong = (
        "import pyspark_kafkalog.quickstart as q\n"
        "right = q.mean_delays\n"
        "q.mean_delays = lambda flights: right(flights) | {'UA': (58666, 3.5)}\n"
    )
    done = quickstart("--dir", tmp_path / "new", code=wrong)
    assert "flights by carrier, read" in error_of(done)


def test_a_busy_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in error_of(quickstart("--port", port, "--dir", tmp_path / "new"))


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = quickstart("--dir", tmp_path / "file" / "folder")
    assert f"the folder {tmp_path / 'file' / 'folder'} cannot be made" in error_of(done)


def test_a_folder_in_use_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    assert "is not empty; name another with --dir" in error_of(quickstart("--dir", tmp_path))


def test_a_missing_java_is_one_line(tmp_path: Path) -> None:
    done = quickstart("--dir", tmp_path / "new", JAVA_HOME=str(tmp_path / "no-java"))
    assert "Spark needs Java 17 or newer" in error_of(done)


def test_the_records_are_the_flights() -> None:
    flights = read_flights().slice(0, 3)
    (records,) = flight_records(flights)
    first = records.to_pylist()[0]
    assert first["key"] == b"UA"
    assert b'"carrier": "UA"' in first["value"]
    assert b'"time_hour": "2013-01-01T10:00:00+00:00"' in first["value"]
    assert first["timestamp"].isoformat() == "2013-01-01T10:15:00+00:00"
    assert mean_delays(flights) == {"UA": (2, 15.5), "AA": (1, 33.0)}
