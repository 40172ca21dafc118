"""Modules in Spark's archives are found compiled, and by another Python as they were."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyspark_kafkalog.cli import main

MODULE = """
def fail():
    raise ValueError("no")  # the line itself
"""


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a home of Spark that has one package of one module."""
    path = tmp_path / "python" / "lib" / "pyspark.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("pyspark/__init__.py", "")
        made.writestr("pyspark/worker.py", MODULE)
        made.writestr("pyspark/tests/test_worker.py", "")
        made.writestr("pyspark/py.typed", "")
    path.chmod(0o640)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return path


def imported(archive: Path | str, statement: str = "print(w.__file__)") -> str:
    """What another process prints that imports the module as Spark's do."""
    done = subprocess.run(
        [sys.executable, "-c", f"import pyspark.worker as w\n{statement}"],
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
    )
    return (done.stdout or done.stderr).strip()


def test_modules_are_imported_compiled(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported(archive) == f"{archive}/pyspark/worker.py"
    assert main(["compile-pyspark"]) == 0
    assert capsys.readouterr().out == f"{archive}: 2 modules compiled\n"
    assert imported(archive) == f"{archive}/pyspark/worker.pyc"
    assert archive.stat().st_mode & 0o777 == 0o640
    assert os.listdir(archive.parent) == ["pyspark.zip"]


def test_py4j_beside_it_is_compiled_too(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    py4j, other = archive.with_name("py4j-0.10.9.9-src.zip"), archive.with_name("other.zip")
    with zipfile.ZipFile(py4j, "w") as made:
        made.writestr("py4j/__init__.py", "")
    other.write_bytes(b"somebody's")
    assert main(["compile-pyspark"]) == 0
    assert capsys.readouterr().out == (
        f"{archive}: 2 modules compiled\n{py4j}: 1 modules compiled\n"
    )
    assert other.read_bytes() == b"somebody's"
    statement = "import py4j\nprint(py4j.__file__)"
    assert imported(f"{archive}:{py4j}", statement) == f"{py4j}/py4j/__init__.pyc"


def test_tracebacks_show_lines_as_before(archive: Path) -> None:
    statement = "import traceback\ntry: w.fail()\nexcept ValueError: traceback.print_exc()"
    before = imported(archive, statement)
    assert "# the line itself" in before
    main(["compile-pyspark"])
    assert imported(archive, statement) == before


def test_a_second_time_changes_nothing(archive: Path) -> None:
    main(["compile-pyspark"])
    names = zipfile.ZipFile(archive).namelist()
    main(["compile-pyspark"])
    assert zipfile.ZipFile(archive).namelist() == names
    assert len(set(names)) == len(names) == 6


def test_another_python_takes_the_sources(archive: Path) -> None:
    main(["compile-pyspark"])
    with zipfile.ZipFile(archive) as compiled:
        contents = {name: compiled.read(name) for name in compiled.namelist()}
    with zipfile.ZipFile(archive, "w") as made:
        for name, data in contents.items():
            made.writestr(name, b"\0\0\r\n" + data[4:] if name.endswith(".pyc") else data)
    assert imported(archive) == f"{archive}/pyspark/worker.py"


def test_no_spark_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert main(["compile-pyspark"]) == 1
    assert capsys.readouterr().err == (
        f"kafkalog: There is no python/lib/pyspark.zip in {tmp_path}: "
        "set SPARK_HOME to where Spark is installed.\n"
    )
