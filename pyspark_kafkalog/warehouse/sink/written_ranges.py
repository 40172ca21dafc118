"""Which offsets a write of rows passes, and whether it may: no record is to be left out unseen.

Rows alone do not say which offsets were read: those between two rows, or before the first, may have
been filtered away, be no records at all (transaction markers, compaction), or never have been
read. What a micro-batch reads is in its checkpoint, but for where the first one began; of a batch
write it is in no place. There the rows have to go on where the load's name does, or where the log
begins if the topic is new to the name, or startingOffsets has to say where the read began.

A place may be older than what was read: places that moved with rows alone (by earlier releases,
with uncheckedOffsets, by batch writes) lag behind a checkpoint where rows were filtered away. So
startingOffsets that names just that place is believed in later micro-batches, too.

Plain functions, on the driver; ask nobody.
"""

import json
import logging
from dataclasses import dataclass, field

from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.source.offsets import (
    EARLIEST,
    LATEST,
    Limit,
    OffsetLimit,
    Offsets,
    describe,
    to_json,
)
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.sink.micro_batch import MicroBatch
from pyspark_kafkalog.warehouse.sink.row_places import Spans

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Begins:
    """Where the read of a write began, as far as that is known: `starting` is what the user says on
    the write, `earliest` where logs began when it was planned, as far as brokers said so. Holes are
    errors if `fail_on_data_loss`; with `only_rows_tell`, an earliest offset that nobody said is 0.
    """

    starting: Limit | None = None
    earliest: Offsets = field(default_factory=dict)
    fail_on_data_loss: bool = True
    only_rows_tell: bool = False

    def says(self, topic_partition: TopicPartition) -> bool:
        """Whether the user says where the read of `topic_partition` begins."""
        return self.starting is not None and self.starting.names(topic_partition)

    def named(self, topic_partition: TopicPartition) -> int | None:
        """The offset that the user gives for this very partition."""
        if not isinstance(self.starting, OffsetLimit):
            return None
        return self.starting.named_offsets().get(topic_partition)

    def of(self, topic_partition: TopicPartition) -> int | None:
        """The offset; None where it is not known."""
        if not isinstance(self.starting, OffsetLimit) or not self.says(topic_partition):
            return None
        offset = self.starting.of([topic_partition])[topic_partition]
        if offset == LATEST:
            return None
        if offset == EARLIEST:
            return self.earliest.get(topic_partition, 0 if self.only_rows_tell else None)
        return offset


@dataclass(frozen=True, slots=True)
class _Hole:
    """Offsets before a write that nobody is known to have read."""

    topic_partition: TopicPartition
    place: int | None
    goes_on: int
    start: int


def written_ranges(
    name: str, next_offsets: Offsets, seen: Spans, batch: MicroBatch | None, begins: Begins
) -> list[OffsetRange]:
    """The ranges by which load `name`, which goes on at `next_offsets`, moves with a write whose
    rows are at the places `seen`: up to where the micro-batch reads, or else to after its rows.

    Raises DataLossError for offsets between that nobody has read; where these may be lost, ranges
    leave them out.
    """
    topics = {each.topic for each in next_offsets}
    untils = {each: span.last + 1 for each, span in seen.items()}
    if batch is not None:
        untils |= {each: until for each, until in batch.untils.items() if each not in batch.unequal}
    is_later = batch is not None and not batch.is_first
    ranges = []
    holes = []
    for topic_partition, until in sorted(untils.items()):
        place = next_offsets.get(topic_partition)
        if place is not None and until <= place:
            continue
        start = _start(topic_partition, until, seen, batch, begins)
        goes_on = (
            _new_place(topic_partition, start, topic_partition.topic in topics, begins)
            if place is None
            else place
        )
        if goes_on < start and is_later and begins.named(topic_partition) == place is not None:
            _log.warning(
                "Load %r goes on at offset %d of %s, the micro-batch reads from offset %d on: what "
                "is between is taken for read, because startingOffsets names that place.",
                *(name, goes_on, describe([topic_partition]), start),
            )
            start = goes_on
        if goes_on < start:
            holes.append(_Hole(topic_partition, place, goes_on, start))
            ranges.append(OffsetRange.of(topic_partition, goes_on, goes_on))
        ranges.append(OffsetRange.of(topic_partition, max(goes_on, start), until))
    if holes:
        _report(name, holes, is_later, begins.fail_on_data_loss)
    return ranges


def quiet_places(
    next_offsets: Offsets, ranges: list[OffsetRange], begins: Begins
) -> list[OffsetRange]:
    """Ranges of no offsets: where the partitions begin that gave no row, of topics that are new
    with `ranges`. Without a place they would be taken for partitions that retention trimmed since;
    those that begin at 0 need none."""
    new = {piece.topic for piece in ranges} - {each.topic for each in next_offsets}
    moved = {piece.topic_partition for piece in ranges}
    quiet = [each for each in begins.earliest if each.topic in new and each not in moved]
    places = {
        each: begins.of(each) if begins.says(each) else begins.earliest[each] for each in quiet
    }
    return [OffsetRange.of(each, n, n) for each, n in places.items() if n]


def _start(
    topic_partition: TopicPartition,
    until: int,
    seen: Spans,
    batch: MicroBatch | None,
    begins: Begins,
) -> int:
    """Where the read of a partition began at the latest."""
    first_row = seen[topic_partition].first if topic_partition in seen else until
    start = None if batch is None else batch.start_of(topic_partition)
    if start is not None:
        return min(first_row, start)
    said = begins.of(topic_partition)
    if said is None:
        return first_row
    return min(first_row, said)


def _new_place(topic_partition: TopicPartition, start: int, is_known: bool, begins: Begins) -> int:
    """Where a load goes on in a partition without a place, whose read began at `start` or before.

    Where the user says, for this partition or for a topic that is new to the name; else such a
    topic begins where its log does, and a partition that is new in a topic with a place at 0.
    """
    place: int | None = 0
    if begins.named(topic_partition) is not None:
        place = begins.named(topic_partition)
    elif not is_known:
        place = (
            begins.of(topic_partition)
            if begins.says(topic_partition)
            else begins.earliest.get(topic_partition, 0)
        )
    return start if place is None else min(place, start)


def _report(name: str, holes: list[_Hole], is_later: bool, fail_on_data_loss: bool) -> None:
    hole = holes[0]
    is_new = hole.place is None
    what = (
        f"Load {name!r} goes on at offset {hole.goes_on} of {describe([hole.topic_partition])}"
        f"{', which is new to it,' if is_new else ','} and the rows to be written were read from "
        f"offset {hole.start} on, as far as is known: the records between would be left out."
    )
    if len(holes) > 1:
        what += f" The same holds for {describe(each.topic_partition for each in holes[1:])}."
    if not fail_on_data_loss:
        _log.warning("%s Going on without them, because failOnDataLoss is false.", what)
        return
    if is_later:
        told = {
            each.topic_partition: each.start if each.place is None else each.place for each in holes
        }
        way = (
            "The query's checkpoint is ahead of this target. Either (1) a new source of the query "
            "begins there, or they were read and their rows filtered out, and the target only "
            "followed the rows that came: under an earlier release, with uncheckedOffsets, or by a "
            "batch write of this name. Then set the option "
            f"startingOffsets of the write to '{json.dumps(to_json(told))}' until this micro-batch "
            "is through. Or (2) the target is new, or was restored. Then begin the query with a "
            "new checkpoint, and read from where the load goes on (pyspark_kafkalog.loaded_offsets "
            "tells)."
        )
    else:
        way = (
            "Read from where the load goes on (pyspark_kafkalog.loaded_offsets tells). If "
            "the read began there, and its rows were filtered or lie after transaction markers, "
            "or if a load of a new name is to begin where this read does, set the option "
            "startingOffsets of the read on the write, too."
        )
    raise DataLossError(
        f"{what} {way} To give the records up, set the option failOnDataLoss of the write to false."
    )
