"""A broker played from a script: for the faults that a real one cannot be made to show on demand.

Each connection is served by a thread: it reads requests and answers those whose API has a handler.
A handler gets the request and returns the response's body, SILENCE, or CUT. Unless told otherwise
ApiVersions offers what Apache Kafka 3.9 does, and Metadata names this broker as the leader of all
partitions of the topics it was given.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse

from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.protocol import frames
from tests.support.patience import EVENT_S

if TYPE_CHECKING:
    from typing_extensions import Self

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 22
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
SILENCE = object()
CUT = object()
"""What a handler returns to answer nothing, or to close the connection instead."""

VERSIONS = {
    PRODUCE: (0, 9), FETCH: (0, 12), LIST_OFFSETS: (0, 7), METADATA: (0, 12), API_VERSIONS: (0, 3),
    SASL_HANDSHAKE: (0, 1), SASL_AUTHENTICATE: (0, 2), INIT_PRODUCER_ID: (0, 4),
}  # fmt: skip


@dataclass
class Request:
    api_key: int
    version: int
    correlation_id: int
    body: memoryview
    socket: socket.socket

    def frame(self, body: bytes) -> bytes:
        """The whole answer to this request, as it goes over the wire."""
        header = frames.encode_response_header(self.api_key, self.version, self.correlation_id)
        return frames.frame([header, bytes(body)])


Handler = Callable[[Request], Any]


class ScriptedBroker:
    """Listens on 127.0.0.1; a context manager. `requests` lists what was asked, but ApiVersions."""

    def __init__(
        self,
        handlers: Mapping[int, Handler] | None = None,
        topics: Mapping[str, int] | None = None,
        node_id: int = 1,
    ) -> None:
        self.topics = dict(topics or {"t": 1})
        self.node_id = node_id
        self.brokers = {node_id: self}
        self.leader = node_id
        self.leader_epoch = 0
        self.leaders: dict[int, int] = {}
        """The leaders of partitions that `leader` does not lead."""
        self.advertised: tuple[str, int] | None = None
        self.features: dict[str, int] = {}
        """The finalized ones, and their levels."""
        self.handlers: dict[int, Handler] = {
            API_VERSIONS: self.api_versions,
            METADATA: self.metadata,
            **(handlers or {}),
        }
        self.requests: list[Request] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> "Self":
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in (self._listener, *self._sockets):
            _shut(each)
        for thread in self._threads:
            thread.join(EVENT_S)
            assert not thread.is_alive()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def config(self, **properties: str) -> ClientConfig:
        """A client's config for this broker; property names with `_` for `.`."""
        given = {name.replace("_", "."): value for name, value in properties.items()}
        return ClientConfig.from_options(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "request.timeout.ms": "5000",
                "retry.backoff.ms": "5",
                **given,
            }
        )

    def asked(self, api_key: int) -> list[Request]:
        return [request for request in self.requests if request.api_key == api_key]

    def api_versions(self, request: Request, error_code: int = 0) -> bytes:
        api = ApiVersionsResponse.ApiVersion
        return bytes(
            ApiVersionsResponse(
                error_code=error_code,
                api_keys=[
                    api(api_key=key, min_version=low, max_version=high)
                    for key, (low, high) in VERSIONS.items()
                ],
                finalized_features=[
                    ApiVersionsResponse.FinalizedFeatureKey(
                        name=name, max_version_level=level, min_version_level=level
                    )
                    for name, level in self.features.items()
                ],
            ).encode(version=0 if error_code else request.version)
        )

    def metadata(self, request: Request) -> bytes:
        topic = MetadataResponse.MetadataResponseTopic
        partition = topic.MetadataResponsePartition
        broker = MetadataResponse.MetadataResponseBroker
        return bytes(
            MetadataResponse(
                brokers=[
                    broker(node_id=node, host=host, port=port, rack=None)
                    for node, (host, port) in (
                        (n, b.advertised or ("127.0.0.1", b.port)) for n, b in self.brokers.items()
                    )
                ],
                cluster_id="scripted",
                controller_id=self.node_id,
                topics=[
                    topic(
                        error_code=0,
                        name=name,
                        is_internal=False,
                        partitions=[
                            partition(
                                error_code=0,
                                partition_index=index,
                                leader_id=self.leaders.get(index, self.leader),
                                leader_epoch=self.leader_epoch,
                                replica_nodes=[1],
                                isr_nodes=[1],
                                offline_replicas=[],
                            )
                            for index in range(count)
                        ],
                    )
                    for name, count in self.topics.items()
                ],
            ).encode(version=request.version)
        )

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(accepted)
            thread = threading.Thread(target=self._serve, args=(accepted,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        with accepted:
            try:
                while self._answer(accepted):
                    pass
            except OSError:
                return

    def _answer(self, accepted: socket.socket) -> bool:
        head = receive_exactly(accepted, 4)
        if head is None:
            return False
        frame = receive_exactly(accepted, struct.unpack(">i", head)[0])
        if frame is None:
            return False
        view = memoryview(frame)
        header = frames.decode_request_header(view)
        body = view[header.body_position :]
        request = Request(header.api_key, header.api_version, header.correlation_id, body, accepted)
        if header.api_key != API_VERSIONS:
            self.requests.append(request)
        answer = self.handlers[header.api_key](request)
        if answer is CUT:
            return False
        if answer is not SILENCE:
            accepted.sendall(request.frame(answer))
        return True


class RawPeer:
    """Listens on 127.0.0.1 and does with each connection what it is told: no Kafka at all."""

    def __init__(self, behave: Callable[[socket.socket], None]) -> None:
        self._behave = behave
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> "Self":
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in (self._listener, *self._sockets):
            _shut(each)
        for thread in self._threads:
            thread.join(EVENT_S)
            assert not thread.is_alive()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(accepted)
            thread = threading.Thread(target=self._run, args=(accepted,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, accepted: socket.socket) -> None:
        with accepted:
            try:
                self._behave(accepted)
            except OSError:
                return


def receive_exactly(sock: socket.socket, size_bytes: int) -> bytearray | None:
    """So many bytes; None when the peer closes before."""
    received = bytearray()
    while len(received) < size_bytes:
        chunk = sock.recv(size_bytes - len(received))
        if not chunk:
            return None
        received += chunk
    return received


def wait_for_close(sock: socket.socket) -> None:
    """Says nothing until the other side gives up."""
    while sock.recv(1 << 16):
        pass


def _shut(sock: socket.socket) -> None:
    """Wakes whoever waits on the socket; closing alone would not."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
