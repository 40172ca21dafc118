"""What consumers are told by a broker that follows, and which of them wait (KIP-392)."""

from dataclasses import replace
from functools import partial

import pytest
from kafka.errors import (
    FencedLeaderEpochError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)
from kafka.structs import TopicPartition

from broker.cluster.metadata import new_topic
from broker.config.broker import BrokerConfig
from broker.log.manager import LogManager
from broker.replica.delayed import DelayedFetch
from broker.replica.manager import FetchLimits, FetchResult, ReplicaManager
from broker.replica.partition import Isolation
from broker.replica.purgatory import Purgatory
from pyspark_kafkalog.protocol.fetch import FetchPartition
from tests.broker.log.batches import batch
from tests.broker.log.memory_files import MemoryFiles
from tests.support.present import present
from tests.support.replicas import replicas_alone

PLACE = TopicPartition("t", 0)
HERE = FetchLimits(1 << 20, Isolation.HIGH_WATERMARK, rack="")


class Timer:
    def cancel(self) -> None:
        """Nobody's time is up."""


@pytest.fixture
def replicas() -> ReplicaManager:
    """Of a broker that follows a partition, and has ten records of it."""
    logs = LogManager(BrokerConfig.from_properties({"log.dirs": "/data"}), files=MemoryFiles())
    logs.open()
    replicas = replicas_alone(logs, Purgatory(lambda wait_s, run: Timer()))
    topic = new_topic("t", 1, 2)
    replicas.make_logs({PLACE: topic.topic_id}, [PLACE])
    for _ in range(10):
        logs.all_logs()[PLACE].append(batch(), 4)
    state = replace(topic.partitions[0], replicas=(2, 1), isr=(2, 1), leader_epoch=4)
    replicas.follow(PLACE, topic.topic_id, state)
    return replicas


def fetch(
    replicas: ReplicaManager, offset: int, limits: FetchLimits = HERE, epoch: int = -1
) -> FetchResult:
    wanted = FetchPartition("t", 0, offset, 1 << 20, epoch)
    return replicas.fetch([wanted], limits)


def test_what_is_committed_is_read_here_by_who_knows_of_followers(replicas: ReplicaManager) -> None:
    partition = replicas.kept(PLACE)
    assert fetch(replicas, 0).reads[0].size_bytes == 0
    replicas.follow_leader(present(partition), 7, 0)
    (read,) = fetch(replicas, 5).reads
    assert (read.high_watermark, read.size_bytes) == (
        7,
        2 * present(partition).log.size_bytes // 10,
    )
    assert [fetch(replicas, offset).reads[0].size_bytes for offset in (7, 8, 10)] == [0, 0, 0]
    assert not fetch(replicas, 10).urgent
    for offset, limits, epoch, error in (
        (11, HERE, -1, OffsetOutOfRangeError),
        (0, HERE, 3, FencedLeaderEpochError),
        (0, HERE, 5, UnknownLeaderEpochError),
        (0, HERE._replace(rack=None), -1, NotLeaderForPartitionError),
    ):
        result = fetch(replicas, offset, limits, epoch)
        assert isinstance(result.reads[0], error)
        assert result.urgent


def test_who_waits_here_hears_of_what_the_leader_has_committed(replicas: ReplicaManager) -> None:
    partition = replicas.kept(PLACE)
    replicas.follow_leader(present(partition), 5, 0)
    size_bytes = present(partition).log.size_bytes // 10
    done: list[int] = []
    for missing_bytes in (1, 3 * size_bytes):
        delayed = DelayedFetch([PLACE], missing_bytes, Isolation.HIGH_WATERMARK)
        replicas.wait(delayed, 1000, partial(done.append, missing_bytes))
    replicas.follow_leader(present(partition), 5, 0)
    assert done == []
    replicas.follow_leader(present(partition), 7, 0)
    assert done == [1]
    replicas.follow_leader(present(partition), 8, 0)
    assert done == [1, 3 * size_bytes]
