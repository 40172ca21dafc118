"""One connection against brokers that answer, and peers that are silent, slow, cut off or wrong."""

import errno
import hashlib
import os
import re
import socket
import ssl
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    KafkaTimeoutError,
)
from kafka.protocol.metadata import MetadataRequest

from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.transport import NobodyListensError
from pyspark_kafkalog.errors import AuthenticationError
from tests.pyspark_kafkalog.client.scripted import (
    API_VERSIONS,
    CUT,
    FETCH,
    METADATA,
    PRODUCE,
    SILENCE,
    VERSIONS,
    RawPeer,
    Request,
    ScriptedBroker,
    receive_exactly,
    wait_for_close,
)
from tests.support.patience import BUSY_S, EVENT_S
from tests.support.ports import closed_port

DATA = Path(__file__).parent / "data"
CONFIG = ClientConfig.from_options({"bootstrap.servers": "unused:1"})


def echo(request: Request) -> bytes:
    return bytes(request.body)


def connect(broker: ScriptedBroker, **properties: str) -> Connection:
    return Connection("127.0.0.1", broker.port, broker.config(**properties))


def test_the_newest_version_that_both_sides_speak() -> None:
    with ScriptedBroker() as broker:
        connection = connect(broker)
        assert connection.version(FETCH, 12) == 12
        assert connection.version(FETCH, 11) == 11
        assert connection.version(PRODUCE, 11, 3) == 9
        with pytest.raises(IncompatibleBrokerVersion, match="versions 0 to 9 of API 0"):
            connection.version(PRODUCE, 12, 10)
        with pytest.raises(IncompatibleBrokerVersion, match="does not offer API 99"):
            connection.version(99, 1)
        connection.close()


def test_a_broker_that_speaks_newer_versions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERSIONS, FETCH, (4, 12))
    with ScriptedBroker() as broker:
        connection = connect(broker)
        assert connection.version(FETCH, 4) == 4
        with pytest.raises(IncompatibleBrokerVersion, match="versions 4 to 12 of API 1"):
            connection.version(FETCH, 3)
        connection.close()


def test_requests_are_numbered_anew_after_the_last_of_31_bits() -> None:
    with ScriptedBroker() as broker:
        connection = connect(broker)
        connection._next_correlation_id = 0x7FFFFFFE
        for _ in range(4):
            assert connection.call(MetadataRequest(topics=[])).cluster_id == "scripted"
        numbers = [request.correlation_id for request in broker.asked(METADATA)]
        assert numbers == [0x7FFFFFFE, 0x7FFFFFFF, 0, 1]
        connection.close()


def test_a_broker_that_knows_only_older_api_versions() -> None:
    with ScriptedBroker() as broker:
        asked = []

        def old(request: Request) -> Any:
            asked.append(request.version)
            return broker.api_versions(request, 35 if len(asked) == 1 else 0)

        broker.handlers[API_VERSIONS] = old
        connection = connect(broker)
        assert connection.version(FETCH, 12) == 12
        assert asked == [3, 3]
        connection.close()


def test_call_decodes_the_answer() -> None:
    with ScriptedBroker(topics={"orders": 3}) as broker:
        connection = connect(broker)
        answer = connection.call(MetadataRequest(topics=None))
        assert [(t.name, len(t.partitions)) for t in answer.topics] == [("orders", 3)]
        connection.close()


def test_answers_are_told_apart_when_requests_are_sent_ahead() -> None:
    with ScriptedBroker({FETCH: echo}) as broker:
        connection = connect(broker)
        sent = [connection.send(FETCH, 4, [b"%d" % number]) for number in range(4)]
        assert connection.in_flight == 4
        assert bytes(connection.receive(sent[2])) == b"2"
        assert bytes(connection.receive()) == b"0"
        connection.abandon(sent[1])
        assert bytes(connection.receive(sent[3])) == b"3"
        later = connection.send(FETCH, 4, [b"later"])
        connection.abandon(later)
        last = connection.send(FETCH, 4, [b"last"])
        assert bytes(connection.receive(last)) == b"last"
        assert connection.in_flight == 0
        with pytest.raises(KafkaProtocolError, match="there is no request to await an answer to"):
            connection.receive()
        connection.close()


def test_an_answer_is_a_view_of_the_one_buffer_it_was_received_into() -> None:
    with ScriptedBroker({FETCH: lambda request: b"x" * 3_000_000}) as broker:
        connection = connect(broker)
        body = connection.receive(connection.send(FETCH, 4, [b""]))
        assert isinstance(body.obj, bytearray)
        assert (body.nbytes, body.obj.find(b"x", 0, 10)) == (3_000_000, 4)
        connection.close()


def test_many_large_parts_are_sent_in_order() -> None:
    parts = [bytes([number % 256]) * (number * 37 % 9001) for number in range(1500)]
    with ScriptedBroker({FETCH: lambda r: hashlib.sha256(r.body).digest()}) as broker:
        connection = connect(broker, send_buffer_bytes="65536")
        answer = connection.receive(connection.send(FETCH, 4, parts))
        assert bytes(answer) == hashlib.sha256(b"".join(parts)).digest()
        connection.close()


def test_has_answer_to_does_not_wait() -> None:
    may_answer = threading.Event()

    def later(request: Request) -> bytes:
        may_answer.wait(EVENT_S)
        return b"now"

    with ScriptedBroker({FETCH: later}) as broker:
        connection = connect(broker)
        sent = connection.send(FETCH, 4, [b""])
        assert not connection.has_answer_to(sent)
        may_answer.set()
        assert bytes(connection.receive(sent)) == b"now"
        assert not connection.has_answer_to(sent)
        connection.close()


def test_an_answer_that_arrived_in_time_is_taken_by_a_process_that_was_suspended() -> None:
    body, is_sent = b"x" * 100_000, threading.Event()

    def serve(request: Request) -> object:
        request.socket.sendall(request.frame(body))
        is_sent.set()
        return SILENCE

    with ScriptedBroker({FETCH: serve}) as broker:
        connection = connect(broker)
        sent = connection.send(FETCH, 4, [b""])
        assert is_sent.wait(EVENT_S)
        assert bytes(connection.receive(sent, Deadline(-60_000))) == body
        connection.close()


def test_a_silent_broker_is_given_up_at_the_deadline() -> None:
    with ScriptedBroker({FETCH: lambda request: SILENCE}) as broker:
        connection = connect(broker)
        began = time.monotonic()
        sent = connection.send(FETCH, 4, [b""])
        with pytest.raises(KafkaTimeoutError, match="no answer in time"):
            connection.receive(sent, Deadline(100))
        assert time.monotonic() - began < 1 + BUSY_S
        assert connection.closed
        with pytest.raises(KafkaConnectionError, match="was closed before"):
            connection.send(FETCH, 4, [b""])


@pytest.mark.parametrize("came_bytes", [0, 3, 9, 500])
def test_a_call_without_time_left_loses_no_answer_that_others_wait_for(came_bytes: int) -> None:
    """Closing would make a producer send its batches again, which may then be there twice."""
    asked: list[Request] = []

    def part(request: Request) -> object:
        asked.append(request)
        request.socket.sendall(request.frame(b"stored" * 100)[:came_bytes])
        return SILENCE

    def hear(request: Request) -> object:
        asked.append(request)
        return SILENCE

    handlers = {FETCH: part, METADATA: hear}
    with ScriptedBroker(handlers) as broker:
        connection = connect(broker)
        sent = connection.send(FETCH, 4, [b""])
        with pytest.raises(KafkaTimeoutError, match="no answer in time"):
            connection.call(MetadataRequest(topics=None), Deadline(100))
        first, look_up = asked
        first.socket.sendall(first.frame(b"stored" * 100)[came_bytes:])
        first.socket.sendall(look_up.frame(broker.metadata(look_up)))
        assert bytes(connection.receive(sent)) == b"stored" * 100
        broker.handlers[METADATA] = broker.metadata
        assert connection.call(MetadataRequest(topics=None)).cluster_id == "scripted"
        connection.close()


def test_a_call_closes_a_connection_that_is_silent_for_too_long_or_to_nobody_else() -> None:
    silent = {FETCH: lambda request: SILENCE, METADATA: lambda request: SILENCE}
    with ScriptedBroker(silent) as broker:
        alone = connect(broker)
        with pytest.raises(KafkaTimeoutError):
            alone.call(MetadataRequest(topics=None), Deadline(50))
        assert alone.closed
        shared = connect(broker, socket_connection_setup_timeout_ms="50")
        shared.send(FETCH, 4, [b""])
        with pytest.raises(KafkaTimeoutError):
            shared.call(MetadataRequest(topics=None), Deadline(100))
        assert shared.closed


def test_a_peer_that_takes_a_request_byte_by_byte_is_given_up_at_the_deadline() -> None:
    stop = threading.Event()

    def sip(sock: socket.socket) -> None:
        script = ScriptedBroker()
        with script:
            frame = receive_exactly(sock, struct.unpack(">i", receive_exactly(sock, 4) or b"")[0])
            _, version, correlation_id = struct.unpack(">hhi", (frame or b"")[:8])
            request = Request(API_VERSIONS, version, correlation_id, memoryview(b""), sock)
            sock.sendall(request.frame(script.api_versions(request)))
        while not stop.wait(0.0005):
            sock.recv(4096)

    config = ClientConfig.from_options({"bootstrap.servers": "u:1", "send.buffer.bytes": "8192"})
    with RawPeer(sip) as peer:
        connection = Connection("127.0.0.1", peer.port, config)
        began = time.monotonic()
        with pytest.raises(KafkaTimeoutError):
            connection.send(FETCH, 4, [b"x" * 200_000_000], Deadline(200))
        assert time.monotonic() - began < 3 + BUSY_S
        assert connection.closed
        stop.set()


def test_a_broker_that_never_greets_is_given_up_at_the_deadline() -> None:
    with RawPeer(wait_for_close) as peer, pytest.raises(KafkaTimeoutError):
        Connection("127.0.0.1", peer.port, CONFIG, Deadline(100))


def test_a_broker_that_drips_byte_by_byte_is_given_up_at_the_deadline() -> None:
    stop = threading.Event()

    def drip(sock: socket.socket) -> None:
        sock.recv(1 << 16)
        sock.sendall(struct.pack(">i", 1000))
        while not stop.wait(0.005):
            sock.sendall(b"\0")

    with RawPeer(drip) as peer:
        began = time.monotonic()
        with pytest.raises(KafkaTimeoutError):
            Connection("127.0.0.1", peer.port, CONFIG, Deadline(200))
        assert time.monotonic() - began < 1 + BUSY_S
        stop.set()


@pytest.mark.parametrize(
    ("greeting", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "but an HTTP server"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "without TLS; set kafka.security.protocol to SSL"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not a Kafka listener"),
        (struct.pack(">i", -1) + b"\0" * 100, "an answer of -1 bytes"),
        (struct.pack(">i", 3) + b"\0" * 100, "an answer of 3 bytes"),
        (struct.pack(">i", 2**31 - 1), "an answer of 2147483647 bytes"),
        (struct.pack(">iii", 8, 77, 0), "answered request 77 where 0 is due"),
        (struct.pack(">iih", 24, 0, 0) + b"\xff" * 18, "answered ApiVersions with something else"),
        (struct.pack(">iih", 24, 0, 29) + b"\xff" * 18, "refused ApiVersions|with something else"),
    ],
)
def test_a_peer_that_speaks_something_else_is_told_from_its_first_bytes(
    greeting: bytes, says: str
) -> None:
    def greet(sock: socket.socket) -> None:
        sock.sendall(greeting)
        wait_for_close(sock)

    with RawPeer(greet) as peer, pytest.raises(KafkaProtocolError, match=says):
        Connection("127.0.0.1", peer.port, CONFIG, Deadline(5000))


def test_an_answer_that_is_cut_off_in_the_middle() -> None:
    def cut(request: Request) -> object:
        request.socket.sendall(request.frame(b"x" * 1000)[:500])
        return CUT

    with ScriptedBroker({FETCH: cut}) as broker:
        connection = connect(broker)
        with pytest.raises(KafkaConnectionError, match="the broker closed the connection"):
            connection.receive(connection.send(FETCH, 4, [b""]))
        assert connection.closed


def test_an_answer_that_cannot_be_decoded_closes_the_connection() -> None:
    with ScriptedBroker({METADATA: lambda request: b"\xff" * 10}) as broker:
        connection = connect(broker)
        with pytest.raises(KafkaProtocolError, match="API 3 with something else"):
            connection.call(MetadataRequest(topics=None))
        assert connection.closed


def test_a_port_that_nobody_listens_on() -> None:
    port = closed_port()
    with pytest.raises(KafkaConnectionError, match=rf"127\.0\.0\.1:{port} cannot be reached .*ref"):
        Connection("127.0.0.1", port, CONFIG)


def test_all_addresses_of_a_name_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedBroker() as broker:
        dead = ("127.0.0.1", closed_port())
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        found = [(*stream, dead), (*stream, ("127.0.0.1", broker.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kw: found)
        connection = Connection("several.example", 9092, CONFIG)
        assert connection.version(FETCH, 12) == 12
        connection.close()


def test_a_name_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kw: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(KafkaConnectionError, match=r"the name nowhere\.example is not known"):
        Connection("nowhere.example", 9092, CONFIG)


@pytest.mark.parametrize("host", ["broker..example", f"{'b' * 64}.example", ".example"])
def test_a_name_that_cannot_be_one_is_not_known(host: str) -> None:
    with pytest.raises(NobodyListensError, match=re.escape(f"the name {host} is not known")):
        Connection(host, 9092, CONFIG)


def test_an_address_of_a_family_that_the_kernel_lacks_is_left_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where `localhost` is ::1 first, in a container without IPv6."""
    make_any = socket.socket

    def make(family: int, *args: int, **kw: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return make_any(family, *args, **kw)

    with ScriptedBroker() as broker:
        found = [
            (family, socket.SOCK_STREAM, 6, "", (address, broker.port))
            for family, address in ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1"))
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kw: found)
        monkeypatch.setattr(socket, "socket", make)
        connection = Connection("several.example", 9092, CONFIG)
        assert connection.version(FETCH, 12) == 12
        connection.close()
        found.pop()
        with pytest.raises(KafkaConnectionError, match=r"reached \(::1: Address family not supp"):
            Connection("several.example", 9092, CONFIG)


def test_a_process_without_descriptors_left_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socket", fail)
    with pytest.raises(KafkaConnectionError, match=r"\(127\.0\.0\.1: Too many open files\)"):
        Connection("127.0.0.1", 9092, CONFIG)


def test_a_resolver_that_hangs_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(host: str, *args: object, flags: int = 0, **kw: object) -> None:
        if not flags:
            release.wait(EVENT_S)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    began = time.monotonic()
    with pytest.raises(KafkaConnectionError, match="is not resolved in time"):
        Connection("slow.example", 9092, CONFIG, Deadline(100))
    assert time.monotonic() - began < 1 + BUSY_S
    release.set()


def test_repr_shows_where_and_how_busy() -> None:
    with ScriptedBroker({FETCH: echo}) as broker:
        connection = connect(broker)
        assert repr(connection) == f"Connection(127.0.0.1:{broker.port}, 0 in flight)"
        connection.close()
        assert repr(connection) == f"Connection(127.0.0.1:{broker.port}, closed)"


def serve_tls(sock: socket.socket) -> None:
    """A TLS listener that plays a broker's greeting once the handshake succeeded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(DATA / "localhost.pem")
    script = ScriptedBroker()
    with script, context.wrap_socket(sock, server_side=True) as secured:
        while (head := receive_exactly(secured, 4)) is not None:
            frame = receive_exactly(secured, struct.unpack(">i", head)[0])
            assert frame is not None
            api_key, version, correlation_id = struct.unpack(">hhi", frame[:8])
            request = Request(api_key, version, correlation_id, memoryview(b""), secured)
            big = b"y" * 2_000_000
            body = script.api_versions(request) if api_key == API_VERSIONS else big
            secured.sendall(request.frame(body))


def tls_config(**properties: str) -> ClientConfig:
    given = {name.replace("_", "."): value for name, value in properties.items()}
    return ClientConfig.from_options(
        {"bootstrap.servers": "unused:1", "security.protocol": "SSL", **given}
    )


@pytest.mark.parametrize("how", ["location", "certificates"])
def test_tls_with_a_trusted_certificate(how: str) -> None:
    trusted = DATA / "trusted.pem"
    config = (
        tls_config(ssl_truststore_location=str(trusted))
        if how == "location"
        else tls_config(ssl_truststore_certificates=trusted.read_text())
    )
    with RawPeer(serve_tls) as peer:
        connection = Connection("127.0.0.1", peer.port, config)
        sent = connection.send(FETCH, 4, [b"x" * 100_000])
        assert bytes(connection.receive(sent)) == b"y" * 2_000_000
        connection.close()


def test_tls_with_a_certificate_that_is_not_trusted() -> None:
    advice = r"kafka\.ssl\.truststore\.location"
    with RawPeer(serve_tls) as peer, pytest.raises(AuthenticationError, match=advice):
        Connection("127.0.0.1", peer.port, tls_config())


def test_tls_with_a_certificate_for_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = str(DATA / "trusted.pem")
    with RawPeer(serve_tls) as peer:
        target = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", peer.port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kw: [target])
        with pytest.raises(AuthenticationError, match="the certificate names this host"):
            Connection("other.example", 1, tls_config(ssl_truststore_location=trusted))
        lax = tls_config(ssl_truststore_location=trusted, ssl_endpoint_identification_algorithm="")
        Connection("other.example", 1, lax).close()


def test_tls_to_a_listener_without_tls() -> None:
    def answer_in_plain(sock: socket.socket) -> None:
        sock.recv(1 << 16)
        sock.sendall(b"no TLS here\r\n")
        wait_for_close(sock)

    question = r"does this listener speak kafka\.security\.protocol=SSL"
    with RawPeer(answer_in_plain) as peer, pytest.raises(KafkaConnectionError, match=question):
        Connection("127.0.0.1", peer.port, tls_config())


def test_a_tls_handshake_that_hangs_is_given_up_at_the_deadline() -> None:
    with RawPeer(wait_for_close) as peer:
        began = time.monotonic()
        with pytest.raises(KafkaError):
            Connection("127.0.0.1", peer.port, tls_config(), Deadline(150))
        assert time.monotonic() - began < 1 + BUSY_S
