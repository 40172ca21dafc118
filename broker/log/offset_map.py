"""OffsetMap: the latest offset of each key, in a buffer of a size that is fixed beforehand.

An entry takes 24 bytes: the MD5 digest of the key (16) and an offset (int64). The key itself is not
kept, so that memory depends on the number of keys and not on their length; two keys with one digest
would be taken for one key, which MD5 makes as unlikely as Apache Kafka's cleaner finds acceptable
(its map does the same). Open addressing with double hashing over a prime number of slots; an empty
slot is all zeros. Nothing is ever removed but by `clear`.

A dict of digests would be quicker and take about 180 bytes an entry, which nobody could bound by a
property; numpy looks up single entries more slowly than a bytearray. One thread.
"""

import hashlib
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRY_BYTES = 24
NO_OFFSET = -1

_DIGEST_BYTES = 16
_NO_DIGEST = bytes(_DIGEST_BYTES)
_PRIME_GAP = 512
"""More than lies between any two primes below 2^40."""
_HALVES = struct.Struct("<QQ")
_OFFSET = struct.Struct("<q")


class OffsetMap:
    """Key to offset."""

    def __init__(self, buffer_bytes: int, load_factor: float, most_entries: int) -> None:
        """At most `load_factor` of the slots that fit in `buffer_bytes` are filled. No more memory
        is taken than `most_entries` need."""
        fitting_slots = buffer_bytes // ENTRY_BYTES
        wanted_slots = int(most_entries / load_factor) + _PRIME_GAP
        self._slots = _prime_at_most(max(2, min(fitting_slots, wanted_slots)))
        self.capacity = max(1, min(int(self._slots * load_factor), self._slots - 1))
        self._buffer = bytearray(self._slots * ENTRY_BYTES)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self.capacity

    @property
    def size_bytes(self) -> int:
        return len(self._buffer)

    def put(self, key: "Buffer", offset: int) -> bool:
        """Makes `offset` the latest of `key`; False, and nothing done, for a new key when full."""
        digest = hashlib.md5(key, usedforsecurity=False).digest()
        position = self._find(digest)
        end = position + _DIGEST_BYTES
        buffer = self._buffer
        if buffer[position:end] != digest:
            if self._count >= self.capacity:
                return False
            self._count += 1
            buffer[position:end] = digest
        _OFFSET.pack_into(buffer, end, offset)
        return True

    def get(self, key: "Buffer") -> int:
        """The latest offset of `key`; -1 when it is not here."""
        digest = hashlib.md5(key, usedforsecurity=False).digest()
        position = self._find(digest)
        end = position + _DIGEST_BYTES
        if self._buffer[position:end] != digest:
            return NO_OFFSET
        offset: int = _OFFSET.unpack_from(self._buffer, end)[0]
        return offset

    def _find(self, digest: bytes) -> int:
        """The position of the slot that holds `digest`, or of the empty one where it belongs."""
        buffer = self._buffer
        slots = self._slots
        first, second = _HALVES.unpack(digest)
        slot = first % slots
        position: int = slot * ENTRY_BYTES
        found = buffer[position : position + _DIGEST_BYTES]
        if found in (digest, _NO_DIGEST):
            return position
        step = 1 + second % (slots - 1)
        while True:
            slot = (slot + step) % slots
            position = slot * ENTRY_BYTES
            found = buffer[position : position + _DIGEST_BYTES]
            if found in (digest, _NO_DIGEST):
                return position


def _prime_at_most(number: int) -> int:
    """The largest prime that is not above `number`, which is at least 2."""
    while not _is_prime(number):
        number -= 1
    return number


def _is_prime(number: int) -> bool:
    if number % 2 == 0:
        return number == 2
    divisor = 3
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 2
    return True
