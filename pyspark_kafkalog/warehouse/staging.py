"""The directory that the tasks of one load write to, as the driver handles it.

Owns the load id, which names the directory, and what all targets do with such a directory: check
before a commit that the files are there, and remove those that no commit names.

Called by the driver. Never decides whether a file is committed: each target does.
"""

import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.warehouse.commit import DataFile, Stage


def new_load_id() -> str:
    """The name of a load's directory: when it began, and what makes it unique."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:12]}"


def staged_path(stage: Stage, file: DataFile) -> str:
    """Where a task of the load wrote `file`."""
    return os.path.join(stage.path, file.name + stage.suffix)


def check_staged(stage: Stage, files: Sequence[DataFile], advice: str) -> None:
    """Raises TargetError, which ends in `advice`, unless the driver sees all files whole."""
    for file in files:
        path = staged_path(stage, file)
        try:
            size_bytes: int | None = os.stat(path).st_size
        except FileNotFoundError:
            size_bytes = None
        check_size(path, file, size_bytes, advice)


def check_size(path: str, file: DataFile, size_bytes: int | None, advice: str) -> None:
    """Raises TargetError, which ends in `advice`, unless `file` has the size that it should have:
    `size_bytes` is what the driver sees at `path`, None when it sees nothing."""
    if size_bytes != file.size_bytes:
        raise TargetError(
            f"{path} should have {file.size_bytes} bytes, but the driver "
            f"{'does not see it' if size_bytes is None else f'sees {size_bytes}'}; nothing was "
            f"published. {advice}"
        )


def remove_all_but(stage: Stage, files: Sequence[DataFile]) -> None:
    """Removes from a committed load's directory what no commit names: files of tasks that ran
    twice, marks of progress. Whatever cannot be removed stays, invisible."""
    kept = {file.name + stage.suffix for file in files}
    with suppress(OSError):
        for name in os.listdir(stage.path):
            if name not in kept:
                with suppress(OSError):
                    os.unlink(os.path.join(stage.path, name))
        if not kept:
            os.rmdir(stage.path)
