"""What an import does for Spark: jobs that run in no activated environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOW = "import os, sys, pyspark_kafkalog; print(os.environ.get('PYSPARK_PYTHON'))"
JOB = Path(__file__).with_name("unactivated_job.py")


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """A folder for the PATH whose python3 is none that knows the package."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "python3").write_text("#!/bin/sh\necho this is another Python >&2\nexit 1\n")
    (folder / "python3").chmod(0o755)
    return folder


def run(*arguments: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python in another folder, without what the tests' own environment says."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK_")}
    inherited = kept | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments],
        env=inherited | environment,
        cwd=path,
        text=True,
        capture_output=True,
        timeout=300,
    )


def test_workers_get_this_python_where_nobody_chose_one(other_python: Path) -> None:
    assert run("-c", SHOW, path=other_python).stdout == f"{sys.executable}\n"


def test_a_python_that_was_chosen_stays(other_python: Path) -> None:
    told = run("-c", SHOW, path=other_python, PYSPARK_PYTHON="python3.99")
    assert told.stdout == "python3.99\n"
    # By spark-submit, whose JVM has chosen already.
    assert run("-c", SHOW, path=other_python, PYSPARK_GATEWAY_PORT="1").stdout == "None\n"


def test_python3_stays_where_it_is_this_one() -> None:
    """A cluster's executors have a python3, and perhaps not this path."""
    assert run("-c", SHOW, path=Path(sys.executable).parent).stdout == "None\n"


def test_the_import_brings_neither_spark_nor_arrow(other_python: Path) -> None:
    heavy = "{'pyspark', 'pyarrow', 'kafka', 'logging', 'subprocess'}"
    code = f"import sys, pyspark_kafkalog; print(sorted({heavy} & sys.modules.keys()))"
    assert run("-c", code, path=other_python).stdout == "[]\n"


def test_an_install_that_spark_cannot_see_is_told(other_python: Path) -> None:
    """Found by an import hook, as setuptools' own editable finder is one."""
    code = (
        "import importlib.util, sys\n"
        f"root = {str(ROOT)!r}\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pyspark_kafkalog':\n"
        "            file = f'{root}/pyspark_kafkalog/__init__.py'\n"
        "            return importlib.util.spec_from_file_location(name, file)\n"
        "sys.path.remove(root)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "import pyspark_kafkalog\n"
    )
    told = run("-c", code, path=other_python)
    assert told.returncode == 0
    assert told.stderr.count("\n") == 1
    assert "editable_mode=compat" in told.stderr


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    "order", [pytest.param("import first", marks=pytest.mark.long), "session first"]
)
def test_a_job_in_no_activated_environment_reads_and_loads(other_python: Path, order: str) -> None:
    ran = run(str(JOB), order, path=other_python)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.splitlines()[-1] == "read 10, loaded 10"
