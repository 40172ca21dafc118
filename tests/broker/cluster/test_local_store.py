"""The tree: its operations, its errors, and what is left of it after a crash."""

import os
import sqlite3
import subprocess
import sys

import pytest

from broker.cluster.local_store import LocalStore
from broker.cluster.store import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Set,
)


@pytest.fixture
def store(tmp_path):
    opened = LocalStore(tmp_path)
    yield opened
    opened.close()


def test_a_node_lives_and_goes(store):
    store.commit([Create("/a", b"one"), Create("/a/b"), Create("/a/c", b"three")])
    assert store.get("/a") == Node(b"one", 0, 1, 1)
    assert store.children("/a") == ["b", "c"]
    store.commit([Set("/a", b"two", ANY_VERSION)])
    assert store.get("/a") == Node(b"two", 1, 1, 2)
    store.commit([Delete(path, ANY_VERSION) for path in ("/a/b", "/a/c", "/a")])
    assert not store.exists("/a")
    assert store.children("/") == []


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("/a"), NodeExistsError),
        (Create("/missing/child"), NoNodeError),
        (Set("/missing", b"", ANY_VERSION), NoNodeError),
        (Set("/a", b"", version=7), BadVersionError),
        (Delete("/missing", ANY_VERSION), NoNodeError),
        (Delete("/a", version=7), BadVersionError),
        (Delete("/a", ANY_VERSION), NotEmptyError),
        (Check("/missing", ANY_VERSION), NoNodeError),
        (Check("/a", version=0), BadVersionError),
    ],
)
def test_a_commit_that_fails_has_done_nothing(store, operation, error):
    store.commit([Create("/a", b"value"), Create("/a/b")])
    with pytest.raises(error):
        store.commit([Create("/before"), Set("/a", b"changed", 0), operation])
    assert not store.exists("/before")
    assert store.get("/a") == Node(b"value", 0, 1, 1)


def test_versions_guard_against_lost_updates(store):
    store.commit([Create("/a", b"0")])
    store.commit([Set("/a", b"1", version=0)])
    with pytest.raises(BadVersionError):
        store.commit([Set("/a", b"2", version=0)])
    store.commit([Set("/a", b"2", version=1), Set("/a", b"3", version=2)])
    assert store.get("/a") == Node(b"3", 3, 1, 3)


def test_a_commit_returns_what_the_nodes_are_after_it(store):
    store.commit([Create("/a", b"0")])
    done = store.commit([Check("/a", 0), Set("/a", b"1", 0), Create("/b", b"new"), Delete("/b", 0)])
    assert done == [Node(b"0", 0, 1, 1), Node(b"1", 1, 1, 2), Node(b"new", 0, 2, 2), None]
    assert store.commit([Check("/a", ANY_VERSION)]) == [Node(b"1", 1, 1, 2)]


def test_of_many_commits_each_is_done_or_fails_by_itself(store):
    store.commit([Create("/a", b"0")])
    first, failed, last = store.commit_each(
        [
            [Set("/a", b"1", 0)],
            [Create("/b"), Set("/a", b"2", 0)],
            [Set("/a", b"3", 1)],
        ]
    )
    assert first == [Node(b"1", 1, 1, 2)]
    assert isinstance(failed, BadVersionError)
    assert [node.value for node in last] == [b"3"]
    assert store.children("/") == ["a"]


def test_transactions_are_numbered_over_restarts(tmp_path):
    """By the number of the one that made it, a broker's registration is told from those before."""
    numbers = []
    for _ in range(3):
        store = LocalStore(tmp_path)
        (made,) = store.commit([Create("/registered", ephemeral=True)])
        numbers.append(made.czxid)
        store.close()
    assert numbers == [1, 2, 3]


def test_a_file_of_the_version_before_opens(tmp_path):
    """Its nodes had no number of a transaction."""
    database = sqlite3.connect(tmp_path / "metadata.db")
    database.executescript(
        "CREATE TABLE node (path TEXT PRIMARY KEY, parent TEXT NOT NULL, value BLOB NOT NULL,"
        " version INTEGER NOT NULL, ephemeral INTEGER NOT NULL) WITHOUT ROWID;"
        "INSERT INTO node VALUES ('/', '', x'', 0, 0), ('/a', '/', x'31', 4, 0)"
    )
    database.close()
    for _ in range(2):
        store = LocalStore(tmp_path)
        assert store.get("/a") == Node(b"1", 4, 0, 0)
        store.close()


def test_missing_nodes(store):
    with pytest.raises(NoNodeError):
        store.get("/a")
    with pytest.raises(NoNodeError):
        store.children("/a")


def test_ensure_makes_what_is_missing(store):
    store.ensure("/a/b/c")
    store.commit([Set("/a", b"kept", 0)])
    store.ensure("/a/b/d")
    assert store.children("/a/b") == ["c", "d"]
    assert store.get("/a").value == b"kept"


def test_watches_tell_of_values_and_children(store):
    seen: list[str] = []
    store.commit([Create("/a")])
    store.watch("/a", lambda: seen.append("a"))
    end = store.watch("/a/b", lambda: seen.append("b"))
    store.commit([Create("/a/b")])
    assert sorted(seen) == ["a", "b"]
    seen.clear()
    store.commit([Set("/a/b", b"x", 0), Check("/a", 0)])
    assert seen == ["b"]
    end()
    store.commit([Set("/a/b", b"y", 1), Delete("/a/b", 2)])
    assert seen == ["b", "a"]
    with pytest.raises(NoNodeError):
        store.commit([Set("/a", b"x", 0), Delete("/a/b", 0)])
    assert seen == ["b", "a"]


def test_ephemeral_nodes_end_with_the_session(tmp_path):
    first = LocalStore(tmp_path)
    first.commit([Create("/stays"), Create("/goes", ephemeral=True)])
    assert first.exists("/goes")
    first.close()
    second = LocalStore(tmp_path)
    assert second.children("/") == ["stays"]
    second.close()


def test_one_store_at_a_time(store, tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from broker.cluster.local_store import LocalStore\n"
        "try: LocalStore(Path(sys.argv[1]))\n"
        "except OSError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "in use by another broker" in done.stdout


def test_garbage_instead_of_the_file_is_an_os_error(tmp_path):
    (tmp_path / "metadata.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(OSError, match=r"metadata\.db"):
        LocalStore(tmp_path)


def test_a_closed_store_says_so(tmp_path):
    store = LocalStore(tmp_path)
    store.close()
    store.close()
    with pytest.raises(OSError, match="is closed"):
        store.get("/")


def test_what_was_committed_survives_sigkill(tmp_path):
    """The child names each node on its standard output after its commit, until it is killed."""
    code = (
        "import itertools, sys; from pathlib import Path\n"
        "from broker.cluster.local_store import LocalStore\n"
        "from broker.cluster.store import Create\n"
        "store = LocalStore(Path(sys.argv[1]))\n"
        "for n in itertools.count():\n"
        "    store.commit([Create(f'/{n}'), Create(f'/{n}/half')])\n"
        "    print(n, flush=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        for _ in range(20):
            last = int(child.stdout.readline())
        child.kill()
        rest = child.stdout.read().split()
        last = int(rest[-1]) if rest else last
    child.wait()
    store = LocalStore(tmp_path)
    names = {int(name) for name in store.children("/")}
    assert names >= set(range(last + 1))
    assert all(store.children(f"/{name}") == ["half"] for name in names)
    store.close()
    assert os.path.getsize(tmp_path / "metadata.db") > 0
