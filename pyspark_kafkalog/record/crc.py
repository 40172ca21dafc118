"""CRC-32C (Castagnoli), the checksum of record batches since magic 2.

`crc32c` uses the processor's instruction (several GB/s). `crcmod` stands in where that package has
no wheel; the tests use it as an independent oracle. Pure function: any thread.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["crc32c"]


def _implementation() -> "Callable[..., int]":
    try:
        from crc32c import crc32c as hardware
    except ImportError:
        import crcmod.predefined

        software = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
        return lambda data, crc=0: int(software(bytes(data), crc))
    return hardware


crc32c = _implementation()
"""CRC-32C of `data` (any contiguous buffer), as an unsigned 32-bit integer.

A second argument is the CRC of what comes before `data`.
"""
