"""The LZ4 frame: as lz4's own library reads it, and as Kafka's clients of two ages want it."""

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError

from pyspark_kafkalog.record.compression import Codec, decompress
from pyspark_kafkalog.record.lz4_frame import (
    compress_frame,
    with_old_checksum,
    with_right_checksum,
    xxh32,
)

INDEPENDENT_BLOCKS_BIT = 0x20
SEVERAL_BLOCKS = b"0123456789abcdef" * 10_000


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF)]
)
def test_xxh32_of_known_data(data: bytes, expected: int) -> None:
    assert xxh32(data) == expected


@given(st.binary(max_size=300_000), st.sampled_from([None, 1, 5, 9, 17]))
def test_frames_are_lz4s(data: bytes, level: int | None) -> None:
    frame = compress_frame(data, level)
    assert lz4.frame.decompress(frame) == data
    assert bytes(decompress(Codec.LZ4, frame, len(data) + 1)) == data


def test_blocks_are_independent() -> None:
    """The Java client reads no others."""
    frame = compress_frame(SEVERAL_BLOCKS)
    assert frame[4] & INDEPENDENT_BLOCKS_BIT
    assert len(frame) < len(SEVERAL_BLOCKS) // 10


def test_a_higher_level_compresses_more() -> None:
    text = " ".join(str(number * number) for number in range(20_000)).encode()
    assert len(compress_frame(text, 17)) < len(compress_frame(text, 9))


def test_the_old_checksum_is_kafkas() -> None:
    assert with_old_checksum(compress_frame(b"x"))[:7].hex() == "04224d1860401a"


@pytest.mark.parametrize("options", [{}, {"store_size": True}, {"content_checksum": True}])
def test_the_right_checksum_is_computed_anew(options: dict[str, bool]) -> None:
    frame = bytearray(lz4.frame.compress(SEVERAL_BLOCKS, **options))
    right = bytes(frame)
    checksum_position = 14 if options.get("store_size", True) else 6
    frame[checksum_position] ^= 0xFF
    assert with_right_checksum(frame) == right


@pytest.mark.parametrize(
    "frame", [b"", b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x18\x69\x40\x00", b"no frame"]
)
def test_what_is_no_frame(frame: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        with_right_checksum(frame)
