"""Kafka's own admin tools, unmodified, and two client libraries administer the broker.

With KAFKALOG_TEST_BOOTSTRAP the broker is Apache Kafka, and the same must hold.
"""

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.broker_child import broker_under_test
from tests.support.jvm import peer_java
from tests.support.kafka_server import require_kafka
from tests.support.present import present

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TIMEOUT_S = 120
LINES = [f"value {number}" for number in range(200)]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with broker_under_test(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture
def name() -> str:
    return f"tools-{uuid.uuid4().hex[:8]}"


def settle() -> None:
    """Apache Kafka answers a change before its brokers know of it; this broker after."""
    if "KAFKALOG_TEST_BOOTSTRAP" in os.environ:
        time.sleep(1)


class JavaTools:
    """Each call is one tool in one JVM: what it prints, or its failure."""

    def __init__(self, bootstrap: str, jars: str = "kafka") -> None:
        """`jars`: those of the peer whose tools they are."""
        self._bootstrap = bootstrap
        self._jars = jars

    def __call__(self, tool: str, *arguments: str, stdin: str = "", check: bool = True) -> str:
        main_class = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
        command = [
            *peer_java(self._jars, "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
            *(main_class, "--bootstrap-server", self._bootstrap, *arguments),
        ]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert (done.returncode == 0) is check, done.stdout + done.stderr
        return done.stdout + done.stderr

    def configs(self, *arguments: str, **options: bool) -> str:
        return self("kafka.admin.ConfigCommand", *arguments, **options)  # type: ignore[arg-type]


@pytest.fixture
def java(bootstrap: str) -> JavaTools:
    require_kafka()
    return JavaTools(bootstrap)


def test_topics_partitions_and_records(java: JavaTools, name: str, tmp_path: Path) -> None:
    java("TopicCommand", "--create", "--topic", name, "--partitions", "1")
    java("TopicCommand", "--alter", "--topic", name, "--partitions", "3")
    described = java("TopicCommand", "--describe", "--topic", name)
    assert "PartitionCount: 3\tReplicationFactor: 1" in described
    assert "Partition: 2\tLeader: 1\tReplicas: 1\tIsr: 1" in described
    java("ConsoleProducer", "--topic", name, stdin="\n".join(LINES))
    ends = [
        line.split(":")
        for line in java("GetOffsetShell", "--topic", name, "--time", "-1").splitlines()
    ]
    assert [(each, index) for each, index, _ in ends] == [(name, str(i)) for i in range(3)]
    assert sum(int(end) for _, _, end in ends) == len(LINES)
    _, filled, end = max(ends, key=lambda each: int(each[2]))
    # The Java consumer: Fetch of the newest version, by topic id, in a session.
    read = java(
        "consumer.ConsoleConsumer",
        *("--topic", name, "--partition", filled, "--offset", "earliest"),
        *("--max-messages", end, "--command-property", "enable.auto.commit=false"),
        *("--timeout-ms", "60000"),
    )
    assert len(set(LINES) & set(read.splitlines())) == int(end)
    wanted = tmp_path / "records.json"
    rows = [{"topic": name, "partition": int(filled), "offset": int(end) - 1}]
    wanted.write_text(json.dumps({"partitions": rows, "version": 1}))
    deleted = java("DeleteRecordsCommand", "--offset-json-file", str(wanted))
    assert f"partition: {name}-{filled}\tlow_watermark: {int(end) - 1}" in deleted
    starts = java("GetOffsetShell", "--topic", name, "--time", "earliest").splitlines()
    assert f"{name}:{filled}:{int(end) - 1}" in starts
    # What has no remote tier has nothing tiered, and nothing waiting for it.
    for special in ("latest-tiered", "earliest-pending-upload"):
        assert name not in java("GetOffsetShell", "--topic", name, "--time", special)
    directories = java("LogDirsCommand", "--describe", "--topic-list", name).splitlines()[-1]
    (directory,) = json.loads(directories)["brokers"][0]["logDirs"]
    sizes = {found["partition"]: found["size"] for found in directory["partitions"]}
    assert set(sizes) == {f"{name}-{index}" for index in range(3)}
    assert sizes[f"{name}-{filled}"] > len(LINES)
    elected = java(
        "LeaderElectionCommand", "--election-type", "preferred", "--topic", name, "--partition", "0"
    )
    assert f"Valid replica already elected for partitions {name}-0" in elected


@pytest.mark.long
def test_configs(java: JavaTools, name: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", name)
    java("TopicCommand", "--create", "--topic", name, "--config", "retention.ms=1234567")
    wanted = "max.message.bytes=50000,cleanup.policy=[compact,delete]"
    java.configs("--alter", *entity, "--add-config", wanted)
    described = java.configs("--describe", *entity)
    assert "max.message.bytes=50000 sensitive=false" in described
    assert (
        "synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, "
        "DEFAULT_CONFIG:log.cleanup.policy=delete}" in described
    )
    java.configs("--alter", *entity, "--delete-config", "max.message.bytes,cleanup.policy")
    assert "max.message.bytes" not in java.configs("--describe", *entity)
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    default = ("--entity-type", "brokers", "--entity-default")
    key = "log.segment.delete.delay.ms"
    try:
        java.configs("--alter", *broker, "--add-config", f"{key}=50000")
        java.configs("--alter", *default, "--add-config", f"{key}=70000")
        assert (
            f"synonyms={{DYNAMIC_BROKER_CONFIG:{key}=50000, "
            f"DYNAMIC_DEFAULT_BROKER_CONFIG:{key}=70000, DEFAULT_CONFIG:{key}=60000}}"
            in java.configs("--describe", *broker)
        )
        assert f"{key}=70000 sensitive=false" in java.configs("--describe", *default)
    finally:
        for each in (broker, default):
            java.configs("--alter", *each, "--delete-config", key)
    refused = java.configs("--alter", *broker, "--add-config", "log.dirs=/x", check=False)
    assert "InvalidRequestException: Cannot update these configs dynamically: [log.dirs]" in refused


def test_configs_of_groups_and_credentials_of_users(java: JavaTools, name: str) -> None:
    group = ("--entity-type", "groups", "--entity-name", name)
    java.configs("--alter", *group, "--add-config", "consumer.session.timeout.ms=50000")
    assert (
        "synonyms={DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000, "
        "DEFAULT_CONFIG:group.consumer.session.timeout.ms=45000}"
    ) in java.configs("--describe", *group)
    java.configs("--alter", *group, "--delete-config", "consumer.session.timeout.ms")
    user = ("--entity-type", "users", "--entity-name", name)
    credential = "SCRAM-SHA-256=[iterations=8192,password=secret]"
    java.configs("--alter", *user, "--add-config", credential)
    assert f"'{name}' are SCRAM-SHA-256=iterations=8192" in java.configs("--describe", *user)
    java.configs("--alter", *user, "--delete-config", "SCRAM-SHA-256")


def test_a_broker_without_an_authorizer(java: JavaTools) -> None:
    refused = java("AclCommand", "--list", check=False)
    assert "SecurityDisabledException: No Authorizer is configured on the broker" in refused


def test_every_api_is_usable_by_the_java_client(java: JavaTools) -> None:
    listed = java("BrokerApiVersionsCommand")
    for usable in (
        "Fetch(1): 0 to 18 [usable: 18]",
        "ListOffsets(2): 0 to 11 [usable: 11]",
        "Metadata(3): 0 to 13 [usable: 13]",
    ):
        # Apache Kafka's own ranges begin later.
        assert usable.partition(" to ")[2] in listed
    for api in ("CreatePartitions(37)", "IncrementalAlterConfigs(44)", "DescribeLogDirs(35)"):
        assert f"{api}: UNSUPPORTED" not in listed


class TestConfluentKafka:
    @pytest.fixture
    def admin(self, bootstrap: str) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": bootstrap})

    def one(self, futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(30)

    def test_partitions_and_records(self, admin: AdminClient, bootstrap: str, name: str) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]
        from confluent_kafka.cimpl import NewPartitions, NewTopic

        self.one(admin.create_topics([NewTopic(name, 1, 1)]))
        settle()
        self.one(admin.create_partitions([NewPartitions(name, 3)]))
        settle()
        producer = Producer({"bootstrap.servers": bootstrap})
        for number, line in enumerate(LINES):
            producer.produce(name, line, partition=number % 3)
        assert producer.flush(30) == 0
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": name, "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(name, index, 0) for index in range(3)])
        found: set[str] = set()
        while len(found) < len(LINES):
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            found.add(present(message.value()).decode())
        consumer.close()
        assert found == set(LINES)
        deleted = self.one(admin.delete_records([TopicPartition(name, 1, 5)]))
        assert deleted.low_watermark == 5
        for spec, least, most in (
            (OffsetSpec.earliest(), 5, 5),  # type: ignore[no-untyped-call]
            (OffsetSpec.latest(), 67, 67),  # type: ignore[no-untyped-call]
            # Many records of one millisecond, the first of which may be deleted.
            (OffsetSpec.max_timestamp(), 0, 66),  # type: ignore[no-untyped-call]
        ):
            listed = self.one(admin.list_offsets({TopicPartition(name, 1): spec}))
            assert least <= listed.offset <= most

    def test_configs(self, admin: AdminClient, name: str) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ConfigSource,
        )
        from confluent_kafka.cimpl import NewTopic

        self.one(admin.create_topics([NewTopic(name, 1, 1)]))
        settle()

        def resource(key: str, operation: Any, value: str | None) -> Any:
            entry = ConfigEntry(key, value, incremental_operation=operation)
            return ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])

        changes = (
            ("segment.bytes", AlterConfigOpType.SET, "2000000"),
            ("cleanup.policy", AlterConfigOpType.APPEND, "compact"),
        )
        for change in changes:
            self.one(admin.incremental_alter_configs([resource(*change)]))
            settle()
        topic = ConfigResource(ConfigResource.Type.TOPIC, name)
        described = self.one(admin.describe_configs([topic]))
        assert described["segment.bytes"].value == "2000000"
        assert described["segment.bytes"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        assert described["cleanup.policy"].value == "delete,compact"
        with pytest.raises(KafkaException, match="INVALID_CONFIG"):
            self.one(
                admin.incremental_alter_configs([resource("nope", AlterConfigOpType.SET, "1")])
            )


class TestKafkaPython:
    @pytest.fixture
    def admin(self, bootstrap: str) -> Iterator[Any]:
        from kafka import KafkaAdminClient

        client = KafkaAdminClient(bootstrap_servers=bootstrap)
        yield client
        client.close()

    def test_partitions_configs_and_directories(
        self, admin: Any, bootstrap: str, name: str
    ) -> None:
        from kafka import KafkaConsumer, KafkaProducer
        from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
        from kafka.structs import TopicPartition

        admin.create_topics([NewTopic(name, 1, 1)])
        settle()
        admin.create_partitions({name: NewPartitions(2)})
        settle()
        producer = KafkaProducer(bootstrap_servers=bootstrap)
        for number in range(10):
            producer.send(name, b"%d" % number, partition=1)
        producer.close()
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=20_000
        )
        partition = TopicPartition(name, 1)
        consumer.assign([partition, TopicPartition(name, 0)])
        values = [next(consumer).value for _ in range(10)]
        consumer.close()
        assert values == [b"%d" % number for number in range(10)]
        deleted = admin.delete_records({partition: 4})
        assert deleted[partition]["low_watermark"] == 4
        admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "7654321"})]
        )
        settle()
        described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        assert "7654321" in str(described)
        assert name in str(admin.describe_log_dirs())
