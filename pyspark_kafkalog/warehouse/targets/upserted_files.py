"""Rows that take the place of older ones of their keys, in tables whose files stay as they are.

    staged    all rows of the load, as tasks wrote them
    newest    of these the newest of each key
    files     those of the table that have rows of such keys are written anew, without what goes,
              and with the newest rows behind; one commit replaces them, with the offsets

What is newer, and what is refused, is as in a database (sql_upsert.py); deleted_keys.py knows which
keys were deleted. A file is read where its statistics do not exclude such keys: a row group's
columns of the key, and of rows that are found their place and order. Columns that the rows have not
are null in a row that changes, so a table has those alone that loads have filled.

Memory: the keys of the load with their places, the key columns of one row group, and as for one
task of a load. Cost: reading the keys of the table's files, and copying those that have any.
Called by the driver, in one thread. Never commits.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.warehouse.commit import DataFile, PendingCommit, Position, Stage, Step
from pyspark_kafkalog.warehouse.rows.row_types import storable
from pyspark_kafkalog.warehouse.rows.upserts import DELETED, KEY, ORDER, Upsert, table_columns
from pyspark_kafkalog.warehouse.targets.deleted_keys import SCHEMA as TOMBSTONES
from pyspark_kafkalog.warehouse.targets.deleted_keys import DeletedKeys
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.staging import (
    check_rows,
    check_staged,
    discard,
    remove_all_but,
    staged_file,
    sync,
)
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_stage
from pyspark_kafkalog.warehouse.targets.upkeep import (
    SWEPT,
    Columns,
    LiveFile,
    Merge,
    batches_of,
    leaves_of_columns,
)
from pyspark_kafkalog.warehouse.targets.upserted import (
    Upserted,
    refuse_lost_keys,
    refuse_other_loads,
    two_partitions,
)

_PLACE = {"topic": pa.string(), "partition": pa.int64()}
_BOUNDED = (pa.types.is_integer, pa.types.is_string, pa.types.is_date)


class UpsertedTable(Protocol):
    """A table as one upsert sees it, in its newest state. Errors: TargetError, and those of the
    format's library."""

    def deleted(self) -> DeletedKeys:
        """The keys that upserts have deleted from it."""

    def files(self) -> Sequence[tuple[LiveFile, str | None]]:
        """The data files, each with what is in the way of copying its rows."""

    def schema(self) -> pa.Schema:
        """The columns of files as the commit leaves them."""

    def columns(self, schema: pa.Schema) -> Columns:
        """Where a file has such columns of the table."""

    def fits(self, file: LiveFile, schema: pa.Schema) -> bool:
        """Whether the file can be copied into one with such columns."""

    def stage(self, schema: pa.Schema) -> Stage:
        """A new one, for files with these columns."""

    passed: Mapping[str, Offsets]
    """Where each load goes on that has a place."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an upsert does to a table's files; what it has written is in `stage`."""

    stage: Stage
    merges: Sequence[Merge] = ()
    deletes: bool = False
    """Whether there are keys that were deleted."""

    def written(self) -> list[DataFile]:
        return [file for merge in self.merges for file in merge.written]


class FileUpsert:
    """One load's rows. What is found out of a file holds for good: files never change."""

    def __init__(self, pending: PendingCommit, upsert: Upsert, target: str) -> None:
        self._pending = pending
        self._upsert = upsert
        self._target = target
        self._newest = _Newest(pending, upsert)
        self._found: dict[str, _Found] = {}
        self._change: Change | None = None
        self._drop_uncounted: Callable[[], None]

    def change(self, table: UpsertedTable, current: Position) -> Change:
        """What is to be done to the table in this state, in which the load is at `current`, with
        the tombstones written down. Raises InvalidRowError where it is not known which row is the
        newest, LoadConflictError, TargetError."""
        try:
            return self._changed(table, current)
        except BaseException:
            self.discard()
            raise

    def _changed(self, table: UpsertedTable, current: Position) -> Change:
        passed = table.passed.items()
        others = ((name, places) for name, places in passed if name != self._pending.name)
        moved = {piece.topic_partition for piece in self._pending.ranges}
        refuse_other_loads(others, moved, self._target)
        live = table.files() if self._newest.rows.num_rows else []
        for file, _ in live:
            if file.key not in self._found:
                self._found[file.key] = self._look_into(table, file)
        for file, odd in live:
            # Which rows of it are still there is not known.
            self._refuse_copy(file, odd if self._found[file.key].rows.num_rows else None)
        deleted = table.deleted()
        known = deleted.among(self._newest.keys)
        stays_out = self._stays_out([self._found[file.key] for file, _ in live], known)
        schema = table.schema()
        stage = table.stage(schema)
        self._change = Change(stage)
        gone = {file.key: self._found[file.key].gone(stays_out) for file, _ in live}
        cut = [file for file, _ in live if len(gone[file.key])]
        for file in cut:
            is_fit = table.fits(file, schema)
            self._refuse_copy(file, None if is_fit else "its columns have other types, or no ids")
        merge = self._merge(table, stage, [(file, gone[file.key]) for file in cut], stays_out)
        sync(stage)
        # After the table was opened: see staging.sweep_directories.
        check_staged(stage, merge.written, SWEPT)
        step = self._pending.step_from(current)
        deleted.keep(_left(current, step))
        created = _created_again(current, step, moved)
        # What is there now and does not count, a load of the topic that is gone has left.
        self._drop_uncounted = functools.partial(
            deleted.drop_uncounted, deleted.names() if created else [], created
        )
        tombstones = self._newest.tombstones(stays_out)
        deleted.add(tombstones, merges=not created)
        merges = [merge] if merge.files or merge.written else []
        self._change = Change(stage, merges, tombstones.num_rows > 0)
        return self._change

    def published(self) -> None:
        """Clears up after the commit of the change."""
        assert self._change is not None
        remove_all_but(self._change.stage, self._change.written())
        self._drop_uncounted()

    def discard(self) -> None:
        """Drops what was written for a state of the table that is gone, if anything was."""
        if self._change is not None:
            discard(self._change.stage)
            self._change = None

    def _look_into(self, table: UpsertedTable, file: LiveFile) -> "_Found":
        upsert = self._upsert
        staged = storable(table_columns(self._pending.stage.schema, upsert))
        names = list(dict.fromkeys((*upsert.key, *_PLACE, *filter(None, [upsert.order_by]))))
        wanted = table.schema()
        wanted = pa.schema([wanted.field(name) for name in names])
        with file.parquet() as source:
            there, footer = source.schema_arrow, source.metadata
            where = dict(zip(names, table.columns(wanted)(there), strict=True))
            called = {name: there.field(at).name for name, at in where.items() if at is not None}
            # A file without a column of the key has no rows with one.
            has_key = all(name in called for name in upsert.key)
            first, found = 0, [_FOUND.empty_table()]
            for group in range(footer.num_row_groups if has_key else 0):
                rows = footer.row_group(group).num_rows
                if not self._newest.may_be_in(footer, group, called[upsert.key[0]]):
                    first += rows
                    continue
                read = source.read_row_group(group, list(called.values()))
                columns = {
                    name: read.column(called[name]).combine_chunks().cast(staged.field(name).type)
                    if name in called
                    else pa.nulls(rows, staged.field(name).type)
                    for name in names
                }
                found.append(_places(upsert, columns, self._newest.numbers(columns), first))
                first += rows
        return _Found(footer.num_rows, pa.concat_tables(found))

    def _stays_out(self, found: Sequence["_Found"], deleted: pa.Table) -> pa.Array:
        """The numbers of the newest rows that are older than what is known of their keys."""
        places = (each.rows.select(_PLACES.names) for each in found)
        rows = pa.concat_tables([_PLACES.empty_table(), *places])
        if pc.count_distinct(rows.column("number")).as_py() < rows.num_rows:
            raise TargetError(
                f"{self._target} has several rows of a key: nothing was committed; take those off "
                "that are wrong, or name another table"
            )
        keys = pc.index_in(deleted.column("key"), value_set=self._newest.keys)
        tombstones = deleted.append_column("number", keys).select(_PLACES.names)
        known = pa.concat_tables([rows, tombstones.cast(_PLACES)]).combine_chunks()
        new = self._newest.rows.take(known.column("number"))
        if self._upsert.order_by is None:
            _refuse_other_partition(known, new)
            return pa.array([], pa.int32())
        return known.filter(_is_newer(known, new)).column("number").combine_chunks()

    def _refuse_copy(self, file: LiveFile, why: str | None) -> None:
        if why:
            raise TargetError(
                f"{file.path}, a file of {self._target}, has rows of keys that the load changes, "
                f"and cannot be copied without them: {why}. Nothing was changed. Have the table's "
                "own engine rewrite the file (in Spark, of a Delta table: REORG TABLE ... APPLY "
                "(PURGE)), and run the load again"
            )

    def _merge(
        self,
        table: UpsertedTable,
        stage: Stage,
        cut: Sequence[tuple[LiveFile, pa.ChunkedArray]],
        stays_out: pa.Array,
    ) -> Merge:
        """The files of `cut` without the rows that go, and the newest rows behind."""
        columns, puts = table.columns(stage.schema), self._newest.puts(stays_out)

        def rows() -> Iterator[pa.RecordBatch]:
            for file, gone in cut:
                stays = pc.invert(_mask(gone, self._found[file.key].count))
                yield from _masked(batches_of(file, stage.schema, columns), stays)
            staged = (batches_of(file, stage.schema, columns) for file in self._newest.files())
            yield from _masked(itertools.chain.from_iterable(staged), puts)

        written = list(write_files(stage, "upserted", rows()))
        kept = sum(self._found[file.key].count - len(gone) for file, gone in cut)
        wanted, there = kept + puts.true_count, sum(file.records for file in written)
        if there != wanted:
            raise TargetError(
                f"{there} rows were written of {wanted}; nothing was changed. Run it again"
            )
        return Merge([file for file, _ in cut], written)


_PLACES = pa.schema({"number": pa.int32(), **_PLACE, "order": pa.int64()})
"""Rows of keys that the load has rows of, too: the number of that row, and where they are from."""
_FOUND = _PLACES.append(pa.field("at", pa.int64()))
"""Such rows of a file, and how many of its rows come before each."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The `rows` of a file of `count` rows whose keys are among the newest ones."""

    count: int
    rows: pa.Table

    def gone(self, stays_out: pa.Array) -> pa.ChunkedArray:
        """Which rows of the file are replaced or deleted, by how many come before each."""
        is_older = pc.is_in(self.rows.column("number"), value_set=stays_out)
        return self.rows.column("at").filter(pc.invert(is_older))


class _Newest:
    """The newest row of each key of a load: `rows` in the order of their `keys`."""

    def __init__(self, pending: PendingCommit, upsert: Upsert) -> None:
        self._stage = pending.stage
        self._files = pending.files
        self._upsert = upsert
        names = [KEY, DELETED, *_PLACE, "offset", *([ORDER] if upsert.order_by else [])]
        columns = list(dict.fromkeys([*names, *upsert.key]))
        rows = pa.concat_tables([self._empty(columns), *self._read(columns)]).combine_chunks()
        by = [KEY, *([ORDER] if upsert.order_by else []), *_PLACE, "offset"]
        self._order = pc.sort_indices(rows, [(name, "ascending") for name in by])
        rows = rows.take(self._order).combine_chunks()
        if upsert.order_by is None:
            _refuse_two_partitions(rows)
        self._is_newest = _last_of_each(rows.column(KEY))
        newest = rows.filter(self._is_newest).combine_chunks()
        self.keys = _combined(newest.column(KEY))
        self._columns = {name: _combined(newest.column(name)) for name in upsert.key}
        order = newest.column(ORDER) if upsert.order_by else pa.nulls(len(newest), pa.int64())
        self.rows = pa.table(
            {
                "number": pa.array(range(len(newest)), pa.int32()),
                "key": self.keys,
                "deleted": newest.column(DELETED),
                "topic": newest.column("topic"),
                "partition": newest.column("partition").cast(pa.int64()),
                "offset": newest.column("offset"),
                "order": order,
            }
        )

    def numbers(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """For each row of the table the number of the newest one of its key, or null."""
        first, *others = (
            pc.is_in(columns[name], value_set=ours) for name, ours in self._columns.items()
        )
        may_be = functools.reduce(pc.and_, others, first)
        keys = self._upsert.keys({name: columns[name].filter(may_be) for name in self._columns})
        found = pc.index_in(keys, value_set=self.keys)
        return pc.replace_with_mask(pa.nulls(len(may_be), pa.int32()), may_be, found)

    def may_be_in(self, footer: pq.FileMetaData, group: int, name: str) -> bool:
        """Whether a row group may have such keys, by its bounds of their first column."""
        ours = self._columns[self._upsert.key[0]]
        if not any(is_one(ours.type) for is_one in _BOUNDED):
            return True
        leaves = leaves_of_columns(footer)
        if name not in leaves:
            return True
        try:
            said = footer.row_group(group).column(leaves[name]).statistics
            if said is None or not said.has_min_max:
                return True
            low, high = pa.scalar(said.min, ours.type), pa.scalar(said.max, ours.type)
        except (pa.ArrowException, TypeError, OverflowError):
            return True
        within = pc.and_(pc.greater_equal(ours, low), pc.less_equal(ours, high))
        return bool(pc.any(within).as_py())

    def puts(self, stays_out: pa.Array) -> pa.BooleanArray:
        """Which of the staged rows, in the order of the files, become rows of the table."""
        is_put = pc.and_(
            pc.invert(self.rows.column("deleted")),
            pc.invert(pc.is_in(self.rows.column("number"), value_set=stays_out)),
        )
        flags = pc.replace_with_mask(self._is_newest, self._is_newest, _combined(is_put))
        return flags.take(pc.sort_indices(self._order))

    def tombstones(self, stays_out: pa.Array) -> pa.Table:
        is_known = pc.is_in(self.rows.column("number"), value_set=stays_out)
        rows = self.rows.filter(pc.and_(self.rows.column("deleted"), pc.invert(is_known)))
        return rows.select(TOMBSTONES.names).cast(TOMBSTONES)

    def files(self) -> Iterator[LiveFile]:
        """Those of the stage, which have the columns of the table, too."""
        staged = open_stage(self._stage.path)
        for file in self._files:
            name = staged_file(self._stage, file.name)
            content = functools.partial(staged.source, name)
            yield LiveFile(name, staged.path_of(name), file.size_bytes, (), content=content)

    def _read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        for staged, file in zip(self._files, self.files(), strict=True):
            with pq.ParquetFile(file.opened()) as source:
                check_rows(file.path, staged, source.metadata.num_rows)
                table = source.read(columns).select(columns)
            yield table.replace_schema_metadata().cast(self._empty(columns).schema)

    def _empty(self, columns: Sequence[str]) -> pa.Table:
        there = storable(self._stage.schema)
        return pa.schema([there.field(name) for name in columns]).empty_table()


def check_columns(
    recorded: Upserted | None, schema: pa.Schema, there: Sequence[str], target: str
) -> None:
    """Raises TargetError for columns of the table that no load has filled: a row that is written
    anew would lose what it has there."""
    refuse_lost_keys(recorded, there, target)
    known = {*schema.names, *(recorded.kinds if recorded else ())}
    own = [name for name in there if name not in known]
    if own:
        raise TargetError(
            f"{target} has a column {own[0]} that the rows have not, and a row that changes is "
            "written anew, without it: load into a table without such columns, or into a database"
        )


def _left(current: Position, step: Step) -> Offsets:
    """The places that a step goes back from: those of a topic that was created again."""
    offsets = step.position.offsets
    return {each: at for each, at in current.offsets.items() if offsets.get(each, 0) < at}


def _created_again(
    current: Position, step: Step, moved: Collection[TopicPartition]
) -> set[TopicPartition]:
    """The partitions of topics that now have another id."""
    was, now = current.topic_ids, step.position.topic_ids
    topics = {topic for topic, known in was.items() if now.get(topic, known) != known}
    return {each for each in {*current.offsets, *moved} if each.topic in topics}


def together(passed: Mapping[str, Offsets]) -> dict[TopicPartition, int]:
    """How far any load has come in each partition."""
    found: dict[TopicPartition, int] = {}
    for places in passed.values():
        for each, place in places.items():
            found[each] = max(place, found.get(each, 0))
    return found


def _places(
    upsert: Upsert, columns: Mapping[str, pa.Array], number: pa.Array, first: int
) -> pa.Table:
    """Those of the rows that have a number; so many rows come before them all."""
    is_found = pc.is_valid(number)
    at = pc.add(pc.indices_nonzero(is_found).cast(pa.int64()), first)
    found = {name: column.filter(is_found) for name, column in columns.items()}
    order = upsert.orders(found) if upsert.order_by else pa.nulls(len(found["topic"]), pa.int64())
    number = number.filter(is_found)
    columns = {"number": number, "topic": found["topic"], "partition": found["partition"]}
    return pa.table({**columns, "order": order, "at": at}).cast(_FOUND)


def _is_newer(known: pa.Table, new: pa.Table) -> pa.ChunkedArray:
    """Of one time, in one partition the later commit wins, and of two partitions always the
    same."""

    def pair(name: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        return known.column(name), new.column(name)

    later_partition = pc.and_(pc.equal(*pair("topic")), pc.greater(*pair("partition")))
    later_place = pc.or_(pc.greater(*pair("topic")), later_partition)
    same_time = pc.and_(pc.equal(*pair("order")), later_place)
    return pc.fill_null(pc.or_(pc.greater(*pair("order")), same_time), False)


def _refuse_other_partition(known: pa.Table, new: pa.Table) -> None:
    at = pc.index(pc.fill_null(_differ(known, new), False), True).as_py()
    if at >= 0:
        raise two_partitions(_name(known, at), _name(new, at))


def _refuse_two_partitions(rows: pa.Table) -> None:
    """Of rows in the order of their keys."""
    before, after = rows.slice(0, max(rows.num_rows - 1, 0)), rows.slice(1)
    same_key = pc.equal(before.column(KEY), after.column(KEY))
    at = pc.index(pc.and_(same_key, _differ(before, after)), True).as_py()
    if at >= 0:
        raise two_partitions(_name(before, at), _name(after, at))


def _differ(one: pa.Table, other: pa.Table) -> pa.ChunkedArray:
    """Which pairs of rows are of two partitions."""
    topics = pc.not_equal(one.column("topic"), other.column("topic"))
    return pc.or_(topics, pc.not_equal(one.column("partition"), other.column("partition")))


def _name(rows: pa.Table, at: int) -> str:
    return f"{rows.column('topic')[at]}-{rows.column('partition')[at]}"


def _last_of_each(keys: pa.ChunkedArray) -> pa.Array:
    """Which of sorted keys are followed by another one, or none."""
    if not len(keys):
        return pa.array([], pa.bool_())
    differs = _combined(pc.not_equal(keys.slice(0, len(keys) - 1), keys.slice(1)))
    return pa.concat_arrays([differs, pa.array([True])])


def _mask(positions: pa.ChunkedArray, count: int) -> pa.BooleanArray:
    """For each of so many rows, in a bit, whether it is at one of these positions."""
    bits = bytearray(-(-count // 8))
    for at in positions.to_pylist():
        bits[at >> 3] |= 1 << (at & 7)
    return pa.BooleanArray.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bits)])


def _masked(batches: Iterator[pa.RecordBatch], mask: pa.BooleanArray) -> Iterator[pa.RecordBatch]:
    """The rows for which the mask, of all batches one after the other, is true."""
    at = 0
    for batch in batches:
        left = batch.filter(mask.slice(at, batch.num_rows))
        at += batch.num_rows
        if left.num_rows:
            yield left


def _combined(array: pa.ChunkedArray | pa.Array) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
