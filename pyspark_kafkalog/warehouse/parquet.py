"""A Parquet directory as a load target: exactly-once without a table format.

    TARGET/part-orders-0-0-5000-<attempt>-0.parquet      committed files: all that a reader sees
    TARGET/_kafkalog/commits/00000000000000000007.json the commits (commit.py), newest = the truth
    TARGET/_kafkalog/staging/<load id>/*.staged        files of loads that are not committed yet

A load writes and syncs its files under staging, publishes ONE commit file (the commit point), then
renames the files into TARGET: it rolls the commit forward. A loader killed in between leaves a
commit to be rolled forward, which whoever opens the target next does first. So:
- Only the newest commit can be unfinished: every loader rolls it forward before it publishes.
- A staging directory is discarded when its commit is in place, so one that is gone means "done".
- Readers skip `_kafkalog` (the underscore, for Spark and Arrow) and `*.staged` (a glob such as
  `**/*.parquet`), so they never see an uncommitted file. Between commit point and rename they see
  fewer: for milliseconds, or after a kill until the next load. `committed_files` is exact always.
- Staging directories of dead loads are swept, not by age alone: a commit names the idle ones as
  abandoned and rolling it forward deletes them, while every loader checks that its own files are
  still there after it has rolled forward the commit that it is going to follow. So a loader that
  slept for days finds that it cannot commit; it never publishes files that somebody deleted.

Needs hard links, atomic rename, and the same path on driver and executors (local or mounted).
Object stores are refused (target.py): they have no rename, so a commit there would have to be a
conditional put (If-None-Match) of the commit file, and what readers see that file's list.
Called by the driver, from any thread or process, any number of loaders at a time. Never imports
Spark or Arrow, never touches files that it did not publish.
"""

import errno
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import LoadConflictError, TargetError
from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    Commit,
    CommitLog,
    DataFile,
    Stage,
    check_unmoved,
    next_commit,
    sync_directory,
)
from pyspark_kafkalog.warehouse.staging import check_staged, make_directory, new_load_id

if TYPE_CHECKING:
    import pyarrow as pa

STAGED_SUFFIX = ".staged"
# How long nothing in a staging directory may change until another loader may declare it abandoned.
# A task touches its directory with every row group; the age decides who is disturbed, not safety.
ABANDONED_AFTER_S = 24 * 60 * 60

_DISCARDED_SUFFIX = ".discarded"
_SWEPT = (
    "The target has to be on a file system that the driver and all executors share. If it is, this "
    f"load was idle for more than {ABANDONED_AFTER_S // 3600} hours and another load cleaned up "
    "after it: run it again."
)


class ParquetTarget:
    """The target at `path`, an absolute path. See target.Target for the promises."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._commits_path = os.path.join(path, "_kafkalog", "commits")
        self._staging_path = os.path.join(path, "_kafkalog", "staging")
        self._log = CommitLog(self._commits_path)

    def __repr__(self) -> str:
        return f"ParquetTarget({self.path!r})"

    def __str__(self) -> str:
        return f"parquet:{self.path}"

    def last_offsets(self, name: str, read_only: bool = False) -> Offsets:
        with _explained(f"open the load target {self.path}"):
            if os.path.exists(self.path) and not os.path.isdir(self.path):
                raise TargetError(f"the load target {self.path} is a file: name a directory")
            # Listed first: a rival's first files come into sight only after its commit.
            visible = _visible_names(self.path)
            newest = self._log.newest() if read_only else self._settle()
            if newest is None and visible:
                raise TargetError(
                    f"the load target {self.path} holds files of others ({visible[0]}): name a new "
                    "or empty directory, since readers would take them for what was loaded"
                )
            return dict(newest.offsets.get(name, {})) if newest else {}

    def stage(self, schema: "pa.Schema") -> Stage:
        load_id = new_load_id()
        path = self._stage_path(load_id)
        with _explained(f"write to the load target {self.path}"):
            self._check_columns(self._log.newest(), schema)
            make_directory(self._commits_path)
            make_directory(path)
            # Another loader, killed since, may have made these and not synced them.
            sync_directory(os.path.dirname(self._commits_path))
            sync_directory(self.path)
            try:
                _check_links(path)
            except BaseException:
                self._discard(load_id)
                raise
        return Stage(load_id, path, schema, STAGED_SUFFIX)

    def commit(
        self,
        stage: Stage,
        name: str,
        planned_from: Offsets,
        ranges: Sequence[OffsetRange],
        files: Sequence[DataFile],
    ) -> Commit:
        with _explained(
            f"commit to the load target {self.path} (to run the load again is safe: it goes on "
            "from the newest commit, whether that is this one or not)"
        ):
            sync_directory(stage.path)
            while True:
                newest = self._settle()
                if newest is not None:
                    self._check_unmoved(newest, stage, name, planned_from, ranges)
                self._check_columns(newest, stage.schema)
                check_staged(stage, files, _SWEPT)
                commit = next_commit(
                    newest,
                    name,
                    stage.load_id,
                    ranges,
                    files,
                    _types(stage.schema),
                    self._idle_stages(stage),
                )
                if self._log.publish(commit, stage.path):
                    break
        with _explained(
            f"move the files of commit {commit.commit_id} into {self.path}: they ARE committed, "
            "and the next load into this target, of any name, moves them"
        ):
            self._roll_forward(commit)
        return commit

    def discard(self, stage: Stage) -> None:
        self._discard(stage.load_id)

    def committed_files(self) -> list[str]:
        """Paths of all committed files, oldest commit first, wherever each of them is now."""
        with _explained(f"read the commits of {self.path}"):
            return [self._where(commit, file) for commit in self._log for file in commit.files]

    def _settle(self) -> Commit | None:
        """The newest commit, rolled forward."""
        newest = self._log.newest()
        if newest is not None:
            self._roll_forward(newest)
        return newest

    def _roll_forward(self, commit: Commit) -> None:
        """Puts the commit's files in place. Any number of processes may do so at once."""
        if not os.path.isdir(self._stage_path(commit.load_id)):
            return
        self._log.sync()
        for load_id in commit.abandoned:
            self._discard(load_id)
        for file in commit.files:
            self._put_in_place(commit, file)
        sync_directory(self.path)
        self._discard(commit.load_id)

    def _put_in_place(self, commit: Commit, file: DataFile) -> None:
        final = os.path.join(self.path, file.name)
        try:
            os.rename(self._staged(commit.load_id, file), final)
        except FileNotFoundError:
            if not os.path.exists(final):
                raise TargetError(
                    f"{final}, which commit {commit.commit_id} published, is neither there nor in "
                    f"{self._stage_path(commit.load_id)}. Restore it; if it was deleted on "
                    "purpose, delete that staging directory too and load again."
                ) from None

    def _check_unmoved(
        self,
        newest: Commit,
        stage: Stage,
        name: str,
        planned_from: Offsets,
        ranges: Sequence[OffsetRange],
    ) -> None:
        try:
            check_unmoved(name, self.path, newest.offsets.get(name, {}), planned_from, ranges)
        except LoadConflictError:
            self._discard(stage.load_id)
            raise

    def _check_columns(self, newest: Commit | None, schema: "pa.Schema") -> None:
        """Raises TargetError for a column that committed files have with another type."""
        there = newest.columns if newest else {}
        for name, kind in _types(schema).items():
            if there.get(name, kind) != kind:
                raise TargetError(
                    f"the files in {self.path} have a column {name} of type {there[name]}, not "
                    f"{kind}, so readers could not read both: name another directory"
                )

    def _idle_stages(self, own: Stage) -> list[str]:
        """Load ids of staging directories in which nothing has happened for a long time."""
        oldest = time.time() - ABANDONED_AFTER_S
        idle = []
        for load_id in sorted(os.listdir(self._staging_path)):
            path = self._stage_path(load_id)
            if load_id.endswith(_DISCARDED_SUFFIX):
                shutil.rmtree(path, ignore_errors=True)
            elif load_id != own.load_id and _last_change(path) < oldest:
                idle.append(load_id)
        return idle

    def _discard(self, load_id: str) -> None:
        """Removes a staging directory in one step: to the eyes of all others it is gone."""
        path = self._stage_path(load_id)
        with suppress(FileNotFoundError):
            os.rename(path, path + _DISCARDED_SUFFIX)
        shutil.rmtree(path + _DISCARDED_SUFFIX, ignore_errors=True)

    def _where(self, commit: Commit, file: DataFile) -> str:
        staged = self._staged(commit.load_id, file)
        return staged if os.path.exists(staged) else os.path.join(self.path, file.name)

    def _staged(self, load_id: str, file: DataFile) -> str:
        return os.path.join(self._stage_path(load_id), file.name + STAGED_SUFFIX)

    def _stage_path(self, load_id: str) -> str:
        return os.path.join(self._staging_path, load_id)


def committed_files(path: str | os.PathLike[str]) -> list[str]:
    """The files that the commits of the target directory `path` published: exact at any instant.

    Oldest commit first, absolute paths; changes nothing. A plain read of the directory gives the
    same rows, except between a commit and the renames that follow it (milliseconds, or after a
    crash until the next load), when it gives fewer. In that short time a path may still be the
    staged one: when reading it raises FileNotFoundError it has just been moved, so ask again.
    Raises TargetError when a commit file is damaged.
    """
    return ParquetTarget(os.path.abspath(path)).committed_files()


def _types(schema: "pa.Schema") -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _last_change(path: str) -> float:
    """When anything in a directory last changed, in seconds; now, when it goes away meanwhile."""
    try:
        with os.scandir(path) as entries:
            return max([entry.stat().st_mtime for entry in entries] + [os.stat(path).st_mtime])
    except OSError:
        return time.time()


def _visible_names(path: str) -> list[str]:
    """What Spark and other readers of the directory would look at."""
    names = os.listdir(path) if os.path.isdir(path) else []
    return sorted(name for name in names if not name.startswith(("_", ".")))


def _check_links(stage_path: str) -> None:
    """Raises OSError where a name cannot be given by `link`, once and not twice: better now than
    at the commit, when all is landed."""
    probe, name = os.path.join(stage_path, "probe"), os.path.join(stage_path, "probe-link")
    with open(probe, "xb"):
        pass
    os.link(probe, name)
    try:
        os.link(probe, name)
    except FileExistsError:
        pass
    else:
        raise OSError(errno.ENOTSUP, "it gives the name of a file to another one", name)
    os.unlink(name)
    os.unlink(probe)


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    """Operating system errors become a TargetError that names what could not be done."""
    try:
        yield
    except OSError as error:
        raise TargetError(
            f"cannot {doing}: {error}. A target is a directory that the driver and all executors "
            "can write, on a file system with hard links and atomic rename."
        ) from error
