"""Compression of record batches: the five codecs of Kafka's message format.

The codec is named by the three low bits of a batch's attributes (KIP-98; zstd: KIP-110). What is
compressed is everything after the batch header. Snappy is written in the framing of snappy-java
("xerial": a magic, two versions, then blocks of a 4-byte length and that many bytes), as Kafka's
Java client does, and is read in that framing or raw, as librdkafka writes it. LZ4's framing has its
own module.

Decompression is bounded: a few kilobytes may claim to be gigabytes. Pure functions: any thread.
"""

import struct
import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import cramjam
import snappy
from kafka.errors import CorruptRecordError, UnsupportedCompressionTypeError

from pyspark_kafkalog.record.lz4_frame import compress_frame

if TYPE_CHECKING:
    from typing_extensions import Buffer

XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_GZIP_WINDOW_BITS = 31
_ZSTD_LEVEL = 3
# No byte stands for more than so many: a byte of an LZ4 match's length counts 255, a Zstandard
# block of 4 bytes is 128 KiB at most. So little that is damaged is not tried with much memory.
_LZ4_GROWTH = 255
_ZSTD_GROWTH = 32 * 1024


class Codec(IntEnum):
    """The codec's number in a batch's attributes; its lower-case name is Kafka's option value."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of(cls, name: str) -> "Codec":
        """The codec called `name` in `compression.type`; ValueError names the legal ones."""
        try:
            return cls[name.upper()]
        except KeyError:
            legal = ", ".join(codec.name.lower() for codec in cls)
            raise ValueError(
                f"unknown compression type {name!r}, expected one of: {legal}"
            ) from None


def compress(codec: int, data: "Buffer", level: int | None = None) -> "Buffer":
    """`data` compressed by `codec`, in the framing that Kafka's clients expect.

    `level` is one of the codec's own, as in Kafka's `compression.gzip.level` (KIP-390); None is the
    default. Snappy has none.
    """
    if codec == Codec.NONE:
        return data
    if codec == Codec.GZIP:
        deflate = zlib.compressobj(-1 if level is None else level, wbits=_GZIP_WINDOW_BITS)
        return deflate.compress(data) + deflate.flush()
    if codec == Codec.SNAPPY:
        return _compress_xerial(memoryview(data))
    if codec == Codec.LZ4:
        return compress_frame(data, level)
    if codec == Codec.ZSTD:
        return cramjam.zstd.compress(data, _ZSTD_LEVEL if level is None else level)
    raise UnsupportedCompressionTypeError(f"no compression codec has the number {codec}")


def decompress(codec: int, data: "Buffer", max_bytes: int) -> memoryview:
    """`data` decompressed.

    Raises CorruptRecordError when `data` is damaged or grows beyond `max_bytes`, and
    UnsupportedCompressionTypeError for a codec that does not exist.
    """
    view = memoryview(data)
    if codec == Codec.NONE:
        return view
    if codec == Codec.GZIP:
        return _decompress_gzip(view, max_bytes)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(view, max_bytes)
    if codec == Codec.LZ4:
        most_bytes = min(max_bytes, _growth(view, _LZ4_GROWTH))
        return _decompress_growing(cramjam.lz4.decompress_into, view, most_bytes)
    if codec == Codec.ZSTD:
        most_bytes = min(max_bytes, _growth(view, _ZSTD_GROWTH))
        return _decompress_growing(cramjam.zstd.decompress_into, view, most_bytes)
    raise UnsupportedCompressionTypeError(f"no compression codec has the number {codec}")


def _compress_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, max(1, len(data)), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(data[start : start + _XERIAL_BLOCK_BYTES])
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _decompress_gzip(data: memoryview, max_bytes: int) -> memoryview:
    inflate = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
    try:
        out = inflate.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise CorruptRecordError(f"gzip: {error}") from None
    if len(out) > max_bytes:
        raise _too_large("gzip", max_bytes)
    if not inflate.eof:
        raise CorruptRecordError("gzip: the compressed data ends too early")
    return memoryview(out)


def _decompress_snappy(data: memoryview, max_bytes: int) -> memoryview:
    if data[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        if _snappy_length(data) > max_bytes:
            raise _too_large("snappy", max_bytes)
        return memoryview(_decompress_snappy_block(data))
    parts = []
    left_bytes = max_bytes
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if position + 4 > len(data):
            raise CorruptRecordError("snappy: a block's length is cut off")
        (block_bytes,) = struct.unpack_from(">i", data, position)
        position += 4
        if block_bytes < 0 or position + block_bytes > len(data):
            raise CorruptRecordError(f"snappy: a block claims {block_bytes} bytes")
        block = data[position : position + block_bytes]
        left_bytes -= _snappy_length(block)
        if left_bytes < 0:
            raise _too_large("snappy", max_bytes)
        parts.append(_decompress_snappy_block(block))
        position += block_bytes
    return memoryview(b"".join(parts))


def _decompress_snappy_block(block: memoryview) -> bytes:
    try:
        return bytes(snappy.uncompress(bytes(block)))
    except snappy.UncompressError as error:
        raise CorruptRecordError(f"snappy: {error}") from None


def _snappy_length(block: memoryview) -> int:
    """The uncompressed length that a raw snappy block declares: its leading varint."""
    length = 0
    for index, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return length
    raise CorruptRecordError("snappy: the block has no length")


def _growth(data: memoryview, most: int) -> int:
    return len(data) * most + 64 * 1024


def _decompress_growing(decompress_into: Any, data: memoryview, max_bytes: int) -> memoryview:
    """For frames that need not declare their size: try a larger buffer until it fits."""
    out_bytes = min(max_bytes, max(8 * len(data), 64 * 1024))
    while True:
        out = bytearray(out_bytes)
        try:
            written = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if out_bytes >= max_bytes:
                raise CorruptRecordError(
                    f"compressed records are damaged or exceed {max_bytes} bytes: {error}"
                ) from None
            out_bytes = min(max_bytes, 4 * out_bytes)
        else:
            return memoryview(out)[:written]


def _too_large(codec: str, max_bytes: int) -> CorruptRecordError:
    return CorruptRecordError(f"{codec}: compressed records exceed {max_bytes} bytes")
