"""MariaDB as a SQL target needs it: what each session says first, and its locks by name.

A server or a role may have any defaults, and several of them change values without a word. So every
session says how it is: strict, in UTC, in utf8mb4, in READ COMMITTED (each statement sees what is
committed by then; the numbers of kafkalog_commits fence), with ANSI_QUOTES, which makes quotes
those of the other databases. What came of it is looked at, as a proxy may keep some of it.

MariaDB commits at each CREATE and ALTER TABLE, so no such statement is in a transaction that
writes: sql.py alters before it, and holds `TABLE` meanwhile. A lock by name is the session's, and
goes with it, which is after its transaction has ended.

Called by the driver, for a connection of its own.
"""

import hashlib
from typing import Any

import sqlalchemy as sa

from pyspark_kafkalog.errors import InvalidOptionError, TargetError

_MOST_CHARACTERS_OF_A_NAME = 64
_MODES = ("ANSI_QUOTES", "STRICT_ALL_TABLES", "NO_ZERO_DATE", "NO_ZERO_IN_DATE")
_OTHER_MODES = ("ERROR_FOR_DIVISION_BY_ZERO", "NO_ENGINE_SUBSTITUTION")
_COLLATION = "utf8mb4_nopad_bin"
TABLES: dict[str, Any] = {
    "mariadb_engine": "InnoDB",
    "mariadb_default_charset": "utf8mb4",
    "mariadb_collate": _COLLATION,
}
"""How tables are made. The collation takes two texts for one just where they are the same."""

ISOLATION = "READ COMMITTED"
# The first whose CREATE and ALTER TABLE are done or not done after a crash.
_OLDEST = (10, 6)
_SETTINGS = (
    "time_zone = '+00:00'",
    "completion_type = 'NO_CHAIN'",
    "foreign_key_checks = 1",
    "unique_checks = 1",
    "check_constraint_checks = 1",
    "max_error_count = 65535",
    "max_sort_length = 1024",
    "sql_notes = 1",
    "sql_safe_updates = 0",
    # The server's own is what it has for DEFAULT.
    "sql_big_selects = 1",
    "sql_select_limit = 18446744073709551615",
)
_NAMED = ("sql_mode", "version", "wsrep_on", "character_set_client")
_WANTED = {"character_set_client": "utf8mb4", "wsrep_on": "OFF"}


def connecting(url: sa.URL) -> dict[str, Any]:
    """What PyMySQL is told, whatever the URL says; SQLAlchemy sees to it that statements do not
    commit by themselves. By a socket of this machine it needs no TLS,
    which it would get ready for a tenth of a second; a password is no Latin-1."""
    told: dict[str, Any] = {
        "charset": "utf8mb4",
        "collation": _COLLATION,
        "sql_mode": ",".join((*_MODES, *_OTHER_MODES)),
    }
    if url.password is not None:
        told["password"] = str(url.password).encode()
    if "unix_socket" in url.query and not any(name.startswith("ssl") for name in url.query):
        told["ssl_disabled"] = True
    return told


def set_up(connection: sa.Connection, wait_s: float) -> None:
    """Whoever waits for a lock does so for `wait_s` at most. Raises TargetError for a server that
    is too old, or where a session cannot be had as it has to be."""
    waits = (f"{name} = {wait_s:.0f}" for name in ("innodb_lock_wait_timeout", "lock_wait_timeout"))
    connection.exec_driver_sql(f"SET SESSION {', '.join((*_SETTINGS, *waits))}")
    names = ", ".join(f"'{name}'" for name in _NAMED)
    query = f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})"
    found = {str(name): str(value) for name, value in connection.exec_driver_sql(query)}
    version = found.get("version", "")
    numbers = tuple(int(part) for part in version.split("-")[0].split(".") if part.isdigit())
    if numbers < _OLDEST:
        raise TargetError(
            f"the server is MariaDB {version}, and loads need 10.6 or newer, which does CREATE and "
            "ALTER TABLE wholly or not at all: use a newer one, or another target"
        )
    missing = [mode for mode in _MODES if mode not in found.get("sql_mode", "").split(",")]
    for name, wanted in _WANTED.items():
        missing += [f"{name}={wanted}"] if found.get(name, wanted) != wanted else []
    if missing:
        raise TargetError(
            f"the sessions of this MariaDB lack {', '.join(missing)}, without which values could "
            "change, or be lost: let them be set (an init_command or a proxy undoes it; a Galera "
            "cluster has wsrep_on, and no locks by name), or use another target"
        )


def lock(connection: sa.Connection, what: str, wait_s: float) -> None:
    """Waits for a lock by name, and holds it up to the end of the session. Raises TargetError after
    `wait_s`."""
    name = f"kafkalog {hashlib.sha256(what.encode()).hexdigest()[:40]}"
    query = sa.text("SELECT GET_LOCK(:name, :wait_s)")
    if connection.execute(query, {"name": name, "wait_s": wait_s}).scalar() != 1:
        raise TargetError(
            f"another session of the database still has the lock {name!r} after {wait_s:.0f} s: "
            "look for it by SHOW PROCESSLIST, end it, and do this again, which is safe"
        )


def refuse_name(name: str) -> None:
    """Raises InvalidOptionError for what no table and no column of MariaDB can be called."""
    most = _MOST_CHARACTERS_OF_A_NAME
    if len(name) > most or name.endswith(" ") or any(each > "\uffff" for each in name):
        raise InvalidOptionError(
            f"{name!r} cannot be a name in MariaDB: these have {most} characters at most, none "
            "beyond U+FFFF, and no space at the end"
        )


def table_lock(schema: str, table: str) -> str:
    """What `lock` calls a table."""
    return f"table {schema}.{table}"
