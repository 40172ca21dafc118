"""BrokerClient: a connection to another broker, on which one request follows the other.

Owns: the socket, and the frames on it. It connects when first asked, and again after a failure; a
failure ends the request at work. In the versions of inter.broker.protocol.version, so nothing is
negotiated. Called by: the event loop's thread.
"""

import asyncio
import socket
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from kafka.errors import KafkaConnectionError, KafkaProtocolError
from kafka.protocol.api_message import ApiMessage

from pyspark_kafkalog.protocol.frames import decode_response_header, encode_request_header

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SIZE_BYTES: Final = 4
_MAX_RESPONSE_BYTES: Final = 256 << 20


class BrokerClient:
    """One connection to the broker at `host`:`port`."""

    def __init__(self, host: str, port: int, client_id: str, timeout_s: float) -> None:
        """`timeout_s`: for each request, connecting included."""
        self._host = host
        self._port = port
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._exchanging: asyncio.Task[memoryview] | None = None
        self._is_closed = False
        self._correlation_ids = count()
        self._one_at_a_time = asyncio.Lock()

    async def request(self, message: ApiMessage, version: int, response_class: Any) -> Any:
        """Sends a message of `kafka.protocol`; its answer. Raises KafkaConnectionError."""
        body = await self.exchange(message.API_KEY, version, message.encode(version=version))
        try:
            return response_class.decode(body, version=version)
        except Exception as error:  # whatever decoding nonsense raises
            raise self._failed(f"a malformed answer: {error!r}") from error

    async def exchange(self, api_key: int, version: int, body: "Buffer") -> memoryview:
        """Sends a request's body; the body of its answer, in memory of its own. Raises
        KafkaConnectionError: the request may have been carried out all the same."""
        async with self._one_at_a_time:
            exchange = asyncio.get_running_loop().create_task(
                self._exchange(api_key, version, body)
            )
            # Nobody hears of one that was given up.
            exchange.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._exchanging = exchange
            try:
                # Not wait_for: until Python 3.12 it may swallow that it is cancelled.
                done, _ = await asyncio.wait({exchange}, timeout=self._timeout_s)
                if not done:
                    raise TimeoutError(f"no answer within {self._timeout_s:g} s")
                if exchange.cancelled():
                    raise EOFError("closed")
                return exchange.result()
            except (OSError, EOFError, KafkaProtocolError) as error:
                raise self._failed(str(error) or type(error).__name__) from error
            finally:
                if not exchange.done():
                    self._disconnect()  # what comes next on it would answer this request

    def close(self) -> None:
        """The request at work fails, and every later one."""
        self._is_closed = True
        self._disconnect()

    def _failed(self, reason: str) -> KafkaConnectionError:
        self._disconnect()
        return KafkaConnectionError(f"broker at {self._host}:{self._port}: {reason}")

    def _disconnect(self) -> None:
        """And gives up the request at work. The socket is closed after that: the loop has its
        descriptor until then, and would take the next socket's, which may be the same, for it."""
        sock, self._socket = self._socket, None
        exchange = self._exchanging
        if exchange is None or exchange.done():
            if sock is not None:
                sock.close()
            return
        exchange.cancel()
        if sock is not None:
            exchange.add_done_callback(lambda _: sock.close())

    async def _exchange(self, api_key: int, version: int, body: "Buffer") -> memoryview:
        loop = asyncio.get_running_loop()
        sock = self._socket or await self._connect()
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        header = encode_request_header(api_key, version, correlation_id, self._client_id)
        size = (len(header) + memoryview(body).nbytes).to_bytes(_SIZE_BYTES, "big")
        await loop.sock_sendall(sock, b"".join((size, header, body)))
        answer_bytes = int.from_bytes(await self._receive(sock, _SIZE_BYTES), "big")
        if answer_bytes > _MAX_RESPONSE_BYTES:
            raise KafkaProtocolError(f"an answer of {answer_bytes} bytes")
        frame = memoryview(await self._receive(sock, answer_bytes))
        answered, answer = decode_response_header(frame, api_key, version)
        if answered != correlation_id:
            raise KafkaProtocolError(f"an answer to request {answered}, not to {correlation_id}")
        return answer

    async def _connect(self) -> socket.socket:
        if self._is_closed:
            raise EOFError("closed")
        loop = asyncio.get_running_loop()
        trouble = OSError(f"{self._host} has no address")
        for family, kind, protocol, _, address in await loop.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                trouble = error
            except BaseException:
                sock.close()
                raise
            else:
                self._socket = sock
                return sock
        raise trouble

    async def _receive(self, sock: socket.socket, size_bytes: int) -> bytearray:
        loop = asyncio.get_running_loop()
        received = bytearray(size_bytes)
        view = memoryview(received)
        while view:
            read_bytes = await loop.sock_recv_into(sock, view)
            if not read_bytes:
                raise EOFError("the connection was closed")
            view = view[read_bytes:]
        return received
