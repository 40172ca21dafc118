"""One cluster of our brokers and of Apache Kafka's 3.9: each takes over what the other did.

The broker that is started first is the controller.
"""

import pytest

from tests.cluster.producing import Producing, check
from tests.support.cluster import Cluster
from tests.support.kafka_member import require_kafka_with_zookeeper

pytestmark = pytest.mark.interop

CONTROLLERS = pytest.mark.parametrize(
    "kafka", [{1}, {3}], ids=["led by Kafka's controller", "led by ours"]
)
"""Which brokers are Apache Kafka's."""
LOSE = pytest.mark.parametrize("lose", [Cluster.kill, Cluster.stop], ids=["killed", "stopped"])


@pytest.fixture
def cluster(tmp_path, kafka):
    require_kafka_with_zookeeper()
    with Cluster(tmp_path, kafka=kafka) as started:
        yield started


@LOSE
@CONTROLLERS
def test_leaders_followers_and_controllers_are_lost_in_turn(cluster, lose):
    """Each broker leads one partition and follows in two."""
    cluster.create_topic("t", 3)
    with Producing(cluster, "t", 3) as producing:
        for node_id in (1, 2, 3):
            producing.wait_for()
            lose(cluster, node_id)
            producing.wait_for()
            cluster.start(node_id)
            cluster.wait_in_sync("t")
        producing.wait_for()
    check(cluster, producing, "t", 3)
