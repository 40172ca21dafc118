"""A broker that comes back with the log of a topic that was deleted meanwhile, and made anew:
nothing of that log is served or replicated, nor is it lost."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import NewTopic
from kafka.errors import (
    InconsistentTopicIdError,
    NotLeaderForPartitionError,
    TopicAlreadyExistsError,
)

from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from tests.cluster.producing import Producing, check
from tests.support.broker_child import RawClient
from tests.support.cluster import Cluster
from tests.support.kafka_member import require_kafka_with_zookeeper
from tests.support.patience import wait_until

BACK = 3
"""Who comes back."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kafka",
    [
        pytest.param(set(), id="ours"),
        pytest.param({1}, id="Kafka's controller", marks=[pytest.mark.interop, pytest.mark.long]),
        pytest.param({BACK}, id="Kafka's log", marks=[pytest.mark.interop, pytest.mark.long]),
    ],
)
def test_what_comes_back_with_the_log_of_another_topic_gives_and_takes_nothing(
    tmp_path: Path, kafka: set[int]
) -> None:
    if kafka:
        require_kafka_with_zookeeper()
    with Cluster(tmp_path / "cluster", kafka=kafka) as cluster:
        old = old_log_comes_back(cluster, tmp_path / "old")
        with Producing(cluster, "t") as producing:
            producing.wait_for()
        assert [each["isr_nodes"] for each in cluster.partitions("t")] in ([[1, 2]], [[2, 1]])
        assert cluster.log_bytes(BACK, "t") == old
        wait_until(lambda: nothing_is_fetched(cluster), "it says that it does not lead it")
        if not kafka:
            offline = cluster.partitions("t")[0]["offline_replicas"]
            assert offline == [BACK]
        cluster.stop(BACK)
        shutil.rmtree(cluster.data_dir(BACK) / "t-0")
        cluster.start(BACK)
        cluster.wait_in_sync("t")
        check(cluster, producing, "t")


@pytest.mark.long
@pytest.mark.parametrize(
    "kafka",
    [
        pytest.param(set(), id="ours"),
        pytest.param({1}, id="Kafka's controller", marks=pytest.mark.interop),
    ],
)
def test_what_has_moved_away_from_a_broker_that_was_down_is_in_no_topics_way(
    tmp_path: Path, kafka: set[int]
) -> None:
    """Nobody could tell it to delete its log; the topic that is made anew gets one of its own."""
    if kafka:
        require_kafka_with_zookeeper()
    with Cluster(tmp_path, kafka=kafka) as cluster:
        cluster.create_topic("t")
        with Producing(cluster, "t") as producing:
            producing.wait_for(100)
        cluster.wait_in_sync("t")
        cluster.stop(BACK)
        old = cluster.log_bytes(BACK, "t")
        cluster.move({("t", 0): [1, 2]})
        cluster.wait_moved()
        cluster.delete_topic("t")
        cluster.start(BACK)
        wait_until(lambda: is_created(cluster), "it is made anew", pause_s=0.1)
        with Producing(cluster, "t") as producing:
            producing.wait_for()
        check(cluster, producing, "t")
        (stray,) = cluster.data_dir(BACK).glob("t-0.*-stray")
        assert b"".join(path.read_bytes() for path in sorted(stray.glob("*.log"))) == old


def old_log_comes_back(cluster: Cluster, kept: Path) -> bytes:
    """Of a topic of the same name, longer and with more leader epochs than the one that is there
    now."""
    log = cluster.data_dir(BACK) / "t-0"
    cluster.create_topic("t")
    with Producing(cluster, "t") as producing:
        producing.wait_for(100)
    cluster.stop(BACK)
    shutil.copytree(log, kept)
    cluster.start(BACK)
    cluster.wait_in_sync("t")
    cluster.delete_topic("t")
    wait_until(lambda: not log.exists(), "the log is gone")
    wait_until(lambda: is_created(cluster), "it is made anew", pause_s=0.1)
    cluster.wait_in_sync("t")
    cluster.stop(BACK)
    shutil.rmtree(log)
    # By its times it might be the one that counts.
    shutil.copytree(kept, log, copy_function=shutil.copy)
    old = cluster.log_bytes(BACK, "t")
    cluster.start(BACK)
    return old


def is_created(cluster: Cluster) -> bool:
    """Not before the one before is gone, to the last node."""
    with suppress(TopicAlreadyExistsError):
        cluster.ask(lambda admin: admin.create_topics([NewTopic("t", 1, 3)]))
        return True
    return False


def nothing_is_fetched(cluster: Cluster) -> bool:
    """By the name of the topic, or by its id."""
    broker = cluster.brokers[BACK]
    with RawClient(broker.host, broker.port) as client:
        topic_id = wait_until(lambda: client.metadata_of("t").topic_id, "it is known")
        by_name: Any = client.fetch(FetchRequest(12, 0, 1, [FetchPartition("t", 0, 0, 1 << 20)]))
        by_id = client.fetch(
            FetchRequest(17, 0, 1, [FetchPartition("t", 0, 0, 1 << 20, topic_id=topic_id)])
        )
    codes = {answer.partitions[0].error_code for answer in (by_name, by_id)}
    return codes <= {NotLeaderForPartitionError.errno, InconsistentTopicIdError.errno}
