"""Memory of answers: used again when nobody can see it, and never before."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.client.receive_buffers import ReceiveBuffers

SIZE_BYTES = 1 << 20


def test_a_buffer_that_nobody_views_is_used_again() -> None:
    buffers = ReceiveBuffers()
    first = buffers.take(SIZE_BYTES)
    memory = id(first.obj)
    del first
    assert id(buffers.take(SIZE_BYTES - 1).obj) == memory


def test_a_slice_keeps_a_buffer_from_being_used_again() -> None:
    buffers = ReceiveBuffers()
    part = buffers.take(SIZE_BYTES)[10:20]
    part[:] = b"0123456789"
    other = buffers.take(SIZE_BYTES)
    other[:] = bytes(SIZE_BYTES)
    assert part.obj is not other.obj
    assert bytes(part) == b"0123456789"


def test_a_view_has_the_size_that_was_asked_for() -> None:
    buffers = ReceiveBuffers()
    for size_bytes in (0, 1, 100_000, SIZE_BYTES + 1, SIZE_BYTES - 1, 20 << 20):
        assert len(buffers.take(size_bytes)) == size_bytes


def test_a_small_answer_does_not_take_a_large_buffer() -> None:
    buffers = ReceiveBuffers()
    large = buffers.take(16 << 20)
    memory = id(large.obj)
    del large
    small = buffers.take(70_000)
    assert memoryview(small.obj).nbytes < 1 << 20
    assert id(buffers.take(16 << 20).obj) == memory


def test_what_is_cleared_is_not_kept() -> None:
    buffers = ReceiveBuffers()
    tracemalloc.start()
    try:
        buffers.take(SIZE_BYTES)
        assert tracemalloc.get_traced_memory()[0] > SIZE_BYTES
        buffers.clear()
        assert tracemalloc.get_traced_memory()[0] < SIZE_BYTES / 2
    finally:
        tracemalloc.stop()


@given(st.lists(st.tuples(st.integers(60_000, 400_000), st.booleans()), max_size=20))
def test_what_is_viewed_is_never_written_to_by_others(takes: list[tuple[int, bool]]) -> None:
    buffers = ReceiveBuffers()
    viewed = []
    for number, (size_bytes, is_kept) in enumerate(takes):
        view = buffers.take(size_bytes)
        view[:] = bytes([number]) * size_bytes
        if is_kept:
            viewed.append((number, view))
    for number, view in viewed:
        assert bytes(view) == bytes([number]) * len(view)
