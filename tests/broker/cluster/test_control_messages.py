"""What controllers tell brokers, there and back again over the wire."""

import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import (
    BrokerResponseError,
    KafkaStorageError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster.control import (
    LeaderAndIsr,
    Stamp,
    StoppedReplica,
    StopReplica,
    UpdateMetadata,
)
from broker.cluster.control_messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    failures_in,
    message_of,
    request_of,
    response_to,
)
from broker.cluster.metadata import BrokerNode, PartitionMetadata

VERSIONS = {
    LeaderAndIsr: (LeaderAndIsrRequest, LeaderAndIsrResponse, 7),
    StopReplica: (StopReplicaRequest, StopReplicaResponse, 4),
    UpdateMetadata: (UpdateMetadataRequest, UpdateMetadataResponse, 8),
}
IDS = {name: uuid.UUID(int=number) for number, name in enumerate(("a", "b", "c"), 1)}

numbers = st.integers(0, 2**31 - 1)
node_ids = st.lists(st.integers(0, 9), max_size=4, unique=True).map(tuple)
stamps = st.builds(Stamp, numbers, numbers, st.integers(-1, 2**63 - 1))
places = st.builds(TopicPartition, st.sampled_from(sorted(IDS)), st.integers(0, 20))
hosts = st.sampled_from(["h", "::1", "ü"])
nodes = st.builds(BrokerNode, numbers, hosts, numbers)
racked = st.builds(BrokerNode, numbers, hosts, numbers, st.sampled_from([None, "", "r1"]))
leaders = st.integers(-2, 9)
known = st.builds(PartitionMetadata, node_ids, leaders, numbers, node_ids, numbers)
moving = st.builds(
    PartitionMetadata,
    *(node_ids, leaders, numbers, node_ids, numbers, node_ids, node_ids, st.booleans()),
)


@st.composite
def requests(draw: st.DrawFn) -> StopReplica | UpdateMetadata | LeaderAndIsr:
    stamp = draw(stamps)
    kind = draw(st.sampled_from(sorted(VERSIONS, key=str)))
    if kind is StopReplica:
        stopped = st.builds(StoppedReplica, st.integers(-2, 9), st.booleans())
        return StopReplica(stamp, draw(st.dictionaries(places, stopped)))
    partitions = draw(st.dictionaries(places, moving if kind is LeaderAndIsr else known))
    ids = {place.topic: IDS[place.topic] for place in partitions}
    if kind is UpdateMetadata:
        return UpdateMetadata(stamp, draw(st.lists(racked)), partitions, ids)
    created = draw(st.sets(st.sampled_from(sorted(partitions)))) if partitions else set()
    return LeaderAndIsr(stamp, partitions, ids, frozenset(created), draw(st.lists(nodes)))


def sent(message: Any, message_class: Any, version: int) -> Any:
    """As it arrives at the other end."""
    return message_class.decode(message.encode(version=version), version=version)


@given(request=requests())
def test_a_request_arrives_as_it_was(request: StopReplica | UpdateMetadata | LeaderAndIsr) -> None:
    message_class, _, version = VERSIONS[type(request)]
    assert request_of(sent(message_of(request), message_class, version)) == request


@given(request=requests(), data=st.data())
def test_what_failed_arrives_by_partition(
    request: StopReplica | UpdateMetadata | LeaderAndIsr, data: st.DataObject
) -> None:
    _, response_class, version = VERSIONS[type(request)]
    errors = st.sampled_from([KafkaStorageError(), UnknownTopicOrPartitionError()])
    failures: dict[TopicPartition, BrokerResponseError] = {}
    if not isinstance(request, UpdateMetadata):
        failures = {
            place: data.draw(errors) for place in request.partitions if data.draw(st.booleans())
        }
    response = sent(response_to(request, failures), response_class, version)
    found = failures_in(request, response)
    assert {place: type(error) for place, error in found.items()} == {
        place: type(error) for place, error in failures.items()
    }


@given(request=requests())
def test_a_request_that_is_refused_is_refused_as_a_whole(
    request: StopReplica | UpdateMetadata | LeaderAndIsr,
) -> None:
    _, response_class, version = VERSIONS[type(request)]
    response = sent(response_to(request, {}, StaleBrokerEpochError()), response_class, version)
    with pytest.raises(StaleBrokerEpochError):
        failures_in(request, response)


def test_replicas_of_brokers_that_are_gone_are_said_to_be_offline() -> None:
    place = TopicPartition("a", 0)
    state = PartitionMetadata((1, 2, 3), 1, 4, (1,), 7)
    here = [BrokerNode(1, "h", 1), BrokerNode(3, "h", 3)]
    for failed, offline in (((), [2]), ((3,), [2, 3])):
        told = UpdateMetadata(Stamp(1, 2, 3), here, {place: replace(state, failed=failed)}, IDS)
        message = message_of(told)
        assert message.topic_states[0].partition_states[0].offline_replicas == offline
        assert request_of(message).partitions == told.partitions


def test_the_bytes_are_those_of_apache_kafka() -> None:
    """Decoded and written again by the classes of Kafka 3.9.1, they were the same."""
    place = TopicPartition("t", 3)
    state = PartitionMetadata((1, 2, 3), 2, 5, (2, 3), 9, (3,), (1,), True)
    here = [BrokerNode(1, "h", 9092, "r"), BrokerNode(2, "::1", 9093)]
    ids = {"t": uuid.UUID(int=1)}
    stamp = Stamp(7, 8, 9)
    lead = LeaderAndIsr(stamp, {place: state}, ids, frozenset([place]), here[1:])
    stop = StopReplica(stamp, {place: StoppedReplica(4, delete=True)})
    update = UpdateMetadata(stamp, here, {place: state}, ids)
    sender = "00000007 00 00000008 0000000000000009 "
    topic = "02 0274 00000000000000000000000000000001 02 "
    partition = "00000003 00000008 00000002 00000005 0300000002 00000003 "
    assert message_of(lead).encode(version=7) == bytes.fromhex(
        sender + "00" + topic + partition + "00000009 04000000010000000200000003 0200000003"
        "0200000001 01 01 00 00 02 00000002 043a3a31 00002385 00 00"
    )
    assert message_of(stop).encode(version=4) == bytes.fromhex(
        sender + "02 0274 02 00000003 00000004 01 00 00 00"
    )
    assert message_of(update).encode(version=8) == bytes.fromhex(
        sender + topic + partition + "00000009 04000000010000000200000003 0200000003 00 00 03"
        "00000001 02 00002384 0268 0a504c41494e54455854 0000 00 0272 00"
        "00000002 02 00002385 043a3a31 0a504c41494e54455854 0000 00 00 00 00"
    )
