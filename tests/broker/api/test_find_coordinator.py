"""Which broker coordinates what, in a cluster, and how the coordinators' topics come about."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from kafka.errors import (
    BrokerNotAvailableError,
    InvalidReplicationFactorError,
    TopicAlreadyExistsError,
)
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.structs import TopicPartition

from broker.api import find_coordinator
from broker.api.contexts import MetadataContext
from broker.api.request import Api
from broker.cluster.control import LEADER_DURING_DELETE, NO_LEADER
from broker.cluster.metadata import CONSUMER_OFFSETS, TRANSACTION_STATE, BrokerNode, new_topic
from broker.config.broker import BrokerConfig
from broker.coordinator.group_metadata import GroupMetadata
from broker.coordinator.offsets import offsets_topic_kind
from broker.coordinator.state_topic import StateTopic, StateTopicKind, java_hash_magnitude
from broker.coordinator.transactions import transactions_topic_kind
from tests.support.replicated_broker import ME, OTHER, ReplicatedBroker, replicated_broker

GROUP, TRANSACTION, SHARE = 0, 1, 2
INVALID_REQUEST, COORDINATOR_NOT_AVAILABLE = 42, 15
NAMES = {GROUP: CONSUMER_OFFSETS, TRANSACTION: TRANSACTION_STATE}
CLUSTER = {"zookeeper.connect": "localhost:2181"}


def run(scenario: Callable[[ReplicatedBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        with replicated_broker() as broker:
            await scenario(broker)

    asyncio.run(main())


def ask(
    *keys: str, key_type: int = GROUP, version: int = 4
) -> tuple[Api[MetadataContext], Any, int]:
    if version < 4:
        (key,) = keys
        message = FindCoordinatorRequest(key=key, key_type=key_type)
    else:
        message = FindCoordinatorRequest(coordinator_keys=list(keys), key_type=key_type)
    return find_coordinator.API, message, version


def told(each: Any) -> tuple[Any, Any, Any, Any]:
    return each.node_id, each.host, each.port, each.error_code


def at(node: BrokerNode) -> tuple[int, str, int, int]:
    return node.node_id, node.host, node.port, 0


def lead(broker: ReplicatedBroker, name: str, *leaders: int) -> None:
    """The topic has a partition led by each."""
    topic = new_topic(name, len(leaders), 1)
    pairs = zip(topic.partitions, leaders, strict=True)
    partitions = tuple(replace(each, leader=leader) for each, leader in pairs)
    broker.tell(replace(topic, partitions=partitions))


def key_of(partition: int, count: int) -> str:
    numbers = (f"key-{number}" for number in range(100))
    return next(key for key in numbers if java_hash_magnitude(key) % count == partition)


@pytest.mark.parametrize("key_type", [GROUP, TRANSACTION])
def test_it_is_the_leader_of_the_keys_partition(key_type: int) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        lead(broker, NAMES[key_type], 1, 2)
        mine, others = key_of(0, 2), key_of(1, 2)
        answer = await broker.ask(*ask(mine, others, key_type=key_type))
        nodes = {each.key: told(each) for each in answer.coordinators}
        assert nodes == {mine: at(ME), others: at(OTHER)}
        old = await broker.ask(*ask(others, key_type=key_type, version=3))
        assert told(old) == at(OTHER)

    run(scenario)


@pytest.mark.parametrize("leader", [NO_LEADER, 3])
def test_without_a_leader_that_is_there_nobody_is(leader: int) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        lead(broker, CONSUMER_OFFSETS, leader, 1)
        keys = key_of(0, 2), key_of(1, 2)
        none, one = (await broker.ask(*ask(*keys))).coordinators
        assert told(none) == (-1, "", -1, COORDINATOR_NOT_AVAILABLE)
        assert told(one) == at(ME)

    run(scenario)


def test_share_groups_have_none() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        (found,) = (await broker.ask(*ask("key", key_type=SHARE))).coordinators
        assert told(found) == (-1, "", -1, INVALID_REQUEST)

    run(scenario)


class Creating:
    """The controller, which has no answer, or an error, for who wants a topic."""

    def __init__(
        self, broker: ReplicatedBroker, kind: StateTopicKind[dict[str, GroupMetadata]]
    ) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self.error: Exception | None = None
        self.broker = broker
        topic = StateTopic(kind, broker.metadata, self.create, broker.replicas, lambda: 0)
        broker.context.offsets_topic = topic
        broker.tell(
            replace(
                broker.topics[kind.name],
                partitions=(
                    replace(broker.topics[kind.name].partitions[0], leader=LEADER_DURING_DELETE),
                ),
            )
        )

    async def create(
        self, name: str, partition_count: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        self.asked.append((name, partition_count, replication_factor))
        if self.error is not None:
            raise self.error


def test_the_topic_is_made_with_as_many_replicas_as_are_set() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        config = BrokerConfig.from_properties(CLUSTER | {"offsets.topic.replication.factor": "2"})
        creating = Creating(broker, offsets_topic_kind(config))
        (found,) = (await broker.ask(*ask("key"))).coordinators
        # Made, and not heard of yet.
        assert found.error_code == COORDINATOR_NOT_AVAILABLE
        assert creating.asked == [(CONSUMER_OFFSETS, 50, 2)]
        lead(broker, CONSUMER_OFFSETS, 2)
        (found,) = (await broker.ask(*ask("key"))).coordinators
        assert told(found) == at(OTHER)
        assert len(creating.asked) == 1

    run(scenario)


@pytest.mark.parametrize(
    "error", [InvalidReplicationFactorError, TopicAlreadyExistsError, BrokerNotAvailableError]
)
def test_a_topic_that_cannot_be_made_now_is_tried_with_the_next_question(
    error: type[Exception],
) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        creating = Creating(broker, offsets_topic_kind(BrokerConfig.from_properties(CLUSTER)))
        creating.error = error("not now")
        for number in (1, 2):
            (found,) = (await broker.ask(*ask("key"))).coordinators
            assert found.error_code == COORDINATOR_NOT_AVAILABLE
            assert "not now" in found.error_message
            assert len(creating.asked) == number

    run(scenario)


def test_what_is_set_counts_in_a_cluster_and_one_replica_alone() -> None:
    def made(**properties: str) -> tuple[int, int, str]:
        config = BrokerConfig.from_properties(properties)
        transactions = transactions_topic_kind(config)
        return (
            offsets_topic_kind(config).replication_factor,
            transactions.replication_factor,
            transactions.configs["min.insync.replicas"],
        )

    assert made() == (1, 1, "1")
    assert made(**CLUSTER) == (3, 3, "2")
    one = {"offsets.topic.replication.factor": "2", "transaction.state.log.replication.factor": "1"}
    assert made(**CLUSTER, **one) == (2, 1, "1")


def test_partitions_that_are_added_leave_coordinators_where_they_are() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        before = broker.offsets_topic.partition_of("key")
        topic = broker.topics[CONSUMER_OFFSETS]
        broker.tell(replace(topic, partitions=topic.partitions * 3))
        assert broker.offsets_topic.coordinator_of("key") == ME
        assert broker.offsets_topic.partition_of("key") == before
        assert TopicPartition(CONSUMER_OFFSETS, before) in topic.topic_partitions()

    run(scenario)
