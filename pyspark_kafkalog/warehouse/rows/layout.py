"""How the rows of a load lie in files: by partition, in which order, in files of which size.

A partition field is a column, or `years(column)`, `months(column)`, `days(column)` or
`hours(column)` of a time; these make partition values under the names that Iceberg gives them,
`timestamp_year` (a number), `timestamp_month` (text such as 2026-11), `timestamp_day` (a date) and
`timestamp_hour` (text such as 2026-11-21-17), in UTC; times beyond the year 9999 are like null.
Iceberg tables also have `truncate(width, column)` and `bucket(count, column)`, whose hash is that
of Iceberg's specification.
Where the column itself is in the files (Iceberg) they are in the partition of the first or the
last time of the calendar: readers leave out files by it, and null would be left out of any filter.
(Their own days and hours, which the specification asks for, pyiceberg cannot write.)
What a partition is called in a directory is Hive's form, `day=2026-11-21`, escaped as Spark does
it; null is `__HIVE_DEFAULT_PARTITION__` there. Texts that a target has no form for are refused: the
empty one, unless it is in the files too, and in names of directories this word.

Pure functions and values: any thread, driver and tasks.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRowError, MissingExtraError
from pyspark_kafkalog.warehouse.rows.calendar_range import DAY_US, FIRST_TIME_US, LAST_TIME_US

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
FILE_BYTES = 512 * 1024 * 1024
LEAST_FILE_BYTES = 1024 * 1024
MOST_FILE_BYTES = 4 * 1024 * 1024 * 1024
"""Object stores copy a file into its place in one request, which S3 does up to 5 GB."""

YEARS, MONTHS, DAYS, HOURS = "years", "months", "days", "hours"
TRUNCATE, BUCKET = "truncate", "bucket"

_NULL = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_VALUE_BYTES = 200
_OF_TIME = re.compile(r"\s*(years|months|days|hours)\s*\(\s*(.+?)\s*\)\s*", re.DOTALL)
_OF_WIDTH = re.compile(r"\s*(truncate|bucket)\s*\(\s*(\d{1,10})\s*,\s*(.+?)\s*\)\s*", re.DOTALL)
_COMMA = re.compile(r",(?![^(]*\))")
_SORT = re.compile(r"\s*(.+?)(?:\s+(asc|desc))?\s*", re.IGNORECASE | re.DOTALL)
_DATE = re.compile(r"(?!0000)\d{4}-\d\d-\d\d")
# What Spark and Hive escape in the name of a directory.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_WHOLE = (pa.types.is_int32, pa.types.is_int64)
_PLAIN = (pa.types.is_string, *_WHOLE, pa.types.is_date32)
_TAKEN: Mapping[str | None, tuple[Callable[[pa.DataType], bool], ...]] = {
    None: (*_PLAIN, pa.types.is_boolean),
    **dict.fromkeys((YEARS, MONTHS, DAYS), (pa.types.is_timestamp, pa.types.is_date32)),
    HOURS: (pa.types.is_timestamp,),
    TRUNCATE: (pa.types.is_string, *_WHOLE),
    BUCKET: (*_PLAIN, pa.types.is_binary, pa.types.is_timestamp),
}
"""The types of columns that each transform takes."""
_TYPES: Mapping[str | None, pa.DataType] = {
    YEARS: pa.int32(),
    MONTHS: pa.string(),
    DAYS: pa.date32(),
    HOURS: pa.string(),
}
_FORMATS = {MONTHS: "%Y-%m", HOURS: "%Y-%m-%d-%H"}
_ENDINGS = {TRUNCATE: "trunc", BUCKET: "bucket"}


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One level of partitions: a column as it is, or what a transform makes of it, with `width`
    where that has one."""

    column: str
    transform: str | None = None
    width: int = 0

    @property
    def name(self) -> str:
        if self.transform is None:
            return self.column
        return f"{self.column}_{_ENDINGS.get(self.transform, self.transform[:-1])}"

    @property
    def type(self) -> pa.DataType | None:
        """The type of the partition's values in a column of their own; None is that of the
        column itself, which they take the place of."""
        return _TYPES.get(self.transform)

    @property
    def is_of_iceberg(self) -> bool:
        """Only Iceberg has partitions by it."""
        return self.transform in (TRUNCATE, BUCKET)

    def __str__(self) -> str:
        width = f"{self.width}, " if self.width else ""
        return f"{self.transform}({width}{self.column})" if self.transform else self.column

    def values(self, table: pa.Table, in_files: bool = False) -> pa.ChunkedArray:
        """What tells the partition that each row is in; as text it is what `text` makes of it.
        `in_files`: the column is, too."""
        column = table.column(self.column)
        if self.transform == BUCKET:
            return _buckets(column, self.width)
        if self.transform == TRUNCATE:
            return _truncated(column, self.width)
        bounded = _within if in_files else _with_calendar
        if pa.types.is_timestamp(column.type):
            column = bounded(column.cast(pa.timestamp("us")), FIRST_TIME_US, LAST_TIME_US)
        elif self.transform is not None:
            column = bounded(column, FIRST_TIME_US // DAY_US, LAST_TIME_US // DAY_US)
        if self.transform == DAYS:
            return column.cast(pa.date32())
        if self.transform == YEARS:
            return pc.year(column).cast(pa.int32())
        if self.transform in (MONTHS, HOURS):
            return pc.floor_temporal(column, unit=self.transform[:-1])
        return column

    def text(self, value: pa.Scalar) -> str | None:
        """The name of a partition; None for null."""
        if not value.is_valid:
            return None
        if self.transform in _FORMATS:
            return str(pc.strftime(value, _FORMATS[self.transform]).as_py())
        return str(value.cast(pa.string()).as_py())


def refuse_fields_of_iceberg(fields: Sequence[PartitionField]) -> None:
    """Raises InvalidOptionError where only an Iceberg table could be partitioned so."""
    for field in fields:
        if field.is_of_iceberg:
            raise InvalidOptionError(
                f"partition_by names {field}, which Iceberg tables alone have: partition by a "
                "column that a transform of the load makes"
            )


@dataclass(frozen=True, slots=True)
class Layout:
    """What a user may say of the files; `sort_by` are pairs of a column and a direction."""

    partition_by: tuple[PartitionField, ...] = ()
    sort_by: tuple[tuple[str, str], ...] = ()
    compression: str = "zstd"
    file_bytes: int = FILE_BYTES


PLAIN = Layout()
"""As topics are landed when nothing is said."""


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How a target keeps partitions: whether the fields' columns stay in the files (Iceberg) or
    not, and whether files lie in directories that name the partition (Parquet)."""

    fields: tuple[PartitionField, ...]
    in_files: bool = False
    in_names: bool = False


def make_layout(
    partition_by: str | Sequence[str],
    sort_by: str | Sequence[str],
    compression: str,
    file_bytes: int,
) -> Layout:
    """What the options say; texts are lists separated by commas. Raises InvalidOptionError."""
    if compression not in COMPRESSIONS:
        raise InvalidOptionError(
            f"compression is {compression!r}: write one of {', '.join(COMPRESSIONS)}"
        )
    check_file_bytes(file_bytes)
    return Layout(
        tuple(_field(text) for text in _listed(partition_by)),
        tuple(_order(text) for text in _listed(sort_by)),
        compression,
        file_bytes,
    )


def check_file_bytes(file_bytes: int) -> None:
    """Raises InvalidOptionError for a size that files cannot be given."""
    if not LEAST_FILE_BYTES <= file_bytes <= MOST_FILE_BYTES:
        raise InvalidOptionError(
            f"target_file_bytes is {file_bytes}: give {LEAST_FILE_BYTES} (1 MiB) to "
            f"{MOST_FILE_BYTES} (4 GiB)"
        )


def check_layout(layout: Layout, schema: pa.Schema) -> None:
    """Raises InvalidOptionError for columns that rows with `schema` do not have, or whose types
    cannot be partitioned or sorted by."""
    fields = {field.name: field.type for field in schema}
    seen = {name.lower() for name in fields}
    for field in layout.partition_by:
        kind = _type_of(fields, field.column, "partition_by")
        if not any(is_taken(kind) for is_taken in _TAKEN[field.transform]):
            raise InvalidOptionError(
                f"partition_by names {field}, and column {field.column} is {kind}: partitions are "
                "of texts, whole numbers, dates and booleans, years(...), months(...), days(...) "
                "and hours(...) of a time, in Iceberg truncate(WIDTH, ...) and bucket(COUNT, ...)"
            )
        if field.transform and field.name.lower() in seen:
            raise InvalidOptionError(
                f"partition_by names {field} twice, or rows have a column {field.name}"
            )
        seen.add(field.name.lower())
    columns = [field.column for field in layout.partition_by if not field.transform]
    if len(set(columns)) < len(columns):
        raise InvalidOptionError("partition_by names a column twice")
    if columns and len(columns) == len(fields):
        raise InvalidOptionError("partition_by names every column: files would have none")
    for column, _ in layout.sort_by:
        kind = _type_of(fields, column, "sort_by")
        if pa.types.is_nested(kind):
            raise InvalidOptionError(f"sort_by names {column}, which is {kind}: it has no order")


def partitions(
    table: pa.Table, fields: Sequence[PartitionField], in_files: bool = False
) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """The rows of each partition, in their order, with its values as texts; `in_files` as in
    `PartitionField.values`.

    Raises InvalidRowError for a value that is too long for the name of a directory, and for a day
    that no calendar has.
    """
    columns = [field.values(table, in_files) for field in fields]
    values = pa.table(columns, names=_numbers(fields))
    keys = values.append_column("row", pa.array(range(len(table)), pa.int64()))
    groups = keys.group_by(_numbers(fields), use_threads=False).aggregate(
        [("row", "min"), ("row", "max"), ("row", "count")]
    )
    if len(groups) == 1:
        yield _texts(groups, 0, fields), table
        return
    for number in range(len(groups)):
        first, last, count = (
            groups.column(f"row_{which}")[number].as_py() for which in ("min", "max", "count")
        )
        rows = table.slice(first, last - first + 1)
        if count < len(rows):
            part = values.slice(first, len(rows))
            rows = rows.filter(_equal(part, groups, number, fields))
        yield _texts(groups, number, fields), rows


def check_partition(partitioning: Partitioning, values: Sequence[str | None]) -> None:
    """Raises InvalidRowError for values that readers would take for null."""
    for field, value in zip(partitioning.fields, values, strict=True):
        if (value == "" and not partitioning.in_files) or (
            value == _NULL and partitioning.in_names
        ):
            raise InvalidRowError(
                f"column {field.column} has {value or 'an empty text'!r}, which as a partition of "
                "this target would be null: replace it in a transform (by null, for example), "
                "partition by another column, or load into an Iceberg table"
            )


def directory(fields: Sequence[PartitionField], values: Sequence[str | None]) -> str:
    """The directory of a partition, levels separated by slashes."""
    return "/".join(
        f"{_escaped(field.name)}={_NULL if value is None else _escaped(value)}"
        for field, value in zip(fields, values, strict=True)
    )


def _numbers(fields: Sequence[PartitionField]) -> list[str]:
    return [str(number) for number in range(len(fields))]


def _equal(
    values: pa.Table, groups: pa.Table, number: int, fields: Sequence[PartitionField]
) -> pa.ChunkedArray:
    """Which rows belong to a group."""
    wanted = None
    for name in _numbers(fields):
        value = groups.column(name)[number]
        column = values.column(name)
        same = pc.equal(column, value) if value.is_valid else pc.is_null(column)
        wanted = same if wanted is None else pc.and_kleene(wanted, same)
    return wanted


def _texts(
    groups: pa.Table, number: int, fields: Sequence[PartitionField]
) -> tuple[str | None, ...]:
    texts = []
    for name, field in zip(_numbers(fields), fields, strict=True):
        text = field.text(groups.column(name)[number])
        if text is not None and len(_escaped(text).encode()) > _LONGEST_VALUE_BYTES:
            raise InvalidRowError(
                f"column {field.column} has a value of {len(text)} characters, which cannot be a "
                "partition: partition by another column"
            )
        is_day = field.transform is None and pa.types.is_date(groups.column(name).type)
        if text and is_day and not _DATE.fullmatch(text):
            raise InvalidRowError(
                f"column {field.column} has a day beyond the years 1 to 9999, which cannot be a "
                f"partition: replace it in a transform, or partition by days({field.column})"
            )
        texts.append(text)
    return tuple(texts)


def _truncated(column: pa.ChunkedArray, width: int) -> pa.ChunkedArray:
    """Texts to `width` characters, numbers to the multiple of `width` below them."""
    if pa.types.is_string(column.type):
        return pc.utf8_slice_codeunits(column, 0, width)
    quotients = pc.divide(column, pa.scalar(width, column.type))
    rests = pc.subtract(column, pc.multiply(quotients, pa.scalar(width, column.type)))
    below = pc.if_else(pc.less(rests, 0), pc.add(rests, width), rests).cast(column.type)
    return pc.subtract(column, below)


def _buckets(column: pa.ChunkedArray, count: int) -> pa.ChunkedArray:
    """By Iceberg's hash: the 32 bits of Murmur 3 of the bytes; of a number, or a time's count of
    days or microseconds, those of 64 bits."""
    try:
        import mmh3  # comes with pyiceberg
    except ImportError as error:
        raise MissingExtraError(
            "partition_by bucket(...) needs mmh3, which is not installed where rows are landed: "
            "pip install 'pyspark-kafkalog[iceberg]' there"
        ) from error

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us")).cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    encoded = column.combine_chunks().dictionary_encode()
    values = encoded.dictionary
    if pa.types.is_integer(values.type):
        keys = [struct.pack("<q", value) for value in values.to_pylist()]
    else:
        keys = values.cast(pa.binary()).to_pylist()
    buckets = pa.array([(mmh3.hash(key) & 0x7FFFFFFF) % count for key in keys], pa.int32())
    return pa.chunked_array([buckets.take(encoded.indices)])


def _within(times: pa.ChunkedArray, first: int, last: int) -> pa.ChunkedArray:
    """The times, or days, with `first` for those before it and `last` for those after it."""
    kind = pa.int32() if pa.types.is_date(times.type) else pa.int64()
    counts = pc.min_element_wise(times.cast(kind), pa.scalar(last, kind), skip_nulls=False)
    counts = pc.max_element_wise(counts, pa.scalar(first, kind), skip_nulls=False)
    return counts.cast(times.type)


def _with_calendar(times: pa.ChunkedArray, first: int, last: int) -> pa.ChunkedArray:
    """The times, or days, from `first` to `last`, those of the years 1 to 9999, and null for
    others, which a producer's clock may count and no calendar has."""
    counts = times.cast(pa.int32() if pa.types.is_date(times.type) else pa.int64())
    bounds = pc.min_max(counts).as_py()
    if bounds["min"] is None or (bounds["min"] >= first and bounds["max"] <= last):
        return times
    there = pc.and_(pc.greater_equal(counts, first), pc.less_equal(counts, last))
    return pc.if_else(there, times, pa.scalar(None, times.type))


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _listed(given: str | Sequence[str]) -> list[str]:
    texts = _COMMA.split(given) if isinstance(given, str) else list(given)
    return [text for text in texts if text.strip()]


def _field(text: str) -> PartitionField:
    if found := _OF_TIME.fullmatch(text):
        return PartitionField(found[2], found[1])
    if (found := _OF_WIDTH.fullmatch(text)) and 0 < int(found[2]) < 2**31:
        return PartitionField(found[3], found[1], int(found[2]))
    return PartitionField(text.strip())


def _order(text: str) -> tuple[str, str]:
    found = _SORT.fullmatch(text)
    assert found is not None
    return found[1], "descending" if (found[2] or "").lower() == "desc" else "ascending"


def _type_of(fields: Mapping[str, pa.DataType], column: str, option: str) -> pa.DataType:
    if column not in fields:
        raise InvalidOptionError(
            f"{option} names {column}, and rows have the columns {', '.join(fields)}"
        )
    return fields[column]
