"""The metadata of a cluster: MetadataStore in ZooKeeper, below zookeeper.connect's path.

Owns: the operations, and what their errors mean. A commit is a multi, which is sent once: where
its answer is lost, nobody knows whether it is done. Before the next reading ZooKeeper is synced
then, so that what is read back tells: a commit that is not seen there never comes. Readings are
sent again while the session's timeout lasts. A commit that is more than a server takes by default
(jute.maxbuffer) is refused here: the server would drop the connection, with all that is under way.

Imports kazoo, and so is imported only where a broker joins a cluster. Called by: any thread but the
event loop's.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kazoo import exceptions
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import ACL, CREATOR_ALL_ACL, READ_ACL_UNSAFE

from broker.cluster.session import SessionEvent, SessionState
from broker.cluster.store import (
    BadVersionError,
    CommitTooLargeError,
    Create,
    Delete,
    MetadataStoreError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Result,
    SessionExpiredError,
    Set,
    StoreConnectionError,
)
from broker.cluster.zookeeper_client import MOST_UNANSWERED, ZooKeeperClient
from broker.cluster.zookeeper_session import Request, ZooKeeperSession
from broker.cluster.zookeeper_watches import ZooKeeperWatches
from broker.config.broker import BrokerConfig
from broker.config.endpoint import parse_zookeeper

_ERRORS: dict[type[Exception], type[MetadataStoreError]] = {
    exceptions.NoNodeError: NoNodeError,
    exceptions.NodeExistsError: NodeExistsError,
    exceptions.BadVersionError: BadVersionError,
    exceptions.NotEmptyError: NotEmptyError,
}
_LOST = (
    exceptions.ConnectionLoss,
    exceptions.SessionExpiredError,  # also where the client is closed
    exceptions.SessionMovedError,
    exceptions.OperationTimeoutError,
    exceptions.RequestTimeoutError,
)
_REFUSED: dict[type[Exception], str] = {
    exceptions.AuthFailedError: "ZooKeeper does not know this broker's user and password (the JAAS "
    "file that KAFKA_OPTS=-Djava.security.auth.login.config names)",
    exceptions.NoAuthError: "ZooKeeper lets this broker's user not do this (the node's ACL is for "
    "others; zookeeper.set.acl)",
}
_SENSITIVE = ("/config/users", "/config/brokers", "/delegation_token")
"""With zookeeper.set.acl not even read by others; as Apache Kafka's ZkData has it."""
# Servers take so many bytes of a request, as long as their jute.maxbuffer is not set.
_MOST_COMMIT_BYTES = 0xFFFFF
# At most, in bytes: a multi's own, and what an operation (a Create) adds to its path and value.
_MULTI_BYTES = 17
_OPERATION_BYTES = 64

# Of a multi, what is said of the operations that did not fail themselves.
_BY_ANOTHER = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A commit whose answer is waited for until then, by the monotonic clock."""

    operations: Sequence[Operation]
    result: Any
    until_s: float


class ZooKeeperStore:
    """MetadataStore of `config`'s zookeeper.connect, in one session after the other.

    `on_session` is told of them, on kazoo's thread or another, in order; it must neither block nor
    call this store. After EXPIRED commits raise SessionExpiredError until `resume`.

    Raises StoreConnectionError where no connection is made within zookeeper.connection.timeout.ms,
    and ConfigError.
    """

    def __init__(self, config: BrokerConfig, on_session: Callable[[SessionEvent], None]) -> None:
        assert config.zookeeper_connect is not None
        servers, self._root = parse_zookeeper(config.zookeeper_connect)
        # The other half is for who reads.
        self._most_in_flight = min(config.zookeeper_max_in_flight_requests, MOST_UNANSWERED // 2)
        self._sets_acl = config.zookeeper_set_acl
        self._on_session = on_session
        # The newest commit whose answer was lost, and the newest that is known to be done or not.
        self._lost = self._settled = object()
        self._session = ZooKeeperSession(config, servers, self._session_changed)
        self._watches = ZooKeeperWatches(self._session)
        connection_ms = config.zookeeper_connection_timeout_ms
        wait_s = self._session.timeout_s if connection_ms is None else connection_ms / 1000
        self._session.connect(wait_s)
        try:
            self._make_root()
        except BaseException:
            self._session.close()
            raise

    def resume(self, session_id: int) -> None:
        """Lets commits go on in the session of that CONNECTED event; its owner has given up what it
        had in the one before. Nothing happens where that session has ended as well."""
        self._session.resume(session_id)

    @property
    def session_is_over(self) -> bool:
        """Whether others may act in this broker's place; until `resume`. Any thread."""
        return self._session.is_over

    def get(self, path: str) -> Node:
        return _node_of(self._read(path, lambda client: client.get_async(self._full(path))))

    def get_each(self, paths: Sequence[str]) -> list[Node | None]:
        """As many are asked for before the first is answered as half of what may wait."""
        found: list[Node | None] = []
        in_flight: deque[tuple[str, Any]] = deque()
        until_s = self._until_s()
        for path in paths:
            if len(in_flight) == MOST_UNANSWERED // 2:
                found.append(self._take(*in_flight.popleft(), until_s))
            in_flight.append((path, self._ask_for(path, until_s)))
        return found + [self._take(*sent, until_s) for sent in in_flight]

    def exists(self, path: str) -> bool:
        found = self._read(path, lambda client: client.exists_async(self._full(path)))
        return found is not None

    def children(self, path: str) -> list[str]:
        return sorted(self._read(path, lambda client: client.get_children_async(self._full(path))))

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        (done,) = self.commit_each([operations])
        if isinstance(done, MetadataStoreError):
            raise done
        return done

    def commit_each(
        self, commits: Sequence[Sequence[Operation]]
    ) -> list[list[Result] | MetadataStoreError]:
        """After a StoreConnectionError no more are sent: all that follow have one as well."""
        session_id = self._session.session_id
        done: list[list[Result] | MetadataStoreError] = []
        in_flight: deque[_Sent | CommitTooLargeError] = deque()
        trouble: StoreConnectionError | None = None
        for operations in commits:
            if len(in_flight) == self._most_in_flight:
                done.append(self._outcome(in_flight.popleft()))
                if isinstance(done[-1], StoreConnectionError):
                    trouble = done[-1]
                    break
            try:
                in_flight.append(self._send_commit(operations, session_id))
            except StoreConnectionError as error:
                trouble = error
                break
        done += [self._outcome(sent) for sent in in_flight]
        if trouble is not None:
            done += [trouble] * (len(commits) - len(done))
        return done

    def ensure(self, path: str, value: bytes = b"") -> None:
        until_s = self._until_s()
        while True:
            try:
                self._make_missing(path, value)
            except SessionExpiredError:
                raise
            except StoreConnectionError:
                # What is done of it is there when it is looked for again.
                if time.monotonic() >= until_s:
                    raise
            else:
                return

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        until_s = self._until_s()
        while True:
            was_set, end = self._watches.add(self._full(path), changed, until_s)
            try:
                self._answer(path, was_set, until_s)
            except NoNodeError:  # then it is its making that is watched for
                return end
            except StoreConnectionError:
                end()
                if time.monotonic() >= until_s:
                    raise
            except BaseException:
                end()
                raise
            else:
                return end

    def close(self) -> None:
        self._session.close()

    def _full(self, path: str) -> str:
        return (self._root if path == "/" else self._root + path) or "/"

    def _make_missing(self, path: str, value: bytes) -> None:
        missing = []
        while not self.exists(path):
            missing.append(Create(path, value))
            path, value = path.rpartition("/")[0] or "/", b""
        for each in reversed(missing):
            with suppress(NodeExistsError):  # another broker was faster
                self.commit([each])

    def _make_root(self) -> None:
        root, self._root = self._root, ""
        if root:
            self.ensure(root)
        self._root = root

    def _session_changed(self, event: SessionEvent) -> None:
        if event.state is SessionState.CONNECTED:
            self._watches.renew(event.is_new)
        self._on_session(event)

    def _read(self, path: str, request: Request) -> Any:
        until_s = self._until_s()
        while True:
            lost = self._lost
            is_settled = lost is self._settled
            ask = request if is_settled else (lambda client: client.sync_async("/"))
            sent = self._session.send(ask, until_s)
            try:
                answer = self._answer(path, sent, until_s)
            except StoreConnectionError:
                if time.monotonic() >= until_s:
                    raise
                continue
            if is_settled:
                return answer
            self._settled = lost

    def _ask_for(self, path: str, until_s: float) -> Any:
        """A node, whose answer is to come; None where it cannot be asked for just now."""
        if self._lost is not self._settled:
            return None
        try:
            return self._session.send(lambda client: client.get_async(self._full(path)), until_s)
        except StoreConnectionError:
            return None

    def _take(self, path: str, sent: Any, until_s: float) -> Node | None:
        """What was asked for; it is asked for again where the answer was lost."""
        try:
            if sent is not None:
                with suppress(StoreConnectionError):
                    return _node_of(self._answer(path, sent, until_s))
            return self.get(path)
        except NoNodeError:
            return None

    def _until_s(self) -> float:
        return time.monotonic() + self._session.timeout_s

    def _answer(self, path: str, sent: Any, until_s: float) -> Any:
        try:
            return sent.get(timeout=max(0, until_s - time.monotonic()))
        except (exceptions.KazooException, KazooTimeoutError) as error:
            raise _error(error, path) from error

    def _send_commit(
        self, operations: Sequence[Operation], session_id: int
    ) -> _Sent | CommitTooLargeError:
        def send(client: ZooKeeperClient) -> Any:
            multi = client.transaction()
            for operation in operations:
                path = self._full(operation.path)
                if isinstance(operation, Create):
                    flags = {"ephemeral": operation.ephemeral, "sequence": operation.sequence}
                    multi.create(path, operation.value, self._acl(operation.path), **flags)
                elif isinstance(operation, Set):
                    multi.set_data(path, operation.value, operation.version)
                elif isinstance(operation, Delete):
                    multi.delete(path, operation.version)
                else:
                    multi.check(path, operation.version)
            return multi.commit_async()

        size = self._most_bytes(operations)
        if size > _MOST_COMMIT_BYTES:
            return CommitTooLargeError(operations[0].path, size, _MOST_COMMIT_BYTES)
        until_s = self._until_s()
        return _Sent(operations, self._session.send(send, until_s, session_id), until_s)

    def _acl(self, path: str) -> list[ACL] | None:
        """Of a new node; None: anybody may do anything."""
        if not self._sets_acl:
            return None
        readers = () if path.startswith(_SENSITIVE) else READ_ACL_UNSAFE
        return [*CREATOR_ALL_ACL, *readers]

    def _most_bytes(self, operations: Sequence[Operation]) -> int:
        """How many the request has at most."""
        size = _MULTI_BYTES
        for operation in operations:
            size += _OPERATION_BYTES + len(self._full(operation.path).encode())
            if isinstance(operation, (Create, Set)):
                size += len(operation.value)
        return size

    def _outcome(self, sent: _Sent | CommitTooLargeError) -> list[Result] | MetadataStoreError:
        if isinstance(sent, CommitTooLargeError):
            return sent
        operations = sent.operations
        path = operations[0].path if operations else "/"
        try:
            results = self._answer(path, sent.result, sent.until_s)
        except StoreConnectionError as error:
            self._lost = object()
            return error
        except MetadataStoreError as error:
            return error
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, _BY_ANOTHER):
                return _error(result, operation.path)
        return [
            self._result(operation, result)
            for operation, result in zip(operations, results, strict=True)
        ]

    def _result(self, operation: Operation, result: Any) -> Result:
        if isinstance(operation, Create):
            return str(result)[len(self._root) :]
        return _node(operation.value, result) if isinstance(operation, Set) else None


def _node(value: bytes, stat: Any) -> Node:
    return Node(value, stat.version, stat.czxid, stat.mzxid, stat.ctime)


def _node_of(answer: tuple[bytes | None, Any]) -> Node:
    value, stat = answer
    return _node(value or b"", stat)  # Kafka's folders have null


def _error(error: Exception, path: str) -> MetadataStoreError:
    """The store's, of one of kazoo's."""
    if isinstance(error, (KazooTimeoutError, *_LOST)):
        return StoreConnectionError(
            f"{path}: {type(error).__name__}: a commit may be done or not, read back"
        )
    if type(error) in _REFUSED:
        return MetadataStoreError(f"{path}: {_REFUSED[type(error)]}")
    kind = _ERRORS.get(type(error))
    return kind(path) if kind else MetadataStoreError(f"{path}: {type(error).__name__}")
