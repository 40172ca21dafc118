"""What a Delta log says of a file's columns, for readers to skip the file: from its Parquet footer.

    {"numRecords": 2, "minValues": {"offset": 0}, "maxValues": {"offset": 1}, "nullCount": {...}}

Bounds of the columns that are not nested and no bytes; they hold for every value, and where a text
is long or a time has more digits than Delta's form of it, they are wider. It is all of these
columns or none: deltalake's own datasets take a column without bounds, where others have some, for
one whose values nothing matches. So where one cannot be told (a time beyond the year 9999, a number
that is NaN), the file has only its count of rows, which is no reason to skip it.

Texts that are too long for Parquet's statistics are taken to lie between the empty one and
GREATEST_TEXT, which is made of no characters.

Pure functions.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_kafkalog.warehouse.targets.staged_files import float_statistics

GREATEST_TEXT = "\U0010ffff" * 8

_LONGEST_TEXT = 32
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_Bounds: TypeAlias = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """Of one file: its rows, the nulls of its columns, and their bounds; None where not all that
    need some have them."""

    records: int
    nulls: Mapping[str, int]
    bounds: Mapping[str, _Bounds] | None

    def to_json(self, lacking: Iterable[str]) -> str:
        """As in the log; `lacking` are the table's columns that the file has not."""
        if self.bounds is None:
            return json.dumps({"numRecords": self.records})
        nulls = {**dict.fromkeys(lacking, self.records), **self.nulls}
        least = {name: low for name, (low, _) in self.bounds.items()}
        greatest = {name: high for name, (_, high) in self.bounds.items()}
        return (
            f'{{"numRecords":{self.records},"minValues":{_object(least)},'
            f'"maxValues":{_object(greatest)},"nullCount":{_object(nulls)}}}'
        )


def file_statistics(footer: pq.FileMetaData) -> FileStatistics:
    nulls: dict[str, int] = {}
    bounds: dict[str, _Bounds] = {}
    floats = float_statistics(footer)
    schema = footer.schema.to_arrow_schema()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        # All may be null, and what lies within another value on two levels: the field b of a
        # column a has the same path as a column a.b.
        if column.max_definition_level > 1:
            continue
        name, kind = column.name, schema.field(column.name).type
        found = [group.column(index).statistics for group in groups]
        if all(one is not None and one.has_null_count for one in found):
            nulls[name] = sum(one.null_count for one in found)
        both = None
        if name in floats:
            nulls[name], both = floats[name]
        if pa.types.is_binary(kind) or nulls.get(name) == footer.num_rows:
            continue
        both = both or _bounds(found, kind)
        if both is None:
            return FileStatistics(footer.num_rows, nulls, None)
        bounds[name] = both
    return FileStatistics(footer.num_rows, nulls, bounds)


def _bounds(found: Sequence[pq.Statistics], kind: pa.DataType) -> _Bounds | None:
    """The bounds of a column in Delta's form; None when they cannot be told."""
    if not all(found):
        return None
    # A row group of nulls has none, nor one whose texts are too long.
    with_values = [one for one in found if one.num_values]
    whole = [one for one in with_values if one.has_min_max]
    if len(whole) < len(with_values):
        return ("", GREATEST_TEXT) if pa.types.is_string(kind) else None
    if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return min(one.min for one in whole), max(one.max for one in whole)
    least, greatest = min(one.min_raw for one in whole), max(one.max_raw for one in whole)
    if pa.types.is_string(kind):
        low, high = least.decode(), greatest.decode()
        longer = high[:_LONGEST_TEXT] + GREATEST_TEXT
        return low[:_LONGEST_TEXT], high if len(high) <= _LONGEST_TEXT else longer
    if not pa.types.is_temporal(kind):
        return least, greatest
    try:
        return _moment(least, kind, up=False), _moment(greatest, kind, up=True)
    except OverflowError:
        # A producer's clock may count beyond what there are dates for.
        return None


def _moment(value: int, kind: pa.DataType, up: bool) -> str:
    """A date or a time: in whole milliseconds, rounded so that the bounds still hold."""
    if pa.types.is_date(kind):
        return (_EPOCH + timedelta(days=value)).date().isoformat()
    milliseconds = -(-value // 1000) if up else value // 1000
    moment = (_EPOCH + timedelta(milliseconds=milliseconds)).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds") + ("Z" if kind.tz else "")


def _object(values: Mapping[str, Any]) -> str:
    """A JSON object; decimals with all their digits, and no characters escaped that need not be:
    deltalake reads an escaped U+10FFFF as another one."""
    texts = (f"{_text(name)}:{_text(value)}" for name, value in values.items())
    return f"{{{','.join(texts)}}}"


def _text(value: Any) -> str:
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
