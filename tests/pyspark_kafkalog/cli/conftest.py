"""The command `kafkalog` against a real broker.

`kafkalog` runs it in this process, since Python and its libraries take a second to start; what
tests tails, signals and pipes starts processes of `command_line`.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pyspark_kafkalog
from pyspark_kafkalog.cli import main
from pyspark_kafkalog.embedded import EmbeddedBroker
from tests.support.patience import EVENT_S

ROOT = Path(pyspark_kafkalog.__file__).parent.parent

_numbers = count()


class Done(NamedTuple):
    """What a process said before it ended."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Of --format json."""
        assert (self.code, self.err) == (0, "")
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def lines(self) -> list[str]:
        assert (self.code, self.err) == (0, "")
        return self.out.splitlines()


Kafkalog = Callable[..., Done]


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pyspark_kafkalog.cli", *arguments]


def environment(servers: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "KAFKALOG_BOOTSTRAP_SERVERS": servers}


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def kafkalog(
    servers: str,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Kafkalog:
    """kafkalog("topics", "list", stdin=b"") -> what it did."""
    monkeypatch.setenv("KAFKALOG_BOOTSTRAP_SERVERS", servers)
    monkeypatch.setattr("pyspark_kafkalog.client.cluster._STALE_METADATA_MS", 300)
    path = tmp_path / "stdin"

    def run(*arguments: str, stdin: bytes = b"") -> Done:
        path.write_bytes(stdin)
        capfdbinary.readouterr()
        with path.open("rb") as file:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
            code = main(arguments)
        sys.stdout.flush()
        said = capfdbinary.readouterr()
        return Done(code, said.out.decode(errors="replace"), said.err.decode())

    return run


@pytest.fixture
def kcat(servers: str) -> Callable[..., str]:
    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["kcat", "-b", servers, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=EVENT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def new_topic(kafkalog: Kafkalog) -> Callable[..., str]:
    """Creates a topic and returns its name."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"topic-{next(_numbers)}"
        given = [f"--config={key.replace('_', '.')}={value}" for key, value in configs.items()]
        made = kafkalog("topics", "create", name, f"--partitions={partitions}", "-q", *given)
        assert made == (0, "", "")
        return name

    return create
