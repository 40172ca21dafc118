"""OffsetIndex and TimeIndex against dict models, and on files that are not theirs."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.log.offset_index import OffsetIndex
from broker.log.time_index import TimeIndex
from tests.broker.log.memory_files import MemoryFiles

BASE = 1000
PATH = Path("/data/t-0/x.index")


def offset_index(
    entries: Sequence[tuple[int, int]] = (),
    max_bytes: int = 10**6,
    files: MemoryFiles | None = None,
) -> OffsetIndex:
    index = OffsetIndex(PATH, BASE, max_bytes, files or MemoryFiles())
    index.create()
    for offset, position in entries:
        index.append(offset, position)
    return index


def time_index(
    entries: Sequence[tuple[int, int]] = (),
    max_bytes: int = 10**6,
    files: MemoryFiles | None = None,
) -> TimeIndex:
    index = TimeIndex(PATH, BASE, max_bytes, files or MemoryFiles())
    index.create()
    for timestamp_ms, offset in entries:
        index.maybe_append(timestamp_ms, offset)
    return index


ROWS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=30).map(
    lambda steps: [
        (BASE + sum(s[0] for s in steps[: n + 1]), sum(s[1] for s in steps[: n + 1]))
        for n in range(len(steps))
    ]
)


@given(ROWS, st.integers(BASE - 5, BASE + 300), st.booleans())
def test_offset_lookup_equals_a_model(
    rows: list[tuple[int, int]], target: int, sealed: bool
) -> None:
    index = offset_index(rows)
    if sealed:
        index.seal()
    below = [row for row in rows if row[0] <= target]
    assert index.lookup(target) == (below[-1] if below else (BASE, 0))


@example([(BASE + 1, 1), (BASE + 5, 5)], BASE + 5, False)
@given(ROWS, st.integers(BASE - 5, BASE + 300), st.booleans())
def test_offset_truncation_equals_a_model(
    rows: list[tuple[int, int]], target: int, sealed: bool
) -> None:
    index = offset_index(rows)
    if sealed:
        index.seal()
    index.truncate_to(target)
    index.unseal()
    kept = [row for row in rows if row[0] < target]
    assert [index.entry(slot) for slot in range(index.entry_count)] == kept
    index.append(BASE + 500, 500)
    assert index.lookup(BASE + 501) == (BASE + 500, 500)


@given(ROWS, st.integers(0, 300), st.booleans())
def test_time_lookup_and_truncation_equal_a_model(
    rows: list[tuple[int, int]], target: int, sealed: bool
) -> None:
    entries = [(timestamp_ms, offset) for offset, timestamp_ms in rows]
    index = time_index(entries)
    if sealed:
        index.seal()
    below = [entry for entry in entries if entry[0] <= target]
    assert index.lookup(target) == (below[-1] if below else (-1, BASE))
    index.truncate_to(BASE + target)
    kept = [entry for entry in entries if entry[1] < BASE + target]
    assert [index.entry(slot) for slot in range(index.entry_count)] == kept


@given(ROWS)
def test_survive_their_file(rows: list[tuple[int, int]]) -> None:
    files = MemoryFiles()
    offset_index(rows, files=files)
    again = OffsetIndex(PATH, BASE, 10**6, files)
    again.load()
    assert [again.entry(slot) for slot in range(again.entry_count)] == rows
    assert again.sanity_check(10**6)


def test_offsets_only_grow() -> None:
    index = offset_index([(BASE + 5, 0)])
    with pytest.raises(ValueError, match="not above"):
        index.append(BASE + 5, 10)


def test_a_sealed_index_takes_no_entry() -> None:
    index = offset_index()
    index.seal()
    with pytest.raises(ValueError, match="sealed"):
        index.append(BASE, 0)


def test_timestamps_that_do_not_grow_add_nothing() -> None:
    index = time_index([(5, BASE), (5, BASE + 1), (4, BASE + 2), (6, BASE + 3)])
    assert [index.entry(slot) for slot in range(index.entry_count)] == [(5, BASE), (6, BASE + 3)]
    with pytest.raises(ValueError, match="below the last"):
        index.maybe_append(7, BASE)


def test_a_full_index_takes_no_more_but_the_sealing_entry() -> None:
    index = offset_index([(BASE + n, n) for n in range(9)], max_bytes=3 * 8 + 7)
    assert (index.entry_count, index.is_full) == (3, True)
    times = time_index([(n, BASE + n) for n in range(9)], max_bytes=3 * 12)
    assert (times.entry_count, times.is_full) == (2, True)
    times.maybe_append(50, BASE + 50, sealing=True)
    assert times.last == (50, BASE + 50)


@pytest.mark.parametrize(
    ("data", "is_sane"),
    [
        (b"", True),
        (b"\x00\x00\x00\x05\x00\x00\x00\x09", True),
        (b"\x00\x00\x00\x05\x00\x00\x00\x0a", False),
        (b"\xff\x00\x00\x05\x00\x00\x00\x00", False),
        (b"\x00\x00\x00\x05\xff\x00\x00\x00", False),
        (b"\x00" * 7, False),
    ],
)
def test_sanity_of_an_offset_index_over_ten_bytes(data: bytes, is_sane: bool) -> None:
    files = MemoryFiles()
    files.open(PATH, create=True).pwrite(data, 0)
    index = OffsetIndex(PATH, BASE, 10**6, files)
    index.load()
    assert index.sanity_check(10) == is_sane


@pytest.mark.parametrize(
    ("data", "is_sane"),
    [
        (b"", True),
        (bytes(11), False),
        (bytes(7) + b"\x05" + bytes(3) + b"\x01", True),
        (bytes(7) + b"\x05" + bytes(4) + bytes(7) + b"\x04" + bytes(4), False),
        (bytes(8) + b"\xff" * 4, False),
    ],
)
def test_sanity_of_a_time_index(data: bytes, is_sane: bool) -> None:
    files = MemoryFiles()
    files.open(PATH, create=True).pwrite(data, 0)
    index = TimeIndex(PATH, BASE, 10**6, files)
    index.load()
    assert index.sanity_check() == is_sane
