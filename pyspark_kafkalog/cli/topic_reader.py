"""Reads topics for a shell: from a place on, up to another one, or for as long as records come.

What is there is read partition by partition, in ranges (`client.fetcher`); at the end a long poll
waits for more (`client.news`). Partitions and topics that are added meanwhile are read from their
beginning. A log that is another one than was read is found out by its topic's id and by the epochs
of its leaders, also where a group was before. Blocking; one thread.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kafka.structs import OffsetAndTimestamp, TopicPartition

from pyspark_kafkalog.arrow.decode import RecordDecoder
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import Isolation
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.fetcher import POLL_TIMEOUT_MS, Fetcher
from pyspark_kafkalog.client.group import CommittedOffset
from pyspark_kafkalog.client.news import News
from pyspark_kafkalog.client.selection import Selection
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    DataLossError,
    TopicRecreatedError,
    UnknownTopicError,
)
from pyspark_kafkalog.source.log_identity import CutLogs, is_back
from pyspark_kafkalog.source.partitions import leader_epochs

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
        committed: Mapping[TopicPartition, CommittedOffset],
    ) -> None:
        """`committed` goes before `begin`, where it names a partition; raises DataLossError where
        that is beyond its end, or in another log."""
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
        found = _ends_of(cluster, topic_partitions, _epochs_of(committed))
        ends = {each: at.offset for each, at in found.items()}
        going_on = {each: at.offset for each, at in committed.items() if each in ends}
        self._cut_logs = CutLogs()
        self._epochs = leader_epochs(found)
        """Of the leaders of what was read."""
        for why in others_of_group(cluster, committed, found).values():
            raise why
        places = begin.offsets(cluster, topic_partitions) | going_on
        self._positions = places | self._bounded(
            {each: at for each, at in places.items() if at > ends[each]}, going_on
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

    @property
    def epochs(self) -> Mapping[TopicPartition, int]:
        """Those of the leaders of what was read, as far as they are known."""
        return self._epochs

    @property
    def topic_ids(self) -> "Mapping[str, UUID | None]":
        """Those of the topics that are read, as far as brokers say them."""
        return self._topic_ids

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
                found = news.wait(waiting, self._epochs)
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
        found = _ends_of(self._cluster, self._positions, self._epochs)
        short = {
            each: offset for each, offset in self._positions.items() if found[each].offset < offset
        }
        # Of a transaction that is open more was read than is to be read now.
        whole = self._whole_ends(short)
        for topic_partition, at in whole.items():
            if at.offset < self._positions[topic_partition]:
                self._explain_loss(topic_partition, at.offset)
        now = leader_epochs(found)
        cut = self._cut_logs.find(self._cluster, dict(self._positions), self._epochs, now)
        for topic_partition, end in cut.items():
            self._explain_loss(topic_partition, end)
        for topic_partition, epoch in is_back(self._epochs, now).items():
            self._explain_loss(topic_partition, found[topic_partition].offset, epoch)
        self._epochs |= {each: epoch for each, epoch in now.items() if epoch > self._epoch(each)}
        return {topic_partition: at.offset for topic_partition, at in found.items()}

    def _epoch(self, topic_partition: TopicPartition) -> int:
        return self._epochs.get(topic_partition, -1)

    def _explain_loss(
        self, topic_partition: TopicPartition, end: int, epoch: int | None = None
    ) -> None:
        topic, partition = topic_partition
        self._cluster.refresh([topic])
        if self._cluster.topic_id(topic) != self._topic_ids[topic]:
            raise TopicRecreatedError(
                f"Topic {topic} was deleted and created again: what was to be read is gone."
            )
        if epoch is not None:
            raise DataLossError(
                f"Partition {partition} of topic {topic} has a leader of epoch {epoch} now, and "
                f"was read in epoch {self._epochs[topic_partition]}: its broker was restored from "
                "an earlier state, and other records may be before offset "
                f"{self._positions[topic_partition]}, which was to be read next."
            )
        raise DataLossError(
            f"Partition {partition} of topic {topic} ended at offset {end} since, before offset "
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
            self._cluster,
            topic_partition,
            start_offset,
            until_offset,
            topic_id=topic_id,
            leader_epoch=self._epochs.get(topic_partition),
        )
        for fetched in fetcher.records():
            if fetched.leader_epoch > self._epoch(topic_partition):
                self._epochs[topic_partition] = fetched.leader_epoch
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


def others_of_group(
    cluster: Cluster,
    committed: Mapping[TopicPartition, CommittedOffset],
    found: Mapping[TopicPartition, OffsetAndTimestamp],
) -> dict[TopicPartition, DataLossError]:
    """Of a group's offsets those that are of other logs than those whose ends were `found`, of
    topics that were asked for before, and what is to be said of it."""
    others: dict[TopicPartition, DataLossError] = {}
    at = {each: one for each, one in committed.items() if each in found}
    for each, one in at.items():
        if one.topic_id is not None and cluster.topic_id(each.topic) not in (None, one.topic_id):
            others[each] = TopicRecreatedError(
                f"Topic {each.topic} was deleted and created again since the group came to offset "
                f"{one.offset} of partition {each.partition}, which means other records now."
            )
    offsets = {each: one.offset for each, one in at.items() if each not in others}
    then = {each: epoch for each, epoch in _epochs_of(at).items() if each in offsets}
    now = leader_epochs(found)
    lost = CutLogs().find(cluster, offsets, then, now)
    for each in {**lost, **is_back(then, now)}:
        others[each] = DataLossError(
            f"Partition {each.partition} of topic {each.topic} lost records since the group came "
            f"to offset {offsets[each]}, and others may have their offsets (an election of a "
            "replica that was not in sync, a power loss, a broker that was restored)."
        )
    return others


def _ends_of(
    cluster: Cluster,
    topic_partitions: Iterable[TopicPartition],
    then: Mapping[TopicPartition, int],
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Where partitions end; where a leader is in an earlier epoch than `then`, after all brokers
    were asked who leads."""
    found = cluster.list_offsets(topic_partitions, LATEST)
    if is_back(then, leader_epochs(found)):
        cluster.ask_all()
        found = cluster.list_offsets(topic_partitions, LATEST)
    return found


def _epochs_of(committed: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, int]:
    return {
        each: one.leader_epoch for each, one in committed.items() if one.leader_epoch is not None
    }


def _rows(topic_partition: TopicPartition, records: "pa.RecordBatch") -> Rows:
    return Rows(
        topic_partition, records, records.column("offset")[records.num_rows - 1].as_py() + 1
    )
