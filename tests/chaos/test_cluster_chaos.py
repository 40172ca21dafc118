"""Faults at random, by a seed, in a cluster that is written to and read all the time.

Brokers are killed, stopped and frozen, alone, in pairs and all together; links between them, to
their clients and to ZooKeeper are lost, one way and both, or slow; disks fill up; sessions end;
ZooKeeper goes away for less and for more than a session, or its leader alone, perhaps while a
broker is lost; partitions move.
What was acknowledged is there in the end, once, in its order and at its offset; no reader was shown
anything else; transactions are whole; members of a group leave nothing out; copies that are made in
transactions, by Spark's stream too, and a table that is loaded meanwhile have each record once;
topics that were made, grown and deleted are so; all replicas are alike, byte by byte.

KAFKALOG_CHAOS_FAULTS says how many (`make chaos`: 1,000), KAFKALOG_CHAOS_BROKERS in how many
brokers (`make chaos`: 5). KAFKALOG_CHAOS_ENSEMBLE=1 is over three servers of ZooKeeper,
KAFKALOG_CHAOS_SPARK=1 beside a stream of Spark's (`make chaos`: both). KAFKALOG_CHAOS_KINDS says
which faults alone (`kill,move`), KAFKALOG_CHAOS_SEED replays a run.
"""

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.children import COPIES, SOURCE, STREAMED, Copying, Streaming
from tests.chaos.nemesis import TOPICS, Nemesis
from tests.chaos.topics import Changing
from tests.chaos.workloads import (
    PARTITIONS,
    TOPIC,
    TRANSACTIONS,
    Grouping,
    Loading,
    Producing,
    Reading,
    Transacting,
    Worker,
    check_ordered_once,
    read_all,
)
from tests.support.cluster import Cluster
from tests.support.patience import wait_until

FAULTS = int(os.environ.get("KAFKALOG_CHAOS_FAULTS", "3"))
BROKERS = int(os.environ.get("KAFKALOG_CHAOS_BROKERS", "3"))
ENSEMBLE = os.environ.get("KAFKALOG_CHAOS_ENSEMBLE") == "1"
SPARK = os.environ.get("KAFKALOG_CHAOS_SPARK") == "1"
PROPERTIES = {
    "replica.lag.time.max.ms": "6000",
    # A link that loses what is sent costs this, each time.
    "replica.socket.timeout.ms": "3000",
    # Of the copiers.
    "group.min.session.timeout.ms": "1500",
}


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("KAFKALOG_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"KAFKALOG_CHAOS_SEED={seed}")
    return random.Random(seed)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_doubled_or_moved(
    tmp_path: Path, chance: random.Random
) -> None:
    with Cluster(tmp_path, BROKERS, PROPERTIES, links=True, ensemble=ENSEMBLE) as cluster:
        for topic in (TOPIC, TRANSACTIONS, SOURCE, COPIES, STREAMED):
            cluster.create_topic(topic, PARTITIONS)
            cluster.wait_in_sync(topic)
        producing, reading = Producing(cluster), Reading(cluster)
        transacting, grouping = Transacting(cluster, chance), Grouping(cluster, chance)
        loading = Loading(cluster, tmp_path / "table", chance)
        copying = Copying(cluster, tmp_path)
        changing = Changing(cluster, chance)
        streaming = [Streaming(cluster, tmp_path)] if SPARK else []
        others: list[Worker] = [transacting, grouping, loading, copying, changing, *streaming]
        workers = [producing, reading, *others]
        nemesis = Nemesis(cluster, chance)
        for worker in workers:
            worker.start()
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
                    f"{len(producing.acknowledged)} in all, "
                    f"{len(transacting.committed)} transactions",
                    flush=True,
                )
                assert not [error for worker in workers for error in worker.errors]
        except BaseException as error:
            print(f"after {dict(nemesis.done)}: {error!r}", flush=True)
            raise
        finally:
            producing.stop()
            for worker in others:
                worker.stop()
            ends = producing.acknowledged.keys()
            if not producing.errors:
                wait_until(
                    lambda: ends <= reading.found.keys(),
                    lambda: sorted(ends - reading.found.keys())[:10],
                    pause_s=0.05,
                )
            reading.stop()
        print(
            f"{sum(nemesis.done.values())} faults: {dict(nemesis.done)}; transactions: "
            f"{len(transacting.committed)} committed, {len(transacting.aborted)} aborted, "
            f"{len(transacting.unknown)} not known, producers: {transacting.made_anew}; lives of "
            f"the group's member: {grouping.lives}, {len(grouping.processed)} records; "
            f"loads: {dict(loading.ends)}; failed copiers: {copying.failures}, topics: "
            f"{dict(changing.done)}, asked for again: {changing.asked_again}, "
            f"queries: {[query.failures for query in streaming]}"
        )
        assert not [error for worker in workers for error in worker.errors]
        check(cluster, producing, reading, transacting, grouping, loading)
        copying.check()
        changing.check()
        if SPARK:
            streamed = Counter(read_all(cluster, STREAMED).values())
            assert streamed == Counter(read_all(cluster, TOPIC).values())


def check(
    cluster: Cluster,
    producing: Producing,
    reading: Reading,
    transacting: Transacting,
    grouping: Grouping,
    loading: Loading,
) -> None:
    cluster.wait_moved()
    for topic in TOPICS:
        cluster.wait_in_sync(topic)
        cluster.wait_equal_logs(topic, PARTITIONS)
    final = read_all(cluster, TOPIC)
    assert reading.found.items() <= final.items()
    assert producing.acknowledged.items() <= final.items()
    values = {(partition, value) for (partition, _), value in final.items()}
    assert producing.acknowledged_somewhere <= values
    assert grouping.processed.items() <= final.items()
    assert loading.rows() == final
    check_ordered_once(final)
    transacting.check(read_all(cluster, TRANSACTIONS))
