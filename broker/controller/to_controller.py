"""ToController: what this broker asks of its cluster's controller, whichever broker that is.

Owns: the changes of ISRs that wait to be asked for: one request at a time carries all of them. What
a controller that is none any more, or is not reached, has not done is asked of the next. Called by:
the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafka.errors import (
    BrokerNotAvailableError,
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    InvalidUpdateVersionError,
    KafkaConnectionError,
    NotControllerError,
    StaleBrokerEpochError,
    UnknownError,
    for_code,
)
from kafka.protocol.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kafka.structs import TopicPartition

from broker.cluster.cache import MetadataCache
from broker.cluster.control import AlterPartition, IsrChange
from broker.cluster.isr_messages import (
    ALLOCATE_PRODUCER_IDS_VERSION,
    ALTER_PARTITION_VERSION,
    CONTROLLED_SHUTDOWN_VERSION,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    alter_partition_answers,
    alter_partition_message,
)
from broker.cluster.metadata import NO_CONTROLLER, PartitionMetadata
from broker.cluster.to_brokers import AskBroker

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.05
_CREATE_TOPICS_VERSION: Final = 7
_CREATE_TIMEOUT_MS: Final = 30_000
_ASK_ANOTHER = (NotControllerError, StaleBrokerEpochError)


_Asked = tuple[IsrChange, asyncio.Future[PartitionMetadata]]


class ToController:
    """Requests to the controller, as the broker's metadata names it."""

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        metadata: MetadataCache,
        ask: AskBroker,
        ask_for_topic: AskBroker,
    ) -> None:
        """`node_id` and `broker_epoch` are this broker's; `ask_for_topic` has connections of its
        own: a topic is made as late as the slowest of its brokers, and nobody waits behind it."""
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._metadata = metadata
        self._ask = ask
        self._ask_for_topic = ask_for_topic
        self._changes: list[_Asked] = []
        self._asking: asyncio.Task[None] | None = None

    async def alter_isr(self, change: IsrChange) -> PartitionMetadata:
        """The partition as it is by that. Raises BrokerResponseError where the controller
        refuses."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[PartitionMetadata] = loop.create_future()
        self._add([(change, answer)])
        if self._asking is None:
            self._asking = loop.create_task(self._ask_for_changes())
        return await answer

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        replication_factor: int,
        configs: Mapping[str, str],
    ) -> None:
        """Has the controller make a topic. Raises BrokerResponseError."""
        topic_class = CreateTopicsRequest.CreatableTopic
        message = CreateTopicsRequest(
            topics=[
                topic_class(
                    name=name,
                    num_partitions=partition_count,
                    replication_factor=replication_factor,
                    assignments=[],
                    configs=[
                        topic_class.CreatableTopicConfig(name=key, value=value)
                        for key, value in configs.items()
                    ],
                )
            ],
            timeout_ms=_CREATE_TIMEOUT_MS,
            validate_only=False,
        )
        try:
            response = await self._ask_for_topic(
                self._controller_id(), message, _CREATE_TOPICS_VERSION, CreateTopicsResponse
            )
        except KafkaConnectionError as error:
            raise BrokerNotAvailableError(str(error)) from error
        (created,) = response.topics
        if created.error_code:
            raise for_code(created.error_code)(created.error_message)

    async def allocate_producer_ids(self) -> range:
        """Producer ids that are this broker's. Raises CoordinatorLoadInProgressError where the
        controller is not reached, or gives none."""
        message = AllocateProducerIdsRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch()
        )
        try:
            response = await self._request(
                message, ALLOCATE_PRODUCER_IDS_VERSION, AllocateProducerIdsResponse
            )
            if response.error_code:
                raise for_code(response.error_code)()
        except (KafkaConnectionError, BrokerResponseError) as error:
            _log.warning("producer_ids.asked_in_vain reason=%r", str(error))
            raise CoordinatorLoadInProgressError(str(error)) from error
        first = int(response.producer_id_start)
        return range(first, first + response.producer_id_len)

    async def shut_down(self) -> list[TopicPartition]:
        """This broker is about to stop: the partitions that nobody else can lead. Raises
        KafkaConnectionError and BrokerResponseError."""
        message = ControlledShutdownRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch()
        )
        response = await self._request(
            message, CONTROLLED_SHUTDOWN_VERSION, ControlledShutdownResponse
        )
        if response.error_code:
            raise for_code(response.error_code)()
        return [
            TopicPartition(each.topic_name, each.partition_index)
            for each in response.remaining_partitions
        ]

    def close(self) -> None:
        """Asks for nothing any more."""
        if self._asking is not None:
            self._asking.cancel()
        for _, answer in self._changes:
            answer.cancel()

    async def _ask_for_changes(self) -> None:
        refused_for = ""
        while self._changes:
            asked, self._changes = self._changes, []
            asked = sorted(
                (each for each in asked if not each[1].done()), key=lambda each: each[0].topic_id
            )
            changes = [change for change, _ in asked]
            request = AlterPartition(self._node_id, self._broker_epoch(), changes)
            try:
                response = await self._request(
                    alter_partition_message(request),
                    ALTER_PARTITION_VERSION,
                    AlterPartitionResponse,
                )
                outcomes = alter_partition_answers(response)
            except (KafkaConnectionError, BrokerResponseError) as error:
                if str(error) != refused_for:
                    refused_for = str(error)
                    _log.info("isr.asked_in_vain reason=%r", refused_for)
                self._ask_again(asked)
                await asyncio.sleep(_RETRY_S)
                continue
            except Exception:
                # A bug: without this task no ISR would change.
                _log.exception("isr.asked_in_vain")
                self._ask_again(asked)
                await asyncio.sleep(_RETRY_S)
                continue
            for change, answer in asked:
                outcome = outcomes.get((change.topic_id, change.partition), UnknownError())
                if isinstance(outcome, _ASK_ANOTHER):
                    self._ask_again([(change, answer)])
                elif isinstance(outcome, BrokerResponseError):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)
            if self._changes:
                await asyncio.sleep(_RETRY_S)
        self._asking = None

    def _add(self, newer: list[_Asked]) -> None:
        """A partition is asked for once in a request: its answer would be taken for that to another
        question. Of what was asked before it, the controller's word is waited for."""
        anew = {(change.topic_id, change.partition) for change, _ in newer}
        kept = []
        for change, answer in self._changes:
            if (change.topic_id, change.partition) not in anew:
                kept.append((change, answer))
            elif not answer.done():
                answer.set_exception(InvalidUpdateVersionError("it is asked for otherwise now"))
        self._changes = kept + newer

    def _ask_again(self, older: list[_Asked]) -> None:
        newer, self._changes = self._changes, older
        self._add(newer)

    async def _request(self, message: Any, version: int, response_class: Any) -> Any:
        """Raises KafkaConnectionError."""
        return await self._ask(self._controller_id(), message, version, response_class)

    def _controller_id(self) -> int:
        """Raises KafkaConnectionError."""
        controller_id = self._metadata.controller_id
        if controller_id == NO_CONTROLLER:
            raise KafkaConnectionError("the cluster has no controller, as far as is known")
        return controller_id
