"""WriteTxnMarkers (key 27), versions 1-2: ends transactions in partitions that this broker leads.

Sent by their coordinators, on other brokers, and by kafka-transactions to abort a hanging
transaction: one that is open in a log though its coordinator does not know of it. Coordinator epoch
-1 stands for one that is not known. Many markers are written over several turns of the loop;
answered when they are committed.
"""

import asyncio
from collections.abc import Mapping
from typing import TypeAlias

from kafka.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    NotLeaderForPartitionError,
)
from kafka.protocol.producer import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kafka.structs import TopicPartition

from broker.api.contexts import TransactionContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.coordinator.marker_messages import EndOfTransaction
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.replica.delayed import Appended
from pyspark_kafkalog.record.control import TransactionMarker

_TRANSACTION_VERSION_REQUEST = 2
_RESULT = WriteTxnMarkersResponse.WritableTxnMarkerResult
_TOPIC = _RESULT.WritableTxnMarkerTopicResult
_PARTITION = _TOPIC.WritableTxnMarkerPartitionResult

_Key: TypeAlias = tuple[int, TopicPartition]
"""A marker of the request, by its number, and a partition that it goes to."""


async def handle(request: Request, context: TransactionContext) -> Response:
    wanted = request.decode(WriteTxnMarkersRequest)
    has_version = request.version >= _TRANSACTION_VERSION_REQUEST
    errors: dict[_Key, BrokerResponseError | None] = {}
    uncommitted: dict[_Key, Appended] = {}
    for number, marker in enumerate(wanted.markers):
        end = EndOfTransaction(
            ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch),
            TransactionMarker(marker.transaction_result, marker.coordinator_epoch),
            marker.transaction_version if has_version else 0,
        )
        for topic in marker.topics:
            for index in topic.partition_indexes:
                await asyncio.sleep(0)
                key = number, TopicPartition(topic.name, index)
                errors[key] = None
                try:
                    appended = context.markers.append(key[1], end)
                except CoordinatorLoadInProgressError:
                    # As a broker that asks knows it: try again.
                    errors[key] = NotLeaderForPartitionError()
                except BrokerResponseError as error:
                    errors[key] = error
                else:
                    if not context.markers.is_committed(appended):
                        uncommitted[key] = appended
    if uncommitted:
        failures = await context.markers.wait_committed(list(uncommitted.values()))
        errors |= dict(zip(uncommitted, failures, strict=True))
    return _answer(wanted, errors)


def _answer(
    wanted: WriteTxnMarkersRequest, errors: Mapping[_Key, BrokerResponseError | None]
) -> Response:
    results = [
        _RESULT(
            producer_id=marker.producer_id,
            topics=[
                _TOPIC(
                    name=topic.name,
                    partitions=[
                        _PARTITION(
                            partition_index=index,
                            error_code=code_of(errors[number, TopicPartition(topic.name, index)]),
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in marker.topics
            ],
        )
        for number, marker in enumerate(wanted.markers)
    ]
    return WriteTxnMarkersResponse(markers=results)


API = Api(key=27, min_version=1, max_version=2, handle=handle, context=TransactionContext)
