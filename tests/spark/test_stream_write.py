"""Streaming queries written to topics, through Spark."""

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from tests.spark.conftest import Topics, configured

pytestmark = pytest.mark.spark


@pytest.fixture
def copy(spark: SparkSession, servers: str, tmp_path: Path) -> Callable[..., None]:
    """Runs a query from one topic to another until nothing is left; may be run again."""

    def run(
        source: str,
        target: str,
        statements: Sequence[str] = ("value",),
        mode: str = "append",
        limit: int | None = None,
        **options: Any,
    ) -> None:
        frame = (
            spark.readStream.format("kafkalog")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .options(**({} if limit is None else {"maxOffsetsPerTrigger": str(limit)}))
            .load()
        )
        frame = (
            frame.selectExpr(*statements)
            if mode == "append"
            else (frame.groupBy("key").count().selectExpr("key", "cast(count as string) value"))
        )
        query = (
            frame.writeStream.format("kafkalog")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", target)
            .options(**options)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        if (failure := query.exception()) is not None:
            raise failure

    return run


def values_of(read: Callable[..., DataFrameReader], topic: str) -> list[Any]:
    return sorted(row.value for row in read(subscribe=topic).load().select("value").collect())


def committed_values_of(read: Callable[..., DataFrameReader], topic: str) -> list[Any]:
    options: dict[str, Any] = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    return sorted(row.value for row in read(**options).load().select("value").collect())


@pytest.mark.slow
def test_each_run_appends_what_is_new(
    copy: Callable[..., None], read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    source, target = topics.create(2), topics.create(2)
    topics.append(source, [b"1", b"2"])
    copy(source, target)
    assert values_of(read, target) == [b"1", b"2"]
    topics.append(source, [b"3"], partition=1)
    copy(source, target)
    assert values_of(read, target) == [b"1", b"2", b"3"]


@pytest.mark.slow
def test_complete_mode_appends_the_whole_result_each_time(
    copy: Callable[..., None], read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    source, target = topics.create(), topics.create()
    for expected in ([b"2"], [b"2", b"4"]):
        topics.append(source, [b"", b""], key=b"k")
        copy(source, target, mode="complete")
        assert values_of(read, target) == expected


def test_rows_that_are_no_records_stop_the_query(copy: Callable[..., None], topics: Topics) -> None:
    source = topics.create()
    topics.append(source, [b"1"])
    with pytest.raises(Exception, match="InvalidRowError: Column 'value' must be string or binary"):
        copy(source, topics.create(), ["offset value"])


@pytest.fixture
def exactly_once(copy: Callable[..., None]) -> Callable[..., None]:
    """As `copy`, with a prefix for transactional ids."""

    def run(source: str, target: str, prefix: str, **options: int | tuple[str]) -> None:
        copy(source, target, transactionalIdPrefix=prefix, **options)

    return run


def test_micro_batches_in_transactions_are_seen_whole(
    exactly_once: Callable[..., None], read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    source, target = topics.create(2), topics.create(2)
    for number in range(2):
        topics.append(source, [b"%d" % number, b"x"], partition=number)
        exactly_once(source, target, f"prefix-{target}")
        expected = [b"0", b"x"] if number == 0 else [b"0", b"1", b"x", b"x"]
        assert committed_values_of(read, target) == expected


def test_a_prefix_of_another_query_is_refused(
    exactly_once: Callable[..., None], topics: Topics, tmp_path: Path
) -> None:
    source, target = topics.create(), topics.create()
    topics.append(source, [b"1"])
    exactly_once(source, target, "shared")
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(
        Exception, match="PrefixInUseError: The transactionalIdPrefix shared belongs"
    ):
        exactly_once(source, target, "shared")


@pytest.fixture
def forget_micro_batch(tmp_path: Path) -> Callable[[int], None]:
    """Makes of the checkpoint the copy that was taken before this micro-batch was planned."""

    def forget(batch: int) -> None:
        checkpoint = tmp_path / "checkpoint"
        for log in ("offsets", "commits"):
            (checkpoint / log / str(batch)).unlink()
            (checkpoint / log / f".{batch}.crc").unlink(missing_ok=True)

    return forget


def test_a_micro_batch_of_other_rows_is_not_taken_for_the_committed_one_of_its_number(
    exactly_once: Callable[..., None],
    forget_micro_batch: Callable[[int], None],
    read: Callable[..., DataFrameReader],
    topics: Topics,
) -> None:
    """An older checkpoint, a limit, and records that came meanwhile: as many rows, and others."""
    source, target = topics.create(2), topics.create(2)
    topics.fill(source, 150, 150)
    exactly_once(source, target, f"p-{target}", limit=100)
    before = committed_values_of(read, target)
    assert len(before) == 300
    forget_micro_batch(2)
    topics.fill(source, 0, 100)
    with pytest.raises(Exception, match="PrefixInUseError: Micro-batch 2 was committed with 100 "):
        exactly_once(source, target, f"p-{target}", limit=100)
    assert committed_values_of(read, target) == before


def test_a_micro_batch_of_the_same_offsets_is_the_committed_one_whatever_its_rows_are(
    exactly_once: Callable[..., None],
    forget_micro_batch: Callable[[int], None],
    read: Callable[..., DataFrameReader],
    topics: Topics,
) -> None:
    source, target = topics.create(2), topics.create(2)
    topics.fill(source, 60, 60)
    statements = ("concat(value, '|', cast(current_timestamp() as string)) value",)
    exactly_once(source, target, f"p-{target}", statements=statements, limit=50)
    forget_micro_batch(2)
    exactly_once(source, target, f"p-{target}", statements=statements, limit=50)
    topics.fill(source, 5, 5)
    exactly_once(source, target, f"p-{target}", statements=statements, limit=50)
    found = sorted(value.split(b"|")[0] for value in committed_values_of(read, target))
    assert found == values_of(read, source)


@pytest.fixture
def newest_offset_log(spark: SparkSession) -> Iterator[None]:
    """Version 2 of it, where Spark has that."""
    with configured(spark, "spark.sql.streaming.offsetLog.formatVersion", "2"):
        yield


@pytest.mark.usefixtures("newest_offset_log")
def test_a_checkpoint_that_lost_the_end_of_a_file_writes_nothing_again(
    exactly_once: Callable[..., None],
    read: Callable[..., DataFrameReader],
    topics: Topics,
    tmp_path: Path,
) -> None:
    """A power loss left as much of the newest file as Spark takes for a query that begins."""
    source, target = topics.create(), topics.create()
    topics.fill(source, 20)
    exactly_once(source, target, f"p-{target}")
    offsets = tmp_path / "checkpoint" / "offsets"
    head = (offsets / "0").read_text().splitlines(keepends=True)[:2]
    (offsets / "1").write_text("".join(head))
    topics.fill(source, 10)
    for _ in range(2):
        # Spark 4.2 stops by itself, with less of a sentence.
        with pytest.raises(Exception, match=r"CheckpointError: .*/offsets/1 |None\.get"):
            exactly_once(source, target, f"p-{target}")
    (offsets / "1").unlink()
    exactly_once(source, target, f"p-{target}")
    assert committed_values_of(read, target) == values_of(read, source)


@pytest.fixture
def union(
    spark: SparkSession, servers: str, tmp_path: Path
) -> Iterator[Callable[[str, Mapping[str, DataStreamReader]], None]]:
    """Writes the rows of named sources to a topic, each once, until nothing is left."""

    def run(target: str, sources: Mapping[str, DataStreamReader]) -> None:
        frames = [source.name(name).load() for name, source in sources.items()]
        query = (
            reduce(DataFrame.unionAll, frames)
            .select("value")
            .writeStream.format("kafkalog")
            .option("kafka.bootstrap.servers", servers)
            .options(topic=target, transactionalIdPrefix=f"p-{target}")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        if (failure := query.exception()) is not None:
            raise failure

    with configured(spark, "spark.sql.streaming.queryEvolution.enableSourceEvolution", "true"):
        yield run


@pytest.mark.usefixtures("newest_offset_log")
def test_a_named_source_that_a_checkpoint_lost_is_not_read_anew(
    spark: SparkSession,
    servers: str,
    union: Callable[[str, Mapping[str, DataStreamReader]], None],
    read: Callable[..., DataFrameReader],
    topics: Topics,
    tmp_path: Path,
) -> None:
    first, second, target = topics.create(), topics.create(), topics.create()

    def source(topic: str, start: str = "earliest") -> DataStreamReader:
        found = spark.readStream.format("kafkalog").option("kafka.bootstrap.servers", servers)
        return found.options(subscribe=topic, startingOffsets=start)

    topics.fill(first, 5)
    topics.fill(second, 7)
    union(target, {"first": source(first), "second": source(second)})
    offsets = tmp_path / "checkpoint" / "offsets"
    lines = (offsets / "0").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("second:")]
    assert len(kept) == len(lines) - 1
    (offsets / "1").write_text("\n".join(kept))
    topics.fill(first, 3)
    topics.fill(second, 2)
    for _ in range(2):
        # Spark 4.2 stops by itself, with less of a sentence.
        told = rf"CheckpointError: .*startingOffsets '{{\"{second}|None\.get"
        with pytest.raises(Exception, match=told):
            union(target, {"first": source(first), "second": source(second)})
    newest = max(int(file.name) for file in offsets.glob("[0-9]"))
    for name in (f"{newest}", f".{newest}.crc"):
        (offsets / name).unlink(missing_ok=True)
    goes_on = json.dumps({second: {"0": 7}})
    union(target, {"first": source(first), "second": source(second, goes_on)})
    expected = sorted(values_of(read, first) + values_of(read, second))
    assert committed_values_of(read, target) == expected


HISTORY_SEED = int(
    os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000))
)


@pytest.mark.long
def test_a_history_of_limits_and_old_checkpoints_shows_each_row_once(
    exactly_once: Callable[..., None],
    read: Callable[..., DataFrameReader],
    topics: Topics,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What `tests/property/test_sink_property.py` does without Spark, for a few runs with it."""
    chance = random.Random(HISTORY_SEED)
    source, target = topics.create(2), topics.create(2)
    checkpoint, copy = tmp_path / "checkpoint", tmp_path / "copy"
    prefix, refused = f"p-{target}", 0
    twice: Counter[Any] = Counter()
    for number in range(6):
        values = [b"%d-%d" % (number, row) for row in range(chance.choice([8, 16, 24]))]
        topics.append(source, values, partition=chance.randrange(2))
        if number % 2:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(checkpoint, copy)
        elif number and chance.random() < 0.8:
            shutil.rmtree(checkpoint)
            shutil.copytree(copy, checkpoint)
        error = None
        try:
            exactly_once(source, target, prefix, limit=chance.choice([8, 12]))
        except Exception as raised:
            error = str(raised)
        if error is not None:
            assert "PrefixInUseError: Micro-batch" in error
            refused += 1
            prefix = f"p-{target}-{refused}"
            # As the error says: what this checkpoint has not is there twice from here on.
            seen = Counter(committed_values_of(read, target))
            exactly_once(source, target, prefix, limit=1000)
            twice += (Counter(committed_values_of(read, target)) - seen) & seen
        found = Counter(committed_values_of(read, target))
        assert found - twice == Counter(values_of(read, source))
    with capsys.disabled():
        print(f"\nKAFKALOG_CRASH_SEED={HISTORY_SEED}: {refused} of 6 runs refused")
