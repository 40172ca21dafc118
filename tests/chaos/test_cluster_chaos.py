"""Faults at random, by a seed, in a cluster that is written to and read all the time.

Brokers are killed, stopped and frozen, alone, in pairs and all together; ZooKeeper goes away for
less and for more than a session. What was acknowledged is there in the end, once, in its order and
at its offset; no reader was shown anything else; all replicas are alike, byte by byte.

KAFKALOG_CHAOS_FAULTS says how many (`make chaos`: 1,000), KAFKALOG_CHAOS_SEED replays a run.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    Message,
    Producer,
    TopicPartition,
)

from tests.support.broker_child import BrokerChild
from tests.support.cluster import SESSION_S, Cluster
from tests.support.patience import EVENT_S, wait_until

FAULTS = int(os.environ.get("KAFKALOG_CHAOS_FAULTS", "4"))
PARTITIONS = 3
TOPIC = "chaos"
PASSING = ("_TRANSPORT", "_ALL_BROKERS_DOWN")


class Producing:
    """An idempotent producer with acks=all that never gives up; one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.errors: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": ",".join(cluster.bootstrap),
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 0,  # for ever
                "socket.timeout.ms": 5_000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for(self, more: int) -> None:
        enough = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= enough, lambda: self.errors, 2 * EVENT_S, 0.05)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(2 * EVENT_S) == 0

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            if len(self._producer) < 200:
                self._producer.produce(
                    TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._told
                )
                number += 1
            self._producer.poll(0.002)

    def _told(self, error: Any, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        place = (partition, offset)
        if place in self.acknowledged:
            self.errors.append(f"{place} acknowledged twice")
        self.acknowledged[place] = int(value)


class Reading:
    """A consumer of all partitions from their beginnings; one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self.found: dict[tuple[int, int], int] = {}
        self.errors: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": ",".join(cluster.bootstrap),
                "group.id": "chaos",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "socket.timeout.ms": 5_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [TopicPartition(TOPIC, each, OFFSET_BEGINNING) for each in range(PARTITIONS)]
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        last = [-1] * PARTITIONS
        while not self._is_over.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if not error.retriable() and error.name() not in PASSING:
                    self.errors.append(str(error))
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            if offset <= last[partition]:
                self.errors.append(f"{partition}:{offset} read after {last[partition]}")
            last[partition] = offset
            self.found[partition, offset] = int(value)


class Nemesis:
    """Does what `random` says to a cluster, and undoes it."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self.done: Counter[str] = Counter()

    def strike(self) -> str:
        """One fault; what it was."""
        names = ["kill", "stop", "freeze", "freeze", "pair", "all", "zookeeper", "twice"]
        name = self._chance.choices(names, [6, 4, 3, 3, 2, 1, 2, 2])[0]
        self.done[name] += 1
        return f"{name}: {getattr(self, name)()}"

    def _victim(self) -> int:
        """More often one that matters."""
        kind = self._chance.choice(["any", "leader", "controller"])
        try:
            if kind == "leader":
                leader = self._cluster.leader(TOPIC, self._chance.randrange(PARTITIONS))
                return leader if leader in self._cluster.brokers else 1
            if kind == "controller":
                controller = self._cluster.controller_id
                return controller if controller in self._cluster.brokers else 1
        except AssertionError:
            pass
        return self._chance.choice(sorted(self._cluster.brokers))

    def _pause(self, most_sessions: float) -> float:
        pause_s = self._chance.uniform(0, most_sessions) * SESSION_S
        time.sleep(pause_s)
        return pause_s

    def kill(self) -> str:
        victim = self._victim()
        self._cluster.kill(victim)
        pause_s = self._pause(1.5)
        self._cluster.start(victim)
        return f"{victim} for {pause_s:.1f} s"

    def stop(self) -> str:
        victim = self._victim()
        self._cluster.stop(victim)
        pause_s = self._pause(0.5)
        self._cluster.start(victim)
        return f"{victim} for {pause_s:.1f} s"

    def freeze(self) -> str:
        victim = self._victim()
        broker = self._cluster.brokers[victim]
        assert isinstance(broker, BrokerChild)
        pid = broker.process.pid
        os.kill(pid, signal.SIGSTOP)
        pause_s = self._pause(2)
        os.kill(pid, signal.SIGCONT)
        return f"{victim} for {pause_s:.1f} s"

    def pair(self) -> str:
        return self._kill_together(2)

    def all(self) -> str:
        return self._kill_together(len(self._cluster.brokers))

    def _kill_together(self, count: int) -> str:
        victims = self._chance.sample(sorted(self._cluster.brokers), count)
        for victim in victims:
            self._cluster.kill(victim)
        pause_s = self._pause(1.5)
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(self._cluster.start, victims))
        return f"{victims} for {pause_s:.1f} s"

    def twice(self) -> str:
        """Killed again while it comes back."""
        victim = self._victim()
        self._cluster.kill(victim)
        self._pause(1)
        self._cluster.start(victim)
        self._pause(0.2)
        self._cluster.kill(victim)
        self._cluster.start(victim)
        return str(victim)

    def zookeeper(self) -> str:
        self._cluster.zookeeper.kill()
        pause_s = self._pause(2)
        self._cluster.zookeeper.start()
        return f"for {pause_s:.1f} s"


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("KAFKALOG_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"KAFKALOG_CHAOS_SEED={seed}")
    return random.Random(seed)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_doubled_or_moved(tmp_path, chance):
    with Cluster(tmp_path) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.wait_in_sync(TOPIC)
        producing, reading = Producing(cluster), Reading(cluster)
        nemesis = Nemesis(cluster, chance)
        try:
            producing.wait_for(30)
            for number in range(FAULTS):
                began_s = time.monotonic()
                what = nemesis.strike()
                struck_s = time.monotonic()
                producing.wait_for(30)
                print(
                    f"{number + 1}/{FAULTS} {what}: {struck_s - began_s:.1f} s, then "
                    f"{time.monotonic() - struck_s:.1f} s until acknowledged, "
                    f"{len(producing.acknowledged)} in all",
                    flush=True,
                )
            producing.stop()
            check(cluster, producing, reading)
        finally:
            producing.stop()
            reading.stop()
        print(f"{sum(nemesis.done.values())} faults: {dict(nemesis.done)}")


def check(cluster: Cluster, producing: Producing, reading: Reading) -> None:
    cluster.wait_in_sync(TOPIC)
    cluster.wait_equal_logs(TOPIC, PARTITIONS)
    wait_until(
        lambda: producing.acknowledged.keys() <= reading.found.keys(),
        lambda: sorted(producing.acknowledged.keys() - reading.found.keys())[:10],
        pause_s=0.05,
    )
    assert not producing.errors
    assert not reading.errors
    final = Reading(cluster)
    try:
        wait_until(
            lambda: reading.found.keys() <= final.found.keys(),
            lambda: sorted(reading.found.keys() - final.found.keys())[:10],
            pause_s=0.05,
        )
    finally:
        final.stop()
    assert reading.found.items() <= final.found.items()
    assert producing.acknowledged.items() <= final.found.items()
    values = Counter(final.found.values())
    assert [value for value, count in values.items() if count > 1] == []
    for partition in range(PARTITIONS):
        ordered = [final.found[place] for place in sorted(final.found) if place[0] == partition]
        assert ordered == sorted(ordered)
