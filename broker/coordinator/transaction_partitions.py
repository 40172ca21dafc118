"""Whether a producer's records, or a group's offsets, may go into its transaction.

Asked by Produce and TxnOffsetCommit before they append (KIP-890). Clients of transaction version 2
add partitions by writing to them; those of older versions have added them before, which is verified
here, so that no late request leaves a transaction open that nobody ends. The transaction's
coordinator knows: this broker's own, or another broker, which is asked by AddPartitionsToTxn, one
request at a time with all transactions that wait. Called by: the event loop's thread only.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from kafka.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaConnectionError,
    NetworkExceptionError,
    ProducerFencedError,
    TransactionAbortableError,
    for_code,
)
from kafka.protocol.producer import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kafka.structs import TopicPartition

from broker.cluster.metadata import BrokerNode
from broker.cluster.to_brokers import AskBroker, Batches
from broker.coordinator.marker_messages import by_topic
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_metadata import EPOCH_BUMP_VERSION
from broker.coordinator.transactions import TransactionCoordinator, TransactionsTopic

# The newest of inter.broker.protocol.version 3.9.
_VERSION: Final = 5
_TRANSACTIONS_A_REQUEST: Final = 500
_MOST_WAIT_S: Final = 10.0
"""A producer's connection waits as long. It gives that up after 30 s, and sends all again on
another one, while what lies on this one may be taken yet."""
_TRANSACTION = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction

JoinErrors: TypeAlias = Mapping[TopicPartition, BrokerResponseError | None]
"""By partition, None where the transaction has it, or why it does not."""


class TransactionSupport(Enum):
    """What the version of a request says of its client."""

    VERIFIED = "it has added its partitions"
    KNOWS_ABORTABLE = "it has, and knows TRANSACTION_ABORTABLE"
    ADDS_IMPLICITLY = "it adds them by writing"

    @classmethod
    def of(cls, version: int, abortable: int, implicit_add: int) -> "TransactionSupport":
        """Of a request's version, by the first versions of its API that say the latter two."""
        if version >= implicit_add:
            return cls.ADDS_IMPLICITLY
        return cls.KNOWS_ABORTABLE if version >= abortable else cls.VERIFIED


@dataclass(frozen=True, slots=True)
class JoinAsk:
    """Partitions that are to be in a producer's transaction."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    topic_partitions: Collection[TopicPartition]
    support: TransactionSupport

    @property
    def adds(self) -> bool:
        return self.support is TransactionSupport.ADDS_IMPLICITLY


_Waiting: TypeAlias = "tuple[JoinAsk, asyncio.Future[JoinErrors]]"


class TransactionPartitions:
    """Asks the coordinators of transactions, wherever they are."""

    def __init__(
        self,
        transactions: TransactionCoordinator,
        topic: TransactionsTopic,
        me: BrokerNode,
        ask: AskBroker,
        verifies: Callable[[], bool],
    ) -> None:
        """`verifies`: transaction.partition.verification.enable, as it is now."""
        self._transactions = transactions
        self._topic = topic
        self._me = me
        self._ask = ask
        self._verifies = verifies
        self._to_coordinators: Batches[_Waiting] = Batches(self._send)

    def close(self) -> None:
        """Asks nobody any more."""
        self._to_coordinators.close()

    def join_at_once(self, ask: JoinAsk) -> JoinErrors | None:
        """What `join` would say; None where that takes a wait: `join` is to be asked then."""
        if not ask.adds and not self._verifies():
            return dict.fromkeys(ask.topic_partitions)
        if self._coordinator_elsewhere(ask.transactional_id) is not None:
            return None
        try:
            errors = self._join_here(ask)
            if self._topic.awaits_commit(ask.transactional_id):
                return None
        except BrokerResponseError as error:
            errors = dict.fromkeys(ask.topic_partitions, error)
        return _as_client_knows(errors, ask)

    async def join(self, ask: JoinAsk) -> JoinErrors:
        """What a coordinator says counts when it is committed: one that takes over would not know
        of the partitions. NetworkExceptionError where another broker does not answer, or that takes
        longer than _MOST_WAIT_S."""
        try:
            return await asyncio.wait_for(self._join(ask), _MOST_WAIT_S)
        except asyncio.TimeoutError:
            late = NetworkExceptionError(f"no word of the coordinator within {_MOST_WAIT_S:g} s")
            return dict.fromkeys(ask.topic_partitions, late)

    async def _join(self, ask: JoinAsk) -> JoinErrors:
        elsewhere = self._coordinator_elsewhere(ask.transactional_id)
        if elsewhere is not None:
            answer: asyncio.Future[JoinErrors] = asyncio.get_running_loop().create_future()
            self._to_coordinators.add(elsewhere, (ask, answer))
            return _as_client_knows(await answer, ask)
        try:
            errors = self._join_here(ask)
            await self._topic.wait_committed(ask.transactional_id)
        except BrokerResponseError as error:
            errors = dict.fromkeys(ask.topic_partitions, error)
        return _as_client_knows(errors, ask)

    def _coordinator_elsewhere(self, transactional_id: str) -> int | None:
        """The broker to ask; None where it is this one, or nobody knows."""
        if transactional_id in self._transactions.transactions():
            return None
        try:
            node_id = self._topic.coordinator_of(transactional_id).node_id
        except CoordinatorNotAvailableError:
            return None
        return None if node_id == self._me.node_id else node_id

    def _join_here(self, ask: JoinAsk) -> JoinErrors:
        """Raises why all are refused."""
        topic_partitions = frozenset(ask.topic_partitions)
        if not ask.adds:
            return self._transactions.verify_partitions(
                ask.transactional_id, ask.producer, topic_partitions
            )
        self._transactions.add_partitions(
            ask.transactional_id, ask.producer, topic_partitions, EPOCH_BUMP_VERSION
        )
        return dict.fromkeys(topic_partitions)

    async def _send(self, node_id: int, waiting: list[_Waiting]) -> list[_Waiting]:
        """Asks a broker for all of these; those that are to wait for the next request."""
        chosen: dict[str, _Waiting] = {}
        left = []
        for each in waiting:
            ask, answer = each
            if answer.done():  # who wanted to know has gone
                continue
            # Answers name transactions by their ids alone.
            if ask.transactional_id in chosen or len(chosen) == _TRANSACTIONS_A_REQUEST:
                left.append(each)
            else:
                chosen[ask.transactional_id] = each
        if not chosen:
            return left
        errors: dict[str, JoinErrors] = {}
        failure: BrokerResponseError = NetworkExceptionError()
        try:
            response = await self._ask(
                node_id,
                _message([ask for ask, _ in chosen.values()]),
                _VERSION,
                AddPartitionsToTxnResponse,
            )
        except KafkaConnectionError as error:
            failure = NetworkExceptionError(str(error))
        else:
            errors = _errors_in(response)
            if response.error_code:
                failure = _of_all(response.error_code)
        for transactional_id, (ask, answer) in chosen.items():
            told = errors.get(transactional_id, {})
            if not answer.done():
                answer.set_result({each: told.get(each, failure) for each in ask.topic_partitions})
        return left


def _message(asks: Collection[JoinAsk]) -> Any:
    return AddPartitionsToTxnRequest(
        transactions=[
            _TRANSACTION(
                transactional_id=ask.transactional_id,
                producer_id=ask.producer.producer_id,
                producer_epoch=ask.producer.epoch,
                verify_only=not ask.adds,
                topics=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                        name=name, partitions=partitions
                    )
                    for name, partitions in by_topic(ask.topic_partitions).items()
                ],
            )
            for ask in asks
        ]
    )


def _errors_in(response: Any) -> dict[str, JoinErrors]:
    """By transactional id."""
    return {
        result.transactional_id: {
            TopicPartition(topic.name, each.partition_index): (
                for_code(each.partition_error_code)() if each.partition_error_code else None
            )
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        for result in response.results_by_transaction or ()
    }


def _of_all(error_code: int) -> BrokerResponseError:
    """A whole request's error. That this broker may not ask is nothing for clients to hear."""
    error_class = for_code(error_code)
    if error_class is ClusterAuthorizationFailedError:
        return InvalidTxnStateError("this broker may not ask the transaction's coordinator")
    error: BrokerResponseError = error_class()
    return error


def _as_client_knows(errors: JoinErrors, ask: JoinAsk) -> JoinErrors:
    return {each: _known(errors.get(each), ask.support) for each in ask.topic_partitions}


def _known(
    error: BrokerResponseError | None, support: TransactionSupport
) -> BrokerResponseError | None:
    if isinstance(error, ProducerFencedError):
        return InvalidProducerEpochError()
    if isinstance(error, TransactionAbortableError) and support is TransactionSupport.VERIFIED:
        return InvalidTxnStateError("the partition was not added to the transaction")
    return error
