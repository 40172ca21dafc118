"""Which keys upserts have deleted from a table of files, so that no older record brings one back.

    DIRECTORY/<load id>.parquet   key, topic, partition, offset, order

A row is a tombstone: the record's place, and with `order_by` its time. Files are written before the
commit that deletes the rows, which does not name them: a tombstone counts once the load that read
it has passed its offset, and that the commit says. So a commit that never comes leaves none that
counts, and a file may be there twice, as one that is written and as one that was merged.
Where a load goes back, or its topic was created again, what counted by then loses its offset: it
counts whatever comes. What did not count of a topic that was created again goes after the commit.

The name hides them from readers, and from whoever removes files that the table does not name, in
Delta, Iceberg and Spark alike. A key that has a row again keeps its tombstones: an older one says
nothing that the row does not.

Once there is a file, there always is one: a table from which keys were deleted, and that has none,
has lost them.

Memory: the keys of one file. Called by the driver, by upserted_files.py and the targets.
"""

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.warehouse.targets.record_places import rows_at
from pyspark_kafkalog.warehouse.targets.staging import new_load_id
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_stage
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace
from pyspark_kafkalog.warehouse.targets.upserted import Upserted

SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int64(),
        "offset": pa.int64(),
        "order": pa.int64(),
    }
)

DIRECTORY = "_kafkalog_deleted"
_MOST_FILES = 16
ANY_OFFSET = 2**63 - 1
_NO_OFFSET = -1


class DeletedKeys:
    """Those in a directory of a table's place; loads have `passed` these offsets, all of them
    together."""

    def __init__(self, place: TablePlace, passed: Offsets, directory: str = DIRECTORY) -> None:
        self._place = place
        self._passed = passed
        self._directory = directory

    def among(self, keys: pa.Array) -> pa.Table:
        """The tombstones that count, of some of the keys; of one key there may be several."""
        found = [SCHEMA.empty_table()]
        for _, table in self._all():
            of_keys = table.filter(pc.is_in(table.column("key"), value_set=keys))
            found.append(of_keys.filter(_counts(of_keys, self._passed)))
        return pa.concat_tables(found)

    def add(self, tombstones: pa.Table, merges: bool = True) -> None:
        """Writes tombstones down that a commit is about to make count. To add them again does no
        harm. `merges` many files into one."""
        if not tombstones.num_rows:
            return
        names = self.names()
        merged = names if merges and len(names) >= _MOST_FILES else []
        earlier = [self._newest(table) for _, table in self._read(merged)]
        self._write([*earlier, tombstones])
        self._place.remove(merged)

    def keep(self, places: Offsets) -> None:
        """Has those before these places count for good, which a commit is about to move back."""
        names, tables = [], []
        for name, table in self._all() if places else ():
            offsets = table.column("offset").combine_chunks()
            is_passed = pc.and_(_within(table, places), pc.not_equal(offsets, _NO_OFFSET))
            if is_passed.true_count:
                at = SCHEMA.get_field_index("offset")
                offsets = pc.if_else(is_passed, pa.scalar(_NO_OFFSET, pa.int64()), offsets)
                names.append(name)
                tables.append(table.set_column(at, SCHEMA.field(at), offsets))
        if tables:
            self._write(tables)
            self._place.remove(names)

    def drop(self, names: Sequence[str], topics: Collection[str]) -> None:
        """Removes all that count of those in the files of these names, and all of these topics,
        which may have had more partitions once."""
        wanted = pa.array(sorted(topics), pa.string())

        def is_dropped(table: pa.Table) -> pa.BooleanArray:
            of_topics = pc.is_in(table.column("topic").combine_chunks(), value_set=wanted)
            return pc.or_(of_topics, _within(table, self._passed))

        self._remove(names, is_dropped)

    def drop_uncounted(self, names: Sequence[str], partitions: Collection[TopicPartition]) -> None:
        """Removes those in the files of these names that are of these partitions and do not count:
        no commit is to come that passes them, and others are at their offsets."""
        if not partitions:
            return
        anywhere = dict.fromkeys(partitions, ANY_OFFSET)

        def is_dropped(table: pa.Table) -> pa.BooleanArray:
            is_counted = _counts(table, self._passed)
            return pc.and_(_within(table, anywhere), pc.invert(is_counted))

        self._remove(names, is_dropped)

    def _remove(
        self, names: Sequence[str], is_dropped: Callable[[pa.Table], pa.BooleanArray]
    ) -> None:
        files = list(self._read(names))
        left = [table.filter(pc.invert(is_dropped(table))) for _, table in files]
        if any(len(kept) < len(table) for kept, (_, table) in zip(left, files, strict=True)):
            self._write(left)
            self._place.remove([name for name, _ in files])

    def _newest(self, table: pa.Table) -> pa.Table:
        """The newest of each key and partition, of those that count; what does not, may yet."""
        counts = _counts(table, self._passed)
        together = table.filter(counts).group_by(["key", "topic", "partition"])
        newest = together.aggregate([("offset", "max"), ("order", "max")])
        newest = newest.select(["key", "topic", "partition", "offset_max", "order_max"])
        return pa.concat_tables(
            [newest.rename_columns(SCHEMA.names), table.filter(pc.invert(counts))]
        )

    def check_there(self, recorded: Upserted | None) -> None:
        """Raises TargetError for a table from which keys were deleted, and that has none now."""
        if recorded is not None and recorded.has_deleted and not self.names():
            raise TargetError(
                f"keys were deleted from the table, and {self._place.path_of(self._directory)}, "
                "which says which, is not there: an older record would bring one back. Nothing was "
                "committed. Restore that directory, or copy it from where the table was before; or "
                "load into a new table"
            )

    def names(self) -> list[str]:
        """The files that there are."""
        return [f"{self._directory}/{name}" for name in self._place.names(self._directory)]

    def _write(self, tables: Sequence[pa.Table]) -> None:
        sink = io.BytesIO()
        pq.write_table(pa.concat_tables(tables), sink, compression="zstd")
        load_id = new_load_id()
        stage_path = self._place.make_stage(load_id)
        try:
            self._place.create(f"{self._directory}/{load_id}.parquet", sink.getvalue(), stage_path)
        finally:
            open_stage(stage_path).discard()

    def _all(self) -> Iterator[tuple[str, pa.Table]]:
        """Every file, also if others merge some meanwhile: what these had is in a new one."""
        seen: set[str] = set()
        while names := [name for name in self.names() if name not in seen]:
            seen.update(names)
            yield from self._read(names)

    def _read(self, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
        """Those of the files that are there."""
        for name in names:
            with suppress(FileNotFoundError):
                yield name, pq.ParquetFile(self._place.source(name)).read().cast(SCHEMA)


def _counts(table: pa.Table, passed: Offsets) -> pa.BooleanArray:
    has_none = pc.equal(table.column("offset").combine_chunks(), _NO_OFFSET)
    return pc.or_(has_none, _within(table, passed))


def _within(table: pa.Table, places: Offsets) -> pa.BooleanArray:
    """Which rows are of these partitions, before these offsets."""
    origin = [table.column(name).combine_chunks() for name in ("topic", "partition", "offset")]
    return rows_at(origin, places, pc.less)
