"""A Parquet directory as a load target: exactly-once without a table format.

    TARGET/part-orders-0-0-5000-<attempt>-0.parquet    committed files: all that a reader sees
    TARGET/day=2026-11-21/part-...                     ... of a load with partition_by
    TARGET/_kafkalog/commits/00000000000000000007.json commits (commit_file.py), newest = the truth
    TARGET/_kafkalog/staging/<load id>/*.staged        files of loads that are not committed yet
    TARGET/_kafkalog/newest                            the number of a commit that there was

A load writes and syncs its files under staging, publishes ONE commit file (the commit point), then
moves the files into TARGET: it rolls the commit forward. A loader killed in between leaves a
commit to be rolled forward, which whoever opens the target next does first. So:
- Only the newest commit can be unfinished: every loader rolls it forward before it publishes.
- A stage is discarded when its commit is in place, so one that is gone means "done".
- Readers skip `_kafkalog` (the underscore, for Spark and Arrow) and `*.staged` (a glob such as
  `**/*.parquet`), so they never see an uncommitted file. Between commit point and move they see
  fewer: for milliseconds, or after a kill until the next load. `committed_files` is exact always.
- Stages of dead loads are swept, not by age alone: a commit names the idle ones as
  abandoned and rolling it forward deletes them, while every loader checks that its own files are
  still there after it has rolled forward the commit that it is going to follow. So a loader that
  slept for days finds that it cannot commit; it never publishes files that somebody deleted.

Whoever deletes the newest commits rolls offsets back, and leaves their files: the next load would
double the rows. So the number of each commit is noted when it is in place, and a note of a commit
that is not there is an error.

TARGET is a directory, which needs hard links, atomic rename, and the same path on driver and
executors, or a place in an object store with conditional puts: how each of them carries out the
steps is storage.py's and object_storage.py's; the protocol is this one.
Called by the driver, from any thread or process, any number of loaders at a time. Never imports
Spark, never touches files that it did not publish.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import InvalidOptionError, LoadConflictError, TargetError
from pyspark_kafkalog.source.offsets import describe
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    Commit,
    CommitRecord,
    DataFile,
    PendingCommit,
    Position,
    Stage,
)
from pyspark_kafkalog.warehouse.rows.allowed_change import UNSAID, SchemaChange
from pyspark_kafkalog.warehouse.rows.layout import (
    PartitionField,
    Partitioning,
    refuse_fields_of_iceberg,
)
from pyspark_kafkalog.warehouse.rows.schema_change import check_unchanged
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets.commit_file import (
    CommitLog,
    moving_commit,
    next_commit,
    sweeping_commit,
)
from pyspark_kafkalog.warehouse.targets.parquet_columns import (
    check_shape,
    joined_columns,
    types_of,
)
from pyspark_kafkalog.warehouse.targets.rewound import Rewind, Rewound, StepBack, would_double
from pyspark_kafkalog.warehouse.targets.staging import check_size, new_load_id
from pyspark_kafkalog.warehouse.targets.storage import (
    KNOWN_TO_OTHERS,
    NEWEST,
    STAGED_SUFFIX,
    is_url,
)
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_storage
from pyspark_kafkalog.warehouse.targets.upkeep import Upkeep, Upkept

if TYPE_CHECKING:
    import pyarrow as pa

# How long nothing in a stage may change until another loader may declare it abandoned.
# A task touches its stage with every row group; the age decides who is disturbed, not safety.
ABANDONED_AFTER_S = 24 * 60 * 60

_SWEPT = (
    "The target has to be on a file system that the driver and all executors share. If it is, this "
    f"load was idle for more than {ABANDONED_AFTER_S // 3600} hours and another load cleaned up "
    "after it: run it again."
)


class ParquetTarget:
    """The target at `path`, absolute or the URL of an object store. See target.Target for the
    promises."""

    def __init__(self, path: str) -> None:
        self._storage = open_storage(path)
        self._log = CommitLog(self._storage)

    def __repr__(self) -> str:
        return f"ParquetTarget({str(self._storage)!r})"

    def __str__(self) -> str:
        return f"parquet:{self._storage}"

    def is_there(self) -> bool:
        with self._explained(f"look for the load target {self._storage}"):
            return self._newest() is not None or bool(self._storage.stages())

    def position(self, name: str, read_only: bool = False) -> Position:
        with self._explained(f"open the load target {self._storage}"):
            newest = self._newest() if read_only else self._settle()
            if newest is None:
                visible = self._storage.visible_name()
                # A rival's first files come into sight only after its commit.
                newest = self._newest() if read_only else self._settle()
                if newest is None and visible is not None:
                    why = KNOWN_TO_OTHERS.get(
                        visible.partition("/")[0],
                        "readers would take them for what was loaded",
                    )
                    raise TargetError(
                        f"the load target {self._storage} holds files of others ({visible}): name "
                        f"a new or empty directory, since {why}"
                    )
            return _position(newest, name)

    def names(self) -> list[str]:
        with self._explained(f"read the commits of {self._storage}"):
            newest = self._newest()
            names = sorted(newest.offsets) if newest else []
            return [name for name in names if _position(newest, name) != NOWHERE]

    def history(self) -> Iterator[CommitRecord]:
        with self._explained(f"read the commits of {self._storage}"):
            for commit in reversed(self._log):
                if commit.ranges:  # else it moves a load, or sweeps
                    at = commit.committed_at_ms
                    yield CommitRecord(commit.name, commit.commit_id, at, commit.gaps)

    def stage(
        self,
        schema: "pa.Schema",
        partition_by: Sequence[PartitionField] = (),
        change: SchemaChange = UNSAID,
        upsert: Upsert | None = None,
    ) -> Stage:
        load_id = new_load_id()
        refuse_fields_of_iceberg(partition_by)
        _refuse_hidden(partition_by)
        with self._explained(f"write to the load target {self._storage}"):
            newest = self._log.newest()
            schema = joined_columns(newest, schema, change)
            check_shape(str(self._storage), newest, schema, _texts(partition_by), change)
            path = self._storage.make_stage(load_id)
        partitioning = Partitioning(tuple(partition_by), in_names=True) if partition_by else None
        return Stage(load_id, path, schema, STAGED_SUFFIX, partitioning, change=change)

    def commit(self, pending: PendingCommit) -> Commit:
        with self._explained(
            f"commit to the load target {self._storage} (to run the load again is safe: it goes on "
            "from the newest commit, whether that is this one or not)"
        ):
            self._storage.sweep()
            stage, files = pending.stage, pending.files
            partition_by = _texts(stage.partitioning.fields if stage.partitioning else ())
            while True:
                newest = self._settle()
                if newest is not None:
                    self._check_unmoved(newest, pending)
                now = joined_columns(newest, stage.schema, stage.change)
                check_unchanged(stage.schema, now, str(self._storage))
                check_shape(str(self._storage), newest, now, partition_by, stage.change)
                self._check_staged(stage, files)
                self._storage.sync_stage(stage.load_id)
                step = pending.step_from(_position(newest, pending.name))
                commit = next_commit(
                    newest,
                    pending.committed(1, step),
                    types_of(stage.schema),
                    partition_by,
                    self._idle_stages(stage.load_id, ABANDONED_AFTER_S),
                )
                if self._log.publish(commit):
                    break
        with self._explained(
            f"move the files of commit {commit.commit_id} into {self._storage}: they ARE "
            "committed, and the next load into this target, of any name, moves them"
        ):
            self._roll_forward(commit)
        return commit

    def discard(self, stage: Stage) -> None:
        with suppress(OSError):
            self._storage.discard_stage(stage.load_id)

    def forget(self, name: str) -> bool:
        """A commit without files, in which the name has no offsets."""
        with self._explained(f"forget load {name!r} in {self._storage}"):
            newest = self._settle()
            if _position(newest, name) == NOWHERE:
                return False
            load_id = new_load_id()
            self._storage.make_stage(load_id)
            while True:
                if self._log.publish(moving_commit(newest, name, load_id, NOWHERE)):
                    break
                newest = self._settle()
            self._settle()
            return True

    def rewind(self, asked: Rewind) -> Rewound:
        """A commit without files. What others brought of the records, their ranges say."""
        with self._explained(f"rewind load {asked.name!r} in {self._storage}"):
            load_id = ""
            while True:
                newest = self._settle()
                step = asked.step_from(_position(newest, asked.name), str(self))
                self._refuse_rows(asked, step)
                if not step.ranges:
                    return Rewound()
                if not load_id:
                    load_id = new_load_id()
                    self._storage.make_stage(load_id)
                if self._log.publish(moving_commit(newest, asked.name, load_id, step.position)):
                    break
            self._settle()
            return Rewound(step.ranges)

    def _refuse_rows(self, asked: Rewind, step: StepBack) -> None:
        """Raises WouldDoubleError where commits with rows passed records from the places on."""
        found = [
            commit
            for commit in self._log
            if commit.files
            and any(
                piece.until_offset > step.places.get(piece.topic_partition, piece.until_offset)
                for piece in commit.ranges
            )
        ]
        rows = sum(file.records for commit in found for file in commit.files)
        if rows:
            raise would_double(
                f"{self} has up to {rows:,} rows of {describe(step.places)} from the offsets on to "
                f"which load {asked.name!r} is to go back, in the files of {len(found)} commits, "
                "and would get them a second time; nothing was changed. Files of a Parquet target "
                "are not written anew, so no rows can be deleted from them: load into another "
                "directory, with `starting` (--from) where the records are right, or into a "
                "delta:, iceberg: or sql: target, where rows can go (truncate_after). To land the "
                f"records a second time, start over: pyspark_kafkalog.forget(target, {asked.name!r}"
                ") or kafkalog load --forget, and then `starting` at these offsets",
                rows,
            )

    def vacuum(self, idle_s: float, dry_run: bool) -> list[str]:
        """A commit without files names the idle stages as abandoned, as any other one would."""
        with self._explained(f"sweep the load target {self._storage}"):
            newest = self._newest() if dry_run else self._settle()
            if not dry_run:
                self._storage.sweep()
            idle = self._idle_stages(newest.load_id if newest else "", idle_s)
            if idle and not dry_run:
                load_id = new_load_id()
                self._storage.make_stage(load_id)
                while True:
                    idle = self._idle_stages(load_id, idle_s)
                    if self._log.publish(sweeping_commit(newest, load_id, idle)):
                        break
                    newest = self._settle()
                self._settle()
            return [self._storage.stage_path(load_id) for load_id in idle]

    def upkeep(self, asked: Upkeep) -> Upkept:
        return Upkept(left=["small files: a Parquet target has no commit that replaces files"])

    def committed_files(self) -> list[str]:
        """Paths of all committed files, oldest commit first, wherever each of them is now."""
        with self._explained(f"read the commits of {self._storage}"):
            commits = list(self._log)
            paths = [
                self._storage.path_of(file.name) for commit in commits for file in commit.files
            ]
            if commits and self._storage.has_stage(commits[-1].load_id):
                newest = commits[-1]
                staged = self._storage.staged_sizes(
                    newest.load_id, [file.name for file in newest.files]
                )
                paths[len(paths) - len(newest.files) :] = [
                    self._storage.staged_path(newest.load_id, file.name)
                    if file.name in staged
                    else self._storage.path_of(file.name)
                    for file in newest.files
                ]
            return paths

    def _settle(self) -> Commit | None:
        """The newest commit, rolled forward."""
        newest = self._newest()
        if newest is not None:
            self._roll_forward(newest)
        return newest

    def _newest(self) -> Commit | None:
        """The newest commit. Raises TargetError where it was a later one once: to follow this one,
        also without files, would hide that."""
        # Before the commits: others may add to them.
        noted = self._storage.noted_newest()
        newest = self._log.newest()
        self._refuse_lost(newest, noted)
        return newest

    def _roll_forward(self, commit: Commit) -> None:
        """Puts the commit's files in place. Any number of processes may do so at once."""
        if not self._storage.has_stage(commit.load_id):
            return
        self._storage.sync_commits()
        for load_id in commit.abandoned:
            self._storage.discard_stage(load_id)
        missing = self._storage.put_in_place(commit.load_id, [file.name for file in commit.files])
        if missing:
            raise TargetError(
                f"{self._storage.path_of(missing[0])}, which commit {commit.commit_id} published, "
                f"is neither there nor at {self._storage.staged_path(commit.load_id, missing[0])}. "
                "Restore it; if it was deleted on purpose, delete the directory of the latter too "
                "and load again."
            )
        self._storage.note_newest(commit.sequence, commit.load_id)
        self._storage.discard_stage(commit.load_id)

    def _refuse_lost(self, newest: Commit | None, noted: int) -> None:
        """Raises TargetError where commits are gone that there were once."""
        found = newest.sequence if newest else 0
        if noted > found:
            raise TargetError(
                f"the commits of {self._storage} once came to {noted}, and the newest one there is "
                f"now {found or 'none'}: what the others published is still there, and would be "
                "loaded again; nothing was written. Restore the commits after it from a backup; or "
                f"delete the files that they published, and then {self._storage.path_of(NEWEST)}."
            )

    def _check_unmoved(self, newest: Commit, pending: PendingCommit) -> None:
        try:
            pending.check_unmoved(newest.position(pending.name), str(self._storage))
        except LoadConflictError:
            self.discard(pending.stage)
            raise

    def _check_staged(self, stage: Stage, files: Sequence[DataFile]) -> None:
        sizes = self._storage.staged_sizes(stage.load_id, [file.name for file in files])
        for file in files:
            path = self._storage.staged_path(stage.load_id, file.name)
            check_size(path, file, sizes.get(file.name), _SWEPT)

    def _idle_stages(self, own: str, idle_s: float) -> list[str]:
        """Load ids of stages other than `own` in which nothing has happened for `idle_s`."""
        oldest = time.time() - idle_s
        stages = self._storage.stages().items()
        return [load_id for load_id, changed in stages if load_id != own and changed < oldest]

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Operating system errors become a TargetError that names what could not be done."""
        try:
            yield
        except OSError as error:
            raise TargetError(f"cannot {doing}: {error}. {self._storage.advice}") from error


def committed_files(path: str | os.PathLike[str]) -> list[str]:
    """The files that the commits of the target at `path` published: exact at any instant.

    Oldest commit first, absolute paths or URLs; changes nothing. A plain read of the directory
    gives the same rows, except between a commit and the moves that follow it (milliseconds, or
    after a crash until the next load), when it gives fewer. In that short time a path may still be
    the staged one: when reading it raises FileNotFoundError it has just been moved, so ask again.
    Raises TargetError when a commit file is damaged.
    """
    place = os.fspath(path)
    return ParquetTarget(place if is_url(place) else os.path.abspath(place)).committed_files()


def _position(newest: Commit | None, name: str) -> Position:
    """Where load `name` goes on after the newest commit."""
    if newest is None:
        return NOWHERE
    return newest.position(name)


def _refuse_hidden(partition_by: Sequence[PartitionField]) -> None:
    """Raises InvalidOptionError for a column whose directories readers such as Arrow pass over."""
    for field in partition_by:
        if field.name.startswith(("_", ".")):
            raise InvalidOptionError(
                f"partition_by names {field}, and readers pass over directories whose names begin "
                f"with {field.name[0]}: partition by another column, or rename it in a transform"
            )


def _texts(partition_by: Sequence[PartitionField]) -> tuple[str, ...]:
    return tuple(map(str, partition_by))
