"""Shared by all tests: hypothesis profiles (a failure prints the blob that replays it), and Spark
on loopback only, with workers of this environment, whatever else the machine has."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.jvm import SHORT_LIVED, short_lived

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.schedule import Schedule

os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable
# The first is for Spark's JVM, the second for the one that starts it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(short_lived(f"spark-{version('pyspark')}")))
os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(SHORT_LIVED))

# What a shell runs in its background ignores Ctrl-C, and so does all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("dev", max_examples=20, deadline=None, print_blob=True)
settings.register_profile("ci", max_examples=20, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("fuzz", max_examples=5_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

_SLOW = ("spark", "crash", "interop")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Of all that is imported and collected nothing is garbage: it is not looked for there, now or
    later, which would take a fifth of the time that collecting takes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What all targets are tried by, MariaDB is by `make mariadb`.

    Files that wait for Spark, databases and other processes come first: where several processes
    share the tests, none is left alone with such a file at the end."""
    for item in items:
        call = getattr(item, "callspec", None)
        texts = [] if call is None else [each for each in call.params.values() if type(each) is str]
        if "mariadb" in texts:
            item.add_marker("mariadb")
            item.add_marker("long")
    here = Path(__file__).parent
    first = {item.path for item in items if any(map(item.get_closest_marker, _SLOW))}
    folders = {here, here / "pyspark_kafkalog" / "warehouse" / "targets"}
    items.sort(key=lambda item: item.path not in first and item.path.parent not in folders)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> "Schedule | None":
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.schedule import Schedule

    return Schedule(config, log)


@pytest.fixture(autouse=True)
def new_worker() -> Iterator[None]:
    """What tasks of a test keep for the next ones ends with it, as with a Python worker."""
    yield
    if worker := sys.modules.get("pyspark_kafkalog.source.python_worker"):
        worker.close_kept()


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One SparkSession for all tests, in this process."""
    from pyspark.sql import SparkSession

    # Python workers import the package from here, installed or not.
    root = str(Path(__file__).parents[1])
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *inherited])
    session = (
        SparkSession.builder.master("local[2]")
        .appName("kafkalog-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
