"""The records of ranges of offsets as Arrow record batches: what a task of a read or a load does.

Knows nothing of Spark. A task's connections are those of its process (python_worker).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from uuid import UUID

import pyarrow as pa

from pyspark_kafkalog.arrow.decode import RecordDecoder
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.errors import DataLossError, LogTruncatedError
from pyspark_kafkalog.source.offsets import describe, report_data_loss
from pyspark_kafkalog.source.options import SourceOptions
from pyspark_kafkalog.source.partitions import OffsetRange, ReadTask
from pyspark_kafkalog.source.python_worker import freeze_imports, kept_cluster

_log = logging.getLogger(__name__)


def read_task(
    options: SourceOptions, columns: Sequence[str], task: ReadTask
) -> Iterator[pa.RecordBatch]:
    """The records of a task's ranges, one after the other, over one set of connections."""
    freeze_imports()
    with kept_cluster(options.client) as cluster:
        for piece in task.ranges:
            yield from read_range(
                cluster,
                options,
                columns,
                piece,
                task.topic_ids.get(piece.topic),
                leader_epoch=task.epochs.get(piece.topic_partition),
                ends_at_cut=True,
            )


def read_range(
    cluster: Cluster,
    options: SourceOptions,
    columns: Sequence[str],
    offset_range: OffsetRange,
    topic_id: UUID | None = None,
    on_gap: Callable[[OffsetRange], None] | None = None,
    leader_epoch: int | None = None,
    ends_at_cut: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The records of one range in offset order, each once, in batches of about 10,000 rows.

    `topic_id` is the topic's before the range was planned, where brokers say it, `leader_epoch` the
    partition's then.

    Raises LogTruncatedError if they mean other records by now, and DataLossError if some are gone;
    with `fail_on_data_loss` false it warns, tells `on_gap` which ones, and goes on at the earliest
    offset that is there, and with `ends_at_cut` as well it ends where others are. Raises
    BadRecordError for a record that no row can hold, unless `permissive`.
    """
    until_offset = offset_range.until_offset
    decoder = RecordDecoder(
        offset_range.topic, offset_range.partition, columns, permissive=options.permissive
    )
    position = offset_range.start_offset
    while position < until_offset:
        try:
            fetcher = Fetcher(
                cluster,
                offset_range.topic_partition,
                position,
                until_offset,
                options.poll_timeout_ms,
                topic_id,
                leader_epoch,
            )
            for fetched in fetcher.records():
                yield from decoder.decode(
                    fetched.records, fetched.start_offset, until_offset, fetched.aborted
                )
                position = fetched.next_offset
            break
        except LogTruncatedError as error:
            if options.fail_on_data_loss or not ends_at_cut:
                raise
            report_data_loss(
                f"Offsets {error.log_end_offset} up to {until_offset} of partition "
                f"{describe([offset_range.topic_partition])} are of another log by now.",
                fail_on_data_loss=False,
            )
            until_offset = min(until_offset, error.log_end_offset)
        except DataLossError as error:
            if options.fail_on_data_loss:
                raise
            begins, position = position, _next_available(error, offset_range, position)
            if on_gap is not None:
                on_gap(replace(offset_range, start_offset=begins, until_offset=position))
    yield from decoder.finish()
    if decoder.bad_timestamps:
        _log.warning(
            "%d records of %s have timestamps later or earlier than any time: they are NULL.",
            decoder.bad_timestamps,
            describe([offset_range.topic_partition]),
        )


def _next_available(error: DataLossError, offset_range: OffsetRange, position: int) -> int:
    """Where to go on after the offset `position` turned out to be gone, with a warning.

    An offset that is gone and yet not before the log's beginning is past its end, or there is no
    log any more: nothing of the range is left.
    """
    until_offset = offset_range.until_offset
    earliest = error.log_start_offset
    goes_on = min(earliest, until_offset) if earliest > position else until_offset
    report_data_loss(
        f"Offsets {position} up to {goes_on} of partition "
        f"{describe([offset_range.topic_partition])} are gone.",
        fail_on_data_loss=False,
    )
    return goes_on
