"""A table of a SQL database as a load target: rows and offsets in one transaction.

    TABLE              the rows; times in UTC (timestamptz; text in SQLite, which has no times)
    kafkalog_commits   a row for each load: TABLE, load name, number from 1, load id, time, records
    kafkalog_offsets   where each load goes on: TABLE, load name, topic, partition, next offset
    kafkalog_topics    the ids of these topics: TABLE, load name, topic, topic id
    kafkalog_gaps      the offsets that loads gave up: TABLE, load name, number of the commit, range

Tasks write Parquet files to the driver's temporary directory (TMPDIR), which executors on other
machines must share; the driver then copies them into TABLE by what the database has for it: COPY in
PostgreSQL (psycopg), read_parquet in DuckDB, many rows at a time in SQLite. Nested columns,
such as `headers`, become JSON with bytes in base64, in DuckDB lists, structs and maps.

The commit point is the database's COMMIT. Fenced: the first statement of the transaction inserts
the next number of this load name into kafkalog_commits, whose primary key lets one loader do so;
only then are the offsets compared with the plan. A rival waits for the key (PostgreSQL) or for its
turn (SQLite, DuckDB), and looks again. Where the answer to COMMIT was lost, the
load id in kafkalog_commits tells whether it took place.

Memory of the driver: BATCH_ROWS rows and their text, at most a row group (ROW_GROUP_BYTES of
landing.py) and three times its size as text, whatever the number of rows. Measured with 2 million
rows of 100 bytes: 75 MiB more than before the commit with PostgreSQL, 35 MiB with SQLite, 170 MiB
with DuckDB, which has its own `memory_limit`.

Commit.sequence counts the commits of a load name. Passwords are shown nowhere. Called by the
driver, from any thread or process; DuckDB lets one process at a time open a file.
"""

import base64
import binascii
import json
import math
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import sqlalchemy as sa
from kafka.structs import TopicPartition
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

from pyspark_kafkalog.errors import InvalidOptionError, TargetError
from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    NO_IDS,
    NOWHERE,
    Commit,
    DataFile,
    Position,
    Stage,
    TopicIds,
    check_unmoved,
    commit_of_now,
)
from pyspark_kafkalog.warehouse.layout import PartitionField
from pyspark_kafkalog.warehouse.staging import LOAD_ID, check_staged, new_load_id, staged_path
from pyspark_kafkalog.warehouse.storage import last_change

BATCH_ROWS = 50_000

# The columns table_name and load_name, and their values.
_LoadKey: TypeAlias = Mapping[str, str]

# By the columns that are a key's and their values: one more column and its value.
_Rows: TypeAlias = Mapping[tuple[tuple[str, Any], ...], tuple[str, Any]]

_MISSING_FILE = (
    "Loads into a SQL database go by way of the driver's temporary directory: set TMPDIR to one "
    "that the driver and all executors share."
)
_STAGE = re.compile(f"kafkalog-{LOAD_ID}")
_DIALECTS = ("postgresql", "sqlite", "duckdb")
# How long a loader waits for another one that writes to the same SQLite file.
_SQLITE_WAIT_S = 600
_TIMES_TO_CREATE = 20
# A file that one thread closes cannot be opened by another one at the same instant.
_duckdb_turn = threading.Lock()
_WILDCARD = re.compile(r"[\[*?]")
_EPOCH = datetime(1970, 1, 1)
_CYCLE_US = 146_097 * 24 * 3600 * 1_000_000
"""400 years: after that long, the calendar repeats itself."""

_FIRST_DATE_US = -62_135_596_800_000_000
_LAST_DATE_US = 253_402_300_799_999_999


class _DuckType(sa.types.UserDefinedType[Any]):
    """A nested type of DuckDB, by its name."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


# Of PostgreSQL and SQLite in SQLAlchemy's words, and DuckDB's own names, which nested types need.
_SCALARS: Mapping[pa.DataType, tuple[sa.types.TypeEngine[Any], str]] = {
    pa.bool_(): (sa.Boolean(), "BOOLEAN"),
    pa.int32(): (sa.Integer(), "INTEGER"),
    pa.int64(): (sa.BigInteger(), "BIGINT"),
    pa.float32(): (sa.REAL(), "FLOAT"),
    pa.float64(): (sa.Double(), "DOUBLE"),
    pa.date32(): (sa.Date(), "DATE"),
    pa.timestamp("us"): (sa.DateTime(), "TIMESTAMP"),
    pa.timestamp("us", "UTC"): (sa.DateTime(timezone=True), "TIMESTAMP WITH TIME ZONE"),
    pa.string(): (sa.Text(), "VARCHAR"),
    pa.binary(): (sa.LargeBinary(), "BLOB"),
}


class SqlTarget:
    """The table `table`, or SCHEMA.TABLE, of the database at `url`. See target.Target for the
    promises. Raises InvalidOptionError for a URL that is not one or of a database that is not known
    here, ImportError without its driver."""

    def __init__(self, url: str, table: str) -> None:
        try:
            self._url = sa.make_url(url)
        except (ArgumentError, ValueError):
            # Not its text, which may hold a password.
            raise InvalidOptionError(
                "the target's URL is none of SQLAlchemy's: write for example "
                "sql:postgresql://USER:PASSWORD@HOST/DATABASE#TABLE"
            ) from None
        if self._url.get_backend_name() not in _DIALECTS:
            raise InvalidOptionError(
                f"sql: targets are databases of {', '.join(_DIALECTS)}, not of "
                f"{self._url.get_backend_name()}"
            )
        if self._url.drivername == "postgresql":
            self._url = self._url.set(drivername="postgresql+psycopg")
        if not self._url.database or self._url.database == ":memory:":
            raise InvalidOptionError(f"{self._shown_url} names no database that outlives a load")
        try:
            self._url.get_dialect().import_dbapi()
        except NoSuchModuleError:
            raise ModuleNotFoundError(name=f"{self._url.get_backend_name()}_engine") from None
        self.table = table
        schema, _, name = table.rpartition(".")
        self._metadata = sa.MetaData(schema=schema or None)
        self._name = name
        self._commits = sa.Table(
            "kafkalog_commits",
            self._metadata,
            sa.Column("table_name", sa.Text, primary_key=True),
            sa.Column("load_name", sa.Text, primary_key=True),
            sa.Column("commit_number", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("load_id", sa.Text, nullable=False),
            sa.Column("committed_at", sa.DateTime(timezone=True), nullable=False),
            sa.Column("records", sa.BigInteger, nullable=False),
        )
        self._offsets = sa.Table(
            "kafkalog_offsets",
            self._metadata,
            sa.Column("table_name", sa.Text, primary_key=True),
            sa.Column("load_name", sa.Text, primary_key=True),
            sa.Column("topic", sa.Text, primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("next_offset", sa.BigInteger, nullable=False),
        )
        self._topics = sa.Table(
            "kafkalog_topics",
            self._metadata,
            sa.Column("table_name", sa.Text, primary_key=True),
            sa.Column("load_name", sa.Text, primary_key=True),
            sa.Column("topic", sa.Text, primary_key=True),
            sa.Column("topic_id", sa.Text, nullable=False),
        )
        self._gaps = sa.Table(
            "kafkalog_gaps",
            self._metadata,
            sa.Column("table_name", sa.Text, primary_key=True),
            sa.Column("load_name", sa.Text, primary_key=True),
            sa.Column("commit_number", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("topic", sa.Text, primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("start_offset", sa.BigInteger, nullable=False),
            sa.Column("until_offset", sa.BigInteger, nullable=False),
        )

    def __repr__(self) -> str:
        return f"SqlTarget({self._shown_url!r}, {self.table!r})"

    def __str__(self) -> str:
        return f"sql:{self._shown_url}#{self.table}"

    @property
    def _shown_url(self) -> str:
        return self._url.set(query={}).render_as_string(hide_password=True)

    def position(self, name: str, read_only: bool = False) -> Position:
        if self._is_missing_file():
            # To connect would make it, and what the load is asked for may yet be refused.
            return NOWHERE
        with self._explained(f"open the load target {self}"), self._transaction() as connection:
            if not sa.inspect(connection).has_table(self._offsets.name, self._offsets.schema):
                return NOWHERE
            return self._position(connection, self._load_key(connection, name))

    def _is_missing_file(self) -> bool:
        if self._url.get_backend_name() not in ("sqlite", "duckdb"):
            return False
        path = str(self._url.database or "")
        if path.startswith(("md:", "file:")) or os.path.exists(path):
            return False
        # One that cannot be made either is better told now than when all is landed.
        return os.path.isdir(os.path.dirname(os.path.abspath(path)))

    def stage(self, schema: pa.Schema, partition_by: Sequence[PartitionField] = ()) -> Stage:
        if partition_by:
            raise InvalidOptionError(
                f"partition_by has no meaning for {self}: tables of databases are partitioned "
                "where they are created"
            )
        load_id = new_load_id()
        with self._explained(f"write to the load target {self}"):
            self._create(schema)
            path = os.path.join(tempfile.gettempdir(), f"kafkalog-{load_id}")
            os.mkdir(path, mode=0o700)
        takes_nul = self._url.get_backend_name() != "postgresql"
        return Stage(load_id, path, schema, takes_nul=takes_nul)

    def commit(
        self,
        stage: Stage,
        name: str,
        planned_from: Offsets,
        ranges: Sequence[OffsetRange],
        files: Sequence[DataFile],
        topic_ids: TopicIds = NO_IDS,
    ) -> Commit:
        with self._explained(
            f"commit to the load target {self} (to run the load again is safe: it goes on from the "
            "newest commit, whether that is this one or not)"
        ):
            try:
                check_staged(stage, files, _MISSING_FILE)
                number, position, gaps = self._publish(
                    stage, name, planned_from, ranges, files, topic_ids
                )
            finally:
                # Committed or not, the files have served: the rows are in the database, or the
                # next load lands them again.
                self.discard(stage)
        return commit_of_now(number, name, stage.load_id, ranges, files, position, gaps)

    def discard(self, stage: Stage) -> None:
        shutil.rmtree(stage.path, ignore_errors=True)

    def forget(self, name: str) -> bool:
        """Takes the next number of the name, as a commit does, so that a load at work looks again,
        and deletes its rows of kafkalog_offsets and kafkalog_topics."""
        if self._is_missing_file():
            return False
        with self._explained(f"forget load {name!r} in {self}"):
            while True:
                with self._transaction() as connection:
                    if not sa.inspect(connection).has_table(
                        self._offsets.name, self._offsets.schema
                    ):
                        return False
                    key = self._load_key(connection, name)
                    newest = self._newest(connection, key)
                    if self._position(connection, key) == NOWHERE:
                        return False
                try:
                    with self._transaction() as connection:
                        self._take_number(connection, new_load_id(), key, newest + 1, [])
                        current = self._position(connection, key)
                        self._move(connection, key, current, NOWHERE)
                    return True
                except SQLAlchemyError:
                    with self._transaction() as connection:
                        if self._newest(connection, key) == newest:
                            raise

    def vacuum(self, idle_s: float, dry_run: bool) -> list[str]:
        """Staged files name no database: those of any load by way of this machine's directory are
        swept. A loader that wakes up finds them missing, and its transaction is rolled back."""
        directory, oldest = tempfile.gettempdir(), time.time() - idle_s
        names = sorted(name for name in os.listdir(directory) if _STAGE.fullmatch(name))
        paths = [os.path.join(directory, name) for name in names]
        idle = [path for path in paths if last_change(path) < oldest]
        for path in [] if dry_run else idle:
            shutil.rmtree(path, ignore_errors=True)
        return idle

    def _publish(
        self,
        stage: Stage,
        name: str,
        planned_from: Offsets,
        ranges: Sequence[OffsetRange],
        files: Sequence[DataFile],
        topic_ids: TopicIds,
    ) -> tuple[int, Position, Sequence[OffsetRange]]:
        while True:
            with self._transaction() as connection:
                key = self._load_key(connection, name)
                newest = self._newest(connection, key)
            try:
                with self._transaction() as connection:
                    self._take_number(connection, stage.load_id, key, newest + 1, files)
                    current = self._position(connection, key)
                    check_unmoved(name, str(self), current.offsets, planned_from, ranges)
                    position = current.moved(ranges, topic_ids)
                    gaps = current.gaps(ranges, topic_ids)
                    self._move(connection, key, current, position)
                    self._record_gaps(connection, key, newest + 1, gaps)
                    self._copy(connection, stage, files)
                return newest + 1, position, gaps
            except SQLAlchemyError:
                with self._transaction() as connection:
                    if self._has_committed(connection, stage):
                        # Only the answer was lost.
                        return newest + 1, position, gaps
                    if self._newest(connection, key) == newest:
                        raise
                # A load of the same name was faster, perhaps with other partitions.

    def _load_key(self, connection: sa.Connection, name: str) -> _LoadKey:
        """What tells the rows of load `name` from those of others.

        SQLite and DuckDB tell no tables apart whose names differ by the case of ASCII letters
        alone: a table is recorded as the first commit called it, which is what it is called itself.
        """
        table = self._name
        if self._url.get_backend_name() != "postgresql":
            inspector = sa.inspect(connection)
            schema = self._metadata.schema
            found = [*inspector.get_table_names(schema), *inspector.get_view_names(schema)]
            if self._commits.name in found:
                query = sa.select(self._commits.c.table_name).distinct()
                recorded = connection.execute(query).scalars()
                found = [*sorted(recorded, key=lambda one: one != table), *found]
            folded = table.encode().lower()
            table = next((one for one in found if one.encode().lower() == folded), table)
        return {"table_name": table, "load_name": name}

    def _take_number(
        self,
        connection: sa.Connection,
        load_id: str,
        key: _LoadKey,
        number: int,
        files: Sequence[DataFile],
    ) -> None:
        values = {
            **key,
            "commit_number": number,
            "load_id": load_id,
            "committed_at": datetime.now(timezone.utc),
            "records": sum(file.records for file in files),
        }
        connection.execute(self._commits.insert(), values)

    def _newest(self, connection: sa.Connection, key: _LoadKey) -> int:
        """The number of a load's last commit; 0 before the first."""
        query = sa.select(sa.func.max(self._commits.c.commit_number)).filter_by(**key)
        return connection.execute(query).scalar() or 0

    def _has_committed(self, connection: sa.Connection, stage: Stage) -> bool:
        query = sa.select(self._commits).where(self._commits.c.load_id == stage.load_id)
        return connection.execute(query).first() is not None

    def _position(self, connection: sa.Connection, key: _LoadKey) -> Position:
        """Where a load goes on."""
        offsets = {
            TopicPartition(row.topic, row.partition): row.next_offset
            for row in connection.execute(sa.select(self._offsets).filter_by(**key))
        }
        topic_ids = {}
        # A database that was last loaded by an older version has no such table yet.
        if sa.inspect(connection).has_table(self._topics.name, self._topics.schema):
            for row in connection.execute(sa.select(self._topics).filter_by(**key)):
                topic_ids[row.topic] = UUID(row.topic_id)
        return Position(offsets, topic_ids)

    def _move(
        self, connection: sa.Connection, key: _LoadKey, current: Position, position: Position
    ) -> None:
        rows = [_offset_rows(each.offsets) for each in (current, position)]
        self._replace(connection, self._offsets, key, *rows)
        rows = [_id_rows(each.topic_ids) for each in (current, position)]
        self._replace(connection, self._topics, key, *rows)

    def _replace(
        self,
        connection: sa.Connection,
        table: sa.Table,
        load_key: _LoadKey,
        current: _Rows,
        wanted: _Rows,
    ) -> None:
        """Makes the rows of a load, which are `current` ones, those that are wanted."""
        for key in sorted(current.keys() | wanted.keys()):
            if current.get(key) == wanted.get(key):
                continue
            place = {**load_key, **dict(key)}
            of_key = [table.c[column] == value for column, value in place.items()]
            if key not in wanted:
                connection.execute(table.delete().where(*of_key))
            elif key not in current:
                connection.execute(table.insert(), {**place, **dict([wanted[key]])})
            else:
                connection.execute(table.update().where(*of_key), dict([wanted[key]]))

    def _record_gaps(
        self, connection: sa.Connection, key: _LoadKey, number: int, gaps: Sequence[OffsetRange]
    ) -> None:
        of_commit = {**key, "commit_number": number}
        for gap in gaps:
            connection.execute(self._gaps.insert(), {**of_commit, **asdict(gap)})

    def _create(self, schema: pa.Schema) -> None:
        """Makes what is missing of the tables; raises TargetError when a column is."""
        columns = [
            # Quoted, as not every dialect knows each keyword of its database.
            sa.Column(sa.quoted_name(field.name, quote=True), _column_type(field.type))
            for field in schema
        ]
        table = sa.Table(self._name, sa.MetaData(schema=self._metadata.schema), *columns)
        for attempt in range(1, _TIMES_TO_CREATE + 1):
            try:
                with self._transaction() as connection:
                    for wanted in (table, *self._metadata.sorted_tables):
                        connection.execute(CreateTable(wanted, if_not_exists=True))
                    query = sa.select(sa.text("*")).select_from(table).limit(0)
                    there = list(connection.execute(query).keys())
                break
            except DBAPIError:
                # IF NOT EXISTS fails in PostgreSQL and DuckDB while another loader is doing it.
                if attempt == _TIMES_TO_CREATE:
                    raise
                time.sleep(0.01 * attempt)
        missing = [name for name in schema.names if name not in there]
        if missing:
            raise TargetError(
                f"the table {self.table} has no column {missing[0]}: add it, or name another table"
            )

    def _copy(self, connection: sa.Connection, stage: Stage, files: Sequence[DataFile]) -> None:
        """Inserts the rows of all files, within the transaction of `connection`."""
        preparer = connection.dialect.identifier_preparer
        names = stage.schema.names
        table = preparer.format_table(sa.Table(self._name, sa.MetaData(self._metadata.schema)))
        into = f"{table} ({', '.join(map(_quoted, names))})"
        paths = [staged_path(stage, file.name) for file in files]
        if connection.dialect.name == "duckdb":
            columns = ", ".join(map(_quoted, names))
            for path in paths:
                # Not what DuckDB reads out of a path: directories named COLUMN=VALUE, wildcards.
                files = "read_parquet(?, hive_partitioning = false)"
                statement = f"INSERT INTO {into} SELECT {columns} FROM {files}"
                connection.exec_driver_sql(statement, (_WILDCARD.sub(r"[\g<0>]", path),))
        elif connection.dialect.driver == "psycopg":
            # The texts of times name no zone.
            connection.exec_driver_sql("SET LOCAL TIME ZONE 'UTC'")
            with (
                _psycopg_cursor(connection) as cursor,
                cursor.copy(f"COPY {into} FROM STDIN (FORMAT csv)") as copy,
            ):
                for batch in _batches(paths):
                    copy.write(_csv(batch))
        else:
            places = ", ".join("?" * len(names))
            for batch in _batches(paths):
                rows = zip(*(column.to_pylist() for column in _plain_columns(batch)), strict=True)
                statement = f"INSERT INTO {into} VALUES ({places})"
                connection.exec_driver_sql(statement, list(rows))

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """A connection of its own, so that nothing is shared between threads and processes."""
        kind = self._url.get_backend_name()
        wait = {"timeout": _SQLITE_WAIT_S} if kind == "sqlite" else {}
        engine = sa.create_engine(
            self._url, poolclass=NullPool, hide_parameters=True, connect_args=wait
        )
        try:
            with _duckdb_turn if kind == "duckdb" else nullcontext():
                if kind == "duckdb":
                    _make_duckdb_file(str(self._url.database))
                with engine.begin() as connection:
                    yield connection
        except engine.dialect.loaded_dbapi.Error as error:
            # From COPY, which SQLAlchemy does not see.
            raise DBAPIError("COPY", {}, error, hide_parameters=True) from error
        finally:
            engine.dispose()

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Errors of the database and of the operating system become a TargetError that says what
        could not be done, without the password."""
        try:
            yield
        except (SQLAlchemyError, OSError, pa.ArrowException) as error:
            original = getattr(error, "orig", None) or error
            message = f"cannot {doing}: {type(original).__name__}: {original}"
            secrets = [self._url.password, *map(str, self._url.query.values())]
            hidden = message
            for secret in filter(None, secrets):
                hidden = hidden.replace(secret, "***")
            raise TargetError(hidden) from (error if hidden == message else None)


def _offset_rows(offsets: Offsets) -> _Rows:
    return {
        tuple(key._asdict().items()): ("next_offset", offset) for key, offset in offsets.items()
    }


def _id_rows(topic_ids: TopicIds) -> _Rows:
    return {(("topic", topic),): ("topic_id", str(one)) for topic, one in topic_ids.items()}


def _make_duckdb_file(path: str) -> None:
    """Makes a missing file in one step: DuckDB takes several, and cannot open one of which it was
    killed in the middle."""
    if path.startswith("md:") or os.path.exists(path):
        return
    import duckdb

    scratch = f"{path}.{uuid.uuid4().hex}.creating"
    duckdb.connect(scratch).close()
    try:
        os.link(scratch, path)
    except FileExistsError:
        pass  # Another loader was faster.
    finally:
        os.unlink(scratch)


def _psycopg_cursor(connection: sa.Connection) -> Any:
    """psycopg's own cursor in the transaction of `connection`."""
    raw: Any = connection.connection.driver_connection
    return raw.cursor()


def _batches(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(BATCH_ROWS)


def _column_type(kind: pa.DataType) -> sa.types.TypeEngine[Any]:
    """What a column of an Arrow type is in each database."""
    if pa.types.is_decimal(kind):
        # SQLite would make a float of it.
        return sa.Numeric(kind.precision, kind.scale).with_variant(sa.Text(), "sqlite")
    if kind in _SCALARS:
        return _SCALARS[kind][0]
    in_duckdb = _DuckType(_duck_name(kind))
    return sa.Text().with_variant(JSONB(), "postgresql").with_variant(in_duckdb, "duckdb")


def _duck_name(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        fields = (f"{_quoted(child.name)} {_duck_name(child.type)}" for child in kind)
        return f"STRUCT({', '.join(fields)})"
    if pa.types.is_list(kind):
        return f"{_duck_name(kind.value_type)}[]"
    if pa.types.is_map(kind):
        return f"MAP({_duck_name(kind.key_type)}, {_duck_name(kind.item_type)})"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _SCALARS[kind][1]


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _plain_columns(batch: pa.RecordBatch) -> Iterator[pa.Array]:
    """The columns with times, decimals and what is nested as text."""
    for column in batch.columns:
        kind = column.type
        if pa.types.is_timestamp(kind):
            yield _time_texts(column)
        elif pa.types.is_nested(kind):
            yield pa.array([_json(value, kind) for value in column.to_pylist()], pa.string())
        elif pa.types.is_decimal(kind) or pa.types.is_date(kind):
            yield column.cast(pa.string())
        else:
            yield column


def _csv(batch: pa.RecordBatch) -> memoryview:
    """Rows as PostgreSQL's COPY reads them: bytes in hexadecimal, null as nothing at all, every
    text in quotes."""
    columns = [
        _hexadecimal(column) if pa.types.is_binary(column.type) else column
        for column in _plain_columns(batch)
    ]
    text = pa.BufferOutputStream()
    options = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
    pa.csv.write_csv(pa.RecordBatch.from_arrays(columns, batch.schema.names), text, options)
    return memoryview(text.getvalue())


def _hexadecimal(column: pa.BinaryArray) -> pa.LargeStringArray:
    r"""Bytes as PostgreSQL writes them: `\x` and two digits for each."""
    if not len(column):
        return pa.array([], pa.large_string())
    _, offsets, content = column.buffers()
    ends = pa.Array.from_buffers(
        pa.int32(), len(column) + 1, [None, offsets], offset=column.offset
    ).cast(pa.int64())
    start, end = ends[0].as_py(), ends[-1].as_py()
    digits = binascii.hexlify(memoryview(content)[start:end]) if content else b""
    places = pc.multiply(pc.subtract(ends, start), 2)
    valid = pc.is_valid(column)
    texts = pa.LargeStringArray.from_buffers(
        len(column), pa.py_buffer(places.buffers()[1]), pa.py_buffer(digits)
    )
    prefix = pa.scalar("\\x", pa.large_string())
    joined = pc.binary_join_element_wise(prefix, texts, pa.scalar("", pa.large_string()))
    return pc.if_else(valid, joined, pa.scalar(None, pa.large_string()))


def _time_texts(column: pa.TimestampArray) -> pa.StringArray:
    """Times in UTC as `2026-11-01 00:00:00.000000`, which every database understands."""
    bounds = pc.min_max(column.cast(pa.int64())).as_py()
    if bounds["min"] is None:
        return pa.nulls(len(column), pa.string())
    if bounds["min"] >= _FIRST_DATE_US and bounds["max"] <= _LAST_DATE_US:
        return column.cast(pa.timestamp("us")).cast(pa.string())
    return pa.array([_time_text(time_us) for time_us in column.cast(pa.int64()).to_pylist()])


def _time_text(time_us: int | None) -> str | None:
    """As `_time_texts`, also where a producer's clock counts beyond the years 1 to 9999."""
    if time_us is None:
        return None
    cycles, rest_us = divmod(time_us, _CYCLE_US)
    moment = _EPOCH + timedelta(microseconds=rest_us)
    year = moment.year + 400 * cycles
    text = f"{moment:%m-%d %H:%M:%S.%f}"
    if year > 0:
        return f"{year:04}-{text}"
    # PostgreSQL's calendar begins there.
    return f"{1 - year:04}-{text} BC" if year > -4712 else "-infinity"


def _json(value: Any, kind: pa.DataType) -> str | None:
    """A nested value as JSON."""
    return None if value is None else json.dumps(_document(value, kind), ensure_ascii=False)


def _document(value: Any, kind: pa.DataType) -> Any:
    """What JSON has for a value: bytes in base64, times and decimals as text, a map as an object,
    what is no number as null."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if pa.types.is_struct(kind):
        return {child.name: _document(value[child.name], child.type) for child in kind}
    if pa.types.is_list(kind):
        return [_document(element, kind.value_type) for element in value]
    if pa.types.is_map(kind):
        return {
            str(_document(key, kind.key_type)): _document(item, kind.item_type)
            for key, item in value
        }
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
