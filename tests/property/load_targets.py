"""Each kind of target as its other owners use it, with the format's own tools.

`rows` is what a reader sees: topic, offset and value of each row, and how often; `gaps` is what
commits say that they gave up. The rest are
things that owners do to tables between loads: compact, vacuum, expire, roll back, drop, add a
column, or lose what a load keeps there, and bring it back. What a format has not, is None.
"""

import functools
import json
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyarrow.fs import FileSelector
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.types import StringType

from tests.pyspark_kafkalog.warehouse.tables import (
    KINDS,
    DeltaLakeTable,
    DuckTable,
    IcebergTable,
    MariaDbTable,
    ParquetTable,
    PostgresTable,
    S3Table,
    SqliteTable,
    Table,
)
from tests.support.postgres import postgres
from tests.support.s3_server import BUCKET

_COLUMNS = ["topic", "offset", "value"]
NEW_COLUMN = "note"

Rows = Counter[tuple[str, int, bytes]]
Gaps = set[tuple[Any, str, int, int, int]]
"""The commit, and what it gave up: topic, partition, first offset, offset after the last."""


class Owned:
    """A target in a directory of its own, in the hands of its owners."""

    is_table = True
    """Whether there is a table that knows itself, and not just files."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.name: str = table.name

    def rows(self) -> Rows:
        raise NotImplementedError

    def gaps(self) -> Gaps:
        """What is kept of offsets that loads gave up; of old commits it may be gone."""
        raise NotImplementedError

    def drop(self) -> None:
        raise NotImplementedError

    def keeps_offsets_when_dropped(self) -> bool:
        return False

    def lose_offsets(self, name: str) -> Callable[[], None] | None:
        """Loses what load `name` keeps in the target, its rows not; what brings it back."""
        raise NotImplementedError

    def settle(self) -> None:
        """After a kill."""
        self.table.settle()

    def add_column(self) -> None: ...

    def optimize(self) -> None: ...

    def vacuum(self) -> None: ...

    def version(self) -> Any:
        """What `roll_back` takes; None where a format has no versions."""
        return None

    def roll_back(self, version: Any) -> None: ...


class OwnedParquet(Owned):
    is_table = False
    table: ParquetTable

    @property
    def path(self) -> Path:
        return self.table.directory / "table"

    def rows(self) -> Rows:
        files = (path for path in self.path.rglob("*.parquet") if "_kafkalog" not in path.parts)
        return _counted(pq.read_table(path, columns=_COLUMNS, partitioning=None) for path in files)

    def gaps(self) -> Gaps:
        commits = (self.path / "_kafkalog" / "commits").glob("*.json")
        return _gaps_of_commits(path.read_bytes() for path in commits)

    def drop(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def lose_offsets(self, name: str) -> Callable[[], None] | None:
        commits, aside = self.path / "_kafkalog" / "commits", self.table.directory / "aside"
        commits.rename(aside)

        def restore() -> None:
            shutil.rmtree(commits, ignore_errors=True)
            aside.rename(commits)

        return restore


class OwnedS3(Owned):
    is_table = False
    table: S3Table

    def __init__(self, table: Any) -> None:
        super().__init__(table)
        self._read: dict[str, pa.Table] = {}

    def _paths(self) -> list[str]:
        place = f"{BUCKET}/{self.table.prefix}"
        selector = FileSelector(place, allow_not_found=True, recursive=True)
        return [file.path for file in self.table.files().get_file_info(selector) if file.is_file]

    def rows(self) -> Rows:
        found = []
        for path in self._paths():
            if path.endswith(".parquet") and "/_kafkalog/" not in path:
                if path not in self._read:
                    with self.table.files().open_input_file(path) as file:
                        self._read[path] = pq.ParquetFile(file).read(columns=_COLUMNS)
                found.append(self._read[path])
        return _counted(found)

    def gaps(self) -> Gaps:
        paths = [path for path in self._paths() if "/_kafkalog/commits/" in path]
        return _gaps_of_commits(
            self.table.files().open_input_stream(path).readall() for path in paths
        )

    def drop(self) -> None:
        place = f"{BUCKET}/{self.table.prefix}"
        self.table.files().delete_dir_contents(place, missing_dir_ok=True)

    def lose_offsets(self, name: str) -> Callable[[], None] | None:
        files, kept = self.table.files(), {}
        for path in self._paths():
            if "/_kafkalog/commits/" in path:
                with files.open_input_stream(path) as file:
                    kept[path] = file.read()
                files.delete_file(path)

        def restore() -> None:
            for path, content in kept.items():
                with files.open_output_stream(path) as file:
                    file.write(content)

        return restore


class OwnedDelta(Owned):
    table: DeltaLakeTable

    @property
    def path(self) -> Path:
        return self.table.directory / "table"

    def rows(self) -> Rows:
        if not DeltaTable.is_deltatable(str(self.path)):
            return Counter()
        return _counted([self.table.delta().to_pyarrow_table(columns=_COLUMNS)])

    def gaps(self) -> Gaps:
        if not DeltaTable.is_deltatable(str(self.path)):
            return set()
        return {
            (entry["version"], *gap)
            for entry in self.table.delta().history()
            for gap in json.loads(entry.get("kafkalog.gaps", "[]"))
        }

    def drop(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def add_column(self) -> None:
        self.table.delta().alter.add_columns(Field(NEW_COLUMN, PrimitiveType("string")))

    def optimize(self) -> None:
        self.table.delta().optimize.compact()

    def vacuum(self) -> None:
        delta = self.table.delta()
        delta.create_checkpoint()
        delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        delta.cleanup_metadata()

    def version(self) -> Any:
        return self.table.delta().version()

    def roll_back(self, version: Any) -> None:
        if self.table.delta().version() > version:
            self.table.delta().restore(version)

    def lose_offsets(self, name: str) -> Callable[[], None] | None:
        """As after a log clean-up by one who does not keep txns: history says who loaded."""
        log = self.path / "_delta_log"
        if list(log.glob("*.checkpoint*")):
            return None
        kept = {path: path.read_text() for path in log.glob("*.json")}
        for path, text in kept.items():
            lines = [line for line in text.splitlines() if not line.startswith('{"txn"')]
            path.write_text("".join(f"{line}\n" for line in lines))

        def restore() -> None:
            for path, text in kept.items():
                path.write_text(text)

        return restore


class OwnedIceberg(Owned):
    table: IcebergTable

    def catalog(self) -> Catalog:
        lake = f"file://{self.table.directory}/lake"
        return load_catalog("kafkalog", type="sql", uri=self.table.uri, warehouse=lake)

    def iceberg(self) -> Any:
        return self.catalog().load_table("lake.raw.orders")

    def rows(self) -> Rows:
        table = self.table.iceberg()
        if table is None or table.current_snapshot() is None:
            return Counter()
        return _counted([table.scan(selected_fields=tuple(_COLUMNS)).to_arrow()])

    def gaps(self) -> Gaps:
        table = self.table.iceberg()
        return {
            (snapshot.snapshot_id, *gap)
            for snapshot in (table.snapshots() if table else ())
            if snapshot.summary
            for gap in json.loads(snapshot.summary.get("kafkalog.gaps") or "[]")
        }

    def drop(self) -> None:
        try:
            self.catalog().drop_table("lake.raw.orders")
        except NoSuchTableError:
            return
        shutil.rmtree(self.table.directory / "lake", ignore_errors=True)

    def add_column(self) -> None:
        with self.iceberg().update_schema() as update:
            update.add_column(NEW_COLUMN, StringType())

    def optimize(self) -> None:
        """One file of all rows, as compaction makes it."""
        table = self.iceberg()
        rows = table.scan().to_arrow()
        if rows.num_rows:
            # Of none pyiceberg warns.
            table.overwrite(rows)

    def vacuum(self) -> None:
        table = self.iceberg()
        newest = table.current_snapshot()
        old = [each.snapshot_id for each in table.snapshots() if each != newest]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    def version(self) -> Any:
        snapshot = self.iceberg().current_snapshot()
        return snapshot.snapshot_id if snapshot else None

    def roll_back(self, version: Any) -> None:
        table = self.iceberg()
        if table.current_snapshot().snapshot_id != version:
            table.manage_snapshots().set_current_snapshot(version).commit()

    def lose_offsets(self, name: str) -> Callable[[], None] | None:
        table = self.iceberg()
        if not any(each.summary["kafkalog.name"] == name for each in table.snapshots()):
            # Expired: nobody can tell any more.
            return None
        lost = {
            key: value
            for key, value in table.properties.items()
            if key.startswith(f"kafkalog.{name}.")
        }
        with table.transaction() as transaction:
            transaction.remove_properties(*lost)

        def restore() -> None:
            with self.iceberg().transaction() as transaction:
                transaction.set_properties(lost)

        return restore


class OwnedSql(Owned):
    """What SQLite, DuckDB and PostgreSQL have in common: `run` and `ask` are their own."""

    def run(self, statement: str) -> None:
        raise NotImplementedError

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def exists(self, table: str = "orders") -> bool:
        raise NotImplementedError

    def rows(self) -> Rows:
        if not self.exists():
            return Counter()
        found = self.ask('SELECT topic, "offset", value FROM orders')
        return Counter((topic, int(offset), _bytes(value)) for topic, offset, value in found)

    def gaps(self) -> Gaps:
        if not self.exists("kafkalog_gaps"):
            return set()
        found = self.ask(
            'SELECT load_name, commit_number, topic, "partition", start_offset, until_offset '
            "FROM kafkalog_gaps"
        )
        return {((name, number), *gap) for name, number, *gap in found}

    def drop(self) -> None:
        if self.exists():
            self.run("DROP TABLE orders")

    def keeps_offsets_when_dropped(self) -> bool:
        return True

    def add_column(self) -> None:
        self.run(f"ALTER TABLE orders ADD COLUMN {NEW_COLUMN} TEXT")

    def lose_offsets(self, name: str) -> Callable[[], None] | None:
        of_load = f"load_name = '{name}'"
        lost = self.ask(
            'SELECT table_name, topic, "partition", next_offset FROM kafkalog_offsets '
            f"WHERE {of_load}"
        )
        self.run(f"DELETE FROM kafkalog_offsets WHERE {of_load}")

        def restore() -> None:
            for table, topic, partition, offset in lost:
                self.run(
                    'INSERT INTO kafkalog_offsets (table_name, load_name, topic, "partition", '
                    f"next_offset) VALUES ('{table}', '{name}', '{topic}', {partition}, {offset})"
                )

        return restore if lost else None


class OwnedSqlite(OwnedSql):
    table: SqliteTable

    def run(self, statement: str) -> None:
        with closing(sqlite3.connect(self.table.file)) as connection, connection:
            connection.execute(statement)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return self.table.query(statement)

    def exists(self, table: str = "orders") -> bool:
        if not self.table.file.exists():
            return False
        return bool(self.ask(f"SELECT 1 FROM sqlite_master WHERE name = '{table}'"))

    def vacuum(self) -> None:
        self.run("VACUUM")


class OwnedDuck(OwnedSql):
    table: DuckTable

    def run(self, statement: str) -> None:
        with closing(duckdb.connect(self.table.file)) as connection:
            connection.execute(statement)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(duckdb.connect(self.table.file)) as connection:
            return connection.execute(statement).fetchall()

    def exists(self, table: str = "orders") -> bool:
        return self.table.file.exists() and self.table.exists(table)


class OwnedPostgres(OwnedSql):
    table: PostgresTable

    def run(self, statement: str) -> None:
        _connection().execute(f"SET search_path = {self.table.schema}; {statement}")

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        self.run("SELECT 1")
        return _connection().execute(statement).fetchall()

    def settle(self) -> None:
        # It waits until nobody else is there.
        _connection().close()
        _connection.cache_clear()
        super().settle()

    def exists(self, table: str = "orders") -> bool:
        return self.ask(f"SELECT to_regclass('{table}') IS NOT NULL") == [(True,)]


class OwnedMariaDb(OwnedSql):
    table: MariaDbTable

    def add_column(self) -> None:
        self.run(f"ALTER TABLE orders ADD COLUMN {NEW_COLUMN} LONGTEXT CHARACTER SET utf8mb4")

    def run(self, statement: str) -> None:
        self.table.query(statement)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return list(self.table.query(statement))

    def exists(self, table: str = "orders") -> bool:
        return self.table.exists(table)


@functools.cache
def _connection() -> psycopg.Connection[Any]:
    return psycopg.connect(postgres().url, autocommit=True, prepare_threshold=None)


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    text = str(value)
    return bytes.fromhex(text[2:]) if re.fullmatch(r"\\x[0-9a-f]*", text) else text.encode()


def _gaps_of_commits(contents: Iterable[bytes]) -> Gaps:
    commits = map(json.loads, contents)
    return {(commit["sequence"], *gap.values()) for commit in commits for gap in commit["gaps"]}


def _counted(tables: Any) -> Rows:
    rows: Rows = Counter()
    for table in tables:
        columns = [table.column(name).to_pylist() for name in _COLUMNS]
        rows.update(
            (topic, offset, _bytes(value)) for topic, offset, value in zip(*columns, strict=True)
        )
    return rows


OWNED: dict[str, type[Owned]] = {
    "parquet": OwnedParquet,
    "s3": OwnedS3,
    "delta": OwnedDelta,
    "iceberg": OwnedIceberg,
    "sqlite": OwnedSqlite,
    "duckdb": OwnedDuck,
    "postgresql": OwnedPostgres,
    "mariadb": OwnedMariaDb,
}


def owned(kind: str, directory: Path) -> Owned:
    table: Table = KINDS[kind](directory)
    return OWNED[kind](table)
