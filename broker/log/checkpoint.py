"""Checkpoint files: small tables of numbers that a restart begins with.

Apache Kafka's text format, the same for all of them:

    0                       version
    2                       number of lines that follow
    orders 0 1234           one entry a line, fields separated by one space

`recovery-point-offset-checkpoint`, `replication-offset-checkpoint` (high watermarks),
`log-start-offset-checkpoint` and `cleaner-offset-checkpoint` lie in a data directory and hold
(topic, partition, offset); `leader-epoch-checkpoint` lies in a log's own and holds (epoch, start
offset). Each is written whole: to a temporary file, synced, renamed. A missing or damaged one is no
error: whoever reads it starts from less knowledge, which is always safe, and the damage is logged
(an empty file is none: Kafka creates it so). One thread at a time for each file; the caller sees to
it.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from kafka.structs import TopicPartition

from broker.log.files import Files

_log = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
_VERSION = "0"


class LogCheckpoint(NamedTuple):
    """What a data directory's files know of one of its logs before that is opened."""

    recovery_point: int = 0
    log_start_offset: int = 0
    first_dirty_offset: int = 0
    was_clean: bool = False
    """Whether it was closed: what is not on disk is known to be nothing."""


UNKNOWN: Final = LogCheckpoint()
CLEAN: Final = LogCheckpoint(was_clean=True)
"""Of a new log, too."""


class CheckpointFile:
    """Rows of fields in one file."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files

    def read(self, field_count: int) -> list[list[str]] | None:
        """The rows; None when the file is missing or damaged."""
        try:
            text = self._files.read(self.path).decode("utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            text = "?"
        rows = _parse(text, field_count)
        if rows is None and text:
            _log.warning("checkpoint.damaged path=%s action=ignored", self.path)
        return rows

    def write(self, rows: Iterable[Iterable[object]], *, sync: bool = True) -> None:
        lines = [" ".join(str(field) for field in row) for row in rows]
        text = "\n".join([_VERSION, str(len(lines)), *lines, ""])
        self._files.replace(self.path, text.encode(), sync=sync)


class OffsetCheckpointFile:
    """Topic partition to offset."""

    def __init__(self, path: Path, files: Files) -> None:
        self._file = CheckpointFile(path, files)

    def read(self) -> dict[TopicPartition, int]:
        """Empty when the file is missing or damaged."""
        offsets = {}
        for topic, partition, offset in self._file.read(3) or ():
            if partition.isdigit() and offset.isdigit():
                offsets[TopicPartition(topic, int(partition))] = int(offset)
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._file.write(
            (topic_partition.topic, topic_partition.partition, offset)
            for topic_partition, offset in sorted(offsets.items())
        )


def _parse(text: str, field_count: int) -> list[list[str]] | None:
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != _VERSION or lines[1] != str(len(lines) - 2):
        return None
    rows = [line.split(" ") for line in lines[2:]]
    if not text.endswith("\n") or any(len(row) != field_count for row in rows):
        return None
    return rows
