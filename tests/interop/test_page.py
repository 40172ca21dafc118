"""The page of a cluster of Apache Kafka's."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.web.app import PageSettings
from tests.pyspark_kafkalog.web.conftest import Page, config, serving
from tests.support.kafka_server import KafkaServer, require_kafka
from tests.support.patience import EVENT_S, wait_until
from tests.support.present import present

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_topics_records_groups_and_brokers(tmp_path: Path) -> None:
    require_kafka()
    with KafkaServer(tmp_path) as kafka:
        servers = f"127.0.0.1:{kafka.port}"
        with Cluster(config(servers, request_timeout_ms="60000")) as cluster:
            admin.create_topic(cluster, "orders", 2, 1, {"retention.ms": "3600000"})
        producer = Producer({"bootstrap.servers": servers, "compression.type": "zstd"})
        for number in range(60):
            producer.produce("orders", f'{{"id": {number}}}', partition=0)
        assert producer.flush(EVENT_S) == 0
        with serving(PageSettings(config(servers, request_timeout_ms="20000"))) as page:
            for protocol in ("classic", "consumer"):
                check_group(page, servers, protocol)
            answers = (
                page.get("/"),
                page.get("/topic", name="orders"),
                page.get("/records", topic="orders", find='"id": 5'),
                page.get("/brokers"),
            )
    for answer in answers:
        assert answer.status == 200
        assert 'class="missing"' not in answer.text
    topics, topic, records, brokers = (answer.rows for answer in answers)
    assert next(row for row in topics if row[0] == "orders")[1:4] == ["2", "1", "60"]
    assert ["retention.ms", "3600000"] in topic
    assert [row[0] for row in records[1:]] == ["5", *map(str, range(50, 60))]
    assert brokers[1][3].startswith("as Kafka 4.")


def check_group(page: Page, servers: str, protocol: str) -> None:
    """While it has a member that has read one record."""
    name = f"readers-{protocol}"
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": name,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe(["orders"])
        message = wait_until(lambda: consumer.poll(0.1), "a record", pause_s=0)
        consumer.commit(message=present(message), asynchronous=False)
        group, listed = page.get("/group", name=name), page.get("/groups", q=name)
    finally:
        consumer.close()
    assert ["orders", "0", "1", "60", "59"] in [row[:5] for row in group.rows]
    assert [name, "Stable", protocol, "1", "orders", "59"] in listed.rows
