from pathlib import Path

import pytest

from tests.broker.log.batches import NOW_MS
from tests.broker.log.memory_files import MemoryFiles


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def directory(files: MemoryFiles) -> Path:
    path = Path("/data/orders-0")
    files.make_directory(path)
    return path
