"""WriteTxnMarkers (key 27), versions 1-2: ends transactions in partitions, without a coordinator.

Sent by kafka-transactions to abort a hanging transaction: one that is open in a log though its
coordinator does not know of it. Coordinator epoch -1 stands for one that is not known. Many markers
are written over several turns of the loop.
"""

import asyncio

from kafka.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    NotLeaderForPartitionError,
)
from kafka.protocol.producer import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kafka.structs import TopicPartition

from broker.api.errors import code_of
from broker.api.request import Api, ApiContext, Request
from broker.api.response import Response
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_markers import EndOfTransaction
from pyspark_kafkalog.record.control import TransactionMarker

_TRANSACTION_VERSION_REQUEST = 2
_RESULT = WriteTxnMarkersResponse.WritableTxnMarkerResult
_TOPIC = _RESULT.WritableTxnMarkerTopicResult
_PARTITION = _TOPIC.WritableTxnMarkerPartitionResult


async def handle(request: Request, context: ApiContext) -> Response:
    wanted = request.decode(WriteTxnMarkersRequest)
    has_version = request.version >= _TRANSACTION_VERSION_REQUEST
    results = []
    for marker in wanted.markers:
        end = EndOfTransaction(
            ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch),
            TransactionMarker(marker.transaction_result, marker.coordinator_epoch),
            marker.transaction_version if has_version else 0,
        )
        topics = [
            _TOPIC(
                name=topic.name,
                partitions=[
                    await _write(TopicPartition(topic.name, index), end, context)
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ]
        results.append(_RESULT(producer_id=marker.producer_id, topics=topics))
    return WriteTxnMarkersResponse(markers=results)


async def _write(place: TopicPartition, end: EndOfTransaction, context: ApiContext) -> object:
    await asyncio.sleep(0)
    error: BrokerResponseError | None = None
    try:
        context.markers.write_one(place, end)
    except CoordinatorLoadInProgressError:
        error = NotLeaderForPartitionError()  # as a broker that asks knows it: try again
    except BrokerResponseError as raised:
        error = raised
    return _PARTITION(partition_index=place.partition, error_code=code_of(error))


API = Api(key=27, min_version=1, max_version=2, handle=handle)
