"""Frame buffers are used again, but never under somebody's eyes."""

from broker.network.buffers import FRAME_BYTES, ReceiveBuffers

HEAD = b"head" * 8192


def test_a_frame_that_nobody_holds_is_used_again() -> None:
    buffers = ReceiveBuffers()
    frame = buffers.take(1 << 20, HEAD)
    frame[:3] = b"old"
    buffers.release(frame)
    assert buffers.take(1 << 20, HEAD) is frame
    assert len(frame) == FRAME_BYTES
    assert buffers.take(1 << 20, HEAD) is not frame


def test_a_frame_with_a_view_is_not() -> None:
    buffers = ReceiveBuffers()
    frame = buffers.take(1 << 20, HEAD)
    kept = memoryview(frame)[10:20]
    buffers.release(frame)
    assert buffers.take(1 << 20, HEAD) is not frame
    assert len(kept) == 10


def test_a_frame_that_grew_is_let_go() -> None:
    buffers = ReceiveBuffers()
    frame = buffers.take(1 << 20, HEAD)
    frame.extend(b"more")
    buffers.release(frame)
    assert buffers.take(1 << 20, HEAD) is not frame


def test_the_pool_is_bounded() -> None:
    buffers = ReceiveBuffers()
    frames = [buffers.take(1 << 20, HEAD) for _ in range(20)]
    for frame in frames:
        buffers.release(frame)
    again = {id(buffers.take(1 << 20, HEAD)) for _ in range(20)}
    assert 0 < len(again & {id(frame) for frame in frames}) <= 8


def test_a_frame_that_is_alone_always_has_room() -> None:
    """Others may wait until it is handled; it could wait for nobody."""
    buffers = ReceiveBuffers(max_held_bytes=100_000)
    frame = buffers.take(400_000, HEAD)
    other = buffers.take(200, b"x")
    waiting = []
    assert not buffers.grow(frame, 400_000, lambda: waiting.append(1))
    buffers.release(other)
    for go_on in buffers.take_waiting():
        go_on()
    assert waiting == [1]
    while len(frame) < 400_000:
        assert buffers.grow(frame, 400_000, lambda: waiting.append(1))
    buffers.release(frame)
    assert buffers.held_bytes == 0
