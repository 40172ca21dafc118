"""What users install, in environments of their own: Spark finds the formats from any folder.

Dependencies are those of the environment that runs the tests, whose own install stays out of sight.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETUP = (ROOT / "setup.py").read_text()
JOB = ROOT / "tests/pyspark_kafkalog/unactivated_job.py"
SOURCES = ("pyspark_kafkalog", "broker")
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")


def _clean_environment(folder: Path, **more: str) -> dict[str, str]:
    """As a cron job has it: nothing activated, and a python3 that knows nothing of the package."""
    (folder / "python3").write_text("#!/bin/sh\nexit 1\n")
    (folder / "python3").chmod(0o755)
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("PYSPARK_", "PYTHONPATH", "VIRTUAL_ENV"))
    }
    return kept | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"} | more


def _run(*command: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=_clean_environment(cwd, **environment),
        text=True,
        capture_output=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's sources alone, nothing built."""
    tree = tmp_path_factory.mktemp("tree") / "pyspark-kafkalog"
    tree.mkdir()
    for name in SOURCES:
        built = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, tree / name, ignore=built)
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    return tree


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A fresh environment's Python."""
    _run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = Path(_run(python, "-c", show, cwd=tmp_path).strip())
    (purelib / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


def _install(python: Path, what: object, tmp_path: Path, *how: str, **environment: str) -> None:
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    # A newer setuptools than a fresh environment's own is among the dependencies.
    built = {"PYTHONPATH": sysconfig.get_path("purelib")} | environment
    _run(python, "-m", "pip", "install", *options, *how, what, cwd=tmp_path, **built)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "order", ["import first", pytest.param("session first", marks=pytest.mark.long)]
)
def test_an_editable_install(tree, python, tmp_path, order):
    _install(python, tree, tmp_path, "-e", KAFKALOG_EXT="skip")
    assert _run(python, JOB, order, cwd=tmp_path).endswith("read 10, loaded 10\n")


@pytest.mark.spark
@pytest.mark.slow
def test_a_wheel_and_what_it_compiles(tree, python, tmp_path):
    dist = tmp_path / "dist"
    build = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    _run(*build, "-w", dist, tree, cwd=tmp_path, KAFKALOG_EXT="require")
    (wheel,) = dist.glob("*.whl")
    named = re.findall(r'^    "((?:pyspark_kafkalog|broker)\.[\w.]+)",$', SETUP, re.MULTILINE)
    names = [name.partition(".")[0] for name in zipfile.ZipFile(wheel).namelist() if ".so" in name]
    compiled = {name.replace("/", ".") for name in names}
    assert compiled == {*named, "pyspark_kafkalog.compiled__mypyc"}
    _install(python, wheel, tmp_path)
    assert _run(python, JOB, "import first", cwd=tmp_path).endswith("read 10, loaded 10\n")
    broker = ("-m", "broker", "--listen", "127.0.0.1:0", "--ephemeral", "--exit-with-parent")
    # Its stdin is closed at once, so that it ends as soon as it has begun.
    started = subprocess.run(
        [str(python), *broker],
        input=b"",
        cwd=tmp_path,
        env=_clean_environment(tmp_path),
        capture_output=True,
        timeout=60,
    )
    assert b"compiled=true" in started.stderr


def test_what_compiles_in_place_is_what_pip_builds_with():
    project = (ROOT / "pyproject.toml").read_text()
    (declared,) = re.findall(r"^requires = (\[.*\])", project, re.MULTILINE)
    (in_place,) = re.findall(r"^BUILD = (\[.*\])", SETUP, re.MULTILINE)
    assert declared == in_place
