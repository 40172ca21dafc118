"""Bytes of a column in hexadecimal, as databases read them in text. Pure: any thread."""

import binascii

import pyarrow as pa
import pyarrow.compute as pc


def hexadecimal(column: pa.BinaryArray, before: str, after: str = "") -> pa.LargeStringArray:
    """Two digits for each byte, between two texts; null is null."""
    if not len(column):
        return pa.array([], pa.large_string())
    _, offsets, content = column.buffers()
    ends = pa.Array.from_buffers(
        pa.int32(), len(column) + 1, [None, offsets], offset=column.offset
    ).cast(pa.int64())
    start, end = ends[0].as_py(), ends[-1].as_py()
    digits = binascii.hexlify(memoryview(content)[start:end]) if content else b""
    offsets = pc.multiply(pc.subtract(ends, start), 2)
    valid = pc.is_valid(column)
    texts = pa.LargeStringArray.from_buffers(
        len(column), pa.py_buffer(offsets.buffers()[1]), pa.py_buffer(digits)
    )
    first, last, nothing = (pa.scalar(text, pa.large_string()) for text in (before, after, ""))
    joined = pc.binary_join_element_wise(first, texts, last, nothing)
    return pc.if_else(valid, joined, pa.scalar(None, pa.large_string()))
