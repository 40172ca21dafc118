"""What the brokers of a cluster tell who watches them."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_child import BrokerChild
from tests.support.cluster import Cluster
from tests.support.patience import wait_until
from tests.support.scraping import address_of, scrape

REPLICAS = "kafka_server_replica_manager_"
CONTROLLER = "kafka_controller_kafka_controller_"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, properties={"metrics.listener": "127.0.0.1:0"}) as started:
        yield started


def figures(cluster: Cluster) -> Counter[str]:
    """Of all brokers together."""
    whole: Counter[str] = Counter()
    for broker in cluster.brokers.values():
        assert isinstance(broker, BrokerChild)
        for (name, *labels), value in scrape(address_of(broker)).items():
            if not labels:
                whole[str(name)] += int(value)
    return whole


def test_what_a_lost_broker_means_for_partitions(cluster: Cluster) -> None:
    cluster.create_topic("t", 3)
    cluster.wait_in_sync("t")
    well = figures(cluster)
    assert well[REPLICAS + "partition_count"] == 9
    assert well[REPLICAS + "leader_count"] == 3
    assert well[REPLICAS + "under_replicated_partitions"] == 0
    assert well[CONTROLLER + "active_controller_count"] == 1
    assert well[CONTROLLER + "active_broker_count"] == 3
    assert well[CONTROLLER + "global_partition_count"] == 3
    assert well[CONTROLLER + "offline_partitions_count"] == 0
    first, second, _ = cluster.brokers
    cluster.kill(first)
    wait_until(
        lambda: figures(cluster)[REPLICAS + "under_replicated_partitions"] == 3,
        lambda: figures(cluster),
        pause_s=0.2,
    )
    short = figures(cluster)
    assert short[REPLICAS + "at_min_isr_partition_count"] == 3
    assert short[REPLICAS + "under_min_isr_partition_count"] == 0
    cluster.start(first)
    cluster.wait_in_sync("t")
    again = figures(cluster)
    assert again[REPLICAS + "under_replicated_partitions"] == 0
    assert again[REPLICAS + "isr_expands_total"] >= 3
    assert again["kafka_server_replica_fetcher_manager_max_lag"] == 0
    assert again[CONTROLLER + "active_controller_count"] == 1
    cluster.stop(second)
