"""Child program of test_spark_tables: another PySpark, with Delta's and Iceberg's own jars.

`python spark_tables.py JARS`: for each line of stdin, a JSON object with `catalog` (the database of
an Iceberg catalog, each in a session of its own) and `sql`, one of stdout: `rows` or `error`.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

_EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": ",".join(_EXTENSIONS),
}


def catalog(database: str) -> dict[str, str]:
    """Called as pyiceberg's, whose tables it shares; without a cache, as others commit."""
    name = "spark.sql.catalog.kafkalog"
    return {
        name: "org.apache.iceberg.spark.SparkCatalog",
        f"{name}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{name}.jdbc.schema-version": "V1",
        f"{name}.uri": f"jdbc:sqlite:{database}",
        f"{name}.warehouse": f"file://{Path(database).parent}/lake",
        f"{name}.cache-enabled": "false",
    }


def main(jars: str) -> None:
    # What a VACUUM prints is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    builder = SparkSession.builder.master("local[2]")
    for name, value in {**_SETTINGS, "spark.jars": jars}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    sessions: dict[str, SparkSession] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["catalog"] not in sessions:
            sessions[asked["catalog"]] = session = spark.newSession()
            for name, value in catalog(asked["catalog"]).items():
                session.conf.set(name, value)
        answer: dict[str, object]
        try:
            found = sessions[asked["catalog"]].sql(asked["sql"]).collect()
            answer = {"rows": [[str(value) for value in row] for row in found]}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
