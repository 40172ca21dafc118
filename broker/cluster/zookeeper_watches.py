"""Watches of ZooKeeper's nodes that last: over changes, reconnects and sessions.

Owns: what is watched, and the state that was seen of each node. ZooKeeper's watches are for one
change, kazoo drops them with each connection, and neither tells what changed. So each is set again
after it was set off and after each connection, and only when it is set the node is compared with
what was seen: whoever reads when told misses nothing. That a node was there which is gone again is
told as well. After a new session all are told.

After a new connection that is done by a thread of its own, in any order and later than the owner is
told of the connection: what changed in between is seen when it is compared.

Called by: zookeeper_store, on any thread; the functions that watch are called on kazoo's.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent

from broker.cluster.zookeeper_client import ZooKeeperClient
from broker.cluster.zookeeper_session import ZooKeeperSession

__all__ = ["ZooKeeperWatches"]

_log = logging.getLogger(__name__)


class _Watched:
    """A node that is watched. `seen`: numbers of the transactions that made it, last set it, and
    last changed its children; None where it is not there."""

    __slots__ = ("fired", "functions", "is_set", "must_tell", "seen")

    def __init__(self, fired: Callable[[WatchedEvent], None]) -> None:
        self.functions: list[Callable[[], None]] = []
        self.fired = fired
        self.seen: tuple[int, int, int] | None = None
        self.is_set = False
        self.must_tell = False


class ZooKeeperWatches:
    """The nodes that are watched in one session after the other."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._to_renew: list[str] = []
        self._is_renewing = False

    def add(
        self, path: str, changed: Callable[[], None], until_s: float
    ) -> tuple[Any, Callable[[], None]]:
        """Watches with `changed`, too, as soon as what is sent now is answered: returns that
        result to come, and a function that ends it. Raises what `session.send` does."""
        with self._lock:
            watched = self._watched.setdefault(path, _Watched(partial(self._fired, path)))
            watched.functions.append(changed)

        def end() -> None:
            # What waits in ZooKeeper is left to its change, which ends it in `_fired`.
            with self._lock:
                watched.functions.remove(changed)

        try:
            return self._session.send(partial(self._ask, path, watched), until_s), end
        except BaseException:
            end()
            raise

    def renew(self, is_new_session: bool) -> None:
        """There is a new connection: has all set again. Neither sends nor waits: it is called on
        the thread that all answers come by."""
        with self._lock:
            for one in self._watched.values():
                # What is not there may have come and gone.
                one.must_tell |= is_new_session or (one.is_set and one.seen is None)
            self._to_renew = list(self._watched)
            if self._to_renew and not self._is_renewing:
                self._is_renewing = True
                threading.Thread(target=self._renew, name="zookeeper-watches", daemon=True).start()

    def _renew(self) -> None:
        while True:
            with self._lock:
                if not self._to_renew:
                    self._is_renewing = False
                    return
                path = self._to_renew.pop()
                watched = self._watched.get(path)
            if watched is not None:
                self._set(path, watched)

    def _fired(self, path: str, event: WatchedEvent) -> None:
        if event.type == EventType.NONE:  # the connection is lost: `renew` comes with the next
            return
        with self._lock:
            watched = self._watched.get(path)
            if watched is not None:
                # It may be gone again by then: no number would tell that it was there.
                watched.must_tell |= event.type == EventType.CREATED
        if watched is not None:
            self._set(path, watched)

    def _set(self, path: str, watched: _Watched) -> None:
        with self._lock:
            if not watched.functions:
                self._watched.pop(path, None)
                return
        self._session.try_send(partial(self._ask, path, watched))

    def _ask(self, path: str, watched: _Watched, client: ZooKeeperClient) -> Any:
        """Children are asked for last: from their answer on all that changes sets off a watch."""
        node = client.exists_async(path, watch=watched.fired)
        children = client.get_children_async(path, watch=watched.fired, include_data=True)
        children.rawlink(partial(self._was_set, path, watched, node))
        return children

    def _was_set(self, path: str, watched: _Watched, node: Any, children: Any) -> None:
        is_missing = isinstance(children.exception, NoNodeError)
        if not node.successful() or not (children.successful() or is_missing):
            return
        seen = None
        if not is_missing:
            _, stat = children.value
            seen = (stat.czxid, stat.mzxid, stat.pzxid)
        with self._lock:
            must_tell = watched.must_tell or (watched.is_set and seen != watched.seen)
            watched.is_set, watched.must_tell, watched.seen = True, False, seen
            functions = list(watched.functions) if must_tell else []
        for changed in functions:
            changed()
