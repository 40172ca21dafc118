"""SendQueue over a socket pair whose buffers are small, so that every send is partial."""

import errno
import io
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from broker.network.send import Part, SendQueue
from broker.network.transport import PlainTransport
from tests.support.patience import EVENT_S


@dataclass
class Region:
    file: IO[bytes]
    position: int
    size_bytes: int
    unreadable: OSError | None = None

    def __len__(self) -> int:
        return self.size_bytes

    def not_read(self, error: OSError) -> None:
        self.unreadable = error


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.settimeout(EVENT_S)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[io.BufferedReader]:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(300_000))
    with path.open("rb") as file:
        yield file


def drain(queue: SendQueue, ours: socket.socket, theirs: socket.socket) -> bytes:
    received = bytearray()
    while not queue.flush(PlainTransport(ours)):
        received += theirs.recv(1 << 20)
    ours.shutdown(socket.SHUT_WR)
    while piece := theirs.recv(1 << 20):
        received += piece
    return bytes(received)


def test_bytes_and_slices_leave_in_order(
    pair: tuple[socket.socket, socket.socket], segment: io.BufferedReader
) -> None:
    content = segment.read()
    parts: list[Part] = [
        b"head",
        Region(segment, 1000, 200_000),
        bytearray(b"middle" * 10_000),
        b"",
        memoryview(b"tail"),
        Region(segment, 0, 1),
        Region(segment, 299_999, 1),
    ]
    queue = SendQueue()
    queue.push(parts)
    expected = b"head" + content[1000:201_000] + b"middle" * 10_000 + b"tail"
    expected += content[:1] + content[-1:]
    assert queue.pending_bytes == len(expected)
    assert drain(queue, *pair) == expected
    assert queue.pending_bytes == 0


def test_more_small_parts_than_one_call_takes(pair: tuple[socket.socket, socket.socket]) -> None:
    queue = SendQueue()
    queue.push([b"%05d" % number for number in range(5000)])
    assert drain(queue, *pair) == b"".join(b"%05d" % number for number in range(5000))


def test_a_file_that_shrank_is_an_error_not_a_wait(
    pair: tuple[socket.socket, socket.socket], segment: io.BufferedReader
) -> None:
    """And whoever has it is told, as no peer would ask for less."""
    queue, region = SendQueue(), Region(segment, 299_000, 2000)
    queue.push([region])
    with pytest.raises(OSError, match="bytes missing"):
        drain(queue, *pair)
    assert region.unreadable is not None


@pytest.mark.parametrize(
    ("code", "is_told"),
    [(errno.EIO, True), (errno.EUCLEAN, True), (errno.EPIPE, False), (errno.EAGAIN, False)],
)
def test_who_has_the_file_is_told_where_the_disk_does_not_give_it(
    pair: tuple[socket.socket, socket.socket],
    segment: io.BufferedReader,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    is_told: bool,
) -> None:
    """And not where it is the peer that takes nothing."""

    def fails(*_: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sendfile", fails)
    queue, region = SendQueue(), Region(segment, 0, 2000)
    queue.push([region])
    if code == errno.EAGAIN:
        assert not queue.flush(PlainTransport(pair[0]))
    else:
        with pytest.raises(OSError, match=os.strerror(code)):
            queue.flush(PlainTransport(pair[0]))
    assert (region.unreadable is not None) == is_told


def test_clear_lets_go_of_everything(pair: tuple[socket.socket, socket.socket]) -> None:
    queue = SendQueue()
    queue.push([b"x" * 100_000])
    assert not queue.flush(PlainTransport(pair[0]))
    queue.clear()
    assert queue.pending_bytes == 0
    assert queue.flush(PlainTransport(pair[0]))
