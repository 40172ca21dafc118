"""Whether what the tasks of a load report is what they were asked for; nothing else is published.

Called by the driver, between the tasks and the commit, whichever engine ran them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import DataFile
from pyspark_kafkalog.warehouse.landing import Landed, Landing


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tasks of a commit did: its files, how many records could not be decoded, which
    offsets were gone and given up, and which partitions of an upsert have offsets without a record,
    each with the time before (lost_tombstones.py)."""

    files: Sequence[DataFile] = ()
    bad_records: int = 0
    gaps: Sequence[OffsetRange] = ()
    holes: Mapping[TopicPartition, int] = field(default_factory=dict)


def outcome_of(
    landing: Landing, ranges: Sequence[OffsetRange], landed: Sequence[Landed]
) -> Outcome:
    """What tasks that landed `ranges` report; raises KafkalogError unless it fits them."""
    holes: dict[TopicPartition, int] = {}
    for result in landed:
        if result.hole_after_us is not None:
            each = result.offset_range.topic_partition
            holes[each] = min(result.hole_after_us, holes.get(each, result.hole_after_us))
    return Outcome(
        verified_files(ranges, landed, landing.reading.rows_of),
        sum(result.bad_records for result in landed),
        [gap for result in landed for gap in result.gaps],
        holes,
    )


def task_failed(what: str) -> KafkalogError:
    """The error of a load when a task ended in `what`, which is no error of ours."""
    return KafkalogError(f"A task of the load failed and nothing was published: {what}")


def verified_files(
    ranges: Sequence[OffsetRange],
    landed: Sequence[Landed],
    rows_of: Callable[[Landed], int | None],
) -> list[DataFile]:
    """The files of a load, in the order of `ranges`; raises unless they account for every range.

    `rows_of` says how many rows a range has to have become; None is any number.
    """
    by_range = {result.offset_range: result for result in landed}
    wanted = [piece for piece in ranges if piece.offset_count]
    if len(landed) != len(wanted) or by_range.keys() != set(wanted):
        raise KafkalogError(
            f"The tasks returned {len(landed)} results for {len(wanted)} ranges of offsets; "
            "nothing was published. Run the load again."
        )
    for result in landed:
        _check(result, rows_of(result))
    files = [file for piece in wanted for file in by_range[piece].files]
    if len({file.name for file in files}) < len(files):
        raise KafkalogError(f"two results name one file, nothing was published: {files}")
    return files


def _check(landed: Landed, row_count: int | None) -> None:
    piece, files = landed.offset_range, landed.files
    if landed.records:
        fits = (
            piece.start_offset <= landed.first_offset <= landed.last_offset < piece.until_offset
            and 0 < landed.records <= landed.last_offset - landed.first_offset + 1
            and 0 <= landed.bad_records <= landed.records
        )
    else:
        fits = not files
    for gap in landed.gaps:
        fits &= (
            gap.topic_partition == piece.topic_partition
            and piece.start_offset <= gap.start_offset <= gap.until_offset <= piece.until_offset
        )
    if row_count is not None:
        fits &= row_count == sum(file.records for file in files)
    if not (fits and all(file.records > 0 for file in files)):
        raise KafkalogError(f"what landed does not fit {piece}, nothing was published: {landed}")
