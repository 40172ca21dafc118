"""`kafkalog status`: the commits of a target beside what the topics hold now."""

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import PendingCommit
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.cli.conftest import Done
from tests.pyspark_kafkalog.warehouse.rows_loader import write_rows
from tests.support.ports import closed_port


@pytest.fixture
def land(servers: str, tmp_path: Path) -> Callable[[str, OffsetRange], str]:
    """land(name, piece) -> a target with such a commit of the topic as it is now."""

    def commit(name: str, piece: OffsetRange) -> str:
        target = open_target(f"parquet:{tmp_path}/warehouse")
        stage = target.stage(row_schema())
        files = write_rows(stage, name, piece)
        with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
            cluster.topics([piece.topic])
            topic_id = cluster.topic_id(piece.topic)
        assert topic_id is not None
        ids = {piece.topic: topic_id}
        target.commit(PendingCommit(stage, name, target.position(name), [piece], files, ids))
        return str(target)

    return commit


def test_how_far_a_load_is_behind(
    kafkalog: Callable[..., Done],
    new_topic: Callable[..., str],
    land: Callable[[str, OffsetRange], str],
) -> None:
    topic = new_topic(2)
    for partition in (0, 1):
        kafkalog("produce", topic, f"--partition={partition}", "-q", stdin=b"x\n" * 10)
    began = datetime.now(timezone.utc).replace(microsecond=0)
    land("nightly", OffsetRange(topic, 0, 0, 2))
    target = land("nightly", OffsetRange(topic, 0, 3, 7))
    head, *rows = kafkalog("status", "--to", target).lines
    name, _, words = head.partition("  ")
    said = dict(word.split("=") for word in words.split())
    at = datetime.fromisoformat(said.pop("at"))
    assert began <= at <= datetime.now(timezone.utc)
    assert (name, said) == ("nightly", {"commit": "2", "lag": "13", "offsets_gone": "1"})
    assert rows == [
        f"  {topic} partition=0 next=7 end=10 lag=3",
        f"  {topic} partition=1 next=- end=10 lag=10",
        f"  gone: {topic} partition=0 from=2 until=3",
    ]
    (row,) = kafkalog("status", "--to", target, "--name=nightly", "--format=json").rows
    at = datetime.fromisoformat(row.pop("committed_at"))
    assert began <= at <= datetime.now(timezone.utc)
    assert row == {
        "name": "nightly",
        "target": target,
        "commit": "2",
        "lag": 13,
        "offsets_gone": 1,
        "gaps": [{"topic": topic, "partition": 0, "start_offset": 2, "until_offset": 3}],
        "partitions": [
            {"topic": topic, "partition": 0, "next": 7, "end": 10, "lag": 3, "state": "ok"},
            {"topic": topic, "partition": 1, "next": None, "end": 10, "lag": 10, "state": "ok"},
        ],
    }


def test_gaps_of_all_commits(
    kafkalog: Callable[..., Done],
    new_topic: Callable[..., str],
    land: Callable[[str, OffsetRange], str],
) -> None:
    topic = new_topic()
    for ends in ((0, 2), (4, 5), (5, 6)):
        target = land("nightly", OffsetRange(topic, 0, *ends))
    assert "offsets_gone=0" in kafkalog("status", "--to", target).out
    head, _, gap = kafkalog("status", "--to", target, "--gaps").lines
    assert head.endswith("offsets_gone=2")
    assert gap == f"  gone: {topic} partition=0 from=2 until=4"


def test_a_topic_that_is_another_one_or_none(
    kafkalog: Callable[..., Done],
    new_topic: Callable[..., str],
    land: Callable[[str, OffsetRange], str],
) -> None:
    again, gone = new_topic(), new_topic()
    land("nightly", OffsetRange(again, 0, 0, 2))
    target = land("nightly", OffsetRange(gone, 0, 0, 2))
    kafkalog("topics", "delete", again, gone)
    kafkalog("topics", "create", again, "--partitions=1")
    head, *rows = kafkalog("status", "--to", target).lines
    assert " lag=- " in head
    assert rows == [
        f"  {again} partition=0 next=2 end=0 lag=- recreated",
        f"  {gone} partition=0 next=2 end=- lag=- gone",
    ]


def test_without_a_cluster_the_target_alone_is_asked(
    kafkalog: Callable[..., Done],
    new_topic: Callable[..., str],
    land: Callable[[str, OffsetRange], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic()
    target = land("nightly", OffsetRange(topic, 0, 0, 2))
    monkeypatch.delenv("KAFKALOG_BOOTSTRAP_SERVERS")
    head, row = kafkalog("status", "--to", target).lines
    assert head.startswith("nightly  commit=1 at=")
    assert row == f"  {topic} partition=0 next=2 end=- lag=-"


def test_loads_that_are_not_there(
    kafkalog: Callable[..., Done],
    new_topic: Callable[..., str],
    land: Callable[[str, OffsetRange], str],
    tmp_path: Path,
) -> None:
    none = f"parquet:{tmp_path}/none"
    nothing = ["status", "--to", none]
    assert kafkalog(*nothing) == (0, "", f"No load has committed to {none}.\n")
    assert kafkalog(*nothing, "-q") == (0, "", "")
    assert not (tmp_path / "none").exists()
    target = land("nightly", OffsetRange(new_topic(), 0, 0, 2))
    done = kafkalog("status", "--to", target, "--name", "nihgtly")
    assert (done.code, done.out) == (1, "")
    assert "has no commit of load 'nihgtly'. It knows nightly." in done.err
    done = kafkalog("status", "--to", "hive:/data")
    assert done.code == 1
    assert "does not name a kind of target" in done.err


def test_a_database_that_is_away_is_told_on_one_line(kafkalog: Callable[..., Done]) -> None:
    """PostgreSQL's words have several, the second with a tab."""
    url = f"postgresql://user:password@127.0.0.1:{closed_port()}/lake"
    done = kafkalog("status", "--to", f"sql:{url}#orders")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "refused Is the server running" in done.err
    assert "password" not in done.err


def test_the_loads_of_a_target_for_each_topic(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topics = sorted(new_topic() for _ in range(3))
    for topic in topics[:2]:
        kafkalog("produce", topic, "-q", stdin=b"x\ny")
        kafkalog("load", topic, "--to", f"delta:{tmp_path}/{{topic}}", "--name=of-{topic}", "-q")
    kafkalog("produce", topics[0], "-q", stdin=b"z")
    target = f"delta:{tmp_path}/{{topic}}"
    rows = kafkalog("status", "--to", target, "--format=json").rows
    assert [(row["name"], row["lag"]) for row in rows] == [
        (f"of-{topic}", lag) for topic, lag in zip(topics, (1, 0), strict=False)
    ]
    (row,) = kafkalog("status", "--to", target, "--name=of-{topic}", "--format=json").rows[1:]
    assert row["target"] == f"delta:{tmp_path}/{topics[1]}"
    log = next((tmp_path / topics[0] / "_delta_log").glob("*.json"))
    log.write_text("nonsense")
    failed = kafkalog("status", "--to", target)
    assert (failed.code, f"of-{topics[1]}" in failed.out) == (1, True)
    assert f"{tmp_path}/{topics[0]}" in failed.err
    nothing = kafkalog("status", "--to", f"parquet:{tmp_path}/of/{{topic}}")
    assert (nothing.code, nothing.out) == (0, "")


def test_without_a_cluster_nobody_knows_the_topics(
    kafkalog: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKALOG_BOOTSTRAP_SERVERS")
    done = kafkalog("status", "--to", "delta:lake/{topic}")
    assert (done.code, "--bootstrap-servers" in done.err) == (1, True)
