"""Real clients with `group.protocol=consumer` (KIP-848): confluent-kafka, Java, Java's tools.

The Java parts need the jars in `$KAFKALOG_PEERS/kafka` (default: `.peers` in the repository root).
"""

import contextlib
import shutil
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from broker.coordinator.state_topic import java_hash_magnitude
from tests.interop.group_members import COMMIT_INTERVAL_MS, GroupMember, until_shared
from tests.interop.test_groups import (
    PARTITIONS,
    RECORDS,
    committed,
    create_topic,
    produce,
    until_read,
)
from tests.support.broker_child import BrokerChild
from tests.support.jvm import PEERS, peer_java
from tests.support.patience import wait_until

pytestmark = pytest.mark.interop

JARS = PEERS / "kafka"
needs_jars = pytest.mark.skipif(
    not shutil.which("java") or not list(JARS.glob("kafka-tools-*.jar")),
    reason=f"needs java and Kafka's jars in {JARS}",
)
# Quick heartbeats: a rebalance takes some of them.
PROPERTIES = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "200",
}


class ConsumerProtocolMember(GroupMember):
    """confluent-kafka; how often it heartbeats is what the broker says."""

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": COMMIT_INTERVAL_MS,
                # New topics of an expression are its own to notice, too.
                "topic.metadata.refresh.interval.ms": 500,
                # Else, after some kills, it comes back later than its session lasts.
                "reconnect.backoff.max.ms": 500,
            }
            | self.settings
        )
        try:
            consumer.subscribe([self.topic])
            while not self.stopping.is_set():
                for message in consumer.consume(1000, timeout=0.1):
                    if message.error() is None:
                        self.values.append(message.value())
                self.assigned = frozenset(each.partition for each in consumer.assignment())
        finally:
            consumer.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerChild]:
    with BrokerChild(tmp_path, PROPERTIES) as child:
        yield child


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def member(broker: BrokerChild, group: str) -> Iterator[Callable[..., ConsumerProtocolMember]]:
    """member(topic) -> one at work; all are stopped at the end."""
    with contextlib.ExitStack() as stack:

        def start(topic: str, **settings: str) -> ConsumerProtocolMember:
            made = ConsumerProtocolMember(broker.address, group, topic, **settings)
            stack.callback(made.stop)
            return made

        yield start


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_hand_over_and_resume(
    broker: BrokerChild, group: str, member: Callable[..., ConsumerProtocolMember], assignor: str
) -> None:
    topic = create_topic(broker.address)
    values = produce(broker.address, topic, 0)
    remote = {"group.remote.assignor": assignor}
    members = [member(topic, **remote)]
    until_shared(members, PARTITIONS)
    until_read(members, values)
    members += [member(topic, **remote), member(topic, **remote)]
    until_shared(members, PARTITIONS)
    more = produce(broker.address, topic, RECORDS)
    until_read(members, more)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result(20)
    until_shared(members, PARTITIONS + 2)
    members.pop(0).stop()
    until_shared(members, PARTITIONS + 2)
    for each in members:
        each.stop()
    assert committed(broker.address, group, topic) == 2 * RECORDS
    last = produce(broker.address, topic, 2 * RECORDS)
    third = member(topic, **remote)
    until_read([third], last)
    assert Counter(third.values) == Counter(last)


def test_static_members_come_back_to_what_they_had(
    broker: BrokerChild, group: str, member: Callable[..., ConsumerProtocolMember]
) -> None:
    topic = create_topic(broker.address)
    members = [member(topic, **{"group.instance.id": f"instance-{number}"}) for number in range(2)]
    until_shared(members, PARTITIONS)
    had = members[0].assigned
    members[0].stop()
    again = member(topic, **{"group.instance.id": "instance-0"})
    wait_until(lambda: again.assigned == had, lambda: again.assigned)
    until_shared([again, members[1]], PARTITIONS)


def test_an_expression_follows_topics(
    broker: BrokerChild, member: Callable[..., ConsumerProtocolMember]
) -> None:
    topic = create_topic(broker.address)
    members = [member("^shared-.*"), member("^shared-.*")]
    until_shared(members, PARTITIONS)
    values = produce(broker.address, topic, 0)
    until_read(members, values)


def until_committed(address: str, group: str, topic: str, count: int) -> None:
    wait_until(
        lambda: committed(address, group, topic) == count,
        lambda: committed(address, group, topic),
    )


@pytest.mark.crash
def test_members_go_on_when_the_broker_is_killed_and_started_again(
    tmp_path: Path, group: str
) -> None:
    child = BrokerChild(tmp_path, PROPERTIES)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: child.close())
        port, topic = child.port, create_topic(child.address)
        members = [ConsumerProtocolMember(child.address, group, topic) for _ in range(3)]
        for each in members:
            stack.callback(each.stop)
        until_shared(members, PARTITIONS)
        address = child.address
        expected: list[bytes] = []
        for turn in range(3):
            values = produce(address, topic, turn * RECORDS)
            expected += values
            until_read(members, values)
            until_committed(address, group, topic, len(expected))
            child.kill()
            child = BrokerChild(tmp_path, PROPERTIES, port=port)
        last = produce(address, topic, 3 * RECORDS)
        until_read(members, last)
        until_shared(members, PARTITIONS)
        for each in members:
            each.stop()
        read = Counter(value for each in members for value in each.values)
        assert read == Counter(expected + last), "all was committed: nothing is read twice"


# Java.


def java(main_class: str, *arguments: str) -> str:
    command = [*peer_java("kafka"), main_class, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def groups_command(broker: BrokerChild, *arguments: str) -> list[list[str]]:
    """The lines that kafka-consumer-groups prints, cut into words."""
    output = java(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", broker.address),
        *arguments,
    )
    return [line.split() for line in output.splitlines() if line.strip()]


@needs_jars
@pytest.mark.long
def test_java_consumers_and_tools(
    broker: BrokerChild, group: str, member: Callable[..., ConsumerProtocolMember]
) -> None:
    topic = create_topic(broker.address)
    values = produce(broker.address, topic, 0)
    consumer = (
        *(*peer_java("kafka"), "org.apache.kafka.tools.consumer.ConsoleConsumer"),
        *("--bootstrap-server", broker.address, "--topic", topic, "--group", group),
        *("--from-beginning", "--command-property", "group.protocol=consumer"),
    )
    done = subprocess.run(
        (*consumer, "--max-messages", str(RECORDS)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert sorted(done.stdout.split()) == sorted(value.decode() for value in values), done.stderr
    assert committed(broker.address, group, topic) == RECORDS
    assert groups_command(broker, "--describe", "--group", group, "--state")[-1][-2:] == [
        "Empty",
        "0",
    ]

    # Java and librdkafka in one group.
    at_work = member(topic)
    until_shared([at_work], PARTITIONS)
    with subprocess.Popen(consumer, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: len(at_work.assigned) == PARTITIONS // 2, lambda: at_work.assigned)
            state = groups_command(broker, "--describe", "--group", group, "--state")[-1]
            assert state[-2:] == ["Stable", "2"]
            assert "uniform" in state
            verbose = ("--describe", "--group", group, "--members", "--verbose")
            described = [line for line in groups_command(broker, *verbose) if line[0] == group]
            assert len(described) == 2
            assert all(f"{topic}:" in " ".join(line) for line in described)
            offsets = groups_command(broker, "--describe", "--group", group)
            assert len([line for line in offsets if line[:2] == [group, topic]]) == PARTITIONS
            listed = groups_command(broker, "--list", "--state", "--type")
            assert [group, "Consumer", "Stable"] in listed
        finally:
            process.terminate()  # as by Ctrl-C: it leaves
            process.communicate(timeout=60)
    until_shared([at_work], PARTITIONS)
    at_work.stop()
    dump_of_the_groups_partition(broker, group)
    assert groups_command(broker, "--delete", "--group", group)[-1][-1] == "successful."
    assert [group] not in groups_command(broker, "--list")


def dump_of_the_groups_partition(broker: BrokerChild, group: str) -> None:
    """Every key and value is one that Kafka's decoder knows."""
    partition = java_hash_magnitude(group) % 50
    (log,) = broker.data_dir.glob(f"__consumer_offsets-{partition}/*.log")
    output = java(
        "org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", str(log)
    )
    lines = [line for line in output.splitlines() if line.startswith("| offset:")]
    assert all("isvalid: false" not in line for line in output.splitlines())
    for kind in (3, 5, 6, 7, 8):
        assert any(f'"type":"{kind}"' in line and "payload: {" in line for line in lines), output
    for text in (
        '"subscribedTopicNames":["shared-',
        '"memberEpoch":2',
        '"assignmentEpochs":[',
        '"clientHost":"/127.0.0.1"',
        '"assignmentTimestamp":',
    ):
        assert text in output, output
    assert any('"type":"8"' in line and "payload: <DELETE>" in line for line in lines), output
    assert "unknown" not in output.lower()
