"""The types of a database's columns: which it gives to ours, and which of others hold ours.

A column of an existing table is taken if it holds every value of ours unchanged: the same type, or
a wider one. Neither digits, nor a time of day, nor a zone, nor the text itself may change, which
databases do without a word when they cast. Column by column:

    ours                PostgreSQL                      DuckDB                   SQLite, by affinity
    boolean             boolean                         BOOLEAN                  INTEGER, NUMERIC
    integers, decimals  integers and decimals with as many digits before and after the point
                        (a double holds whole numbers up to 2^53); decimals are text in SQLite
    floating point      real, double precision          FLOAT, DOUBLE            REAL
    date, times         date, timestamp, timestamptz    DATE, TIMESTAMP, ...TZ   TEXT, NUMERIC
    text                text, varchar, citext           VARCHAR                  TEXT
    bytes               bytea                           BLOB                     BLOB
    nested              json, jsonb, text               exactly the same         TEXT

Columns of SQLite without a type, and of type ANY in a strict table, keep any value as it is.
MariaDB's are mariadb_types.py's. Pure functions: driver, any thread.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.postgresql import JSONB

_Number = int | float | Fraction


@dataclass(frozen=True, slots=True)
class Numbers:
    """Those from `low` to `high` with at most `scale` digits after the point."""

    low: _Number
    high: _Number
    scale: float = 0

    def holds(self, other: "Numbers") -> bool:
        return self.low <= other.low and other.high <= self.high and other.scale <= self.scale


def signed(bits: int) -> Numbers:
    return Numbers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimal_numbers(precision: int, scale: int) -> Numbers:
    most = Fraction(10**precision - 1) / Fraction(10) ** scale
    return Numbers(-most, most, scale)


_ANY_NUMBER = Numbers(float("-inf"), float("inf"), float("inf"))
DOUBLES = Numbers(-(2**53), 2**53)
_FLOAT = Numbers(-(2**24), 2**24)
_OURS = {pa.int32(): signed(32), pa.int64(): signed(64)}


class _DuckType(sa.types.UserDefinedType[Any]):
    """A nested type of DuckDB, by its name."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


_TIMES_IN_MARIADB = mysql.DATETIME(fsp=6)

# In SQLAlchemy's words, and DuckDB's own names, which nested types need.
_SCALARS: Mapping[pa.DataType, tuple[sa.types.TypeEngine[Any], str]] = {
    pa.bool_(): (sa.Boolean(), "BOOLEAN"),
    pa.int32(): (sa.Integer(), "INTEGER"),
    pa.int64(): (sa.BigInteger(), "BIGINT"),
    pa.float32(): (sa.REAL(), "FLOAT"),
    pa.float64(): (sa.Double(), "DOUBLE"),
    pa.date32(): (sa.Date(), "DATE"),
    pa.timestamp("us"): (
        sa.DateTime().with_variant(_TIMES_IN_MARIADB, "mariadb"),
        "TIMESTAMP",
    ),
    pa.timestamp("us", "UTC"): (
        sa.DateTime(timezone=True).with_variant(_TIMES_IN_MARIADB, "mariadb"),
        "TIMESTAMP WITH TIME ZONE",
    ),
    pa.string(): (sa.Text().with_variant(mysql.LONGTEXT(), "mariadb"), "VARCHAR"),
    pa.binary(): (sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mariadb"), "BLOB"),
}

_POSTGRESQL_NUMBERS = {
    "int2": signed(16),
    "int4": signed(32),
    "int8": signed(64),
    "float4": _FLOAT,
    "float8": DOUBLES,
}
_POSTGRESQL_TEXTS = {"text", "varchar", "citext"}
_POSTGRESQL_OTHERS = {
    pa.bool_(): {"bool"},
    pa.float32(): {"float4", "float8"},
    pa.float64(): {"float8"},
    pa.date32(): {"date"},
    pa.timestamp("us"): {"timestamp"},
    pa.timestamp("us", "UTC"): {"timestamptz"},
    pa.string(): _POSTGRESQL_TEXTS,
    pa.binary(): {"bytea"},
}

_DUCKDB_NUMBERS = {
    **{name: signed(bits) for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32))},
    **{name: signed(bits) for name, bits in (("BIGINT", 64), ("HUGEINT", 128))},
    "FLOAT": _FLOAT,
    "DOUBLE": DOUBLES,
}
_DUCKDB_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")

_SQLITE_NUMBERS = {"INTEGER": signed(64), "NUMERIC": signed(64), "REAL": DOUBLES}
_SQLITE_OTHERS = {
    pa.bool_(): {"INTEGER", "NUMERIC"},
    pa.float32(): {"REAL"},
    pa.float64(): {"REAL"},
    # Their texts look like no numbers, so that none becomes one.
    pa.date32(): {"TEXT", "NUMERIC"},
    pa.timestamp("us"): {"TEXT", "NUMERIC"},
    pa.timestamp("us", "UTC"): {"TEXT", "NUMERIC"},
    pa.binary(): {"BLOB"},
}


def column_type(kind: pa.DataType) -> sa.types.TypeEngine[Any]:
    """What a column of an Arrow type is in each database."""
    if pa.types.is_decimal(kind):
        # SQLite would make a float of it.
        return sa.Numeric(kind.precision, kind.scale).with_variant(sa.Text(), "sqlite")
    if kind in _SCALARS:
        return _SCALARS[kind][0]
    in_duckdb = _DuckType(duckdb_name(kind))
    nested = sa.Text().with_variant(JSONB(), "postgresql").with_variant(in_duckdb, "duckdb")
    return nested.with_variant(sa.JSON(), "mariadb")


def duckdb_name(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        fields = (f"{quoted(child.name)} {duckdb_name(child.type)}" for child in kind)
        return f"STRUCT({', '.join(fields)})"
    if pa.types.is_list(kind):
        return f"{duckdb_name(kind.value_type)}[]"
    if pa.types.is_map(kind):
        return f"MAP({duckdb_name(kind.key_type)}, {duckdb_name(kind.item_type)})"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _SCALARS[kind][1]


def quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def postgresql_holds(there: Any, kind: pa.DataType) -> bool:
    """`there` is a row of information_schema.columns, which tells the type below a domain."""
    name = there.udt_name
    if there.udt_schema != "pg_catalog" and name != "citext":
        return False
    if pa.types.is_nested(kind):
        wanted = {"json", "jsonb", *_POSTGRESQL_TEXTS}
        return name in wanted and there.character_maximum_length is None
    if name == "numeric":
        precision, scale = there.numeric_precision, there.numeric_scale
        numbers = _ANY_NUMBER if precision is None else decimal_numbers(precision, scale)
        return is_number(kind) and numbers.holds(numbers_of(kind))
    if is_number(kind):
        return name in _POSTGRESQL_NUMBERS and _POSTGRESQL_NUMBERS[name].holds(numbers_of(kind))
    is_cut = there.character_maximum_length is not None or (
        pa.types.is_timestamp(kind) and there.datetime_precision != 6
    )
    return name in _POSTGRESQL_OTHERS[kind] and not is_cut


def duckdb_holds(there: str, names: Mapping[pa.DataType, str], kind: pa.DataType) -> bool:
    """`there` is the type as DuckDB writes it, `names` how it writes ours."""
    if there == names[kind]:
        return True
    if is_number(kind):
        numbers = duckdb_numbers(there)
        return numbers is not None and numbers.holds(numbers_of(kind))
    return kind == pa.float32() and there == "DOUBLE"


def sqlite_holds(declared: str | None, is_strict: bool, kind: pa.DataType) -> bool:
    """`declared` is the type of the column as its table declares it; None of one that is the row
    id, where null becomes a number."""
    if declared is None:
        return False
    if not declared or (is_strict and declared.upper() == "ANY"):
        return True
    affinity = _affinity(declared.upper())
    if kind in _OURS:
        return affinity in _SQLITE_NUMBERS and _SQLITE_NUMBERS[affinity].holds(_OURS[kind])
    return affinity in _SQLITE_OTHERS.get(kind, {"TEXT"})


def postgresql_numbers(there: Any) -> Numbers | None:
    """The numbers of a column that is a row of information_schema.columns; None where it may hold
    others, or has a type of its own."""
    if there.udt_schema != "pg_catalog" or there.domain_name is not None:
        return None
    if there.udt_name == "numeric" and there.numeric_precision is not None:
        return decimal_numbers(there.numeric_precision, there.numeric_scale)
    return _POSTGRESQL_NUMBERS.get(there.udt_name)


def duckdb_numbers(there: str) -> Numbers | None:
    decimal = _DUCKDB_DECIMAL.fullmatch(there)
    return decimal_numbers(*map(int, decimal.groups())) if decimal else _DUCKDB_NUMBERS.get(there)


def becomes(numbers: Numbers | None, kind: pa.DataType) -> bool:
    """Whether a column of `numbers` can get the type of ours and keeps each of them. Numbers with
    a floating point have fractions, which no decimal has."""
    if numbers is None or numbers == DOUBLES:
        return False
    if numbers == _FLOAT:
        return bool(kind == pa.float64())
    if kind in (pa.float32(), pa.float64()):
        return (_FLOAT if kind == pa.float32() else DOUBLES).holds(numbers)
    return is_number(kind) and numbers_of(kind).holds(numbers)


def _affinity(declared: str) -> str:
    """SQLite's own rules, in its order."""
    for affinity, parts in (
        ("INTEGER", ["INT"]),
        ("TEXT", ["CHAR", "CLOB", "TEXT"]),
        ("BLOB", ["BLOB"]),
        ("REAL", ["REAL", "FLOA", "DOUB"]),
    ):
        if any(part in declared for part in parts):
            return affinity
    return "NUMERIC"


def is_number(kind: pa.DataType) -> bool:
    return kind in _OURS or pa.types.is_decimal(kind)


def numbers_of(kind: pa.DataType) -> Numbers:
    return _OURS[kind] if kind in _OURS else decimal_numbers(kind.precision, kind.scale)
