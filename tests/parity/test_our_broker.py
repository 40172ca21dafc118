"""Spark's own connector with our broker: it writes, reads and streams, as ours does there."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_kafkalog import EmbeddedBroker
from tests.parity.conftest import ORACLE, Both
from tests.spark.conftest import Topics

pytestmark = [pytest.mark.spark, pytest.mark.interop]


def test_all_jobs_of_sparks_connector(spark: SparkSession, tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        topic = Topics(broker.bootstrap_servers).create(3)
        both = Both(spark, broker.bootstrap_servers)
        rows = spark.range(500).selectExpr(
            "cast(id as string) key", "cast(id as string) value",
            "array(named_struct('key', 'h', 'value', cast('x' as binary))) headers",
        )  # fmt: skip
        rows.write.format(ORACLE).options(**both.servers).option("topic", topic).save()
        assert len(both.rows(subscribe=topic, includeHeaders="true", minPartitions=5)) == 500
        early = {"startingTimestamp": 1, "endingOffsets": "latest"}
        assert len(both.rows(subscribePattern=topic[:-1], **early)) == 500

        reader = spark.readStream.format(ORACLE).options(**both.servers)
        frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
        query = (
            frame.select("key", "value")
            .writeStream.format(ORACLE)
            .options(**both.servers)
            .option("topic", f"{topic}-copy")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        assert len(both.rows(subscribe=f"{topic}-copy")) == 500
