"""The metadata of a broker alone: MetadataStore in one SQLite file of its data directory.

Owns: the file `metadata.db`: a table of nodes, and the number of the last commit. Commits are
write-ahead logged and synchronous: what returned survives SIGKILL and power loss. Ephemeral nodes
are removed when the file is opened, since the session that made them is over. Called by: any thread
(one lock). Never: shared between processes; the data directory's lock sees to that.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from broker.cluster.store import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStoreError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Result,
    Set,
)

FILE_NAME = "metadata.db"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS node (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL,
    czxid INTEGER NOT NULL DEFAULT 0,
    mzxid INTEGER NOT NULL DEFAULT 0,
    children_made INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS node_parent ON node (parent);
CREATE TABLE IF NOT EXISTS last_commit (zxid INTEGER NOT NULL);
INSERT INTO last_commit SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM last_commit);
INSERT OR IGNORE INTO node (path, parent, value, version, ephemeral) VALUES ('/', '', x'', 0, 0);
DELETE FROM node WHERE ephemeral = 1;
"""
# Files of the versions before know no such columns.
_NEW_COLUMN = "ALTER TABLE node ADD COLUMN {} INTEGER NOT NULL DEFAULT 0"


class LocalStore:
    """MetadataStore on SQLite; raises OSError when the file cannot be opened or written."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._lock = threading.Lock()
        self._watches: dict[str, list[Callable[[], None]]] = {}
        self._database: sqlite3.Connection | None = None
        with self._as_os_error():
            database = sqlite3.connect(
                self._path, timeout=0, isolation_level=None, check_same_thread=False
            )
            self._database = database
            # Exclusive: no shared-memory file beside the log directories.
            database.execute("PRAGMA locking_mode=EXCLUSIVE")
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
            columns = database.execute("SELECT name FROM pragma_table_info('node')").fetchall()
            for column in ("czxid", "mzxid", "children_made"):
                if (column,) not in columns:
                    database.execute(_NEW_COLUMN.format(column))

    def get(self, path: str) -> Node:
        with self._lock, self._as_os_error():
            return _node(self._connection(), path)

    def get_each(self, paths: Sequence[str]) -> list[Node | None]:
        found: list[Node | None] = []
        for path in paths:
            try:
                found.append(self.get(path))
            except NoNodeError:
                found.append(None)
        return found

    def exists(self, path: str) -> bool:
        with self._lock, self._as_os_error():
            return _exists(self._connection(), path)

    def children(self, path: str) -> list[str]:
        with self._lock, self._as_os_error():
            rows = self._connection().execute(
                "SELECT path FROM node WHERE parent = ? ORDER BY path", (path,)
            )
            names = [str(row[0]).rpartition("/")[2] for row in rows]
        if not names and not self.exists(path):
            raise NoNodeError(path)
        return names

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        (done,) = self.commit_each([operations])
        if isinstance(done, MetadataStoreError):
            raise done
        return done

    def commit_each(
        self, commits: Sequence[Sequence[Operation]]
    ) -> list[list[Result] | MetadataStoreError]:
        with self._lock, self._transaction() as database:
            done = [_commit(database, operations) for operations in commits]
        for operations, result in zip(commits, done, strict=True):
            if not isinstance(result, MetadataStoreError):
                self._notify(operations)
        return done

    def ensure(self, path: str, value: bytes = b"") -> None:
        missing = []
        while not self.exists(path):
            missing.append(Create(path, value))
            path, value = _parent(path), b""
        if missing:
            self.commit(missing[::-1])

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._watches.setdefault(path, []).append(changed)

        def end() -> None:
            with self._lock:
                self._watches[path].remove(changed)

        return end

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            raise OSError(f"{self._path} is closed")
        return self._database

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = self._connection()
        with self._as_os_error():
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                database.execute("ROLLBACK")
                raise

    @contextmanager
    def _as_os_error(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise OSError(f"{self._path} is in use by another broker") from error
            raise OSError(f"{self._path}: {error}") from error

    def _notify(self, operations: Sequence[Operation]) -> None:
        paths = set()
        for operation in operations:
            if isinstance(operation, Check):
                continue
            paths.add(operation.path)
            if not isinstance(operation, Set):
                paths.add(_parent(operation.path))
        with self._lock:
            watches = [changed for path in sorted(paths) for changed in self._watches.get(path, ())]
        for changed in watches:
            changed()


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _exists(database: sqlite3.Connection, path: str) -> bool:
    return database.execute("SELECT 1 FROM node WHERE path = ?", (path,)).fetchone() is not None


def _node(database: sqlite3.Connection, path: str) -> Node:
    query = "SELECT value, version, czxid, mzxid FROM node WHERE path = ?"
    row = database.execute(query, (path,)).fetchone()
    if row is None:
        raise NoNodeError(path)
    return Node(*row)


def _commit(
    database: sqlite3.Connection, operations: Sequence[Operation]
) -> list[Result] | MetadataStoreError:
    """All of them, or none."""
    database.execute("SAVEPOINT one")
    try:
        database.execute("UPDATE last_commit SET zxid = zxid + 1")
        done = [_apply(database, operation) for operation in operations]
    except MetadataStoreError as error:
        database.execute("ROLLBACK TO one")
        return error
    database.execute("RELEASE one")
    return done


def _apply(database: sqlite3.Connection, operation: Operation) -> Result:
    path = operation.path
    if isinstance(operation, Create):
        return _create(database, operation)
    node = _node(database, path)
    if operation.version not in (ANY_VERSION, node.version):
        raise BadVersionError(f"{path} has version {node.version}, not {operation.version}")
    if isinstance(operation, Check):
        return None
    if isinstance(operation, Delete):
        if database.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise NotEmptyError(path)
        database.execute("DELETE FROM node WHERE path = ?", (path,))
        return None
    database.execute(
        "UPDATE node SET value = ?, version = version + 1, mzxid = (SELECT zxid FROM last_commit)"
        " WHERE path = ?",
        (operation.value, path),
    )
    return _node(database, path)


def _create(database: sqlite3.Connection, operation: Create) -> str:
    path, parent = operation.path, _parent(operation.path)
    query = "SELECT children_made FROM node WHERE path = ?"
    row = database.execute(query, (parent,)).fetchone()
    if row is None:
        raise NoNodeError(parent)
    if operation.sequence:
        path += f"{row[0]:010}"
    if _exists(database, path):
        raise NodeExistsError(path)
    database.execute("UPDATE node SET children_made = children_made + 1 WHERE path = ?", (parent,))
    database.execute(
        "INSERT INTO node SELECT ?, ?, ?, 0, ?, zxid, zxid, 0 FROM last_commit",
        (path, parent, operation.value, int(operation.ephemeral)),
    )
    return path
