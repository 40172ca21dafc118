"""A rewind of a table whose files stay where they are written, in one order for Delta and Iceberg.

Files that have rows to be deleted are copied without them, as maintenance copies rows (upkeep.py),
and one commit replaces them, with the offsets. Which files these are, the footers say: a row group
is read, its columns of ORIGIN alone, where its statistics do not exclude such rows.

Fenced: tried on the very state of the table that was looked at. Whoever is too late looks again,
and copies what is new. Memory: as for one task of a load. Called by the driver, in one thread.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.warehouse.commit import Position, Stage
from pyspark_kafkalog.warehouse.targets.deleted_keys import DeletedKeys
from pyspark_kafkalog.warehouse.targets.record_places import rows_at
from pyspark_kafkalog.warehouse.targets.rewound import (
    ORIGIN,
    Rewind,
    Rewound,
    RowsBeyond,
    StepBack,
    no_origin,
    refuse_without_origin,
)
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.staging import check_staged, discard, remove_all_but, sync
from pyspark_kafkalog.warehouse.targets.upkeep import (
    ONE_FILE,
    SWEPT,
    Columns,
    LiveFile,
    Merge,
    batches_of,
    leaves_of_columns,
)
from pyspark_kafkalog.warehouse.targets.upserted import cannot_take_back

_KINDS = (pa.string(), pa.int64(), pa.int64())


class RewoundTable(Protocol):
    """A table as one rewind sees it. Errors: TargetError, and those of the format's library."""

    def look(self) -> Position:
        """Opens the table in its newest state, which all else is about: where the load goes on."""

    def others(self) -> Iterable[tuple[str, Position]]:
        """All loads that have a place, and where."""

    def is_upserted(self) -> bool:
        """Whether rows take the place of older ones, so that none are doubled."""

    def deleted(self) -> DeletedKeys:
        """The keys that upserts have deleted from it."""

    def files(self) -> Sequence[tuple[LiveFile, str | None]]:
        """The data files, each with what is in the way of reading and copying its rows."""

    def schema(self) -> pa.Schema:
        """The table's columns. Raises TargetError where files with these cannot be written."""

    def columns(self, schema: pa.Schema) -> Columns:
        """Where a file has such columns of the table."""

    def constants(self, file: LiveFile) -> Mapping[str, str | None]:
        """Columns that the file has not, as all rows have the same there."""

    def fits(self, file: LiveFile, schema: pa.Schema) -> bool:
        """Whether the file can be copied into one with such columns."""

    def stage(self) -> Stage:
        """A new one, for copies with its columns."""

    def refuse_cuts(self) -> None:
        """Raises TargetError where files must not be replaced by others with fewer rows."""

    def publish(self, stage: Stage, step: StepBack, cuts: Sequence[Merge]) -> bool:
        """Whether this was the commit that followed just that state."""


def go_back(asked: Rewind, table: RewoundTable, target: str) -> Rewound:
    """Publishes on the first state that nobody else follows before. Raises InvalidOptionError,
    WouldDoubleError, TargetError."""
    cuts: _Cuts | None = None
    while True:
        step = asked.step_from(table.look(), target)
        if asked.truncates and table.is_upserted():
            raise cannot_take_back(target)
        live = [] if table.is_upserted() else table.files()
        schema = table.schema() if live else pa.schema([])
        if cuts is None or not cuts.hold_for(step, schema):
            if cuts is not None:
                cuts.discard()
            cuts = _Cuts(table, step, schema, target)
        try:
            rows = cuts.count(live)
            asked.check(step, rows, target)
            if rows.all:
                asked.refuse_others(step, table.others())
                table.refuse_cuts()
            elif not step.ranges:
                cuts.discard()
                return Rewound()
            stage, merges = cuts.copied(live)
        except BaseException:
            cuts.discard()
            raise
        if table.is_upserted():
            table.deleted().keep({each.topic_partition: each.until_offset for each in step.ranges})
        # Whatever goes wrong from here on, the copies may be the table's.
        if table.publish(stage, step, merges):
            remove_all_but(stage, [file for merge in merges for file in merge.written])
            return Rewound(step.ranges, rows.all)


class _Cuts:
    """What is found out and copied for a step, by the keys of files, which never change."""

    def __init__(self, table: RewoundTable, step: StepBack, schema: pa.Schema, target: str) -> None:
        self._table = table
        self._step = step
        self._schema = schema
        self._stage: Stage | None = None
        self._target = target
        self._rows: dict[str, RowsBeyond] = {}
        self._copies: dict[str, Merge] = {}

    def hold_for(self, step: StepBack, schema: pa.Schema) -> bool:
        """Whether all of it is right for another state of the table, too."""
        places = (self._step.places, self._step.now)
        same = self._schema.equals(schema, check_metadata=True)
        return same and places == (step.places, step.now)

    def discard(self) -> None:
        if self._stage is not None:
            discard(self._stage)

    def count(self, live: Sequence[tuple[LiveFile, str | None]]) -> RowsBeyond:
        if live:
            refuse_without_origin(self._schema, self._target)
        for file, odd in live:
            if file.key not in self._rows:
                self._rows[file.key] = self._count(file, odd)
        found = [self._rows[file.key] for file, _ in live]
        return RowsBeyond(sum(one.all for one in found), sum(one.not_its_own for one in found))

    def copied(self, live: Sequence[tuple[LiveFile, str | None]]) -> tuple[Stage, list[Merge]]:
        """The files with such rows, each with the copy that is to take its place in a stage."""
        stage = self._stage = self._stage or self._table.stage()
        cut = [file for file, _ in live if self._rows[file.key].all]
        for file in cut:
            if file.key not in self._copies:
                self._copies[file.key] = self._copy(stage, file)
        merges = [self._copies[file.key] for file in cut]
        sync(stage)
        # After the table was opened: see staging.sweep_directories.
        check_staged(stage, [one for merge in merges for one in merge.written], SWEPT)
        return stage, merges

    def _count(self, file: LiveFile, odd: str | None) -> RowsBeyond:
        constants = self._table.constants(file)
        wanted = pa.schema([self._schema.field(name) for name in ORIGIN])
        try:
            source = file.parquet()
        except (OSError, pa.ArrowInvalid) as error:
            raise TargetError(
                f"{file.path}, a file of {self._target}, cannot be read ({odd or error}); nothing "
                "was changed"
            ) from error
        with source:
            there = source.schema_arrow
            names = {
                name: there.field(index).name
                for name, index in zip(ORIGIN, self._table.columns(wanted)(there), strict=True)
                if index is not None and name not in constants
            }
            all_rows = not_its_own = 0
            for batch in source.iter_batches(
                row_groups=_groups(source.metadata, names, constants, self._step.places),
                columns=list(names.values()),
            ):
                origin = [
                    _column(batch, names.get(name), constants.get(name), kind)
                    for name, kind in zip(ORIGIN, _KINDS, strict=True)
                ]
                unknown = sum(column.null_count for column in origin)
                if unknown:
                    raise no_origin(self._target, f"{unknown} or more of them have null there")
                all_rows += rows_at(origin, self._step.places, pc.greater_equal).true_count
                not_its_own += rows_at(origin, self._step.now, pc.greater_equal).true_count
        if odd and all_rows:
            # Some of the rows may be gone already.
            raise self._cannot_copy(file, odd)
        return RowsBeyond(all_rows, not_its_own)

    def _cannot_copy(self, file: LiveFile, why: str) -> TargetError:
        return TargetError(
            f"{file.path}, a file of {self._target}, has rows from the offsets on to which the "
            f"load is to go back, and cannot be copied without them: {why}. Nothing was changed. "
            "Delete the rows with the table's own engine, have it rewrite the file (in Spark, of a "
            "Delta table: REORG TABLE ... APPLY (PURGE)), and rewind then"
        )

    def _copy(self, stage: Stage, file: LiveFile) -> Merge:
        if not self._table.fits(file, stage.schema):
            raise self._cannot_copy(file, "its columns have other types")
        constants = self._table.constants(file)

        def kept() -> Iterator[pa.RecordBatch]:
            for batch in batches_of(file, stage.schema, self._table.columns(stage.schema)):
                origin = [
                    _column(batch, None if name in constants else name, constants.get(name), kind)
                    for name, kind in zip(ORIGIN, _KINDS, strict=True)
                ]
                left = batch.filter(pc.invert(rows_at(origin, self._step.places, pc.greater_equal)))
                if left.num_rows:
                    yield left

        rows = pq.read_metadata(file.opened()).num_rows - self._rows[file.key].all
        written = list(write_files(stage, "rewound", kept(), ONE_FILE))
        copied = sum(one.records for one in written)
        if copied != rows:
            raise TargetError(
                f"{copied} rows were copied of {file.path}, and {rows} are to stay; nothing was "
                "changed. Run it again"
            )
        return Merge([file], written)


def _groups(
    footer: pq.FileMetaData,
    names: Mapping[str, str],
    constants: Mapping[str, str | None],
    places: Offsets,
) -> list[int]:
    """The row groups of a file that may have rows from these places on, or rows without one."""
    leaves = leaves_of_columns(footer)
    found = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        bounds = [
            _bounds(group.column(leaves[names[name]]).statistics)
            if name in names and names[name] in leaves
            else _constant_bounds(constants.get(name), kind)
            for name, kind in zip(ORIGIN, _KINDS, strict=True)
        ]
        if any(_may_hold(bounds, key, place) for key, place in places.items()):
            found.append(number)
    return found


def _bounds(said: Any) -> tuple[Any, Any] | None:
    """The least and greatest value; None where they are not said, or some are null."""
    whole = said is not None and said.has_min_max and said.has_null_count and not said.null_count
    return (said.min, said.max) if whole else None


def _constant_bounds(text: str | None, kind: pa.DataType) -> tuple[Any, Any] | None:
    if text is None:
        return None
    value = pa.scalar(text).cast(kind).as_py()
    return value, value


def _may_hold(bounds: Sequence[tuple[Any, Any] | None], key: tuple[str, int], place: int) -> bool:
    topics, partitions, offsets = bounds
    if topics is None or partitions is None or offsets is None:
        return True
    return bool(
        topics[0] <= key[0] <= topics[1]
        and partitions[0] <= key[1] <= partitions[1]
        and place <= offsets[1]
    )


def _column(
    batch: pa.RecordBatch, name: str | None, constant: str | None, kind: pa.DataType
) -> pa.Array:
    if name is not None:
        return batch.column(batch.schema.get_all_field_indices(name)[0]).cast(kind)
    value = pa.scalar(constant, pa.string()).cast(kind)
    return pa.repeat(value, batch.num_rows)
