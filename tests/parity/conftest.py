"""Spark's own Kafka connector beside ours: one session of PySpark 4.2 with both, one Apache Kafka.

The oracle is the JVM connector 4.2.0 (`tests/interop/peers/fetch`), which other versions of Spark
do not run: elsewhere nothing is collected here, and `make spark42` runs it. Topics are created and
filled by librdkafka.
"""

import os
from collections.abc import Iterator
from typing import Any

import pyspark
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from pyspark_kafkalog import DefaultSource
from tests.spark.conftest import ROOT, Topics
from tests.support.jvm import PEERS
from tests.support.kafka_server import KafkaServer, require_kafka
from tests.support.patience import wait_for

collect_ignore_glob = [] if pyspark.__version__.startswith("4.2.") else ["test_*.py"]

ORACLE, OURS = "kafka", "kafkalog"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One SparkSession that has both connectors."""
    jars = sorted((PEERS / "spark-4.2").glob("*.jar"))
    assert jars, f"no Spark connector in {PEERS}: run tests/interop/peers/fetch"
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *inherited])
    session = (
        SparkSession.builder.master("local[2]")
        .appName("kafkalog-parity")
        .config("spark.driver.extraClassPath", os.pathsep.join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # A stream that starts at "latest" has nothing to do in its first batch.
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    require_kafka()
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield running


class KafkaTopics(Topics):
    """Topics on Apache Kafka: also configured, with transactions, with records deleted."""

    def create(self, partitions: int = 1, prefix: str = "topic", **config: str) -> str:
        return self._configured(config) if config else super().create(partitions, prefix)

    def _configured(self, config: dict[str, str]) -> str:
        name = f"configured-{os.urandom(4).hex()}"
        given = {key.replace("_", "."): value for key, value in config.items()}
        for created in self._admin.create_topics([NewTopic(name, 1, 1, config=given)]).values():
            created.result(30)
        return name

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        where = [ConfluentPartition(topic, partition, before)]
        for deleted in client.delete_records(where).values():
            deleted.result(30)

    def grow(self, topic: str, partitions: int) -> None:
        for grown in self._admin.create_partitions([NewPartitions(topic, partitions)]).values():
            grown.result(30)
        wait_for(
            lambda: len(self._producer.list_topics(topic, 30).topics[topic].partitions),
            lambda count: count >= partitions,
        )

    def produce(self, topic: str, value: bytes, **record: Any) -> None:
        """Hands one record over; `flush` waits for all."""
        self._producer.produce(topic, value, **record)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def transactions(self, topic: str, *numbers: int, open_at_end: int = 0) -> Producer:
        """A transaction for each of `numbers`: so many records, aborted where it is negative."""
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "transactional.id": f"t-{topic}",
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        producer.init_transactions(30)
        for number in [*numbers, *([open_at_end] if open_at_end else [])]:
            producer.begin_transaction()
            for part in range(abs(number)):
                producer.produce(topic, f"{number}-{part}".encode(), partition=0)
            producer.flush(30)
            if number < 0:
                producer.abort_transaction(30)
            elif number is not open_at_end:
                producer.commit_transaction(30)
        return producer


@pytest.fixture(scope="session")
def topics(kafka: KafkaServer) -> KafkaTopics:
    return KafkaTopics(kafka.bootstrap_servers)


class Both:
    """The same query by Spark's connector and by ours."""

    def __init__(self, spark: SparkSession, servers: str) -> None:
        self.spark = spark
        self.servers = {"kafka.bootstrap.servers": servers}

    def frames(self, **options: Any) -> list[DataFrame]:
        """What `load()` gives: Spark's connector's DataFrame, and ours."""
        return [
            self.spark.read.format(source).options(**self.servers).options(**options).load()
            for source in (ORACLE, OURS)
        ]

    def rows(self, **options: Any) -> list[Any]:
        """The rows of a batch read, sorted; asserts that schema and rows are those of Spark's."""
        theirs, ours = self.frames(**options)
        assert ours.schema == theirs.schema
        # Python has no time after the year 9999, and records may.
        micros = {"timestamp": expr("unix_micros(timestamp)")}
        expected, found = (
            sorted(frame.withColumns(micros).collect(), key=lambda row: row[2:5])
            for frame in (theirs, ours)
        )
        assert found == expected
        return found

    def offsets(self, **options: Any) -> list[tuple[int, int]]:
        return [(row.partition, row.offset) for row in self.rows(**options)]

    def refusals(self, **options: Any) -> tuple[str, str]:
        """What a batch read says that fails with Spark's connector: its words, and ours.

        Ours is asked as Spark's planning process asks it, without one.
        """
        options = {"fetchOffset.retryIntervalMs": 10, **options}
        theirs = words_of(
            lambda: (
                self.spark.read.format(ORACLE)
                .options(**self.servers)
                .options(**options)
                .load()
                .collect()
            )
        )
        return theirs, words_of(lambda: list(self.ours(**options)))

    def ours(self, **options: Any) -> Iterator[Any]:
        given = {name.lower(): str(value) for name, value in {**self.servers, **options}.items()}
        source = DefaultSource(given)
        reader = source.reader(source.schema())
        for partition in reader.partitions():
            yield from reader.read(partition)


def words_of(action: Any) -> str:
    """What is said when `action` fails, without Spark's stack; fails if it does not."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own class varies
        action()
    return str(caught.value).split("\n\tat ")[0]


@pytest.fixture(scope="session")
def both(spark: SparkSession, kafka: KafkaServer) -> Both:
    return Both(spark, kafka.bootstrap_servers)
