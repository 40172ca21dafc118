"""The table that a SQL target loads into: which one it is, and what it must look like.

A name without a schema means the table that PostgreSQL's search_path finds first, or, where none
is, one in the path's first schema; but where records say that loads went into a table of that name
in one of the path's schemas, it means that one, and if both are said, nothing.

An existing table is taken if it is an ordinary or partitioned one whose columns hold what ours have
(sql_types.py). Columns of its own need a default, or take null. Its constraints and triggers are
its own: what they refuse is rolled back. PostgreSQL's unlogged tables, which are empty after a
crash when the offsets are not, foreign tables, whose commit is another one, tables with a rule on
INSERT, which COPY passes over, and tables whose rows conflict into one another (SQLite's ON
CONFLICT REPLACE) are refused; of MariaDB's tables all but those of InnoDB, whose rows a rollback
leaves.

Called by the driver within a transaction of the caller. Writes no rows.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from pyspark_kafkalog.errors import InvalidOptionError, TargetError
from pyspark_kafkalog.warehouse.rows.schema_change import ADVICE
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets import mariadb_session, mariadb_types, sql_database
from pyspark_kafkalog.warehouse.targets.sql_records import NAMES, Records
from pyspark_kafkalog.warehouse.targets.sql_types import (
    becomes,
    column_type,
    duckdb_holds,
    duckdb_name,
    duckdb_numbers,
    postgresql_holds,
    postgresql_numbers,
    quoted,
    sqlite_holds,
)

_MOST_BYTES_OF_A_NAME = 63
# What of PostgreSQL has the name of a table and is none.
_NO_TABLES = {
    "v": "a view",
    "m": "a view",
    "f": "a foreign table, or has one in it",
}
# What SQLite says of a column that is computed, each time or once.
_GENERATED = (2, 3)
_REPLACE = re.compile(r"\bON\s+CONFLICT\s+REPLACE\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as its target names it; without a `schema`, the database says which one."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str, database: str) -> "TableName":
        """Of TABLE or SCHEMA.TABLE. Raises InvalidOptionError for what no table can be called."""
        schema, point, name = text.rpartition(".")
        if not name or (point and not schema):
            raise InvalidOptionError(
                f"{text!r} is not the name of a table: write TABLE or SCHEMA.TABLE"
            )
        if name.lower() in NAMES:
            raise InvalidOptionError(f"{text} is where loads are recorded: name another table")
        _refuse_names(database, [schema, name])
        return cls(schema or None, name)


@dataclass(frozen=True, slots=True)
class Found:
    """Which table that is: `schema` and `name`, and by which name records have it, `recorded`."""

    schema: str
    name: str
    is_there: bool
    recorded: str

    @property
    def quoted(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    def records(self, connection: sa.Connection) -> Records:
        return Records(connection, self.schema, self.recorded)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is there. `fills_itself`: rows may leave it out; `becomes`: it may get the type
    of ours, and keeps all that it may have."""

    name: str
    declared: str
    fills_itself: bool
    holds: Callable[[pa.DataType], bool]
    becomes: Callable[[pa.DataType], bool]


def find(connection: sa.Connection, wanted: TableName) -> Found:
    """The table, there or not. Raises TargetError where it may be either of two."""
    if connection.dialect.name == "postgresql":
        return _find_in_postgresql(connection, wanted)
    if connection.dialect.name == "mariadb":
        return _find_in_mariadb(connection, wanted)
    # Neither tells names apart that differ by the case of ASCII letters alone: a table is recorded
    # as the first commit called it, which is what it is called itself.
    if connection.dialect.name == "sqlite":
        schema = _folded(wanted.schema or "main")
        query = sa.text("SELECT name FROM pragma_table_list WHERE schema = :schema")
    else:
        schemas = connection.exec_driver_sql(
            "SELECT schema_name FROM duckdb_schemas() WHERE database_name = current_database()"
        ).scalars()
        schema = wanted.schema or str(
            connection.exec_driver_sql("SELECT current_schema()").scalar()
        )
        schema = _spelled(schema, schemas.all())
        query = sa.text(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() AND "
            "schema_name = :schema UNION ALL SELECT view_name FROM duckdb_views() WHERE "
            "database_name = current_database() AND schema_name = :schema"
        )
    there = connection.execute(query, {"schema": schema}).scalars().all()
    return _found(connection, schema, wanted.name, there)


def _found(connection: sa.Connection, schema: str, wanted: str, there: Sequence[str]) -> Found:
    """Of tables whose names differ by more than case."""
    name = _spelled(wanted, there)
    records = Records(connection, schema, name)
    # To look for other spellings reads all commits ever made.
    recorded = name if records.any() else _spelled(name, sorted(records.spellings()))
    return Found(schema, name, name in there, recorded)


def _find_in_mariadb(connection: sa.Connection, wanted: TableName) -> Found:
    query = "SELECT @@lower_case_table_names, DATABASE()"
    folding, current = connection.exec_driver_sql(query).one()
    schema = wanted.schema or str(current)
    if folding:
        names = connection.exec_driver_sql("SELECT schema_name FROM information_schema.schemata")
        schema = _spelled(schema, names.scalars().all())
    tables = sa.text(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = :schema"
    )
    there = connection.execute(tables, {"schema": schema}).scalars().all()
    if folding:
        return _found(connection, schema, wanted.name, there)
    return Found(schema, wanted.name, wanted.name in there, wanted.name)


def _find_in_postgresql(connection: sa.Connection, wanted: TableName) -> Found:
    query = sa.text(
        "SELECT s.schema, c.oid IS NOT NULL AS is_there "
        "FROM unnest(CAST(:schemas AS text[])) WITH ORDINALITY AS s(schema, place) "
        "LEFT JOIN pg_namespace n ON n.nspname = s.schema LEFT JOIN pg_class c "
        "ON c.relnamespace = n.oid AND c.relname = :name AND c.relkind IN ('r','p','v','m','f') "
        "ORDER BY s.place"
    )
    path = connection.exec_driver_sql("SELECT current_schemas(false)::text[]").scalar()
    schemas = [wanted.schema] if wanted.schema else list(path or [])
    if not schemas:
        raise TargetError(
            f"the search_path has no schema for the table {wanted.name}: write SCHEMA.{wanted.name}"
        )
    rows = connection.execute(query, {"schemas": schemas, "name": wanted.name}).all()
    there = [row.schema for row in rows if row.is_there]
    recorded = [
        row.schema
        for row in rows
        if wanted.schema is None and Records(connection, row.schema, wanted.name).any()
    ]
    if len({*there[:1], *recorded}) > 1:
        by_path = f"{there[0]}.{wanted.name}" if there else "none"
        by_loads = " and ".join(f"{schema}.{wanted.name}" for schema in recorded)
        raise TargetError(
            f"which table {wanted.name} is meant? The search_path finds {by_path}, and loads went "
            f"into {by_loads}: write SCHEMA.{wanted.name}"
        )
    schema = [*recorded, *there, schemas[0]][0]
    return Found(schema, wanted.name, schema in there, wanted.name)


def refuse_gone(connection: sa.Connection, found: Found) -> None:
    """Raises TargetError if loads went into the table and it is not there any more: a new one would
    get what is new since, and nobody would notice what it lacks."""
    names = [] if found.is_there else found.records(connection).names()
    if names:
        raise TargetError(
            f"the table {found.name} is gone from schema {found.schema}, and load "
            f"{' and '.join(map(repr, names))} would go on where the last commit ended: a new "
            "table would lack all that came before. To start over, pyspark_kafkalog.forget(target, "
            f"{names[0]!r}) or kafkalog load --forget, for each of these names; to go on with new "
            "records only, create the table yourself; or give it back the name that it had"
        )


def has_unknown_rows(connection: sa.Connection, found: Found) -> bool:
    """Whether the table has rows, and no load of any name is recorded."""
    kind = _KINDS[connection.dialect.name](connection, found) if found.is_there else "not there"
    if kind or found.records(connection).any():
        return False
    table = sa.table(found.name, schema=found.schema)
    row = connection.execute(sa.select(sa.text("1")).select_from(table).limit(1)).first()
    # In this order: the first commit of a rival may come between.
    return row is not None and not found.records(connection).any()


def refuse_unknown(connection: sa.Connection, found: Found, name: str) -> None:
    """Raises TargetError for rows of which nothing tells whether loads brought them: a copy of the
    table alone, without its records, would get all of them once more."""
    if has_unknown_rows(connection, found):
        raise TargetError(
            f"the table {found.name} has rows, and kafkalog_commits in schema {found.schema} has "
            "no load of it. If loads brought them (it is a copy, was restored or renamed), restore "
            "its rows of the tables kafkalog_* as well, or go on with `starting` at what it does "
            "not have yet; if they are of others, load beside them. For either, say once that the "
            f"load begins anew: pyspark_kafkalog.forget(target, {name!r}) or kafkalog load --forget"
        )


def create(
    connection: sa.Connection, wanted: TableName, schema: pa.Schema, upsert: Upsert | None = None
) -> None:
    """Makes what is missing, of the table and of those that record loads. A table to upsert gets an
    index of its keys; in DuckDB, which finds rows without one, and is slower with it, none."""
    _refuse_names(connection.dialect.name, schema.names)
    found = find(connection, wanted)
    refuse_gone(connection, found)
    records = found.records(connection)
    records.create_missing(upsert is not None)
    if not found.is_there:
        records.forget_upserts()
        key = upsert.key if upsert is not None else ()
        columns = [
            # Quoted, as not every dialect knows each keyword of its database.
            sa.Column(sa.quoted_name(field.name, quote=True), _type_of(connection, field, key))
            for field in schema
        ]
        metadata = sa.MetaData(schema=found.schema)
        table = sa.Table(found.name, metadata, *columns, **mariadb_session.TABLES)
        if upsert is not None and connection.dialect.name != "duckdb":
            table.append_constraint(sa.UniqueConstraint(*upsert.key))
        connection.execute(CreateTable(table, if_not_exists=True))


def _type_of(
    connection: sa.Connection, field: pa.Field, key: Sequence[str]
) -> sa.types.TypeEngine[Any]:
    """What a new table has for a field; an index of MariaDB has no room for texts of any length."""
    if connection.dialect.name == "mariadb" and field.name in key:
        in_key = mariadb_types.key_type(field.type, len(key))
        if in_key is not None:
            return in_key
    return column_type(field.type)


def wait_for_turn(connection: sa.Connection, found: Found) -> None:
    """Of MariaDB's transactions into a table, has those come one after the other that upsert, go
    back, alter it, or are a name's first: each looks for what the others do. Theirs is the lock of
    `keep` elsewhere. Comes before all else, as these locks and those of rows wait for each other
    unnoticed."""
    if connection.dialect.name == "mariadb":
        name = mariadb_session.table_lock(found.schema, found.name)
        mariadb_session.lock(connection, name, sql_database.LONGEST_WAIT_S)


def keep(connection: sa.Connection, found: Found, is_altered: bool, is_alone: bool) -> None:
    """Lets nobody alter the table up to the end of the transaction, whose first statement this is:
    else PostgreSQL might tell it how the table was before. A transaction that alters it itself
    takes the whole lock now, as two that hold a lesser one would wait for each other; one that is
    to write alone takes that which lets others read. In MariaDB, that which writers have keeps
    others from altering. In the other databases, whoever has written is alone."""
    if connection.dialect.name == "postgresql":
        table = found.quoted.replace("%", "%%")
        mode = "SHARE ROW EXCLUSIVE" if is_alone else "ACCESS SHARE"
        mode = "ACCESS EXCLUSIVE" if is_altered else mode
        connection.exec_driver_sql(f"LOCK TABLE {table} IN {mode} MODE")
    elif connection.dialect.name == "mariadb":
        table = found.quoted.replace("%", "%%")
        connection.exec_driver_sql(f"SELECT 1 FROM {table} WHERE 1 = 0 FOR UPDATE").all()


def run_deferred(connection: sa.Connection) -> None:
    """Before a look at what a transaction has made of the table: has PostgreSQL's triggers that
    wait for its end take their turn."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")


def columns(connection: sa.Connection, found: Found, schema: pa.Schema) -> dict[str, Column]:
    """The table's columns, by the names that fields of `schema` are looked for by (`key_of`)."""
    dialect = connection.dialect.name
    there = _COLUMNS[dialect](connection, found, schema)
    return {key_of(dialect, column.name): column for column in there}


def key_of(dialect: str, name: str) -> str:
    """What tells a column from others: PostgreSQL alone has two that differ by case."""
    if dialect == "mariadb":
        return name.lower()
    return name if dialect == "postgresql" else _folded(name)


def refuse_unfit(
    connection: sa.Connection, found: Found, there_now: pa.Schema, schema: pa.Schema
) -> None:
    """Raises TargetError unless rows of `schema` can be inserted and stay what they are; of the
    columns, those that `there_now` leaves out are going to be altered."""
    dialect = connection.dialect.name
    kind = _KINDS[dialect](connection, found)
    if kind:
        raise TargetError(f"{found.name} is {kind}: name a table that rows can be loaded into")
    there = columns(connection, found, schema)
    for field in schema:
        ours = column_type(field.type).compile(dialect=connection.dialect)
        column = there.pop(key_of(dialect, field.name), None)
        if field.name not in there_now.names:
            continue
        if column is None:
            raise TargetError(
                f"the table {found.name} has no column {field.name}: add it as {ours}, {ADVICE}, "
                "or name another table"
            )
        if not column.holds(field.type):
            raise TargetError(
                f"column {field.name} of the table {found.name} is {column.declared}, which does "
                f"not keep every {field.type} as it is: make it {ours}, or name another table"
            )
    for column in there.values():
        if not column.fills_itself:
            raise TargetError(
                f"the table {found.name} has a column {column.name} that may not be null, and the "
                "rows do not: give it a default, or name another table"
            )
    _rehearse(connection, found, there_now)


def _rehearse(connection: sa.Connection, found: Found, schema: pa.Schema) -> None:
    """Has the database plan the insertion, which it refuses for want of a privilege or where a
    column is computed from others."""
    if not schema.names:
        return
    columns = ", ".join(map(quoted, schema.names))
    overriding = "OVERRIDING SYSTEM VALUE" if connection.dialect.name == "postgresql" else ""
    statement = (
        f"EXPLAIN INSERT INTO {found.quoted} ({columns}) {overriding} "
        f"SELECT {columns} FROM {found.quoted} WHERE false"
    )
    if connection.dialect.paramstyle in ("format", "pyformat"):
        statement = statement.replace("%", "%%")
    connection.exec_driver_sql(statement).all()


def _kind_in_postgresql(connection: sa.Connection, found: Found) -> str | None:
    query = sa.text(
        "WITH whole AS (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = :schema AND c.relname = :name) "
        "SELECT c.relkind, c.relpersistence, row_security_active(c.oid) AS is_secured, "
        "EXISTS (SELECT 1 FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type = '3' "
        "AND r.ev_enabled <> 'D') AS has_rule "
        "FROM pg_class c WHERE c.oid IN (SELECT oid FROM whole) "
        "OR c.oid IN (SELECT t.relid FROM whole, pg_partition_tree(whole.oid) t)"
    )
    for row in connection.execute(query, {"schema": found.schema, "name": found.name}):
        if row.relkind not in ("r", "p"):
            # Of a partitioned table, one of its partitions.
            return _NO_TABLES.get(row.relkind, "no table")
        if row.relpersistence == "u":
            return (
                "unlogged (after a crash of the server it is empty, and where loads go on is not)"
            )
        if row.is_secured:
            return "under row security for this role"
        if row.has_rule:
            return "rewritten by a rule on INSERT, of which COPY takes no notice"
    return None


def _columns_in_postgresql(
    connection: sa.Connection, found: Found, _: pa.Schema
) -> Sequence[Column]:
    query = sa.text(
        "SELECT * FROM information_schema.columns WHERE table_schema = :schema "
        "AND table_name = :name"
    )
    rows = connection.execute(query, {"schema": found.schema, "name": found.name}).all()
    return [
        Column(
            name=row.column_name,
            declared=_declared_in_postgresql(row),
            fills_itself=row.is_nullable == "YES"
            or row.column_default is not None
            or row.is_identity == "YES"
            or row.is_generated == "ALWAYS",
            holds=partial(postgresql_holds, row),
            becomes=partial(becomes, postgresql_numbers(row)),
        )
        for row in rows
    ]


def _declared_in_postgresql(row: Any) -> str:
    if row.data_type == "numeric" and row.numeric_precision is not None:
        return f"numeric({row.numeric_precision},{row.numeric_scale})"
    if row.character_maximum_length is not None:
        return f"{row.data_type}({row.character_maximum_length})"
    if row.data_type.startswith("timestamp") and row.datetime_precision != 6:
        return f"{row.data_type} of precision {row.datetime_precision}"
    return str(
        row.domain_name or (row.data_type if row.data_type != "USER-DEFINED" else row.udt_name)
    )


def _kind_in_duckdb(connection: sa.Connection, found: Found) -> str | None:
    query = sa.text(
        "SELECT 1 FROM duckdb_tables() WHERE database_name = current_database() AND "
        "schema_name = :schema AND table_name = :name"
    )
    names = {"schema": found.schema, "name": found.name}
    return None if connection.execute(query, names).first() else "a view"


def _columns_in_duckdb(
    connection: sa.Connection, found: Found, schema: pa.Schema
) -> Sequence[Column]:
    ours = ", ".join(f"typeof(CAST(NULL AS {duckdb_name(field.type)}))" for field in schema)
    same = dict(zip(schema.types, connection.exec_driver_sql(f"SELECT {ours}").one(), strict=True))
    query = sa.text(
        "SELECT column_name, data_type, is_nullable, column_default FROM duckdb_columns() WHERE "
        "database_name = current_database() AND schema_name = :schema AND table_name = :name"
    )
    rows = connection.execute(query, {"schema": found.schema, "name": found.name}).all()
    return [
        Column(
            name=row.column_name,
            declared=row.data_type,
            fills_itself=row.is_nullable or row.column_default is not None,
            holds=partial(duckdb_holds, row.data_type, same),
            becomes=partial(becomes, duckdb_numbers(row.data_type)),
        )
        for row in rows
    ]


def _kind_in_sqlite(connection: sa.Connection, found: Found) -> str | None:
    query = sa.text("SELECT type FROM pragma_table_list WHERE schema = :schema AND name = :name")
    names = {"schema": found.schema, "name": found.name}
    kind = connection.execute(query, names).scalar()
    if kind is None:
        return "gone again, as all in the schema temp is"
    if kind != "table":
        return f"a {kind} table" if kind != "view" else "a view"
    query = sa.text(f"SELECT sql FROM {quoted(found.schema)}.sqlite_master WHERE name = :name")
    if _REPLACE.search(connection.execute(query, names).scalar() or ""):
        return "declared ON CONFLICT REPLACE (rows that were loaded before would be deleted)"
    return None


def _columns_in_sqlite(connection: sa.Connection, found: Found, _: pa.Schema) -> Sequence[Column]:
    names = {"schema": found.schema, "name": found.name}
    is_strict, has_row_ids = connection.execute(
        sa.text(
            "SELECT strict, NOT wr FROM pragma_table_list WHERE schema = :schema AND name = :name"
        ),
        names,
    ).one()
    query = sa.text("SELECT * FROM pragma_table_xinfo(:name, :schema)")
    rows = connection.execute(query, names).all()
    keys = [row.name for row in rows if row.pk]

    def is_row_id(row: Any) -> bool:
        """Whether null becomes a number there."""
        return has_row_ids and keys == [row.name] and row.type.upper() == "INTEGER"

    return [
        Column(
            name=row.name,
            declared=f"{row.type} PRIMARY KEY" if is_row_id(row) else row.type,
            fills_itself=not row.notnull
            or row.dflt_value is not None
            or row.hidden in _GENERATED
            or is_row_id(row),
            holds=partial(sqlite_holds, None if is_row_id(row) else row.type, bool(is_strict)),
            # SQLite alters no type.
            becomes=partial(becomes, None),
        )
        for row in rows
    ]


def _kind_in_mariadb(connection: sa.Connection, found: Found) -> str | None:
    query = sa.text(
        "SELECT table_name AS name, table_type AS type, engine AS engine "
        "FROM information_schema.tables WHERE table_schema = :schema"
    )
    rows = {row.name: row for row in connection.execute(query, {"schema": found.schema})}
    for name in (found.name, *NAMES):
        row = rows.get(name)
        which = "" if name == found.name else f"recorded in {name}, "
        if row is not None and row.type != "BASE TABLE":
            return f"{which}{row.type.lower()}"
        if row is not None and row.engine != "InnoDB":
            return f"{which}of the engine {row.engine}, which rolls nothing back"
    return None


def _columns_in_mariadb(connection: sa.Connection, found: Found, _: pa.Schema) -> Sequence[Column]:
    names = {"schema": found.schema, "name": found.name}
    of_table = "WHERE table_schema = :schema AND table_name = :name"
    unique = sa.text(
        f"SELECT column_name FROM information_schema.statistics {of_table} AND non_unique = 0"
    )
    in_index = set(connection.execute(unique, names).scalars())
    wanted = (
        *("column_name", "data_type", "column_type", "column_default", "is_nullable", "extra"),
        *("is_generated", "character_set_name", "collation_name"),
        *("numeric_precision", "numeric_scale", "datetime_precision"),
    )
    listed = ", ".join(f"{name} AS {name}" for name in wanted)
    rows = connection.execute(
        sa.text(f"SELECT {listed} FROM information_schema.columns {of_table}"), names
    )
    return [
        Column(
            name=row.column_name,
            declared=mariadb_types.declared(row),
            fills_itself=row.is_nullable == "YES"
            or row.column_default is not None
            or row.is_generated == "ALWAYS"
            or "auto_increment" in row.extra,
            holds=partial(mariadb_types.holds, row, row.column_name in in_index),
            becomes=partial(becomes, mariadb_types.numbers(row)),
        )
        for row in rows
    ]


_KINDS = {
    "postgresql": _kind_in_postgresql,
    "mariadb": _kind_in_mariadb,
    "duckdb": _kind_in_duckdb,
    "sqlite": _kind_in_sqlite,
}
_COLUMNS = {
    "postgresql": _columns_in_postgresql,
    "mariadb": _columns_in_mariadb,
    "duckdb": _columns_in_duckdb,
    "sqlite": _columns_in_sqlite,
}


def _refuse_names(database: str, names: Sequence[str]) -> None:
    """Raises InvalidOptionError for names that a database cannot have, or does not keep."""
    for name in names:
        if database == "postgresql" and len(name.encode()) > _MOST_BYTES_OF_A_NAME:
            raise InvalidOptionError(
                f"{name} is longer than the {_MOST_BYTES_OF_A_NAME} bytes that PostgreSQL keeps of "
                "a name: it could not be told from others that begin alike"
            )
        if database == "mariadb":
            mariadb_session.refuse_name(name)


def _folded(name: str) -> str:
    return name.encode().lower().decode()


def _spelled(name: str, there: Sequence[str]) -> str:
    """How what is `there` spells a name, which is preferably itself."""
    if name in there:
        return name
    return next((one for one in there if _folded(one) == _folded(name)), name)
