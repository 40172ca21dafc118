"""Our client against Apache Kafka: security, transactions, compaction, retention, a kill."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.decode import RecordDecoder
from pyspark_kafkalog.cli import main
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import EARLIEST, LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.group import commit_offsets, committed_offsets
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.client.sizes import sample_sizes
from pyspark_kafkalog.errors import (
    AuthenticationError,
    BrokersUnreachableError,
    DataLossError,
    TopicRecreatedError,
)
from tests.pyspark_kafkalog.client.conftest import batches_of
from tests.support.kafka_server import CERTIFICATES, PASSWORD, KafkaServer, require_kafka
from tests.support.patience import BUSY_S, attempts, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

LOGIN = "org.apache.kafka.common.security"
TRUST = {"ssl.truststore.location": str(CERTIFICATES / "trusted.pem")}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    require_kafka()
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def config(port: int, **given: str) -> ClientConfig:
    properties = {name.replace("_", "."): value for name, value in given.items()}
    return ClientConfig.from_options({"bootstrap.servers": f"127.0.0.1:{port}", **properties})


def topic_on(cluster: Cluster, name: str, **configs: str) -> TopicPartition:
    given = {key.replace("_", "."): value for key, value in configs.items()}
    admin.create_topic(cluster, name, 1, 1, given)
    return TopicPartition(name, 0)


def write(
    cluster: Cluster, topic_partition: TopicPartition, values: list[bytes], batch_bytes: int
) -> None:
    with Producer(cluster) as producer:
        for batch in batches_of(values, batch_bytes):
            producer.send(topic_partition, batch)


def read(
    cluster: Cluster, topic_partition: TopicPartition, start: int, until: int
) -> list[tuple[int, bytes]]:
    """(offset, value) of each record of the range."""
    decoder = RecordDecoder(topic_partition.topic, topic_partition.partition, ["offset", "value"])
    found = []
    for each in Fetcher(cluster, topic_partition, start, until, poll_timeout_ms=10_000).records():
        found += list(decoder.decode(each.records, each.start_offset, until, each.aborted))
    found += list(decoder.finish())
    return [
        (offset, value)
        for rows in found
        for offset, value in zip(*(column.to_pylist() for column in rows.columns), strict=True)
    ]


def end_of(cluster: Cluster, topic_partition: TopicPartition) -> int:
    return int(cluster.list_offsets([topic_partition], LATEST)[topic_partition].offset)


def test_a_group_is_told_and_asked_by_no_member(kafka: KafkaServer) -> None:
    with Cluster(config(kafka.port)) as cluster:
        topic_partition = topic_on(cluster, "told")
        commit_offsets(cluster, "of-a-stream", {topic_partition: 5})
        commit_offsets(cluster, "of-a-stream", {topic_partition: 7})
        assert committed_offsets(cluster, "of-a-stream") == {topic_partition: 7}
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{kafka.port}", "group.id": "of-a-stream"})
    (seen,) = consumer.committed([ConfluentPartition("told", 0)], 10)
    consumer.close()
    assert seen.offset == 7


def test_a_topic_that_was_created_again_is_another_one(kafka: KafkaServer) -> None:
    with Cluster(config(kafka.port, max_partition_fetch_bytes="50000")) as cluster:
        topic_partition = topic_on(cluster, "again")
        write(cluster, topic_partition, [b"old" * 100] * 5000, 10_000)
        reading = Fetcher(cluster, topic_partition, 0, 5000, poll_timeout_ms=10_000).records()
        next(reading)
        admin.delete_topics(cluster, ["again"])
        topic_on(cluster, "again")
        write(cluster, topic_partition, [b"new" * 100] * 5000, 10_000)
        found: list[bytes] = []
        with pytest.raises(TopicRecreatedError):
            found.extend(bytes(each.records) for each in reading)
        assert b"new" not in b"".join(found)


def test_sizes_are_told_by_the_batches_that_come_next(kafka: KafkaServer) -> None:
    with Cluster(config(kafka.port)) as cluster:
        topic_partition = topic_on(cluster, "sized")
        write(cluster, topic_partition, [b"x" * 1000] * 200, 10_000)
        assert sample_sizes(cluster, {topic_partition: 0})[topic_partition] == pytest.approx(
            1020, rel=0.05
        )


def test_what_is_written_is_read(kafka: KafkaServer) -> None:
    with Cluster(config(kafka.port, max_partition_fetch_bytes="50000")) as cluster:
        topic_partition = topic_on(cluster, "plain")
        values = [b"%d" % number for number in range(50_000)]
        write(cluster, topic_partition, values, 10_000)
        assert read(cluster, topic_partition, 0, end_of(cluster, topic_partition)) == list(
            enumerate(values)
        )
        assert (
            read(cluster, topic_partition, 12_345, 12_350) == list(enumerate(values))[12_345:12_350]
        )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_sasl_over_tls(kafka: KafkaServer, mechanism: str) -> None:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"

    def login(password: str) -> ClientConfig:
        line = f'{LOGIN}.{module} required username="alice" password="{password}";'
        return ClientConfig.from_options(
            {
                "bootstrap.servers": f"localhost:{kafka.sasl_port}",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": line,
                **TRUST,
            }
        )

    with Cluster(login(PASSWORD)) as cluster:
        topic_partition = topic_on(cluster, f"secured-{mechanism}")
        values = [b"x" * 1000] * 3000
        write(cluster, topic_partition, values, 100_000)
        assert read(cluster, topic_partition, 0, 3000) == list(enumerate(values))
    began = time.monotonic()
    with (
        Cluster(login("hunter2")) as cluster,
        pytest.raises(AuthenticationError, match="refused the credentials") as raised,
    ):
        cluster.topics()
    assert "hunter2" not in str(raised.value)
    assert time.monotonic() - began < 10 + BUSY_S


def test_mutual_tls(kafka: KafkaServer) -> None:
    with_key = config(
        kafka.tls_port,
        security_protocol="SSL",
        ssl_truststore_location=TRUST["ssl.truststore.location"],
        ssl_keystore_location=str(CERTIFICATES / "localhost.pem"),
    )
    with Cluster(with_key) as cluster:
        assert isinstance(cluster.topics(), dict)
    without = config(
        kafka.tls_port,
        security_protocol="SSL",
        request_timeout_ms="2000",
        ssl_truststore_location=TRUST["ssl.truststore.location"],
    )
    # The broker's alert and the end of the connection race each other.
    errors = (AuthenticationError, BrokersUnreachableError)
    with Cluster(without) as cluster, pytest.raises(errors, match=r"kafka\.s(sl|ecurity)"):
        cluster.topics()


def test_a_client_without_protection_at_a_listener_with_tls(kafka: KafkaServer) -> None:
    with (
        Cluster(config(kafka.tls_port, request_timeout_ms="2000")) as cluster,
        pytest.raises(BrokersUnreachableError, match=r"kafka\.security\.protocol"),
    ):
        cluster.topics()


def test_aborted_transactions_and_markers_are_passed_over(kafka: KafkaServer) -> None:
    with Cluster(config(kafka.port)) as plain:
        topic_partition = topic_on(plain, "transactions")
    producer = ConfluentProducer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t", "linger.ms": 0}
    )
    producer.init_transactions()
    committed = []
    for number in range(12):
        producer.begin_transaction()
        for part in range(5):
            producer.produce("transactions", b"%d-%d" % (number, part))
        producer.flush()
        if number % 3:
            producer.commit_transaction()
            committed += [b"%d-%d" % (number, part) for part in range(5)]
        else:
            producer.abort_transaction()
    producer.begin_transaction()
    producer.produce("transactions", b"open")
    producer.flush()
    with Cluster(config(kafka.port, isolation_level="read_committed")) as cluster:
        end = end_of(cluster, topic_partition)
        found = read(cluster, topic_partition, 0, end)
        assert [value for _, value in found] == committed
        assert found[-1][0] == end - 2  # The last offset is a marker's.
        for until in range(end - 8, end):
            assert read(cluster, topic_partition, 0, until) == [
                row for row in found if row[0] < until
            ]
    with Cluster(config(kafka.port)) as cluster:
        assert end_of(cluster, topic_partition) == end + 1
        assert len(read(cluster, topic_partition, 0, end + 1)) == 61
    producer.abort_transaction()


def test_gaps_that_compaction_left_are_passed_over(kafka: KafkaServer) -> None:
    with Cluster(config(kafka.port)) as cluster:
        topic_partition = topic_on(
            cluster,
            "compacted",
            cleanup_policy="compact",
            segment_bytes="1048576",
            min_cleanable_dirty_ratio="0.01",
            min_compaction_lag_ms="0",
        )
        producer = ConfluentProducer(
            {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "batch.size": 20_000}
        )
        for number in range(4000):
            producer.produce("compacted", b"x" * 1000, b"key-%d" % (number % 10))
            producer.poll(0)
        producer.flush()
        end = end_of(cluster, topic_partition)
        assert end == 4000
        wait_until(
            lambda: len(read(cluster, topic_partition, 0, end)) < end, "compaction", pause_s=0.2
        )
        rows = read(cluster, topic_partition, 0, end)
        offsets = [offset for offset, _ in rows]
        assert offsets == sorted(set(offsets))
        assert offsets[-1] == end - 1
        gaps = [(a, b) for a, b in itertools.pairwise(offsets) if b > a + 1]
        for before, after in gaps:
            assert read(cluster, topic_partition, before + 1, after) == []
            assert [o for o, _ in read(cluster, topic_partition, before, after + 1)] == [
                before,
                after,
            ]


def test_records_that_were_deleted_are_data_loss(kafka: KafkaServer) -> None:
    with Cluster(config(kafka.port)) as cluster:
        topic_partition = topic_on(cluster, "deleted")
        write(cluster, topic_partition, [b"x"] * 100, 500)
        partition = ConfluentPartition("deleted", 0, 40)
        client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for future in client.delete_records([partition]).values():
            future.result()
        assert cluster.list_offsets([topic_partition], EARLIEST)[topic_partition].offset == 40
        with pytest.raises(DataLossError, match="holds offsets 40 up to, not including, 100") as e:
            read(cluster, topic_partition, 10, 100)
        assert (e.value.log_start_offset, e.value.log_end_offset) == (40, 100)
        assert [offset for offset, _ in read(cluster, topic_partition, 40, 100)] == list(
            range(40, 100)
        )


def consumed(bootstrap: str, topic: str, count: Callable[[], int]) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": 0})
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    found: list[Any] = []
    for _ in attempts(lambda: f"{count()} records, but {len(found)}"):
        if len(found) >= count():
            break
        found.extend(message.value() for message in consumer.consume(10_000, 1.0))
    found += [message.value() for message in consumer.consume(10, 0.5)]
    consumer.close()
    return found


@pytest.mark.crash
@pytest.mark.long
def test_a_broker_killed_while_it_is_written_to_holds_each_record_once(tmp_path: Any) -> None:
    require_kafka()
    values = [b"%06d" % number for number in range(60_000)]
    with KafkaServer(tmp_path) as kafka:
        with Cluster(config(kafka.port, retry_backoff_max_ms="200")) as cluster:
            topic_partition = topic_on(cluster, "killed")
            with Producer(cluster) as producer:
                for number, batch in enumerate(batches_of(values, 2_000)):
                    producer.send(topic_partition, batch)
                    if number == 100:
                        kafka.kill()
                        kafka.start()
            assert [
                value
                for _, value in read(cluster, topic_partition, 0, end_of(cluster, topic_partition))
            ] == values
        assert consumed(kafka.bootstrap_servers, "killed", lambda: len(values)) == values


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_words_of_the_command(
    kafka: KafkaServer, capfd: pytest.CaptureFixture[str], tmp_path: Path, protocol: str
) -> None:
    """What asks brokers, with groups of either protocol."""

    def kafkalog(*words: str) -> list[dict[str, Any]]:
        servers = ("-b", kafka.bootstrap_servers, "--format", "json")
        assert main([*words, *servers]) == 0
        out, err = capfd.readouterr()
        assert err == ""
        return [json.loads(line) for line in out.splitlines()]

    topic = group = f"words-{protocol}"
    kafkalog("topics", "create", topic, "--partitions=2", "--config=retention.ms=-1")
    with Cluster(config(kafka.port)) as cluster:
        write(cluster, TopicPartition(topic, 1), [b"x"] * 10, 1000)
    kafkalog("topics", "trim", topic, "--before=2", "--partition=1")
    (described,) = kafkalog("topics", "describe", topic)
    second = described["partitions"][1]
    assert described["configs"]["retention.ms"] == "-1"
    assert (second["begin"], second["end"]) == (2, 10)
    assert 10 < second["size"] < 1000
    kafkalog("groups", "reset", group, "--topic", topic, "--to-earliest", "--execute")
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}
        | {"group.protocol": protocol, "client.id": "me", "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) and len(consumer.assignment()) == 2, "an assignment")
    listed = {each["group"]: each for each in kafkalog("groups", "list")}[group]
    assert (listed["type"], listed["state"]) == (protocol, "Stable")
    (at_work,) = kafkalog("groups", "describe", group)
    owners = {(each["client_id"], each["host"]) for each in at_work["partitions"]}
    assert (at_work["type"], owners, at_work["lag"]) == (protocol, {("me", "/127.0.0.1")}, 8)
    assert main(["groups", "delete", group, "-b", kafka.bootstrap_servers]) == 1
    assert "has members" in capfd.readouterr().err
    consumer.close()
    (moved,) = kafkalog(
        "groups", "reset", group, "--topic", f"{topic}:1", "--shift-by=3", "--execute"
    )
    assert (moved["before"], moved["offset"]) == (2, 5)
    assert [each["lag"] for each in kafkalog("lag", group)] == [0, 5]
    kafkalog("groups", "delete", group)
    assert group not in {each["group"] for each in kafkalog("groups", "list")}
    (of_cluster,) = kafkalog("cluster", "describe")
    assert of_cluster["brokers"][0]["protocol_version"] == "4.3"
    assert of_cluster["features"]["metadata.version"] > 20
    assert (of_cluster["under_replicated"], of_cluster["offline"]) == (0, 0)
    load = ("load", topic, "--to", f"parquet:{tmp_path}/table", "--name", "words", "--dry-run")
    assert kafkalog(*load)[0]["ranges"][1]["until_offset"] == 10
    assert main(["status", "--to", f"parquet:{tmp_path}/table", "-b", kafka.bootstrap_servers]) == 0
    said = f"No load has committed to parquet:{tmp_path}/table.\n"
    assert capfd.readouterr() == ("", said)
    kafkalog("topics", "add-partitions", topic, "--total=3")
    kafkalog("topics", "alter", topic, "--delete-config=retention.ms")
    (altered,) = kafkalog("topics", "describe", topic)
    assert (len(altered["partitions"]), altered["configs"]) == (3, {})
    kafkalog("topics", "delete", topic)
    assert topic not in {each["topic"] for each in kafkalog("topics", "list")}
