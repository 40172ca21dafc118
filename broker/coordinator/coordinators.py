"""Coordinators: groups and transactions, as the partitions of their topics come and go.

Called by: the event loop's thread only.
"""

from typing import Any

from kafka.structs import TopicPartition

from broker.cluster.metadata import CONSUMER_OFFSETS, TRANSACTION_STATE
from broker.coordinator.group import GroupCoordinator
from broker.coordinator.offsets import Groups
from broker.coordinator.state_loader import StateLoader
from broker.coordinator.transactions import TransactionCoordinator, Transactions


class Coordinators:
    """Tells each coordinator what concerns it."""

    def __init__(
        self,
        group_loader: StateLoader[Groups],
        groups: GroupCoordinator,
        transaction_loader: StateLoader[Transactions],
        transactions: TransactionCoordinator,
    ) -> None:
        self._loaders: dict[str, StateLoader[Any]] = {
            CONSUMER_OFFSETS: group_loader,
            TRANSACTION_STATE: transaction_loader,
        }
        self._groups = groups
        self._transactions = transactions

    def lead(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """This broker leads a partition of an internal topic."""
        self._loaders[topic_partition.topic].lead(topic_partition.partition, leader_epoch)

    def resign(self, topic_partition: TopicPartition) -> None:
        """This broker leads a partition of an internal topic no more."""
        self._loaders[topic_partition.topic].resign(topic_partition.partition)

    def topic_deleted(self, name: str) -> None:
        """What was committed of a topic goes with it; transactions end that nobody knows of."""
        if name == TRANSACTION_STATE:
            self._transactions.topic_deleted()
        elif name != CONSUMER_OFFSETS:
            self._groups.topic_deleted(name)

    def close(self) -> None:
        """Gives everything up, so that nothing is written any more."""
        for loader in self._loaders.values():
            loader.close()
