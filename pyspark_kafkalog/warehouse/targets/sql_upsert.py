"""Rows that take the place of older ones of their keys, in the transaction of a load's commit.

    staged    all rows of the load, copied into a temporary table
    newest    of these the newest of each key, in another one
    table     rows of keys that were deleted go, those of others change or come

A key is the table's while a row or a row of kafkalog_deleted has it. Either knows its partition, so
that a key which comes from another one is found out, and with `order_by` what is newer: a tombstone
that is older than its row deletes nothing, and a row that is older than a tombstone stays out.
Within a partition what is committed later is newer, so one load alone may have a place in it.

Rows are updated, not written anew: columns of the table's own keep what they have, and nothing
that refers to them is deleted. Columns that loads have filled, and the rows have no more, get what
they have in a new row: what they had is an older record's. Each key changes one row, or nothing is
committed. Keys are compared byte by byte: columns of PostgreSQL and MariaDB that take two texts for
one are refused, and those of SQLite and DuckDB are compared without their collation.

Memory is the database's. Cost: with an index of the key, that of the load's own rows; but DuckDB
reads the keys of the whole table. Called by the driver, by sql.py alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from pyspark_kafkalog.errors import InvalidRowError, TargetError
from pyspark_kafkalog.warehouse.commit import PendingCommit, Stage
from pyspark_kafkalog.warehouse.rows.upserts import DELETED, KEY, ORDER, Upsert, table_columns
from pyspark_kafkalog.warehouse.targets.sql_copy import copy_rows
from pyspark_kafkalog.warehouse.targets.sql_tables import Found, columns, key_of, run_deferred
from pyspark_kafkalog.warehouse.targets.sql_types import quoted
from pyspark_kafkalog.warehouse.targets.upserted import (
    is_loaded,
    other_load,
    refuse_lost_keys,
    refuse_other_mode,
    two_partitions,
    upserted_by,
)

_ONE = sa.literal_column("1", sa.Integer)
_STAGED, _NEWEST = "kafkalog_staged", "kafkalog_newest"
_EXTRA = {DELETED: "BOOLEAN", ORDER: "BIGINT"}
_Condition = sa.ColumnElement[bool]
_TIME_TEXT, _DAY_TEXT = len("2026-11-01 00:00:00.000000"), len("2026-11-01")


def check_mode(
    connection: sa.Connection, found: Found, upsert: Upsert | None, schema: pa.Schema
) -> None:
    """Raises TargetError unless the table is loaded as it was before; None is append."""
    records = found.records(connection)
    has_loads = upsert is not None and bool(records.names())
    refuse_other_mode(records.upsert(), upsert, schema, has_loads, found.name)


def begin_upsert(
    connection: sa.Connection, found: Found, upsert: Upsert, pending: PendingCommit
) -> None:
    """Records how the table is loaded, or compares it with that, and refuses a second load of one
    partition. Of a transaction that has the lock of `keep`, or the whole database."""
    records, schema = found.records(connection), pending.stage.schema
    recorded = records.upsert()
    refuse_other_mode(recorded, upsert, schema, is_loaded(pending, records.names()), found.name)
    now = upserted_by(recorded, upsert, schema)
    if now != recorded:
        records.record_upsert(now)
    partitions = {piece.topic_partition for piece in pending.ranges}
    for other, place in records.others_in(pending.name, partitions).items():
        raise other_load(other, place, found.name)


def _unfilled(
    connection: sa.Connection, found: Found, schema: pa.Schema
) -> dict[str, sa.ColumnElement[Any]]:
    """The columns that loads have filled and rows of `schema` have not, with what they are in a new
    row."""
    dialect = connection.dialect.name
    recorded = found.records(connection).upsert()
    filled = {key_of(dialect, name) for name in (recorded.kinds if recorded else ())}
    filled -= {key_of(dialect, name) for name in schema.names}
    if not filled:
        return {}
    there = columns(connection, found, schema)
    defaults: dict[str, str | None] = {}
    if dialect == "sqlite":
        query = sa.text("SELECT name, dflt_value FROM pragma_table_xinfo(:name, :schema)")
        names = {"schema": found.schema, "name": found.name}
        defaults = {row.name: row.dflt_value or "NULL" for row in connection.execute(query, names)}
    return {
        name: sa.literal_column(defaults.get(name) or "DEFAULT")
        for name in (there[key].name for key in sorted(filled & there.keys()))
    }


def refuse_keys(connection: sa.Connection, found: Found, upsert: Upsert, schema: pa.Schema) -> None:
    """Raises TargetError for columns of a key that are gone, or in which PostgreSQL or MariaDB
    takes two values for one."""
    dialect, columns_there = connection.dialect.name, columns(connection, found, schema)
    there = [name for name in schema.names if key_of(dialect, name) in columns_there]
    refuse_lost_keys(found.records(connection).upsert(), there, f"the table {found.name}")
    if connection.dialect.name == "mariadb":
        _refuse_keys_in_mariadb(connection, found, upsert)
    if connection.dialect.name != "postgresql":
        return
    query = sa.text(
        # The type below a domain.
        "SELECT column_name FROM information_schema.columns "
        "WHERE table_schema = :schema AND table_name = :name AND udt_name = 'citext' "
        "UNION ALL SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_collation l ON l.oid = a.attcollation WHERE n.nspname = :schema "
        "AND c.relname = :name AND NOT l.collisdeterministic"
    )
    names = {"schema": found.schema, "name": found.name}
    for name in connection.execute(query, names).scalars():
        if name in (*upsert.key, "topic"):
            raise TargetError(
                f"column {name} of the table {found.name} takes texts for equal that are not the "
                "same (citext, or a nondeterministic collation), and so two keys, or topics, for "
                "one: make it text with a deterministic collation, or name another table"
            )


def refuse_identities(connection: sa.Connection, found: Found, schema: pa.Schema) -> None:
    """Raises TargetError for columns that PostgreSQL lets a COPY fill alone."""
    if connection.dialect.name != "postgresql":
        return
    query = sa.text(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = :schema "
        "AND table_name = :name AND identity_generation = 'ALWAYS'"
    )
    names = {"schema": found.schema, "name": found.name}
    for name in connection.execute(query, names).scalars():
        if name in schema.names:
            raise TargetError(
                f"column {name} of the table {found.name} is GENERATED ALWAYS AS IDENTITY, and no "
                "upsert can fill it: make it GENERATED BY DEFAULT, or name another table"
            )


def _refuse_keys_in_mariadb(connection: sa.Connection, found: Found, upsert: Upsert) -> None:
    """All of its collations but those that compare bytes, and pad no text with spaces."""
    query = sa.text(
        "SELECT column_name, collation_name FROM information_schema.columns "
        "WHERE table_schema = :schema AND table_name = :name AND collation_name IS NOT NULL"
    )
    names = {"schema": found.schema, "name": found.name}
    wanted = {name.lower() for name in (*upsert.key, "topic")}
    for name, collation in connection.execute(query, names):
        if name.lower() in wanted and not collation.endswith("_nopad_bin"):
            raise TargetError(
                f"column {name} of the table {found.name} has the collation {collation}, which may "
                "take two keys, or topics, for one ('a' = 'A', or 'a' = 'a '): give it "
                "utf8mb4_nopad_bin, or name another table"
            )


def upsert_rows(
    connection: sa.Connection, found: Found, stage: Stage, upsert: Upsert, paths: Sequence[str]
) -> None:
    """Makes the rows of staged files those of their keys. Raises InvalidRowError where it is not
    known which is the newest, TargetError where the table has several of a key."""
    schema = stage.schema
    _make_staged(connection, found, schema)
    copy_rows(connection, quoted(_STAGED), schema, paths)
    staged = sa.table(_STAGED, *map(_column, schema.names))
    if upsert.order_by is None:
        _refuse_two_partitions(connection, staged)
    elif connection.dialect.name == "sqlite":
        _refuse_unordered_texts(connection, staged, schema.field(upsert.order_by))
    _make_newest(connection, staged, upsert)
    texts = {name for name in upsert.key if schema.field(name).type == pa.string()}
    names = table_columns(schema, upsert).names
    unfilled = _unfilled(connection, found, table_columns(schema, upsert))
    table = sa.table(found.name, *map(_column, [*names, *unfilled]), schema=found.schema)
    newest = sa.table(_NEWEST, *map(_column, schema.names))
    deleted = found.records(connection).deleted
    keys = [_Key(table.c[name], name, name in texts) for name in upsert.key]
    rows = _Pair(connection, newest, table, keys, sa.true())
    tombstones = _Pair(
        connection,
        newest,
        deleted,
        [_Key(deleted.c.row_key, KEY)],
        deleted.c.table_name == found.recorded,
    )
    if upsert.order_by is None:
        rows.refuse_other_partition()
        tombstones.refuse_other_partition()
    else:
        rows.drop_older(table.c[upsert.order_by], upsert.order_by)
        tombstones.drop_older(deleted.c.row_order, ORDER)
    live, gone = sa.not_(newest.c[DELETED]), newest.c[DELETED]
    rows.delete(gone)
    try:
        changed = rows.put(live, {name: newest.c[name] for name in names}, unfilled)
        run_deferred(connection)
    except IntegrityError as error:
        raise _taken(found.name, error) from error
    told_by = ["topic", "partition", "offset", *([upsert.order_by] if upsert.order_by else [])]
    rows.check_put(live, told_by, found.name, changed)
    order = newest.c[ORDER] if upsert.order_by else sa.null()
    place = {name: newest.c[name] for name in ("topic", "partition")}
    tombstones.delete(live)
    tombstones.put(
        gone,
        {
            "table_name": sa.literal(found.recorded),
            "row_key": newest.c[KEY],
            **place,
            "row_order": order,
        },
    )


def _column(name: str) -> sa.ColumnClause[Any]:
    """Quoted, as not every dialect knows each keyword of its database."""
    return sa.column(sa.quoted_name(name, quote=True))


@dataclass(frozen=True, slots=True)
class _Key:
    """A part of a key: the table's column, and that of `newest` of which it is one."""

    column: sa.ColumnElement[Any]
    name: str
    is_text: bool = False

    def exact(self, dialect: str) -> sa.ColumnElement[Any]:
        return _exact(dialect, self.column) if self.is_text else self.column

    def new(self, dialect: str, newest: sa.FromClause) -> sa.ColumnElement[Any]:
        column = newest.c[self.name]
        return _exact(dialect, column) if self.is_text else column


def _exact(dialect: str, text: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A text that is compared without the collation of its column; PostgreSQL's are checked."""
    if dialect == "duckdb":
        return sa.func.encode(text)
    return text.collate("BINARY") if dialect == "sqlite" else text


def _one_of_each(dialect: str, key: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """What rows are sorted by, to have those of one key together. MariaDB sorts by the first
    max_sort_length bytes of a column (1,024), so that longer keys may come mixed."""
    return sa.func.sha2(key, sa.literal_column("256")) if dialect == "mariadb" else key


@dataclass(frozen=True, slots=True)
class _Pair:
    """The newest staged rows, and a table whose rows have keys, too: of those that are `among`."""

    connection: sa.Connection
    newest: sa.TableClause
    there: sa.TableClause
    keys: Sequence[_Key]
    among: _Condition

    @property
    def dialect(self) -> str:
        return self.connection.dialect.name

    def same(self, newest: sa.FromClause) -> _Condition:
        pairs = [(key.exact(self.dialect), key.new(self.dialect, newest)) for key in self.keys]
        return sa.and_(self.among, *(there == new for there, new in pairs))

    def refuse_other_partition(self) -> None:
        there, new = self.there.c, self.newest.c
        query = sa.select(there.topic, there.partition, new.topic, new.partition).where(
            self.same(self.newest),
            sa.or_(
                _exact(self.dialect, there.topic) != _exact(self.dialect, new.topic),
                there.partition != new.partition,
            ),
        )
        row = self.connection.execute(query.limit(1)).first()
        if row is not None:
            topic, partition, new_topic, new_partition = row
            raise two_partitions(f"{topic}-{partition}", f"{new_topic}-{new_partition}")

    def drop_older(self, order: sa.ColumnElement[Any], name: str) -> None:
        """Leaves out of `newest` what is older than what is there. Of one time, in one partition
        the later commit wins, and of two partitions always the same."""
        there = self.there.c
        newest: Any = self.newest if self.dialect == "mariadb" else self.newest.alias("staged")
        topic, new_topic = (_exact(self.dialect, each.topic) for each in (there, newest.c))
        is_later_place = sa.or_(
            topic > new_topic,
            sa.and_(topic == new_topic, there.partition > newest.c.partition),
        )
        same_time = sa.and_(order == newest.c[name], is_later_place)
        is_older = sa.and_(self.same(newest), sa.or_(order > newest.c[name], same_time))
        if self.dialect == "mariadb":
            self.connection.execute(sa.delete(newest).where(is_older))
            return
        older = sa.select(newest.c[KEY]).where(is_older)
        self.connection.execute(sa.delete(self.newest).where(self.newest.c[KEY].in_(older)))

    def delete(self, which: _Condition) -> None:
        """Deletes the rows of keys of which `newest` has one such."""
        newest, dialect = self.newest, self.dialect
        if dialect == "mariadb":
            # Which would look for the keys of each row of the table.
            self.connection.execute(sa.delete(self.there).where(self.same(newest), which))
            return
        exact = _one_of(
            [key.exact(dialect) for key in self.keys],
            sa.select(*(key.new(dialect, newest) for key in self.keys)).where(which),
        )
        # SQLite finds several columns by their index only as they are.
        by_index = _one_of(
            [key.column for key in self.keys],
            sa.select(*(newest.c[key.name] for key in self.keys)).where(which),
        )
        self.connection.execute(sa.delete(self.there).where(self.among, by_index, exact))

    def put(
        self,
        which: _Condition,
        values: Mapping[str, sa.ColumnElement[Any]],
        unfilled: Mapping[str, sa.ColumnElement[Any]] = MappingProxyType({}),
    ) -> int:
        """Changes the rows of such keys to `values`, and adds those that are not there; returns how
        many these are, where the database says it. Columns that are `unfilled` then have this."""
        same = self.same(self.newest)
        names = {key.name for key in self.keys}
        others = {name: value for name, value in values.items() if value.key not in names}
        others |= unfilled
        counted = None
        if self.dialect == "mariadb":
            # Which counts a row twice that moves to another partition of the table.
            there = sa.select(sa.func.count()).select_from(self.newest, self.there)
            counted = self._scalar(there.where(same, which).with_for_update())
        updated = self.connection.execute(sa.update(self.there).where(same, which).values(others))
        is_there = sa.select(_ONE).select_from(self.there).where(same)
        new = sa.select(*values.values()).where(
            which, sa.not_(is_there.correlate(self.newest).exists())
        )
        insert = sa.insert(self.there).from_select(list(values), new)
        kept = {"preserve_rowcount": True}
        inserted = self.connection.execute(insert, execution_options=kept)
        return (updated.rowcount if counted is None else counted) + inserted.rowcount

    def check_put(self, which: _Condition, told_by: Sequence[str], name: str, changed: int) -> None:
        """Raises TargetError unless just such keys are there, once, as put: what they are `told_by`
        later did not change. `changed` are the rows that were put."""
        new, there = self.newest.c, self.there.c
        count, keys = sa.func.count(), sa.func.count(sa.distinct(new[KEY]))
        wanted = self._scalar(sa.select(count).select_from(self.newest).where(which))
        same = self.same(self.newest)
        as_put = [there[each] == new[each] for each in told_by]
        joined = sa.select(keys).select_from(self.newest, self.there)
        put = self._scalar(joined.where(same, which, *as_put))
        found = self._scalar(sa.select(count).select_from(self.newest, self.there).where(same))
        if not put == found == wanted:
            raise TargetError(
                f"the table {name} has {found} rows of {wanted} keys after the upsert, {put} of "
                "them as they came: it has several rows of a key, or a trigger or a constraint of "
                "it leaves rows out, or changes their key, order or place. Nothing was committed; "
                "take that off, or name another table"
            )
        if changed > wanted:
            raise TargetError(
                f"the table {name} took {changed} rows of {wanted} keys: a trigger of it gives a "
                "row that changes another key. Nothing was committed; take that off, or name "
                "another table"
            )

    def _scalar(self, query: sa.Select[Any]) -> int:
        return int(self.connection.execute(query).scalar_one())


def _one_of(columns: Sequence[sa.ColumnElement[Any]], keys: sa.Select[Any]) -> _Condition:
    return columns[0].in_(keys) if len(columns) == 1 else sa.tuple_(*columns).in_(keys)


def _make_staged(connection: sa.Connection, found: Found, schema: pa.Schema) -> None:
    """A temporary table with the types of the table's own columns."""
    extra = {
        DELETED: "BOOLEAN",
        KEY: "BYTEA" if connection.dialect.name == "postgresql" else "BLOB",
        ORDER: "BIGINT",
    }
    if connection.dialect.name == "mariadb":
        _make_staged_in_mariadb(connection, found, schema)
        return
    columns = [
        f"CAST(NULL AS {extra[name]}) AS {name}" if name in extra else quoted(name)
        for name in schema.names
    ]
    query = f"SELECT {', '.join(columns)} FROM {found.quoted} WHERE 1 = 0"
    if connection.dialect.paramstyle in ("format", "pyformat"):
        query = query.replace("%", "%%")
    connection.exec_driver_sql(f"{_temporary(connection, _STAGED)} AS {query}")


def _make_staged_in_mariadb(connection: sa.Connection, found: Found, schema: pa.Schema) -> None:
    """MariaDB casts to no such types, and would have columns that take no null take none here; of
    deleted rows nothing but the key is there."""
    extra = {DELETED: "BOOLEAN", KEY: "LONGBLOB", ORDER: "BIGINT"}
    own = [f"{name} {extra[name]}" for name in schema.names if name in extra]
    columns = ", ".join(quoted(name) for name in schema.names if name not in extra)
    query = f"SELECT {columns} FROM (SELECT 1) one LEFT JOIN {found.quoted} there ON FALSE LIMIT 0"
    statement = f"CREATE TEMPORARY TABLE {_STAGED} ({', '.join(own)}) ENGINE=InnoDB AS {query}"
    connection.exec_driver_sql(statement.replace("%", "%%"))


def _make_newest(connection: sa.Connection, staged: sa.TableClause, upsert: Upsert) -> None:
    order = [staged.c[ORDER].desc()] if upsert.order_by else []
    topic = _exact(connection.dialect.name, staged.c.topic)
    order += [column.desc() for column in (topic, staged.c.partition, staged.c.offset)]
    key = _one_of_each(connection.dialect.name, staged.c[KEY])
    place = sa.func.row_number().over(partition_by=key, order_by=order)
    # By labels, as SQLAlchemy cuts off names of columns that are almost as long as they may be.
    named = [each.label(each.name) for each in staged.c]
    ranked = sa.select(*named, place.label("kafkalog_place")).subquery()
    newest = sa.select(*(ranked.c[each.name] for each in staged.c)).where(
        ranked.c.kafkalog_place == _ONE
    )
    text = newest.compile(dialect=connection.dialect)
    connection.exec_driver_sql(f"{_temporary(connection, _NEWEST)} AS {text}")
    if connection.dialect.name == "postgresql":
        # Else it may read the whole table for a few rows.
        connection.exec_driver_sql(f"ANALYZE {_NEWEST}")


def _temporary(connection: sa.Connection, name: str) -> str:
    """For one transaction: a pool of connections, as PgBouncer is, gives this one to others."""
    how = {"postgresql": " ON COMMIT DROP", "mariadb": " ENGINE=InnoDB"}
    return f"CREATE TEMPORARY TABLE {name}{how.get(connection.dialect.name, '')}"


def _refuse_two_partitions(connection: sa.Connection, staged: sa.TableClause) -> None:
    topic, partition = staged.c.topic, staged.c.partition
    exact = _exact(connection.dialect.name, topic)
    low, high = sa.func.min, sa.func.max
    query = (
        sa.select(low(topic), low(partition), high(topic), high(partition))
        .group_by(_one_of_each(connection.dialect.name, staged.c[KEY]))
        .having(sa.or_(low(exact) != high(exact), low(partition) != high(partition)))
    )
    row = connection.execute(query.limit(1)).first()
    if row is not None:
        topic, partition, other_topic, other_partition = row
        raise two_partitions(f"{topic}-{partition}", f"{other_topic}-{other_partition}")


def _taken(name: str, error: IntegrityError) -> TargetError:
    """Databases compare what is UNIQUE after each row that they change."""
    return TargetError(
        f"the table {name} takes no such rows, and nothing was committed: {error.orig}. Of columns "
        "beside the key that are UNIQUE it also refuses values that rows exchange, or that a row "
        "gives up in a record which is not loaded yet: have them compared at the end (PostgreSQL: "
        "DEFERRABLE INITIALLY DEFERRED), or take that off"
    )


def _refuse_unordered_texts(
    connection: sa.Connection, staged: sa.TableClause, field: pa.Field
) -> None:
    """SQLite has times as texts, whose order is that of time in the years 1 to 9999."""
    if pa.types.is_temporal(field.type):
        length = _DAY_TEXT if pa.types.is_date(field.type) else _TIME_TEXT
        others = sa.select(_ONE).select_from(staged)
        query = others.where(sa.func.length(staged.c[field.name]) != length)
        if connection.execute(query.limit(1)).first():
            raise InvalidRowError(
                f"{field.name} is before the year 1 or after 9999, whose order SQLite does not "
                "know: nothing was published. Name a column of numbers in order_by"
            )
