"""A missing or old Java is one clear line, whatever `java` is."""

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_kafkalog.java import JavaNotFoundError, check_java


def fake_java(folder: Path, answer: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{answer}\n")
    java.chmod(0o755)
    return folder


def test_the_java_of_this_machine_is_new_enough() -> None:
    assert check_java() >= 17


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is Java 11. Spark needs Java 17"),
        ("echo 'java version \"1.8.0_392\"' >&2", "is Java 8. Spark needs Java 17"),
        ("echo nonsense", "of unknown version. Spark needs Java 17"),
        ("exit 1", "of unknown version. Spark needs Java 17"),
    ],
)
def test_an_old_or_strange_java_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, said: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, answer)))
    with pytest.raises(JavaNotFoundError, match=said):
        check_java()


def test_a_newer_java_is_welcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path, "echo 'openjdk version \"25\" 2025-09-16' >&2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert check_java() == 25


def test_no_java_is_one_line_and_a_failing_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_kafkalog.java"],
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "no java on the PATH. Spark needs Java 17 or newer: apt-get install openjdk-17-jre-headless"
    ]
