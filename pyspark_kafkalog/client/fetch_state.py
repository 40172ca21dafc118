"""What a reader of a range of offsets knows, and what it makes of answers: no socket, no clock.

How much to ask for: enough for the rest of the range by what its offsets took so far, within limits
that grow where answers come late. What to believe: batches by their CRC, and by offsets that go on.
No checksum covers a batch's base offset: batches that do not follow each other without a gap are
believed when a second answer says the same, until that has happened a few times and the topic is
known to be compacted. Looks at batch headers only, never at records.
"""

import struct
import zlib
from typing import NamedTuple

from kafka.errors import CorruptRecordError

from pyspark_kafkalog.client.connection import LARGEST_FRAME_BYTES
from pyspark_kafkalog.record.batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
)
from pyspark_kafkalog.record.crc import crc32c

_LEAST_ASK_BYTES = 256 << 10
_FIRST_GUESS_BYTES_PER_OFFSET = 1024
_HEADROOM = 1.25
_MAGIC_2_BYTES = 27
_LEAST_LENGTH = 14
_LENGTH = struct.Struct(">i")
_ENTRY = struct.Struct(">qiib")
_CRC = struct.Struct(">I")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_ATTEMPTS_AT_GAPS = 5
_GAPS_THAT_MEAN_COMPACTION = 2


class WholeBatches(NamedTuple):
    """What an answer holds: `size_bytes` of whole batches; `next_offset` follows the last.

    `base_offsets` has each batch's first, and `epochs` that of the leader which took it; -1 before
    magic 2. They are seamless if each goes on where the one before ended.
    """

    size_bytes: int
    next_offset: int
    base_offsets: list[int]
    is_seamless: bool
    epochs: list[int]


class FetchState:
    """Where a reader is in `start_offset` up to, not including, `until_offset`. `position` is the
    next offset that was not handed out yet; it moves past `until_offset` where the last batch does.
    """

    def __init__(
        self, start_offset: int, until_offset: int, usual_bytes: int, largest_bytes: int
    ) -> None:
        """An answer has at most `usual_bytes`, and where answers come late `largest_bytes`."""
        self.position = start_offset
        self.until_offset = until_offset
        self._start_offset = start_offset
        self._usual_bytes = usual_bytes
        self._largest_bytes = largest_bytes
        self._most_bytes = usual_bytes
        self._bytes_per_offset: float = _FIRST_GUESS_BYTES_PER_OFFSET
        self._seen: list[list[int]] = []
        self._gaps_to_doubt = _GAPS_THAT_MEAN_COMPACTION

    @property
    def is_done(self) -> bool:
        return self.position >= self.until_offset

    def ask_bytes(self) -> int:
        """Enough for the rest of the range by what its offsets took so far, within the limit.

        A batch query split into many ranges, or a stream's small micro-batch, would otherwise
        fetch megabytes beyond its end, again and again.
        """
        rest = (self.until_offset - self.position) * self._bytes_per_offset * _HEADROOM
        return min(self._most_bytes, max(_LEAST_ASK_BYTES, int(min(rest, self._most_bytes))))

    def came_late(self) -> None:
        """The answer had not begun to arrive when its reader wanted it."""
        self._usual_bytes = min(2 * self._usual_bytes, self._largest_bytes)

    def look(self, records: memoryview) -> WholeBatches | None:
        """The whole batches that an answer holds, at least one; None where the position is to be
        asked for again. Raises CorruptRecordError."""
        whole = whole_batches(records, self.position)
        if not whole.size_bytes:
            self._ask_for_whole(records)
            return None
        if whole.next_offset <= self.position:
            raise CorruptRecordError("older batches only came")
        if self._is_doubtful(whole) and not self._is_confirmed(whole.base_offsets):
            return None
        return whole

    def move_past(self, whole: WholeBatches) -> None:
        self._bytes_per_offset = whole.size_bytes / (whole.next_offset - self.position)
        self._most_bytes = self._usual_bytes
        self._seen = []
        self.position = whole.next_offset

    def newest_epoch(self, whole: WholeBatches) -> int:
        """The newest leader's epoch of batches that begin in the range; -1 without any."""
        begins = zip(whole.base_offsets, whole.epochs, strict=True)
        return max((epoch for base, epoch in begins if base < self.until_offset), default=-1)

    def skip_rest(self) -> None:
        self.position = self.until_offset

    def _is_doubtful(self, whole: WholeBatches) -> bool:
        """Whether offsets are left out, or come again that were handed out before.

        A range may begin inside of a batch, whose place the batch after it confirms.
        """
        begins = whole.base_offsets[0]
        if begins < self.position == self._start_offset and len(whole.base_offsets) > 1:
            return not whole.is_seamless
        return begins != self.position or not whole.is_seamless

    def _is_confirmed(self, base_offsets: list[int]) -> bool:
        """Whether a doubtful answer may be believed: an earlier one agrees, as far as both reach.

        The position is asked for again otherwise.
        """
        if not self._gaps_to_doubt:
            return True
        if any(all(map(int.__eq__, seen, base_offsets)) for seen in self._seen):
            self._gaps_to_doubt -= 1
            return True
        self._seen.append(base_offsets)
        if len(self._seen) >= _ATTEMPTS_AT_GAPS:
            raise CorruptRecordError("each answer had batches at other offsets")
        return False

    def _ask_for_whole(self, records: memoryview) -> None:
        """A batch came cut off, which brokers since 0.10.1 do not do: asks for all of it."""
        if len(records) < LOG_OVERHEAD_BYTES:
            wanted_bytes = 2 * self._most_bytes
        else:
            wanted_bytes = LOG_OVERHEAD_BYTES + _LENGTH.unpack_from(records, 8)[0]
        if not self.ask_bytes() < wanted_bytes <= LARGEST_FRAME_BYTES:
            raise CorruptRecordError(
                f"{len(records)} bytes came of a batch that claims {wanted_bytes}"
            )
        self._most_bytes = self._bytes_per_offset = wanted_bytes


def whole_batches(records: memoryview, start_offset: int) -> WholeBatches:
    """The whole batches in `records`, which were asked for from `start_offset` on.

    Any message format: entries before magic 2 name their own last offset and not their first, which
    is taken to be where it should.
    Stops before what cannot be an entry, or is cut off. Raises CorruptRecordError if a
    batch's CRC does not match, and for batches whose offsets go back.
    """
    position, end, next_offset = 0, len(records), start_offset
    base_offsets: list[int] = []
    epochs: list[int] = []
    is_seamless = True
    while position + _MAGIC_2_BYTES <= end:
        base_offset, length, epoch, magic = _ENTRY.unpack_from(records, position)
        entry_end = position + LOG_OVERHEAD_BYTES + length
        if entry_end > end or length < _LEAST_LENGTH:
            break
        last_offset = base_offset
        if _crc_of(records, position, entry_end, magic):
            last_offset += _LAST_OFFSET_DELTA.unpack_from(records, position + 23)[0]
        else:
            base_offset, epoch = min(base_offset, next_offset), -1
        if base_offsets:
            if min(base_offset, last_offset) < next_offset:
                raise CorruptRecordError(f"offset {base_offset} came again after {next_offset - 1}")
            is_seamless = is_seamless and base_offset == next_offset
        base_offsets.append(base_offset)
        epochs.append(epoch)
        next_offset = max(next_offset, last_offset + 1)
        position = entry_end
    return WholeBatches(position, next_offset, base_offsets, is_seamless, epochs)


def _crc_of(records: memoryview, start: int, end: int, magic: int) -> bool:
    """Raises CorruptRecordError unless an entry has its CRC; True for a record batch (magic 2)."""
    if magic == MAGIC:
        (stated,) = _CRC.unpack_from(records, start + CRC_POSITION)
        actual = crc32c(records[start + ATTRIBUTES_POSITION : end])
    elif magic in (0, 1):
        (stated,) = _CRC.unpack_from(records, start + LOG_OVERHEAD_BYTES)
        actual = zlib.crc32(records[start + MAGIC_POSITION : end])
    else:
        raise CorruptRecordError(f"a batch came with magic {magic}")
    if actual != stated:
        raise CorruptRecordError(
            f"a batch has the CRC {actual:#010x}, its header says {stated:#010x}"
        )
    return magic == MAGIC
