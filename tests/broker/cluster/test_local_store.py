"""The tree in a file: what is left of it after a crash. What all do is in test_metadata_store."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cluster.local_store import LocalStore
from broker.cluster.store import Create, Node


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    opened = LocalStore(tmp_path)
    yield opened
    opened.close()


def test_a_file_of_the_version_before_opens(tmp_path: Path) -> None:
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


def test_one_store_at_a_time(store: LocalStore, tmp_path: Path) -> None:
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


def test_of_commits_that_the_file_refuses_none_is_done(store: LocalStore) -> None:
    with pytest.raises(OSError, match=r"metadata\.db"):
        store.commit_each([[Create("/a")], [Create("/b", object())]])  # type: ignore[arg-type]
    assert store.children("/") == []


def test_garbage_instead_of_the_file_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(OSError, match=r"metadata\.db"):
        LocalStore(tmp_path)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.close()
    store.close()
    with pytest.raises(OSError, match="is closed"):
        store.get("/")


def test_what_was_committed_survives_sigkill(tmp_path: Path) -> None:
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
