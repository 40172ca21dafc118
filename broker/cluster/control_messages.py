"""LeaderAndIsr (key 4, version 7), StopReplica (5, 4) and UpdateMetadata (6, 8) on the wire.

The versions are those of inter.broker.protocol.version 3.9, in which controllers and brokers of a
cluster over ZooKeeper talk to each other. Pure functions between messages and the values of
`control`: any thread.
"""

from collections.abc import Iterable, Iterator, Set
from itertools import groupby
from typing import Any, Final

from kafka.errors import BrokerResponseError, for_code
from kafka.protocol.api_message import ApiMessage
from kafka.structs import TopicPartition

from broker.cluster.control import (
    ControlRequest,
    Failures,
    LeaderAndIsr,
    Stamp,
    StoppedReplica,
    StopReplica,
    UpdateMetadata,
)
from broker.cluster.error_codes import code_of
from broker.cluster.metadata import BrokerNode, PartitionMetadata

LEADER_AND_ISR_VERSION: Final = 7
STOP_REPLICA_VERSION: Final = 4
UPDATE_METADATA_VERSION: Final = 8
LISTENER: Final = "PLAINTEXT"
"""By which brokers reach each other."""
_SCHEMAS = "broker.cluster.schemas"
_PLAINTEXT_PROTOCOL = 0
_IGNORED = 0
"""Request types matter to KRaft's migration alone."""


class LeaderAndIsrRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """Lead or follow, by topic."""


class LeaderAndIsrResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """An error for each partition, by topic ids."""


class StopReplicaRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """Keep partitions no more, by topic."""


class StopReplicaResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """An error for each partition."""


class UpdateMetadataRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """Brokers and partitions, as clients are to be told."""


class UpdateMetadataResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """Heard, or refused."""


def message_of(request: ControlRequest) -> Any:
    """As it goes to a broker."""
    if isinstance(request, LeaderAndIsr):
        return _leader_and_isr_message(request)
    if isinstance(request, StopReplica):
        return _stop_replica_message(request)
    return _update_metadata_message(request)


def response_class_of(request: ControlRequest) -> tuple[int, Any]:
    """The version in which it is sent, and what answers it."""
    if isinstance(request, LeaderAndIsr):
        return LEADER_AND_ISR_VERSION, LeaderAndIsrResponse
    if isinstance(request, StopReplica):
        return STOP_REPLICA_VERSION, StopReplicaResponse
    return UPDATE_METADATA_VERSION, UpdateMetadataResponse


def request_of(message: Any) -> ControlRequest:
    """What a controller says."""
    stamp = Stamp(message.controller_id, message.controller_epoch, message.broker_epoch)
    if isinstance(message, StopReplicaRequest):
        return _stop_replica_in(message, stamp)
    topic_ids = {topic.topic_name: topic.topic_id for topic in message.topic_states}
    states = {
        TopicPartition(topic.topic_name, state.partition_index): state
        for topic in message.topic_states
        for state in topic.partition_states
    }
    if isinstance(message, UpdateMetadataRequest):
        live = {each.id for each in message.live_brokers}
        partitions = {each: _metadata_in(state, live) for each, state in states.items()}
        brokers = [broker for each in message.live_brokers for broker in _broker_in(each)]
        return UpdateMetadata(stamp, brokers, partitions, topic_ids)
    return LeaderAndIsr(
        stamp,
        {each: _leader_and_isr_in(state) for each, state in states.items()},
        topic_ids,
        frozenset(each for each, state in states.items() if state.is_new),
        [BrokerNode(each.broker_id, each.host_name, each.port) for each in message.live_leaders],
    )


def _sender(stamp: Stamp) -> dict[str, object]:
    return {
        "controller_id": stamp.controller_id,
        "is_kraft_controller": False,
        "controller_epoch": stamp.controller_epoch,
        "broker_epoch": stamp.broker_epoch,
    }


def _by_topic(
    topic_partitions: Iterable[TopicPartition],
) -> Iterator[tuple[str, list[TopicPartition]]]:
    for name, of_topic in groupby(sorted(topic_partitions), lambda each: each.topic):
        yield name, list(of_topic)


def _leader_and_isr_message(request: LeaderAndIsr) -> Any:
    topic_class = LeaderAndIsrRequest.LeaderAndIsrTopicState
    epoch = request.stamp.controller_epoch
    return LeaderAndIsrRequest(
        **_sender(request.stamp),
        request_type=_IGNORED,
        topic_states=[
            topic_class(
                topic_name=name,
                topic_id=request.topic_ids[name],
                partition_states=[
                    topic_class.LeaderAndIsrPartitionState(
                        **_state(each, request.partitions[each], epoch),
                        partition_epoch=request.partitions[each].partition_epoch,
                        adding_replicas=list(request.partitions[each].adding),
                        removing_replicas=list(request.partitions[each].removing),
                        is_new=each in request.created,
                        leader_recovery_state=int(request.partitions[each].is_recovering),
                    )
                    for each in topic_partitions
                ],
            )
            for name, topic_partitions in _by_topic(request.partitions)
        ],
        live_leaders=[
            LeaderAndIsrRequest.LeaderAndIsrLiveLeader(
                broker_id=node.node_id, host_name=node.host, port=node.port
            )
            for node in request.leaders
        ],
    )


def _state(
    topic_partition: TopicPartition, state: PartitionMetadata, epoch: int
) -> dict[str, object]:
    return {
        "partition_index": topic_partition.partition,
        "controller_epoch": epoch,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
        "replicas": list(state.replicas),
    }


def _leader_and_isr_in(state: Any) -> PartitionMetadata:
    return PartitionMetadata(
        tuple(state.replicas),
        state.leader,
        state.leader_epoch,
        tuple(state.isr),
        state.partition_epoch,
        tuple(state.adding_replicas),
        tuple(state.removing_replicas),
        bool(state.leader_recovery_state),
    )


def _stop_replica_message(request: StopReplica) -> Any:
    topic_class = StopReplicaRequest.StopReplicaTopicState
    return StopReplicaRequest(
        **_sender(request.stamp),
        topic_states=[
            topic_class(
                topic_name=name,
                partition_states=[
                    topic_class.StopReplicaPartitionState(
                        partition_index=each.partition,
                        leader_epoch=request.partitions[each].leader_epoch,
                        delete_partition=request.partitions[each].delete,
                    )
                    for each in topic_partitions
                ],
            )
            for name, topic_partitions in _by_topic(request.partitions)
        ],
    )


def _stop_replica_in(message: Any, stamp: Stamp) -> StopReplica:
    partitions = {
        TopicPartition(topic.topic_name, state.partition_index): StoppedReplica(
            state.leader_epoch, state.delete_partition
        )
        for topic in message.topic_states
        for state in topic.partition_states
    }
    return StopReplica(stamp, partitions)


def _update_metadata_message(request: UpdateMetadata) -> Any:
    topic_class = UpdateMetadataRequest.UpdateMetadataTopicState
    broker_class = UpdateMetadataRequest.UpdateMetadataBroker
    epoch = request.stamp.controller_epoch
    live = {node.node_id for node in request.brokers}
    return UpdateMetadataRequest(
        **_sender(request.stamp),
        request_type=_IGNORED,
        topic_states=[
            topic_class(
                topic_name=name,
                topic_id=request.topic_ids[name],
                partition_states=[
                    topic_class.UpdateMetadataPartitionState(
                        **_state(each, request.partitions[each], epoch),
                        zk_version=request.partitions[each].partition_epoch,
                        offline_replicas=[
                            node_id
                            for node_id in request.partitions[each].replicas
                            if node_id not in live or node_id in request.partitions[each].failed
                        ],
                    )
                    for each in topic_partitions
                ],
            )
            for name, topic_partitions in _by_topic(request.partitions)
        ],
        live_brokers=[
            broker_class(
                id=node.node_id,
                endpoints=[
                    broker_class.UpdateMetadataEndpoint(
                        port=node.port,
                        host=node.host,
                        listener=LISTENER,
                        security_protocol=_PLAINTEXT_PROTOCOL,
                    )
                ],
                rack=node.rack,
            )
            for node in request.brokers
        ],
    )


def _metadata_in(state: Any, live: Set[int]) -> PartitionMetadata:
    return PartitionMetadata(
        tuple(state.replicas),
        state.leader,
        state.leader_epoch,
        tuple(state.isr),
        state.zk_version,
        # Who is not there may be before more is said of the partition.
        failed=tuple(node_id for node_id in state.offline_replicas if node_id in live),
    )


def _broker_in(broker: Any) -> Iterator[BrokerNode]:
    """None that cannot be reached by our listener."""
    for endpoint in broker.endpoints:
        if endpoint.listener == LISTENER:
            yield BrokerNode(broker.id, endpoint.host, endpoint.port, broker.rack)


def response_to(
    request: ControlRequest, failures: Failures, error: BrokerResponseError | None = None
) -> Any:
    """What a broker answers; `error`: why it has done nothing."""
    error_code = code_of(error)
    if isinstance(request, UpdateMetadata):
        return UpdateMetadataResponse(error_code=error_code)
    codes = {each: code_of(failures.get(each)) for each in request.partitions if error is None}
    if isinstance(request, StopReplica):
        error_class = StopReplicaResponse.StopReplicaPartitionError
        return StopReplicaResponse(
            error_code=error_code,
            partition_errors=[
                error_class(topic_name=each.topic, partition_index=each.partition, error_code=code)
                for each, code in codes.items()
            ],
        )
    topic_class = LeaderAndIsrResponse.LeaderAndIsrTopicError
    return LeaderAndIsrResponse(
        error_code=error_code,
        topics=[
            topic_class(
                topic_id=request.topic_ids[name],
                partition_errors=[
                    topic_class.LeaderAndIsrPartitionError(
                        partition_index=each.partition, error_code=codes[each]
                    )
                    for each in topic_partitions
                ],
            )
            for name, topic_partitions in _by_topic(codes)
        ],
    )


def failures_in(request: ControlRequest, response: Any) -> Failures:
    """The partitions where the broker failed. Raises what it says of the whole request."""
    if response.error_code:
        raise for_code(response.error_code)()
    if isinstance(request, UpdateMetadata):
        return {}
    if isinstance(request, StopReplica):
        codes = {
            TopicPartition(each.topic_name, each.partition_index): each.error_code
            for each in response.partition_errors
        }
    else:
        names = {topic_id: name for name, topic_id in request.topic_ids.items()}
        codes = {
            TopicPartition(names[topic.topic_id], each.partition_index): each.error_code
            for topic in response.topics
            for each in topic.partition_errors
        }
    return {each: for_code(code)() for each, code in codes.items() if code}
