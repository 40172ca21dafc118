"""Groups in the internal topic `__consumer_offsets`: what the topic is, and groups out of its log.

What a transaction commits counts from the marker that ends it, and waits for it where there is none
yet. Called by: the event loop's thread, but for `read_groups`,
which blocks.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from kafka.errors import InvalidCommitOffsetSizeError

from broker.cluster.metadata import CONSUMER_OFFSETS
from broker.config.broker import BrokerConfig
from broker.coordinator.consumer_group import restored
from broker.coordinator.consumer_group_records import Update, decode
from broker.coordinator.group_metadata import GroupMetadata, commit_pending
from broker.coordinator.offset_records import (
    OffsetKey,
    decode_commit,
    decode_group,
    decode_key,
)
from broker.coordinator.state_records import NO_TIMESTAMP, StateRecord, decode_records
from broker.coordinator.state_topic import StateTopic, StateTopicKind, read_batches, replicas_of
from broker.log.log import Log
from pyspark_kafkalog.record.control import decode_marker

Groups: TypeAlias = dict[str, GroupMetadata]
OffsetsTopic: TypeAlias = StateTopic[Groups]


def offsets_topic_kind(config: BrokerConfig) -> StateTopicKind[Groups]:
    """Groups' last words are kept, and nothing else of them."""
    return StateTopicKind(
        name=CONSUMER_OFFSETS,
        partition_count=config.offsets_topic_num_partitions,
        replication_factor=replicas_of(config, config.offsets_topic_replication_factor),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
        read=read_groups,
        too_large=InvalidCommitOffsetSizeError,
        commit_timeout_ms=config.offsets_commit_timeout_ms,
    )


def read_groups(log: Log) -> Groups:
    """The groups that a partition's log tells of. Blocks; raises as `read_batches`."""
    replay = GroupReplay()
    for data, header in read_batches(log):
        if not header.is_control:
            producer_id = header.producer_id if header.is_transactional else None
            replay.add(decode_records(data, header), header.base_offset, producer_id)
            continue
        marker = decode_marker(bytes(data[header.position : header.end_position]))
        if marker is not None:
            replay.complete_transaction(header.producer_id, is_commit=marker.is_commit)
    return replay.groups()


class _Placed(NamedTuple):
    """A value, and where the batch that holds it begins in the log."""

    value: bytes
    log_offset: int


class GroupReplay:
    """Records on their way to groups: the last one of each key counts, as compaction has it, and
    no other is looked into. A tombstone takes away what transactions would commit, too."""

    def __init__(self) -> None:
        self._values: dict[bytes, _Placed] = {}
        self._pending: dict[int, dict[bytes, _Placed]] = {}

    def add(
        self, records: Iterable[StateRecord], log_offset: int, producer_id: int | None = None
    ) -> None:
        """A batch's records; of a transaction, where its producer is named."""
        values = self._values
        if producer_id is not None:
            values = self._pending.setdefault(producer_id, {})
        for key, value in records:
            if value is not None:
                values[key] = _Placed(value, log_offset)
                continue
            self._values.pop(key, None)
            for pending in self._pending.values():
                pending.pop(key, None)

    def complete_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        pending = self._pending.pop(producer_id, {})
        if is_commit:
            commit_pending(self._values, pending)

    def groups(self) -> Groups:
        """Raises CorruptRecordError."""
        consumers: dict[str, list[Update]] = {}
        classic: Groups = {}
        commits: list[tuple[OffsetKey, _Placed]] = []
        for key_bytes, placed in self._values.items():
            key = decode_key(key_bytes)
            if isinstance(key, OffsetKey):
                commits.append((key, placed))
            elif key is not None:
                snapshot = decode_group(placed.value)
                classic[key.group_id] = GroupMetadata.restored(key.group_id, snapshot)
            elif (update := decode(key_bytes, placed.value)) is not None:
                consumers.setdefault(update.group_id, []).append(update)
        groups = _consumer_groups(consumers) | classic
        for key, placed in commits:
            _group_of(key, groups).offsets[key.topic_partition] = decode_commit(*placed)
        for producer_id, values in self._pending.items():
            for key_bytes, placed in values.items():
                key = decode_key(key_bytes)
                if isinstance(key, OffsetKey):
                    commit = key.topic_partition, decode_commit(*placed)
                    _group_of(key, groups).add_pending(producer_id, [commit])
        return groups


def _consumer_groups(updates: Mapping[str, Iterable[Update]]) -> Groups:
    groups: Groups = {}
    for group_id, told in updates.items():
        groups[group_id] = GroupMetadata(group_id, NO_TIMESTAMP)
        groups[group_id].become_consumer_group(restored(group_id, told))
    return groups


def _group_of(key: OffsetKey, groups: Groups) -> GroupMetadata:
    group = groups.get(key.group_id)
    if group is None:  # of consumers by themselves
        group = groups[key.group_id] = GroupMetadata(key.group_id, NO_TIMESTAMP)
    return group
