"""WriteTxnMarkers (key 27, version 1) as coordinators send it: the markers of several transactions.

The version is that of inter.broker.protocol.version 3.9; it does not say in which transaction
version a transaction ended. Pure functions: any thread.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kafka.errors import BrokerResponseError, for_code
from kafka.protocol.producer import WriteTxnMarkersRequest
from kafka.structs import TopicPartition

from broker.coordinator.state_records import ProducerIdAndEpoch
from pyspark_kafkalog.record.control import TransactionMarker

WRITE_TXN_MARKERS_VERSION: Final = 1

_MARKER = WriteTxnMarkersRequest.WritableTxnMarker

MarkerErrors: TypeAlias = Mapping[tuple[int, TopicPartition], BrokerResponseError | None]
"""By producer id and partition: why the marker is not known to be there, None where it is."""


@dataclass(frozen=True, slots=True)
class EndOfTransaction:
    """What every marker of one transaction says."""

    producer: ProducerIdAndEpoch
    marker: TransactionMarker
    transaction_version: int


def markers_message(ends: Iterable[tuple[EndOfTransaction, Iterable[TopicPartition]]]) -> Any:
    """The markers for one broker, each transaction's with the partitions that they go to; of a
    producer id one transaction alone, as answers name no other thing."""
    return WriteTxnMarkersRequest(
        markers=[
            _MARKER(
                producer_id=end.producer.producer_id,
                producer_epoch=end.producer.epoch,
                transaction_result=end.marker.is_commit,
                topics=[
                    _MARKER.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                    for name, indexes in by_topic(topic_partitions).items()
                ],
                coordinator_epoch=end.marker.coordinator_epoch,
            )
            for end, topic_partitions in ends
        ]
    )


def marker_errors(response: Any) -> MarkerErrors:
    """What a broker has answered."""
    return {
        (result.producer_id, TopicPartition(topic.name, each.partition_index)): (
            for_code(each.error_code)() if each.error_code else None
        )
        for result in response.markers
        for topic in result.topics
        for each in topic.partitions
    }


def by_topic(topic_partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions by topic, both in order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(topic_partitions):
        topics.setdefault(topic, []).append(partition)
    return topics
