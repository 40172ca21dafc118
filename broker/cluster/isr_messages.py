"""AlterPartition (key 56, version 3), ControlledShutdown (7, 3) and AllocateProducerIds (67, 0) on
the wire: what brokers ask of their controller.

In the versions of inter.broker.protocol.version 3.9. Pure functions between messages and the values
of `control`: any thread.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final
from uuid import UUID

from kafka.errors import BrokerResponseError, for_code
from kafka.protocol.api_message import ApiMessage

from broker.cluster.control import AlterPartition, IsrAnswer, IsrChange
from broker.cluster.error_codes import code_of
from broker.cluster.metadata import PartitionMetadata

ALTER_PARTITION_VERSION: Final = 3
CONTROLLED_SHUTDOWN_VERSION: Final = 3
ALLOCATE_PRODUCER_IDS_VERSION: Final = 0
_SCHEMAS = "broker.cluster.schemas"
_NO_EPOCH = -1
"""In a cluster over ZooKeeper the replicas' epochs are not told."""


class AlterPartitionRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """Other ISRs, by topic ids."""


class AlterPartitionResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """What each partition is now, or an error for it."""


class ControlledShutdownRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """A broker is about to stop."""


class ControlledShutdownResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """What it still leads."""


class AllocateProducerIdsRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """A broker has none left to give away."""


class AllocateProducerIdsResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """The block of ids that is its own."""


def alter_partition_message(request: AlterPartition) -> Any:
    """As it goes to the controller."""
    topic_class = AlterPartitionRequest.TopicData
    partition_class = topic_class.PartitionData
    return AlterPartitionRequest(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        topics=[
            topic_class(
                topic_id=topic_id,
                partitions=[
                    partition_class(
                        partition_index=change.partition,
                        leader_epoch=change.leader_epoch,
                        new_isr_with_epochs=[
                            partition_class.BrokerState(broker_id=each, broker_epoch=_NO_EPOCH)
                            for each in change.isr
                        ],
                        leader_recovery_state=0,
                        partition_epoch=change.partition_epoch,
                    )
                    for change in changes
                ],
            )
            for topic_id, changes in groupby(request.changes, lambda change: change.topic_id)
        ],
    )


def alter_partition_in(message: Any) -> AlterPartition:
    """What a broker asks for."""
    return AlterPartition(
        message.broker_id,
        message.broker_epoch,
        [
            IsrChange(
                topic.topic_id,
                asked.partition_index,
                asked.leader_epoch,
                tuple(each.broker_id for each in asked.new_isr_with_epochs),
                asked.partition_epoch,
            )
            for topic in message.topics
            for asked in topic.partitions
        ],
    )


def alter_partition_response(
    request: AlterPartition,
    answers: Sequence[IsrAnswer],
    error: BrokerResponseError | None = None,
) -> Any:
    """What the controller answers, in the changes' order; `error`: why it has done nothing."""
    topic_class = AlterPartitionResponse.TopicData
    answered = [] if error else list(zip(request.changes, answers, strict=True))
    return AlterPartitionResponse(
        error_code=code_of(error),
        topics=[
            topic_class(
                topic_id=topic_id,
                partitions=[_answer(change.partition, answer) for change, answer in of_topic],
            )
            for topic_id, of_topic in groupby(answered, lambda each: each[0].topic_id)
        ],
    )


def _answer(index: int, answer: IsrAnswer) -> Any:
    partition_class = AlterPartitionResponse.TopicData.PartitionData
    if isinstance(answer, BrokerResponseError):
        return partition_class(partition_index=index, error_code=code_of(answer))
    return partition_class(
        partition_index=index,
        error_code=0,
        leader_id=answer.leader,
        leader_epoch=answer.leader_epoch,
        isr=list(answer.isr),
        leader_recovery_state=int(answer.is_recovering),
        partition_epoch=answer.partition_epoch,
    )


def alter_partition_answers(response: Any) -> dict[tuple[UUID, int], IsrAnswer]:
    """By topic id and partition. Raises what the controller says of the whole request."""
    if response.error_code:
        raise for_code(response.error_code)()
    return {
        (topic.topic_id, answer.partition_index): _answer_in(answer)
        for topic in response.topics
        for answer in topic.partitions
    }


def _answer_in(answer: Any) -> IsrAnswer:
    if answer.error_code:
        error: BrokerResponseError = for_code(answer.error_code)()
        return error
    return PartitionMetadata(
        (),
        answer.leader_id,
        answer.leader_epoch,
        tuple(answer.isr),
        answer.partition_epoch,
        is_recovering=bool(answer.leader_recovery_state),
    )
