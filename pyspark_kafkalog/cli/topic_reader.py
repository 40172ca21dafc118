"""Reads topics for a shell: from a place on, up to another one, or for as long as records come.

What is there is read partition by partition, in ranges (`client.fetcher`); at the end a long poll
waits for more (`client.news`). Partitions and topics that are added meanwhile are read from their
beginning. Blocking; one thread.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kafka.structs import OffsetAndTimestamp, TopicPartition

from pyspark_kafkalog.arrow.decode import RecordDecoder
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import Isolation
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.fetcher import POLL_TIMEOUT_MS, Fetcher
from pyspark_kafkalog.client.news import News
from pyspark_kafkalog.client.selection import Selection
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    DataLossError,
    TopicRecreatedError,
    UnknownTopicError,
)

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

    from pyspark_kafkalog.source.places import Place


class Rows(NamedTuple):
    """Some records of one partition, in order; the next one has `next_offset` at least."""

    topic_partition: TopicPartition
    records: "pa.RecordBatch"
    next_offset: int


class TopicReader:
    """The records of a selection of partitions, as Arrow batches with `columns`."""

    def __init__(
        self,
        cluster: Cluster,
        selection: Selection,
        columns: tuple[str, ...],
        begin: "Place",
        until: "Place | None",
        committed: Mapping[TopicPartition, int],
    ) -> None:
        """`committed` goes before `begin`, where it names a partition; raises DataLossError where
        that is beyond its end."""
        self._cluster = cluster
        self._selection = selection
        self._columns = columns
        self._known_until = Deadline(cluster.config.metadata_max_age_ms)
        topic_partitions = selection.find(cluster)
        # Before any offset: of a topic that is created again these would mean other records.
        self._topic_ids: dict[str, UUID | None] = {
            topic_partition.topic: cluster.topic_id(topic_partition.topic)
            for topic_partition in topic_partitions
        }
        ends = {
            topic_partition: at.offset
            for topic_partition, at in cluster.list_offsets(topic_partitions, LATEST).items()
        }
        places = begin.offsets(cluster, topic_partitions)
        places |= {each: at for each, at in committed.items() if each in ends}
        self._positions = places | self._bounded(
            {each: at for each, at in places.items() if at > ends[each]}, committed
        )
        self._until = None if until is None else until.offsets(cluster, topic_partitions)

    def _bounded(
        self, beyond: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Places that are beyond what is to be read. What a transaction has not committed yet may
        have been read, by another isolation level: there they stay. Beyond all that there is they
        are as well the end; where a group has read what is no more in the log, or never was, that
        has another record's offset once the log grows."""
        ends = self._whole_ends(beyond)
        for topic_partition, at in ends.items():
            if committed.get(topic_partition, 0) > at.offset:
                raise DataLossError(
                    f"The group is at offset {committed[topic_partition]} of partition "
                    f"{topic_partition.partition} of topic {topic_partition.topic}, which ends at "
                    f"offset {at.offset}: its last records are gone, or it was created again."
                )
        return {each: min(at, ends[each].offset) for each, at in beyond.items()}

    def _whole_ends(
        self, places: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Of the partitions of `places`, open transactions included; where one ends before its
        place, after all brokers were asked who leads."""
        ends = self._cluster.list_offsets(places, LATEST, Isolation.READ_UNCOMMITTED)
        if any(at.offset < places[each] for each, at in ends.items()):
            self._cluster.ask_all()
            ends = self._cluster.list_offsets(places, LATEST, Isolation.READ_UNCOMMITTED)
        return ends

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Where to go on once all rows that were given out are done with. A marker of a transaction
        has an offset, and is no row."""
        return self._positions

    def rows(self) -> Iterator[Rows | None]:
        """Records as they come; None where all that is there was read, before more is waited for.

        Raises DataLossError, also where a topic was created again; and as Fetcher does.
        """
        news = News(self._cluster)
        ends: Mapping[TopicPartition, int] = self._ends()
        while True:
            for topic_partition in sorted(ends):
                until = (
                    ends[topic_partition]
                    if self._until is None
                    else min(ends[topic_partition], self._until[topic_partition])
                )
                if self._positions[topic_partition] < until:
                    yield from self._range(topic_partition, until)
                    self._positions[topic_partition] = until
            waiting = self._waiting()
            if self._until is not None and not waiting:
                return
            yield None
            ends = self._next_ends(news, waiting)

    def _next_ends(
        self, news: News, waiting: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """The ends of partitions that may have more by now. Brokers that are away are waited for as
        long as while a partition is read: one that restarts ends no tail."""
        patience = Deadline(POLL_TIMEOUT_MS)
        while True:
            try:
                if self._until is None and self._known_until.expired:
                    self._find_added()
                    return self._ends()
                found = news.wait(waiting)
                return self._ends() if found is None else found
            except BrokersUnreachableError:
                if patience.expired:
                    raise

    def _waiting(self) -> dict[TopicPartition, int]:
        """The positions of partitions of which more is wanted: of others there may be much, which a
        broker would tell of at once, again and again."""
        return {
            topic_partition: offset
            for topic_partition, offset in self._positions.items()
            if self._until is None or offset < self._until[topic_partition]
        }

    def _ends(self) -> dict[TopicPartition, int]:
        found = self._cluster.list_offsets(self._positions, LATEST)
        short = {
            each: offset for each, offset in self._positions.items() if found[each].offset < offset
        }
        # Of a transaction that is open more was read than is to be read now.
        whole = self._whole_ends(short)
        for topic_partition, at in whole.items():
            if at.offset < self._positions[topic_partition]:
                self._explain_loss(topic_partition, at.offset)
        return {topic_partition: at.offset for topic_partition, at in found.items()}

    def _explain_loss(self, topic_partition: TopicPartition, end: int) -> None:
        topic, partition = topic_partition
        self._cluster.refresh([topic])
        if self._cluster.topic_id(topic) != self._topic_ids[topic]:
            raise TopicRecreatedError(
                f"Topic {topic} was deleted and created again: what was to be read is gone."
            )
        raise DataLossError(
            f"Partition {partition} of topic {topic} ends at offset {end} now, before offset "
            f"{self._positions[topic_partition]}, which was to be read next: its last records are "
            "gone."
        )

    def _range(self, topic_partition: TopicPartition, until_offset: int) -> Iterator[Rows]:
        decoder = RecordDecoder(
            topic_partition.topic, topic_partition.partition, self._columns, permissive=True
        )
        start_offset = self._positions[topic_partition]
        topic_id = self._topic_ids[topic_partition.topic]
        fetcher = Fetcher(
            self._cluster, topic_partition, start_offset, until_offset, topic_id=topic_id
        )
        for fetched in fetcher.records():
            for batch in decoder.decode(
                fetched.records, fetched.start_offset, until_offset, fetched.aborted
            ):
                yield _rows(topic_partition, batch)
        for batch in decoder.finish():
            yield _rows(topic_partition, batch)

    def _find_added(self) -> None:
        added: list[TopicPartition] = []
        # A broker that denies the topic may have just started: whoever asks for offsets finds out.
        with suppress(UnknownTopicError):
            added = [
                topic_partition
                for topic_partition in self._selection.find(self._cluster)
                if topic_partition not in self._positions
            ]
        for topic_partition in added:
            self._topic_ids.setdefault(
                topic_partition.topic, self._cluster.topic_id(topic_partition.topic)
            )
        # Their first record, wherever this began: it came after that, and may be gone by now.
        self._positions |= dict.fromkeys(added, 0)
        self._known_until = Deadline(self._cluster.config.metadata_max_age_ms)


def _rows(topic_partition: TopicPartition, records: "pa.RecordBatch") -> Rows:
    return Rows(
        topic_partition, records, records.column("offset")[records.num_rows - 1].as_py() + 1
    )
