"""Where a load goes back to, as brokers tell."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog import cli, rewind
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    DataLossError,
    InvalidOptionError,
    TopicRecreatedError,
    UnknownTopicError,
)
from pyspark_kafkalog.source.offsets import EARLIEST
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import PendingCommit
from tests.pyspark_kafkalog.warehouse.rows_loader import load
from tests.pyspark_kafkalog.warehouse.tables import DeltaLakeTable, expected_rows
from tests.pyspark_kafkalog.warehouse.topic_filler import TopicFiller
from tests.support.ports import closed_port

TOPIC = "orders"
VALUES = [b"%d" % number for number in range(6)]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def cluster(servers: str) -> Iterator[Cluster]:
    with closing(Cluster(ClientConfig.from_options({"bootstrap.servers": servers}))) as opened:
        yield opened


@pytest.fixture
def options(servers: str, cluster: Cluster) -> dict[str, str]:
    """Of a topic with six records in each of two partitions."""
    if TOPIC in cluster.topics():
        admin.delete_topics(cluster, [TOPIC])
    filler = TopicFiller(servers)
    filler.make(TOPIC, partitions=2)
    for partition in (0, 1):
        filler.append(TOPIC, VALUES, partition)
    return {"kafka.bootstrap.servers": servers, "subscribe": TOPIC}


@pytest.fixture
def table(tmp_path: Path) -> DeltaLakeTable:
    """Loaded with all of it."""
    made = DeltaLakeTable(tmp_path)
    load(made.open(), "nightly", 6)
    return made


def test_earliest_is_where_the_log_begins_and_keeps_what_is_gone(
    table: DeltaLakeTable, options: dict[str, str], cluster: Cluster
) -> None:
    admin.delete_records(cluster, {TopicPartition(TOPIC, 0): 2}, lambda *_: None)
    with pytest.raises(DataLossError, match="begins at offset 2"):
        rewind(table.name, "nightly", {TOPIC: {"0": 1}}, True, options)
    done = rewind(table.name, "nightly", "earliest", truncate_after=True, options=options)
    assert (table.offsets("nightly"), done.deleted_rows) == ({0: 2, 1: 0}, 10)
    load(table.open(), "nightly", 6)
    assert table.rows() == expected_rows("nightly", 6)
    goes_on = {**options, "failOnDataLoss": "false"}
    assert rewind(table.name, "nightly", {TOPIC: {"0": 1}}, True, goes_on).deleted_rows == 4
    load(table.open(), "nightly", 6)
    assert table.rows() == expected_rows("nightly", 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "place"),
    [
        ("-2 offsets", {0: 4, 1: 4}),
        ("-1 day", {0: 0, 1: 0}),
        ("1970-01-02", {0: 0, 1: 0}),
        (1, {0: 0, 1: 0}),
        ({TOPIC: {"1": EARLIEST, "0": 5}}, {0: 5, 1: 0}),
        ({TOPIC: {"1": EARLIEST}}, {0: 6, 1: 0}),
        ({TOPIC: "earliest"}, {0: 0, 1: 0}),
        (33_000_000_000_000, {0: 6, 1: 6}),
    ],
)
def test_places_are_written_as_a_loads_start_is(
    table: DeltaLakeTable, options: dict[str, str], to: Any, place: dict[int, int]
) -> None:
    with pytest.raises(InvalidOptionError, match=r'asked: .*"orders": {"0": 6'):
        rewind(table.name, "nightly", to, True)
    rewind(table.name, "nightly", to, True, options)
    assert table.offsets("nightly") == place
    load(table.open(), "nightly", 6)
    assert table.rows() == expected_rows("nightly", 6)


@pytest.mark.slow
def test_nothing_goes_forward(table: DeltaLakeTable, options: dict[str, str], servers: str) -> None:
    TopicFiller(servers).append(TOPIC, VALUES)
    done = rewind(table.name, "nightly", "-6 offsets", True, options)
    assert done.ranges == (OffsetRange(TOPIC, 1, 0, 6),)
    assert table.offsets("nightly") == {0: 6, 1: 0}


@pytest.mark.slow
def test_a_topic_that_is_gone_or_another_one_has_no_place_to_go_back_to(
    table: DeltaLakeTable, options: dict[str, str], cluster: Cluster
) -> None:
    target = table.open()
    last = target.position("nightly")
    ids = {TOPIC: UUID(int=1)}
    piece = OffsetRange(TOPIC, 0, 6, 6)
    target.commit(PendingCommit(target.stage(row_schema()), "nightly", last, [piece], [], ids))
    with pytest.raises(TopicRecreatedError, match=r"no place to go back to.*forget"):
        rewind(table.name, "nightly", "earliest", True, options)
    admin.delete_topics(cluster, [TOPIC])
    with pytest.raises(UnknownTopicError):
        rewind(table.name, "nightly", "earliest", True, options)
    assert table.offsets("nightly") == {0: 6, 1: 6}
    assert table.rows() == expected_rows("nightly", 6)


@pytest.mark.slow
def test_brokers_that_are_named_have_to_answer(table: DeltaLakeTable) -> None:
    nobody = {"kafka.bootstrap.servers": f"127.0.0.1:{closed_port()}"}
    nobody["kafka.request.timeout.ms"] = "200"
    with pytest.raises(BrokersUnreachableError):
        rewind(table.name, "nightly", {TOPIC: {"0": 1}}, True, nobody)
    assert table.offsets("nightly") == {0: 6, 1: 6}
    with pytest.raises(InvalidOptionError, match=r"deletes rows.*have to be asked.*failOnDataLoss"):
        rewind(table.name, "nightly", {TOPIC: {"0": 1}}, True)
    assert table.offsets("nightly") == {0: 6, 1: 6}
    unasked = {"failOnDataLoss": "false"}
    assert rewind(table.name, "nightly", {TOPIC: {"0": 1}}, True, unasked).deleted_rows == 5


def test_rows_stay_whose_records_may_be_gone(
    table: DeltaLakeTable, options: dict[str, str], cluster: Cluster
) -> None:
    load(table.open(), "nightly", 7)
    with pytest.raises(DataLossError, match="ends at offset 6, and its rows are of records up to"):
        rewind(table.name, "nightly", {TOPIC: {"0": 1}}, True, options)
    admin.delete_topics(cluster, [TOPIC])
    admin.create_topic(cluster, TOPIC, 2, configs={"cleanup.policy": "compact,delete"})
    with pytest.raises(DataLossError, match="Topic orders is compacted: records of rows"):
        rewind(table.name, "nightly", {TOPIC: {"0": 0}}, True, options)
    assert table.rows() == expected_rows("nightly", 7)
    goes_on = {**options, "failOnDataLoss": "false"}
    assert rewind(table.name, "nightly", {TOPIC: {"0": 0}}, True, goes_on).deleted_rows == 7


@pytest.mark.slow
def test_the_command_asks_the_brokers(
    table: DeltaLakeTable,
    options: dict[str, str],
    servers: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["load", "--to", table.name, "--name", "nightly", "--rewind", "earliest"]
    assert cli.main([*words, "--truncate-after"]) == 1
    assert "brokers have to be asked" in capsys.readouterr().err
    assert cli.main([*words, "--truncate-after", "-b", servers, "--format", "json"]) == 0
    assert '"deleted_rows": 12' in capsys.readouterr().out
