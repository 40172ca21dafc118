"""Records of one partition for the page: some from an offset on, the last ones before an offset,
those in which something is found, and one whole key or value.

What is read is bounded for each page: records, bytes of the log, and time; where a bound is met the
page says from which offset to go on. No group is joined, nothing is committed. A few readers, each
for one page at a time.
"""

import functools
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from queue import Empty, LifoQueue

import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.decode import RecordDecoder
from pyspark_kafkalog.client.cluster import EARLIEST, LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.source.places import Place
from pyspark_kafkalog.web.shown import Shown, show, visible

RECORDS_A_PAGE = 50
_READERS = 2
_BYTES_A_PAGE = 8 << 20
_SEARCHED_BYTES = 128 << 20
_SECONDS = 4.0
_BYTES_A_FETCH = 1 << 20
_IDLE_S = 60.0
_WIDER = 4
_SHOWN_HEADERS = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_COLUMNS = ("key", "value", "offset", "timestamp", "headers")

Show = Callable[[memoryview | None], Shown]


class BusyError(KafkalogError):
    """All readers are at work for other pages."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it is shown. `header_count` counts those that are not shown, too."""

    offset: int
    time: str
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]
    header_count: int


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records from `start` on, in order; the next ones come at `next_offset` or later.

    `begin` and `end` are those of the partition. `is_searched_out` is False where a search ended
    for its bounds.
    """

    begin: int
    end: int
    start: int
    next_offset: int
    records: Sequence[Record]
    is_searched_out: bool = True


class Readers:
    """Clients that read records; any thread."""

    def __init__(self, config: ClientConfig) -> None:
        most_bytes = config.max_partition_fetch_bytes or _BYTES_A_FETCH
        self._free: LifoQueue[Cluster] = LifoQueue()
        for _ in range(_READERS):
            bounded = replace(config, max_partition_fetch_bytes=most_bytes)
            self._free.put(Cluster(bounded, fails_fast=True))

    def close(self) -> None:
        """Closes those that are not at work."""
        with suppress(Empty):
            while True:
                self._free.get_nowait().close()

    @contextmanager
    def reader(self, topic_partition: TopicPartition) -> Iterator["Reader"]:
        """Raises BusyError, UnknownTopicError, and as Reader does."""
        with self.cluster() as cluster:
            cluster.describe([topic_partition.topic])
            yield Reader(cluster, topic_partition)

    @contextmanager
    def cluster(self) -> Iterator[Cluster]:
        """Raises BusyError where all are at work for long."""
        try:
            cluster = self._free.get(timeout=_SECONDS)
        except Empty:
            raise BusyError("Others read records at the moment: try again.") from None
        try:
            cluster.resume(_IDLE_S)
            yield cluster
        except BaseException:
            cluster.close()
            raise
        finally:
            cluster.free_memory()
            self._free.put(cluster)


class Reader:
    """One partition's records; one thread. Raises as Fetcher and Cluster do."""

    def __init__(self, cluster: Cluster, topic_partition: TopicPartition) -> None:
        self._cluster = cluster
        self._topic_partition = topic_partition
        self._deadline = Deadline(_SECONDS * 1000)
        self._topic_id = cluster.topic_id(topic_partition.topic)
        wanted = [topic_partition]
        self.begin: int = cluster.list_offsets(wanted, EARLIEST)[topic_partition].offset
        self.end: int = cluster.list_offsets(wanted, LATEST)[topic_partition].offset

    def offset_of(self, place: Place) -> int:
        """Where a place is, within the partition."""
        found = place.offsets(self._cluster, [self._topic_partition])[self._topic_partition]
        return min(max(found, self.begin), self.end)

    def page(self, start: int, show_value: Show, needle: bytes = b"") -> RecordPage:
        """Records from `start` on; with `needle` those whose key or value has it, whatever the
        case of its letters."""
        most_bytes = _SEARCHED_BYTES if needle else _BYTES_A_PAGE
        records: list[Record] = []
        position = start
        for batch, next_offset, read_bytes in self._batches(start, self.end):
            position = next_offset
            found = _having(batch, needle) if needle else batch
            left = RECORDS_A_PAGE - len(records)
            records += _records(found.slice(0, left), show_value)
            if found.num_rows >= left:
                position = records[-1].offset + 1
                break
            if read_bytes >= most_bytes or self._deadline.expired:
                break
        else:
            position = self.end
        is_out = position >= self.end or len(records) == RECORDS_A_PAGE
        return RecordPage(self.begin, self.end, start, position, records, is_out)

    def page_before(self, until: int, show_value: Show) -> RecordPage:
        """The last records before `until`: where compaction took many, they lie far back."""
        span = RECORDS_A_PAGE
        while True:
            start = max(self.begin, until - span)
            last: deque[tuple[pa.RecordBatch, int]] = deque(maxlen=RECORDS_A_PAGE)
            for batch, _, read_bytes in self._batches(start, until):
                rows = range(max(0, batch.num_rows - RECORDS_A_PAGE), batch.num_rows)
                last += ((batch, row) for row in rows)
                if read_bytes >= _SEARCHED_BYTES or self._deadline.expired:
                    break
            if len(last) == RECORDS_A_PAGE or start == self.begin or self._deadline.expired:
                break
            span *= _WIDER
        records = [
            record for batch, row in last for record in _records(batch.slice(row, 1), show_value)
        ]
        first = records[0].offset if records else start
        return RecordPage(self.begin, self.end, first, until, records)

    def bytes_of(self, offset: int, column: str) -> memoryview | None:
        """A whole key or value; None for null, and where there is no such record."""
        for batch, _, _ in self._batches(offset, offset + 1):
            return _bytes_of(batch.column(column)[0])
        return None

    def _batches(self, start: int, until: int) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        """Batches, what follows each, and the bytes that were read until then.

        Of the page's own time: a partition that gives nothing for so long is an error.
        """
        topic, partition = self._topic_partition
        until = min(until, self.end)
        if start >= until:
            return
        decoder = RecordDecoder(topic, partition, _COLUMNS, permissive=True)
        fetcher = Fetcher(
            self._cluster,
            self._topic_partition,
            start,
            until,
            poll_timeout_ms=int(_SECONDS * 1000),
            topic_id=self._topic_id,
        )
        read_bytes = 0
        for fetched in fetcher.records():
            read_bytes += len(fetched.records)
            found = decoder.decode(fetched.records, fetched.start_offset, until, fetched.aborted)
            for batch in found:
                yield batch, batch.column("offset")[-1].as_py() + 1, read_bytes
            for batch in decoder.finish():
                yield batch, min(until, fetched.next_offset), read_bytes


def _having(batch: pa.RecordBatch, needle: bytes) -> pa.RecordBatch:
    """Arrow knows the case of ASCII's letters in bytes; of others both are looked for, and how JSON
    may have them escaped."""
    try:
        texts = {(text := needle.decode()), text.lower(), text.upper()}
        escaped = {json.dumps(each)[1:-1] for each in texts}
        forms, is_text = {each.encode() for each in texts | escaped}, True
    except UnicodeDecodeError:
        forms, is_text = {needle}, False
    found = [
        pc.fill_null(pc.match_substring(batch.column(name), form, ignore_case=is_text), False)
        for name in ("key", "value")
        for form in forms
    ]
    return batch.filter(functools.reduce(pc.or_, found))


def _records(batch: pa.RecordBatch, show_value: Show) -> Iterator[Record]:
    offsets = batch.column("offset").to_pylist()
    micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
    keys, values, headers = (batch.column(name) for name in ("key", "value", "headers"))
    for row, offset in enumerate(offsets):
        shown, count = _headers(headers[row])
        yield Record(
            offset,
            time_text(micros[row]),
            show_value(_bytes_of(keys[row])),
            show_value(_bytes_of(values[row])),
            shown,
            count,
        )


def _headers(headers: pa.ListScalar) -> tuple[tuple[tuple[str, Shown], ...], int]:
    found = headers.values
    if found is None:
        return (), 0
    return tuple(
        (visible(str(header["key"].as_py())[:200]), show(_bytes_of(header["value"])))
        for header in found.slice(0, _SHOWN_HEADERS)
    ), len(found)


def _bytes_of(scalar: pa.BinaryScalar) -> memoryview | None:
    return memoryview(scalar.as_buffer()) if scalar.is_valid else None


def time_text(micros: int | None) -> str:
    """UTC, in a form that can be given as a place; a number of ms beyond Python's calendar."""
    if micros is None:
        return ""
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return f"@{micros // 1000}"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
