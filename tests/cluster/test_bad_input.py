"""What a cluster of ours is given that is not right: a clear error, or the rest goes on."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.cluster.producing import Producing, check
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.cluster import Cluster
from tests.support.patience import wait_until
from tests.support.transactions import PARTITIONS, Transactions, read_committed
from tests.support.zookeeper import ZooKeeperServer

SHIFT_S = 5 * 60
TIMEOUT_MS = 15 * 60 * 1000
"""Of transactions: more than clocks differ by, else their next coordinator finds them too old."""
SAID = "/controller holds nonsense"


pytestmark = pytest.mark.slow


@pytest.fixture
def tree() -> Iterator[Callable[[Cluster], KazooClient]]:
    """Connects a client to a cluster's ZooKeeper."""
    clients = []

    def connect(cluster: Cluster) -> KazooClient:
        client = KazooClient(f"{cluster.zookeeper.address}/cluster")
        clients.append(client)
        client.start()
        return client

    yield connect
    for client in clients:
        client.stop()
        client.close()


def lose_controller(cluster: Cluster, producing: Producing) -> None:
    """It is stopped, and back when another has been elected."""
    controller = cluster.controller_id
    cluster.stop(controller)
    for partition in range(3):
        cluster.wait_led("t", partition, not_by=controller)
    producing.wait_for()
    cluster.start(controller)
    cluster.wait_in_sync("t")


def test_nodes_in_nonsense_harm_nothing_else(
    tmp_path: Path, tree: Callable[[Cluster], KazooClient]
) -> None:
    """A topic whose node cannot be read is known no more to the next controller, and is as it was
    when the node is mended."""
    with Cluster(tmp_path) as cluster:
        nodes = tree(cluster)
        for topic in ("t", "odd"):
            cluster.create_topic(topic, 3)
            cluster.wait_in_sync(topic)
        with Producing(cluster, "odd", 3) as odd:
            odd.wait_for()
        with Producing(cluster, "t", 3) as producing:
            producing.wait_for()
            path = "/brokers/topics/odd/partitions/1/state"
            state, _ = nodes.get(path)
            for nonsense in (path, "/brokers/ids/x", "/brokers/ids/9", "/brokers/topics/none"):
                nodes.ensure_path(nonsense)
                nodes.set(nonsense, b"nonsense")
            lose_controller(cluster, producing)
            nodes.set(path, state)
            lose_controller(cluster, producing)
            cluster.wait_in_sync("odd")
        check(cluster, producing, "t", 3)
        check(cluster, odd, "odd", 3)


def test_a_controllers_node_in_nonsense_is_waited_for(
    tmp_path: Path, tree: Callable[[Cluster], KazooClient]
) -> None:
    """Who was elected goes on; when the node is gone somebody is elected anew."""
    with Cluster(tmp_path) as cluster:
        nodes = tree(cluster)
        cluster.create_topic("t", 3)
        with Producing(cluster, "t", 3) as producing:
            producing.wait_for()
            foreign = nodes.transaction()
            foreign.delete("/controller")
            foreign.create("/controller", b"nonsense")
            assert foreign.commit() == [True, "/controller"]
            for broker in cluster.brokers.values():
                wait_until(lambda told=broker.stderr: SAID in told(), SAID)
            producing.wait_for()
            nodes.delete("/controller")
            wait_until(lambda: nodes.exists("/controller"), "one is elected")
            elected = json.loads(nodes.get("/controller")[0])["brokerid"]
            wait_until(lambda: cluster.controller_id == elected, "the brokers are told")
            cluster.create_topic("new", 3)
            cluster.wait_in_sync("new")
            producing.wait_for()
        check(cluster, producing, "t", 3)


def test_a_wrong_path_or_cluster_is_said_and_nothing_is_begun(tmp_path: Path) -> None:
    """The logs are of another cluster than the tree, or the tree is of none."""
    with ZooKeeperServer() as zookeeper:

        def start(name: str, path: str) -> BrokerChild:
            properties = {"broker.id": "1", "zookeeper.connect": f"{zookeeper.address}{path}"}
            return BrokerChild(tmp_path / name, properties)

        with start("first", "/a") as child, RawClient(child.host, child.port) as client:
            client.metadata_of("none")
            assert child.stop() == 0
        with pytest.raises(RuntimeError, match=r"belongs to cluster .*none at .*/b: check"):
            start("first", "/b")
        with start("second", "/b") as child:
            assert child.stop() == 0
        with pytest.raises(RuntimeError, match=r"first belongs to cluster .*, this is "):
            start("first", "/b")
        with start("first", "/a") as child:
            assert child.stop() == 0


class ShiftedClocks(Cluster):
    """Broker 1 is behind, 3 ahead."""

    def module_of(self, node_id: int) -> str:
        return f"tests.support.shifted_clock --shift-s={(node_id - 2) * SHIFT_S}"


@pytest.mark.long
def test_clocks_that_differ_cost_nothing(tmp_path: Path) -> None:
    """Each broker leads in its turn, also what is stamped by its leader, and a transaction."""
    with ShiftedClocks(tmp_path) as cluster:
        minutes = {broker.stderr()[:21] for broker in cluster.brokers.values()}
        assert len(minutes) == 3, minutes
        cluster.create_topic("t", PARTITIONS)
        stamped = {"message.timestamp.type": "LogAppendTime"}
        cluster.create_topic("stamped", 3, configs=stamped)
        transactions = Transactions(cluster, "x", TIMEOUT_MS)
        with Producing(cluster, "stamped", 3) as producing:
            for node_id in (3, 2, 1):
                transactions.begin()
                transactions.flush()
                producing.wait_for()
                cluster.stop(node_id)
                producing.wait_for()
                transactions.commit()
                cluster.start(node_id)
                for topic in ("t", "stamped"):
                    cluster.wait_in_sync(topic)
        check(cluster, producing, "stamped", 3)
        count = len(transactions.committed)
        assert sorted(read_committed(cluster, count)) == transactions.committed
