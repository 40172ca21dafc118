"""What a broker finds in its data directory when it starts, and its metadata does not tell of.

Called by: `server`, before anything is served. Blocks.
"""

import contextlib
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from kafka.errors import BrokerResponseError, CorruptRecordError

from broker.api.topic_names import is_topic_name
from broker.cluster.entity_configs import EntityConfigs
from broker.cluster.metadata import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    PartitionMetadata,
    TopicMetadata,
    new_topic,
)
from broker.cluster.records import MetadataRecords
from broker.config.broker import BrokerConfig
from broker.coordinator.offsets import offsets_topic_kind
from broker.coordinator.transaction_metadata import NO_PRODUCER_ID
from broker.coordinator.transactions import read_transactions, transactions_topic_kind
from broker.log.manager import LogManager

_log = logging.getLogger(__name__)

_ADOPTED_TOPIC_CONFIGS = {"retention.ms": "-1", "retention.bytes": "-1"}


def adopt_logs(
    logs: LogManager,
    records: MetadataRecords,
    topic_configs: EntityConfigs,
    config: BrokerConfig,
) -> bool:
    """Logs without a topic: a data directory of Apache Kafka's, or one whose metadata is lost.

    They become topics again, if all partitions up to the last are there.
    What was set on them is not known: by the defaults retention would delete what a compacted
    topic, or one that is kept for ever, still holds. So nothing is deleted until somebody says so.
    Returns whether there were any. Raises OSError and kafka.errors.
    """
    known = set(records.topic_names())
    found: defaultdict[str, set[int]] = defaultdict(set)
    for topic_partition in logs.all_logs():
        if topic_partition.topic not in known:
            found[topic_partition.topic].add(topic_partition.partition)
    adopted = []
    for name, indexes in found.items():
        if indexes != set(range(len(indexes))) or not is_topic_name(name):
            _log.warning("topic.not_adopted topic=%r partitions=%r", name, sorted(indexes))
            continue
        configs: Mapping[str, str] = _ADOPTED_TOPIC_CONFIGS
        if name == CONSUMER_OFFSETS:
            configs = offsets_topic_kind(config).configs
        elif name == TRANSACTION_STATE:
            configs = transactions_topic_kind(config).configs
        topic = new_topic(name, len(indexes), config.broker_id)
        topic_id = logs.topic_id(topic.topic_partitions()[0])
        if topic_id is not None:
            topic = replace(topic, topic_id=topic_id)
        topic = replace(topic, partitions=_partitions_of(topic, logs))
        records.create_topic(topic, configs)
        adopted.append(name)
        _log.warning(
            "topic.adopted topic=%r partitions=%d configs=%r",
            name,
            len(indexes),
            ",".join(f"{key}={value}" for key, value in configs.items()),
        )
    if adopted:
        topic_configs.load()
    for name in adopted:
        logs.update_topic_config(name)
    return bool(found)


def _partitions_of(topic: TopicMetadata, logs: LogManager) -> tuple[PartitionMetadata, ...]:
    """Of a topic that is adopted: its leader epochs go on after those of its logs, as clients
    and the markers of transactions know them."""
    partitions = []
    for topic_partition, partition in zip(topic.topic_partitions(), topic.partitions, strict=True):
        epoch = logs.all_logs()[topic_partition].leader_epochs.latest_epoch
        if epoch is not None:
            partition = replace(partition, leader_epoch=epoch)
        partitions.append(partition)
    return tuple(partitions)


def last_producer_id(logs: LogManager) -> int:
    """The greatest one that the logs tell of; -1 where they know of none."""
    last = NO_PRODUCER_ID
    for topic_partition, log in logs.all_logs().items():
        last = max(last, *log.producers.entries, NO_PRODUCER_ID)
        if topic_partition.topic != TRANSACTION_STATE:
            continue
        # What cannot be read is reported when it is loaded.
        with contextlib.suppress(OSError, BrokerResponseError, CorruptRecordError):
            for transaction in read_transactions(log).values():
                last = max(last, transaction.producer_id, transaction.next_producer_id)
    return last
