"""What a reader makes of answers, without a broker: any cut, any damage, any bytes."""

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError

from pyspark_kafkalog.client.fetch_state import FetchState, whole_batches
from pyspark_kafkalog.record.batch import batches
from tests.pyspark_kafkalog.client.test_fetcher import stored

LOG = stored(0, 3) + stored(3, 1, b"long" * 50) + stored(9, 5)
ENDS = [0] + [header.end_position for header in batches(LOG)]
OFFSETS = [0, 3, 4, 14]


@given(st.integers(0, len(LOG)))
def test_any_prefix_gives_the_batches_that_are_whole(size_bytes: int) -> None:
    whole = sum(1 for end in ENDS[1:] if end <= size_bytes)
    found = whole_batches(memoryview(LOG)[:size_bytes], 0)
    assert (found.size_bytes, found.next_offset) == (ENDS[whole], OFFSETS[whole])
    assert found.base_offsets == [0, 3, 9][:whole]
    assert found.is_seamless == (whole < 3)


@given(st.integers(0, len(LOG) * 8 - 1))
def test_any_flipped_bit_shows_but_for_leader_epochs(bit: int) -> None:
    """Or it moves a batch, or cuts the last off: then there are gaps, or fewer. An epoch decides
    nothing by itself: a later one has the leader asked."""
    damaged = bytearray(LOG)
    damaged[bit // 8] ^= 1 << bit % 8
    start = max(end for end in ENDS if end <= bit // 8)
    try:
        found = whole_batches(memoryview(damaged), 0)
    except CorruptRecordError:
        return
    if 12 <= bit // 8 - start < 16:
        whole = whole_batches(memoryview(LOG), 0)
        assert found._replace(epochs=whole.epochs) == whole
    elif found.size_bytes == len(LOG):
        assert bit // 8 - start < 8
        assert found.base_offsets[0] != 0 or not found.is_seamless
    else:
        assert found.size_bytes == start


def test_entries_of_the_old_formats_name_their_last_offset() -> None:
    message = struct.pack(">bb", 1, 0) + b"\0" * 8
    entry = struct.pack(">qiI", 41, 14, zlib.crc32(message)) + message
    assert len(entry) == 12 + 14
    assert whole_batches(memoryview(entry + b"\0" * 5), 0) == (26, 42, [0], True, [-1])
    with pytest.raises(CorruptRecordError, match="its header says"):
        whole_batches(memoryview(entry[:-1] + b"\1" * 5), 0)


@given(st.binary(max_size=200))
def test_any_bytes_are_walked_or_refused(noise: bytes) -> None:
    with contextlib.suppress(CorruptRecordError):
        assert 0 <= whole_batches(memoryview(noise), 0).size_bytes <= len(noise)


@given(st.lists(st.integers(1, 2 * len(LOG))), st.integers(0, 13))
def test_answers_of_any_size_give_each_batch_once(
    sizes_bytes: list[int], start_offset: int
) -> None:
    """An answer has at least as many bytes as were asked for, from the position's batch on."""
    state = FetchState(start_offset, 14, 1, 1)
    found = []
    for size_bytes in [*sizes_bytes, *[len(LOG)] * 8]:
        if state.is_done:
            break
        starts = zip(ENDS, OFFSETS, strict=True)
        begin = max(start for start, offset in starts if offset <= state.position)
        end = begin + max(size_bytes, state.ask_bytes())
        whole = state.look(memoryview(LOG)[begin:end])
        if whole is not None:
            found += whole.base_offsets
            state.move_past(whole)
    assert state.is_done
    ends = zip([0, 3, 9], OFFSETS[1:], strict=True)
    assert found == [base for base, next_offset in ends if next_offset > start_offset]


def test_a_batch_that_was_cut_off_is_asked_for_whole() -> None:
    state = FetchState(0, 3, 1, 1)
    assert state.look(memoryview(LOG)[: ENDS[1] - 1]) is None
    assert state.ask_bytes() == ENDS[1]


def test_late_answers_make_the_next_ones_larger_up_to_a_limit() -> None:
    state = FetchState(0, 1 << 40, 4 << 20, 8 << 20)
    asked = []
    for _ in range(3):
        state.came_late()
        whole = state.look(memoryview(stored(state.position, 1)))
        assert whole is not None
        state.move_past(whole)
        asked.append(state.ask_bytes())
    assert asked == [8 << 20] * 3
