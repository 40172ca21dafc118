"""A ReplicaManager that leads a topic, without a controller that says so."""

import time
from collections.abc import Callable
from typing import NoReturn

from broker.cluster.control import IsrChange
from broker.cluster.metadata import BrokerNode, TopicMetadata
from broker.config.broker import BrokerConfig
from broker.log.manager import LogManager
from broker.replica.fetchers import ReplicaFetchers
from broker.replica.isr import ReplicaHost
from broker.replica.manager import ReplicaManager
from broker.replica.purgatory import Purgatory, Timer
from broker.replica.throttle import Throttles


def host_alone(node_id: int = 1) -> ReplicaHost:
    """Of a broker that knows no others."""
    return ReplicaHost(
        node_id,
        30_000,
        lambda other: True,
        lambda place: False,
        lambda: time.monotonic_ns() // 10**6,
    )


async def no_isr_change(change: IsrChange) -> NoReturn:
    """What a broker without followers never asks for."""
    raise AssertionError(change)


def no_throttles() -> Throttles:
    """Of a broker where replicas are copied as fast as it goes."""
    return Throttles(BrokerConfig(), lambda: 0)


def replicas_alone(logs: LogManager, purgatory: Purgatory) -> ReplicaManager:
    """Of a broker whose partitions have no followers."""
    return ReplicaManager(logs, purgatory, host_alone(), no_isr_change, no_throttles())


class _NoTimer:
    def cancel(self) -> None:
        pass


def never(delay_s: float, run: Callable[[], None]) -> Timer:
    """In place of the loop's `call_later`: a time that does not come."""
    return _NoTimer()


def no_fetchers() -> ReplicaFetchers:
    """Of a broker that follows nobody."""

    def refuse(leader: BrokerNode) -> NoReturn:
        raise AssertionError(leader)

    return ReplicaFetchers(refuse)


def lead(replicas: ReplicaManager, topic: TopicMetadata, *, make_logs: bool = True) -> None:
    """Serves all partitions of the topic."""
    for topic_partition, state in zip(topic.topic_partitions(), topic.partitions, strict=True):
        if make_logs:
            replicas.make_logs({topic_partition: topic.topic_id}, [topic_partition])
        replicas.lead(topic_partition, topic.topic_id, state)


def stop(replicas: ReplicaManager, topic: TopicMetadata) -> None:
    """Serves none of them any more."""
    for topic_partition in topic.topic_partitions():
        replicas.stop(topic_partition)
