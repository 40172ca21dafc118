"""Groups in the internal topic `__consumer_offsets`: what the topic is, and groups out of its log.

Records of transactions are passed over, until their commits are spoken here: what they commit
counts from the marker that ends them. Called by: the event loop's thread, but for `read_groups`,
which blocks.
"""

from collections.abc import Iterable
from typing import TypeAlias

from kafka.errors import InvalidCommitOffsetSizeError

from broker.cluster.metadata import CONSUMER_OFFSETS
from broker.config import BrokerConfig
from broker.coordinator.group_metadata import GroupMetadata
from broker.coordinator.offset_records import (
    OffsetKey,
    decode_commit,
    decode_group,
    decode_key,
)
from broker.coordinator.state_records import NO_TIMESTAMP, StateRecord, decode_records
from broker.coordinator.state_topic import StateTopic, StateTopicKind, read_batches
from broker.log.log import Log

Groups: TypeAlias = dict[str, GroupMetadata]
OffsetsTopic: TypeAlias = StateTopic[Groups]


def offsets_topic_kind(config: BrokerConfig) -> StateTopicKind[Groups]:
    """Groups' last words are kept, and nothing else of them."""
    return StateTopicKind(
        name=CONSUMER_OFFSETS,
        partition_count=config.offsets_topic_num_partitions,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
        read=read_groups,
        too_large=InvalidCommitOffsetSizeError,
    )


def read_groups(log: Log) -> Groups:
    """The groups that a partition's log tells of. Blocks; raises as `read_batches`."""
    replay = GroupReplay()
    for data, header in read_batches(log):
        if not header.is_control and not header.is_transactional:
            replay.add(decode_records(data, header))
    return replay.groups()


class GroupReplay:
    """Records on their way to groups: the last one of each key counts, as compaction has it, and
    no other is looked into."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def add(self, records: Iterable[StateRecord]) -> None:
        values = self._values
        for key, value in records:
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value

    def groups(self) -> Groups:
        """Raises CorruptRecordError."""
        groups: dict[str, GroupMetadata] = {}
        commits: list[tuple[OffsetKey, bytes]] = []
        for key_bytes, value in self._values.items():
            key = decode_key(key_bytes)
            if isinstance(key, OffsetKey):
                commits.append((key, value))
            elif key is not None:
                groups[key.group_id] = GroupMetadata.restored(key.group_id, decode_group(value))
        for key, value in commits:
            group = groups.get(key.group_id)
            if group is None:  # of consumers by themselves
                group = groups[key.group_id] = GroupMetadata(key.group_id, NO_TIMESTAMP)
            group.offsets[key.topic_partition] = decode_commit(value)
        return groups
