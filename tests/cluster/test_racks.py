"""Replicas of one cluster that are spread over racks."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.patience import wait_until

RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}


class RackedCluster(Cluster):
    def properties_of(self, node_id: int) -> dict[str, str]:
        return {**super().properties_of(node_id), "broker.rack": RACKS[node_id]}


def racks(cluster: Cluster, topic: str) -> list[Any]:
    """Of the replicas of each partition."""
    return [{RACKS[each] for each in part["replica_nodes"]} for part in cluster.partitions(topic)]


def wait_led(cluster: Cluster, partitions: int) -> None:
    """Until every broker that may be asked has heard of them."""

    def is_known() -> bool:
        leaders = [
            [part["leader_id"] for part in cluster.partitions("t")] for _ in range(4 * len(RACKS))
        ]
        return all(len(each) == partitions and -1 not in each for each in leaders)

    wait_until(is_known, lambda: cluster.partitions("t"), pause_s=0.05)


@pytest.mark.long
def test_each_partition_has_replicas_in_both_racks(tmp_path: Path) -> None:
    with RackedCluster(tmp_path, brokers=4) as cluster:
        told = cluster.admin.describe_cluster()["brokers"]
        assert {each["broker_id"]: each["rack"] for each in told} == RACKS
        cluster.create_topic("t", 6, 2)
        wait_led(cluster, 6)
        assert racks(cluster, "t") == [{"a", "b"}] * 6
        cluster.admin.create_partitions({"t": 9})
        wait_led(cluster, 9)
        assert racks(cluster, "t") == [{"a", "b"}] * 9
        leaders = [each["leader_id"] for each in cluster.partitions("t")]
        # As in Apache Kafka, partitions that are added begin where they may.
        assert {leaders.count(node_id) for node_id in RACKS} <= {1, 2, 3}
