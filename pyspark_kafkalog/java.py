"""Finds the Java that Spark will run on, before anything slow is started.

PySpark 4 needs Java 17 or newer and fails without it only after seconds, in many lines. Standard
library only until Spark is started, so that `python -m pyspark_kafkalog.java` works before anything
is installed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark_kafkalog.errors import KafkalogError

MINIMUM = 17
_STDERR = 2
_DYING_S = 2.0
"""After its connections are closed a process that is killed is there for some milliseconds."""


class JavaNotFoundError(KafkalogError):
    """Java is missing or too old; the message says what to install."""


class JavaDiedError(KafkalogError):
    """The JVM that Spark runs in has ended, in the middle of a load or when it started."""

    def __init__(self) -> None:
        super().__init__(
            "The JVM that Spark runs in has ended: it was killed (by the system, if memory ran "
            "out), or could not start. What was committed is committed, and the same load goes on "
            "from there. `kafkalog load --spark-log FILE` keeps what it says."
        )


_ADVICE = f"Spark needs Java {MINIMUM} or newer: apt-get install openjdk-17-jre-headless"


def find_java() -> str:
    """The Java that Spark will find (JAVA_HOME, else PATH). Raises JavaNotFoundError."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise JavaNotFoundError(f"no java on the PATH. {_ADVICE}")
    return java


def check_java() -> int:
    """The major version of the Java that Spark will find. Raises JavaNotFoundError, in one line."""
    java = find_java()
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        raise JavaNotFoundError(f"{java} cannot be run. {_ADVICE}") from None
    # "17.0.15", or "1.8.0_392" up to Java 8.
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version[1]) < MINIMUM:
        found = version[1] if version else "of unknown version"
        raise JavaNotFoundError(f"{java} is Java {found}. {_ADVICE}")
    return int(version[1])


def start_jvm(settings: Mapping[str, str], log: str | os.PathLike[str] = os.devnull) -> None:
    """Starts the JVM of the SparkSession to be, which has these settings. In the main thread.

    What Spark and its Python workers write to stderr is added to the file `log`: stderr is for
    sentences of ours.
    Ctrl-C counts when it has started, and is a KeyboardInterrupt then: one that cuts the start
    short lets PySpark leave behind a JVM that nobody ends. Raises JavaDiedError.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError

    if "SPARK_REMOTE" in os.environ:
        return  # Spark Connect has its JVM elsewhere
    interrupts: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        with _stderr_into(log):
            SparkContext._ensure_initialized(
                conf=SparkConf(loadDefaults=False).setAll(list(settings.items()))
            )
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise JavaDiedError from error
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupts:
        raise KeyboardInterrupt


@contextmanager
def _stderr_into(path: str | os.PathLike[str]) -> Iterator[None]:
    """Processes that are started meanwhile have the file as their stderr, to the end."""
    try:
        ours = os.dup(_STDERR)
    except OSError:  # closed by who started us
        yield
        return
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), _STDERR)
        yield
    finally:
        os.dup2(ours, _STDERR)
        os.close(ours)


def has_jvm_died() -> bool:
    """Whether the JVM that `start_jvm` started has ended, or is ending."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(_DYING_S)
    except subprocess.TimeoutExpired:
        return False
    return True


if __name__ == "__main__":
    try:
        check_java()
    except JavaNotFoundError as error:
        sys.exit(str(error))
