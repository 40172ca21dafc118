"""From a frame to the answer's parts: header, API, versions.

Called by: the event loop's thread, with each whole frame of a connection.
An API or version that is not spoken closes the connection, as in Apache Kafka, but for ApiVersions,
which tells the client what to speak. A request that cannot be decoded closes it too.
"""

import asyncio
import struct
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, Final

from kafka.errors import KafkaProtocolError

from broker.api import api_versions
from broker.api.request import Api, Request
from broker.api.request_stats import ApiStats, RequestStats
from broker.api.response import CarriedOut, Response, count_errors, encode_response, is_response
from broker.network.connection import (
    Answer,
    BrokerConnection,
    CloseConnection,
    Handled,
    Pipelined,
)
from pyspark_kafkalog.protocol.frames import (
    RequestHeader,
    decode_request_header,
    encode_response_header,
)

_KEY_AND_VERSION: Final = struct.Struct(">i")
_KEY_VERSION_ID: Final = struct.Struct(">hhi")
_KEY_BYTES: Final = 2


class _Route:
    """Of an API in one version: what its handler is given, and what is counted."""

    __slots__ = ("api", "context", "stats")

    def __init__(self, api: Api[Any], context: object, stats: ApiStats) -> None:
        self.api = api
        self.context = context
        self.stats = stats


class Dispatcher:
    """Answers frames: the `handler` of a NetworkServer."""

    def __init__(
        self,
        apis: Sequence[Api[Any]],
        contexts: Iterable[object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`contexts`: one of each class that an API names."""
        self._loop = loop
        self._keys = {api.key for api in apis}
        self.stats = RequestStats(apis)
        by_class = {type(context): context for context in contexts}
        self._routes = {
            head: _Route(stats.api, by_class[stats.api.context], stats)
            for head, stats in self.stats.by_head.items()
        }
        """By what a request begins with, as `RequestStats.by_head`."""

    def __call__(self, frame: memoryview, connection: BrokerConnection) -> Handled:
        """The answer with its header; a task where it takes time. Raises CloseConnection."""
        began_s = perf_counter()
        try:
            if len(frame) < _KEY_VERSION_ID.size:
                raise CloseConnection(f"a request of {len(frame)} bytes")
            route = self._routes.get(_KEY_AND_VERSION.unpack_from(frame)[0])
            if route is None:
                return self._answer_unknown(frame)
            api = route.api
            if len(frame) > api.max_request_bytes:
                raise CloseConnection(f"a request of {len(frame)} bytes for api key {api.key}")
            header = decode_request_header(frame)
            request = Request(header, frame[header.body_position :], connection.peer)
            outcome = api.handle(request, route.context)
        except CloseConnection:
            self.stats.refused += 1
            raise
        except KafkaProtocolError as error:
            self.stats.refused += 1
            raise CloseConnection(f"malformed request, api key {api.key}: {error}") from None
        if is_response(outcome):  # most of all requests
            answer = self._answer(outcome, header)
            route.stats.answered_at_once(began_s, len(frame), answer)
            return answer
        head: bytes | None = None
        if isinstance(outcome, CarriedOut):
            outcome, head = outcome.response, bytes(frame[:_KEY_BYTES])
        later = outcome if isinstance(outcome, asyncio.Future) else self._loop.create_task(outcome)
        answered = self._answer_later(later, header, route.stats, began_s, len(frame))
        return answered if head is None else Pipelined(answered, head)

    def _answer_unknown(self, frame: memoryview) -> Answer:
        """ApiVersions in any version is answered; whatever else is not spoken is refused."""
        key, version, correlation_id = _KEY_VERSION_ID.unpack_from(frame)
        if key == api_versions.API.key:
            header = encode_response_header(key, 0, correlation_id)
            return [header, *encode_response(api_versions.unsupported_version(), 0)]
        if key not in self._keys:
            raise CloseConnection(f"api key {key} is not spoken here")
        raise CloseConnection(f"api key {key} version {version} is not spoken here")

    def _answer(self, response: Response, header: RequestHeader) -> Answer:
        if response is None:
            return None
        count_errors(response, self.stats.errors)
        version = header.api_version
        return [
            encode_response_header(header.api_key, version, header.correlation_id),
            *encode_response(response, version),
        ]

    def _answer_later(
        self,
        response: "asyncio.Future[Response]",
        header: RequestHeader,
        stats: ApiStats,
        began_s: float,
        request_bytes: int,
    ) -> "asyncio.Future[Answer]":
        """The answer when the response is there; cancelling the one cancels the other."""
        answer: asyncio.Future[Answer] = self._loop.create_future()
        waited_s = perf_counter()

        def response_done(_: "asyncio.Future[Response]") -> None:
            if response.cancelled():
                answer.cancel()
                return
            error = response.exception()
            if answer.done():
                return
            if error is None:
                try:
                    parts = self._answer(response.result(), header)
                except Exception as failure:
                    error = failure
            if error is not None:
                if isinstance(error, CloseConnection):
                    self.stats.refused += 1
                answer.set_exception(error)
                return
            stats.answered_later(began_s, waited_s, request_bytes, parts)
            answer.set_result(parts)

        def answer_done(_: "asyncio.Future[Answer]") -> None:
            if answer.cancelled():
                response.cancel()

        response.add_done_callback(response_done)
        answer.add_done_callback(answer_done)
        return answer
