"""What a long poll hears of partitions, and when it says that it does not know."""

import threading
import time
from collections.abc import Callable

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.news import News
from pyspark_kafkalog.protocol import fetch
from tests.pyspark_kafkalog.client.conftest import write
from tests.pyspark_kafkalog.client.scripted import FETCH, Request, ScriptedBroker


def test_what_is_new_is_heard_of_at_once_and_nothing_else(
    config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3)
    topic_partitions = [TopicPartition(topic, partition) for partition in range(3)]
    write(config(), topic_partitions[0], [b"old"])
    positions = {topic_partitions[0]: 1, topic_partitions[1]: 0, topic_partitions[2]: 0}
    with Cluster(config(fetch_max_wait_ms="20000")) as cluster:
        news = News(cluster)
        writing = threading.Timer(0.3, lambda: write(config(), topic_partitions[1], [b"a", b"b"]))
        writing.start()
        began = time.monotonic()
        assert news.wait(positions) == {topic_partitions[1]: 2}
        assert time.monotonic() - began < 15
        writing.join()
        write(config(), topic_partitions[0], [b"new"])
        assert news.wait(positions | {topic_partitions[1]: 2}) == {topic_partitions[0]: 2}


def test_nothing_new_is_said_after_the_time_that_brokers_hold_back(
    config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    with Cluster(config(fetch_max_wait_ms="300")) as cluster:
        news = News(cluster)
        positions = {TopicPartition(topic, 0): 0}
        began = time.monotonic()
        found = [news.wait(positions) for _ in range(4)]
        assert found == [{}] * 4
        assert time.monotonic() - began > 0.6
        assert sum(connection.in_flight for connection in news._polls) <= 1


def test_what_is_the_matter_with_a_partition_others_find_out(
    config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    with Cluster(config(fetch_max_wait_ms="100")) as cluster:
        news = News(cluster)
        assert news.wait({TopicPartition(topic, 0): 5}) is None
        assert news.wait({TopicPartition(topic, 0): 0}) in ({}, None)
        with Cluster(config()) as other:
            admin.delete_topics(other, [topic])
        assert any(news.wait({TopicPartition(topic, 0): 0}) is None for _ in range(50))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(fetch.FetchedPartition("t", 0, 56, -1), None, id="a refusal"),
        pytest.param(
            fetch.FetchedPartition("t", 0, 0, high_watermark=10, last_stable_offset=5),
            {},
            id="an open transaction before it",
        ),
    ],
)
def test_a_broker_that_answers_at_once_is_not_asked_at_once_again(
    answer: fetch.FetchedPartition, expected: dict[TopicPartition, int] | None
) -> None:
    """Whoever asks for the ends themselves may hear of no trouble, and wait for news again."""

    def say(request: Request) -> bytes:
        parts = fetch.encode_fetch_response(fetch.FetchResponse([answer]), request.version)
        return b"".join(map(bytes, parts))

    with (
        ScriptedBroker({FETCH: say}) as broker,
        Cluster(broker.config(retry_backoff_ms="200", isolation_level="read_committed")) as cluster,
    ):
        news = News(cluster)
        began = time.monotonic()
        assert [news.wait({TopicPartition("t", 0): 7}) for _ in range(4)] == [expected] * 4
        assert time.monotonic() - began > 0.5
