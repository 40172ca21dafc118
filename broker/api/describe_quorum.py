"""DescribeQuorum (key 55), versions 0-2: who keeps the metadata and how far; this broker alone.

The metadata of a broker alone is a database of its own and no log of records, so its offsets are 0.
"""

import time
from typing import Any

from kafka.errors import UnknownTopicOrPartitionError
from kafka.protocol.admin import DescribeQuorumRequest, DescribeQuorumResponse

from broker.api.contexts import MetadataContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response

_METADATA_TOPIC = "__cluster_metadata"
_LEADER_EPOCH = 1
_TOPIC = DescribeQuorumResponse.TopicData
_PARTITION = _TOPIC.PartitionData
_REPLICA = _PARTITION.ReplicaState
_NODE = DescribeQuorumResponse.Node


def handle(request: Request, context: MetadataContext) -> Response:
    wanted = request.decode(DescribeQuorumRequest)
    asked = [
        (topic.topic_name, [part.partition_index for part in topic.partitions or ()])
        for topic in wanted.topics or ()
    ]
    node = context.metadata.broker
    is_known = asked == [(_METADATA_TOPIC, [0])]
    describe = _described if is_known else _unknown
    response = DescribeQuorumResponse(
        error_code=0,
        error_message="",
        topics=[
            _TOPIC(
                topic_name=name,
                partitions=[describe(index, node.node_id) for index in indexes],
            )
            for name, indexes in asked
        ],
        nodes=[
            _NODE(
                node_id=node.node_id,
                listeners=[_NODE.Listener(name="PLAINTEXT", host=node.host, port=node.port)],
            )
        ]
        if is_known
        else [],
    )
    return response


def _described(index: int, node_id: int) -> Any:
    now_ms = int(time.time() * 1000)
    voter = _REPLICA(
        replica_id=node_id,
        replica_directory_id=None,
        log_end_offset=0,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return _PARTITION(
        partition_index=index,
        error_code=0,
        error_message="",
        leader_id=node_id,
        leader_epoch=_LEADER_EPOCH,
        high_watermark=0,
        current_voters=[voter],
        observers=[],
    )


def _unknown(index: int, node_id: int) -> Any:
    error = UnknownTopicOrPartitionError("This server does not host this topic-partition.")
    code, message = wire_error(error)
    return _PARTITION(
        partition_index=index,
        error_code=code,
        error_message=message,
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=[],
        observers=[],
    )


API = Api(key=55, min_version=0, max_version=2, handle=handle, context=MetadataContext)
