"""Topics in Spark SQL: what tables, views and functions of them do, and what Spark withholds.

Where a test says "Spark", what it holds is Spark's doing, which docs/sql.md warns of: it is to fail
when a newer Spark does better.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.types import Row

from tests.spark.conftest import Topics
from tests.support.present import present

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def sql(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., DataFrame]]:
    """`spark.sql`, in a database of its own, which lies in a temporary folder."""
    folder = tmp_path_factory.mktemp("warehouse")
    spark.sql(f"CREATE DATABASE topics_in_sql LOCATION '{folder}'")
    spark.sql("USE topics_in_sql")
    yield spark.sql
    spark.sql("USE default")
    spark.sql("DROP DATABASE topics_in_sql CASCADE")


@pytest.fixture
def options(servers: str) -> Callable[..., str]:
    """`options(name=...)`: what is written in WITH or OPTIONS, with this test's broker."""

    def listed(**named: str) -> str:
        named = {"kafka.bootstrap.servers": servers, **named}
        return ", ".join(f"`{name}` = '{value}'" for name, value in named.items())

    return listed


@pytest.fixture
def table(sql: Callable[..., DataFrame]) -> Callable[..., str]:
    """A new table of kafkalog, `table(columns)`: its name."""

    def create(
        columns: str = "value BINARY, topic STRING, offset BIGINT, timestamp TIMESTAMP",
    ) -> str:
        name = f"t{uuid.uuid4().hex[:8]}"
        sql(f"CREATE TABLE {name} ({columns}) USING kafkalog")
        return name

    return create


def rows_of(frame: DataFrame) -> list[Any]:
    return sorted(tuple(row) for row in frame.collect())


def refused(action: Callable[[], list[Row] | DataFrame | int | None]) -> tuple[str, list[str]]:
    """What Spark shows when `action` fails, which is our sentence and the SQLSTATE behind it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own class varies
        action()
    first, *rest = str(caught.value).splitlines()
    assert ": pyspark_kafkalog.errors.InvalidOptionError: " in first
    assert "Traceback" not in str(caught.value)
    return first, rest


def values_of(read: Callable[..., DataFrameReader], topic: str) -> Any:
    frame = read(subscribe=topic).load().selectExpr("string(key)", "string(value)")
    return rows_of(frame)


def test_a_table_is_read_with_the_options_of_the_query(
    spark: SparkSession,
    sql: Callable[..., DataFrame],
    topics: Topics,
    table: Callable[..., str],
    options: Callable[..., str],
    servers: str,
) -> None:
    topic = topics.create()
    topics.fill(topic, 20)
    name = table()
    count = f"SELECT count(*) FROM {name} WITH ({options(subscribe=topic)}"
    assert present(sql(f"{count})").first())[0] == 20
    assert present(sql(f"{count}, startingOffsets = '-5')").first())[0] == 5
    assert present(sql(f"{count}, startingOffsets = :start)", {"start": "-3"}).first())[0] == 3
    by_api = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    assert spark.read.options(**by_api).table(name).count() == 20


def test_a_table_without_them_is_refused_and_the_way_named(
    sql: Callable[..., DataFrame], topics: Topics, options: Callable[..., str]
) -> None:
    topic = topics.create()
    sql(f"CREATE TABLE kept USING kafkalog OPTIONS ({options(subscribe=topic)})")
    assert len(sql("SELECT * FROM kept").columns) == 7
    message, rest = refused(sql("SELECT * FROM kept").collect)
    assert message.endswith(
        "must be set, for example to localhost:9092. Spark hands the options that a table was "
        "created with to no Python data source: of a table t name them again, "
        "FROM t WITH (`kafka.bootstrap.servers` = '...', subscribe = '...')."
    )
    assert [line.strip() for line in rest] == ["SQLSTATE: 38000"]


def test_a_table_has_the_columns_of_rows(
    sql: Callable[..., DataFrame],
    topics: Topics,
    table: Callable[..., str],
    options: Callable[..., str],
) -> None:
    name = table("value STRING")
    message, _ = refused(sql(f"SELECT * FROM {name} WITH ({options(subscribe='any')})").collect)
    assert "The schema has column value as string; it is binary" in message


def test_a_view_of_a_table_keeps_the_options_and_sees_what_is_new(
    sql: Callable[..., DataFrame],
    topics: Topics,
    table: Callable[..., str],
    options: Callable[..., str],
) -> None:
    topic = topics.create()
    topics.fill(topic, 3)
    name = table()
    query = f"SELECT string(value) AS text FROM {name} WITH ({options(subscribe=topic)})"
    sql(f"CREATE VIEW seen AS {query}")
    sql(f"CREATE TEMPORARY VIEW seen_here AS {query}")
    for count in (3, 5):
        assert present(sql("SELECT count(text) FROM seen").first())[0] == count
        assert present(sql("SELECT count(text) FROM seen_here").first())[0] == count
        topics.fill(topic, 2)
    # Spark passes WITH of a view over, and says nothing.
    assert present(sql("SELECT count(*) FROM seen WITH (startingOffsets = '-1')").first())[0] == 7


def test_the_last_ten_minutes_in_a_view_and_in_a_function(
    sql: Callable[..., DataFrame],
    topics: Topics,
    table: Callable[..., str],
    options: Callable[..., str],
) -> None:
    topic = topics.create(2)
    now_ms = int(time.time() * 1000)
    hour_ago = {"timestamp": now_ms - 3_600_000}
    topics.append(topic, [b"old"] * 500, **hour_ago)
    topics.append(topic, [b"new"] * 7, timestamp=now_ms - 60_000)
    topics.append(topic, [b"late"] * 2, **hour_ago)
    topics.append(topic, [b"new"], timestamp=now_ms)
    topics.append(topic, [b"old"] * 500, partition=1, **hour_ago)
    name = table()
    with_options = f"WITH ({options(subscribe=topic, startingOffsets='-10 minutes')})"
    # What is read of a thousand records; late ones lie between.
    assert present(sql(f"SELECT count(*) FROM {name} {with_options}").first())[0] == 10
    sql(f"""
        CREATE VIEW lately AS SELECT string(value) AS text FROM {name} {with_options}
        WHERE timestamp >= now() - INTERVAL 10 MINUTES
    """)
    assert rows_of(sql("SELECT text, count(*) FROM lately GROUP BY text")) == [("new", 8)]
    sql(f"""
        CREATE FUNCTION within(seconds INT) RETURNS TABLE (text STRING)
        RETURN SELECT string(value) FROM {name} {with_options}
        WHERE timestamp >= now() - make_interval(0, 0, 0, 0, 0, 0, seconds)
    """)
    assert present(sql("SELECT count(*) FROM within(600)").first())[0] == 8
    assert present(sql("SELECT count(*) FROM within(30)").first())[0] == 1


def test_spark_gives_all_of_a_table_in_one_query_the_options_of_one(
    sql: Callable[..., DataFrame],
    topics: Topics,
    table: Callable[..., str],
    options: Callable[..., str],
) -> None:
    first, second = topics.create(), topics.create()
    topics.fill(first, 2)
    topics.fill(second, 3)

    def of_both(one: str, other: str) -> Any:
        return rows_of(
            sql(f"""
                SELECT topic, count(*) FROM (
                    SELECT * FROM {one} WITH ({options(subscribe=first)})
                    UNION ALL SELECT * FROM {other} WITH ({options(subscribe=second)})
                ) GROUP BY topic
            """)
        )

    assert of_both(table(), table()) == sorted([(first, 2), (second, 3)])
    assert of_both(*[table()] * 2) == [(first, 4)]


def test_no_filter_is_pushed_down_even_where_spark_would(
    spark: SparkSession,
    sql: Callable[..., DataFrame],
    topics: Topics,
    table: Callable[..., str],
    options: Callable[..., str],
) -> None:
    """Spark hands a plan with pushed filters to other scans of the same table or DataFrame."""
    topic = topics.create()
    topics.fill(topic, 20)
    sql(f"CREATE TEMPORARY VIEW filtered USING kafkalog OPTIONS ({options(subscribe=topic)})")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        few = "SELECT offset FROM filtered WHERE offset < 5"
        assert present(sql(f"SELECT count(*) FROM ({few})").first())[0] == 5
        both = sql(f"SELECT count(*) FROM ({few} UNION ALL SELECT offset FROM filtered)")
        assert present(both.first())[0] == 25
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_temporary_view_of_the_format_is_planned_once(
    sql: Callable[..., DataFrame], topics: Topics, options: Callable[..., str]
) -> None:
    topic = topics.create()
    topics.fill(topic, 3)
    create = f"VIEW fixed (offset LONG) USING kafkalog OPTIONS ({options(subscribe=topic)})"
    sql(f"CREATE TEMPORARY {create}")
    assert present(sql("SELECT count(*) FROM fixed").first())[0] == 3
    topics.fill(topic, 2)
    assert present(sql("SELECT count(*) FROM fixed").first())[0] == 3
    sql(f"CREATE OR REPLACE TEMPORARY {create}")
    assert present(sql("SELECT count(*) FROM fixed").first())[0] == 5


def test_insert_into_a_table_and_into_a_view(
    spark: SparkSession,
    sql: Callable[..., DataFrame],
    topics: Topics,
    table: Callable[..., str],
    options: Callable[..., str],
    read: Callable[..., DataFrameReader],
    servers: str,
) -> None:
    topic = topics.create()
    name = table("key BINARY, value BINARY")
    sql(f"INSERT INTO {name} WITH ({options(topic=topic)}) VALUES (X'6B', X'76')")
    sql(f"""
        CREATE TEMPORARY VIEW written (key STRING, value STRING)
        USING kafkalog OPTIONS ({options(topic=topic)})
    """)
    sql("INSERT INTO written SELECT 'a', string(id) FROM range(2)")
    one = spark.createDataFrame([(b"by", b"api")], "key binary, value binary")
    by_api = {"kafka.bootstrap.servers": servers, "topic": topic}
    one.writeTo(name).options(**by_api).append()
    assert values_of(read, topic) == [("a", "0"), ("a", "1"), ("by", "api"), ("k", "v")]


def test_writes_that_spark_withholds_the_options_from_are_refused(
    spark: SparkSession,
    sql: Callable[..., DataFrame],
    table: Callable[..., str],
    options: Callable[..., str],
) -> None:
    name = table("key BINARY, value BINARY")
    way = "INSERT INTO t WITH (`kafka.bootstrap.servers` = '...', topic = '...') or df.writeTo("
    row = "SELECT CAST('k' AS BINARY) AS key, CAST('v' AS BINARY) AS value"
    given = options(topic="any")
    named = dict(topic="any", **{"kafka.bootstrap.servers": "localhost:1"})
    for action in (
        lambda: sql(f"INSERT INTO {name} {row}"),
        lambda: spark.sql(row).write.options(**named).insertInto(name),
        lambda: sql(f"CREATE TABLE made USING kafkalog OPTIONS ({given}) AS {row}"),
    ):
        assert way in refused(action)[0]
    assert not spark.catalog.tableExists("made")
    overwrite = f"INSERT OVERWRITE {name} WITH ({given}) {row}"
    assert "A topic cannot be overwritten" in refused(lambda: sql(overwrite))[0]


def test_a_table_as_a_stream(
    spark: SparkSession,
    sql: Callable[..., DataFrame],
    topics: Topics,
    table: Callable[..., str],
    options: Callable[..., str],
    servers: str,
) -> None:
    topic = topics.create()
    topics.fill(topic, 4)
    name = table()

    def run(frame: DataFrame) -> int:
        shown = f"m{uuid.uuid4().hex[:8]}"
        to_memory = frame.writeStream.format("memory").queryName(shown)
        to_memory.trigger(availableNow=True).start().awaitTermination()
        return spark.table(shown).count()

    from_start = {"subscribe": topic, "startingOffsets": "earliest"}
    in_sql = sql(f"SELECT offset FROM STREAM {name} WITH ({options(**from_start)})")
    by_api = {"kafka.bootstrap.servers": servers, **from_start}
    assert run(in_sql.union(spark.readStream.options(**by_api).table(name).select("offset"))) == 8
    message, _ = refused(lambda: run(spark.readStream.table(name)))
    assert message.endswith(
        "name them again, FROM STREAM t WITH (`kafka.bootstrap.servers` = '...', subscribe = "
        "'...') or spark.readStream.options(...).table(\"t\")."
    )


def test_spark_refuses_a_topic_in_place_of_a_table(sql: Callable[..., DataFrame]) -> None:
    with pytest.raises(Exception, match="UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"):
        sql("SELECT * FROM kafkalog.orders")
