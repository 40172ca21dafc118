"""Apache Kafka's own tools, of today and of 3.9, administer a cluster of our brokers."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from tests.interop.test_admin_tools import JavaTools
from tests.support.cluster import Cluster
from tests.support.jvm import PEERS, peer_java
from tests.support.kafka_server import require_kafka
from tests.support.patience import EVENT_S, wait_until
from tests.support.present import present

BYTES, RATE = 3_000_000, 300_000

pytestmark = [pytest.mark.interop, pytest.mark.long]


@pytest.fixture(params=["kafka", "kafka-zk"])
def jars(request: pytest.FixtureRequest) -> Any:
    require_kafka()
    if not (PEERS / request.param).is_dir():
        pytest.skip(f"no Apache Kafka in {PEERS / request.param}: run tests/interop/peers/fetch")
    return request.param


def test_replicas_move_and_leaders_come_back(tmp_path: Path, jars: Any) -> None:
    def plan(name: str, replicas: list[Any]) -> str:
        path = tmp_path / name
        partition = {"topic": "t", "partition": 0, "replicas": replicas}
        path.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        return str(path)

    with Cluster(tmp_path) as cluster:
        tool = JavaTools(",".join(cluster.bootstrap), jars)
        cluster.place_topic("t", {0: [1, 2]})
        cluster.wait_in_sync("t", 2)
        with KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            for _ in range(BYTES // 10_000):
                producer.send("t", bytes(10_000))

        def placed() -> list[Any]:
            (partition,) = cluster.partitions("t")
            return list(partition["replica_nodes"])

        moved = plan("moved.json", [3, 1])
        arguments = ("--throttle", str(RATE), "--reassignment-json-file", moved)
        began_s = time.monotonic()
        started = tool("reassign.ReassignPartitionsCommand", "--execute", *arguments)
        assert "Successfully started partition reassignment for t-0" in started
        wait_until(lambda: placed() == [3, 1], placed)
        assert time.monotonic() - began_s > (BYTES - 1_048_576) / RATE - 0.5
        verify = ("--verify", "--reassignment-json-file", moved)
        verified = tool("reassign.ReassignPartitionsCommand", *verify)
        assert "Reassignment of partition t-0 is completed." in verified
        assert "Clearing broker-level throttles on brokers 1,2,3" in verified
        assert "Clearing topic-level throttles on topic t" in verified
        assert "No partition reassignments found." in tool(
            "reassign.ReassignPartitionsCommand", "--list"
        )
        cluster.stop(3)
        assert cluster.wait_led("t", not_by=3) == 1
        cluster.start(3)
        cluster.wait_in_sync("t", 2)
        elected = tool(
            "LeaderElectionCommand",
            *("--election-type", "preferred", "--topic", "t", "--partition", "0"),
        )
        assert "Successfully completed leader election (PREFERRED) for partitions t-0" in elected
        assert cluster.leader("t") == 3
        described = tool("TopicCommand", "--describe", "--topic", "t")
        assert "Leader: 3\tReplicas: 3,1" in described
        assert "throttled" not in described


def test_replicas_are_compared_and_each_tells_of_its_producers(tmp_path: Path, jars: Any) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.create_topic("t", 3)
        cluster.wait_in_sync("t")
        with KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            for number in range(30):
                producer.send("t", b"v", partition=number % 3)
        verification = [
            *("timeout", str(EVENT_S), *peer_java(jars, "-Xmx256m")),
            "org.apache.kafka.tools.ReplicaVerificationTool",
            *("--broker-list", ",".join(cluster.bootstrap), "--topics-include", "t"),
            *("--report-interval-ms", "100"),
        ]
        with subprocess.Popen(
            verification, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as tool:
            # It tells of nothing as long as it has not had all replicas of all partitions.
            reports = (line for line in present(tool.stdout) if "max lag is" in line)
            seen = next(line for line in reports if "partition null" not in line)
            tool.terminate()  # and with `timeout` what it has started
        assert "max lag is 0 for partition t-" in seen
        assert "among 3 partitions" in seen
        transactions = JavaTools(",".join(cluster.bootstrap), jars)
        for node_id in cluster.brokers:
            transactions("TransactionsCommand", "find-hanging", "--broker-id", str(node_id))
