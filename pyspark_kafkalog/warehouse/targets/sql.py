"""A table of a SQL database as a load target: rows and offsets in one transaction.

Which table, and what it must look like, sql_tables.py says; what is recorded beside it,
sql_records.py: `kafkalog_commits`, `kafkalog_offsets` and two more, in the table's own schema.
Tasks write Parquet files to the driver's temporary directory (TMPDIR), which executors on other
machines must share; the driver then copies them into the table (sql_copy.py).

The commit point is the database's COMMIT. Fenced: the transaction first inserts the next number of
this load name into kafkalog_commits, whose primary key lets one loader do so; only then are the
offsets compared with the plan. A rival waits for the key (PostgreSQL) or for its turn (SQLite,
DuckDB), and looks again. Where the answer to COMMIT was lost, the load id in kafkalog_commits tells
whether it took place; PostgreSQL may still be at it, so a lock of that load id is waited for. As
many rows went in as were landed, by the database's own count, or the transaction is rolled back.
What the table must look like is looked at before rows land, and again in that transaction.

A table that is gone, one with rows that no record tells of, and records that lack one another are
refused: absent is not new.

Commit.sequence counts the commits of a load name. Called by the driver, from any thread or process;
DuckDB lets one process at a time open a file.
"""

import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from pyspark_kafkalog.errors import InvalidOptionError, TargetError
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    Commit,
    CommitRecord,
    DataFile,
    PendingCommit,
    Position,
    Stage,
)
from pyspark_kafkalog.warehouse.rows.allowed_change import UNSAID, SchemaChange
from pyspark_kafkalog.warehouse.rows.calendar_range import MARIADB_DAYS, POSTGRESQL_DAYS
from pyspark_kafkalog.warehouse.rows.layout import PartitionField
from pyspark_kafkalog.warehouse.rows.schema_change import check_unchanged
from pyspark_kafkalog.warehouse.rows.upserts import Upsert, table_columns
from pyspark_kafkalog.warehouse.targets import sql_database
from pyspark_kafkalog.warehouse.targets.directory_storage import last_change
from pyspark_kafkalog.warehouse.targets.mariadb_session import lock
from pyspark_kafkalog.warehouse.targets.rewound import Rewind, Rewound
from pyspark_kafkalog.warehouse.targets.sql_copy import copy_rows
from pyspark_kafkalog.warehouse.targets.sql_database import Database, Tries
from pyspark_kafkalog.warehouse.targets.sql_evolution import (
    alter,
    alterations,
    joined_columns,
    without_altered,
)
from pyspark_kafkalog.warehouse.targets.sql_records import Records, forgotten_id
from pyspark_kafkalog.warehouse.targets.sql_rewind import go_back
from pyspark_kafkalog.warehouse.targets.sql_tables import (
    Found,
    TableName,
    create,
    find,
    has_unknown_rows,
    keep,
    refuse_gone,
    refuse_unfit,
    refuse_unknown,
    wait_for_turn,
)
from pyspark_kafkalog.warehouse.targets.sql_upsert import (
    begin_upsert,
    check_mode,
    refuse_identities,
    refuse_keys,
    upsert_rows,
)
from pyspark_kafkalog.warehouse.targets.staging import (
    LOAD_ID,
    check_staged,
    discard,
    new_load_id,
    staged_path,
)
from pyspark_kafkalog.warehouse.targets.upkeep import Upkeep, Upkept

_MISSING_FILE = (
    "Loads into a SQL database go by way of the driver's temporary directory: set TMPDIR to one "
    "that the driver and all executors share."
)
_STAGE = re.compile(f"kafkalog-{LOAD_ID}")
_TIMES_TO_CREATE = 20
_DAYS = {"postgresql": POSTGRESQL_DAYS, "mariadb": MARIADB_DAYS}
_Read = TypeVar("_Read")
_LONGEST_CREATION_S = 30


class SqlTarget:
    """The table `table`, or SCHEMA.TABLE, of the database at `url`. See target.Target for the
    promises. Raises InvalidOptionError for a URL that is not one or of a database that is not known
    here, or what no table can be called; ImportError without the database's driver."""

    def __init__(self, url: str, table: str) -> None:
        self._database = Database(url)
        self._table = TableName.parse(table, self._database.kind)
        self.table = table

    def __repr__(self) -> str:
        return f"SqlTarget({str(self._database)!r}, {self.table!r})"

    def __str__(self) -> str:
        return f"sql:{self._database}#{self.table}"

    def is_there(self) -> bool:
        if self._database.is_missing_file():
            return False
        with (
            self._database.explained(f"look for the load target {self}"),
            self._database.transaction() as connection,
        ):
            found = find(connection, self._table)
            return found.is_there or found.records(connection).any()

    def position(self, name: str, read_only: bool = False) -> Position:
        if self._database.is_missing_file():
            # To connect would make it, and what the load is asked for may yet be refused.
            return NOWHERE
        with (
            self._database.explained(f"open the load target {self}"),
            self._database.transaction() as connection,
        ):
            found = find(connection, self._table)
            refuse_gone(connection, found)
            refuse_unknown(connection, found, name)
            return found.records(connection).position(name)

    def names(self) -> list[str]:
        return self._read(Records.names)

    def history(self) -> Iterator[CommitRecord]:
        yield from self._read(Records.history)

    def _read(self, what: Callable[[Records], list[_Read]]) -> list[_Read]:
        if self._database.is_missing_file():
            return []
        with (
            self._database.explained(f"read the load target {self}"),
            self._database.transaction() as connection,
        ):
            return what(find(connection, self._table).records(connection))

    def stage(
        self,
        schema: pa.Schema,
        partition_by: Sequence[PartitionField] = (),
        change: SchemaChange = UNSAID,
        upsert: Upsert | None = None,
    ) -> Stage:
        if partition_by:
            raise InvalidOptionError(
                f"partition_by has no meaning for {self}: tables of databases are partitioned "
                "where they are created"
            )
        load_id = new_load_id()
        with self._database.explained(f"write to the load target {self}"):
            schema = table_columns(schema, upsert)
            self._create(schema, upsert)
            with self._database.transaction() as connection:
                found = find(connection, self._table)
                schema = joined_columns(connection, found, schema, change)
                check_mode(connection, found, upsert, schema)
                altered = alterations(connection, found, schema, change)
                refuse_unfit(connection, found, without_altered(schema, altered), schema)
                if upsert is not None:
                    refuse_keys(connection, found, upsert, schema)
                    refuse_identities(connection, found, schema)
            path = os.path.join(tempfile.gettempdir(), f"kafkalog-{load_id}")
            os.mkdir(path, mode=0o700)
        kind = self._database.kind
        return Stage(
            load_id,
            path,
            schema if upsert is None else upsert.schema(schema),
            takes_nul=kind != "postgresql",
            takes_nan=kind not in ("sqlite", "mariadb"),
            takes_infinity=kind != "mariadb",
            days=_DAYS.get(kind),
            change=change,
            upsert=upsert,
        )

    def commit(self, pending: PendingCommit) -> Commit:
        with self._database.explained(
            f"commit to the load target {self} (to run the load again is safe: it goes on from the "
            "newest commit, whether that is this one or not)"
        ):
            try:
                check_staged(pending.stage, pending.files, _MISSING_FILE)
                return self._publish(pending)
            finally:
                # Committed or not, the files have served: the rows are in the database, or the
                # next load lands them again.
                self.discard(pending.stage)

    def discard(self, stage: Stage) -> None:
        discard(stage)

    def forget(self, name: str) -> bool:
        """Takes the next number of the name, as a commit does, so that a load at work looks again,
        and deletes its rows of kafkalog_offsets and kafkalog_topics."""
        if self._database.is_missing_file():
            return False
        with self._database.explained(f"forget load {name!r} in {self}"):
            tries, was_there, load_id = Tries(), False, forgotten_id()
            while True:
                with self._database.transaction() as connection:
                    found = find(connection, self._table)
                    records = found.records(connection)
                    newest = records.newest(name)
                    is_unknown = has_unknown_rows(connection, found)
                    if not (is_unknown or records.has_anything_of(name)):
                        return was_there
                    was_there = True
                    # The other ones may be what was lost.
                    records.create_missing()
                try:
                    with self._database.transaction() as connection:
                        records = find(connection, self._table).records(connection)
                        records.forget(name, newest + 1, load_id)
                    return True
                except SQLAlchemyError as error:
                    with self._database.transaction() as connection:
                        records = find(connection, self._table).records(connection)
                        if records.has_load(load_id):
                            # Only the answer was lost.
                            return True
                        if records.newest(name) == newest and not tries.may_go_on(error):
                            raise
                tries.pause()

    def rewind(self, asked: Rewind) -> Rewound:
        with self._database.explained(f"rewind load {asked.name!r} in {self}"):
            if self._database.is_missing_file():
                # Which says that there is no such load.
                asked.step_from(NOWHERE, str(self))
            return go_back(self._database, self._table, asked, str(self))

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

    def upkeep(self, asked: Upkeep) -> Upkept:
        return Upkept(left=["the table: it is the database's to look after"])

    def _publish(self, pending: PendingCommit) -> Commit:
        name, stage, files = pending.name, pending.stage, pending.files
        tries = Tries()
        while True:
            with self._database.transaction() as connection:
                found = find(connection, self._table)
                if not found.is_there:
                    raise TargetError(
                        f"the table {self.table} was dropped while a load was at work; nothing was "
                        "committed"
                    )
                records = found.records(connection)
                newest = records.newest(name)
                # As the next number finds it: whoever moves it takes that number. Not read after
                # that, as the number's row says how many offsets there are then.
                position = pending.step_from(records.position(name)).position
                columns = table_columns(stage.schema, stage.upsert)
                altered = files and alterations(connection, found, columns, stage.change)
            if altered:
                self._alter_apart(pending)
            try:
                with self._database.transaction() as connection:
                    self._keep(connection, found, pending, bool(altered))
                    self._hold(connection, stage)
                    records = found.records(connection)
                    landed = sum(file.records for file in files)
                    records.take_number(name, newest + 1, stage.load_id, landed, position)
                    current = records.recorded_position(name)
                    pending.check_unmoved(current, str(self))
                    step = pending.step_from(current)
                    records.move(name, current, step.position)
                    records.add_gaps(name, newest + 1, step.gaps)
                    if stage.upsert is not None:
                        begin_upsert(connection, found, stage.upsert, pending)
                    if files:
                        self._fit(connection, found, stage)
                        self._copy(connection, found, stage, files)
                    if stage.upsert is None:
                        # At last: whoever upserts waits for those who write, and they for him.
                        check_mode(connection, found, None, stage.schema)
                return pending.committed(newest + 1, step)
            except SQLAlchemyError as error:
                with self._database.transaction() as connection:
                    self._hold(connection, stage)
                with self._database.transaction() as connection:
                    records = found.records(connection)
                    if records.has_load(stage.load_id):
                        # Only the answer was lost.
                        return pending.committed(newest + 1, step)
                    if records.newest(name) == newest and not tries.may_go_on(error):
                        raise
            # A load of the same name was faster, perhaps with other partitions; or PostgreSQL
            # could not tell in which order this transaction and others came.
            tries.pause()

    def _keep(
        self, connection: sa.Connection, found: Found, pending: PendingCommit, is_altered: bool
    ) -> None:
        is_alone = pending.stage.upsert is not None
        if is_alone or not pending.planned_from.offsets:
            wait_for_turn(connection, found)
        keep(connection, found, is_altered, is_alone)

    def _hold(self, connection: sa.Connection, stage: Stage) -> None:
        """Waits for the end of the transaction that commits this stage, which a server may be at
        for a while after the connection was lost."""
        if self._database.kind == "mariadb":
            lock(connection, stage.load_id, sql_database.LONGEST_WAIT_S)
        elif self._database.kind == "postgresql":
            number = zlib.crc32(stage.load_id.encode())
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:n)"), {"n": number})

    def _alter_apart(self, pending: PendingCommit) -> None:
        """MariaDB commits at each ALTER TABLE, so it is done before the transaction. If that fails,
        the next load finds the table with its columns."""
        if self._database.kind != "mariadb":
            return
        with self._database.transaction() as connection:
            found = find(connection, self._table)
            wait_for_turn(connection, found)
            now = found.records(connection).recorded_position(pending.name)
            pending.check_unmoved(now, str(self))
            columns = table_columns(pending.stage.schema, pending.stage.upsert)
            alter(connection, alterations(connection, found, columns, pending.stage.change))

    def _fit(self, connection: sa.Connection, found: Found, stage: Stage) -> None:
        """Gives the table the columns that the rows need, and looks at it again: others may have
        altered it since the load began."""
        schema = table_columns(stage.schema, stage.upsert)
        now = joined_columns(connection, found, schema, stage.change)
        check_unchanged(schema, now, f"the table {self.table}")
        if self._database.kind != "mariadb":
            alter(connection, alterations(connection, found, schema, stage.change))
        refuse_unfit(connection, found, schema, schema)
        if stage.upsert is not None:
            refuse_keys(connection, found, stage.upsert, schema)
            refuse_identities(connection, found, schema)

    def _copy(
        self, connection: sa.Connection, found: Found, stage: Stage, files: Sequence[DataFile]
    ) -> None:
        paths = [staged_path(stage, file.name) for file in files]
        if stage.upsert is not None:
            upsert_rows(connection, found, stage, stage.upsert, paths)
            return
        landed = sum(file.records for file in files)
        there = copy_rows(connection, found.quoted, stage.schema, paths)
        if there != landed:
            raise TargetError(
                f"the table {self.table} took {there} of {landed} rows, by the database's count: a "
                "trigger or a constraint of it leaves rows out. Nothing was committed; take that "
                "off, or leave the rows out in a transform"
            )

    def _create(self, schema: pa.Schema, upsert: Upsert | None) -> None:
        began = time.monotonic()
        for attempt in range(1, _TIMES_TO_CREATE + 1):
            try:
                with self._database.transaction() as connection:
                    create(connection, self._table, schema, upsert)
                return
            except DBAPIError:
                # IF NOT EXISTS fails in PostgreSQL and DuckDB while another loader is doing it.
                is_late = time.monotonic() - began > _LONGEST_CREATION_S
                if is_late or attempt == _TIMES_TO_CREATE:
                    raise
                time.sleep(0.01 * attempt)
