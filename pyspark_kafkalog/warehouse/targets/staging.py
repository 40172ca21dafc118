"""The place that the tasks of one load write to, as the driver handles it.

Owns the load id, which names the place, and what all targets do with it: check
before a commit that the files are there, with the rows that were reported, and remove those that no
commit names, at once and after long.

Called by the driver. Never decides whether a file is committed: each target does.
"""

import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.warehouse.commit import DataFile, Stage
from pyspark_kafkalog.warehouse.targets.directory_storage import last_change
from pyspark_kafkalog.warehouse.targets.storage import staged_name
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_stage

LOAD_ID = r"\d{8}T\d{6}Z-[0-9a-f]{12}"
_ASIDE = ".discarded"
LOAD_DIRECTORY = re.compile(f"load-{LOAD_ID}")
"""What a load calls its stage in a table."""
_DIRECTORY = re.compile(f"load-{LOAD_ID}(\\{_ASIDE})?")


def new_load_id() -> str:
    """The name of a load's directory: when it began, and what makes it unique."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:12]}"


def staged_path(stage: Stage, name: str) -> str:
    """Where a task of the load writes the file that is going to be called `name`."""
    return os.path.join(stage.path, staged_file(stage, name))


def staged_file(stage: Stage, name: str) -> str:
    """What a file that is going to be called `name` is called in its stage."""
    return staged_name(name) + stage.suffix


def check_staged(stage: Stage, files: Sequence[DataFile], advice: str) -> None:
    """Raises TargetError, which ends in `advice`, unless the driver sees all files whole."""
    staged = open_stage(stage.path)
    sizes = staged.sizes([staged_file(stage, file.name) for file in files])
    for file in files:
        name = staged_file(stage, file.name)
        check_size(staged.path_of(name), file, sizes.get(name), advice)


def sync(stage: Stage) -> None:
    """Makes the names of staged files survive a power failure."""
    open_stage(stage.path).sync()


def check_size(path: str, file: DataFile, size_bytes: int | None, advice: str) -> None:
    """Raises TargetError, which ends in `advice`, unless `file` has the size that it should have:
    `size_bytes` is what the driver sees at `path`, None when it sees nothing."""
    if size_bytes != file.size_bytes:
        raise TargetError(
            f"{path} should have {file.size_bytes} bytes, but the driver "
            f"{'does not see it' if size_bytes is None else f'sees {size_bytes}'}; nothing was "
            f"published. {advice}"
        )


def check_rows(path: str, file: DataFile, rows: int) -> None:
    """Raises TargetError unless the file at `path` has the `rows` that its task reported."""
    if rows != file.records:
        raise TargetError(
            f"{path} has {rows} rows, and its task reported {file.records}; nothing was published. "
            "Run the load again."
        )


def sweep_directories(
    parent: str,
    idle_s: float,
    dry_run: bool,
    named: Callable[[], set[str]],
    fence: Callable[[], None],
) -> list[str]:
    """Removes what dead loads left in their directories `load-<load id>` below `parent`; returns
    the paths. For tables whose files stay where tasks write them.

    `named` gives the files that any commit names, relative to `parent`. A directory of which there
    is none may be that of a loader which sleeps before its commit. So it is put aside first, then
    `fence` makes a commit: a loader that had looked for its files before cannot commit any more, or
    has done so by now, and then the directory is put back. It is too when that fails; what a killed
    sweep put aside, `restore_aside` puts back. Of a directory that commits name, what they do not
    name goes, and then the directory if nothing is left.
    """
    oldest = time.time() - idle_s
    committed = named()
    directories = _directories(committed)
    swept, aside = [], []
    for name in sorted(os.listdir(parent) if os.path.isdir(parent) else []):
        path = os.path.join(parent, name)
        if not _DIRECTORY.fullmatch(name) or last_change(path) >= oldest:
            continue
        if name in directories:
            files = _files_below(path)
            unnamed = [file for file in files if f"{name}/{file}" not in committed]
            swept += [os.path.join(path, file) for file in unnamed]
            swept += [path] if len(unnamed) == len(files) else []
        else:
            aside.append(path.removesuffix(_ASIDE))
    if dry_run:
        return swept + aside
    for path in swept:
        (os.rmdir if os.path.isdir(path) else os.unlink)(path)
    return swept + (_sweep_aside(parent, aside, named, fence) if aside else [])


def _sweep_aside(
    parent: str, paths: Sequence[str], named: Callable[[], set[str]], fence: Callable[[], None]
) -> list[str]:
    for path in paths:
        with suppress(FileNotFoundError):
            os.rename(path, path + _ASIDE)
    try:
        fence()
        committed = _directories(named())
    except Exception:
        for path in paths:
            _put_back(path)
        raise
    swept = []
    for path in paths:
        if os.path.relpath(path, parent) in committed:
            _put_back(path)
        else:
            shutil.rmtree(path + _ASIDE)
            swept.append(path)
    return swept


def restore_aside(parent: str, named: Callable[[], set[str]]) -> None:
    """Puts back the directories of committed loads that a sweep which was killed had put aside.

    `named` is that of `sweep_directories`, and is called only when there is anything aside.
    """
    names = os.listdir(parent) if os.path.isdir(parent) else []
    aside = [name for name in names if _DIRECTORY.fullmatch(name) and name.endswith(_ASIDE)]
    committed = _directories(named()) if aside else set()
    for name in aside:
        if name.removesuffix(_ASIDE) in committed:
            _put_back(os.path.join(parent, name.removesuffix(_ASIDE)))


def _put_back(path: str) -> None:
    # Another one, who opens the target, may have been faster.
    with suppress(FileNotFoundError):
        os.rename(path + _ASIDE, path)


def _directories(names: set[str]) -> set[str]:
    return {name.partition("/")[0] for name in names}


def _files_below(path: str) -> list[str]:
    """Relative paths of all files."""
    return sorted(
        os.path.relpath(os.path.join(directory, name), path)
        for directory, _, names in os.walk(path)
        for name in names
    )


def discard(stage: Stage) -> None:
    """Drops what a load staged that was not committed."""
    open_stage(stage.path).discard()


def remove_all_but(stage: Stage, files: Sequence[DataFile]) -> None:
    """Removes from a committed load's stage what no commit names: files of tasks that ran
    twice, marks of progress. Whatever cannot be removed stays, invisible."""
    open_stage(stage.path).keep_only({staged_file(stage, file.name) for file in files})
