"""README is a contract: its Python snippets run as one program, its commands in a shell."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import pyspark_kafkalog

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TIMEOUT_S = 600


def blocks(language):
    found = re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert found, f"README has no {language} blocks any more"
    return found


def environment(**more):
    """The scripts of this interpreter's environment come first on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **more}


@pytest.mark.spark
def test_the_python_snippets_run_as_one_program(tmp_path):
    program = tmp_path / "readme.py"
    program.write_text("\n".join(blocks("python")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.spark
@pytest.mark.slow
def test_the_commands_run_in_a_shell(tmp_path):
    # One command changes Spark's home: that is a copy, in links.
    home = tmp_path / "spark"
    shutil.copytree(Path(pyspark.__file__).parent, home, copy_function=os.symlink)
    archive = home / "python" / "lib" / "pyspark.zip"
    with pyspark_kafkalog.EmbeddedBroker() as broker:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(blocks("bash"))],
            cwd=tmp_path,
            env=environment(SERVERS=broker.bootstrap_servers, SPARK_HOME=str(home)),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "/home" in done.stdout
    assert not archive.is_symlink()
    (py4j,) = archive.parent.glob("py4j-*.zip")
    assert not py4j.is_symlink()
    assert len(list((tmp_path / "warehouse").glob("part-clicks-*.parquet"))) == 1
