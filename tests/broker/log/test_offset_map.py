"""OffsetMap against a dict."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.offset_map import ENTRY_BYTES, OffsetMap


@given(
    puts=st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 2**63 - 1)), max_size=200),
    slots=st.integers(2, 300),
    load_factor=st.floats(0.1, 1.0),
)
def test_equals_a_dict_until_it_is_full(
    puts: list[tuple[bytes, int]], slots: int, load_factor: float
) -> None:
    offsets = OffsetMap(slots * ENTRY_BYTES, load_factor, 10**6)
    model: dict[bytes, int] = {}
    for key, offset in puts:
        fits = key in model or len(model) < offsets.capacity
        assert offsets.put(key, offset) == fits
        if fits:
            model[key] = offset
        assert len(offsets) == len(model)
    for key, _ in puts:
        assert offsets.get(key) == model.get(key, -1)


def test_memory_is_24_bytes_an_entry_and_no_more_than_the_buffer() -> None:
    offsets = OffsetMap(100_000, 0.9, 10**9)
    assert offsets.size_bytes <= 100_000
    assert 0.85 * 100_000 / 24 < offsets.capacity <= 0.9 * 100_000 / 24
    count = 0
    while offsets.put(b"%d" % count, count):
        count += 1
    assert count == len(offsets) == offsets.capacity
    assert offsets.is_full
    assert all(offsets.get(b"%d" % number) == number for number in range(count))
    assert offsets.put(b"7", 10**6)
    assert offsets.get(b"7") == 10**6


def test_a_large_buffer_costs_only_what_is_needed() -> None:
    offsets = OffsetMap(1 << 40, 0.75, 1000)
    assert offsets.capacity >= 1000
    assert offsets.size_bytes < 50_000


@pytest.mark.parametrize("buffer_bytes", [0, 1, 24, 48, 72])
def test_there_is_always_room_for_one_key(buffer_bytes: int) -> None:
    offsets = OffsetMap(buffer_bytes, 0.01, 10)
    assert offsets.put(b"a", 0)
    assert offsets.get(b"a") == 0
    assert offsets.get(b"b") == -1


def test_keys_may_be_views_and_empty() -> None:
    offsets = OffsetMap(1000, 0.9, 10)
    assert offsets.put(memoryview(b"xkeyx")[1:4], 5)
    assert offsets.put(b"", 6)
    assert (offsets.get(b"key"), offsets.get(b"")) == (5, 6)
    assert hashlib.md5(b"key", usedforsecurity=False).digest_size == 16
