"""The database of a SQL target: its URL, a transaction at a time, and its errors in plain words.

A connection lives for one transaction, so that nothing is shared between threads and processes.
Whoever waits for another one, does so for LONGEST_WAIT_S at most, unless PostgreSQL is told another
`lock_timeout` (in the URL, or for the role). Row security of PostgreSQL is off, which makes an
error of rows that it would hide: hidden offsets would look like those of a new load. What MariaDB
is told says mariadb_session.py. Passwords are shown nowhere.

DuckDB lets one process at a time open a file. Any thread or process of the driver.
"""

import functools
import os
import random
import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from pyspark_kafkalog.errors import InvalidOptionError, TargetError
from pyspark_kafkalog.warehouse.targets import mariadb_session

KINDS = ("postgresql", "mariadb", "sqlite", "duckdb")
LONGEST_WAIT_S = 600
_DRIVERS = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql"}
"""Of the databases that are servers."""
_GIVEN_UP = ("40001", "40P01", 1213)
_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0

# The first that lists its tables (pragma_table_list).
_OLDEST_SQLITE = (3, 37)

_SECRET = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)

# A file that one thread closes cannot be opened by another one at the same instant.
_duckdb_turn = threading.Lock()


class Database:
    """The database at a URL of SQLAlchemy. `kind` is one of KINDS."""

    def __init__(self, url: str) -> None:
        """Connects to nothing. Raises InvalidOptionError for a URL that is not one or of a database
        that is not known here, ImportError without its driver, TargetError for a SQLite that is
        too old."""
        try:
            self._url = sa.make_url(url)
        except (ArgumentError, ValueError):
            # Not its text, which may hold a password.
            raise InvalidOptionError(
                "the target's URL is not one of SQLAlchemy's: write, for example, "
                "sql:postgresql://USER:PASSWORD@HOST/DATABASE#TABLE"
            ) from None
        self.kind = self._url.get_backend_name()
        if self.kind not in KINDS:
            raise InvalidOptionError(
                f"sql: targets are databases of {', '.join(KINDS)}, not of {self.kind}"
            )
        if self._url.drivername in _DRIVERS:
            self._url = self._url.set(drivername=_DRIVERS[self._url.drivername])
        if not self._url.database or self._url.database == ":memory:":
            raise InvalidOptionError(f"{self} names a database that does not outlive a load")
        try:
            self._driver: Any = self._url.get_dialect().import_dbapi()
        except NoSuchModuleError:
            raise ModuleNotFoundError(name=f"{self.kind}_engine") from None
        if self.kind == "sqlite" and self._driver.sqlite_version_info < _OLDEST_SQLITE:
            raise TargetError(
                f"this Python has SQLite {self._driver.sqlite_version}, and loads into {self} need "
                f"{'.'.join(map(str, _OLDEST_SQLITE))} or newer: use a Python with a newer one, "
                "or another target"
            )

    def __str__(self) -> str:
        return self._url.set(query={}).render_as_string(hide_password=True)

    def is_missing_file(self) -> bool:
        """Whether to connect would make a file, and nothing says that this would fail."""
        if self.kind in _DRIVERS:
            return False
        path = str(self._url.database or "")
        if path.startswith(("md:", "file:")) or os.path.exists(path):
            return False
        # One that cannot be made either is better told now than when all is landed.
        return os.path.isdir(os.path.dirname(os.path.abspath(path)))

    @functools.cached_property
    def _engine(self) -> sa.Engine:
        """Keeps no connection, but what SQLAlchemy asks a server once, and the statements that it
        has compiled."""
        connecting: dict[str, Any] = {}
        options: dict[str, Any] = {}
        if self.kind == "sqlite":
            connecting = {"timeout": LONGEST_WAIT_S}
        elif self.kind == "postgresql":
            # Else it is what the role, PGCLIENTENCODING or the database has, and rows are copied
            # in UTF-8. What a transaction has prepared would be there for the next one, of another
            # client, where a pool (PgBouncer) hands connections on with each transaction.
            connecting = {"client_encoding": "utf8", "prepare_threshold": None}
        elif self.kind == "mariadb":
            connecting = mariadb_session.connecting(self._url)
            options = {"isolation_level": mariadb_session.ISOLATION}
        return sa.create_engine(
            self._url, poolclass=NullPool, hide_parameters=True, connect_args=connecting, **options
        )

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A connection of its own, whose transaction is committed at the end."""
        try:
            with _duckdb_turn if self.kind == "duckdb" else nullcontext():
                if self.kind == "duckdb":
                    _make_duckdb_file(str(self._url.database))
                with self._engine.begin() as connection:
                    if self.kind == "postgresql":
                        _set_up_postgresql(connection)
                    elif self.kind == "mariadb":
                        mariadb_session.set_up(connection, LONGEST_WAIT_S)
                    elif self.kind == "sqlite":
                        # Which it looks after for those alone that say so, before they write.
                        connection.exec_driver_sql("PRAGMA foreign_keys = ON")
                    yield connection
        except self._driver.Error as error:
            # From COPY or INSERT, which SQLAlchemy does not see.
            raise DBAPIError("COPY", {}, error, hide_parameters=True) from error

    @contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Errors of the database, for names that it cannot have too, and of the operating system
        become a TargetError that says what could not be done, without the password."""
        try:
            yield
        except (SQLAlchemyError, OSError, pa.ArrowException, UnicodeError) as error:
            original = getattr(error, "orig", None) or error
            message = f"cannot {doing}: {type(original).__name__}: {original}"
            hidden = message
            for secret in self._secrets():
                hidden = hidden.replace(secret, "***")
            # On one line: those of PostgreSQL have several, and tabs.
            raise TargetError(" ".join(hidden.split())) from (error if hidden == message else None)

    def _secrets(self) -> list[str]:
        """The password, and what of the URL's query may be one: a short value of another name,
        such as mode=ro, is a part of many words."""
        query = [(name, str(value)) for name, value in self._url.query.items()]
        values = [value for name, value in query if len(value) > 3 or _SECRET.search(name)]
        return [secret for secret in (self._url.password, *values) if secret]


def _set_up_postgresql(connection: sa.Connection) -> None:
    connection.exec_driver_sql("SET LOCAL row_security = off")
    # The one style that psycopg reads.
    connection.exec_driver_sql("SET LOCAL DateStyle = 'ISO'")
    if connection.exec_driver_sql("SHOW lock_timeout").scalar() == "0":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LONGEST_WAIT_S * 1000:.0f}ms'")


class Tries:
    """The tries of one transaction, which others of its time may undo for LONGEST_WAIT_S."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + LONGEST_WAIT_S
        self._failed = 0

    def may_go_on(self, error: Exception) -> bool:
        """Whether PostgreSQL or MariaDB gave the transaction up for others of its time, by a
        serialization failure or a deadlock, and there is time for another try."""
        original = getattr(error, "orig", None)
        state = getattr(original, "sqlstate", None) or next(iter(getattr(original, "args", ())), "")
        return state in _GIVEN_UP and time.monotonic() < self._ends_s

    def pause(self) -> None:
        """Before the next try, for a time at random: whoever waits for as long as the others meets
        them again."""
        self._failed += 1
        time.sleep(random.random() * min(_PAUSE_S * self._failed, _LONGEST_PAUSE_S))


def driver_cursor(connection: sa.Connection) -> Any:
    """The driver's own cursor in the transaction of `connection`."""
    raw: Any = connection.connection.driver_connection
    return raw.cursor()


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
