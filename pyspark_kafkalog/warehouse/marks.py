"""What a load has read last of a partition, to find out that its log has another record there now.

Leader epochs tell of logs that lost their tail (truncation.py), but for a cluster that goes on from
a cold backup: it may begin the very epoch again in which the lost records were written. So a commit
keeps a mark of each partition, a number of at most 62 bits, of one of the last records before the
next offset:

    16 bits   a checksum of the next offset; with another one the mark is an older offset's
    4 bits    how far before the next offset the record is, less one
    42 bits   a digest of its offset, timestamp, key and value

A record that is gone, by compaction, retention or DeleteRecords, tells nothing. One that is there
has kept all that the digest is of: compaction writes batches anew, and records as they were. Of
aborted transactions, too, so that they serve as well as any.

Runs on the driver. A request for each partition that has something new when a load or a write of
format("kafkalog_load") is planned, and one when it is landed.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.decode import RecordDecoder
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig, Isolation
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.source.offsets import LogBounds, Offsets, describe, report_data_loss
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import Position, TopicIds

_COLUMNS = ("key", "value", "offset", "timestamp")
_LOOKS_BACK = 16
_FETCH_BYTES = 1 << 16
_CHECKSUM_BITS, _DISTANCE_BITS, _DIGEST_BITS = 16, 4, 42


def marks_of(
    client: ClientConfig, ranges: Sequence[OffsetRange], topic_ids: TopicIds
) -> dict[TopicPartition, int]:
    """The marks of partitions that are going to have been read to the end of their last piece in
    `ranges`; none of those that have no record shortly before that."""
    last = {piece.topic_partition: piece for piece in sorted(ranges) if piece.offset_count}
    found = {}
    if last:
        with _cluster(client) as cluster:
            for key, piece in last.items():
                start = max(piece.start_offset, piece.until_offset - _LOOKS_BACK)
                near = replace(piece, start_offset=start)
                digests = _digests(cluster, near, topic_ids)
                if digests:
                    offset = max(digests)
                    found[key] = _mark(piece.until_offset, offset, digests[offset])
    return found


def replaced(
    client: ClientConfig, at: Position, bounds: LogBounds, name: str, fail_on_data_loss: bool
) -> Offsets:
    """Of the partitions in `bounds` that have something new after those of load `name`, which goes
    on `at` a position, those that have another record where its marks say which one was read: each
    with that place, as nobody can tell where others begin.

    Raises DataLossError for them, unless `fail_on_data_loss` is false.
    """
    last, marks = at.offsets, at.marks
    asked = {
        each: offset
        for each in sorted(bounds.latest.keys() & last.keys() & marks.keys())
        if bounds.latest[each] > last[each]
        and (offset := _marked_offset(last[each], marks[each])) is not None
        and offset >= bounds.earliest[each]
    }
    if not asked:
        return {}
    with _cluster(client) as cluster:

        def find() -> Offsets:
            return {
                each: last[each]
                for each, offset in asked.items()
                if _is_other(
                    _digests(cluster, _at(each, offset), at.topic_ids), offset, marks[each]
                )
            }

        other = find()
        if other:
            cluster.ask_all()
            other = find()
    if other:
        first = min(other)
        others = other.keys() - {first}
        report_data_loss(
            f"Partition {describe([first])} has another record at offset {asked[first]} than load "
            f"{name!r} read there: its broker was restored from an earlier state (or the topic was "
            "created again), and others may be at the offsets of records that it lost. The load "
            f"cannot tell which; it goes on at offset {last[first]}."
            + (f" The same holds for {describe(others)}." if others else ""),
            fail_on_data_loss,
        )
    return other


def _cluster(client: ClientConfig) -> Cluster:
    # What follows a record in the log is not asked for; one of an aborted transaction will do.
    return Cluster(
        replace(
            client,
            max_partition_fetch_bytes=_FETCH_BYTES,
            isolation_level=Isolation.READ_UNCOMMITTED,
        )
    )


def _at(key: TopicPartition, offset: int) -> OffsetRange:
    return OffsetRange.of(key, offset, offset + 1)


def _digests(cluster: Cluster, piece: OffsetRange, topic_ids: TopicIds) -> dict[int, int]:
    """By their offsets, those of a range's records that are there; none where some were taken, or
    the topic is not there any more: whoever reads it finds that out."""
    decoder = RecordDecoder(piece.topic, piece.partition, _COLUMNS, permissive=True)
    fetcher = Fetcher(
        cluster,
        piece.topic_partition,
        piece.start_offset,
        piece.until_offset,
        cluster.config.request_timeout_ms,
        topic_ids.get(piece.topic),
    )
    batches: list[pa.RecordBatch] = []
    try:
        for fetched in fetcher.records():
            batches += decoder.decode(fetched.records, fetched.start_offset, piece.until_offset, [])
    except DataLossError:
        return {}
    batches += decoder.finish()
    return {offset: digest for batch in batches for offset, digest in _digests_in(batch)}


def _digests_in(batch: pa.RecordBatch) -> Iterable[tuple[int, int]]:
    for row in range(batch.num_rows):
        key, value, offset, timestamp = (batch.column(name)[row] for name in _COLUMNS)
        whole = hashlib.blake2b(digest_size=8)
        whole.update(struct.pack("<q?q", offset.as_py(), timestamp.is_valid, timestamp.value or 0))
        for one in (key.as_py(), value.as_py()):
            whole.update(struct.pack("<q", -1 if one is None else len(one)))
            whole.update(one or b"")
        digest = int.from_bytes(whole.digest(), "little")
        yield offset.as_py(), digest % (1 << _DIGEST_BITS)


def _mark(next_offset: int, offset: int, digest: int) -> int:
    distance = next_offset - 1 - offset
    return (_checksum(next_offset) << _DISTANCE_BITS | distance) << _DIGEST_BITS | digest


def _marked_offset(next_offset: int, mark: int) -> int | None:
    """Which record a mark is of; None for a mark that is of another next offset."""
    checksum, distance = divmod(mark >> _DIGEST_BITS, 1 << _DISTANCE_BITS)
    return next_offset - 1 - distance if checksum == _checksum(next_offset) else None


def _checksum(next_offset: int) -> int:
    return zlib.crc32(struct.pack("<q", next_offset)) >> (32 - _CHECKSUM_BITS)


def _is_other(digests: Mapping[int, int], offset: int, mark: int) -> bool:
    return offset in digests and digests[offset] != mark % (1 << _DIGEST_BITS)
