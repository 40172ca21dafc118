"""Real clients in consumer groups: sharing, handing over, committing, going on after a kill."""

import contextlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.interop.group_members import KINDS, ConfluentMember, GroupMember, until_shared
from tests.support.broker_child import BrokerChild, broker_under_test
from tests.support.patience import wait_until

pytestmark = [
    pytest.mark.interop,
    # kafka-python does not close what it connected anew.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTITIONS = 4
RECORDS = 400
PROPERTIES = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with broker_under_test(tmp_path_factory.mktemp("broker"), PROPERTIES) as address:
        yield address


@pytest.fixture
def topic(bootstrap: str) -> str:
    return create_topic(bootstrap)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def member(bootstrap: str, group: str, topic: str) -> Iterator[Callable[..., GroupMember]]:
    """member(kind) -> one at work; all are stopped at the end."""
    with contextlib.ExitStack() as stack:

        def start(kind: str, **settings: str) -> GroupMember:
            made = KINDS[kind](bootstrap, group, topic, **settings)
            stack.callback(made.stop)
            return made

        yield start


def create_topic(bootstrap: str) -> str:
    name = f"shared-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(20)
    return name


def produce(bootstrap: str, topic: str, first: int) -> list[bytes]:
    """RECORDS values from number `first` on, over all partitions."""
    producer = Producer({"bootstrap.servers": bootstrap})
    values = [b"%d" % number for number in range(first, first + RECORDS)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(20) == 0
    return values


def until_read(members: Sequence[GroupMember], values: list[bytes]) -> None:
    def missing() -> set[bytes]:
        return set(values) - {value for each in members for value in each.values}

    wait_until(lambda: not missing(), lambda: f"{len(missing())} of {len(values)} are missing")


def committed(bootstrap: str, group: str, topic: str) -> int:
    """The sum of the group's offsets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        asked = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        return sum(max(0, each.offset) for each in consumer.committed(asked, timeout=20))
    finally:
        consumer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_members_share_hand_over_and_resume(
    bootstrap: str, group: str, topic: str, member: Callable[..., GroupMember], kind: str
) -> None:
    values = produce(bootstrap, topic, 0)
    first = member(kind)
    until_shared([first], PARTITIONS)
    until_read([first], values)
    second = member(kind)
    until_shared([first, second], PARTITIONS)
    more = produce(bootstrap, topic, RECORDS)
    until_read([first, second], more)
    assert set(second.values) & set(more)
    second.stop()
    until_shared([first], PARTITIONS)
    first.stop()
    assert committed(bootstrap, group, topic) == 2 * RECORDS
    last = produce(bootstrap, topic, 2 * RECORDS)
    third = member(kind)
    until_read([third], last)
    assert set(third.values) == set(last)


def test_all_kinds_share_one_topic(
    bootstrap: str, topic: str, member: Callable[..., GroupMember]
) -> None:
    """They agree on "range", whoever of them leads."""
    members = []
    for kind in KINDS:
        members.append(member(kind))
        until_shared(members, PARTITIONS)
    values = produce(bootstrap, topic, 0)
    until_read(members, values)
    assert Counter(value for each in members for value in each.values) == Counter(values)
    while len(members) > 1:
        members.pop(0).stop()
        until_shared(members, PARTITIONS)


@pytest.mark.crash
@pytest.mark.parametrize(
    "kind",
    [
        "confluent-kafka",
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in sorted({*KINDS} - {"confluent-kafka"})
        ),
    ],
)
def test_members_go_on_when_the_broker_is_killed_and_started_again(
    tmp_path: Path, group: str, kind: str
) -> None:
    child = BrokerChild(tmp_path, PROPERTIES)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: child.close())
        port, topic = child.port, create_topic(child.address)
        members = [KINDS[kind](child.address, group, topic) for _ in range(2)]
        for each in members:
            stack.callback(each.stop)
        until_shared(members, PARTITIONS)
        values = produce(child.address, topic, 0)
        until_read(members, values)
        wait_until(
            lambda: committed(child.address, group, topic) == RECORDS,
            lambda: committed(child.address, group, topic),
        )
        child.kill()
        child = BrokerChild(tmp_path, PROPERTIES, port=port)
        more = produce(child.address, topic, RECORDS)
        until_read(members, more)
        until_shared(members, PARTITIONS)
        for each in members:
            each.stop()
        assert committed(child.address, group, topic) == 2 * RECORDS
        read = Counter(value for each in members for value in each.values)
        assert read == Counter(values + more), "all was committed: nothing is read twice"
        assert child.stop() == 0


def test_cooperative_members_keep_what_they_have(
    bootstrap: str, topic: str, member: Callable[..., GroupMember]
) -> None:
    """Incremental rebalancing (KIP-429): who stays never gives up the partitions it keeps."""
    settings = {"partition.assignment.strategy": "cooperative-sticky"}
    first = member("confluent-kafka", **settings)
    until_shared([first], PARTITIONS)
    second = member("confluent-kafka", **settings)
    kept = set(first.assigned)

    def is_shared() -> bool:
        kept.intersection_update(first.assigned)
        return (len(first.assigned), len(second.assigned)) == (2, 2)

    wait_until(is_shared, lambda: (first.assigned, second.assigned))
    assert kept == first.assigned
    assert first.assigned | second.assigned == set(range(PARTITIONS))
    values = produce(bootstrap, topic, 0)
    until_read([first, second], values)
    second.stop()
    until_shared([first], PARTITIONS)


def test_a_static_member_comes_back_without_a_rebalance(
    bootstrap: str, group: str, topic: str, member: Callable[..., GroupMember]
) -> None:
    instances = [member("confluent-kafka", **{"group.instance.id": f"i{n}"}) for n in range(2)]
    until_shared(instances, PARTITIONS)
    share = instances[1].assigned
    before = describe(bootstrap, group)
    instances[1].stop()  # a static member does not leave
    assert {each.group_instance_id for each in describe(bootstrap, group).members} == {"i0", "i1"}
    back = member("confluent-kafka", **{"group.instance.id": "i1"})
    wait_until(lambda: back.assigned == share, lambda: back.assigned)
    assert instances[0].assigned == frozenset(range(PARTITIONS)) - share
    after = describe(bootstrap, group)
    assert member_id(after, "i0") == member_id(before, "i0")
    assert member_id(after, "i1") != member_id(before, "i1")


def describe(bootstrap: str, group: str) -> Any:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return admin.describe_consumer_groups([group])[group].result(20)


def member_id(description: Any, instance_id: str) -> Any:
    (found,) = [
        each.member_id for each in description.members if each.group_instance_id == instance_id
    ]
    return found


def test_the_admin_client_looks_at_groups_and_deletes_them(
    bootstrap: str, group: str, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    at_work = ConfluentMember(bootstrap, group, topic)
    try:
        until_shared([at_work], PARTITIONS)
        description = describe(bootstrap, group)
        assert description.state == ConsumerGroupState.STABLE
        assert description.partition_assignor == "range"
        (one,) = description.members
        assert {each.partition for each in one.assignment.topic_partitions} == set(range(4))
        listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(20)
        assert group in {each.group_id for each in listed.valid}
    finally:
        at_work.stop()
    assert describe(bootstrap, group).state == ConsumerGroupState.EMPTY
    admin.delete_consumer_groups([group])[group].result(20)
    assert describe(bootstrap, group).state == ConsumerGroupState.DEAD
