"""What an offset takes, as a look at the log tells."""

from collections.abc import Callable

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.sizes import SAMPLE_BYTES, sample_sizes
from tests.pyspark_kafkalog.client.conftest import write
from tests.pyspark_kafkalog.client.scripted import FETCH, SILENCE, ScriptedBroker

T0 = TopicPartition("t", 0)


def test_offsets_take_what_their_batches_do(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3)
    small, large, empty = (TopicPartition(topic, number) for number in range(3))
    write(config(), small, [b"x" * 100] * 1000, batch_bytes=10_000)
    write(config(), large, [b"x" * 5000] * 100, batch_bytes=10_000)
    found = sample_sizes(cluster, {small: 500, large: 0, empty: 0})
    assert found == {small: pytest.approx(108, rel=0.1), large: pytest.approx(5050, rel=0.1)}


def test_batches_that_are_too_large_to_come_together_come_one_at_a_time(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3)
    topic_partitions = [TopicPartition(topic, number) for number in range(3)]
    for topic_partition in topic_partitions:
        write(config(max_request_size="3000000"), topic_partition, [b"x" * 900_000])
    assert len(topic_partitions) * 900_000 > SAMPLE_BYTES
    for first in topic_partitions:
        order = {each: 0 for each in sorted(topic_partitions, key=lambda each: each != first)}  # noqa: C420
        assert sample_sizes(cluster, order)[first] == pytest.approx(900_000, rel=0.1)


def test_what_is_not_told_is_left_out(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    write(config(), topic_partition, [b"x"] * 10)
    assert sample_sizes(cluster, {topic_partition: 50}) == {}
    assert sample_sizes(cluster, {}) == {}
    with (
        ScriptedBroker({FETCH: lambda request: SILENCE}) as broker,
        Cluster(broker.config(request_timeout_ms="200")) as own,
    ):
        assert sample_sizes(own, {T0: 0}) == {}
