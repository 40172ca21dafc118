"""Groups outlive their broker: on a real process, killed, and with its topic damaged or deleted."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka.protocol.admin import DeleteTopicsRequest, DeleteTopicsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from broker.config.log import LogConfig
from broker.coordinator.state_topic import java_hash_magnitude
from broker.log.log import Log
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.api.group_client import (
    COORDINATOR_LOAD_IN_PROGRESS,
    NOT_COORDINATOR,
    GroupClient,
)
from tests.broker.api.transaction_client import TransactionClient
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import wait_for

PROPERTIES = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "2"}
TOPIC = "orders"
GROUP = "readers"
UNSTABLE_OFFSET_COMMIT = 88
LAST_VERSION_OF_ANY_OFFSET = 6


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BrokerChild]]:
    """start(**properties) -> a broker on the same data; all are killed at the end."""
    children: list[BrokerChild] = []

    def start_broker(**properties: str) -> BrokerChild:
        children.append(BrokerChild(tmp_path, PROPERTIES | properties))
        return children[-1]

    yield start_broker
    for child in children:
        child.close()


def member_of(child: BrokerChild, group_id: str = GROUP) -> GroupClient:
    return GroupClient(RawClient(child.host, child.port), group_id)


def make_topic(group: GroupClient, name: str = TOPIC) -> None:
    wanted = MetadataRequest.MetadataRequestTopic(name=name)
    request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=True)
    assert group.client.call(request, MetadataResponse, 9).topics[0].error_code == 0


def delete_topic(group: GroupClient, name: str) -> None:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=60_000)
    response = group.client.call(request, DeleteTopicsResponse, 5)
    assert response.responses[0].error_code == 0


def test_members_go_on_after_sigkill(start: Callable[..., BrokerChild]) -> None:
    child = start()
    group = member_of(child)
    make_topic(group)
    group.find_coordinator()
    group.stable(instance_id="one")
    assert group.commit(TOPIC, {0: 7}, metadata="so far", instance_id="one") == {0: 0}
    group.client.socket.close()
    child.kill()
    child = start()
    again = member_of(child)
    again.find_coordinator()
    again.member_id, again.generation = group.member_id, group.generation
    assert again.heartbeat(instance_id="one") == 0
    assert again.sync(instance_id="one").assignment == b"mine"
    assert again.committed() == {(TOPIC, 0): (7, "so far")}
    assert again.commit(TOPIC, {0: 8}, instance_id="one") == {0: 0}
    assert again.join(instance_id="one").generation_id == 2
    assert child.stop() == 0
    again.client.socket.close()


def test_transactions_are_what_they_were_after_sigkill(
    start: Callable[..., BrokerChild], tmp_path: Path
) -> None:
    """Committed, aborted and open; with two producers in turn, and a plain commit in between."""
    child = start(**{"num.partitions": "5"})
    group = member_of(child)
    make_topic(group)
    group.find_coordinator()
    group.commit(TOPIC, dict.fromkeys(range(5), 1))
    first, second, third = producers = [
        TransactionClient(group.client, f"transaction-{number}") for number in range(3)
    ]
    for producer in producers:
        producer.init()
        producer.begin(GROUP)
    first.commit_offsets(group, TOPIC, {0: 10, 3: 10})
    second.commit_offsets(group, TOPIC, {1: 20, 3: 20})
    third.commit_offsets(group, TOPIC, {2: 30, 4: 30})
    group.commit(TOPIC, {4: 2})
    everything = {0, 1, 2, 3, 4}
    for ended, unstable, committed in (
        ({}, everything, {0: 1, 1: 1, 2: 1, 3: 1, 4: 2}),
        ({first: True, second: False}, {2, 4}, {0: 10, 1: 1, 2: 1, 3: 10, 4: 2}),
        ({third: True}, set(), {0: 10, 1: 1, 2: 30, 3: 10, 4: 2}),
    ):
        child.kill()
        group.client.socket.close()
        append_markers(tmp_path, ended)
        child = start()
        group = member_of(child)
        group.find_coordinator()
        assert unstable_in(group) == unstable
        found = group.committed(version=LAST_VERSION_OF_ANY_OFFSET)
        assert {place: offset for (_, place), (offset, _) in found.items()} == committed
    group.client.socket.close()


def append_markers(data_dir: Path, ended: dict[TransactionClient, bool]) -> None:
    """The ends of transactions, in the log of a broker that is down."""
    partition = java_hash_magnitude(GROUP) % 50
    log = Log(data_dir / f"__consumer_offsets-{partition}", LogConfig())
    epoch = log.leader_epochs.latest_epoch
    assert epoch is not None
    for producer, is_commit in ended.items():
        marker = TransactionMarker(is_commit, coordinator_epoch=0)
        log.append_end_marker(producer.producer_id, producer.epoch, marker, epoch)
    log.close()


def unstable_in(group: GroupClient) -> set[int]:
    return {
        part.partition_index
        for topic in group.fetch_response().topics
        for part in topic.partitions
        if part.error_code == UNSTABLE_OFFSET_COMMIT
    }


def test_without_the_topic_nobody_coordinates(start: Callable[..., BrokerChild]) -> None:
    child = start()
    group = member_of(child)
    assert group.heartbeat(member_id="m", generation=1) == NOT_COORDINATOR
    assert group.join().error_code == NOT_COORDINATOR
    assert group.list_error() == 0
    group.find_coordinator()
    group.stable()
    group.client.socket.close()


def test_clients_of_zookeepers_time_look_for_no_coordinator(
    start: Callable[..., BrokerChild],
) -> None:
    group = member_of(start())
    make_topic(group)
    assert group.commit(TOPIC, {0: 5}, version=0) == {0: 0}
    assert group.committed({TOPIC: [0]}, version=0) == {(TOPIC, 0): (5, "")}
    group.client.socket.close()


def test_offsets_go_with_their_topic(start: Callable[..., BrokerChild]) -> None:
    child = start()
    group = member_of(child)
    make_topic(group)
    make_topic(group, "other")
    group.find_coordinator()
    group.commit(TOPIC, {0: 1})
    group.commit("other", {0: 2})
    delete_topic(group, TOPIC)
    assert group.committed() == {("other", 0): (2, "")}
    group.client.socket.close()


def test_deleting_the_internal_topic_forgets_all_groups(start: Callable[..., BrokerChild]) -> None:
    child = start()
    group = member_of(child)
    make_topic(group)
    group.find_coordinator()
    group.commit(TOPIC, {0: 1})
    delete_topic(group, "__consumer_offsets")
    assert group.fetch_response().error_code == NOT_COORDINATOR
    group.find_coordinator()
    assert group.committed() == {}
    assert group.commit(TOPIC, {0: 2}) == {0: 0}
    group.client.socket.close()


def test_a_damaged_partition_harms_its_own_groups_alone(
    start: Callable[..., BrokerChild], tmp_path: Path
) -> None:
    child = start()
    group, other = member_of(child), member_of(child, "others")
    make_topic(group)
    group.find_coordinator()
    for each in (group, other):
        assert each.commit(TOPIC, {0: 1}) == {0: 0}
        each.client.socket.close()
    assert child.stop() == 0
    (path,) = tmp_path.glob(f"__consumer_offsets-{java_hash_magnitude(GROUP) % 50}/*.log")
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    child = start()
    group, other = member_of(child), member_of(child, "others")
    other.find_coordinator()
    assert other.committed() == {(TOPIC, 0): (1, "")}
    answer = wait_for(
        group.fetch_response, lambda found: found.error_code != COORDINATOR_LOAD_IN_PROGRESS
    )
    assert answer.error_code == NOT_COORDINATOR
    assert "state.not_loaded" in child.stderr()
    for each in (group, other):
        each.client.socket.close()


def test_a_commit_waits_for_the_disk_where_the_policy_asks_for_it(
    start: Callable[..., BrokerChild],
) -> None:
    group = member_of(start(**{"log.flush.interval.messages": "1"}))
    make_topic(group)
    group.find_coordinator()
    assert group.commit(TOPIC, {0: 1}) == {0: 0}
    assert group.committed() == {(TOPIC, 0): (1, "")}
    group.client.socket.close()
