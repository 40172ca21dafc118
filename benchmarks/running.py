"""What a run of the benchmarks needs running: our broker, Apache Kafka, Spark with both connectors.

Each is started when a row first asks for it and runs until the run ends, with its data on the same
disk. SETTINGS says what each is given beyond its defaults, and goes into the results.
"""

import os
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Protocol

from kafka.structs import TopicPartition
from pyspark.sql import SparkSession

from pyspark_kafkalog import DefaultSource, EmbeddedBroker
from pyspark_kafkalog.client.admin import create_topic, delete_topics
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.compile_pyspark import imported_archives
from tests.support.jvm import PEERS
from tests.support.kafka_server import KafkaServer

KAFKA, SPARK_CONNECTOR = "Apache Kafka", "spark-sql-kafka-0-10"
OURS, THEIRS = "kafkalog", "kafka"
"""Names of the two formats."""
# As bin/kafka-server-start.sh and bin/kafka-run-class.sh of Apache Kafka set them.
KAFKA_JAVA_OPTIONS = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
# A group of one consumer has nobody to wait for; the embedded broker has the same.
KAFKA_PROPERTIES = {"group.initial.rebalance.delay.ms": "0"}
# Spark's own default is 1 MiB a partition; ours is larger. Its readers ask for a partition's
# offsets behind a fetch that waits for more records, half a second by default, at the end of each
# partition: 16 partitions of 12,500 records took 6.3 s with that and 2.4 s with 10 ms. And they ask
# the consumer for 500 records at a time: 5 M records of 100 bytes were read at 0.6 M a second with
# that, and at 1.2 M with 10,000. 100,000 were a tenth faster still, and had Spark end for want of
# memory after a dozen rows: it keeps consumers, each with what it was given last. The consumer's
# 64 KiB of TCP buffer cost a fifth of records of 1 kB.
FETCH_OPTIONS = {
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": "52428800",
    "kafka.max.poll.records": "10000",
    "kafka.receive.buffer.bytes": str(1 << 20),
}
# The Java producer's own defaults, 16 KiB and no wait, are for latency (1.6 times as slow here),
# and 1 MB is no better than this; ours gathers 1 MiB.
WRITE_OPTIONS = {
    "kafka.batch.size": "262144",
    "kafka.linger.ms": "10",
    "kafka.buffer.memory": str(64 << 20),
}
# Spark's workers wait 40 ms for each task's input behind a TCP acknowledgement, but not over a Unix
# socket (Spark 4.1). Its own connector has no workers.
SPARK_CONF = {
    "spark.python.unix.domain.socket.enabled": "true",
    # Else Spark adds up its Arrow batch's size after each row that it hands to a worker.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}


def _modules_of_pyspark() -> str:
    """As Spark's Python processes find them; Spark's own connector has no such processes."""
    for path in imported_archives():
        with zipfile.ZipFile(path) as archive:
            if not any(name.endswith(".pyc") for name in archive.namelist()):
                return "sources"
    return "compiled (kafkalog compile-pyspark)"


SETTINGS = {
    "broker": {"group.initial.rebalance.delay.ms": "0"},
    KAFKA: {"java": " ".join(KAFKA_JAVA_OPTIONS), **KAFKA_PROPERTIES},
    "Spark, for both connectors": {
        "master": "local[2]",
        "pyspark.zip": _modules_of_pyspark(),
        **SPARK_CONF,
    },
    f"{SPARK_CONNECTOR}, reading": FETCH_OPTIONS,
    f"{SPARK_CONNECTOR}, writing batches": WRITE_OPTIONS,
}


class Broker(Protocol):
    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def pid(self) -> int: ...


class Running:
    """The three, until `stack` is closed. `scale` is the share of the full size that rows have."""

    def __init__(self, stack: ExitStack, scale: float) -> None:
        self.stack = stack
        self.scale = scale

    @cached_property
    def broker(self) -> EmbeddedBroker:
        return self.stack.enter_context(EmbeddedBroker())

    @cached_property
    def kafka(self) -> KafkaServer:
        return self.stack.enter_context(kafka())

    @cached_property
    def spark(self) -> SparkSession:
        return self.stack.enter_context(session(SPARK_CONF))


@contextmanager
def kafka() -> Iterator[KafkaServer]:
    with (
        tempfile.TemporaryDirectory(prefix="kafka-") as directory,
        kafka_server(Path(directory)) as running,
    ):
        yield running


def kafka_server(directory: Path) -> KafkaServer:
    """Formatted, not started."""
    return KafkaServer(directory, KAFKA_PROPERTIES, java_options=KAFKA_JAVA_OPTIONS)


@contextmanager
def session(conf: dict[str, str]) -> Iterator[SparkSession]:
    """PySpark 4.2 with both connectors, two cores, workers of this environment."""
    jars = sorted((PEERS / "spark-4.2").glob("*.jar"))
    if not jars:
        raise SystemExit(f"no Spark connector in {PEERS}: make peers")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]")
    builder = builder.config("spark.driver.extraClassPath", os.pathsep.join(map(str, jars)))
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    # What goes wrong comes as an exception; a query that is stopped half-way would log at length.
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(DefaultSource)
    yield spark
    spark.stop()


def jvm_pid(spark: SparkSession) -> int:
    """The driver's JVM, which starts the Python workers."""
    assert spark.sparkContext._jvm is not None
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


def cluster(broker: Broker) -> Cluster:
    return Cluster(ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers}))


@contextmanager
def topic(broker: Broker, partitions: int) -> Iterator[str]:
    """A new topic that is deleted afterwards."""
    name = f"load-{uuid.uuid4().hex[:8]}"
    with cluster(broker) as client:
        create_topic(client, name, partitions)
        yield name
        delete_topics(client, [name])


def records_in(broker: Broker, name: str, partitions: int) -> int:
    """How many offsets the topic has, which are its records where it has no transactions."""
    places = [TopicPartition(name, partition) for partition in range(partitions)]
    with cluster(broker) as client:
        return sum(at.offset for at in client.list_offsets(places, LATEST).values())
