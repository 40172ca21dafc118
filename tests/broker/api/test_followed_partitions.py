"""What a broker answers of a partition that it follows, to tools that compare replicas."""

import asyncio
from dataclasses import replace

from kafka.errors import NotLeaderForPartitionError
from kafka.protocol.admin import DescribeProducersRequest
from kafka.structs import TopicPartition

from broker.api import describe_producers, fetch
from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest, encode_fetch_request
from tests.broker.log.batches import batch
from tests.support.present import present
from tests.support.replicated_broker import OTHER, TOPIC, ReplicatedBroker, replicated_broker

PLACE = TopicPartition(TOPIC, 0)
DEBUGGING = -2
"""Whoever fetches so is no broker: kafka-replica-verification."""


def follow(broker: ReplicatedBroker) -> None:
    topic = broker.topics[TOPIC]
    state = replace(topic.partitions[0], leader=OTHER.node_id, leader_epoch=1)
    partition = broker.replicas.follow(PLACE, topic.topic_id, state)
    broker.replicas.follow_leader(partition, partition.log.log_end_offset, 0)


def fetched(broker: ReplicatedBroker, version: int = 17) -> tuple[int, int]:
    part = FetchPartition(TOPIC, 0, 0, 1 << 20, topic_id=broker.topics[TOPIC].topic_id)
    wanted = FetchRequest(version, 0, 1, [part], replica_id=DEBUGGING)
    response = broker.send(fetch.API, bytes(encode_fetch_request(wanted)), version)
    (found,) = response.partitions
    return found.error_code, 0 if found.records is None else len(found.records)


def test_its_records_to_who_is_no_broker() -> None:
    async def scenario() -> None:
        with replicated_broker() as broker:
            log = present(broker.replicas.kept(PLACE)).log
            log.append(batch(), 0)
            assert fetched(broker) == (0, 0)  # not committed
            follow(broker)
            assert fetched(broker) == (0, log.size_bytes)
            assert fetched(broker, 10) == (NotLeaderForPartitionError.errno, 0)

    asyncio.run(scenario())


def test_its_producers() -> None:
    async def scenario() -> None:
        with replicated_broker() as broker:
            log = present(broker.replicas.kept(PLACE)).log
            log.append(batch(producer=(7, 0, 0)), 0)
            follow(broker)
            topic_class = DescribeProducersRequest.TopicRequest
            request = DescribeProducersRequest(
                topics=[topic_class(name=TOPIC, partition_indexes=[0])]
            )
            response = await broker.ask(describe_producers.API, request, 0)
            (found,) = response.topics[0].partitions
            assert found.error_code == 0
            assert [each.producer_id for each in found.active_producers] == [7]

    asyncio.run(scenario())
