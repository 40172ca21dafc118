"""Kafka's own kafka-consumer-groups, unmodified, on our groups; DumpLogSegments on their topic.

The jars lie in `$KAFKALOG_PEERS/kafka` (default: `.peers` in the repository root).
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from broker.coordinator.state_topic import java_hash_magnitude
from tests.broker.api.group_client import GroupClient
from tests.broker.api.transaction_client import TransactionClient
from tests.interop.group_members import ConfluentMember, until_shared
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.jvm import PEERS, peer_java
from tests.support.patience import wait_until

JARS = PEERS / "kafka"

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("java") or not list(JARS.glob("kafka-tools-*.jar")),
        reason=f"needs java and Kafka's jars in {JARS}",
    ),
]

TOPIC = "orders"
RECORDS = 30
PROPERTIES = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "2"}
GROUP = "java-tools"


def java(main_class: str, *arguments: str) -> str:
    command = [*peer_java("kafka"), main_class, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerChild]:
    with BrokerChild(tmp_path_factory.mktemp("broker"), PROPERTIES) as child:
        producer = Producer({"bootstrap.servers": child.address})
        for number in range(RECORDS):
            producer.produce(TOPIC, b"%d" % number, partition=number % 2)
        assert producer.flush(20) == 0
        yield child


@pytest.fixture(scope="module")
def groups(broker: BrokerChild) -> Callable[..., list[list[str]]]:
    """groups(*arguments) -> the lines that kafka-consumer-groups prints, cut into words."""

    def run(*arguments: str) -> list[list[str]]:
        main_class = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        output = java(main_class, "--bootstrap-server", broker.address, *arguments)
        return [line.split() for line in output.splitlines() if line.strip()]

    return run


def committed(broker: BrokerChild) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": GROUP})
    try:
        asked = [TopicPartition(TOPIC, index) for index in range(2)]
        return [each.offset for each in consumer.committed(asked, timeout=20)]
    finally:
        consumer.close()


def test_the_command_looks_at_a_group_at_work_and_then_changes_it(
    broker: BrokerChild, groups: Callable[..., list[list[str]]]
) -> None:
    at_work = ConfluentMember(broker.address, GROUP, TOPIC)
    try:
        until_shared([at_work], 2)
        wait_until(lambda: committed(broker) == [15, 15], lambda: committed(broker))
        assert [GROUP] in groups("--list")
        assert any(
            line[:3] == [GROUP, "Classic", "Stable"]
            for line in groups("--list", "--state", "--type")
        )
        described = groups("--describe", "--group", GROUP)
        assert [line[:6] for line in described if line[0] == GROUP] == [
            [GROUP, TOPIC, "0", "15", "15", "0"],
            [GROUP, TOPIC, "1", "15", "15", "0"],
        ]
        (member,) = [
            line
            for line in groups("--describe", "--group", GROUP, "--members", "--verbose")
            if line[0] == GROUP
        ]
        assert (member[2], member[4]) == ("/127.0.0.1", "2")
        state = groups("--describe", "--group", GROUP, "--state")[-1]
        assert state[-3:] == ["range", "Stable", "1"]
    finally:
        at_work.stop()

    reset = ("--reset-offsets", "--group", GROUP, "--topic", TOPIC, "--execute")
    assert [line[-1] for line in groups(*reset, "--to-earliest")[1:]] == ["0", "0"]
    assert committed(broker) == [0, 0]
    groups(*reset, "--shift-by", "7")
    assert committed(broker) == [7, 7]
    groups("--delete-offsets", "--group", GROUP, "--topic", f"{TOPIC}:1")
    assert committed(broker) == [7, -1001]
    dump_of_the_groups_partition(broker)
    assert groups("--delete", "--group", GROUP)[-1][-1] == "successful."
    assert [GROUP] not in groups("--list")
    assert committed(broker) == [-1001, -1001]


def test_the_command_dumps_what_a_transaction_commits(broker: BrokerChild) -> None:
    """And its end, which is no record of the groups."""
    group = GroupClient(RawClient(broker.host, broker.port), "transactional")
    group.find_coordinator()
    producer = TransactionClient(group.client, "transaction")
    producer.init()
    producer.begin(group.group_id)
    assert producer.commit_offsets(group, TOPIC, {1: 77}, metadata="in it") == {1: 0}
    assert group.commit(TOPIC, {0: 5}) == {0: 0}
    group.client.socket.close()
    output = dump_of(broker, group.group_id)
    (header,) = [line for line in output.splitlines() if "isTransactional: true" in line]
    assert f"producerId: {producer.producer_id} producerEpoch: {producer.epoch}" in header
    assert "baseSequence: -1" in header
    (record,) = [line for line in output.splitlines() if '"offset":77' in line]
    assert '"metadata":"in it"' in record
    assert "isvalid: false" not in output


def dump_of(broker: BrokerChild, group_id: str) -> str:
    """DumpLogSegments of the partition that has the group."""
    partition = java_hash_magnitude(group_id) % 50
    (log,) = broker.data_dir.glob(f"__consumer_offsets-{partition}/*.log")
    return java("org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", str(log))


def dump_of_the_groups_partition(broker: BrokerChild) -> None:
    """Every key and value is one that Kafka's decoder knows."""
    output = dump_of(broker, GROUP)
    lines = [line for line in output.splitlines() if line.startswith("| offset:")]
    assert all("isvalid: false" not in line for line in output.splitlines())
    assert sum('"type":"2"' in line for line in lines) >= 3, output  # the group's own states
    assert sum('"type":"1"' in line for line in lines) >= 7, output  # commits and a tombstone
    assert any('"metadata":""' in line and '"offset":7' in line for line in lines), output
    assert any('"type":"1"' in line and "payload: <DELETE>" in line for line in lines), output
    assert any('"members":[]' in line for line in lines), output
    assert any('"subscription":' in line and '"clientHost":"/127.0.0.1"' in line for line in lines)
    assert "unknown" not in output.lower()
