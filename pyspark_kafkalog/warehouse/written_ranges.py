"""Which offsets a write of rows passes, and whether it may: no record is to be left out unseen.

Rows alone do not say which offsets were read: those between two rows, or before the first, may have
been filtered away, be no records at all (transaction markers, compaction), or never have been
read. What a micro-batch reads is in its checkpoint, but for where the first one began; of a batch
write it is in no place. There the rows have to go on where the load's name does, or the option
startingOffsets has to say where the read began.

Plain functions, on the driver; ask nobody.
"""

import logging
from dataclasses import dataclass, field

from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.source.offsets import EARLIEST, LATEST, Limit, OffsetLimit, Offsets, describe
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.micro_batch import MicroBatch
from pyspark_kafkalog.warehouse.row_places import Spans

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Begins:
    """Where the read of a write began, as far as that is known: `starting` is what the user says on
    the write, `earliest` where the logs of topics with a place begin. Holes are errors if
    `fail_on_data_loss`."""

    starting: Limit | None = None
    earliest: Offsets = field(default_factory=dict)
    fail_on_data_loss: bool = True

    def says(self, tp: TopicPartition) -> bool:
        """Whether the user says where the read of `tp` begins."""
        return self.starting is not None and self.starting.names(tp)

    def of(self, tp: TopicPartition) -> int | None:
        """The offset; None where it is not known."""
        if not isinstance(self.starting, OffsetLimit) or not self.says(tp):
            return None
        offset = self.starting.of([tp])[tp]
        if offset == LATEST:
            return None
        return self.earliest.get(tp, 0) if offset == EARLIEST else offset


def written_ranges(
    name: str, next_offsets: Offsets, seen: Spans, batch: MicroBatch | None, begins: Begins
) -> list[OffsetRange]:
    """The ranges by which load `name`, which goes on at `next_offsets`, moves with a write whose
    rows are at the places `seen`: up to where the micro-batch reads, or else to behind its rows.

    Raises DataLossError for offsets between that nobody has read; where these may be lost, ranges
    leave them out.
    """
    topics = {tp.topic for tp in next_offsets}
    untils = {tp: span.last + 1 for tp, span in seen.items()}
    if batch is not None:
        untils |= {tp: until for tp, until in batch.untils.items() if tp not in batch.unequal}
    ranges = []
    for tp, until in sorted(untils.items()):
        if tp in next_offsets and until <= next_offsets[tp]:
            continue
        goes_on = next_offsets.get(tp, 0 if tp.topic in topics else None)
        start = _start(tp, until, seen, batch, begins)
        if goes_on is None and (start == 0 or begins.says(tp)):
            goes_on = start
        goes_on = goes_on or 0
        if goes_on < start:
            _report_hole(name, tp, goes_on, start, begins)
            ranges.append(OffsetRange(tp.topic, tp.partition, goes_on, goes_on))
        ranges.append(OffsetRange(tp.topic, tp.partition, max(goes_on, start), until))
    return ranges


def _start(
    tp: TopicPartition, until: int, seen: Spans, batch: MicroBatch | None, begins: Begins
) -> int:
    """Where the read of a partition began at the latest."""
    first_row = seen[tp].first if tp in seen else until
    if batch is not None and not batch.is_first:
        return min(first_row, batch.starts.get(tp, 0))
    said = begins.of(tp)
    if said is None:
        return first_row
    return min(first_row, said)


def _report_hole(name: str, tp: TopicPartition, goes_on: int, start: int, begins: Begins) -> None:
    what = (
        f"Load {name!r} goes on at offset {goes_on} of {describe([tp])}, and as far as is known "
        f"what is written was read from offset {start} on: the records between would be left out."
    )
    if begins.fail_on_data_loss:
        raise DataLossError(
            f"{what} Read from where the load goes on (pyspark_kafkalog.loaded_offsets tells). If "
            "the read began there, and its rows were filtered or lie behind transaction markers, "
            "or if a load of a new name is to begin where this read does, set the option "
            "startingOffsets of the read on the write, too. To give the records up, set the option "
            "failOnDataLoss of the write to false."
        )
    _log.warning("%s Going on without them, because failOnDataLoss is false.", what)
