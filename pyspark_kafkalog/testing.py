"""Fixtures of pytest, found by it wherever this package is installed.

    def test_my_job(spark, kafka_broker, kafka_topic):
        my_job(spark, kafka_broker.bootstrap_servers, kafka_topic)

    @pytest.mark.kafka_topic(partitions=4, configs={"cleanup.policy": "compact"})
    def test_my_other_job(spark, kafka_broker, kafka_topic): ...

Broker and cluster are started once for a test run, by the first test that asks for them; a topic is
made for each test, and deleted after it.
"""

import re
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.embedded_cluster import EmbeddedCluster

_LONGEST_NAME = 200
"""Of a test, in the name of its topic: at most 249 characters."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "kafka_topic(partitions=1, configs={}): how the fixture kafka_topic is made"
    )


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[EmbeddedBroker]:
    """A broker on 127.0.0.1."""
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[EmbeddedCluster]:
    """Three brokers on 127.0.0.1. A test that stops or kills one starts it again."""
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_broker: EmbeddedBroker) -> Iterator[str]:
    """The name of a new topic of `kafka_broker`: that of the test, and what makes it the only one.

    The marker kafka_topic says how many partitions, and which properties.
    """
    # Not for each run of pytest where this package is installed.
    with warnings.catch_warnings():
        # kafka-python's way to load its schemas is an error to those who run pytest with -W error.
        warnings.simplefilter("ignore", DeprecationWarning)
        from pyspark_kafkalog.client.admin import create_topic, delete_topics
        from pyspark_kafkalog.client.cluster import Cluster
        from pyspark_kafkalog.client.config import ClientConfig
    from pyspark_kafkalog.errors import BrokersUnreachableError, UnknownTopicError

    marker = request.node.get_closest_marker("kafka_topic")
    partitions, configs = _wanted(*marker.args, **marker.kwargs) if marker else _wanted()
    test = re.sub("[^a-zA-Z0-9._-]", "-", request.node.name)[:_LONGEST_NAME]
    name = f"{test}-{uuid.uuid4().hex[:8]}"
    config = ClientConfig.from_options({"bootstrap.servers": kafka_broker.bootstrap_servers})
    with Cluster(config, fails_fast=True) as cluster:
        create_topic(cluster, name, partitions, configs=configs)
        yield name
        # The test may have deleted it, or ended the broker.
        with suppress(UnknownTopicError, BrokersUnreachableError):
            delete_topics(cluster, [name])


def _wanted(
    partitions: int = 1, configs: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str]]:
    """What the marker kafka_topic says."""
    return partitions, configs or {}
