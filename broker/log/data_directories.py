"""DataDirectories: a broker's, and which of them it still has.

Owns: their locks. A directory whose own files (its list of logs, its checkpoints) cannot be used is
lost until the next start, with all logs in it, where other brokers have them, too: the broker goes
on with its other directories. (Kafka: LogDirFailureChannel.) Any thread.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kafka.errors import KafkaStorageError

from broker.log.files import DirectoryLock, Files

_log = logging.getLogger(__name__)

LOCK_FILE = ".lock"


class DataDirectories:
    """In the order in which they are configured."""

    def __init__(
        self, paths: Sequence[Path], files: Files, on_lost: Callable[[], None] | None
    ) -> None:
        """`on_lost`: a directory is, and logs with it. None: nobody else has them, so that what
        cannot be done there is the caller's to know."""
        self._paths = paths
        self._files = files
        self._on_lost = on_lost
        self._lost: dict[Path, OSError] = {}
        self._locks: list[DirectoryLock] = []

    @property
    def live(self) -> list[Path]:
        return [path for path in self._paths if path not in self._lost]

    @property
    def lost(self) -> list[Path]:
        return [*self._lost]

    def is_lost(self, path: Path) -> bool:
        return path in self._lost

    @contextlib.contextmanager
    def using(self, path: Path) -> Iterator[None]:
        """What is done there ends with the first OSError, and so does its use. Raises that where
        nobody else has the logs."""
        try:
            yield
        except OSError as error:
            if self._on_lost is None:
                raise
            if path not in self._lost:
                self._lost[path] = error
                _log.error("log_directory.offline dir=%s reason=%r", path, str(error))
                self._on_lost()

    def check_any_left(self) -> None:
        """Raises the OSError by which the first was lost, where all are."""
        if not self.live:
            raise next(iter(self._lost.values()))

    def claim(self) -> None:
        """Makes those that are missing, and keeps other brokers out. Raises KafkaStorageError where
        one is another's, and OSError."""
        for path in self._paths:
            with self.using(path):
                self._files.make_directory(path)
                self._locks.append(self._lock(path))

    def release(self) -> None:
        while self._locks:
            self._locks.pop().release()

    def _lock(self, path: Path) -> DirectoryLock:
        try:
            return self._files.lock(path / LOCK_FILE)
        except BlockingIOError:
            raise KafkaStorageError(
                f"{path} is in use by another broker: stop it or set another log.dirs"
            ) from None
