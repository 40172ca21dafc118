"""RemoteChannel: the controller's way to another broker, in Kafka's own messages.

Owns: what is still to be said to the broker, in order, and the connection. A request whose answer
was lost is sent again until the channel is closed: brokers take each twice without harm. Called by:
the event loop's thread only.
"""

import asyncio
import contextlib
import logging
from collections import deque

from kafka.errors import (
    BrokerNotAvailableError,
    BrokerResponseError,
    KafkaConnectionError,
)

from broker.cluster.control import ControlRequest, Failures
from broker.cluster.control_messages import failures_in, message_of, response_class_of
from broker.cluster.to_brokers import Connection

_log = logging.getLogger(__name__)

_RETRY_S = 0.1


class RemoteChannel:
    """One request after the other, over one connection."""

    def __init__(self, node_id: int, connection: Connection) -> None:
        self._node_id = node_id
        self._connection = connection
        self._requests: deque[tuple[ControlRequest, asyncio.Future[Failures]]] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False

    def send(self, request: ControlRequest) -> "asyncio.Future[Failures]":
        answer: asyncio.Future[Failures] = asyncio.get_running_loop().create_future()
        # Nobody may be waiting for it.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._requests.append((request, answer))
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_all())
        return answer

    async def close(self) -> None:
        self._is_closed = True
        self._connection.close()
        if self._sending is not None:
            self._sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sending
        for _, answer in self._requests:
            if not answer.done():
                answer.set_exception(BrokerNotAvailableError(f"broker {self._node_id} is gone"))
        self._requests.clear()

    async def _send_all(self) -> None:
        while self._requests:
            request, answer = self._requests[0]
            try:
                failures = await self._send(request)
            except BrokerResponseError as error:
                _log.warning("control.refused broker=%d reason=%r", self._node_id, error)
                if not answer.done():
                    answer.set_exception(error)
            except Exception as error:
                # A bug at one: without this task the broker would hear of no other.
                _log.exception("control.not_sent broker=%d", self._node_id)
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(failures)
            self._requests.popleft()
        self._sending = None

    async def _send(self, request: ControlRequest) -> Failures:
        message, (version, response_class) = message_of(request), response_class_of(request)
        is_silent = False
        while not self._is_closed:
            try:
                response = await self._connection.request(message, version, response_class)
            except KafkaConnectionError as error:
                if not is_silent:
                    _log.warning("control.not_sent broker=%d reason=%r", self._node_id, str(error))
                is_silent = True
                await asyncio.sleep(_RETRY_S)
            else:
                return failures_in(request, response)
        raise BrokerNotAvailableError(f"broker {self._node_id} is gone")
