"""Which segments a log may drop: by age, by size, and below its start offset.

Only a prefix of the segments is ever dropped, never one with an offset at or above the high
watermark. Pure functions over a snapshot of the segments: any thread. Deletes nothing itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from broker.config.log import LogConfig
from broker.log.segment import LogSegment


@dataclass(frozen=True, slots=True)
class RetentionBounds:
    """What a log's retention is measured against."""

    now_ms: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int


def deletable_segments(
    segments: Sequence[LogSegment], config: LogConfig, bounds: RetentionBounds
) -> list[tuple[LogSegment, str]]:
    """The oldest segments that are to go, each with the reason."""
    doomed = []
    excess_bytes = _excess_bytes(segments, config)
    for segment, end_offset in _with_end_offsets(segments, bounds.log_end_offset):
        if end_offset > bounds.high_watermark or not segment.size_bytes:
            break
        reason = ""
        if end_offset <= bounds.log_start_offset and segment is not segments[-1]:
            reason = f"log_start_offset={bounds.log_start_offset}"
        elif config.deletes and 0 <= config.retention_ms < (
            bounds.now_ms - segment.largest_timestamp_ms
        ):
            reason = f"retention.ms={config.retention_ms}"
        elif excess_bytes >= segment.size_bytes:
            reason = f"retention.bytes={config.retention_bytes}"
        if not reason:
            break
        excess_bytes -= segment.size_bytes
        doomed.append((segment, reason))
    return doomed


def _excess_bytes(segments: Sequence[LogSegment], config: LogConfig) -> int:
    if not config.deletes or config.retention_bytes < 0:
        return -1
    return sum(segment.size_bytes for segment in segments) - config.retention_bytes


def _with_end_offsets(
    segments: Sequence[LogSegment], log_end_offset: int
) -> Iterator[tuple[LogSegment, int]]:
    ends = [segment.base_offset for segment in segments[1:]]
    return zip(segments, [*ends, log_end_offset], strict=True)
