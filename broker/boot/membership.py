"""Membership: this broker's place in a cluster over ZooKeeper.

Owns: its registration, its candidacy as controller, and what the end of a session means for both.
Watches tell that something has changed, never what: all that is known to have changed is looked at
anew, in one task, in one order: the session first. What the store refuses for want of a connection
is looked at again. Called by: the event loop's thread.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import Enum

from kafka.errors import BrokerResponseError, NotControllerError

from broker.cluster import znodes
from broker.cluster.changes import RunBlocking
from broker.cluster.metadata import BrokerNode
from broker.cluster.records import MetadataRecords
from broker.cluster.session import SessionEvent, SessionState
from broker.cluster.store import (
    BadVersionError,
    MetadataStoreError,
    NodeExistsError,
    SessionExpiredError,
    StoreConnectionError,
)
from broker.cluster.zookeeper_store import ZooKeeperStore
from broker.config.definition import ConfigError
from broker.controller.controller import Controller

_log = logging.getLogger(__name__)

_RETRY_S = 0.2


class _Changed(Enum):
    """What is to be looked at, in this order."""

    SESSION = 0
    REGISTRATION = 1
    CONTROLLER = 2
    BROKERS = 3
    REQUESTS = 4
    TOPICS = 5
    FAILED_LOGS = 6
    LOG_DIR_EVENTS = 7


class Membership:
    """Registered, and perhaps elected, as long as its session with ZooKeeper lasts."""

    def __init__(
        self,
        node: BrokerNode,
        store: ZooKeeperStore,
        records: MetadataRecords,
        controller: Controller,
        run_blocking: RunBlocking,
        on_registered: Callable[[int], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`on_registered` hears the broker's epoch, `on_lost` that the session is over: others may
        lead what this broker led."""
        self._node = node
        self._store = store
        self._records = records
        self._controller = controller
        self._run_blocking = run_blocking
        self._on_registered = on_registered
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._changed: set[_Changed] = set()
        self._wake = asyncio.Event()
        self._expired = False
        self._session_id: int | None = None
        self._is_registered = False
        self._is_elected = False
        self._unwatch: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        controller.on_doubt(lambda: self._note(_Changed.CONTROLLER))

    async def join(self, wait_s: float) -> None:
        """Registers, and stands for election. Raises ConfigError where another broker with this
        one's id is still there after `wait_s`, and MetadataStoreError."""
        until_s = self._loop.time() + wait_s
        for path, changed in (
            (znodes.broker(self._node.node_id), _Changed.REGISTRATION),
            (znodes.CONTROLLER, _Changed.CONTROLLER),
            (znodes.BROKERS, _Changed.BROKERS),
            (znodes.REASSIGNMENTS, _Changed.REQUESTS),
            (znodes.PREFERRED_ELECTIONS, _Changed.REQUESTS),
            (znodes.TOPICS, _Changed.TOPICS),
            (znodes.LOG_DIR_EVENTS, _Changed.LOG_DIR_EVENTS),
        ):
            self._unwatch.append(await self._watch(path, changed))
        while not await self._register_until(until_s):
            # One of a session of ours that ends soon, or another broker's.
            if self._loop.time() > until_s:
                raise ConfigError(
                    f"broker.id {self._node.node_id} is registered by another broker: "
                    "set another one here or there"
                )
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _RETRY_S)
            self._wake.clear()
        self._note(_Changed.CONTROLLER)
        self._task = self._loop.create_task(self._run())

    async def leave(self) -> None:
        """Looks at nothing any more; where this broker is the controller, another may be at
        once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for end in self._unwatch:
            await self._run_blocking(end)
        await self._controller.resign()
        if self._is_elected:
            with contextlib.suppress(MetadataStoreError, BrokerResponseError):
                await self._run_blocking(self._records.resign)

    def session_changed(self, event: SessionEvent) -> None:
        """As the store tells, in order, those of before `join` included."""
        if event.state is SessionState.EXPIRED:
            # At once: whatever waits for its turn, nothing is acknowledged from here on.
            self._on_lost()
            self._expired, self._session_id = True, None
            self._is_registered = self._is_elected = False
            self._note(_Changed.SESSION)
        elif event.state is SessionState.CONNECTED and self._expired:
            self._session_id = event.session_id
            self._note(_Changed.SESSION)

    def logs_failed(self) -> None:
        """Logs of this broker are offline."""
        self._note(_Changed.FAILED_LOGS)

    async def _watch(self, path: str, changed: _Changed) -> Callable[[], None]:
        def note() -> None:
            self._loop.call_soon_threadsafe(self._note, changed)

        return await self._run_blocking(lambda: self._store.watch(path, note))

    def _note(self, changed: _Changed) -> None:
        self._changed.add(changed)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            held_up = []
            for changed in sorted(self._changed, key=lambda each: each.value):
                self._changed.discard(changed)
                try:
                    await self._look_at(changed)
                except (MetadataStoreError, BrokerResponseError, OSError) as error:
                    _log.warning("membership.held_up at=%s reason=%r", changed.name, str(error))
                    held_up.append(changed)
                except Exception:
                    # A bug at one: without this task nobody would hear of any.
                    _log.exception("membership.held_up at=%s", changed.name)
                    held_up.append(changed)
            for changed in held_up:
                self._note(changed)
            if held_up:
                await asyncio.sleep(_RETRY_S)

    async def _look_at(self, changed: _Changed) -> None:
        if changed is _Changed.SESSION:
            await self._look_at_session()
        elif self._session_id is None and self._expired:
            return  # the next session looks at everything
        elif changed is _Changed.REGISTRATION:
            if not self._is_registered and await self._register():
                self._note(_Changed.CONTROLLER)
        elif changed is _Changed.CONTROLLER:
            await self._look_for_controller()
        elif changed is _Changed.FAILED_LOGS:
            await self._run_blocking(lambda: self._records.tell_of_failed_logs(self._node.node_id))
        elif self._controller.is_active:
            controller = self._controller
            look = {
                _Changed.BROKERS: controller.brokers_changed,
                _Changed.REQUESTS: controller.look_at_requests,
                _Changed.TOPICS: controller.topics_changed,
                _Changed.LOG_DIR_EVENTS: controller.failed_replicas.look_at_events,
            }[changed]
            try:
                await look()
            except NotControllerError:
                self._note(_Changed.CONTROLLER)

    async def _look_at_session(self) -> None:
        """What this broker had by its last session it gives up before it begins anew. What follows
        has its own turn, and is tried again by itself where the store does not answer."""
        if not self._expired:
            return
        await self._controller.resign()
        session_id = self._session_id
        if session_id is None:
            return  # until there is one
        self._store.resume(session_id)
        self._expired = False
        self._note(_Changed.REGISTRATION)

    async def _register_until(self, until_s: float) -> bool:
        """False as well where the store was not reached, which raises only then."""
        try:
            return await self._register_in_session()
        except StoreConnectionError as error:
            if self._loop.time() > until_s:
                raise
            _log.warning("broker.not_registered id=%d reason=%r", self._node.node_id, str(error))
            return False

    async def _register_in_session(self) -> bool:
        """While this broker is about to join, its session may end as well."""
        await self._look_at_session()
        return not self._expired and await self._register()

    async def _register(self) -> bool:
        """False where a registration of this id is still there, or this one's session has ended
        before it was known."""
        try:
            epoch = await self._run_blocking(lambda: self._records.register(self._node))
        except NodeExistsError:
            _log.warning("broker.not_registered id=%d reason='is still there'", self._node.node_id)
            return False
        except SessionExpiredError:
            return False
        if self._expired:
            return False
        self._is_registered = True
        self._on_registered(epoch)
        _log.info("broker.registered id=%d epoch=%d", self._node.node_id, epoch)
        return True

    async def _look_for_controller(self) -> None:
        """Stands for election where there is no controller; resigns where it is another."""
        controller_id = await self._run_blocking(self._records.controller_id)
        is_elected = self._is_elected and controller_id == self._node.node_id
        if is_elected and self._controller.is_active:
            return
        await self._controller.resign()
        self._is_elected = is_elected
        if not is_elected:
            # Where it is this broker's by a session before, its end comes soon.
            if controller_id is not None or not self._is_registered:
                return
            try:
                await self._run_blocking(
                    lambda: self._records.become_controller(self._node.node_id)
                )
            except (NodeExistsError, BadVersionError):
                return  # another one was faster
            if self._expired:
                return
            self._is_elected = True
        await self._controller.start()
        self._note(_Changed.REQUESTS)
        self._note(_Changed.LOG_DIR_EVENTS)
