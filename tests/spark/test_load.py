"""`load()` with Spark, a broker, and the readers of a warehouse."""

import glob
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from _pytest.capture import CaptureResult
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ConsumerPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameReader

import pyspark_kafkalog
from pyspark_kafkalog import cli
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import (
    DataLossError,
    InvalidOptionError,
    LoadConflictError,
    TargetError,
    TopicRecreatedError,
    UnknownTopicError,
)
from pyspark_kafkalog.source.offsets import LogBounds
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse import deleted_topics, portions
from pyspark_kafkalog.warehouse import plan as plan_module
from pyspark_kafkalog.warehouse.commit import Commit, PendingCommit, Stage
from pyspark_kafkalog.warehouse.engines import spark as spark_engine
from pyspark_kafkalog.warehouse.targets.commit_file import CommitLog
from pyspark_kafkalog.warehouse.targets.directory_storage import DirectoryStorage
from pyspark_kafkalog.warehouse.targets.parquet import ParquetTarget, committed_files
from tests.spark.conftest import Topics

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "the warehouse")


@pytest.fixture
def load(spark: SparkSession, servers: str, path: str) -> Callable[..., Any]:
    """`load(name, subscribe=...)` into the test's own target."""

    def loader(
        name: str = "nightly",
        progress: Callable[[Any], None] | bool = False,
        how: Mapping[str, Any] | None = None,
        **options: str,
    ) -> Any:
        options = {"kafka.bootstrap.servers": servers, **options}
        return pyspark_kafkalog.load(
            spark,
            name=name,
            target=f"parquet:{path}",
            options=options,
            progress=progress,
            **(how or {}),
        )

    return loader


def landed(path: str) -> Counter[tuple[str, int, int]]:
    """How often each (topic, partition, offset) is in the target."""
    if not glob.glob(os.path.join(glob.escape(path), "*.parquet")):
        return Counter()
    table = pq.read_table(path, columns=["topic", "partition", "offset"])
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def where_to_go_on(path: str) -> dict[str, dict[str, int]]:
    """The offsets of load nightly, without the note of which logs they are."""
    told = json.loads(pyspark_kafkalog.loaded_offsets(f"parquet:{path}", "nightly"))
    return {topic: offsets for topic, offsets in told.items() if " " not in topic}


def offsets_of(topic: str, *counts: int, start: int = 0) -> Counter[tuple[str, int, int]]:
    return Counter(
        (topic, partition, offset)
        for partition, count in enumerate(counts)
        for offset in range(start, count)
    )


def test_what_lands_is_what_the_source_reads(
    spark: SparkSession,
    load: Callable[..., Any],
    path: str,
    read: Callable[..., DataFrameReader],
    topics: Topics,
) -> None:
    topic = topics.create(2)
    topics.append(topic, [b"one", b"", None], partition=0, key=b"k", timestamp=1_700_000_000_123)
    topics.append(topic, [b"four"], partition=1)
    result = load(subscribe=topic)
    assert (result.records, result.commit_id) == (4, "1")
    assert result.bytes == sum(os.path.getsize(name) for name in committed_files(path))
    assert {
        (piece.partition, piece.start_offset, piece.until_offset) for piece in result.ranges
    } == {
        (0, 0, 3),
        (1, 0, 1),
    }
    source = read(subscribe=topic).load()
    warehouse = spark.read.parquet(path)
    assert warehouse.schema == source.schema
    order = ["partition", "offset"]
    assert warehouse.orderBy(order).collect() == source.orderBy(order).collect()


def test_headers_land_when_they_are_asked_for(
    spark: SparkSession,
    load: Callable[..., Any],
    path: str,
    read: Callable[..., DataFrameReader],
    topics: Topics,
) -> None:
    topic = topics.create()
    topics.append(topic, [b"plain"])
    topics.append(topic, [b"with"], headers=[("trace", b"\x00\x01"), ("trace", None)])
    load(subscribe=topic, includeHeaders="true")
    source = read(subscribe=topic, includeHeaders="true").load()
    warehouse = spark.read.parquet(path)
    assert warehouse.columns == source.columns
    assert warehouse.orderBy("offset").collect() == source.orderBy("offset").collect()


def test_each_load_takes_what_is_new(load: Callable[..., Any], path: str, topics: Topics) -> None:
    topic = topics.create(2)
    topics.fill(topic, 10, 3)
    assert load(subscribe=topic).records == 13
    nothing = load(subscribe=topic)
    assert (nothing.records, nothing.bytes, nothing.ranges, nothing.commit_id) == (0, 0, (), None)
    topics.fill(topic, 5)
    more = load(subscribe=topic)
    assert (more.records, more.commit_id) == (5, "2")
    assert landed(path) == offsets_of(topic, 15, 3)


def test_an_empty_topic_is_recorded_once(
    load: Callable[..., Any], path: str, topics: Topics
) -> None:
    topic = topics.create()
    plan = load(subscribe=topic, how={"dry_run": True})
    assert (plan.offset_count, plan.commits) == (0, 1)
    assert not os.path.exists(path)
    first = load(subscribe=topic)
    assert (first.commit_id, first.records) == ("1", 0)
    assert ParquetTarget(path).position("nightly").offsets == {TopicPartition(topic, 0): 0}
    assert load(subscribe=topic).commit_id is None


def test_what_came_into_a_partition_that_was_empty_and_went_is_data_loss(
    load: Callable[..., Any], path: str, topics: Topics
) -> None:
    topic = topics.create(2)
    topics.fill(topic, 3)
    load(subscribe=topic)
    topics.add_partitions(topic, 3)
    # Of its own, as a producer learns of new partitions in its time.
    Topics(topics.servers).fill(topic, 0, 10, 20)
    retention_takes(topics.servers, topic, 1, 6)
    with pytest.raises(DataLossError, match=f"{topic}-1 begins at offset 6"):
        load(subscribe=topic)
    retention_takes(topics.servers, topic, 2, 20)
    with pytest.raises(DataLossError, match=rf"do not begin at offset 0: {topic}-2"):
        load(subscribe=topic)
    result = load(subscribe=topic, failOnDataLoss="false")
    assert result.records == 4
    assert result.gaps == (OffsetRange(topic, 1, 0, 6), OffsetRange(topic, 2, 0, 20))
    assert [commit.gaps for commit in CommitLog(DirectoryStorage(path))] == [(), result.gaps]
    assert load(subscribe=topic).commit_id is None


@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_a_partition_that_is_new_to_a_load_leaves_out_no_more_than_is_said(
    load: Callable[..., Any], topics: Topics, chunk_bytes: int | None
) -> None:
    topic = topics.create(3)
    topics.fill(topic, 3, 10, 10)
    load(assign=json.dumps({topic: [0]}))
    starting = json.dumps({topic: {"0": 0, "1": 4, "2": 5}})
    retention_takes(topics.servers, topic, 2, 8)
    result = load(
        subscribe=topic,
        startingOffsets=starting,
        failOnDataLoss="false",
        how={"chunk_bytes": chunk_bytes},
    )
    assert (result.records, result.gaps) == (8, (OffsetRange(topic, 2, 5, 8),))
    assert load(subscribe=topic).commit_id is None


def test_a_topic_that_was_empty_and_is_created_again_is_refused(
    load: Callable[..., Any], topics: Topics
) -> None:
    topic = topics.create()
    load(subscribe=topic)
    create_again(topics.servers, topic)
    topics.fill(topic, 5)
    with pytest.raises(TopicRecreatedError, match="deleted and created again"):
        load(subscribe=topic)
    assert load(subscribe=topic, failOnDataLoss="false").records == 5


def test_a_topic_that_is_new_to_a_pattern_begins_where_its_log_does(
    load: Callable[..., Any], topics: Topics
) -> None:
    old, new = topics.create(prefix="seen-here"), topics.create(prefix="elsewhere")
    topics.fill(old, 2)
    load(subscribePattern=f"{old}|{new}-later")
    topics.fill(new, 10)
    retention_takes(topics.servers, new, 0, 4)
    result = load(subscribePattern=f"{old}|{new}")
    assert (result.records, result.gaps) == (6, ())


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform", [None, pytest.param(lambda df: df.where("offset >= 0"), marks=pytest.mark.long)]
)
def test_what_went_while_a_load_was_at_work_is_a_recorded_gap(
    load: Callable[..., Any],
    path: str,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
    transform: Callable[[Any], Any] | None,
) -> None:
    """Also where the name has no place yet, and where all that was left of a range is gone."""
    topic = topics.create(2)
    for _ in range(4):
        topics.fill(topic, 10, 10)
    chunk = sum(load(subscribe=topic, how={"dry_run": True}).bytes.values()) // 2
    commit = ParquetTarget.commit

    def commit_and_lose(target: ParquetTarget, *arguments: PendingCommit) -> Commit:
        done = commit(target, *arguments)
        retention_takes(topics.servers, topic, 0, 25)
        retention_takes(topics.servers, topic, 1, 40)
        return done

    monkeypatch.setattr(ParquetTarget, "commit", commit_and_lose)
    how = {"chunk_bytes": chunk, "transform": transform}
    result = load(subscribe=topic, how=how, failOnDataLoss="false")
    assert result.commits > 1
    there = landed(path)
    assert set(there.values()) == {1}
    gone = {
        (topic, gap.partition, offset)
        for gap in result.gaps
        for offset in range(gap.start_offset, gap.until_offset)
    }
    assert len(gone) > 10
    assert there.keys() | gone == offsets_of(topic, 40, 40).keys()
    assert not there.keys() & gone
    recorded = [gap for one in CommitLog(DirectoryStorage(path)) for gap in one.gaps]
    assert tuple(recorded) == result.gaps


@pytest.mark.parametrize("transform", [None, lambda df: df.where("offset >= 0")])
def test_what_went_before_the_first_commit_of_a_name_is_a_gap_too(
    load: Callable[..., Any],
    path: str,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
    transform: Callable[[Any], Any] | None,
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    stage = ParquetTarget.stage

    def stage_and_lose(target: ParquetTarget, *arguments: Any) -> Stage:
        retention_takes(topics.servers, topic, 0, 4)
        return stage(target, *arguments)

    monkeypatch.setattr(ParquetTarget, "stage", stage_and_lose)
    result = load(subscribe=topic, how={"transform": transform}, failOnDataLoss="false")
    assert (result.records, result.gaps) == (6, (OffsetRange(topic, 0, 0, 4),))


def retention_takes(servers: str, topic: str, partition: int, until_offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    place = ConsumerPartition(topic, partition, until_offset)
    for deleted in admin.delete_records([place]).values():
        deleted.result(30)


def test_only_committed_records_land_unless_it_is_said(
    load: Callable[..., Any], path: str, topics: Topics
) -> None:
    topic = topics.create()
    producer = Producer({"bootstrap.servers": topics.servers, "transactional.id": topic})
    producer.init_transactions(30)

    def transaction(*values: bytes) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(30)

    transaction(b"aborted")
    producer.abort_transaction(30)
    transaction(b"kept")
    producer.commit_transaction(30)
    transaction(b"open")
    assert load(subscribe=topic).records == 1
    uncommitted = {"kafka.Isolation.Level": "read_uncommitted"}
    assert load("all", subscribe=topic, **uncommitted).records == 3
    # With a place behind the open transaction: what comes next waits for its end.
    topics.append(topic, [b"plain"])
    assert load("all", subscribe=topic).commit_id is None
    producer.commit_transaction(30)
    assert load("all", subscribe=topic).records == 1
    assert load(subscribe=topic).records == 2
    values = Counter(pq.read_table(path).column("value").to_pylist())
    assert values == {b"aborted": 1, b"kept": 2, b"open": 2, b"plain": 2}


def test_a_topic_that_joins_later_is_loaded_from_its_beginning(
    load: Callable[..., Any], path: str, topics: Topics
) -> None:
    first, second = topics.create(), topics.create()
    topics.fill(first, 4)
    topics.fill(second, 6)
    load(subscribe=first, startingOffsets=f'{{"{first}":{{"0":2}}}}')
    load(subscribe=f"{first},{second}")
    assert landed(path) == offsets_of(first, 4, start=2) + offsets_of(second, 6)


def test_two_names_share_a_target_and_keep_their_own_places(
    load: Callable[..., Any], path: str, topics: Topics
) -> None:
    topic, other = topics.create(), topics.create()
    topics.fill(topic, 4)
    topics.fill(other, 2)
    assert load("nightly", subscribe=topic).commit_id == "1"
    assert load("hourly", subscribe=other).commit_id == "2"
    assert load("nightly", subscribe=topic).commit_id is None
    assert landed(path) == offsets_of(topic, 4) + offsets_of(other, 2)


def test_many_ranges_of_one_partition_and_many_partitions_of_one_task(
    load: Callable[..., Any], path: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "MOST_OFFSETS_PER_TASK", 7)
    monkeypatch.setattr(portions, "FEW_OFFSETS", 20)
    topic = topics.create(4)
    topics.fill(topic, 40, 3, 0, 1)
    result = load(subscribe=topic)
    assert len(result.files) == 8
    assert landed(path) == offsets_of(topic, 40, 3, 0, 1)
    topics.fill(topic, 1)
    assert load(subscribe=topic).ranges[0].start_offset == 40


def test_every_reader_sees_committed_files_only(
    spark: SparkSession, load: Callable[..., Any], path: str, topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    load(subscribe=topic)
    stage = ParquetTarget(path).stage(row_schema())
    [file] = committed_files(path)
    shutil.copy(file, os.path.join(stage.path, "part-uncommitted.parquet.staged"))
    connection = duckdb.connect()
    counts = {
        "spark": spark.read.parquet(path).count(),
        "arrow": pq.read_table(path).num_rows,
        "arrow, exact": pq.read_table(committed_files(path)).num_rows,
    }
    for pattern in ("*.parquet", "**/*.parquet"):
        relation = connection.read_parquet(os.path.join(path, pattern))
        counts[pattern] = relation.count("*").fetchall()[0][0]
    assert set(counts.values()) == {10}, counts


def test_a_loader_that_was_overtaken_publishes_nothing(
    load: Callable[..., Any], path: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    stage_of = ParquetTarget.stage

    def stage_after_another_load(target: ParquetTarget, *shape: Any) -> Stage:
        monkeypatch.setattr(ParquetTarget, "stage", stage_of)
        load(subscribe=topic)
        return stage_of(target, *shape)

    monkeypatch.setattr(ParquetTarget, "stage", stage_after_another_load)
    with pytest.raises(LoadConflictError, match="another load named 'nightly'"):
        load(subscribe=topic)
    assert landed(path) == offsets_of(topic, 10)
    assert load(subscribe=topic).records == 0


def test_a_loader_that_was_overtaken_in_a_topic_created_again_publishes_nothing(
    load: Callable[..., Any], path: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rival ends at the offset at which the old topic did when this one was planned."""
    topic = topics.create()
    topics.fill(topic, 10)
    load(subscribe=topic)
    topics.fill(topic, 5)
    commit_really = ParquetTarget.commit

    def commit_after_another_load(target: ParquetTarget, pending: PendingCommit) -> Commit:
        monkeypatch.setattr(ParquetTarget, "commit", commit_really)
        create_again(topics.servers, topic)
        topics.fill(topic, 10)
        assert load(subscribe=topic, failOnDataLoss="false").records == 10
        return commit_really(target, pending)

    monkeypatch.setattr(ParquetTarget, "commit", commit_after_another_load)
    with pytest.raises(LoadConflictError, match=f"it found {topic} created again"):
        load(subscribe=topic)
    assert landed(path) == offsets_of(topic, 10) + offsets_of(topic, 10)
    topics.fill(topic, 1)
    assert load(subscribe=topic).records == 1


def test_a_load_that_fails_leaves_nothing_and_the_next_one_takes_all(
    load: Callable[..., Any], path: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)

    def interrupted(*landed: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(spark_engine, "outcome_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load(subscribe=topic)
    assert os.listdir(os.path.join(path, "_kafkalog", "staging")) == []
    assert landed(path) == Counter()
    assert load(subscribe=topic).records == 10


def test_an_error_in_a_task_keeps_its_class_and_nothing_is_published(
    spark: SparkSession, servers: str, path: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    plan = plan_module.plan_ranges

    def plan_beyond_the_end(*arguments: Any) -> tuple[list[OffsetRange], LogBounds]:
        [piece], bounds = plan(*arguments)
        return [replace(piece, start_offset=20, until_offset=30)], bounds

    monkeypatch.setattr(plan_module, "plan_ranges", plan_beyond_the_end)
    with pytest.raises(DataLossError, match=topic):
        pyspark_kafkalog.load(spark, "nightly", f"parquet:{path}", options)
    assert os.listdir(os.path.join(path, "_kafkalog", "staging")) == []
    assert ParquetTarget(path).position("nightly").offsets == {}


@pytest.mark.parametrize("records", [0, 4, 15])
def test_a_recreated_topic_is_refused_and_going_on_is_a_choice(
    load: Callable[..., Any], path: str, topics: Topics, records: int
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    load(subscribe=topic)
    create_again(topics.servers, topic)
    topics.fill(topic, records)
    with pytest.raises(TopicRecreatedError, match=r"deleted and created again.*failOnDataLoss"):
        load(subscribe=topic)
    assert load(subscribe=topic, failOnDataLoss="false").records == records
    topics.fill(topic, 3)
    assert load(subscribe=topic).records == 3
    last = ParquetTarget(path).position("nightly").offsets
    assert last == {TopicPartition(topic, 0): records + 3}


def test_a_topic_of_a_pattern_that_was_deleted_is_refused_and_going_on_is_said_once(
    load: Callable[..., Any],
    path: str,
    topics: Topics,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What came since the last commit went with it; the stream says so, too."""
    kept, gone = topics.create(prefix="day-1"), topics.create(2, prefix="day-2")
    monkeypatch.setattr(deleted_topics, "_RETRY_INTERVAL_S", 0)
    asked = {"subscribePattern": f"^({kept}|{gone})$"}
    topics.fill(kept, 4)
    topics.fill(gone, 3, 5)
    assert load(**asked).records == 12
    assert load(name="other", subscribe=kept).records == 4
    topics.fill(gone, 6)
    topics.delete(gone)
    topics.fill(kept, 2)

    said = rf"Partitions are gone: {gone}-0, {gone}-1. Load 'nightly'.*failOnDataLoss.*One load"
    for _ in range(2):
        with pytest.raises(DataLossError, match=said):
            load(**asked)
    with pytest.raises(DataLossError, match=said):
        load(**asked, how={"dry_run": True})
    # The names of other loads, and other topics, have nothing to do with it.
    assert load(name="other", subscribePattern=f"^({kept}|{gone})$").records == 2

    result = load(**asked, failOnDataLoss="false", how={"chunk_bytes": "1"})
    assert (result.records, result.gaps) == (2, ())
    assert f"Partitions are gone: {gone}-0, {gone}-1." in caplog.text
    assert set(where_to_go_on(path)) == {kept}
    assert load(**asked).commit_id is None

    # A new topic of that name is new to the load.
    topics.create_again(gone)
    topics.fill(gone, 7)
    retention_takes(topics.servers, gone, 0, 2)
    assert load(**asked).records == 5
    topics.fill(gone, 1)
    assert load(**asked).records == 1


@pytest.fixture
def out_of_sight(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], AbstractContextManager[None]]:
    """with out_of_sight(topic): no broker knows it. Another cluster was asked by mistake, say, or
    this one's metadata were restored."""
    monkeypatch.setattr(deleted_topics, "_RETRY_INTERVAL_S", 0)

    @contextmanager
    def hide(away: str) -> Iterator[None]:
        there = Cluster.topics

        def hiding(
            cluster: Cluster, names: Iterable[str] | None = None, create: bool = False
        ) -> dict[Any, Any]:
            if names is not None and away in names:
                raise UnknownTopicError(away)
            return {topic: n for topic, n in there(cluster, names, create).items() if topic != away}

        with monkeypatch.context() as patched:
            patched.setattr(Cluster, "topics", hiding)
            yield

    return hide


def test_a_topic_of_a_pattern_that_was_only_out_of_sight_goes_on_where_it_was(
    load: Callable[..., Any],
    topics: Topics,
    out_of_sight: Callable[[str], AbstractContextManager[None]],
) -> None:
    kept, away = topics.create(prefix="day-1"), topics.create(2, prefix="day-2")
    asked = {"subscribePattern": f"^({kept}|{away})$"}
    topics.fill(kept, 4)
    topics.fill(away, 3, 5)
    assert load(**asked).records == 12
    with out_of_sight(away):
        load(**asked, failOnDataLoss="false")
    topics.fill(away, 1)
    assert load(**asked).records == 1
    assert load(**asked).commit_id is None


@pytest.mark.parametrize("others", [0, 1])
def test_a_topic_that_is_back_with_nothing_new_is_missed_when_it_goes_again(
    load: Callable[..., Any],
    path: str,
    topics: Topics,
    out_of_sight: Callable[[str], AbstractContextManager[None]],
    others: int,
) -> None:
    """That it is back is recorded, once: what comes then, and goes with it, is not lost unsaid."""
    kept, away = topics.create(prefix="day-1"), topics.create(prefix="day-2")
    asked = {"subscribePattern": f"^({kept}|{away})$"}
    topics.fill(kept, 4)
    topics.fill(away, 3)
    load(**asked)
    with out_of_sight(away):
        load(**asked, failOnDataLoss="false")
    topics.fill(kept, others)
    assert load(**asked).records == others
    assert where_to_go_on(path) == {kept: {"0": 4 + others}, away: {"0": 3}}
    assert load(**asked).commit_id is None
    topics.fill(away, 5)
    topics.delete(away)
    with pytest.raises(DataLossError, match=f"Partitions are gone: {away}-0"):
        load(**asked)


def test_a_topic_that_is_back_without_an_id_is_refused(
    load: Callable[..., Any],
    path: str,
    topics: Topics,
    out_of_sight: Callable[[str], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody can tell whether its records were loaded: each load would load them again."""
    kept, away = topics.create(prefix="day-1"), topics.create(prefix="day-2")
    asked = {"subscribePattern": f"^({kept}|{away})$"}
    topics.fill(kept, 4)
    topics.fill(away, 3)
    load(**asked)
    with out_of_sight(away):
        load(**asked, failOnDataLoss="false")
    before = landed(path)
    monkeypatch.setattr(Cluster, "topic_id", lambda cluster, topic: None)
    for fails in ("true", "false"):
        with pytest.raises(TopicRecreatedError, match=f"{away}: deleted, .*brokers say none"):
            load(**asked, failOnDataLoss=fails)
    assert landed(path) == before


@pytest.mark.parametrize("way", ["subscribe", "subscribePattern"])
def test_a_partition_that_its_topic_has_no_more_is_missed(
    load: Callable[..., Any], path: str, topics: Topics, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Without ids, and without marks, which the releases before did not keep, nothing else tells
    that the topic is another one, which is longer by now."""
    monkeypatch.setattr(deleted_topics, "_RETRY_INTERVAL_S", 0)
    topic = topics.create(2)
    topics.fill(topic, 3, 3)
    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "topic_id", lambda cluster, topic: None)
        patched.setattr("pyspark_kafkalog.warehouse.load.marks_of", lambda *asked: {})
        load(**{way: topic})
        topics.fill(topic, 0, 4)
        create_again(topics.servers, topic)
        topics.fill(topic, 5)
        for how in ({"dry_run": True}, {}):
            with pytest.raises(DataLossError, match=f"Partitions are gone: {topic}-1.*no id of"):
                load(**{way: topic}, how=how)
        # Who asks for the other one alone knows what there is.
        assert load(name="other", assign=f'{{"{topic}":[0]}}').records == 5
        assert load(assign=f'{{"{topic}":[0]}}').records == 2
        assert load(**{way: topic}, failOnDataLoss="false").gaps == ()
        assert load(**{way: topic}, failOnDataLoss="false").commit_id is None
        with pytest.raises(DataLossError, match=f"Partitions are gone: {topic}-1"):
            load(**{way: topic})
        topics.add_partitions(topic, 2)
        topics.fill(topic, 0, 4)
        assert load(**{way: topic}).records == 4


def test_other_records_of_a_topic_tell_that_it_is_another_one_where_nobody_says_its_id(
    load: Callable[..., Any], topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create()
    topics.fill(topic, 3)
    monkeypatch.setattr(Cluster, "topic_id", lambda cluster, topic: None)
    load(subscribe=topic)
    create_again(topics.servers, topic)
    topics.fill(topic, 5)
    with pytest.raises(DataLossError, match=f"Partition {topic}-0 has another record at offset 2"):
        load(subscribe=topic)
    assert load(subscribe=topic, failOnDataLoss="false").records == 2


def test_a_topic_with_fewer_partitions_is_a_recreated_one_where_brokers_say_its_id(
    load: Callable[..., Any], path: str, topics: Topics
) -> None:
    topic = topics.create(2)
    topics.fill(topic, 3, 3)
    load(subscribe=topic)
    create_again(topics.servers, topic)
    topics.fill(topic, 5)
    with pytest.raises(TopicRecreatedError):
        load(subscribe=topic)
    assert load(subscribe=topic, failOnDataLoss="false").records == 5
    assert load(subscribe=topic).commit_id is None


def test_topics_of_a_pattern_that_take_dead_letters_are_not_taken_for_deleted(
    load: Callable[..., Any], topics: Topics
) -> None:
    topic = topics.create()
    letters = topics.create(prefix=topic)
    topics.fill(topic, 2)
    topics.fill(letters, 3)
    text = {"value_format": "string"}
    assert load(subscribePattern=topic, how=text).records == 5
    topics.fill(topic, 2)
    how = {**text, "on_error": "deadletter", "dead_letter_topic": letters}
    assert load(subscribePattern=topic, how=how).records == 2


def test_a_deleted_topic_gets_no_topic_for_dead_letters(
    load: Callable[..., Any], topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_topics, "_RETRY_INTERVAL_S", 0)
    topic = topics.create()
    topics.fill(topic, 2)
    text = {"value_format": "string"}
    assert load(subscribePattern=topic, how=text).records == 2
    topics.delete(topic)
    how = {**text, "on_error": "deadletter"}
    result = load(subscribePattern=topic, failOnDataLoss="false", how=how)
    assert (result.records, result.commits) == (0, 1)
    assert not AdminClient({"bootstrap.servers": topics.servers}).list_topics(
        timeout=30
    ).topics.keys() & {f"{topic}-dead-letters"}


def test_what_retention_took_is_an_error_or_a_recorded_gap(
    load: Callable[..., Any], path: str, topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    assert load(subscribe=topic).gaps == ()
    topics.fill(topic, 10)
    retention_takes(topics.servers, topic, 0, 15)
    with pytest.raises(DataLossError, match=r"begins at offset 15.*failOnDataLoss"):
        load(subscribe=topic)
    result = load(subscribe=topic, failOnDataLoss="false")
    assert (result.records, result.gaps) == (5, (OffsetRange(topic, 0, 10, 15),))
    assert "5 offsets gone" in repr(result)
    [newest] = [commit for commit in CommitLog(DirectoryStorage(path)) if commit.gaps]
    assert newest.gaps == result.gaps


def create_again(servers: str, topic: str) -> None:
    """Deletes a topic and makes it anew; waits out the deletion, which brokers do in their time."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([topic])[topic].result(30)
    for _ in range(100):
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    raise AssertionError(f"{topic} is still there")


def test_a_catch_up_in_portions_that_is_cut_short_goes_on(
    load: Callable[..., Any], path: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = topics.create(), topics.create(2)
    topics.fill(first, 60)
    for _ in range(3):
        # A batch of the log each: sizes are told by batches.
        topics.fill(second, 20, 10)
    both = f"{first},{second}"
    told: list[Any] = []
    commit = ParquetTarget.commit

    def commit_twice(target: ParquetTarget, pending: PendingCommit) -> Commit:
        if sum(pending.planned_from.offsets.values()) > 50:
            raise KeyboardInterrupt
        return commit(target, pending)

    with monkeypatch.context() as patched:
        patched.setattr(ParquetTarget, "commit", commit_twice)
        with pytest.raises(KeyboardInterrupt):
            load(subscribe=both, how={"chunk_bytes": "400"})
    done = sum(ParquetTarget(path).position("nightly").offsets.values())
    assert 50 < done < 150
    assert sum(landed(path).values()) == done
    result = load(subscribe=both, progress=told.append, how={"chunk_bytes": 400})
    assert result.commits > 1
    assert result.records == 150 - done
    assert (told[-1].landed, told[-1].total, told[-1].records) == (150 - done,) * 3
    assert landed(path) == offsets_of(first, 60) + offsets_of(second, 60, 30)


def test_a_load_takes_as_much_as_it_is_told_and_the_plan_says_so_before(
    load: Callable[..., Any], path: str, topics: Topics
) -> None:
    topic = topics.create(2)
    for _ in range(4):
        topics.fill(topic, 10, 10)
    plan = load(subscribe=topic, how={"dry_run": True, "chunk_bytes": "200"})
    assert [(piece.start_offset, piece.until_offset) for piece in plan.ranges] == [(0, 40)] * 2
    assert (plan.offset_count, plan.tasks) == (80, 1)
    assert sum(plan.bytes.values()) // 200 <= plan.commits
    assert not os.path.exists(path)
    # What is odd, or rounded, is no offset less.
    half = sum(plan.bytes.values()) // 2 + 1
    assert load(subscribe=topic, how={"max_bytes": half}).records == 40
    assert load(subscribe=topic, how={"until": {topic: {"0": 30, "1": -1}}}).records == 30
    assert load(subscribe=topic).records == 10


def test_times_bound_a_load_in_the_session_time_zone(
    spark: SparkSession, load: Callable[..., Any], path: str, topics: Topics
) -> None:
    topic = topics.create(2)
    for minute in range(10):
        topics.append(topic, [b"x"], timestamp=1_793_491_200_000 + minute * 60_000)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        how = {"starting": "2026-11-01T09:02", "until": "2026-11-01T09:05"}
        assert load(subscribe=topic, how=how).records == 3
        # The partition without a record has its place all the same.
        assert ParquetTarget(path).position("nightly").offsets == {
            TopicPartition(topic, 0): 5,
            TopicPartition(topic, 1): 0,
        }
        assert load(subscribe=topic, how={**how, "until": None}).records == 5
        for time_ms in (1_793_500_000_000, 1_793_500_000_001):
            topics.append(topic, [b"x"], timestamp=time_ms)
        with pytest.raises(InvalidOptionError, match="would be left out"):
            load(subscribe=topic, how={"starting": 1_793_500_000_001})
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_progress_counts_up_to_all_of_it(
    load: Callable[..., Any], topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topics.create()
    topics.fill(topic, 30)
    told: list[Any] = []
    load(subscribe=topic, progress=told.append)
    assert (told[-1].landed, told[-1].total, told[-1].records) == (30, 30, 30)
    assert told[-1].bytes > 0
    assert [progress.landed for progress in told] == sorted(progress.landed for progress in told)
    load("with lines", subscribe=topic, progress=True)
    assert "30 of 30 offsets landed (100 %)" in capsys.readouterr().out


def test_a_topic_that_is_not_there_is_named(load: Callable[..., Any], path: str) -> None:
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        load(subscribe="no-such-topic")
    assert not os.path.exists(path)


def test_a_target_that_is_a_file_is_refused(
    load: Callable[..., Any], path: str, topics: Topics
) -> None:
    with open(path, "w") as file:
        file.write("in the way")
    topic = topics.create()
    topics.fill(topic, 1)
    with pytest.raises(TargetError, match="is a file"):
        load(subscribe=topic)


def test_the_command_line_loads(servers: str, path: str, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(2)
    topics.fill(topic, 10, 5)
    arguments = ["load", topic, "--bootstrap-servers", servers, "--name", "nightly"]
    # A process of its own: the command stops its Spark session at the end.
    command = [sys.executable, "-m", "pyspark_kafkalog.cli", *arguments, "--to", f"parquet:{path}"]
    command += ["--engine", "spark", "--spark-log", str(tmp_path / "spark.log")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "WARN" in (tmp_path / "spark.log").read_text()
    lines = done.stdout.splitlines()
    assert lines[-2].startswith("15 of 15 offsets landed (100 %)")
    assert lines[-1].startswith("Commit 1: 15 records in 2 files")
    assert landed(path) == offsets_of(topic, 10, 5)


def test_the_command_line_starts_spark_only_where_there_is_something_to_load(
    load: Callable[..., Any],
    servers: str,
    path: str,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = topics.create()
    topics.fill(topic, 3)
    load(subscribe=topic)
    monkeypatch.setenv("JAVA_HOME", "/there/is/none")

    def run(name: str) -> tuple[int, CaptureResult[str]]:
        given = ["--bootstrap-servers", servers, "--name", "nightly", "--to", f"parquet:{path}"]
        return cli.main(["load", name, *given, "--engine", "spark"]), capsys.readouterr()

    code, said = run(topic)
    assert (code, said.out, said.err) == (0, "Nothing new for nightly.\n", "")
    code, said = run("no-such-topic")
    assert code == 1
    assert "Topic no-such-topic does not exist" in said.err
    topics.fill(topic, 1)
    code, said = run(topic)
    assert code == 1
    assert "Spark needs Java" in said.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--to", "hive:/data"], "target 'hive' does not name a kind"),
        (["--to", "parquet:/data", "--property", "no.such=1"], "no.such is no property"),
        (["--to", "parquet:/data", "--from", "soon"], "'soon' is no place where a load can begin"),
        (["--to", "parquet:/data", "--max-bytes", "ten"], "max_bytes must be a number of bytes"),
        (["--to", "parquet:/data", "--value-format", "xml"], "value_format is 'xml'"),
        (
            ["--to", "parquet:/data", "--value-schema", "none.avsc"],
            "takes a file, and there is no none.avsc",
        ),
        (["--to", "parquet:/data", "--transform", "no.such:function"], "cannot be imported"),
        (["--to", "parquet:/data", "--target-file-size", "big"], "target_file_bytes must be a"),
    ],
)
def test_the_command_line_says_what_is_wrong_before_spark_starts(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    required = ["load", "orders", "--bootstrap-servers", "nowhere:1", "--name", "nightly"]
    assert cli.main([*required, *given]) == 1
    assert said in capsys.readouterr().err
