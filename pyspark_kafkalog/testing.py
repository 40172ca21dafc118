"""Fixtures of pytest, found by it wherever this package is installed.

    def test_my_job(spark, kafka_broker):
        my_job(spark, kafka_broker.bootstrap_servers)

Each is started once for a test run, by the first test that asks for it; give topics names of their
own.
"""

from collections.abc import Iterator

import pytest

from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.embedded_cluster import EmbeddedCluster


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
