"""A load into a table of a database goes back: its records, and rows that it would land again, in
one transaction.

It takes the next number of the name first, as a commit does, so that a load at work looks again;
then, in PostgreSQL, the lock that lets others read and nobody write, so that what is counted is
what is deleted. MariaDB has no such lock, and deletes nothing where the numbers differ. Topics are
compared byte by byte, whatever the collation of their column. In a table that is upserted nothing
is doubled: records that come again take the place of their keys' rows, which so are never deleted.

Called by the driver, by sql.py alone.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import SQLAlchemyError

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.warehouse.targets.rewound import (
    ORIGIN,
    Rewind,
    Rewound,
    RowsBeyond,
    StepBack,
    no_origin,
)
from pyspark_kafkalog.warehouse.targets.sql_database import Database, Tries
from pyspark_kafkalog.warehouse.targets.sql_records import rewound_id
from pyspark_kafkalog.warehouse.targets.sql_tables import (
    Found,
    TableName,
    columns,
    find,
    keep,
    key_of,
    refuse_gone,
    refuse_unknown,
    run_deferred,
    wait_for_turn,
)
from pyspark_kafkalog.warehouse.targets.upserted import cannot_take_back

_ORIGIN_SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)
_AT_A_TIME = 100
"""How many partitions a condition names: SQLite bounds its depth."""


def go_back(database: Database, table: TableName, asked: Rewind, target: str) -> Rewound:
    """Raises InvalidOptionError, WouldDoubleError, TargetError, SQLAlchemyError."""
    tries, load_id, name = Tries(), rewound_id(), asked.name
    while True:
        with database.transaction() as connection:
            found = find(connection, table)
            refuse_gone(connection, found)
            refuse_unknown(connection, found, name)
            records = found.records(connection)
            newest = records.newest(name)
            # As the next number finds it: whoever moves it takes that number.
            step = asked.step_from(records.position(name), target)
        try:
            with database.transaction() as connection:
                records = found.records(connection)
                wait_for_turn(connection, found)
                records.take_number(name, newest + 1, load_id, 0, step.position)
                keep(connection, found, is_altered=False, is_alone=True)
                # Not before: a load may have moved the name on with rows of its own.
                rows = _check(connection, found, asked, step, target)
                if not (step.ranges or rows.all):
                    connection.rollback()
                    return Rewound()
                _delete(connection, found, step.places, rows.all, target)
                records.move(name, records.recorded_position(name), step.position)
            return Rewound(step.ranges, rows.all)
        except SQLAlchemyError as error:
            with database.transaction() as connection:
                records = found.records(connection)
                if records.has_load(load_id):
                    # Only the answer was lost.
                    return Rewound(step.ranges, rows.all)
                if records.newest(name) == newest and not tries.may_go_on(error):
                    raise
        tries.pause()


def _check(
    connection: sa.Connection, found: Found, asked: Rewind, step: StepBack, target: str
) -> RowsBeyond:
    """The rows from the places on. Raises TargetError where there must be none."""
    if found.records(connection).upsert() is not None:
        if asked.truncates:
            raise cannot_take_back(found.name)
        return RowsBeyond()
    table = _table(found)
    if connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is None:
        return RowsBeyond()
    _refuse_without_origin(connection, found, target)
    unknown = sa.or_(*(table.c[name].is_(None) for name in ORIGIN))
    lost = _count(connection, table, unknown)
    if lost:
        raise no_origin(target, f"{lost:,} of them have null there")
    rows = RowsBeyond(
        sum(_count(connection, table, each) for each in _beyond(connection, table, step.places)),
        sum(_count(connection, table, each) for each in _beyond(connection, table, step.now)),
    )
    asked.check(step, rows, target)
    if rows.all:
        others = found.records(connection).others_in(asked.name, step.places.keys())
        for other, place in others.items():
            raise asked.not_alone(other, place)
    return rows


def _delete(
    connection: sa.Connection, found: Found, places: Offsets, rows: int, target: str
) -> None:
    if not rows:
        return
    table = _table(found)
    deleted = sum(
        connection.execute(sa.delete(table).where(beyond)).rowcount
        for beyond in _beyond(connection, table, places)
    )
    if connection.dialect.name == "mariadb" and deleted != rows:
        raise TargetError(
            f"{deleted:,} rows of {target} would be deleted, and {rows:,} were counted before: "
            "others write to the table. Nothing was changed; rewind again"
        )
    run_deferred(connection)
    left = sum(_count(connection, table, each) for each in _beyond(connection, table, places))
    if left:
        raise TargetError(
            f"{left:,} of {rows:,} rows of {target} are still there after they were deleted: a "
            "trigger or a rule of the table keeps them. Nothing was changed; take that off, or "
            "delete them yourself"
        )


def _table(found: Found) -> sa.TableClause:
    # Quoted, as some are keywords.
    names = (sa.quoted_name(name, quote=True) for name in ORIGIN)
    return sa.table(found.name, *map(sa.column, names), schema=found.schema)


def _count(connection: sa.Connection, table: sa.TableClause, which: Any) -> int:
    query = sa.select(sa.func.count()).select_from(table).where(which)
    return int(connection.execute(query).scalar_one())


def _beyond(
    connection: sa.Connection, table: sa.TableClause, places: Offsets
) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions that rows from these places on meet, one of them each."""
    exact = _exact(connection.dialect.name, table.c.topic)
    left = iter(sorted(places.items()))
    while some := list(islice(left, _AT_A_TIME)):
        yield sa.or_(
            *(
                sa.and_(
                    table.c.topic == topic,
                    exact(topic),
                    table.c.partition == partition,
                    table.c.offset >= place,
                )
                for (topic, partition), place in some
            )
        )


def _exact(dialect: str, column: sa.ColumnElement[Any]) -> Any:
    """What compares a text byte by byte."""
    if dialect == "duckdb":
        return lambda text: sa.func.encode(column) == sa.func.encode(text)
    if dialect == "mariadb":
        in_unicode = sa.cast(column, mysql.CHAR(charset="utf8mb4"))
        return lambda text: in_unicode.collate("utf8mb4_nopad_bin") == text
    collation = "BINARY" if dialect == "sqlite" else "C"
    return lambda text: sa.cast(column, sa.Text).collate(collation) == text


def _refuse_without_origin(connection: sa.Connection, found: Found, target: str) -> None:
    there = columns(connection, found, _ORIGIN_SCHEMA)
    for field in _ORIGIN_SCHEMA:
        column = there.get(key_of(connection.dialect.name, field.name))
        if column is None or not column.holds(field.type):
            raise no_origin(target, f"it has no column {field.name} as loads make it")
