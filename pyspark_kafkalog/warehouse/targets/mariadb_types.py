"""The types of MariaDB's columns: which of others hold ours, and how one gets wider.

As in sql_types.py, a column is taken if it holds every value of ours unchanged:

    boolean             tinyint, which BOOLEAN is
    integers, decimals  integers, signed or not, decimals; double up to 2^53
    floating point      double; no float, which is read with 6 digits, and no double(M,D)
    date, times         date, datetime(6), in UTC; no timestamp, which ends in 2038 or 2106
    text                longtext of a character set that has all characters (utf8mb4)
    bytes               longblob
    nested              longtext, which JSON is

An index of InnoDB has 3072 bytes. So varchar(N) and varbinary(N) are taken in a unique index, where
strict sessions refuse what is longer. Pure functions, but for `widened`, which reads the table.
"""

from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.warehouse.targets.sql_types import (
    DOUBLES,
    Numbers,
    decimal_numbers,
    is_number,
    numbers_of,
    quoted,
    signed,
)

MOST_KEY_BYTES = 2_800
"""Of an index, beside what else may be in it."""
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_ALL_CHARACTERS = {"utf8mb4", "utf16", "utf16le", "utf32"}
_OTHERS = {
    pa.bool_(): "tinyint",
    pa.date32(): "date",
    pa.timestamp("us"): "datetime",
    pa.timestamp("us", "UTC"): "datetime",
    pa.string(): "longtext",
    pa.binary(): "longblob",
}
_IN_AN_INDEX = {pa.string(): "varchar", pa.binary(): "varbinary"}


def key_type(kind: pa.DataType, parts: int) -> sa.types.TypeEngine[Any] | None:
    """Of a text or bytes in an index of so many parts; None for others, which fit as they are."""
    most_bytes = MOST_KEY_BYTES // parts
    if pa.types.is_string(kind):
        return mysql.VARCHAR(most_bytes // 4)
    return mysql.VARBINARY(most_bytes) if pa.types.is_binary(kind) else None


def holds(there: Any, is_unique: bool, kind: pa.DataType) -> bool:
    """`there` is a row of information_schema.columns; `is_unique`: it is in a unique index."""
    if _is_made(there):
        return False
    has_all_characters = there.character_set_name in (None, *_ALL_CHARACTERS)
    if is_number(kind):
        there_numbers = numbers(there)
        return there_numbers is not None and there_numbers.holds(numbers_of(kind))
    if kind in (pa.float32(), pa.float64()):
        return numbers(there) == DOUBLES
    if pa.types.is_nested(kind):
        return there.data_type == "longtext" and has_all_characters
    if is_unique and there.data_type == _IN_AN_INDEX.get(kind):
        return has_all_characters
    is_cut = pa.types.is_timestamp(kind) and there.datetime_precision != 6
    return there.data_type == _OTHERS[kind] and has_all_characters and not is_cut


def numbers(there: Any) -> Numbers | None:
    """Those that a column holds and gives back; None of one that holds others, or fills itself."""
    if _is_made(there):
        return None
    is_unsigned = "unsigned" in there.column_type
    if there.data_type == "decimal":
        found = decimal_numbers(there.numeric_precision, there.numeric_scale)
    elif there.data_type == "double" and there.numeric_scale is None and not is_unsigned:
        return DOUBLES
    elif bits := _BITS.get(there.data_type):
        found = Numbers(0, 2**bits - 1) if is_unsigned else signed(bits)
    else:
        return None
    return Numbers(0, found.high, found.scale) if is_unsigned else found


def declared(there: Any) -> str:
    of_set = f" in {there.character_set_name}" if there.character_set_name else ""
    return f"{there.column_type}{of_set}{f' {there.extra}' if there.extra else ''}"


def _is_made(there: Any) -> bool:
    """Whether the database makes what rows leave out, or leave null: also in a column of numbers
    that count."""
    return there.is_generated == "ALWAYS" or "auto_increment" in there.extra


def widened(connection: sa.Connection, table: str, column: str, before: str, kind: str) -> str:
    """The ALTER TABLE that gives a column of the type `before` another one, and leaves its default,
    its comment and whether it takes null: MODIFY would drop what it does not repeat."""
    shown = connection.exec_driver_sql(f"SHOW CREATE TABLE {table.replace('%', '%%')}").one()[1]
    start = f"  {quoted(column)} {before}"
    for line in str(shown).splitlines():
        if line.startswith(start):
            rest = line.removeprefix(start).removesuffix(",")
            return f"ALTER TABLE {table} MODIFY COLUMN {quoted(column)} {kind}{rest}"
    raise TargetError(f"the table {table} has no column {column} of type {before} any more")
