"""One client connection: frames in, answers out, in the order of the requests.

Owns: a transport, its receive state and its SendQueue. A frame is a 4-byte big-endian
size and that many bytes; an answer is framed the same way. Called by: the event loop's thread only.

Receiving: small frames come many to one recv, through a staging buffer shared by all connections,
and get their own bytearray each; the rest of a large frame is received straight into a bytearray of
its own, which grows as bytes arrive, so that a size field alone never makes us allocate. Where all
frames together hold too much, this one waits for room, and nothing is read. A frame's memory is not
used again as long as its handler keeps a view of it; one of records counts until it is answered.

Fairness: requests that came together are answered one after the other for some milliseconds; then
the loop looks at all other connections before it goes on, so that none can hold up the rest.

Order and back pressure, as in Apache Kafka: while an answer is being waited for (a long poll), or
while the peer does not read its answers, nothing more is read from it; the kernel's window does
the rest. A peer that closed meanwhile is noticed when the answer is sent. Beyond Apache Kafka, what
is carried out and waits for nothing but its answer (`Pipelined`) lets small requests like it be
handled meanwhile.

Never: looks inside a frame, blocks, or lets an error of one connection reach another.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeAlias

from broker.network.buffers import ReceiveBuffers
from broker.network.log_limit import LimitedLog
from broker.network.peer import Peer
from broker.network.send import Part, SendQueue, size_of
from broker.network.transport import PlainTransport
from pyspark_kafkalog.protocol.frame_memory import is_viewed

_log = logging.getLogger(__name__)

_SIZE: Final = struct.Struct(">i")
# Larger requests are Produce's: no other may have as much.
_COUNTED_BYTES: Final = 512 * 1024
# Receives without a look at the other connections.
_RECEIVES_PER_EVENT: Final = 4
# What an answer that is awaited costs, whatever its size.
_AWAITED_BYTES: Final = 4096
# Requests of one connection that came together may take this long before others have their turn.
_TURN_S: Final = 0.005

# None: the request wants no answer (produce with acks=0).
Answer: TypeAlias = list[Part] | None
Handled: TypeAlias = "Answer | asyncio.Future[Answer] | Pipelined"
Handler: TypeAlias = Callable[[memoryview, "BrokerConnection"], Handled]


class Pipelined:
    """The answer to a request that is carried out: those that begin with `head` need not wait."""

    __slots__ = ("answer", "head")

    def __init__(self, answer: "asyncio.Future[Answer]", head: bytes) -> None:
        self.answer = answer
        self.head = head


class _Awaited:
    """An answer that is awaited, and what is held for it: by its request, or by itself where it is
    there, and waits for those before it."""

    __slots__ = ("answer", "size_bytes")

    def __init__(self, answer: "asyncio.Future[Answer]", size_bytes: int) -> None:
        self.answer = answer
        self.size_bytes = size_bytes


class CloseConnection(Exception):
    """Raised by a handler: this peer cannot be answered; the message goes to the log."""


@dataclass(slots=True)
class ConnectionLimits:
    """What one connection may take; all of a server's look at the same."""

    max_request_bytes: int
    # With more than this unsent, or in requests that wait for their answers, its next one waits.
    # The server lowers it as connections come.
    max_unsent_bytes: int = 1024 * 1024


class BrokerConnection:
    """The state of one connection; `handler` answers whole frames, `on_close` forgets it."""

    __slots__ = (
        "_awaited",
        "_awaited_bytes",
        "_backlog",
        "_buffers",
        "_filled_bytes",
        "_frame",
        "_frame_bytes",
        "_handler",
        "_limits",
        "_log",
        "_loop",
        "_on_close",
        "_pipelined_head",
        "_reading",
        "_send",
        "_stopping",
        "_transport",
        "_turn_is_over",
        "_writing",
        "closed",
        "frame_began",
        "last_active",
        "peer",
        "waits_for_room",
    )

    def __init__(
        self,
        transport: PlainTransport,
        peer: Peer,
        handler: Handler,
        limits: ConnectionLimits,
        buffers: ReceiveBuffers,
        log: LimitedLog,
        loop: asyncio.AbstractEventLoop,
        on_close: "Callable[[BrokerConnection], None]",
    ) -> None:
        self.peer = peer
        self.closed = False
        self.last_active = loop.time()
        self.frame_began = 0.0
        """When the large frame that is being received began."""
        self.waits_for_room = False
        """Nothing is read until `go_on`: there is no memory for the rest of a frame."""
        self._transport = transport
        self._handler = handler
        self._limits = limits
        self._buffers = buffers
        self._log = log
        self._loop = loop
        self._on_close = on_close
        self._send = SendQueue()
        self._awaited: deque[_Awaited] = deque()  # in the order of the requests
        self._awaited_bytes = 0
        self._pipelined_head: bytes | None = None
        """What a request begins with that is handled while answers are awaited; None: no other."""
        self._backlog = bytearray()  # received, not yet parsed
        self._frame: bytearray | None = None  # a large frame being received
        self._frame_bytes = 0
        self._filled_bytes = 0
        self._reading = False
        self._writing = False
        self._stopping = False
        self._turn_is_over = False
        self._read_more()

    @property
    def unsent_bytes(self) -> int:
        """Answers on their way out, in bytes."""
        return self._send.pending_bytes

    def stop_reading(self) -> None:
        """Takes no further request (the server stops); answers still go out."""
        self._stopping = True
        self._pause()

    @property
    def is_receiving(self) -> bool:
        """Whether it is in the middle of a large frame."""
        return self._frame is not None

    def go_on(self) -> None:
        """There may be room now for the rest of the frame."""
        if self.waits_for_room and not self.closed:
            self.waits_for_room = False
            self._guarded(_nothing)

    def close(self, reason: str) -> None:
        """Closes the transport, cancels an awaited answer; safe to call twice."""
        if self.closed:
            return
        self.closed = True
        self._pause()
        if self._writing:
            self._loop.remove_writer(self._transport.fileno())
        self._send.clear()
        self._transport.close()
        self._backlog = bytearray()
        if self._frame is not None:
            self._buffers.release(self._frame)
            self._frame = None
        for awaited in list(self._awaited):
            awaited.answer.cancel()
        _log.debug("connection.closed peer=%s reason=%r", self.peer, reason)
        self._on_close(self)

    # --- receiving ---

    def _read_more(self) -> None:
        if not self._reading and not self.closed:
            self._loop.add_reader(self._transport.fileno(), self._on_readable)
            self._reading = True

    def _pause(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._transport.fileno())
            self._reading = False

    def _must_wait(self) -> bool:
        return (
            (bool(self._awaited) and self._pipelined_head is None)
            or self._turn_is_over
            or self.waits_for_room
            or self._send.pending_bytes > self._limits.max_unsent_bytes
            or self._stopping
        )

    def _on_readable(self) -> None:
        try:
            received_bytes = self._receive()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"receive: {error}")
            return
        if received_bytes == 0:
            self.close("closed by the peer")
            return
        self.last_active = self._loop.time()
        self._guarded(_nothing)

    def _receive(self) -> int:
        """Receives into the large frame, or into the staging buffer (then the backlog)."""
        if self._frame is not None:
            return self._receive_large(self._frame)
        received_bytes = self._transport.recv_into(self._buffers.staging)
        self._backlog += self._buffers.staging[:received_bytes]
        return received_bytes

    def _receive_large(self, frame: bytearray) -> int:
        """Fills the frame's buffer as far as there are bytes; how many those were."""
        began_bytes = self._filled_bytes
        with memoryview(frame) as view:
            end = min(len(frame), self._frame_bytes)
            for _ in range(_RECEIVES_PER_EVENT):
                try:
                    received_bytes = self._transport.recv_into(view[self._filled_bytes : end])
                except BlockingIOError:
                    if self._filled_bytes == began_bytes:
                        raise
                    break
                self._filled_bytes += received_bytes
                if received_bytes == 0 or self._filled_bytes == end:
                    break
        return self._filled_bytes - began_bytes

    def _parse(self, turn_ends_s: float) -> bool:
        """Handles every whole frame there is, until one must be waited for, or the turn is over.
        Whether any was, or the turn is over."""
        if self._frame is not None:
            return self._handle_large_frame()
        backlog = self._backlog
        position, end = 0, len(backlog)
        handled = False
        while end - position >= _SIZE.size and not self._must_wait():
            size_bytes = self._checked_size(_SIZE.unpack_from(backlog, position)[0])
            body_position = position + _SIZE.size
            if self._is_behind_others(backlog, body_position):
                handled = True
                break
            if end - body_position < size_bytes:
                self._begin_large_frame(size_bytes, backlog[body_position:])
                position = end
                break
            if monotonic() > turn_ends_s:
                handled = self._turn_is_over = True
                self._loop.call_soon(self._take_turn)
                break
            position = body_position + size_bytes
            handled = True
            self._handle(memoryview(backlog[body_position:position]))
        del backlog[:position]
        return handled

    def _is_behind_others(self, frame: bytearray, position: int) -> bool:
        """Whether a request must wait until those before it are answered, as all do then. One that
        need not when it begins to come, need not when it is there."""
        head = self._pipelined_head
        if not self._awaited or head is None:
            return False
        held_bytes = self._awaited_bytes + self._send.pending_bytes
        if held_bytes <= self._limits.max_unsent_bytes and frame.startswith(head, position):
            return False
        self._pipelined_head = None
        return True

    def _checked_size(self, size_bytes: int) -> int:
        if 0 < size_bytes <= self._limits.max_request_bytes:
            return size_bytes
        limit_bytes = self._limits.max_request_bytes
        raise CloseConnection(
            f"frame of {size_bytes} bytes, socket.request.max.bytes={limit_bytes}"
        )

    def _begin_large_frame(self, size_bytes: int, head: bytearray) -> None:
        """`head`: what has been received of it (less than all, at most a staging buffer)."""
        self._frame = self._buffers.take(size_bytes, head)
        self._frame_bytes = size_bytes
        self._filled_bytes = len(head)
        self.frame_began = self._loop.time()

    def _handle_large_frame(self) -> bool:
        """Handles the large frame when it is complete; else makes room for more of it."""
        frame = self._frame
        assert frame is not None
        if self._filled_bytes == self._frame_bytes:
            self._frame = None
            awaited: asyncio.Future[Answer] | None = None
            try:
                awaited = self._handle(memoryview(frame)[: self._frame_bytes])
            finally:
                self._release_when_handled(frame, awaited)
            return True
        if self._filled_bytes == len(frame):
            self.waits_for_room = not self._buffers.grow(frame, self._frame_bytes, self.go_on)
        return False

    def _release_when_handled(
        self, frame: bytearray, awaited: "asyncio.Future[Answer] | None"
    ) -> None:
        """Records count until they are appended. Small requests, which may wait for long, do not,
        and who looks into one keeps its memory."""
        if awaited is None or self._frame_bytes < _COUNTED_BYTES or not is_viewed(frame):
            self._buffers.release(frame)
        else:
            self._buffers.begin_handling(frame)
            awaited.add_done_callback(lambda _: self._buffers.end_handling(frame))

    # --- answering ---

    def _handle(self, frame: memoryview) -> "asyncio.Future[Answer] | None":
        """The answer, if it must be awaited."""
        handled = self._handler(frame, self)
        if isinstance(handled, Pipelined):
            self._await(handled.answer, handled.head, len(frame))
            return handled.answer
        if isinstance(handled, asyncio.Future):
            self._await(handled, None, len(frame))
            return handled
        if self._awaited:
            answered = self._loop.create_future()
            answered.set_result(handled)
            size_bytes = 0 if handled is None else size_of(handled)
            self._await(answered, self._pipelined_head, size_bytes)
        else:
            self._push(handled)
        return None

    def _await(self, answer: "asyncio.Future[Answer]", head: bytes | None, size_bytes: int) -> None:
        size_bytes += _AWAITED_BYTES
        self._awaited.append(_Awaited(answer, size_bytes))
        self._awaited_bytes += size_bytes
        self._pipelined_head = head
        answer.add_done_callback(self._on_answer)

    def _push(self, answer: Answer) -> None:
        if answer is not None:
            self._send.push([_SIZE.pack(size_of(answer)), *answer])

    def _on_answer(self, answer: "asyncio.Future[Answer]") -> None:
        if answer.cancelled():
            self.close("the answer was cancelled")
        if self.closed:
            return
        self.last_active = self._loop.time()
        self._guarded(self._push_answered)

    def _push_answered(self) -> None:
        """Those that nobody before them keeps waiting."""
        while self._awaited and self._awaited[0].answer.done():
            first = self._awaited.popleft()
            self._awaited_bytes -= first.size_bytes
            self._push(first.answer.result())

    def _guarded(self, step: Callable[[], None]) -> None:
        """Runs `step`, then sends and goes on; whatever it raises ends this connection only."""
        try:
            step()
            self._go_on()
        except CloseConnection as request:
            self._log.warning("connection.refused", self.peer, str(request))
            self.close(str(request))
        except OSError as error:
            self.close(f"send: {error}")
        except Exception:
            # A bug in a handler: its connection is lost, the broker and all others go on.
            self._log.exception("request.failed", self.peer)
            self.close("internal error")

    def _go_on(self) -> None:
        """Sends, parses what had to wait, and begins or stops reading as that demands."""
        turn_ends_s = monotonic() + _TURN_S
        while True:
            if self._send.pending_bytes:
                self._watch_writable(not self._send.flush(self._transport))
            if self._must_wait():
                self._pause()
                return
            if not self._parse(turn_ends_s):
                if self.waits_for_room:
                    continue
                self._read_more()
                return

    def _take_turn(self) -> None:
        """Goes on with what has been received: all others had their turn."""
        self._turn_is_over = False
        if not self.closed:
            # Its requests may have come long ago. Who reads no answers has no turn for long.
            self.last_active = self._loop.time()
            self._guarded(_nothing)

    def _watch_writable(self, watch: bool) -> None:
        if watch == self._writing:
            return
        if watch:
            self._loop.add_writer(self._transport.fileno(), self._on_writable)
        else:
            self._loop.remove_writer(self._transport.fileno())
        self._writing = watch

    def _on_writable(self) -> None:
        self.last_active = self._loop.time()
        self._guarded(_nothing)


def _nothing() -> None:
    """The step of a connection that only has to go on."""
