"""Which batches of transactions compaction may drop: the records of aborted ones, and markers of
which no batch is left.

Fed with every batch of a stretch of the log, in order, and the aborted transactions that have to do
with it (from the `.txnindex` files; KIP-98). A marker goes only in a pass that met no batch of its
transaction: while one is left, perhaps emptied, a reader and the recovery need to know its end.
One thread; one pass over the log.
"""

from collections import deque
from collections.abc import Iterable

from broker.log.transaction_index import AbortedTransaction
from pyspark_kafkalog.record.batch import BatchHeader
from pyspark_kafkalog.record.control import TransactionMarker


class CleanedTransactions:
    """One pass over a stretch of a log: which of its batches nobody will miss."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: those whose marker lies at or after the first batch that will be read."""
        self._coming = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._aborted: dict[int, AbortedTransaction] = {}
        self._seen_aborted: set[int] = set()
        self._seen_committed: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether this batch of data belongs to an aborted transaction."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._seen_aborted.add(header.producer_id)
            return True
        self._seen_committed.add(header.producer_id)
        return False

    def is_obsolete(self, header: BatchHeader, marker: TransactionMarker | None) -> bool:
        """Whether nothing of the transaction that this control batch ends was met. `marker` is
        None when the batch is empty, or holds a control record of another kind (never obsolete)."""
        self._advance(header.last_offset)
        if marker is None:
            return not header.record_count
        producer_id = header.producer_id
        if marker.is_commit:
            is_obsolete = producer_id not in self._seen_committed
            self._seen_committed.discard(producer_id)
            return is_obsolete
        aborted = self._aborted.pop(producer_id, None)
        if aborted is None or producer_id not in self._seen_aborted:
            return True
        self._seen_aborted.discard(producer_id)
        self._kept.append(aborted)
        return False

    def take_kept(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers were met since the last call, and stay: what the
        new segment's index has to say."""
        kept, self._kept = self._kept, []
        return kept

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            aborted = self._coming.popleft()
            self._aborted.setdefault(aborted.producer_id, aborted)
