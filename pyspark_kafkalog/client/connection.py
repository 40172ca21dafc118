"""One TCP or TLS connection to one broker: frames out, frames in, in order.

    request and response  size int32 | header | body      (`pyspark_kafkalog.protocol.frames`)

Opening it opens a transport, asks ApiVersions and authenticates. Requests may be sent ahead of
their answers; answers arrive in the order of requests, and one that is asked for later waits here
meanwhile. A response is received into one buffer and never copied again: the bulk of a fetch is
views of that buffer.

Blocking; one thread at a time, and never shared with a forked process. Every call ends with its
deadline. A connection that failed in the middle is closed: what it still had in flight is lost,
and it is the caller who knows what to send again. A `call` that only ran out of time leaves a
connection open on which others wait for answers. Never retries, never logs.
"""

import contextlib
import ssl
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka.errors import (
    IncompatibleBrokerVersion,
    InvalidReceiveError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    KafkaTimeoutError,
    UnsupportedVersionError,
    for_code,
)
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from pyspark_kafkalog.client.config import ClientConfig, address
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.receive_buffers import ReceiveBuffers
from pyspark_kafkalog.client.security import authenticate
from pyspark_kafkalog.client.transport import Transport, open_transport, reason
from pyspark_kafkalog.errors import AuthenticationError
from pyspark_kafkalog.protocol import frames

if TYPE_CHECKING:
    from typing_extensions import Buffer

LARGEST_FRAME_BYTES = 256 << 20
"""Larger answers are refused unless `fetch.max.bytes` asks for more. Any four bytes of text, read
as a size, exceed it: a peer that speaks another protocol is found out at its first bytes."""

_API_VERSIONS_FIRST_TRY = 3


class Connection:
    """An open, negotiated and authenticated connection to `host`:`port`.

    Raises KafkaConnectionError when the broker cannot be reached in time, KafkaProtocolError when
    the peer speaks something else, AuthenticationError when it refuses.
    """

    def __init__(
        self,
        host: str,
        port: int,
        config: ClientConfig,
        deadline: Deadline | None = None,
        buffers: ReceiveBuffers | None = None,
    ) -> None:
        """`buffers` are those that connections of one thread share; else it has its own."""
        self.host = host
        self.port = port
        self.address = address(host, port)
        self._config = config
        self._next_correlation_id = 0
        self._in_flight: deque[tuple[int, int, int]] = deque()
        self._arrived: dict[int, memoryview] = {}
        self._abandoned: set[int] = set()
        self._arriving = _Frame()
        self._buffers = buffers or ReceiveBuffers()
        self._largest_frame_bytes = max(LARGEST_FRAME_BYTES, 2 * config.fetch_max_bytes)
        self._versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        """The cluster's finalized features and their levels, such as metadata.version (KIP-584)."""
        deadline = deadline or Deadline(config.socket_connection_setup_timeout_ms)
        self._used_s = time.monotonic()
        self._transport: Transport | None = open_transport(host, port, config, deadline)
        try:
            self._negotiate(deadline)
            if config.uses_sasl:
                authenticate(lambda message: self.call(message, deadline), host, config, deadline)
        except BaseException:
            self.close()
            raise

    def version(self, api_key: int, our_max: int, our_min: int = 0) -> int:
        """The highest version of an API that both sides speak; raises IncompatibleBrokerVersion."""
        theirs = self._versions.get(api_key)
        if theirs is None:
            raise IncompatibleBrokerVersion(f"{self.address} does not offer API {api_key}.")
        version = min(our_max, theirs[1])
        if version < max(our_min, theirs[0]):
            raise IncompatibleBrokerVersion(
                f"{self.address} speaks versions {theirs[0]} to {theirs[1]} of API {api_key}, "
                f"this client {our_min} to {our_max}."
            )
        return version

    def call(self, message: Any, deadline: Deadline | None = None, max_version: int = 99) -> Any:
        """Sends a `kafka.protocol` request in the newest common version; returns its response."""
        api_key = message.API_KEY
        version = self.version(api_key, min(message.max_version, max_version))
        deadline = deadline or Deadline(self._config.request_timeout_ms)
        patience = Deadline(self._config.socket_connection_setup_timeout_ms)
        sent = self.send(api_key, version, [message.encode(version=version)], deadline)
        try:
            return self.decoded(api_key, version, self._wait_for(sent, deadline))
        except TimeoutError:
            if patience.expired or not self._awaits_others_than(sent):
                self.close()
            else:
                # It was the caller who had no time left. Closing would lose what others sent.
                self.abandon(sent)
            raise self._no_answer("receiving") from None

    def decoded(self, api_key: int, version: int, body: memoryview) -> Any:
        """The response that `receive` gave the body of; a peer that sends nonsense is cut off."""
        header = RequestHeader(request_api_key=api_key, request_api_version=version)
        with self._closing_on_error("decoding"):
            try:
                return header.get_response_class().decode(body)
            except (struct.error, IndexError, ValueError, TypeError, OverflowError) as error:
                raise KafkaProtocolError(
                    f"{self.address} answered API {api_key} with something else: {error!r}"
                ) from None

    def send(
        self,
        api_key: int,
        version: int,
        body_parts: Sequence["Buffer"],
        deadline: Deadline | None = None,
    ) -> int:
        """Sends one request whose body is `body_parts` in order; returns its correlation id."""
        correlation_id = self.send_only(api_key, version, body_parts, deadline)
        self._in_flight.append((correlation_id, api_key, version))
        return correlation_id

    def send_only(
        self,
        api_key: int,
        version: int,
        body_parts: Sequence["Buffer"],
        deadline: Deadline | None = None,
    ) -> int:
        """As `send`, for a request that is never answered (Produce with acks=0)."""
        self._used_s = time.monotonic()
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        header = frames.encode_request_header(
            api_key, version, correlation_id, self._config.client_id
        )
        size_bytes = len(header) + sum(memoryview(part).nbytes for part in body_parts)
        head = frames.SIZE.pack(size_bytes) + header
        deadline = deadline or Deadline(self._config.request_timeout_ms)
        with self._closing_on_error("sending"):
            self._open_transport().send([head, *body_parts], deadline)
        return correlation_id

    def receive(
        self, correlation_id: int | None = None, deadline: Deadline | None = None
    ) -> memoryview:
        """The body of the answer to a request: the oldest one, unless `correlation_id` says which.

        Answers to older requests that arrive on the way are kept for their own `receive`.
        """
        if correlation_id is None:
            waiting = [*self._arrived, *(sent[0] for sent in self._in_flight)]
            if not waiting:
                raise KafkaProtocolError(
                    f"{self.address}: there is no request to await an answer to."
                )
            correlation_id = waiting[0]
        try:
            return self._wait_for(
                correlation_id, deadline or Deadline(self._config.request_timeout_ms)
            )
        except TimeoutError:
            self.close()
            raise self._no_answer("receiving") from None

    def abandon(self, correlation_id: int) -> None:
        """Declares that nobody will `receive` this answer: it is dropped when it arrives."""
        if self._arrived.pop(correlation_id, None) is None:
            self._abandoned.add(correlation_id)

    def has_answer_to(self, correlation_id: int, wait_s: float = 0.0) -> bool:
        """Whether the answer, or something that comes before it, is here or begins to arrive within
        `wait_s`."""
        if correlation_id in self._arrived:
            return True
        transport = self._transport
        if transport is None or not self._in_flight:
            return False
        return transport.has_arrived(wait_s)

    def close_if_stale(self, most_idle_s: float) -> None:
        """Closes what the peer has closed, and what was not used for longer than `most_idle_s`: a
        balancer or an address translator on the way may have forgotten it without a word.

        Only where nothing is in flight: whatever can be read then is the peer's farewell.
        """
        if self._transport is not None:
            idle_s = time.monotonic() - self._used_s
            if idle_s > most_idle_s or self._transport.is_readable(wait_s=0.0):
                self.close()

    def fileno(self) -> int:
        """The socket's descriptor, for waiting on several connections at once."""
        return self._open_transport().fileno()

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        """The first and the last version of each API that the broker offers, by the API's key."""
        return self._versions

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered yet."""
        return len(self._in_flight)

    @property
    def closed(self) -> bool:
        return self._transport is None

    def close(self) -> None:
        """Closes the transport; what is in flight is lost. May be called again."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        self._in_flight.clear()
        self._abandoned.clear()
        self._arriving = _Frame()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.in_flight} in flight"
        return f"Connection({self.address}, {state})"

    def _open_transport(self) -> Transport:
        if self._transport is None:
            raise KafkaConnectionError(f"{self.address}: the connection was closed before.")
        return self._transport

    @contextlib.contextmanager
    def _closing_on_error(self, doing: str) -> Any:
        """Half a frame cannot be taken back: whatever goes wrong in one closes the connection."""
        try:
            yield
        except TimeoutError:
            self.close()
            raise self._no_answer(doing) from None
        except (KafkaError, AuthenticationError):
            self.close()
            raise
        except OSError as error:
            self.close()
            if isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or ""):
                # TLS 1.3 tells a client only now that its certificate lacks or is not liked.
                raise AuthenticationError(
                    f"{self.address} asks for another certificate than it got ({error.reason}): "
                    "check kafka.ssl.keystore.location."
                ) from None
            raise KafkaConnectionError(f"{self.address}: {reason(error)}") from error
        except BaseException:
            self.close()
            raise

    def _no_answer(self, doing: str) -> KafkaTimeoutError:
        return KafkaTimeoutError(f"{self.address}: no answer in time while {doing}.")

    def _awaits_others_than(self, correlation_id: int) -> bool:
        others = (sent[0] for sent in self._in_flight if sent[0] != correlation_id)
        return any(other not in self._abandoned for other in others)

    def _wait_for(self, correlation_id: int, deadline: Deadline) -> memoryview:
        """The body of an answer; at the deadline TimeoutError, and all that came so far is kept."""
        while correlation_id not in self._arrived:
            transport = self._open_transport()
            if not self._in_flight:
                raise KafkaProtocolError(
                    f"{self.address}: there is no request to await an answer to."
                )
            if not self._receive_frame(transport, deadline):
                raise TimeoutError
            with self._closing_on_error("decoding"):
                self._take_frame()
        return self._arrived.pop(correlation_id)

    def _receive_frame(self, transport: Transport, deadline: Deadline) -> bool:
        """Goes on receiving the next frame; False when it is not whole at the deadline."""
        with self._closing_on_error("receiving"):
            try:
                while not self._arriving.whole:
                    while self._arriving.missing:
                        received = transport.receive_into(self._arriving.missing, deadline)
                        self._arriving.missing = self._arriving.missing[received:]
                    if not self._arriving.whole:
                        self._arriving.body = self._buffers.take(self._size_bytes())
                        self._arriving.missing = self._arriving.body
            except TimeoutError:
                return False
        return True

    def _size_bytes(self) -> int:
        head = bytes(self._arriving.head)
        (size_bytes,) = frames.SIZE.unpack(head)
        if not 4 <= size_bytes <= self._largest_frame_bytes:
            raise InvalidReceiveError(
                f"{self.address} is not a Kafka listener{_what_speaks(head)}: it announces an "
                f"answer of {size_bytes} bytes."
            )
        return int(size_bytes)

    def _take_frame(self) -> None:
        frame, self._arriving = self._arriving.body, _Frame()
        assert frame is not None
        expected, api_key, version = self._in_flight.popleft()
        correlation_id, body = frames.decode_response_header(frame, api_key, version)
        if correlation_id != expected:
            raise InvalidReceiveError(
                f"{self.address} answered request {correlation_id} where {expected} is due."
            )
        if correlation_id in self._abandoned:
            self._abandoned.remove(correlation_id)
        else:
            self._arrived[correlation_id] = body

    def _negotiate(self, deadline: Deadline) -> None:
        """ApiVersions; a broker that knows only older ones answers in version 0 (KIP-511)."""
        response = self._api_versions(_API_VERSIONS_FIRST_TRY, deadline)
        if response.error_code == UnsupportedVersionError.errno:
            theirs = {api.api_key: api.max_version for api in response.api_keys}
            response = self._api_versions(theirs.get(ApiVersionsRequest.API_KEY, 0), deadline)
        if response.error_code:
            error = for_code(response.error_code).__name__
            raise KafkaProtocolError(f"{self.address} refused ApiVersions with {error}.")
        self._versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }
        self.features = {
            feature.name: feature.max_version_level for feature in response.finalized_features or ()
        }

    def _api_versions(self, version: int, deadline: Deadline) -> Any:
        request = ApiVersionsRequest(
            client_software_name="pyspark-kafkalog", client_software_version="0.1.0"
        )
        sent = self.send(request.API_KEY, version, [request.encode(version=version)], deadline)
        body = self.receive(sent, deadline)
        if bytes(body[:2]) == struct.pack(">h", UnsupportedVersionError.errno):
            version = 0
        with self._closing_on_error("negotiating"):
            try:
                return ApiVersionsResponse.decode(body, version=version)
            except (struct.error, IndexError, ValueError, TypeError) as error:
                raise KafkaProtocolError(
                    f"{self.address} answered ApiVersions with something else: {error!r}"
                ) from None


def _what_speaks(head: bytes) -> str:
    if head == b"HTTP":
        return " but an HTTP server"
    if head[:2] in (b"\x15\x03", b"\x16\x03"):
        return " without TLS; set kafka.security.protocol to SSL or SASL_SSL"
    return ""


class _Frame:
    """One answer while it arrives: its size, then a buffer of that size. It may take its time."""

    __slots__ = ("body", "head", "missing")

    def __init__(self) -> None:
        self.head = bytearray(frames.SIZE.size)
        self.body: memoryview | None = None
        self.missing = memoryview(self.head)

    @property
    def whole(self) -> bool:
        return self.body is not None and not self.missing
