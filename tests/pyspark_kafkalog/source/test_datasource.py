"""The class that Spark finds: its name, its schema, and what its import costs."""

import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pyspark_kafkalog import DefaultSource, LoadSink
from pyspark_kafkalog.arrow.schema import COLUMN_TYPES, row_schema
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.datasource import requested_columns
from pyspark_kafkalog.source.options import warn_once

READ = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
LOAD = {"target": "parquet:/nowhere", "name": "n", "uncheckedTopicIds": "true"}
LANDED = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
    ]
)


def source(**options: str) -> DefaultSource:
    given: Any = CaseInsensitiveDict({**READ, **options})
    return DefaultSource(given)


def test_its_name_is_the_format() -> None:
    assert DefaultSource.name() == "kafkalog"


def test_the_schema_is_the_decoders() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    plain, full = source().schema(), source(includeHeaders="true").schema()
    assert to_arrow_schema(plain, timezone="UTC").equals(row_schema())
    assert to_arrow_schema(full, timezone="UTC").equals(row_schema(tuple(COLUMN_TYPES)))


def test_options_are_checked_when_the_schema_is_asked_for() -> None:
    with pytest.raises(InvalidOptionError, match="failOnDataLoss"):
        source(failOnDataLoss="perhaps").schema()


def test_a_users_schema_prunes_and_orders_the_columns() -> None:
    schema = StructType([StructField("offset", LongType()), StructField("key", BinaryType())])
    assert requested_columns(schema) == ["offset", "key"]
    assert requested_columns(source(includeHeaders="true").schema()) == list(COLUMN_TYPES)


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (StructField("value", StringType()), "value as string; it is binary"),
        (StructField("Value", BinaryType()), "column 'Value'"),
        (StructField("value", BinaryType(), nullable=False), "NOT NULL"),
        (StructField("headers", ArrayType(StringType())), "headers as array<string>; it is array"),
    ],
)
def test_a_users_schema_must_fit(field: StructField, problem: str) -> None:
    with pytest.raises(InvalidOptionError, match=problem):
        requested_columns(StructType([field]))


def test_a_users_schema_names_each_column_once_and_at_least_one() -> None:
    value = StructField("value", BinaryType())
    with pytest.raises(InvalidOptionError, match="names a column twice: value, value"):
        requested_columns(StructType([value, value]))
    with pytest.raises(InvalidOptionError, match="at least one column"):
        requested_columns(StructType())


def test_a_stream_that_is_refused_says_so_when_it_is_asked_and_ends_in_peace() -> None:
    refused = source(endingOffsets="latest")
    reader: Any = refused.streamReader(refused.schema())
    for ask in (
        reader.initialOffset,
        reader.prepareForTriggerAvailableNow,
        reader.getDefaultReadLimit,
        lambda: reader.latestOffset({}, None),
        lambda: reader.partitions({}, {}),
        lambda: reader.read(None),
    ):
        with pytest.raises(InvalidOptionError, match="endingOffsets is not valid in streaming"):
            ask()
    reader.stop()


def test_a_topic_cannot_be_overwritten() -> None:
    with pytest.raises(InvalidOptionError, match=r'use mode\("append"\)'):
        source().writer(StructType([StructField("value", BinaryType())]), overwrite=True)


def test_finding_the_source_imports_neither_the_client_nor_arrow() -> None:
    heavy = "('kafka', 'pyarrow', 'pyspark_kafkalog.client', 'pyspark_kafkalog.arrow')"
    find = (
        "import sys, pyspark_kafkalog; pyspark_kafkalog.DefaultSource.name(); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    # Without the session's own imports: those are Spark's.
    done = subprocess.run(
        [sys.executable, "-c", find], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_each_batch_query_is_warned_and_a_stream_once(caplog: pytest.LogCaptureFixture) -> None:
    """A process plans all queries of a session, and each micro-batch of a stream's sink."""
    wrong = source(topic="orders", topik="orders")
    rows = StructType([StructField("value", BinaryType())])
    for plan in (
        lambda: wrong.reader(rows),
        lambda: wrong.writer(rows, overwrite=False),
        lambda: LoadSink({**LOAD, "topik": "orders"}).writer(LANDED, overwrite=False),
    ):
        caplog.clear()
        plan()
        plan()
        assert caplog.text.count("Option topik is unknown") == 2
    caplog.clear()
    warn_once.cache_clear()
    wrong.streamWriter(rows, overwrite=False)
    wrong.streamWriter(rows, overwrite=False)
    assert caplog.text.count("Option topik is unknown") == 1
