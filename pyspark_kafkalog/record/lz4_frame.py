"""The LZ4 frame as Kafka's clients write and read it.

    magic               uint32  0x184D2204, little-endian like all numbers here
    flags               int8    0x60: version 1, independent blocks, no checksums of content
    block size          int8    0x40: blocks of at most 64 KiB
    header checksum     int8    second byte of the XXH32 of what it covers (see below)
    blocks                      uint32 size (highest bit: stored as it is), then that many bytes
    end mark            uint32  0

The Java client reads independent blocks only, so frames are put together here, block by block. The
header checksum covers flags and block size. Kafka before 0.10 computed it over the magic too
(KAFKA-3160); a message of magic 0 carries that wrong checksum, and who reads one ignores it.

Pure functions: any thread.
"""

import struct
from typing import TYPE_CHECKING

import cramjam
from kafka.errors import CorruptRecordError

if TYPE_CHECKING:
    from typing_extensions import Buffer

DEFAULT_LEVEL = 9
"""Kafka's `compression.lz4.level` when nothing is set; stands for LZ4's fast mode (KIP-390)."""

_MAGIC = b"\x04\x22\x4d\x18"
_FLAGS = b"\x60"
_BLOCK_SIZE = b"\x40"
_BLOCK_BYTES = 64 * 1024
_STORED_BIT = 0x80000000
_SIZE = struct.Struct("<I")
_END_MARK = _SIZE.pack(0)
# Levels above are the same to the library.
_HIGHEST_LEVEL = 12

_CONTENT_SIZE_BIT = 0x08
_DICTIONARY_BIT = 0x01

_PRIME_1, _PRIME_2, _PRIME_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME_4, _PRIME_5 = 0x27D4EB2F, 0x165667B1
_MASK = 0xFFFFFFFF


def compress_frame(data: "Buffer", level: int | None = None) -> bytes:
    """`data` as one frame. `level` is Kafka's, 1 to 17."""
    view = memoryview(data)
    parts = [_HEADER]
    for start in range(0, len(view), _BLOCK_BYTES):
        block = view[start : start + _BLOCK_BYTES]
        compressed = _compress_block(block, DEFAULT_LEVEL if level is None else level)
        if len(compressed) < len(block):
            parts += (_SIZE.pack(len(compressed)), compressed)
        else:
            parts += (_SIZE.pack(len(block) | _STORED_BIT), bytes(block))
    parts.append(_END_MARK)
    return b"".join(parts)


def _compress_block(block: memoryview, level: int) -> bytes:
    if level == DEFAULT_LEVEL:
        return bytes(cramjam.lz4.compress_block(block, store_size=False))
    # cramjam has levels for frames alone: this one has one block, which is taken out of it.
    frame = bytes(cramjam.lz4.compress(block, level=min(level, _HIGHEST_LEVEL)))
    (size_bytes,) = _SIZE.unpack_from(frame, len(_HEADER))
    if size_bytes & _STORED_BIT:
        return bytes(block)
    return frame[len(_HEADER) + _SIZE.size :][:size_bytes]


def with_old_checksum(frame: bytes) -> bytes:
    """A frame of `compress_frame` with the header checksum that magic 0 has."""
    return _OLD_HEADER + frame[len(_HEADER) :]


def with_right_checksum(frame: "Buffer") -> bytes:
    """A copy of `frame`, whose header checksum may be the old one, with the right one.

    Raises CorruptRecordError for what cannot be a frame.
    """
    copy = bytearray(frame)
    if len(copy) < len(_HEADER) or not copy.startswith(_MAGIC):
        raise CorruptRecordError("lz4: the compressed records are not a frame")
    flags = copy[4]
    checksum_position = 6
    checksum_position += 8 if flags & _CONTENT_SIZE_BIT else 0
    checksum_position += 4 if flags & _DICTIONARY_BIT else 0
    if checksum_position >= len(copy):
        raise CorruptRecordError("lz4: the frame's header is cut off")
    copy[checksum_position] = _checksum(copy[4:checksum_position])
    return bytes(copy)


def _checksum(data: "Buffer") -> int:
    return (xxh32(data) >> 8) & 0xFF


def xxh32(data: "Buffer") -> int:
    """XXH32 with seed 0 of less than 16 bytes, which is all that a header has."""
    view = memoryview(data)
    size_bytes = len(view)
    if size_bytes >= 16:
        raise ValueError(f"{size_bytes} bytes are too many")
    accumulator = _PRIME_5 + size_bytes
    whole_bytes = size_bytes & ~3
    for (word,) in _SIZE.iter_unpack(view[:whole_bytes]):
        accumulator = _rotate_left(accumulator + word * _PRIME_3, 17) * _PRIME_4
    for byte in view[whole_bytes:]:
        accumulator = _rotate_left(accumulator + byte * _PRIME_5, 11) * _PRIME_1
    accumulator &= _MASK
    accumulator = ((accumulator ^ (accumulator >> 15)) * _PRIME_2) & _MASK
    accumulator = ((accumulator ^ (accumulator >> 13)) * _PRIME_3) & _MASK
    return accumulator ^ (accumulator >> 16)


def _rotate_left(number: int, bits: int) -> int:
    number &= _MASK
    return ((number << bits) | (number >> (32 - bits))) & _MASK


_HEADER = _MAGIC + _FLAGS + _BLOCK_SIZE + bytes([_checksum(_FLAGS + _BLOCK_SIZE)])
_OLD_HEADER = _HEADER[:6] + bytes([_checksum(_HEADER[:6])])
