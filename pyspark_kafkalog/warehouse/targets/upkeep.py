"""What `maintain` asks of a table, what came of it, and how small files become larger ones.

For tables whose files stay where they are written (delta_upkeep.py, iceberg_upkeep.py). A table's
format says which files are there and in one commit replaces some by others; here is what they have
in common: which files go together, and how their rows are copied.

Only files of one partition go together, in the order in which they came, so that rows stay in their
order. A file that has three quarters of the wanted size is done. So that a large file is not copied
again for each small one, files stay as they are until there are five of them, or a quarter of what
would be copied is in others than the largest; but what is an eighth of the wanted size in all is
copied at any time.

Rows are written as loads write them (staged_files.py), in the table's columns: one that a file has
not is null, and so is a field of a struct; one of a narrower type gets wider. A file with others
than that is left as it is.
Memory: as for one task of a load, whatever the size of the files.

Called by the driver, in one thread. Never commits.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.warehouse.commit import DataFile, Stage
from pyspark_kafkalog.warehouse.rows.layout import MOST_FILE_BYTES, Layout
from pyspark_kafkalog.warehouse.rows.row_types import holds, storable
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.staging import discard

PORTION_FILES = 16
"""How many files of the wanted size are published at a time: what a kill can undo."""

SWEPT = "A sweep of others took it, which may have been forced: run it again."

_DONE_OF_FOUR = 3
_MANY = 5
_READ_ROWS = 16_384
_READ_BYTES = 8 * 1024 * 1024

ONE_FILE = Layout(file_bytes=2 * MOST_FILE_BYTES)
"""However large a file becomes by other encodings than it had, it is one."""

Partition: TypeAlias = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is asked for. `file_bytes` and `retention_s`, how long old versions stay, are those of
    the table where they are None; one that is shorter has to be `forced`."""

    file_bytes: int | None = None
    retention_s: float | None = None
    forced: bool = False
    compacts: bool = True
    expires: bool = True
    dry_run: bool = False


@dataclass(slots=True)
class Upkept:
    """What was done, or of a dry run what would be. `expired` are snapshots, or files of a log;
    `removed` paths of files; `left` says in sentences what was left as it is, and why."""

    compacted_files: int = 0
    compacted_bytes: int = 0
    written_files: int = 0
    written_bytes: int = 0
    expired: int = 0
    removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def add(self, merges: "Iterable[Merge]") -> None:
        for merge in merges:
            self.compacted_files += len(merge.files)
            self.compacted_bytes += sum(file.size_bytes for file in merge.files)
            self.written_files += len(merge.written) or 1
            self.written_bytes += sum(file.size_bytes for file in merge.written)


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of the table's newest state; `key` is how that names it, `path` where it is, as a
    user may see it. Files of one `partition` may become one. `source` is what its format has of it,
    `content` what Arrow reads it from where that is not its path."""

    key: str
    path: str
    size_bytes: int
    partition: Partition
    source: Any = None
    content: Callable[[], Any] | None = None

    def opened(self) -> Any:
        return self.content() if self.content else self.path

    def parquet(self) -> pq.ParquetFile:
        """To read rows. Times of 96 bits come in microseconds: in nanoseconds those before 1677 or
        after 2262 would be other ones."""
        how: dict[str, Any] = {"pre_buffer": False, "coerce_int96_timestamp_unit": "us"}
        return pq.ParquetFile(self.opened(), buffer_size=1 << 20, **how)

    def schema(self) -> pa.Schema:
        """The columns of the rows. Times of 96 bits, as Spark writes them into Delta tables, are in
        UTC, which Arrow does not say of them."""
        with self.parquet() as source:
            columns = source.schema
            leaves = (columns.column(at).physical_type for at in range(len(columns)))
            there = source.schema_arrow
            return pa.schema([field.with_type(_in_utc(field.type, leaves)) for field in there])


@dataclass(frozen=True, slots=True)
class Merge:
    """Files that become one, which is `written`; none where they have no rows. Of an upsert several
    may become several, or some be written that take no other's place."""

    files: Sequence[LiveFile]
    written: Sequence[DataFile] = ()


def merges_of(files: Iterable[LiveFile], file_bytes: int) -> list[Merge]:
    """Which of a table's files, given in the order in which they came, are worth to be copied into
    one of about `file_bytes`."""
    found: list[list[LiveFile]] = []
    newest: dict[Partition, list[LiveFile]] = {}
    for file in files:
        if 4 * file.size_bytes >= _DONE_OF_FOUR * file_bytes:
            continue
        together = newest.get(file.partition, [])
        if not together or _size(together) + file.size_bytes > file_bytes:
            together = []
            newest[file.partition] = together
            found.append(together)
        together.append(file)
    return [Merge(together) for together in found if _is_worth_it(together, file_bytes)]


def fitting_merges(
    files: Iterable[LiveFile], file_bytes: int, fits_in: Callable[[LiveFile], bool], kept: Upkept
) -> list[Merge]:
    """`merges_of` the files that fit; of those that would be merged and do not, `kept` says so."""
    live = list(files)
    candidates = {file.key for merge in merges_of(live, file_bytes) for file in merge.files}
    other = {each.key for each in live if each.key in candidates and not fits_in(each)}
    if other:
        kept.left.append(f"{len(other)} small files: their columns have other types")
    return merges_of((file for file in live if file.key not in other), file_bytes)


def _is_worth_it(files: Sequence[LiveFile], file_bytes: int) -> bool:
    if len(files) < 2:
        return False
    size_bytes, largest = _size(files), max(file.size_bytes for file in files)
    return (
        len(files) >= _MANY
        or 8 * size_bytes <= file_bytes
        or 4 * largest <= _DONE_OF_FOUR * size_bytes
    )


def _size(files: Iterable[LiveFile]) -> int:
    return sum(file.size_bytes for file in files)


def portions(merges: Iterable[Merge], file_bytes: int) -> Iterator[list[Merge]]:
    """Merges that are published together."""
    portion: list[Merge] = []
    for merge in merges:
        portion.append(merge)
        if sum(_size(one.files) for one in portion) >= PORTION_FILES * file_bytes:
            yield portion
            portion = []
    if portion:
        yield portion


Columns: TypeAlias = Callable[[pa.Schema], Sequence[int | None]]
"""Where a file with such a schema has the columns of the table; None for one that it has not."""


def fits(file: LiveFile, schema: pa.Schema, columns: Columns) -> bool:
    """Whether the file can be copied into one with the table's columns. One that is gone
    cannot."""
    try:
        there = file.schema()
    except FileNotFoundError:
        return False
    return all(
        index is None or holds(there.field(index).type, wanted.type)
        for index, wanted in zip(columns(there), schema, strict=True)
    )


def written(stage: Stage, merge: Merge, columns: Columns) -> Merge:
    """The merge with the file that its rows were written to, in the directory of `stage`."""
    rows = sum(pq.read_metadata(file.opened()).num_rows for file in merge.files)
    batches = (batch for file in merge.files for batch in batches_of(file, stage.schema, columns))
    found = list(write_files(stage, "compacted", batches, ONE_FILE))
    copied = sum(file.records for file in found)
    if copied != rows:
        raise TargetError(
            f"{copied} rows were copied of files with {rows}; nothing was published. Run it again."
        )
    return Merge(merge.files, found)


def written_portion(stage: Stage, merges: Sequence[Merge], columns: Columns) -> list[Merge]:
    """All of `merges` written; nothing is left of them where that fails or is cut short."""
    try:
        return [written(stage, merge, columns) for merge in merges]
    except BaseException:
        discard(stage)
        raise


def batches_of(file: LiveFile, schema: pa.Schema, columns: Columns) -> Iterator[pa.RecordBatch]:
    """The rows of a file that `fits`, with the columns of the table."""
    wanted = storable(schema)
    with file.parquet() as source:
        footer = source.metadata
        size = sum(footer.row_group(each).total_byte_size for each in range(footer.num_row_groups))
        rows = _READ_BYTES * max(footer.num_rows, 1) // max(size, 1)
        where = columns(source.schema_arrow)
        for batch in source.iter_batches(max(1, min(rows, _READ_ROWS))):
            arrays = [
                pa.nulls(batch.num_rows, field.type)
                if index is None
                else batch.column(index).cast(field.type)
                for index, field in zip(where, wanted, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _in_utc(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """A type with a zone for times of 96 bits, at any depth; `leaves` are how Parquet has what is
    in it, and in the types behind it."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type, leaves)) for field in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_in_utc(key.type, leaves)), item.with_type(_in_utc(item.type, leaves))
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type, leaves)))
    if pa.types.is_nested(kind):
        # Of kinds that neither loads nor Spark write.
        for at in range(kind.num_fields):
            _in_utc(kind.field(at).type, leaves)
        return kind
    return pa.timestamp("us", "UTC") if next(leaves, "") == "INT96" else kind


def leaves_of_columns(footer: pq.FileMetaData) -> dict[str, int]:
    """Which leaf of a Parquet file is a column of its own, by name: the field b of a column a has
    the same path as a column a.b, and is left out."""
    leaves = enumerate(footer.schema.column(index) for index in range(footer.num_columns))
    return {leaf.name: index for index, leaf in leaves if leaf.name == leaf.path}
