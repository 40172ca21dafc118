"""What every store does: the tree, its operations and errors, watches; a file's and ZooKeeper's."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.cluster.local_store import LocalStore
from broker.cluster.store import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
)
from tests.broker.cluster.conftest import Open, nodes_of
from tests.support.patience import wait_until


@pytest.fixture(params=["local", "zookeeper"])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], MetadataStore]:
    """Opens the store; the same one, after it was closed."""
    open_store: Open
    if request.param == "local":
        return lambda: LocalStore(tmp_path)
    zookeeper, open_store = map(request.getfixturevalue, ("zookeeper", "open_store"))
    return lambda: open_store(zookeeper.address)[0]


@pytest.fixture
def store(open_again: Callable[[], MetadataStore]) -> Iterator[MetadataStore]:
    opened = open_again()
    yield opened
    opened.close()


def test_a_node_lives_and_goes(store: MetadataStore) -> None:
    store.commit([Create("/a", b"one"), Create("/a/b"), Create("/a/c", b"three")])
    made = store.get("/a")
    assert made == Node(b"one", 0, made.czxid, made.czxid)
    assert store.get("/a/b").value == b""
    assert store.children("/a") == ["b", "c"]
    store.commit([Set("/a", b"two", ANY_VERSION)])
    changed = store.get("/a")
    assert changed == Node(b"two", 1, made.czxid, changed.mzxid)
    assert changed.mzxid > made.czxid
    store.commit([Delete(path, ANY_VERSION) for path in ("/a/b", "/a/c", "/a")])
    assert not store.exists("/a")
    assert store.children("/") == []


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("/a"), NodeExistsError),
        (Create("/missing/child"), NoNodeError),
        (Create("/missing/child", sequence=True), NoNodeError),
        (Set("/missing", b"", ANY_VERSION), NoNodeError),
        (Set("/a", b"", version=7), BadVersionError),
        (Delete("/missing", ANY_VERSION), NoNodeError),
        (Delete("/a", version=7), BadVersionError),
        (Delete("/a", ANY_VERSION), NotEmptyError),
        (Check("/missing", ANY_VERSION), NoNodeError),
        (Check("/a", version=0), BadVersionError),
    ],
)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_commit_that_fails_has_done_nothing(
    store: MetadataStore, operation: Operation, error: type[Exception], place: str
) -> None:
    store.commit([Create("/a", b"value"), Create("/a/b")])
    was = store.get("/a")
    operations: list[Operation] = [Create("/before"), Create("/before/b")]
    operations.insert(("first", "middle", "last").index(place), operation)
    if isinstance(operation, Check):  # as of what the commit itself has done so far
        operations = [Set("/a", b"changed", 0), *operations]
    with pytest.raises(error, match=operation.path.split("/")[1]):
        store.commit(operations)
    assert not store.exists("/before")
    assert store.get("/a") == was


def test_versions_guard_against_lost_updates(store: MetadataStore) -> None:
    store.commit([Create("/a", b"0")])
    store.commit([Set("/a", b"1", version=0)])
    with pytest.raises(BadVersionError):
        store.commit([Set("/a", b"2", version=0)])
    store.commit([Set("/a", b"2", version=1), Set("/a", b"3", version=2)])
    now = store.get("/a")
    assert (now.value, now.version) == (b"3", 3)


def test_a_commit_returns_what_it_made_and_what_it_set(store: MetadataStore) -> None:
    assert store.commit([Create("/a", b"0")]) == ["/a"]
    made = store.get("/a")
    done = store.commit([Check("/a", 0), Set("/a", b"1", 0), Create("/b", b"new"), Delete("/b", 0)])
    assert done == [None, store.get("/a"), "/b", None]
    assert store.get("/a") == Node(b"1", 1, made.czxid, nodes_of(done)[0].mzxid)
    assert store.commit([Check("/a", ANY_VERSION)]) == [None]
    assert store.commit([]) == []


def test_of_many_commits_each_is_done_or_fails_by_itself(store: MetadataStore) -> None:
    store.commit([Create("/a", b"0")])
    first, failed, last = store.commit_each(
        [
            [Set("/a", b"1", 0)],
            [Create("/b"), Set("/a", b"2", 0)],
            [Set("/a", b"3", 1)],
        ]
    )
    assert [(node.value, node.version) for node in nodes_of(first)] == [(b"1", 1)]
    assert isinstance(failed, BadVersionError)
    assert [node.value for node in nodes_of(last)] == [b"3"]
    assert store.children("/") == ["a"]
    assert store.commit_each([]) == []


def test_transactions_are_numbered_over_sessions(open_again: Callable[[], MetadataStore]) -> None:
    """By the number of the one that made it, a broker's registration is told from those before."""
    numbers = []
    for _ in range(3):
        store = open_again()
        store.commit([Create("/registered", ephemeral=True)])
        numbers.append(store.get("/registered").czxid)
        store.close()
    assert numbers == sorted(set(numbers))


def test_missing_nodes(store: MetadataStore) -> None:
    with pytest.raises(NoNodeError):
        store.get("/a")
    with pytest.raises(NoNodeError):
        store.children("/a")


def test_many_nodes_are_read_in_their_order(store: MetadataStore) -> None:
    paths = [f"/{number}" for number in range(300)]
    store.commit([Create(path, path.encode()) for path in paths if path != "/7"])
    found = store.get_each([*reversed(paths), "/nowhere/else"])
    assert [node and node.value for node in found] == [
        None if path == "/7" else path.encode() for path in reversed(paths)
    ] + [None]
    assert store.get_each([]) == []
    assert store.get_each(["/1"]) == [store.get("/1")]


def test_ensure_makes_what_is_missing(store: MetadataStore) -> None:
    store.ensure("/a/b/c")
    store.commit([Set("/a", b"kept", 0)])
    store.ensure("/a/b/d", b"first")
    store.ensure("/a/b/d", b"second")
    assert store.children("/a/b") == ["c", "d"]
    values = {path: store.get(path).value for path in ("/a", "/a/b", "/a/b/d")}
    assert values == {"/a": b"kept", "/a/b": b"", "/a/b/d": b"first"}


def test_nodes_of_a_sequence_are_counted(
    store: MetadataStore, open_again: Callable[[], MetadataStore]
) -> None:
    store.ensure("/changes")
    note = Create("/changes/change_", b"x", sequence=True)
    assert store.commit([note, note]) == [
        "/changes/change_0000000000",
        "/changes/change_0000000001",
    ]
    store.commit([Delete("/changes/change_0000000001", 0)])
    with pytest.raises(NoNodeError):
        store.commit([note, Check("/missing", 0)])
    store.close()
    again = open_again()
    assert again.commit([note]) == ["/changes/change_0000000002"]
    assert again.children("/changes") == ["change_0000000000", "change_0000000002"]
    assert again.get("/changes/change_0000000002").value == b"x"
    again.close()


class Seen:
    """Functions that watch, and how often each was called."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def of(self, name: str) -> Callable[[], None]:
        self.calls[name] = 0

        def changed() -> None:
            with self._lock:
                self.calls[name] += 1

        return changed

    def wait(self, **expected: int) -> None:
        wait_until(lambda: self.calls == expected, lambda: self.calls)


def test_watches_tell_of_values_and_children(store: MetadataStore) -> None:
    seen = Seen()
    store.commit([Create("/a")])
    store.watch("/a", seen.of("a"))
    end = store.watch("/a/b", seen.of("b"))
    store.commit([Create("/a/b")])
    seen.wait(a=1, b=1)
    store.commit([Set("/a/b", b"x", 0), Check("/a", 0)])
    seen.wait(a=1, b=2)
    end()
    store.commit([Set("/a/b", b"y", 1), Delete("/a/b", 2)])
    seen.wait(a=2, b=2)
    with pytest.raises(NoNodeError):
        store.commit([Set("/a", b"x", 0), Delete("/a/b", 0)])
    store.commit([Set("/a", b"x", 0)])
    seen.wait(a=3, b=2)


def test_a_watch_outlives_its_node_and_waits_for_one(store: MetadataStore) -> None:
    seen = Seen()
    store.watch("/not/there/yet", seen.of("yet"))
    store.ensure("/not/there/yet")
    seen.wait(yet=1)
    store.commit([Delete("/not/there/yet", 0)])
    seen.wait(yet=2)
    store.commit([Create("/not/there/yet")])
    seen.wait(yet=3)
    store.commit([Create("/not/there/yet/child")])
    seen.wait(yet=4)


def test_several_watch_one_node(store: MetadataStore) -> None:
    seen = Seen()
    store.commit([Create("/a")])
    end_first = store.watch("/a", seen.of("first"))
    end_second = store.watch("/a", seen.of("second"))
    store.commit([Set("/a", b"1", 0)])
    seen.wait(first=1, second=1)
    end_first()
    store.commit([Set("/a", b"2", 1)])
    seen.wait(first=1, second=2)
    end_second()
    store.commit([Set("/a", b"3", 2)])
    store.watch("/a", seen.of("third"))
    store.commit([Set("/a", b"4", 3)])
    wait_until(lambda: seen.calls["third"], seen.calls)
    assert (seen.calls["first"], seen.calls["second"]) == (1, 2)


def test_who_reads_when_told_misses_nothing(store: MetadataStore) -> None:
    """As changes come while the one before is told of."""
    store.commit([Create("/a", b"0")])
    read: list[bytes] = []
    told = threading.Event()
    store.watch("/a", told.set)
    writer = threading.Thread(
        target=lambda: [store.commit([Set("/a", b"%d" % n, ANY_VERSION)]) for n in range(1, 101)]
    )
    writer.start()
    while not read or read[-1] != b"100":
        assert told.wait(10), read
        told.clear()
        read.append(store.get("/a").value)
    writer.join()


def test_ephemeral_nodes_end_with_the_session(open_again: Callable[[], MetadataStore]) -> None:
    first = open_again()
    first.commit([Create("/stays"), Create("/goes", ephemeral=True)])
    assert first.exists("/goes")
    first.close()
    second = open_again()
    assert second.children("/") == ["stays"]
    second.close()
