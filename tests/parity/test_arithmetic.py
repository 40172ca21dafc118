"""The arithmetic of limits and splits against the code of Spark's connector itself, in its JVM.

Random cases, as many as fit in seconds; KAFKALOG_PARITY_CASES asks for more, KAFKALOG_PARITY_SEED
replays a run.
"""

import json
import os
import random
from collections.abc import Mapping
from typing import Any

import pytest
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession

from pyspark_kafkalog.source.offsets import from_json, to_json
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.splitting import Splitting, split_ranges
from pyspark_kafkalog.source.trigger_limits import limit_untils

pytestmark = [pytest.mark.spark, pytest.mark.interop]

CASES = int(os.environ.get("KAFKALOG_PARITY_CASES", "400"))
SEED = int(os.environ.get("KAFKALOG_PARITY_SEED", random.SystemRandom().randrange(1_000_000)))


class SparkCode:
    """Calls private Scala of the connector: maps go in and out as the JSON of its checkpoints."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self._kafka010 = jvm.org.apache.spark.sql.kafka010
        self._json = self._kafka010.JsonUtils
        java = jvm.java.lang.Class
        stream = java.forName("org.apache.spark.sql.kafka010.KafkaMicroBatchStream")
        (self._rate_limit,) = [m for m in stream.getDeclaredMethods() if m.getName() == "rateLimit"]
        self._rate_limit.setAccessible(True)
        unsafe = java.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
        unsafe.setAccessible(True)
        # Without its constructor, which wants brokers; the method needs nothing of it.
        self._stream = unsafe.get(None).allocateInstance(stream)

    def limit_untils(
        self, limit: int, starts: dict[Any, int], untils: dict[Any, int]
    ) -> dict[TopicPartition, int]:
        """The offsets up to which a batch of at most `limit` may read."""
        given = self._array(limit, self._map(starts), self._map(untils))
        limited = self._rate_limit.invoke(self._stream, given)
        return from_json(json.loads(self._json.partitionOffsets(limited)))

    def split(
        self, sizes: list[int], min_partitions: int | None, max_records: int | None
    ) -> list[Any]:
        """(partition, start, until) of each piece; a partition begins at offset 5."""
        calculator = self._kafka010.KafkaOffsetRangeCalculator(
            self._option(min_partitions), self._long_option(max_records)
        )
        ranges = self._jvm.java.util.ArrayList()
        for partition, size in enumerate(sizes):
            topic_partition = self._jvm.org.apache.kafka.common.TopicPartition("t", partition)
            ranges.add(
                self._kafka010.KafkaOffsetRange(topic_partition, 5, 5 + size, self._option(None))
            )
        pieces = calculator.getRanges(self._seq(ranges), self._seq(self._jvm.java.util.ArrayList()))
        found = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(pieces)
        return [(piece.partition(), piece.fromOffset(), piece.untilOffset()) for piece in found]

    def _map(self, offsets: Mapping[Any, int]) -> Any:
        return self._json.partitionOffsets(json.dumps(to_json(offsets)))

    def _option(self, value: int | None) -> Any:
        return self._jvm.scala.Option.apply(value)

    def _long_option(self, value: int | None) -> Any:
        """Out of a map, because what goes to the JVM alone becomes an Integer where it is small."""
        topic_partition = self._jvm.org.apache.kafka.common.TopicPartition("t", 0)
        return self._map({} if value is None else {TopicPartition("t", 0): value}).get(
            topic_partition
        )

    def _seq(self, values: Any) -> Any:
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(values).toSeq()

    def _array(self, *values: int) -> Any:
        array = self._jvm.java.util.ArrayList()
        for value in values:
            array.add(value)
        return array.toArray()


@pytest.fixture(scope="module")
def spark_code(spark: SparkSession) -> SparkCode:
    return SparkCode(spark._jvm)


def test_limits_share_out_as_spark_does(spark_code: SparkCode) -> None:
    chance = random.Random(SEED)
    for case in range(CASES):
        count = chance.randint(1, 10)
        top = chance.choice([5, 100, 10**6, 2**45, 2**62])
        limit = chance.choice([chance.randint(1, 20), chance.randint(1, 10**6), 2**63 - 1])
        starts = {TopicPartition("t", n): chance.randint(0, top // 2) for n in range(count)}
        untils = {
            each: max(0, start + chance.randint(-2, top // 2 // count))
            for each, start in starts.items()
        }
        expected = spark_code.limit_untils(limit, starts, untils)
        assert limit_untils(limit, starts, untils) == expected, (SEED, case)


def test_ranges_are_split_as_spark_does(spark_code: SparkCode) -> None:
    chance = random.Random(SEED)
    for case in range(CASES // 2):
        big = chance.choice([3, 30, 1000, 10**6])
        sizes = [chance.randint(0, big) for _ in range(chance.randint(0, 8))]
        least = chance.choice([None, chance.randint(1, 20)])
        most = chance.choice([None, chance.randint(max(1, big // 20), big * 2)])
        ranges = [OffsetRange("t", n, 5, 5 + size) for n, size in enumerate(sizes)]
        pieces = [
            (piece.partition, piece.start_offset, piece.until_offset)
            for piece in split_ranges(ranges, Splitting(least, most))
        ]
        assert pieces == spark_code.split(sizes, least, most), (SEED, case, sizes, least, most)
