"""Streams while their cluster has trouble, and what they tell of where they are; through Spark."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafkalog import EmbeddedBroker, LagListener
from pyspark_kafkalog.source.lag_listener import QueryLag
from tests.chaos.proxy import ChaosProxy, Kind, SeededFaults, no_fault
from tests.spark.conftest import Topics
from tests.spark.test_stream_read import Landing, every_offset, landing  # noqa: F401

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def proxy() -> Iterator[ChaosProxy]:
    with ChaosProxy() as running:
        yield running


@pytest.fixture(scope="module")
def behind_proxy(
    proxy: ChaosProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedBroker]:
    broker = EmbeddedBroker(tmp_path_factory.mktemp("broker"), config=proxy.advertised)
    broker.start()
    proxy.target = broker.bootstrap_servers
    yield broker
    broker.stop()


QUICK = {
    "kafka.socket.connection.setup.timeout.ms": "1000",
    "kafka.max.partition.fetch.bytes": "20000",
    "startingOffsets": "earliest",
}


def test_a_stream_on_a_bad_network_with_a_restart_and_a_new_partition_has_every_offset_once(
    spark: SparkSession, proxy: ChaosProxy, behind_proxy: EmbeddedBroker, tmp_path: Path
) -> None:
    topics = Topics(proxy.address)
    topic = topics.create(2)
    stream = Landing(spark, proxy.address, tmp_path)
    query = stream.start(subscribe=topic, maxBytesPerTrigger="100k", **QUICK)
    # Greetings are some 500 bytes: what is cut is mostly a read that has begun.
    kinds = (Kind.CUT, Kind.REFUSE, Kind.DRIP)
    proxy.next_fault = SeededFaults(7, kinds, most=10, reach_bytes=50_000)
    try:
        topics.fill(topic, 3000, 2000)
        query.processAllAvailable()
        behind_proxy.stop()
        behind_proxy.start()
        proxy.target = behind_proxy.bootstrap_servers
        topics.fill(topic, 1000, 500)
        query.processAllAvailable()
        topics.add_partitions(topic, 3)
        # A new producer knows the new partition.
        Topics(proxy.address).fill(topic, 1, 0, 700)
        query.processAllAvailable()
    finally:
        proxy.next_fault = no_fault
        query.stop()
    assert proxy.met
    assert stream.offsets() == every_offset(4001, 2500, 700)


def test_a_topic_that_is_created_again_below_a_stream_stops_it_by_name(
    landing: Landing,  # noqa: F811
    topics: Topics,
) -> None:
    topic = topics.create()
    topics.fill(topic, 5)
    # A pattern, which finds no topic for a moment without a complaint.
    query = landing.start(subscribePattern=topic, startingOffsets="earliest")
    query.processAllAvailable()
    topics.delete(topic)
    topics.create_again(topic)
    topics.fill(topic, 50)
    with pytest.raises(Exception, match=f"TopicRecreatedError: {topic}: deleted and created again"):
        query.awaitTermination(300)
    assert landing.offsets() == every_offset(5)


def committed(servers: str, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    asked = [TopicPartition(topic, number) for number in range(partitions)]
    offsets = [each.offset for each in consumer.committed(asked, 10)]
    consumer.close()
    return offsets


def test_a_group_is_told_of_the_last_batch_of_available_now(
    landing: Landing,  # noqa: F811
    topics: Topics,
    servers: str,
) -> None:
    topic = topics.create(2)
    topics.fill(topic, 30, 10)
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 15,
        "commitOffsetsToGroup": f"of-{topic}",
        "maxPartitionsPerTask": 2,
    }
    assert landing.run(**options) == 40
    assert committed(servers, f"of-{topic}", topic, 2) == [30, 10]
    topics.fill(topic, 1, 0)
    assert landing.run(**options) == 1
    assert committed(servers, f"of-{topic}", topic, 2) == [31, 10]


def test_a_group_is_not_told_of_a_batch_whose_sink_failed(
    spark: SparkSession, topics: Topics, servers: str, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    source = spark.readStream.format("kafkalog").option("kafka.bootstrap.servers", servers)
    options: dict[str, Any] = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 4,
    }
    frame = source.options(commitOffsetsToGroup=f"of-{topic}", **options).load()

    def run(sink: Callable[[DataFrame, int], Any]) -> None:
        writer = frame.writeStream.foreachBatch(sink).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        query.awaitTermination(300)

    def fails_at_the_second(batch: DataFrame, batch_id: int) -> None:
        if batch_id:
            raise RuntimeError("the sink is full")
        assert batch.count() == 4

    with pytest.raises(Exception, match="the sink is full"):
        run(fails_at_the_second)
    assert committed(servers, f"of-{topic}", topic, 1) == [4]
    run(lambda batch, batch_id: batch.count())
    assert committed(servers, f"of-{topic}", topic, 1) == [10]


def test_a_listener_is_told_how_far_a_stream_is_behind(
    spark: SparkSession,
    landing: Landing,  # noqa: F811
    topics: Topics,
) -> None:
    topic = topics.create()
    topics.fill(topic, 30)
    told, at_the_end = [], threading.Event()

    def tell(lag: QueryLag) -> None:
        told.append(lag)
        if not lag.total:
            at_the_end.set()

    listener = LagListener(tell)
    spark.streams.addListener(listener)
    try:
        landing.run(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
        assert at_the_end.wait(30)
    finally:
        spark.streams.removeListener(listener)
    assert [lag.lag for lag in told if (topic, 0) in lag.lag][:3] == [
        {(topic, 0): 20},
        {(topic, 0): 10},
        {(topic, 0): 0},
    ]
    assert landing.planned(2)[topic] == {"0": 30}
