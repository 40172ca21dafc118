"""What a load costs: requests of its tasks, and what its commit asks of the disk or the store.

Commits are made for years into one target: what one costs must not depend on those before it.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.source.options import batch_options
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import NOWHERE, PendingCommit
from pyspark_kafkalog.warehouse.landing import Landing, Reading, land
from pyspark_kafkalog.warehouse.options import load_options
from pyspark_kafkalog.warehouse.plan import plan_load
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.counted_work.function_calls import FunctionCalls, function_calls
from tests.counted_work.requests import requests
from tests.pyspark_kafkalog.warehouse.rows_loader import load
from tests.pyspark_kafkalog.warehouse.tables import S3Table
from tests.support.s3_server import s3

PARTITIONS = 4
ON_DISK = ("fsync", "link", "rename", "mkdir", "listdir", "scandir", "open", "stat", "unlink")


@pytest.fixture
def landed(
    servers: str, new_topic: Callable[..., str], write: Callable[..., None], tmp_path: Path
) -> Callable[[int], tuple[Counter[str], FunctionCalls]]:
    """landed(records) lands so many of each partition in one task: its requests, and its calls."""

    def task(records: int) -> tuple[Counter[str], FunctionCalls]:
        topic = new_topic(PARTITIONS)
        for partition in range(PARTITIONS):
            write(topic, 1, [b"v"] * records, partition=partition)
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic}
        reading = Reading(batch_options(given), DEFAULT_COLUMNS)
        stage = open_target(f"parquet:{tmp_path}/{topic}").stage(reading.schema())
        ranges = [OffsetRange(topic, partition, 0, records) for partition in range(PARTITIONS)]
        with requests() as sent, function_calls() as calls:
            files = [file for each in land(Landing(reading, stage), ranges) for file in each.files]
        assert [file.records for file in files] == [records] * PARTITIONS
        return sent, calls

    return task


@pytest.mark.parametrize("partitions", [1, 30])
def test_a_load_is_planned_by_as_many_requests_whatever_its_partitions(
    servers: str,
    new_topic: Callable[..., str],
    write: Callable[..., None],
    tmp_path: Path,
    partitions: int,
) -> None:
    """What is asked for each partition, or again, delays the first task of every load."""
    topic = new_topic(partitions)
    write(topic, 1, [b"v"] * 10, partition=partitions - 1)
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    with requests() as sent:
        planned = plan_load(load_options("nightly", f"parquet:{tmp_path}/table", given))
    assert sum(piece.offset_count for piece in planned.ranges) == 10
    # A dry run connects once more, for a sample of how many bytes that is.
    sample = Counter(ApiVersions=1, Metadata=1, Fetch=1)
    assert sent - sample == {"ApiVersions": 1, "Metadata": 1, "ListOffsets": 2}


def test_a_task_connects_once_and_syncs_each_file_once(
    landed: Callable[[int], tuple[Counter[str], FunctionCalls]],
) -> None:
    """A connection for each range made a load of 1,000 small partitions as many connections."""
    sent, calls = landed(100)
    assert sent == {"ApiVersions": 1, "Metadata": 1, "Fetch": PARTITIONS}
    assert calls.by_name["fsync"] == PARTITIONS


def test_a_record_costs_no_call_on_its_way_into_a_file(
    landed: Callable[[int], tuple[Counter[str], FunctionCalls]],
) -> None:
    """A call for each record takes longer than the rest of landing it."""
    few, many = landed(100)[1], landed(2_000)[1]
    assert many.total <= few.total + 100


def test_a_commit_into_a_directory_costs_the_same_after_many_others(tmp_path: Path) -> None:
    """Each sync is a disk's latency; work for each commit before makes nightly loads slower."""

    def on_disk(until_offset: int) -> dict[Any, Any]:
        with function_calls() as calls:
            load(open_target(f"parquet:{tmp_path}/table"), "nightly", until_offset)
        return {name: calls.by_name[name] for name in ON_DISK}

    counted = [on_disk(number) for number in range(1, 13)]
    assert counted[1] == counted[-1]
    # Two files and the commit; what has their names, before and after each step.
    assert counted[-1]["fsync"] <= 12
    assert counted[-1]["link"] == 3  # the probe's two, and the commit


def test_a_commit_into_a_store_costs_the_same_requests_after_others(tmp_path: Path) -> None:
    """Each request takes 10 to 100 ms, and stores charge for them."""
    table = S3Table(tmp_path)

    def asked(until_offset: int) -> Counter[str]:
        before = s3().counts()
        load(table.open(), "nightly", until_offset)
        return s3().counts() - before

    counted = [asked(number) for number in range(1, 5)]
    assert counted[1] == counted[-1]
    assert counted[-1]["COPY"] == 2
    # The files, the commit, its note, and the stage's mark, which is put twice to try the store.
    assert counted[-1]["PUT"] == 6
    assert counted[-1].total() <= 26


def test_to_find_many_places_asks_deltalake_for_none_of_them(tmp_path: Path) -> None:
    """It replays the log for each: half a minute for a load of 5,000 partitions."""

    def asked(partitions: int) -> int:
        ranges = [OffsetRange("orders", number, 0, 1) for number in range(partitions)]
        epochs = {each.topic_partition: 3 for each in ranges}
        target = open_target(f"delta:{tmp_path}/{partitions}")
        stage = target.stage(row_schema())
        target.commit(PendingCommit(stage, "nightly", NOWHERE, ranges, [], epochs=epochs))
        with function_calls() as calls:
            found = target.position("nightly")
        assert (len(found.offsets), found.epochs) == (partitions, epochs)
        return sum(n for name, n in calls.by_name.items() if "transaction_version" in name)

    assert asked(40) == asked(2) > 0
