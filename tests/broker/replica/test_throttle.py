"""How much goes by of replicas that are throttled: against the numbers of Apache Kafka's."""

from dataclasses import replace

import pytest
from kafka.structs import TopicPartition

from broker.cluster.metadata import new_topic
from broker.config.broker import BrokerConfig
from broker.config.definition import ConfigError
from broker.log.manager import LogManager
from broker.replica.isr import ReplicaHost
from broker.replica.manager import FetchLimits, ReplicaManager
from broker.replica.partition import Isolation
from broker.replica.purgatory import Purgatory
from broker.replica.throttle import Throttle, Throttles, is_listed
from pyspark_kafkalog.protocol.fetch import FetchPartition
from tests.broker.log.batches import batch
from tests.broker.log.memory_files import MemoryFiles
from tests.support.replicas import never, no_isr_change

PLACE = TopicPartition("t", 0)
LISTED = "leader.replication.throttled.replicas"


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_went_by_is_spread_over_the_time_since_the_oldest_sample(clock: Clock) -> None:
    throttle = Throttle(clock, 11, 1000)
    throttle.record(10_000_000)
    assert not throttle.is_exceeded  # there is no limit
    throttle.bytes_per_s = 100
    assert throttle.is_exceeded
    clock.now_ms += 11_000
    assert not throttle.is_exceeded  # that is forgotten
    throttle.record(100)
    assert not throttle.is_exceeded  # as many in the first second
    throttle.record(1)
    assert throttle.is_exceeded
    clock.now_ms += 1009
    assert throttle.is_exceeded
    clock.now_ms += 1
    assert not throttle.is_exceeded  # 101 bytes in 1.01 s
    throttle.record(899)
    clock.now_ms += 8989
    assert throttle.is_exceeded
    clock.now_ms += 1
    assert not throttle.is_exceeded  # 1000 in 10 s
    throttle.bytes_per_s = 0
    assert throttle.is_exceeded


def test_a_rate_is_kept_over_a_long_time(clock: Clock) -> None:
    throttle = Throttle(clock, 11, 1000)
    throttle.bytes_per_s = 1000
    sent = 0
    for _ in range(6000):
        clock.now_ms += 10
        if not throttle.is_exceeded:
            throttle.record(100)
            sent += 100
    assert sent == pytest.approx(60_000, rel=0.05)


def test_which_replicas_a_topic_throttles() -> None:
    assert not is_listed((), 0, 1)
    assert is_listed(("*",), 0, 1)
    assert [is_listed(("0:1", "10:2"), *each) for each in ((0, 1), (1, 0), (10, 2), (0, 2))] == [
        True,
        False,
        True,
        False,
    ]
    for listed in ("0:1", "*", "0:1,1:2", ""):
        BrokerConfig().log_config({LISTED: listed})
    for nonsense in ("0", "a:b", "0:1:2", "**"):
        with pytest.raises(ConfigError, match="literal"):
            BrokerConfig().log_config({LISTED: nonsense})


class Leading:
    """A broker that leads a throttled partition, with a follower in sync and one that is not."""

    def __init__(self, clock: Clock) -> None:
        config = BrokerConfig.from_properties({"log.dirs": "/data"})
        logs = LogManager(config, lambda topic: {LISTED: "0:1"}, files=MemoryFiles())
        logs.open()
        host = ReplicaHost(1, 30_000, lambda node_id: node_id == 2, lambda _: True, clock)
        self.throttles = Throttles(config, clock)
        purgatory = Purgatory(never)
        self.replicas = ReplicaManager(logs, purgatory, host, no_isr_change, self.throttles)
        topic = new_topic("t", 1, 1)
        self.replicas.make_logs({PLACE: topic.topic_id}, [PLACE])
        state = replace(topic.partitions[0], replicas=(1, 2, 3), isr=(1, 2))
        self.replicas.lead(PLACE, topic.topic_id, state)
        self.log = logs.all_logs()[PLACE]
        for _ in range(10):
            self.log.append(batch(), 0)

    def fetched_by(self, node_id: int, offset: int) -> int:
        """How many bytes it gets."""
        asked = [FetchPartition("t", 0, offset, 1 << 20)]
        limits = FetchLimits(1 << 20, Isolation.LOG_END, follower_id=node_id)
        result = self.replicas.fetch(asked, limits)
        self.replicas.sent(asked, result.reads)
        return result.size_bytes


def test_a_leader_gives_nothing_above_the_rate_but_to_those_in_sync(clock: Clock) -> None:
    leading = Leading(clock)
    size_bytes = leading.log.size_bytes
    config = BrokerConfig.from_properties({"leader.replication.throttled.rate": str(size_bytes)})
    assert leading.fetched_by(3, 0) == size_bytes
    assert leading.fetched_by(3, 0) == size_bytes
    leading.throttles.configure(config)
    assert leading.fetched_by(3, 0) == 0
    assert leading.replicas.holds_back("t", 0, 3)
    assert not leading.replicas.holds_back("t", 0, 2)
    assert leading.fetched_by(2, 0) == size_bytes
    clock.now_ms += 3000
    assert leading.fetched_by(3, 0) == size_bytes
    assert leading.fetched_by(3, 0) == 0
    leading.throttles.configure(BrokerConfig())
    assert leading.fetched_by(3, 0) == size_bytes
