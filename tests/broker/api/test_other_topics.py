"""Requests by the id of a topic whose name the log of another one still has: a broker may hear of
the new one by its metadata before it is told to give up the one before."""

import asyncio
from typing import Any

from kafka.errors import InconsistentTopicIdError
from kafka.structs import TopicPartition

from broker.api import fetch, produce
from broker.cluster.metadata import TopicMetadata
from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest, encode_fetch_request
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)
from tests.support.records import batch_of
from tests.support.replicated_broker import OTHER, TOPIC, ReplicatedBroker, replicated_broker

PLACE = TopicPartition(TOPIC, 0)


def produced(topic: TopicMetadata, broker: ReplicatedBroker) -> Any:
    part = ProducePartition(TOPIC, 0, batch_of(1), topic.topic_id)
    wanted = ProduceRequest(13, None, 1, 0, [part])
    body = b"".join(encode_produce_request(wanted))
    return broker.send(produce.API, body, 13).partitions[0].error_code


def fetched(topic: TopicMetadata, broker: ReplicatedBroker, follower_id: int = -1) -> Any:
    part = FetchPartition(TOPIC, 0, 0, 1 << 20, topic_id=topic.topic_id)
    wanted = FetchRequest(17, 0, 1, [part], replica_id=follower_id)
    response = broker.send(fetch.API, bytes(encode_fetch_request(wanted)), 17)
    return response.partitions[0].error_code


def test_they_neither_get_nor_leave_anything_in_the_log() -> None:
    async def scenario() -> None:
        with replicated_broker() as broker:
            before, log = broker.topics[TOPIC], broker.replicas.partition(PLACE).log
            assert produced(before, broker) == fetched(before, broker) == 0
            broker.add_topic(TOPIC, 2, OTHER)  # of the same name
            after = broker.topics[TOPIC]
            assert [
                produced(after, broker),
                fetched(after, broker),
                fetched(after, broker, OTHER.node_id),
            ] == [InconsistentTopicIdError.errno] * 3
            assert log.log_end_offset == 1

    asyncio.run(scenario())
