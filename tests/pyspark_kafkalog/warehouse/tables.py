"""Each kind of load target beside a reader that shares no code with it.

`rows()` is what a user of the format sees, `offsets(name)` what is kept for a load, read as
docs/targets.md says; both by the format's own tools, not by pyspark_kafkalog.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import uuid
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileSystem, S3FileSystem
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import StaticTable

from pyspark_kafkalog.warehouse.commit import (
    Stage,
)
from pyspark_kafkalog.warehouse.targets.target import Target, open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import PARTITIONS
from tests.support.azure_server import CONTAINER, azure
from tests.support.mariadb import mariadb
from tests.support.nessie import nessie
from tests.support.patience import wait_until
from tests.support.postgres import postgres
from tests.support.s3_server import BUCKET, REGION, s3

NOTHING = pa.table({"value": pa.array([], pa.binary())})


class Table:
    """One table in a directory of its own; `name` is what load() would be given."""

    name: str
    takes_two_processes = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self) -> Target:
        return open_target(self.name)

    def arrow(self) -> pa.Table:
        """All of it."""
        raise NotImplementedError

    def all_rows(self) -> list[dict[str, Any]]:
        """All of it, whatever its columns, as the format has them."""
        rows: list[dict[str, Any]] = self.arrow().to_pylist()
        return rows

    def offsets(self, name: str) -> dict[int, int]:
        """The next offset of each partition of topic orders."""
        raise NotImplementedError

    def gaps(self) -> list[tuple[str, int, int, int]]:
        """What the last commit gave up: topic, partition, first offset, offset after the last."""
        raise NotImplementedError

    def rows(self) -> Counter[bytes]:
        """The values, each of which names its load and offset, and how often they are there."""
        return Counter(self.arrow().column("value").to_pylist())

    def headers(self, found: Any) -> list[tuple[str, bytes | None]]:
        """The headers of a row of `arrow`."""
        return [(header["key"], header["value"]) for header in found]

    def staged(self, stage: Stage) -> list[str]:
        """The names of what is left of a stage."""
        path = Path(stage.path)
        return sorted(file.name for file in path.iterdir()) if path.exists() else []

    def damage(self, stage: Stage, name: str, more: bytes | None) -> None:
        """Lengthens a staged file by `more`, or deletes it."""
        path = Path(stage.path, name)
        if more is None:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes() + more)

    def settle(self) -> None:
        """After a kill: waits until a database has noticed it, or opens what shows a commit whole
        only when it is opened again."""

    def again(self, prepare: Callable[[Table], object], state: str) -> None:
        """The state in which `prepare` left a table that was not there; by name, to keep a copy."""
        copy = self.directory.with_name(f"{self.directory.name} {state}")
        shutil.rmtree(self.directory)
        if not copy.exists():
            self.directory.mkdir()
            prepare(self)
            shutil.copytree(self.directory, copy)
        else:
            shutil.copytree(copy, self.directory)


class ParquetTable(Table):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.name = f"parquet:{directory}/table"

    def arrow(self) -> pa.Table:
        if not list(self.directory.glob("table/*.parquet")):
            return NOTHING
        files = f"{self.directory}/table/*.parquet"
        return duckdb.connect().read_parquet(files, union_by_name=True).to_arrow_table()

    def offsets(self, name: str) -> dict[int, int]:
        commits = sorted(self.directory.glob("table/_kafkalog/commits/*.json"))
        if not commits:
            return {}
        return numbers(json.loads(commits[-1].read_bytes())["offsets"].get(name, {}))

    def gaps(self) -> list[tuple[str, int, int, int]]:
        newest = max(self.directory.glob("table/_kafkalog/commits/*.json"))
        return [tuple(gap.values()) for gap in json.loads(newest.read_bytes())["gaps"]]


class InStore(Table):
    """A prefix of its own in the one bucket of all tests."""

    secrets: tuple[str, str]
    """The settings that have them."""
    scheme: str

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.prefix = f"p{uuid.uuid4().hex[:12]}/the table"

    @staticmethod
    def files() -> FileSystem:
        raise NotImplementedError

    def listed(self, below: str = "") -> list[str]:
        selector = FileSelector(f"{BUCKET}/{self.prefix}/{below}", allow_not_found=True)
        return [file.path for file in self.files().get_file_info(selector) if file.is_file]

    def stage_of(self, stage: Stage) -> str:
        """Where it is below the prefix."""
        raise NotImplementedError

    def stage_url(self, stage: Stage) -> str:
        return f"{self.scheme}://{BUCKET}/{self.prefix}/{self.stage_of(stage)}"

    def staged(self, stage: Stage) -> list[str]:
        return [path.rpartition("/")[2] for path in self.listed(self.stage_of(stage))]

    def damage(self, stage: Stage, name: str, more: bytes | None) -> None:
        path = f"{self.stage_url(stage).removeprefix(f'{self.scheme}://')}/{name}"
        if more is None:
            self.files().delete_file(path)
        else:
            with self.files().open_input_stream(path) as file:
                content = file.read()
            with self.files().open_output_stream(path) as file:
                file.write(content + more)

    def again(self, prepare: Callable[[Table], object], state: str) -> None:
        self.files().delete_dir_contents(f"{BUCKET}/{self.prefix}", missing_dir_ok=True)
        prepare(self)


class InS3(InStore):
    """Read through Arrow's own client."""

    secrets = "access_key_id", "secret_access_key"
    scheme = "s3"

    @staticmethod
    def files() -> FileSystem:
        address = s3().endpoint.removeprefix("http://")
        return S3FileSystem(
            endpoint_override=address, scheme="http", region=REGION, request_timeout=60
        )


class InAzure(InStore):
    secrets = "account_name", "account_key"
    scheme = "abfs"

    @staticmethod
    def files() -> FileSystem:
        return azure().files()

    def damage(self, stage: Stage, name: str, more: bytes | None) -> None:
        path = f"{self.prefix}/{self.stage_of(stage)}/{name}"
        if more is None:
            azure().store().delete(path)
        else:
            content = bytes(azure().store().get(path).bytes())
            azure().store().put(path, content + more)

    def again(self, prepare: Callable[[Table], object], state: str) -> None:
        for some in azure().store().list(self.prefix):
            azure().store().delete([one["path"] for one in some])
        prepare(self)


class ParquetInStore(InStore):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._read: dict[str, pa.Table] = {}

    def stage_of(self, stage: Stage) -> str:
        return f"_kafkalog/staging/{stage.load_id}"

    def arrow(self) -> pa.Table:
        files = [path for path in self.listed() if path.endswith(".parquet")]
        if not files:
            return NOTHING
        # An object that has its name does not change.
        for path in set(files) - self._read.keys():
            self._read[path] = pq.read_table(path, filesystem=self.files())
        tables = [self._read[path] for path in files]
        return pa.concat_tables(tables, promote_options="default")

    def offsets(self, name: str) -> dict[int, int]:
        commits = sorted(self.listed("_kafkalog/commits"))
        if not commits:
            return {}
        with self.files().open_input_stream(commits[-1]) as file:
            return numbers(json.loads(file.read())["offsets"].get(name, {}))

    def gaps(self) -> list[tuple[str, int, int, int]]:
        with self.files().open_input_stream(max(self.listed("_kafkalog/commits"))) as file:
            return [tuple(gap.values()) for gap in json.loads(file.read())["gaps"]]

    def settle(self) -> None:
        self.open().position("nightly")


class S3Table(InS3, ParquetInStore):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.name = f"parquet:{s3().url(self.prefix)}"


class AzureTable(InAzure, ParquetInStore):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.name = f"parquet:{azure().url(self.prefix)}"


class DeltaLakeTable(Table):
    options: dict[str, str] | None = None

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.uri = f"{directory}/table"
        self.name = f"delta:{self.uri}"

    def delta(self) -> DeltaTable:
        return DeltaTable(self.uri, storage_options=self.options)

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.uri, self.options)

    def arrow(self) -> pa.Table:
        return self.delta().to_pyarrow_table() if self.exists() else NOTHING

    def offsets(self, name: str) -> dict[int, int]:
        if not self.exists():
            return {}
        table = self.delta()
        found = {
            partition: table.transaction_version(f"kafkalog:{name}:orders:{partition}")
            for partition in PARTITIONS
        }
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def gaps(self) -> list[tuple[str, int, int, int]]:
        newest = self.delta().history(1)[0]
        return [tuple(gap) for gap in json.loads(newest["kafkalog.gaps"])]


class DeltaInStore(InStore, DeltaLakeTable):
    def stage_of(self, stage: Stage) -> str:
        return f"load-{stage.load_id}"


class S3DeltaTable(InS3, DeltaInStore):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.uri = f"s3://{BUCKET}/{self.prefix}"
        self.name = f"delta:{s3().url(self.prefix)}"
        self.options = {"endpoint": s3().endpoint, "region": REGION, "allow_http": "true"}


class AzureDeltaTable(InAzure, DeltaInStore):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.uri = f"abfs://{CONTAINER}/{self.prefix}"
        self.name = f"delta:{azure().url(self.prefix)}"
        self.options = {"endpoint": azure().endpoint, "allow_http": "true"}


class IcebergTable(Table):
    io: dict[str, str]
    """Properties of its FileIO."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.io = {}
        self.uri = f"sqlite:///{directory}/catalog.db"
        self.name = f"iceberg:lake.raw.orders?uri={self.uri}&warehouse=file://{directory}/lake"

    def iceberg(self) -> Any:
        """The table as of now; what has no catalog yet is not there."""
        if not (self.directory / "catalog.db").exists():
            return None
        with closing(sqlite3.connect(self.directory / "catalog.db")) as connection:
            try:
                found = connection.execute("SELECT metadata_location FROM iceberg_tables")
                [location] = found.fetchone() or [None]
            except sqlite3.OperationalError:
                return None
        return StaticTable.from_metadata(location, self.io) if location else None

    def arrow(self) -> pa.Table:
        """The files of the newest snapshot: pyiceberg 0.12 itself reads a null list as empty."""
        table = self.iceberg()
        if table is None or not table.scan().count():
            return NOTHING
        paths = [task.file.file_path for task in table.scan().plan_files()]
        return duckdb.connect().read_parquet(paths, union_by_name=True).to_arrow_table()

    def rows(self) -> Counter[bytes]:
        table = self.iceberg()
        return Counter(table.scan().to_arrow().column("value").to_pylist() if table else [])

    def offsets(self, name: str) -> dict[int, int]:
        table = self.iceberg()
        text = table.properties.get(f"kafkalog.{name}.offsets") if table else None
        return numbers(json.loads(text or "{}"))

    def gaps(self) -> list[tuple[str, int, int, int]]:
        table = self.iceberg()
        snapshot = table.current_snapshot() if table else None
        assert snapshot
        assert snapshot.summary
        return [tuple(gap) for gap in json.loads(snapshot.summary["kafkalog.gaps"] or "")]


class S3IcebergTable(InS3, IcebergTable):
    secrets = "s3.access-key-id", "s3.secret-access-key"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.io = {"s3.endpoint": s3().endpoint, "s3.region": REGION}
        given = "&".join(f"{name}={value}" for name, value in self.io.items())
        warehouse = f"warehouse=s3://{BUCKET}/{self.prefix}"
        self.name = f"iceberg:lake.raw.orders?uri={self.uri}&{warehouse}&{given}"

    def stage_of(self, stage: Stage) -> str:
        return stage.path.partition("?")[0].removeprefix(f"s3://{BUCKET}/{self.prefix}/")

    def arrow(self) -> pa.Table:
        table = self.iceberg()
        if table is None or not table.scan().count():
            return NOTHING
        paths = [task.file.file_path.removeprefix("s3://") for task in table.scan().plan_files()]
        tables = [pq.read_table(path, filesystem=self.files()) for path in paths]
        return pa.concat_tables(tables, promote_options="permissive")

    def again(self, prepare: Callable[[Table], object], state: str) -> None:
        (self.directory / "catalog.db").unlink(missing_ok=True)
        super().again(prepare, state)


class RestIcebergTable(S3IcebergTable):
    """In a namespace of its own of the one REST catalog of all tests."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.namespace = self.prefix.partition("/")[0]
        self.catalog = {"uri": nessie().uri, "warehouse": "warehouse", **self.io}
        given = "&".join(f"{name}={value}" for name, value in self.catalog.items())
        self.name = f"iceberg:{self.namespace}.orders?{given}"

    def iceberg(self) -> Any:
        try:
            return load_catalog("reader", **self.catalog).load_table((self.namespace, "orders"))
        except NoSuchTableError:
            return None

    def stage_of(self, stage: Stage) -> str:
        return stage.path.partition("?")[0].removeprefix(f"s3://{BUCKET}/")

    def listed(self, below: str = "") -> list[str]:
        selector = FileSelector(f"{BUCKET}/{below}", allow_not_found=True)
        return [file.path for file in self.files().get_file_info(selector) if file.is_file]

    def stage_url(self, stage: Stage) -> str:
        return stage.path.partition("?")[0]


class SqliteTable(Table):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.file = directory / "lake.db"
        self.name = f"sql:sqlite:///{self.file}#orders"

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            return connection.execute(statement).fetchall()

    def exists(self) -> bool:
        return bool(self.query("SELECT 1 FROM sqlite_master WHERE name = 'orders'"))

    def arrow(self) -> pa.Table:
        rows = self.all_rows() if self.exists() else []
        return with_times(pa.Table.from_pylist(rows)) if rows else NOTHING

    def all_rows(self) -> list[dict[str, Any]]:
        columns = [str(column[1]) for column in self.query("PRAGMA table_info(orders)")]
        rows = self.query("SELECT * FROM orders")
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def headers(self, found: Any) -> list[tuple[str, bytes | None]]:
        return headers_of(json.loads(found))

    def offsets(self, name: str) -> dict[int, int]:
        if not self.query("SELECT 1 FROM sqlite_master WHERE name = 'kafkalog_offsets'"):
            return {}
        return dict(self.query(offsets_query(name)))

    def gaps(self) -> list[tuple[str, int, int, int]]:
        return [(row[0], row[1], row[2], row[3]) for row in self.query(GAPS_QUERY)]


class DuckTable(Table):
    takes_two_processes = False

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.file = directory / "lake.duckdb"
        self.name = f"sql:duckdb:///{self.file}#orders"

    def query(self, statement: str) -> pa.Table:
        # Closed at once: no other process can open the file while it is open here.
        with closing(duckdb.connect(self.file)) as connection:
            return connection.sql(statement).to_arrow_table()

    def exists(self, table: str) -> bool:
        found = self.query(f"SELECT 1 FROM duckdb_tables() WHERE table_name = '{table}'")
        return bool(found.num_rows > 0)

    def arrow(self) -> pa.Table:
        return self.query("FROM orders") if self.exists("orders") else NOTHING

    def offsets(self, name: str) -> dict[int, int]:
        if not self.exists("kafkalog_offsets"):
            return {}
        rows = self.query(offsets_query(name)).to_pylist()
        return {row["partition"]: row["next_offset"] for row in rows}

    def gaps(self) -> list[tuple[str, int, int, int]]:
        return [tuple(row.values()) for row in self.query(GAPS_QUERY).to_pylist()]


class PostgresTable(Table):
    """A schema of its own in the one server of all tests."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.schema = f"s{uuid.uuid4().hex[:12]}"
        self.name = f"sql:{postgres().url}#{self.schema}.orders"
        self.query(f"CREATE SCHEMA {self.schema}")

    def query(self, statement: str) -> list[list[str]]:
        place = f"SET search_path = {self.schema}; SET TimeZone = 'UTC'"
        return postgres().query(f"{place}; {statement}")

    def exists(self, table: str) -> bool:
        return self.query(f"SELECT to_regclass('{table}') IS NOT NULL") == [["t"]]

    def arrow(self) -> pa.Table:
        if not self.exists("orders"):
            return NOTHING
        columns = self.query(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = "
            f"'{self.schema}' AND table_name = 'orders' ORDER BY ordinal_position"
        )
        rows = [
            {
                name: POSTGRES_TYPES[kind](text) if text else None
                for (name, kind), text in zip(columns, row, strict=True)
            }
            for row in self.query("SELECT * FROM orders")
        ]
        return with_times(pa.Table.from_pylist(rows)) if rows else NOTHING

    def headers(self, found: Any) -> list[tuple[str, bytes | None]]:
        return headers_of(found)

    def all_rows(self) -> list[dict[str, Any]]:
        rows = [json.loads(row) for [row] in self.query("SELECT to_jsonb(o)::text FROM orders o")]
        bytea = POSTGRES_TYPES["bytea"]
        return [
            {
                name: bytea(value) if str(value).startswith("\\x") else value
                for name, value in row.items()
            }
            for row in rows
        ]

    def settle(self) -> None:
        others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
        wait_until(
            lambda: not self.query(f"SELECT 1 FROM pg_stat_activity WHERE {others}"),
            "the end of all other connections",
            pause_s=0.002,
        )

    def again(self, prepare: Callable[[Table], object], state: str) -> None:
        self.query(f"DROP SCHEMA {self.schema} CASCADE; CREATE SCHEMA {self.schema}")
        prepare(self)

    def offsets(self, name: str) -> dict[int, int]:
        if not self.exists("kafkalog_offsets"):
            return {}
        return {
            int(partition): int(offset) for partition, offset in self.query(offsets_query(name))
        }

    def gaps(self) -> list[tuple[str, int, int, int]]:
        return [(row[0], int(row[1]), int(row[2]), int(row[3])) for row in self.query(GAPS_QUERY)]


class MariaDbTable(Table):
    """A database of its own in the one server of all tests."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.schema = f"s{uuid.uuid4().hex[:12]}"
        self.name = f"sql:{mariadb().url(self.schema)}#orders"
        mariadb().query(f"CREATE DATABASE {self.schema}")

    def query(self, statement: str) -> Sequence[tuple[Any, ...]]:
        return mariadb().query(statement, database=self.schema)

    def exists(self, table: str = "orders") -> bool:
        found = self.query(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{self.schema}'"
        )
        return (table,) in found

    def arrow(self) -> pa.Table:
        rows = self.all_rows() if self.exists() else []
        return with_times(pa.Table.from_pylist(rows)) if rows else NOTHING

    def all_rows(self) -> list[dict[str, Any]]:
        names = [row[0] for row in self.query("SHOW COLUMNS FROM orders")]
        return [dict(zip(names, row, strict=True)) for row in self.query("SELECT * FROM orders")]

    def headers(self, found: Any) -> list[tuple[str, bytes | None]]:
        return headers_of(json.loads(found))

    def settle(self) -> None:
        others = "user = 'loader' AND id <> CONNECTION_ID()"
        wait_until(
            lambda: not self.query(f"SELECT 1 FROM information_schema.processlist WHERE {others}"),
            "the end of all other connections",
            pause_s=0.002,
        )

    def again(self, prepare: Callable[[Table], object], state: str) -> None:
        mariadb().query(f"DROP DATABASE {self.schema}")
        mariadb().query(f"CREATE DATABASE {self.schema}")
        prepare(self)

    def offsets(self, name: str) -> dict[int, int]:
        if not self.exists("kafkalog_offsets"):
            return {}
        return dict(self.query(offsets_query(name)))

    def gaps(self) -> list[tuple[str, int, int, int]]:
        return [(row[0], row[1], row[2], row[3]) for row in self.query(GAPS_QUERY)]


GAPS_QUERY = 'SELECT topic, "partition", start_offset, until_offset FROM kafkalog_gaps'
POSTGRES_TYPES: dict[str, Callable[[str], Any]] = {
    "bytea": lambda text: bytes.fromhex(text.removeprefix("\\x")),
    "text": str,
    "integer": int,
    "bigint": int,
    "timestamp with time zone": lambda text: text.removesuffix("+00"),
    "jsonb": json.loads,
}


SqlTable = SqliteTable | DuckTable | PostgresTable | MariaDbTable


def offsets_query(name: str) -> str:
    quoted = name.replace("'", "''")
    return (
        'SELECT "partition", next_offset FROM kafkalog_offsets '
        f"WHERE table_name = 'orders' AND load_name = '{quoted}' AND topic = 'orders'"
    )


def with_times(table: pa.Table) -> pa.Table:
    """The table with times that a database gave as text."""
    times = table.column("timestamp").cast(pa.timestamp("us"))
    index = table.column_names.index("timestamp")
    return table.set_column(index, "timestamp", times.cast(pa.timestamp("us", "UTC")))


def headers_of(document: list[dict[str, str | None]]) -> list[tuple[str, bytes | None]]:
    return [
        (str(header["key"]), None if header["value"] is None else b64decode(header["value"]))
        for header in document
    ]


def numbers(topics: dict[str, dict[str, int]]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in topics.get("orders", {}).items()}


DATABASES: dict[
    str, type[SqliteTable] | type[DuckTable] | type[PostgresTable] | type[MariaDbTable]
] = {
    "sqlite": SqliteTable,
    "duckdb": DuckTable,
    "postgresql": PostgresTable,
    "mariadb": MariaDbTable,
}
KINDS = {
    "parquet": ParquetTable,
    "s3": S3Table,
    "delta": DeltaLakeTable,
    "iceberg": IcebergTable,
    **DATABASES,
}


TABLES_IN_STORES: dict[str, type[Table]] = {
    "delta-s3": S3DeltaTable,
    "iceberg-s3": S3IcebergTable,
    "delta-azure": AzureDeltaTable,
}
"""Tried by `make stores`: the same tests as of the kinds beside them, some ten times slower."""

IN_STORES: list[Any] = [pytest.param(kind, marks=pytest.mark.long) for kind in TABLES_IN_STORES]
IN_AZURE: dict[str, type[Table]] = {"azure": AzureTable}
"""Parquet, likewise."""

EVERY_KIND = [*KINDS, *IN_STORES, pytest.param("azure", marks=pytest.mark.long)]
BEHIND_REST = pytest.param("iceberg-rest", marks=pytest.mark.long)


def table_of(kind: str, directory: Path) -> Table:
    """One of EVERY_KIND, or BEHIND_REST."""
    kinds: dict[str, type[Table]] = {"iceberg-rest": RestIcebergTable}
    return {**kinds, **KINDS, **TABLES_IN_STORES, **IN_AZURE}[kind](directory)


def expected_rows(name: str, until_offset: int, start: int = 0) -> Counter[bytes]:
    """Each offset once."""
    return Counter(
        b"%s %d %d" % (name.encode(), partition, offset)
        for partition in PARTITIONS
        for offset in range(start, until_offset)
    )
