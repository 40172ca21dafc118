"""What of a load is done at a time: portions of the log by their bytes, tasks by their offsets.

A load takes about max_bytes, each commit of it about chunk_bytes, and each Spark task pieces of a
bounded number of offsets. Bytes are those of the log, compressed where they are, and estimated from
a look at the batches that come next (client/sizes.py).

Runs on the driver, with a Cluster handed in.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.sizes import sample_sizes
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.splitting import FEW_OFFSETS as FEW_OFFSETS
from pyspark_kafkalog.source.splitting import share_tasks
from pyspark_kafkalog.source.trigger_limits import OffsetSizes, limit_untils_by_bytes

MOST_OFFSETS_PER_TASK = 5_000_000
"""A longer range is split, so that one large partition keeps more than one core busy."""


def bytes_of(cluster: Cluster, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, int]:
    """About how many bytes of the log the ranges are, one for each partition; empty if no broker
    tells."""
    starts = {piece.topic_partition: piece.start_offset for piece in ranges if piece.offset_count}
    sizes = OffsetSizes()
    samples = sample_sizes(cluster, starts)
    if not samples:
        return {}
    sizes.update(samples)
    of_each = sizes.of(starts)
    counts = {piece.topic_partition: piece.offset_count for piece in ranges}
    return {each: round(of_each[each] * counts[each]) for each in starts}


def within_bytes(
    cluster: Cluster, ranges: Sequence[OffsetRange], max_bytes: int
) -> list[OffsetRange]:
    """As much of `ranges`, one for each partition beside those of no offsets, as comes to about
    `max_bytes`: the same part of each, one offset at least."""
    full = [piece for piece in ranges if piece.offset_count]
    starts = {piece.topic_partition: piece.start_offset for piece in full}
    untils = {piece.topic_partition: piece.until_offset for piece in full}
    sizes = OffsetSizes()
    sizes.update(sample_sizes(cluster, starts))
    limited = limit_untils_by_bytes(max_bytes, starts, untils, sizes.of(starts))
    return [
        replace(piece, until_offset=limited[piece.topic_partition]) if piece.offset_count else piece
        for piece in ranges
    ]


def rest_of(ranges: Sequence[OffsetRange], taken: Sequence[OffsetRange]) -> list[OffsetRange]:
    """What is left of `ranges` when `taken`, which begin where they do, are done."""
    untils = {piece.topic_partition: piece.until_offset for piece in taken}
    return [
        replace(piece, start_offset=untils[piece.topic_partition])
        for piece in ranges
        if untils[piece.topic_partition] < piece.until_offset
    ]


def chunks_of(
    ranges: Sequence[OffsetRange],
    take: Callable[[Sequence[OffsetRange]], list[OffsetRange]] | None,
) -> Iterator[list[OffsetRange]]:
    """`ranges` in portions, each of which is what `take` takes of what is left; in one if None."""
    left = list(ranges)
    while left:
        chunk = left if take is None else take(left)
        left = rest_of(left, chunk)
        yield chunk


def pieces_of(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """`ranges` in pieces of at most MOST_OFFSETS_PER_TASK; empty ones stay."""
    return [piece for whole in ranges for piece in _cut(whole)]


def _cut(whole: OffsetRange) -> Iterator[OffsetRange]:
    if not whole.offset_count:
        yield whole
    for start in range(whole.start_offset, whole.until_offset, MOST_OFFSETS_PER_TASK):
        until = min(start + MOST_OFFSETS_PER_TASK, whole.until_offset)
        yield OffsetRange(whole.topic, whole.partition, start, until)


def tasks_of(ranges: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
    """What each task does: short ranges together, long ones alone."""
    return share_tasks(ranges, few_offsets=FEW_OFFSETS)
