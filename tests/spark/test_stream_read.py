"""Topics as streams, through Spark: triggers, checkpoints, restarts."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_kafkalog.source.log_identity import identity_in
from pyspark_kafkalog.source.offsets import with_start
from tests.spark.conftest import Topics

pytestmark = pytest.mark.spark


@pytest.fixture
def landing(spark: SparkSession, servers: str, tmp_path: Path) -> "Landing":
    """A query from topics to Parquet with a checkpoint, which may be run again and again."""
    return Landing(spark, servers, tmp_path)


class Landing:
    def __init__(self, spark: SparkSession, servers: str, directory: Path) -> None:
        self.spark, self.servers = spark, servers
        self.target, self.checkpoint = str(directory / "target"), directory / "checkpoint"

    def start(self, **options: str | int) -> StreamingQuery:
        """A running query that looks for new records all the time."""
        return self._writer(options).trigger(processingTime="50 milliseconds").start(self.target)

    def start_now(self, **options: Any) -> StreamingQuery:
        """A running query that ends with what is there now."""
        return self._writer(options).trigger(availableNow=True).start(self.target)

    def run(self, **options: Any) -> int:
        """Reads what is there now and stops; returns how many rows that was."""
        query = self.start_now(**options)
        assert query.awaitTermination(300)
        return sum(progress.numInputRows for progress in query.recentProgress)

    def offsets(self) -> list[Any]:
        """All (partition, offset) that the target holds, sorted."""
        rows = self.spark.read.parquet(self.target).select("partition", "offset").collect()
        return sorted(tuple(row) for row in rows)

    def planned(self, batch: int) -> Any:
        """The offsets that Spark wrote before it ran a batch."""
        return json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])

    def forget_all_batches_but_the_plan_of_the_first(self) -> None:
        """As if the process had been killed while it ran its first batch."""
        for path in [*(self.checkpoint / "commits").iterdir(), *planned_files(self.checkpoint)]:
            path.unlink()

    def _writer(self, options: Mapping[str, Any]) -> DataStreamWriter:
        source = self.spark.readStream.format("kafkalog")
        frame = source.option("kafka.bootstrap.servers", self.servers).options(**options).load()
        return frame.writeStream.format("parquet").option(
            "checkpointLocation", str(self.checkpoint)
        )


def planned_files(checkpoint: Path) -> list[Any]:
    return [path for path in (checkpoint / "offsets").iterdir() if path.name.lstrip(".") != "0"]


def every_offset(*counts: int) -> list[Any]:
    return [
        (partition, offset) for partition, count in enumerate(counts) for offset in range(count)
    ]


def test_available_now_reads_what_is_new_each_time_and_every_offset_once(
    landing: Landing, topics: Topics
) -> None:
    topic = topics.create(2)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    topics.fill(topic, 12_000, 5)
    assert landing.run(**options) == 12_005
    assert landing.run(**options) == 0
    topics.fill(topic, 3, 0)
    assert landing.run(**options) == 3
    assert landing.offsets() == every_offset(12_003, 5)
    assert landing.planned(0)[topic] == {"0": 12_000, "1": 5}


def test_a_running_query_goes_on_where_it_stopped(landing: Landing, topics: Topics) -> None:
    topic = topics.create()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    for total in (4, 7):
        query = landing.start(**options)
        topics.fill(topic, total)
        query.processAllAvailable()
        query.stop()
    assert landing.offsets() == every_offset(11)


def test_the_first_offsets_of_a_query_survive_a_kill_in_its_first_batch(
    landing: Landing, topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 5)
    query = landing.start(subscribe=topic)
    query.processAllAvailable()
    query.stop()
    start = {TopicPartition(topic, 0): 5}
    planned = landing.planned(0)
    assert planned.items() >= with_start({topic: {"0": 5}}, start).items()
    assert identity_in(planned).topic_ids.keys() == {topic}
    landing.forget_all_batches_but_the_plan_of_the_first()
    topics.fill(topic, 3)
    assert landing.run(subscribe=topic) == 3
    assert landing.offsets() == [(0, 5), (0, 6), (0, 7)]


def test_a_first_batch_that_was_killed_begins_where_it_did_whatever_option_is_new(
    landing: Landing, topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 5)
    assert landing.run(subscribe=topic, startingOffsets="earliest") == 5
    landing.forget_all_batches_but_the_plan_of_the_first()
    shutil.rmtree(landing.target)
    topics.fill(topic, 3)
    assert landing.run(subscribe=topic, startingOffsets="latest") == 8
    assert landing.offsets() == every_offset(8)


@pytest.mark.parametrize(
    ("begins", "gone_up_to"),
    [(0, 7), *(pytest.param(*each, marks=pytest.mark.long) for each in ((0, 10), (4, 7)))],
)
def test_what_retention_takes_from_a_first_batch_before_it_is_replayed_is_data_loss(
    landing: Landing, topics: Topics, begins: int, gone_up_to: int
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    topics.trim(topic, begins)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert landing.run(**options) == 10 - begins
    landing.forget_all_batches_but_the_plan_of_the_first()
    shutil.rmtree(landing.target)
    topics.trim(topic, gone_up_to)
    lost = f"begins at offset {gone_up_to}, and offsets from {begins} were"
    with pytest.raises(Exception, match=lost):
        landing.run(**options)


def test_a_checkpoint_beyond_the_end_of_the_log_stops_the_query(
    landing: Landing, topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 5)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert landing.run(**options) == 5
    later = json.dumps({topic: {"0": 9}})
    path = landing.checkpoint / "offsets" / "0"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], later]))
    (landing.checkpoint / "offsets" / ".0.crc").unlink()
    topics.fill(topic, 1)
    with pytest.raises(Exception, match=f"DataLossError: Partition {topic}-0 went back"):
        landing.run(**options)


def test_a_limit_for_each_trigger_holds_in_every_batch_up_to_the_end(
    landing: Landing, topics: Topics
) -> None:
    topic = topics.create(2)
    topics.fill(topic, 30, 10)
    limits = {"maxOffsetsPerTrigger": 15, "minOffsetsPerTrigger": 15}
    query = landing.start_now(subscribe=topic, startingOffsets="earliest", **limits)
    assert query.awaitTermination(300)
    rows = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert sum(rows) == 40
    assert len(rows) >= 3
    assert max(rows) <= 15
    assert landing.offsets() == every_offset(30, 10)


def test_a_batch_waits_for_enough_offsets(landing: Landing, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, 2)
    query = landing.start(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=5)
    query.processAllAvailable()
    topics.fill(topic, 4)
    query.processAllAvailable()
    assert landing.offsets() == every_offset(2)
    topics.fill(topic, 1)
    query.processAllAvailable()
    query.stop()
    assert landing.offsets() == every_offset(7)


def test_options_of_batch_reads_alone_are_refused(landing: Landing) -> None:
    with pytest.raises(Exception, match="InvalidOptionError: Option endingOffsets is not valid"):
        landing.run(subscribe="any", endingOffsets="latest")
