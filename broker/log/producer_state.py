"""What the log knows of its producers: enough to refuse a repeated or skipped batch, and to tell
which transactions are open.

For each producer id: its epoch and its last five batches (a producer has at most five requests in
flight). A batch that equals one of them is a retry of what is in the log already, unless that was
aborted; one that does not continue the sequence is refused. What a coordinator writes in a
producer's name has no sequence numbers (-1), and is neither. A transaction is open from its
producer's first transactional batch to the marker that ends it; nothing from the first open one on
is stable. The state follows from the log: recovery replays batch headers and markers onto the
newest snapshot at or before the end.

A snapshot `<offset in 20 digits>.snapshot` holds the state of everything below its offset, in
Apache Kafka's format (ProducerSnapshot, version 1), big-endian:

    version int16 = 1, crc uint32 (CRC-32C of all that follows), entry count int32, then each
    producer id int64, epoch int16, last sequence int32, last offset int64, offset delta int32,
    timestamp int64, coordinator epoch int32, first offset of the open transaction int64 (-1)

It keeps one batch of the five. Taken when the log rolls and when it closes; not synced here, the
log's flush does that. Changes under the log's lock; `entries` is for the event loop. Never reads a
segment.
"""

import logging
import struct
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from kafka.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    TransactionCoordinatorFencedError,
    UnknownProducerIdError,
)

from broker.log.files import Files
from broker.log.names import SNAPSHOT_SUFFIX
from pyspark_kafkalog.record.batch import NO_SEQUENCE, BatchHeader
from pyspark_kafkalog.record.control import TransactionMarker
from pyspark_kafkalog.record.crc import crc32c

_log = logging.getLogger(__name__)

BATCHES_KEPT: Final = 5
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_END: Final = 6
_NO_TRANSACTION: Final = -1
_SEQUENCES: Final = 2**31
_EPOCH_BUMP_VERSION: Final = 2
_LAST_EPOCH: Final = 2**15 - 1


class BatchMetadata(NamedTuple):
    """One batch in the log, as its producer numbered it."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % _SEQUENCES

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class CompletedTransaction(NamedTuple):
    """A transaction whose marker is in the log, at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


@dataclass(slots=True)
class ProducerStateEntry:
    """What a log knows of one producer: its newest batches, and the transaction that is open."""

    producer_epoch: int
    last_seen_ms: int
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    coordinator_epoch: int = -1
    current_txn_first_offset: int = _NO_TRANSACTION
    aborted: frozenset[int] = frozenset()
    """The last offsets of those batches whose transactions were aborted."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class TransactionWatch:
    """Whether a producer's transaction has ended in a log, perhaps one that wrote nothing there,
    since the watch began."""

    __slots__ = ("has_ended",)

    def __init__(self) -> None:
        self.has_ended = False


class ProducerStateManager:
    """The producers of one log."""

    def __init__(self, directory: Path, files: Files) -> None:
        self.directory = directory
        self._files = files
        self._entries: dict[int, ProducerStateEntry] = {}
        # First offset to producer id, ascending, since a transaction begins at the log's end.
        self._open: dict[int, int] = {}
        self._completed: list[CompletedTransaction] = []
        self._watches: dict[int, list[TransactionWatch]] = {}

    @property
    def entries(self) -> dict[int, ProducerStateEntry]:
        return self._entries

    def check(self, header: BatchHeader) -> BatchMetadata | None:
        """None when the batch may be appended; what is in the log when it is a retry of that.

        Raises InvalidProducerEpochError for a producer that a newer one replaced,
        OutOfOrderSequenceNumberError for a batch that does not follow the last one,
        UnknownProducerIdError for one with the numbers of what was aborted, of which transactional
        producers make an abort and a new epoch, and InvalidTxnStateError for one outside the
        transaction that its producer has open.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return None
        if entry.current_txn_first_offset >= 0 and not header.is_transactional:
            raise InvalidTxnStateError(
                f"producer {header.producer_id} has a transaction open and sent a batch outside it"
            )
        if header.producer_epoch < entry.producer_epoch:
            raise InvalidProducerEpochError(
                f"producer {header.producer_id} has epoch {header.producer_epoch}, "
                f"the log has seen {entry.producer_epoch}"
            )
        if header.base_sequence == NO_SEQUENCE:
            return None
        if header.producer_epoch > entry.producer_epoch:
            if header.base_sequence:
                raise _out_of_order(header, "0, as the epoch is new")
            return None
        return _repeated(header, entry)

    def check_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: TransactionMarker,
        transaction_version: int = 0,
    ) -> None:
        """Raises InvalidProducerEpochError and TransactionCoordinatorFencedError for a marker that
        comes too late: from a time when the producer, or the coordinator, was an older one.

        From transaction version 2 on the epoch grows with each end: a marker in the epoch of an
        open transaction belongs to the one before it (KIP-1228).
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        is_of_the_one_before = (
            transaction_version >= _EPOCH_BUMP_VERSION
            and producer_epoch == entry.producer_epoch < _LAST_EPOCH
            and entry.current_txn_first_offset >= 0
        )
        if producer_epoch < entry.producer_epoch or is_of_the_one_before:
            raise InvalidProducerEpochError(
                f"the marker for producer {producer_id} has epoch {producer_epoch}, "
                f"the log has seen {entry.producer_epoch}"
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"the marker for producer {producer_id} comes from coordinator epoch "
                f"{marker.coordinator_epoch}, the log has seen {entry.coordinator_epoch}"
            )

    @property
    def has_unstable(self) -> bool:
        """Whether `first_unstable_offset` may find something; without the log's lock."""
        return bool(self._open or self._completed)

    def knows(self, producer_id: int) -> bool:
        """Whether the producer has written here, and is not forgotten."""
        return producer_id in self._entries

    def has(self, producer_id: int, producer_epoch: int, sequence: int) -> bool:
        """Whether the producer, in this epoch, has come as far as that number."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.producer_epoch != producer_epoch or not entry.batches:
            return False
        return (entry.last_sequence - sequence) % _SEQUENCES < _SEQUENCES // 2

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer, in this epoch, has a transaction open here."""
        entry = self._entries.get(producer_id)
        return (
            entry is not None
            and entry.current_txn_first_offset >= 0
            and entry.producer_epoch == producer_epoch
        )

    def watch(self, producer_id: int) -> TransactionWatch:
        """For who asks a coordinator whether the producer's transaction is open: it may end before
        the answer is there. `unwatch` is to follow."""
        watch = TransactionWatch()
        self._watches.setdefault(producer_id, []).append(watch)
        return watch

    def unwatch(self, producer_id: int, watch: TransactionWatch) -> None:
        watches = self._watches[producer_id]
        watches.remove(watch)
        if not watches:
            del self._watches[producer_id]

    def aborts(self, producer_id: int, marker: TransactionMarker) -> bool:
        """Whether the marker would abort records of this log."""
        entry = self._entries.get(producer_id)
        return entry is not None and not marker.is_commit and entry.current_txn_first_offset >= 0

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of a transaction that is open, or whose marker is not committed yet."""
        self._completed = [done for done in self._completed if done.last_offset >= high_watermark]
        first_open = next(iter(self._open), None)
        if not self._completed:
            return first_open
        first_completed = min(done.first_offset for done in self._completed)
        return first_completed if first_open is None else min(first_open, first_completed)

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """Up to where everything is decided once `completed` is, as the marker's index entry says:
        the first open transaction, or the offset after the marker."""
        return next(iter(self._open), completed.last_offset + 1)

    def update(
        self, header: BatchHeader, now_ms: int, marker: TransactionMarker | None = None
    ) -> CompletedTransaction | None:
        """Takes in a batch that is in the log; `marker` is what a control batch says. Returns the
        transaction that it ended. Batches without a producer id change nothing."""
        if header.producer_id < 0:
            return None
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = ProducerStateEntry(header.producer_epoch, now_ms)
            self._entries[header.producer_id] = entry
        elif entry.producer_epoch != header.producer_epoch:
            entry.producer_epoch = header.producer_epoch
            entry.batches.clear()
            entry.aborted = frozenset()
        entry.last_seen_ms = now_ms
        if not header.is_control:
            entry.batches.append(
                BatchMetadata(
                    _last_sequence(header),
                    header.last_offset,
                    header.last_offset_delta,
                    header.max_timestamp_ms,
                )
            )
            if header.is_transactional and entry.current_txn_first_offset < 0:
                entry.current_txn_first_offset = header.base_offset
                self._open[header.base_offset] = header.producer_id
        return None if marker is None else self._end_transaction(header, entry, marker)

    def _end_transaction(
        self, header: BatchHeader, entry: ProducerStateEntry, marker: TransactionMarker
    ) -> CompletedTransaction | None:
        for watch in self._watches.get(header.producer_id, ()):
            watch.has_ended = True
        entry.coordinator_epoch = marker.coordinator_epoch
        first_offset = entry.current_txn_first_offset
        if first_offset < 0:  # a transaction that wrote nothing here
            return None
        entry.current_txn_first_offset = _NO_TRANSACTION
        if not marker.is_commit:
            offsets = [batch.last_offset for batch in entry.batches]
            entry.aborted = frozenset(
                offset for offset in offsets if offset >= first_offset or offset in entry.aborted
            )
        self._open.pop(first_offset, None)
        completed = CompletedTransaction(
            header.producer_id, first_offset, header.last_offset, not marker.is_commit
        )
        self._completed.append(completed)
        return completed

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets producers that appended nothing for `expiration_ms` and have nothing open."""
        expired = [
            producer_id
            for producer_id, entry in self._entries.items()
            if now_ms - entry.last_seen_ms >= expiration_ms and entry.current_txn_first_offset < 0
        ]
        for producer_id in expired:
            del self._entries[producer_id]

    def clear(self) -> None:
        self._entries = {}
        self._open = {}
        self._completed = []

    # Snapshots.

    def snapshot_path(self, offset: int) -> Path:
        return self.directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"

    def take_snapshot(self, offset: int) -> None:
        """Writes the state of everything below `offset`."""
        body = [self._encode(producer_id, entry) for producer_id, entry in self._entries.items()]
        checked = struct.pack(">i", len(body)) + b"".join(body)
        data = struct.pack(">hI", _VERSION, crc32c(checked)) + checked
        self._files.replace(self.snapshot_path(offset), data, sync=False)

    def snapshot_offsets(self) -> list[int]:
        """Of the snapshots on disk, ascending."""
        return sorted(
            int(name.removesuffix(SNAPSHOT_SUFFIX))
            for name in self._files.list(self.directory)
            if name.endswith(SNAPSHOT_SUFFIX) and name.removesuffix(SNAPSHOT_SUFFIX).isdigit()
        )

    def load_newest(self, least_offset: int, most_offset: int, now_ms: int) -> int:
        """Loads the newest usable snapshot from `least_offset` to `most_offset`; returns its
        offset, or `least_offset` with an empty state. Removes damaged ones and later ones."""
        self.clear()
        for offset in reversed(self.snapshot_offsets()):
            if offset > most_offset:
                self._files.remove(self.snapshot_path(offset))
                continue
            if offset < least_offset:
                break
            if self._load(offset, now_ms):
                return offset
            _log.warning("snapshot.damaged path=%s action=removed", self.snapshot_path(offset))
            self._files.remove(self.snapshot_path(offset))
        return least_offset

    def remove_snapshots(self, *, below: int = 0, keep: frozenset[int] | None = None) -> None:
        """Removes snapshots below an offset and, when `keep` is given, all others but the newest
        and those in it."""
        offsets = self.snapshot_offsets()
        for offset in offsets:
            is_stray = keep is not None and offset not in keep and offset != offsets[-1]
            if offset < below or is_stray:
                self._files.remove(self.snapshot_path(offset))

    def _load(self, offset: int, now_ms: int) -> bool:
        data = self._files.read(self.snapshot_path(offset))
        if len(data) < _HEAD.size:
            return False
        version, crc, count = _HEAD.unpack_from(data)
        size_bytes = _HEAD.size + count * _ENTRY.size
        if version != _VERSION or len(data) != size_bytes or crc32c(data[_CRC_END:]) != crc:
            return False
        for fields in _ENTRY.iter_unpack(data[_HEAD.size :]):
            producer_id, epoch, sequence, last_offset, delta, timestamp_ms, coordinator, txn = (
                fields
            )
            entry = ProducerStateEntry(
                epoch, now_ms, coordinator_epoch=coordinator, current_txn_first_offset=txn
            )
            if last_offset >= 0:
                entry.batches.append(BatchMetadata(sequence, last_offset, delta, timestamp_ms))
            self._entries[producer_id] = entry
        self._open = dict(
            sorted(
                (entry.current_txn_first_offset, producer_id)
                for producer_id, entry in self._entries.items()
                if entry.current_txn_first_offset >= 0
            )
        )
        return True

    def _encode(self, producer_id: int, entry: ProducerStateEntry) -> bytes:
        last = entry.batches[-1] if entry.batches else BatchMetadata(NO_SEQUENCE, -1, 0, -1)
        return _ENTRY.pack(
            producer_id,
            entry.producer_epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            last.timestamp_ms,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )


def _last_sequence(header: BatchHeader) -> int:
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES


def _repeated(header: BatchHeader, entry: ProducerStateEntry) -> BatchMetadata | None:
    """Of a batch in its producer's epoch: as `ProducerStateManager.check`."""
    last_sequence = _last_sequence(header)
    for batch in entry.batches:
        is_within = (header.base_sequence - batch.first_sequence) % _SEQUENCES <= batch.offset_delta
        if is_within and batch.last_offset in entry.aborted:
            # A new one: librdkafka numbers so what comes after it has aborted what is in the log,
            # and whose answer it had lost. To say that it is there would lose it.
            raise UnknownProducerIdError(
                f"producer {header.producer_id} sent sequence {header.base_sequence}, which was "
                "aborted; it is to begin a new epoch"
            )
        if batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence:
            return batch
    expected = (entry.last_sequence + 1) % _SEQUENCES
    if header.base_sequence != expected:
        raise _out_of_order(header, str(expected))
    return None


def _out_of_order(header: BatchHeader, expected: str) -> OutOfOrderSequenceNumberError:
    return OutOfOrderSequenceNumberError(
        f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence "
        f"{header.base_sequence}, expected {expected}"
    )
