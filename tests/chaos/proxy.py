"""A TCP proxy on loopback that does to connections what networks do, by a seed.

    client -> proxy -> broker

Each new connection gets a Fault from `next_fault`, or none: it is refused, or passes until so many
bytes of answers have gone to the client, and then is cut (with what was sent of a frame), stalls
without a word, drips, or has one bit flipped in an answer that is large enough to hold records. A
broker behind it has to advertise the proxy's address. `proxy.met` counts what happened.

Two threads for each connection; `next_fault` is called by one at a time.
"""

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING

from tests.support.patience import EVENT_S, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

_CHUNK_BYTES = 16 << 10
_DRIP_BYTES = 700
_DRIP_PAUSE_S = 0.002
_DELAY_S = 0.01


class Kind(Enum):
    """What happens to a connection."""

    REFUSE = "refuse"
    CUT = "cut"
    STALL = "stall"
    DRIP = "drip"
    DELAY = "delay"
    CORRUPT = "corrupt"


@dataclass(frozen=True)
class Fault:
    """It happens when `after_bytes` of answers have passed; `bit` picks the one that is flipped."""

    kind: Kind
    after_bytes: int = 0
    bit: int = 0


NextFault = Callable[[], Fault | None]


def no_fault() -> None:
    return None


class SeededFaults:
    """At most `most` faults of some kinds, one for each connection with the given probability."""

    def __init__(
        self,
        seed: int,
        kinds: tuple[Kind, ...] = tuple(Kind),
        most: int = 12,
        probability: float = 0.8,
        reach_bytes: int = 200_000,
    ) -> None:
        self._random = random.Random(seed)
        self._kinds = kinds
        self._left = most
        self._probability = probability
        self._reach_bytes = reach_bytes

    def __call__(self) -> Fault | None:
        if not self._left or self._random.random() > self._probability:
            return None
        self._left -= 1
        # Early ones too: greetings and metadata are short.
        after_bytes = int(self._reach_bytes ** self._random.random()) - 1
        return Fault(self._random.choice(self._kinds), after_bytes, self._random.getrandbits(40))


class ChaosProxy:
    """Listens on 127.0.0.1 and passes connections to `target`, a `host:port`; a context manager."""

    def __init__(self) -> None:
        self.target = ""
        self.next_fault: NextFault = no_fault
        self.met: Counter[Kind] = Counter()
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
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
        _close(self._listener)
        self.cut_all()
        for thread in self._threads:
            thread.join(EVENT_S)
            assert not thread.is_alive()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def advertised(self) -> dict[str, str]:
        """The config of a broker that is to be found behind this proxy."""
        return {"advertised.listeners": f"PLAINTEXT://{self.address}"}

    def cut_all(self) -> None:
        """Closes all connections of now, in the middle of whatever they carry."""
        with self._lock:
            open_now, self._open = self._open, set()
        for each in open_now:
            _close(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            fault = self.next_fault()
            try:
                if fault is not None and fault.kind is Kind.REFUSE:
                    self.met[fault.kind] += 1
                    raise ConnectionRefusedError
                host, _, port = self.target.rpartition(":")
                broker = socket.create_connection((host, int(port)), 5)
                broker.settimeout(None)
            except OSError:
                _reset(client)
                continue
            with self._lock:
                self._open |= {client, broker}
            for pump in (
                threading.Thread(target=self._pump, args=(client, broker, None), daemon=True),
                threading.Thread(target=self._pump, args=(broker, client, fault), daemon=True),
            ):
                self._threads.append(pump)
                pump.start()

    def _pump(self, source: socket.socket, sink: socket.socket, fault: Fault | None) -> None:
        passed_bytes = 0
        corruptor = _Corruptor(fault) if fault and fault.kind is Kind.CORRUPT else None
        try:
            while chunk := source.recv(_CHUNK_BYTES):
                if corruptor is not None:
                    chunk = corruptor.pass_on(chunk)
                    self.met[Kind.CORRUPT] += corruptor.take_count()
                elif fault is not None and passed_bytes + len(chunk) > fault.after_bytes:
                    self.met[fault.kind] += 1
                    if self._end(fault, sink, chunk[: fault.after_bytes - passed_bytes], chunk):
                        break
                    passed_bytes += len(chunk)
                    fault = None if fault.kind is Kind.DELAY else fault
                    continue
                sink.sendall(chunk)
                passed_bytes += len(chunk)
        except OSError:
            pass
        finally:
            _close(source)
            _close(sink)

    def _end(self, fault: Fault, sink: socket.socket, before: bytes, chunk: bytes) -> bool:
        """Does what is to be done when its time has come; True if the connection is over."""
        if fault.kind is Kind.CUT:
            sink.sendall(before)
            return True
        if fault.kind is Kind.STALL:
            sink.sendall(before)
            # Which closes the socket under the other thread.
            wait_until(lambda: sink.fileno() < 0, "the client gives up", 10 * EVENT_S)
            return True
        if fault.kind is Kind.DELAY:
            time.sleep(_DELAY_S)
            sink.sendall(chunk)
            return False
        for start in range(0, len(chunk), _DRIP_BYTES):
            time.sleep(_DRIP_PAUSE_S)
            sink.sendall(chunk[start : start + _DRIP_BYTES])
        return False


class _Corruptor:
    """Flips one bit in the first large answer after `after_bytes`; what it must it holds back."""

    _LARGE_BYTES = 1000

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._held = b""
        self._passed_bytes = 0
        self._flipped = 0
        self._done = False

    def take_count(self) -> int:
        count, self._flipped = self._flipped, 0
        return count

    def pass_on(self, chunk: bytes) -> bytes:
        if self._done:
            return chunk
        self._held += chunk
        out = b""
        while len(self._held) >= 4:
            size_bytes = 4 + struct.unpack(">i", self._held[:4])[0]
            if len(self._held) < size_bytes:
                break
            frame, self._held = self._held[:size_bytes], self._held[size_bytes:]
            if size_bytes > self._LARGE_BYTES and self._passed_bytes >= self._fault.after_bytes:
                out += self._flip(frame) + self._held
                self._done = True
                return out
            out += frame
            self._passed_bytes += size_bytes
        return out

    def _flip(self, frame: bytes) -> bytes:
        self._flipped = 1
        damaged = bytearray(frame)
        position, bit = divmod(self._fault.bit % (len(frame) * 8), 8)
        damaged[position] ^= 1 << bit
        return bytes(damaged)


def _close(sock: socket.socket) -> None:
    """Wakes whoever waits on the socket; closing alone would not."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _reset(sock: socket.socket) -> None:
    """Closes it as a host does that knows nothing of the connection."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
