"""A connection's bytes: a socket to one broker, plain or TLS.

Opening one resolves the name (all addresses are tried in turn) and shakes hands. Blocking; one
thread at a time. Every call ends with its deadline.
"""

import select
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaConnectionError

from pyspark_kafkalog.client.config import ClientConfig, address
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.security import tls_context
from pyspark_kafkalog.errors import AuthenticationError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_JOIN_BELOW_BYTES = 64 << 10
_MOST_PARTS = 512


class NobodyListensError(KafkaConnectionError):  # type: ignore[misc]
    """Every address refused at once, or the name does not exist: no broker runs there now."""


class Transport:
    """A connected socket. Errors are OSError; at a deadline TimeoutError."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, parts: Sequence["Buffer"], deadline: Deadline) -> None:
        """Sends `parts` in order; large ones are gathered by the kernel instead of joined here."""
        views = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
        small = sum(view.nbytes for view in views) <= _JOIN_BELOW_BYTES
        if small or isinstance(self._socket, ssl.SSLSocket):
            for chunk in [b"".join(views)] if small else views:
                self._socket.settimeout(max(0.001, deadline.remaining_s))
                self._socket.sendall(chunk)
            return
        first = 0
        while first < len(views):
            if deadline.expired:
                raise TimeoutError
            self._socket.settimeout(max(0.001, deadline.remaining_s))
            sent = self._socket.sendmsg(views[first : first + _MOST_PARTS])
            while first < len(views) and sent >= views[first].nbytes:
                sent -= views[first].nbytes
                first += 1
            if sent:
                views[first] = views[first][sent:]

    def receive_into(self, buffer: memoryview, deadline: Deadline) -> int:
        """How many bytes were received, at least one; ConnectionError when the peer closes.

        What has arrived is taken after the deadline, too: a process that was suspended is late, and
        not the broker.
        """
        if deadline.expired and not self.has_arrived(wait_s=0.0):
            raise TimeoutError
        self._socket.settimeout(max(0.001, deadline.remaining_s))
        received_bytes = self._socket.recv_into(buffer)
        if not received_bytes:
            raise ConnectionResetError("the broker closed the connection")
        return received_bytes

    def has_arrived(self, wait_s: float) -> bool:
        """Whether bytes, or the end of them, are there or arrive within `wait_s`."""
        is_decrypted = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        return is_decrypted or self.is_readable(wait_s)

    def is_readable(self, wait_s: float) -> bool:
        """As `has_arrived`, but for what TLS has decrypted already."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1000 * wait_s))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def open_transport(host: str, port: int, config: ClientConfig, deadline: Deadline) -> Transport:
    """A connected one; raises KafkaConnectionError with the reason of every address."""
    reasons = []
    refusals = 0
    addresses = _resolve(host, port, deadline)
    for tried, (family, kind, protocol, _, target) in enumerate(addresses):
        try:
            # This may fail, too: the kernel may lack IPv6, and the next address be of IPv4.
            sock = socket.socket(family, kind, protocol)
            try:
                # An address that drops packets must leave time for those after it.
                share = deadline.part(deadline.remaining_s * 1000 / (len(addresses) - tried))
                sock.settimeout(max(0.001, share.remaining_s))
                _set_up(sock, config)
                sock.connect(target)
                is_plain = not config.uses_tls
                return Transport(sock if is_plain else _secured(sock, host, config, deadline))
            except BaseException:
                sock.close()
                raise
        except TimeoutError:
            reasons.append(f"{target[0]} does not answer")
        except OSError as error:
            reasons.append(f"{target[0]}: {reason(error)}")
            refusals += isinstance(error, ConnectionRefusedError)
    kind_of_error = NobodyListensError if refusals == len(addresses) else KafkaConnectionError
    raise kind_of_error(f"{address(host, port)} cannot be reached ({'; '.join(reasons)})")


def _set_up(sock: socket.socket, config: ClientConfig) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if config.receive_buffer_bytes > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
    if config.send_buffer_bytes > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)


def _resolve(host: str, port: int, deadline: Deadline) -> list[Any]:
    """All addresses of a name. The resolver knows no timeout, so it is waited for in a thread."""
    results: list[Any] = []

    def look_up(flags: int = 0) -> None:
        try:
            results.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))
        except (OSError, UnicodeError) as error:  # no name has an empty label, or a long one
            results.append(error)

    look_up(socket.AI_NUMERICHOST)
    if isinstance(results[0], OSError | UnicodeError):
        results.clear()
        thread = threading.Thread(target=look_up, name="kafkalog-resolve", daemon=True)
        thread.start()
        thread.join(deadline.remaining_s)
    if not results:
        raise KafkaConnectionError(f"the name {host} is not resolved in time")
    if isinstance(error := results[0], OSError | UnicodeError):
        no_such_name = (socket.EAI_NONAME, socket.EAI_NODATA)
        is_final = isinstance(error, UnicodeError) or error.errno in no_such_name
        kind_of_error = NobodyListensError if is_final else KafkaConnectionError
        raise kind_of_error(f"the name {host} is not known here ({reason(error)})")
    return list(results[0])


def _secured(
    sock: socket.socket, host: str, config: ClientConfig, deadline: Deadline
) -> socket.socket:
    sock.settimeout(max(0.001, deadline.remaining_s))
    try:
        return tls_context(config).wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationError(
            f"the TLS certificate of {host} cannot be trusted: {error.verify_message}. Check "
            "kafka.ssl.truststore.location, and that the certificate names this host."
        ) from None
    except (ssl.SSLError, ConnectionResetError) as error:
        raise OSError(
            f"no TLS handshake ({reason(error)}); does this listener speak "
            f"kafka.security.protocol={config.security_protocol}?"
        ) from None


def reason(error: BaseException) -> str:
    """The operating system's words for an error."""
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
