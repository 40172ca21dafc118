"""`kafkalog topics` and `kafkalog cluster`: what is there, where it lies, how large it is."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_kafkalog.cli import main
from pyspark_kafkalog.client.cluster import Cluster, ClusterOverview, PartitionMetadata
from pyspark_kafkalog.embedded_cluster import EmbeddedCluster
from tests.pyspark_kafkalog.cli.conftest import Done
from tests.support.patience import wait_until


def test_a_topic_is_described_with_offsets_sizes_and_properties(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2, retention_ms="-1")
    kafkalog("produce", topic, "--partition=1", "-q", stdin=b"some line\n" * 5)
    kafkalog("topics", "trim", topic, "--before=3", "--partition=1", "-q")
    head, empty, full = kafkalog("topics", "describe", topic).lines
    assert head == f"{topic}  partitions=2  retention.ms=-1"
    assert empty == ("  partition=0 begin=0 end=0 size=0 leader=1 leader_epoch=0 replicas=1 isr=1")
    assert full.startswith("  partition=1 begin=3 end=5 size=")
    (row,) = kafkalog("topics", "describe", topic, "--format=json").rows
    assert row["configs"] == {"retention.ms": "-1"}
    first, second = row["partitions"]
    assert (first["begin"], first["end"], first["size"]) == (0, 0, 0)
    assert (second["begin"], second["end"]) == (3, 5)
    assert 5 * len("some line") < second["size"] < 500
    assert second["replica_sizes"] == {"1": second["size"]}
    (row,) = kafkalog("topics", "describe", topic, "--format=json", "--all-configs").rows
    assert row["configs"]["retention.ms"] == "-1"
    assert row["configs"]["cleanup.policy"] == "delete"


def test_a_topic_that_goes_while_all_are_described_is_left_out(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    overview = Cluster.overview
    rest = iter([{"a-topic-that-was": [PartitionMetadata(0, 1, 0, (1,), (1,))]}])

    def with_one_that_goes(cluster: Cluster) -> ClusterOverview:
        found = overview(cluster)
        return replace(found, topics={**next(rest, {}), **found.topics})

    monkeypatch.setattr(Cluster, "overview", with_one_that_goes)
    names = {row["topic"] for row in kafkalog("topics", "describe", "--format=json").rows}
    assert next(rest, None) is None
    assert topic in names
    assert "a-topic-that-was" not in names
    assert kafkalog("topics", "describe", topic, "a-topic-that-was").code == 1


def test_why_a_broker_refuses_is_said(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    done = kafkalog("topics", "trim", topic, "--before=3")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"kafkalog: Partition 0 of topic {topic}: The requested offset is outside the range of "
        "offsets maintained by the server for the given topic/partition.\n"
    )


def test_more_partitions_than_a_broker_makes_at_once_are_refused(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    says = "kafkalog: A request makes at most 10000 partitions: make fewer, and add the others"
    done = kafkalog("topics", "create", "of-many", "--partitions=10001")
    assert (done.code, done.err.startswith(says)) == (1, True)
    done = kafkalog("topics", "add-partitions", new_topic(), "--total=10002")
    assert (done.code, done.err.startswith(says)) == (1, True)
    assert "of-many" not in kafkalog("topics", "list").lines


def test_what_was_trimmed_is_said_also_where_other_partitions_were_refused(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3)
    for partition in "02":
        kafkalog("produce", topic, "-p", partition, stdin=b"0\n1\n2\n")
    done = kafkalog("topics", "trim", topic, "--before=2")
    assert done.code == 1
    assert done.out == f"{topic} partition=0 begin=2\n{topic} partition=2 begin=2\n"
    assert done.err.startswith(f"kafkalog: Partition 1 of topic {topic}: The requested offset")
    assert kafkalog("consume", topic, "--from-beginning", "-e").lines == ["2", "2"]


def test_topics_may_be_there_or_not(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    create = ["topics", "create", "--if-not-exists", "--partitions=3"]
    assert kafkalog(*create, topic) == (0, f"Topic {topic} exists.\n", "")
    assert kafkalog(*create, f"{topic}-new").lines == [f"Created topic {topic}-new."]
    (row,) = kafkalog(*create, topic, "--format=json").rows
    assert row == {"topic": topic, "created": False}
    assert kafkalog("topics", "delete", "no-such", topic).code == 1
    delete = ["topics", "delete", "--if-exists", "no-such", topic, f"{topic}-new"]
    assert kafkalog(*delete).lines == [f"Deleted topic {topic}.", f"Deleted topic {topic}-new."]
    assert kafkalog(*delete).lines == []


def test_topics_are_listed(kafkalog: Callable[..., Done], new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    kafkalog("groups", "reset", "of-the-list", "--topic", topic, "--to-latest", "--execute")
    rows = kafkalog("topics", "list", "--format=json").rows
    row = {"topic": topic, "partitions": 3, "replication_factor": 1, "internal": False}
    assert row in rows
    assert not any(row["internal"] for row in rows)
    assert "__consumer_offsets" in kafkalog("topics", "list", "--internal").lines


def test_a_broker_alone_is_described(
    kafkalog: Callable[..., Done], servers: str, new_topic: Callable[..., str]
) -> None:
    new_topic(2)
    (row,) = kafkalog("cluster", "describe", "--format=json").rows
    (broker,) = row["brokers"]
    host, _, port = servers.partition(":")
    assert (broker["host"], broker["port"], broker["rack"]) == (host, int(port), None)
    assert broker["broker"] == row["controller"] == 1
    assert broker["reachable"]
    assert int(broker["protocol_version"].partition(".")[0]) >= 4
    assert broker["apis"]["3"][0] == 0
    assert row["features"]["group.version"] == 1
    assert (row["under_replicated"], row["offline"], row["away"]) == (0, 0, [])
    assert row["partitions"] >= 2
    head, *others = kafkalog("cluster", "describe").lines
    assert head.startswith(f"cluster={row['cluster_id']} controller=1 brokers=1 topics=")
    assert "  feature group.version=1" in others
    assert others[-1].startswith(f"  broker=1 host={host} port={port} rack=- speaks=Kafka-4.")


@pytest.mark.slow
def test_a_cluster_without_one_of_its_brokers(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Partitions that lack a replica, or their leader, are counted, and what is not known is -."""

    def kafkalog(*arguments: str) -> Done:
        code = main([*arguments, "--format=json", "-X", "request.timeout.ms=2000"])
        return Done(code, *capfd.readouterr())

    racks = {"broker.rack": "the rack"}
    with EmbeddedCluster(2, str(tmp_path / "cluster"), racks) as cluster:
        os.environ["KAFKALOG_BOOTSTRAP_SERVERS"] = cluster.bootstrap_servers
        try:
            for topic, factor in (("twice", 2), ("once", 1)):
                made = kafkalog(
                    "topics", "create", topic, "--partitions=4", f"--replication-factor={factor}"
                )
                assert made.code == 0, made.err
            (row,) = kafkalog("cluster", "describe").rows
            assert [each["rack"] for each in row["brokers"]] == ["the rack"] * 2
            assert (row["under_replicated"], row["offline"]) == (0, 0)
            (described,) = kafkalog("topics", "describe", "twice").rows
            assert all(len(each["replica_sizes"]) == 2 for each in described["partitions"])
            dead = cluster.broker_ids[0]
            cluster.kill_broker(dead)
            wait_until(
                lambda: len(kafkalog("cluster", "describe").rows[0]["brokers"]) == 1,
                "the broker is missed",
            )
            (row,) = kafkalog("cluster", "describe").rows
            assert row["under_replicated"] >= 4
            assert row["offline"] == 2
            assert row["away"] == [dead]
            assert main(["cluster", "describe"]) == 0
            last = capfd.readouterr().out.splitlines()[-1]
            assert last == f"  broker={dead} host=- port=- rack=- away"
            (described,) = kafkalog("topics", "describe", "once").rows
            ends = [(each["leader"], each["end"]) for each in described["partitions"]]
            assert sorted(ends, key=str).count((-1, None)) == 2
        finally:
            del os.environ["KAFKALOG_BOOTSTRAP_SERVERS"]
