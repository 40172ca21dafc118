"""What is asked of other brokers: connections to them, and one request for all that waits.

Owns: a connection to each broker that was asked something, by its newest address, and per broker
what waits while a request is under way. Called by: the event loop's thread only.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from kafka.errors import KafkaConnectionError

from broker.cluster.cache import MetadataCache
from broker.cluster.metadata import BrokerNode

T = TypeVar("T")


class Connection(Protocol):
    """To a broker, for one request at a time. `request` raises KafkaConnectionError."""

    async def request(self, message: Any, version: int, response_class: Any) -> Any: ...

    def close(self) -> None: ...


class AskBroker(Protocol):
    """Asks a broker, by its id. Raises KafkaConnectionError: the request may have been carried out
    all the same."""

    def __call__(
        self, node_id: int, message: Any, version: int, response_class: Any, /
    ) -> Awaitable[Any]: ...


async def ask_nobody(node_id: int, message: Any, version: int, response_class: Any) -> Any:
    """Of a broker alone, which knows no other."""
    raise KafkaConnectionError(f"broker {node_id} is not known here")


class ToBrokers:
    """A connection to each broker."""

    def __init__(
        self, metadata: MetadataCache, connect: Callable[[BrokerNode], Connection]
    ) -> None:
        self._metadata = metadata
        self._connect = connect
        self._connections: dict[int, tuple[BrokerNode, Connection]] = {}
        self._is_closed = False

    async def ask(self, node_id: int, message: Any, version: int, response_class: Any) -> Any:
        """Asks a broker, as AskBroker says."""
        return await self._to(node_id).request(message, version, response_class)

    def close(self) -> None:
        """Nobody is asked any more."""
        self._is_closed = True
        for _, connection in self._connections.values():
            connection.close()

    def _to(self, node_id: int) -> Connection:
        node = next((node for node in self._metadata.brokers if node.node_id == node_id), None)
        known = self._connections.get(node_id)
        if known is not None and (node is None or node != known[0]):
            known[1].close()
            del self._connections[node_id]
            known = None
        if node is None or self._is_closed:
            raise KafkaConnectionError(f"broker {node_id} is not there, as far as is known")
        if known is None:
            known = self._connections[node_id] = (node, self._connect(node))
        return known[1]


class Batches(Generic[T]):
    """What is to be asked of brokers, one request at a time for each, with all that has come since
    the one before."""

    def __init__(self, exchange: Callable[[int, list[T]], Awaitable[list[T]]]) -> None:
        """`exchange` asks a broker, and sees to what becomes of each item; it returns those that
        are to be asked after it. It raises nothing."""
        self._exchange = exchange
        self._waiting: dict[int, list[T]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, node_id: int, item: T) -> None:
        waiting = self._waiting.get(node_id)
        if waiting is not None:
            waiting.append(item)
            return
        self._waiting[node_id] = [item]
        task = asyncio.get_running_loop().create_task(self._work(node_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _work(self, node_id: int) -> None:
        try:
            while items := self._waiting[node_id]:
                self._waiting[node_id] = []
                left = await self._exchange(node_id, items)
                self._waiting[node_id] = left + self._waiting[node_id]
        finally:
            del self._waiting[node_id]
