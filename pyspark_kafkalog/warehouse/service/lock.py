"""The lock by which one service at a time runs the loads of a file: an flock, which ends with its
process however that ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_kafkalog.errors import KafkalogError


def lock_path(path: Path) -> Path:
    """Beside the file, whatever leads to that."""
    real = Path(os.path.realpath(path))
    return real.with_name(f".{real.name}.lock")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock in the body; raises KafkalogError where another process does, OSError where
    the file cannot be made."""
    # Not truncated: it says who has it.
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = file.read(20).strip()
            raise KafkalogError(
                f"Another kafkalog serve{f' (process {who})' if who else ''} runs these loads: it "
                f"holds {path}."
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
