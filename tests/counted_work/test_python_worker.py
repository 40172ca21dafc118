"""What a task leaves in its process, a Python worker that Spark keeps for other tasks.

What concerns modules runs in a process of its own, as the first tasks of a worker do.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_kafkalog.client.admin import create_topic, delete_topics
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.source import python_worker
from pyspark_kafkalog.source.options import batch_options, sink_options
from pyspark_kafkalog.source.partitions import OffsetRange, ReadTask
from pyspark_kafkalog.source.python_worker import kept_cluster
from pyspark_kafkalog.source.reader import KafkalogReader
from pyspark_kafkalog.source.reading import read_task
from pyspark_kafkalog.source.writer import KafkalogWriter
from tests.counted_work.requests import requests
from tests.support.patience import wait_for

FEW_OBJECTS = 3_000
"""What a task makes itself; PySpark's, Arrow's and our modules have 60,000."""

READING = """
from pyspark_kafkalog.source.options import batch_options
from pyspark_kafkalog.source.partitions import OffsetRange, ReadTask
from pyspark_kafkalog.source.reading import read_task
from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS

def run(servers, topic):
    options = batch_options({"kafka.bootstrap.servers": servers, "subscribe": topic})
    task = ReadTask((OffsetRange(topic, 0, 0, 10),), {})
    assert sum(rows.num_rows for rows in read_task(options, DEFAULT_COLUMNS, task)) == 10
"""

WRITING = """
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_kafkalog.source.options import sink_options
from pyspark_kafkalog.source.writer import KafkalogWriter

def run(servers, topic):
    options = sink_options({"kafka.bootstrap.servers": servers, "topic": topic})
    schema = StructType([StructField("value", BinaryType())])
    ends, data = pa.py_buffer(bytes(4 * 11)), pa.py_buffer(b"")
    values = pa.Array.from_buffers(pa.binary(), 10, [None, ends, data])
    rows = pa.RecordBatch.from_arrays([values], names=["value"])
    assert KafkalogWriter(options, schema).write(iter([rows])).record_count == 10
"""

PLANNING = """
from pyspark_kafkalog import DefaultSource

def run(servers, topic):
    source = DefaultSource({"kafka.bootstrap.servers": servers, "subscribe": topic})
    assert len(source.reader(source.schema()).partitions()) == 1
"""

SCHEMA = """
from pyspark_kafkalog import DefaultSource

def run(servers, topic):
    source = DefaultSource({"kafka.bootstrap.servers": servers, "subscribe": topic})
    assert len(source.schema().fields) == 7
"""

REPORT = """
import gc, json, sys
servers, topic = sys.argv[1:]
run(servers, topic)
imported = "pandas" in sys.modules
import pandas  # as PySpark does at the end of a task that writes
run(servers, topic)
gc.collect()
print(json.dumps([len(gc.get_objects()), imported]))
"""


def _config(servers: str) -> ClientConfig:
    """As that of a write or read with no other options."""
    return sink_options({"kafka.bootstrap.servers": servers, "topic": "any"}).client


def write_ten(servers: str, topic: str) -> int:
    """What a task does with ten rows; how many it reports."""
    rows = pa.record_batch({"value": pa.array([b"v"] * 10, pa.binary())})
    options = sink_options({"kafka.bootstrap.servers": servers, "topic": topic})
    writer = KafkalogWriter(options, StructType([StructField("value", BinaryType())]))
    return writer.write(iter([rows])).record_count


def end_offset(servers: str, topic: str) -> Any:
    place = TopicPartition(topic, 0)
    with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
        return cluster.list_offsets([place], LATEST)[place].offset


@pytest.fixture(
    params=[SCHEMA, PLANNING, READING, WRITING], ids=["schema", "planning", "reading", "writing"]
)
def left_by_task(
    request: pytest.FixtureRequest,
    servers: str,
    new_topic: Callable[..., str],
    write: Callable[..., None],
) -> Any:
    """(objects that a garbage collection goes through, whether pandas was imported)."""
    topic = new_topic()
    write(topic, 1, [b"v"] * 10)
    command = [sys.executable, "-c", request.param + REPORT, servers, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_task_imports_little(left_by_task: Any) -> None:
    """The worker collects garbage after each task, before it takes the next: 50 ms of all that is
    imported. So do the processes in which Spark plans. And Arrow imports pandas where it is
    installed, as soon as it makes an array of Python objects: half a second of a worker's first
    task, and 40 MB."""
    objects, has_pandas = left_by_task
    assert objects < FEW_OBJECTS
    assert not has_pandas


def test_the_next_task_needs_no_new_connection(
    new_topic: Callable[..., str], write: Callable[..., None], servers: str
) -> None:
    """One is three round trips, and with TLS and SCRAM some 50 ms, of a task that takes 10."""
    topic = new_topic()
    write(topic, 1, [b"v"] * 10)
    options = batch_options({"kafka.bootstrap.servers": servers, "subscribe": topic})
    task = ReadTask((OffsetRange(topic, 0, 0, 10),), {})
    for first in (Counter(ApiVersions=1), Counter()):
        with requests() as sent:
            assert sum(rows.num_rows for rows in read_task(options, ("value",), task)) == 10
        assert sent == first + Counter(Metadata=1, Fetch=1)


def test_the_next_task_that_writes_needs_none_either_and_no_producer_id(
    new_topic: Callable[..., str], servers: str
) -> None:
    """Brokers remember each for a day, in each partition: one for each task of each micro-batch
    would be millions."""
    topic = new_topic()
    asked = Counter(Metadata=1, DescribeConfigs=1, Produce=1)
    for first in (Counter(ApiVersions=1, InitProducerId=1), Counter(), Counter()):
        with requests() as sent:
            assert write_ten(servers, topic) == 10
        assert sent == first + asked
    assert end_offset(servers, topic) == 30


def test_a_kept_producer_id_goes_on_in_a_topic_that_was_created_again(
    new_topic: Callable[..., str], servers: str
) -> None:
    topic = new_topic()
    for _ in range(2):
        assert [write_ten(servers, topic) for _ in range(3)] == [10, 10, 10]
        assert end_offset(servers, topic) == 30
        with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
            delete_topics(cluster, [topic])
            create_topic(cluster, topic, 1)


def test_a_kept_producer_id_is_given_up_with_a_connection_or_after_an_error(tmp_path: Path) -> None:
    """The brokers of a cluster that was set up anew would give it to somebody else."""
    with EmbeddedBroker(tmp_path / "one") as broker:
        servers = broker.bootstrap_servers
        with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
            create_topic(cluster, "kept", 1)
        assert write_ten(servers, "kept") == 10
        with pytest.raises(UnknownTopicError), kept_cluster(_config(servers)) as cluster:
            cluster.topics(["another"])
        with requests() as sent:
            assert write_ten(servers, "kept") == 10
        assert sent["InitProducerId"] == 1
    with EmbeddedBroker(tmp_path / "two", int(servers.rpartition(":")[2])):
        with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
            create_topic(cluster, "kept", 1)
        with requests() as sent:
            assert write_ten(servers, "kept") == 10
        assert sent["InitProducerId"] == 1


def test_a_connection_that_is_lost_in_a_task_costs_the_next_one_a_producer_id(
    new_topic: Callable[..., str], servers: str
) -> None:
    topic = new_topic()
    write_ten(servers, topic)
    with kept_cluster(_config(servers)) as cluster:
        cluster.any_broker().close()
        cluster.any_broker()
    with requests() as sent:
        assert write_ten(servers, topic) == 10
    assert sent["InitProducerId"] == 1


def test_a_read_that_is_broken_off_leaves_no_connection(
    new_topic: Callable[..., str], write: Callable[..., None], servers: str
) -> None:
    """The answer to what it asked for last would be taken for the next task's."""
    topic = new_topic()
    write(topic, 3, [bytes(1_000)] * 7_000)
    options = batch_options({"kafka.bootstrap.servers": servers, "subscribe": topic})
    whole = ReadTask((OffsetRange(topic, 0, 0, 21_000),), {})
    reading: Any = read_task(options, ("value",), whole)
    next(reading)
    reading.close()
    with requests() as sent:
        assert sum(rows.num_rows for rows in read_task(options, ("value",), whole)) == 21_000
    assert sent["ApiVersions"] == 1


def test_a_kept_connection_that_the_broker_closed_is_made_anew(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        servers = broker.bootstrap_servers
        config = ClientConfig.from_options({"bootstrap.servers": servers})
        with kept_cluster(config) as cluster:
            create_topic(cluster, "kept", 1)
    with EmbeddedBroker(tmp_path, int(servers.rpartition(":")[2])), kept_cluster(config) as again:
        assert again is cluster
        assert again.topics(["kept"]) == {"kept": [0]}


def test_a_kept_connection_that_the_broker_closed_loses_no_rows(tmp_path: Path) -> None:
    """With acks=0 nobody would hear that what was sent on it went nowhere."""
    schema = StructType([StructField("value", BinaryType())])
    rows = pa.record_batch({"value": pa.array([b"v"] * 10, pa.binary())})

    def write_rows(servers: str) -> int:
        given = {"kafka.bootstrap.servers": servers, "topic": "kept", "kafka.acks": "0"}
        return KafkalogWriter(sink_options(given), schema).write(iter([rows])).record_count

    with EmbeddedBroker(tmp_path) as broker:
        servers = broker.bootstrap_servers
        config = ClientConfig.from_options({"bootstrap.servers": servers})
        with Cluster(config) as cluster:
            create_topic(cluster, "kept", 1)
        assert write_rows(servers) == 10
    with EmbeddedBroker(tmp_path, int(servers.rpartition(":")[2])), Cluster(config) as cluster:
        assert write_rows(servers) == 10
        place = TopicPartition("kept", 0)
        wait_for(lambda: cluster.list_offsets([place], LATEST)[place].offset, lambda end: end >= 20)


def test_the_next_task_knows_topics_that_were_created_again(
    new_topic: Callable[..., str], write: Callable[..., None], servers: str
) -> None:
    """Each topic of it, whichever it asks for first."""
    config = ClientConfig.from_options({"bootstrap.servers": servers})
    topics = sorted([new_topic(), new_topic()])
    given = {"subscribe": ",".join(topics), "maxPartitionsPerTask": "2"}
    options = batch_options({"kafka.bootstrap.servers": servers, **given})

    def read() -> Counter[Any]:
        reader = KafkalogReader(options, ("topic",))
        (task,) = reader.partitions()
        found = [name for rows in reader.read(task) for name in rows.column("topic").to_pylist()]
        return Counter(found)

    for topic in topics:
        write(topic, 1, [b"v"] * 10)
    assert read() == {topics[0]: 10, topics[1]: 10}
    with Cluster(config) as cluster:
        delete_topics(cluster, [topics[1]])
        create_topic(cluster, topics[1], 1)
    write(topics[1], 1, [b"v"] * 7)
    assert read() == {topics[0]: 10, topics[1]: 7}


def test_other_settings_have_other_connections(servers: str) -> None:
    given = {"bootstrap.servers": servers}
    with kept_cluster(ClientConfig.from_options(given)) as first:
        pass
    with kept_cluster(ClientConfig.from_options({**given, "client.id": "other"})) as second:
        assert second is not first


def test_tasks_with_other_settings_in_between_cost_no_connection(
    new_topic: Callable[..., str], write: Callable[..., None], servers: str
) -> None:
    """A worker reads in one task and writes in the next, as they come."""
    topic = new_topic()
    write(topic, 1, [b"v"] * 10)
    given = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    options = batch_options({"kafka.bootstrap.servers": servers, **given})
    task = ReadTask((OffsetRange(topic, 0, 0, 10),), {})
    for opened in (2, 0, 0):
        with requests() as sent:
            assert sum(rows.num_rows for rows in read_task(options, ("value",), task)) == 10
            assert write_ten(servers, topic) == 10
        assert sent["ApiVersions"] == opened
        assert sent["InitProducerId"] == bool(opened)


def test_only_a_few_settings_have_connections(servers: str) -> None:
    kept = []
    for number in range(python_worker._MOST_KEPT + 1):
        given = {"bootstrap.servers": servers, "client.id": str(number)}
        with kept_cluster(ClientConfig.from_options(given)) as cluster:
            kept.append(cluster.any_broker())
    assert [connection.closed for connection in kept] == [True] + [False] * python_worker._MOST_KEPT


def test_connections_that_nobody_used_for_a_minute_are_made_anew(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ClientConfig.from_options({"bootstrap.servers": servers})
    with kept_cluster(config) as cluster:
        used = cluster.any_broker()
    monkeypatch.setattr(python_worker, "_MOST_IDLE_S", 0.0)
    with kept_cluster(config) as cluster:
        assert used.closed
