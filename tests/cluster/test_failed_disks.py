"""Disks that refuse: the replicas on them are offline until their brokers are started again, and
others lead and are in sync.

The limit on the size of a file (RLIMIT_FSIZE) is set on a running broker from outside.
"""

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaStorageError

from tests.cluster.producing import Producing, check
from tests.support.broker_child import RawClient
from tests.support.cluster import Cluster
from tests.support.full_disk import lift_limit, limit_files_to
from tests.support.kafka_member import require_kafka_with_zookeeper
from tests.support.patience import wait_until
from tests.support.records import batch_of


def filled(cluster, topic):
    """Three partitions, each led by another broker, of more bytes than the limit."""
    cluster.create_topic(topic, 3)
    with KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for number in range(90):
            producer.send(topic, b"%d" % (number - 90) + b" " * 2000, partition=number % 3)
    cluster.wait_in_sync(topic)


def lose_disk(cluster, topic, node_id):
    broker = cluster.brokers[node_id]
    limit_files_to(broker, 30_000)

    def is_out():
        return all(
            part["leader_id"] not in (-1, node_id) and node_id not in part["isr_nodes"]
            for part in cluster.partitions(topic)
        )

    wait_until(is_out, lambda: cluster.partitions(topic), pause_s=0.05)
    lift_limit(broker)


def is_offline(cluster, topic, node_id):
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        codes = {client.produce(topic, index, batch_of(1)).error_code for index in range(3)}
    return codes == {KafkaStorageError.errno}


def lose_and_come_back(cluster, node_id):
    filled(cluster, "t")
    with Producing(cluster, "t", 3) as producing:
        producing.wait_for(60)
        lose_disk(cluster, "t", node_id)
        producing.wait_for(60)
        # Also now that it takes what is written: what it has missed is not its own to know.
        assert is_offline(cluster, "t", node_id)
        cluster.create_topic("new", 3)
        cluster.wait_in_sync("new")
        cluster.stop(node_id)
        cluster.start(node_id)
        cluster.wait_in_sync("t")
        producing.wait_for(60)
    check(cluster, producing, "t", 3)


@pytest.mark.parametrize("is_controller", [True, False])
def test_others_lead_and_are_in_sync_where_a_disk_fails(tmp_path, is_controller):
    with Cluster(tmp_path) as cluster:
        controller = cluster.controller_id
        others = cluster.brokers.keys() - {controller}
        lose_and_come_back(cluster, controller if is_controller else min(others))
        if not is_controller:
            assert cluster.controller_id == controller


@pytest.mark.interop
@pytest.mark.slow
def test_apache_kafkas_controller_is_told_of_a_disk_that_fails(tmp_path):
    require_kafka_with_zookeeper()
    with Cluster(tmp_path, kafka={1}) as cluster:
        assert cluster.controller_id == 1
        lose_and_come_back(cluster, 2)
