"""Where a cluster keeps what all its brokers must agree on: a small tree of nodes.

Owns: the interface and its errors. The tree is ZooKeeper's: a node has a path, a value, a version
that counts its changes, the numbers of the transactions that made it and that last set it (czxid,
mzxid), and children; a node is made under an existing parent and removed without children. A commit
is one transaction (multi).
`local_store` keeps the tree in one file for a broker alone, `zookeeper_store` in ZooKeeper for the
brokers of a cluster; a session, which may end while its broker lives, is the latter's alone
(`session`).

Every method may block (a commit reaches the disk, or another machine): call them from a thread, not
from the event loop. Values are bytes (JSON in Kafka's own layout, see znodes.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

ANY_VERSION = -1
"""Of an operation that counts whatever was changed before."""


class MetadataStoreError(Exception):
    """Root of the store's errors; the message is the path."""


class NoNodeError(MetadataStoreError, LookupError):
    """The node, or the parent of a node to be made, does not exist."""


class NodeExistsError(MetadataStoreError):
    """The node to be made exists."""


class BadVersionError(MetadataStoreError):
    """The node changed since the version that the caller knew."""


class NotEmptyError(MetadataStoreError):
    """The node to be removed has children."""


class CommitTooLargeError(MetadataStoreError):
    """The store takes no commit of that many `size` bytes, at `most` so many: it was not sent."""

    def __init__(self, path: str, size: int, most: int) -> None:
        super().__init__(f"{path}: a commit of {size} bytes, of which ZooKeeper takes {most}")
        self.size, self.most = size, most


class NonsenseError(MetadataStoreError):
    """What stands in the node is not what belongs there: somebody else has written it."""


class StoreConnectionError(MetadataStoreError):
    """The store could not be reached, or did not answer in time. A commit may be done or not: read
    back and compare."""


class SessionExpiredError(StoreConnectionError):
    """This commit is not done: the session that it belongs to has ended, and its owner has not
    said that it goes on in the next one."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node's value, how often it was set (0 after creation), and by which transactions it was
    made and last set: the first is the broker's epoch, of a broker's registration. `made_ms`: when,
    by the store's clock; 0 where it keeps no times."""

    value: bytes
    version: int
    czxid: int
    mzxid: int
    made_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node. An ephemeral node lives as long as the session that made it; to the name of one
    in a `sequence` ten digits are added, which count the children ever made there."""

    path: str
    value: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a node's value, if its version is the one given."""

    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node without children, if its version is the one given."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Go on only if a node's version is the one given."""

    path: str
    version: int


Operation: TypeAlias = Create | Set | Delete | Check
Result: TypeAlias = str | Node | None
"""Of a Create that was done the path of the node, of a Set the node as it is after that."""


class MetadataStore(Protocol):
    """The tree. Errors are MetadataStoreError; of a commit that fails nothing has happened, but
    for StoreConnectionError, of which nobody knows."""

    def get(self, path: str) -> Node:
        """The node at `path`; NoNodeError."""

    def get_each(self, paths: Sequence[str]) -> list[Node | None]:
        """Many nodes in one go, in their order; None for those that are not there. They are not
        read at one time."""

    def exists(self, path: str) -> bool:
        """Whether there is a node at `path`."""

    def children(self, path: str) -> list[str]:
        """The names, not paths, of a node's children, sorted; NoNodeError."""

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        """Does all of `operations` in their order, or none; durable when it returns."""

    def commit_each(
        self, commits: Sequence[Sequence[Operation]]
    ) -> "list[list[Result] | MetadataStoreError]":
        """Many commits in one go, each done or failed by itself: of each what `commit` returns, or
        raises."""

    def ensure(self, path: str, value: bytes = b"") -> None:
        """Makes the node, with the value, and its parents where they are missing; also where the
        store is out of reach for a moment."""

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls `changed` after the node's value, or its set of children, has changed; the node
        need not be there yet. Whoever reads after this has returned, and after each call, misses
        nothing: several changes may be one call, and a call may come of none.

        The call comes on the store's or the writer's thread: hand it over to the event loop.
        Returns a function that ends the watch.
        """

    def close(self) -> None:
        """Ends the session: its ephemeral nodes go."""
