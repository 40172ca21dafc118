"""Cuts ranges of offsets into more Spark tasks than there are partitions, or fewer.

Owns the arithmetic of the options `minPartitions` and `maxRecordsPerPartition`, which is that of
Spark's Kafka connector, and of `maxPartitionsPerTask`. Functions of their arguments; called on the
driver. Sizes are in offsets, which compaction and transaction markers may make more than records.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_kafkalog.source.partitions import OffsetRange

FEW_OFFSETS = 50_000
"""Ranges that are shorter together may share a task: a task costs a tenth of a second by itself."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """What a read was asked for; None where nothing is to be split, 1 where nothing shared."""

    min_partitions: int | None = None
    max_records: int | None = None
    max_ranges_per_task: int = 1


def plan_tasks(ranges: Sequence[OffsetRange], splitting: Splitting) -> list[list[OffsetRange]]:
    """The ranges of each Spark task; at least `min_partitions` tasks if the pieces suffice."""
    pieces = split_ranges(ranges, splitting)
    most = splitting.max_ranges_per_task
    if splitting.min_partitions is not None:
        most = min(most, max(1, len(pieces) // splitting.min_partitions))
    return share_tasks(pieces, most)


def share_tasks(
    ranges: Sequence[OffsetRange], most_ranges: int = sys.maxsize, few_offsets: int = FEW_OFFSETS
) -> list[list[OffsetRange]]:
    """Short ranges together, at most `most_ranges` in a task, long ones alone; no empty ones."""
    tasks: list[list[OffsetRange]] = []
    room = 0
    for piece in ranges:
        if not piece.offset_count:
            continue
        if piece.offset_count > room or len(tasks[-1]) >= most_ranges:
            tasks.append([])
            room = few_offsets
        tasks[-1].append(piece)
        room -= piece.offset_count
    return tasks


def split_ranges(ranges: Sequence[OffsetRange], splitting: Splitting) -> list[OffsetRange]:
    """`ranges`, those that are long in pieces, in the same order; none of them is empty.

    First each range is cut into equal pieces of at most `max_records`. Where there are then fewer
    than `min_partitions`, the larger ones are cut in proportion to their sizes; rounding makes that
    about as many as were asked for, sometimes less.
    """
    pieces = [piece for piece in ranges if piece.offset_count]
    if splitting.max_records is not None:
        pieces = [
            part
            for piece in pieces
            for part in _parts(piece, -(-piece.offset_count // splitting.max_records))
        ]
    if splitting.min_partitions is None or len(pieces) >= splitting.min_partitions:
        return pieces
    return list(_split_the_large(pieces, splitting.min_partitions))


def _split_the_large(pieces: list[OffsetRange], min_partitions: int) -> Iterator[OffsetRange]:
    total = sum(piece.offset_count for piece in pieces)
    small = [p for p in pieces if _part_count(p.offset_count, total, min_partitions) == 1]
    # What stays whole is left out of the proportions: the large ones share the other tasks.
    whole = {piece.topic_partition for piece in small}
    rest = total - sum(piece.offset_count for piece in small)
    tasks = max(min_partitions - len(small), 1)
    for piece in pieces:
        if piece.topic_partition in whole:
            yield piece
        else:
            yield from _parts(piece, _part_count(piece.offset_count, rest, tasks))


def _part_count(size: int, total: int, tasks: int) -> int:
    return max(math.floor(size / total * tasks + 0.5), 1)


def _parts(whole: OffsetRange, count: int) -> Iterator[OffsetRange]:
    """`count` pieces of about the same size, the larger ones last; fewer where it is shorter."""
    start = whole.start_offset
    for left in range(count, 0, -1):
        until = start + (whole.until_offset - start) // left
        if until > start:
            yield OffsetRange(whole.topic, whole.partition, start, until)
        start = until
