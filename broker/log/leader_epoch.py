"""Which leader wrote which part of a log: the leader epochs and where each begins.

Kept in the log's `leader-epoch-checkpoint` file (format: see `checkpoint`), in memory as a
tuple that is replaced, never changed. Replicas agree by it on where their logs part (KIP-101).
The file is written without a sync on append (`flush` of the log syncs it): after a power loss
recovery takes missing epochs from the batch headers. Lookups: any thread; changes: under the
log's lock.
"""

from bisect import bisect_right
from pathlib import Path
from typing import Final, NamedTuple

from broker.log.checkpoint import CheckpointFile
from broker.log.files import Files

FILE_NAME: Final = "leader-epoch-checkpoint"
UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class EpochEntry(NamedTuple):
    """An epoch, and the first offset that its leader wrote."""

    epoch: int
    start_offset: int


class LeaderEpochFileCache:
    """A log's leader epochs, oldest first. Lookups: any thread; changes: under the log's lock."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._files = files
        self._entries: tuple[EpochEntry, ...] = ()
        self._is_dirty = False
        self.move_to(directory)

    def move_to(self, directory: Path) -> None:
        """The log's directory has this name now."""
        self._file = CheckpointFile(directory / FILE_NAME, self._files)

    def load(self) -> bool:
        """Reads the file; False when there was nothing usable."""
        rows = self._file.read(2)
        try:
            entries = tuple(EpochEntry(int(epoch), int(start)) for epoch, start in rows or ())
        except ValueError:
            return False
        if list(entries) != sorted(set(entries)):
            return False
        self._entries = entries
        return rows is not None

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return self._entries

    @property
    def latest_epoch(self) -> int | None:
        return self._entries[-1].epoch if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """From `start_offset` on, `epoch` writes. A known or negative epoch changes nothing; an
        entry that the new one contradicts is dropped."""
        if epoch < 0 or (self._entries and epoch == self._entries[-1].epoch):
            return
        kept = [
            entry
            for entry in self._entries
            if entry.epoch < epoch and entry.start_offset < start_offset
        ]
        self._replace((*kept, EpochEntry(epoch, start_offset)))

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch of the record at `offset`; None before the first known epoch."""
        slot = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[slot - 1].epoch if slot else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest epoch <= `epoch`, the offset where it ends), as OffsetForLeaderEpoch answers;
        (-1, -1) when nothing is known of it."""
        entries = self._entries
        if not entries or epoch < 0 or epoch > entries[-1].epoch:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        slot = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        if slot == len(entries):
            return entries[-1].epoch, log_end_offset
        if slot == 0:
            return epoch, entries[0].start_offset
        return entries[slot - 1].epoch, entries[slot].start_offset

    def truncate_from_end(self, offset: int) -> None:
        """The log ends at `offset` now: forgets epochs that begin at or after it."""
        if self._entries and self._entries[-1].start_offset >= offset:
            self._replace(tuple(e for e in self._entries if e.start_offset < offset))

    def truncate_from_start(self, offset: int) -> None:
        """The log begins at `offset` now: the epoch in force there begins there."""
        slot = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        if slot and self._entries[0].start_offset < offset:
            current = EpochEntry(self._entries[slot - 1].epoch, offset)
            self._replace((current, *self._entries[slot:]))

    def clear(self) -> None:
        if self._entries:
            self._replace(())

    def sync(self) -> None:
        """Forces the file to disk. Safe beside a change: then the change is synced next time."""
        if self._is_dirty:
            self._is_dirty = False
            self._files.open(self._file.path).sync()
            self._files.sync_directory(self._file.path.parent)

    def _replace(self, entries: tuple[EpochEntry, ...]) -> None:
        self._file.write(entries, sync=False)
        self._entries = entries
        self._is_dirty = True
