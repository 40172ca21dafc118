"""Plan, write, commit and abort of the sink, in the processes' order but without Spark.

With Spark: tests/spark/test_load_sink.py.
"""

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka.structs import OffsetAndTimestamp, TopicPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_kafkalog.errors import (
    DataLossError,
    InvalidOptionError,
    InvalidRowError,
    LoadConflictError,
    TargetError,
    TopicRecreatedError,
)
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    PendingCommit,
    deleted,
)
from pyspark_kafkalog.warehouse.rows.row_types import storable
from pyspark_kafkalog.warehouse.sink import writer as sink_module
from pyspark_kafkalog.warehouse.sink.query_number import is_same_query, query_number
from pyspark_kafkalog.warehouse.sink.writer import (
    LoadStreamWriter,
    LoadWriter,
    check_place_columns,
    load_sink_options,
)
from tests.pyspark_kafkalog.warehouse.tables import KINDS, Table

ROW = StructType(
    [
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType()),
    ]
)
EMBEDDED = [kind for kind in KINDS if kind not in ("postgresql", "mariadb")]


@pytest.fixture(params=EMBEDDED)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return made(request.param, tmp_path)


@pytest.fixture
def parquet(tmp_path: Path) -> Table:
    return made("parquet", tmp_path)


def made(kind: str, tmp_path: Path) -> Table:
    directory = tmp_path / "the place"
    directory.mkdir()
    return KINDS[kind](directory)


@pytest.fixture(autouse=True)
def task_context(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The properties of tasks."""
    properties: dict[str, str] = {}
    context = SimpleNamespace(partitionId=lambda: 0, getLocalProperty=properties.get)
    monkeypatch.setattr(sink_module, "TaskContext", SimpleNamespace(get=lambda: context))
    return properties


def a_writer(
    table: Table,
    name: str = "nightly",
    kind: type[LoadWriter] | type[LoadStreamWriter] = LoadStreamWriter,
    **options: str,
) -> Any:
    given = {"TARGET": table.name, "name": name, "uncheckedOffsets": "true", **options}
    if "kafka.bootstrap.servers" not in given:
        given["uncheckedTopicIds"] = "true"
    return kind(load_sink_options(given), ROW)


def planned(table: Table, name: str = "nightly", **options: Any) -> Any:
    """A writer as it comes to the tasks."""
    return pickle.loads(pickle.dumps(a_writer(table, name, **options)))


def rows(*places: tuple[int, int]) -> Any:
    """Rows of (partition, offset), whose values say that."""
    partitions, offsets = zip(*places, strict=True) if places else ((), ())
    values = [b"nightly %d %d" % place for place in places]
    return pa.record_batch(
        {
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["orders"] * len(places), pa.string()),
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([0] * len(places), pa.timestamp("us", "UTC")),
        }
    )


def run(
    table: Table, tasks: list[Any], batch: int = 0, name: str = "nightly", **options: Any
) -> None:
    """A micro-batch: its tasks get these places each."""
    writer = planned(table, name, **options)
    messages = [writer.write(iter([rows(*places)])) for places in tasks]
    a_writer(table, name, **options).commit(pickle.loads(pickle.dumps(messages)), batch)


def write(table: Table, places: list[Any], name: str = "nightly", **options: str) -> None:
    """A batch write: one task gets these places."""
    writer = pickle.loads(pickle.dumps(a_writer(table, name, kind=LoadWriter, **options)))
    message = writer.write(iter([rows(*places)]))
    pickle.loads(pickle.dumps(writer)).commit([message])


def expected(*counts: int) -> Counter[Any]:
    return Counter(
        b"nightly %d %d" % (partition, offset)
        for partition, count in enumerate(counts)
        for offset in range(count)
    )


def test_any_batches_of_any_tasks_that_begin_anywhere_make_each_row_once(table: Table) -> None:
    chance = random.Random(7)
    for _ in range(4):
        # A query without a checkpoint: it begins at the beginning, with batches of other sizes.
        begins = [0, 0]
        while begins != [9, 5]:
            places = []
            for partition, end in enumerate([9, 5]):
                until = min(end, begins[partition] + chance.randrange(1, 5))
                places += [(partition, offset) for offset in range(begins[partition], until)]
                begins[partition] = until
            chance.shuffle(places)
            cut = chance.randrange(len(places) + 1)
            run(table, [places[:cut], places[cut:], []])
            if chance.random() < 0.3:
                break
    run(table, [[(0, n) for n in range(9)] + [(1, n) for n in range(5)]])
    assert table.rows() == expected(9, 5)
    assert table.offsets("nightly") == {0: 9, 1: 5}
    assert table.open().position("nightly").offsets[TopicPartition("orders", 1)] == 5


def test_a_batch_without_new_rows_commits_nothing_and_leaves_nothing(table: Table) -> None:
    run(table, [[(0, 0), (0, 1)]])
    before = sorted(table.directory.rglob("part-*"))
    run(table, [[(0, 1)], []])
    run(table, [[], []])
    run(table, [])
    assert sorted(table.directory.rglob("part-*")) == before
    assert table.rows() == expected(2)


def test_a_twin_of_a_task_and_one_that_died_are_not_seen(table: Table) -> None:
    writer = planned(table)
    twin = planned(table)
    [first, _] = [writer.write(iter([rows((0, 0), (0, 1))])) for _ in range(2)]

    def dies() -> Iterator[Any]:
        yield rows((0, 2))
        raise OSError("the executor is gone")

    with pytest.raises(OSError, match="gone"):
        writer.write(dies())
    twin.write(iter([rows((0, 0), (0, 1))]))
    a_writer(table).commit([first], 0)
    assert table.rows() == expected(2)


def test_of_two_queries_of_one_name_the_later_one_is_refused(table: Table) -> None:
    ours, theirs = planned(table), planned(table)
    our_message = ours.write(iter([rows((0, 0), (0, 1))]))
    their_message = theirs.write(iter([rows((0, 0))]))
    a_writer(table).commit([their_message], 0)
    said = "another load named 'nightly'.* give each query, and each flow of a pipeline, another"
    with pytest.raises(LoadConflictError, match=said):
        a_writer(table).commit([our_message], 5)
    a_writer(table).abort([our_message], 5)
    assert table.rows() == expected(1)
    run(table, [[(0, 0), (0, 1)]], batch=5)
    assert table.rows() == expected(2)


def test_a_query_does_not_take_for_its_own_what_another_one_of_the_name_has_passed(
    table: Table, task_context: dict[str, str], tmp_path: Path
) -> None:
    def query(letter: str, places: list[tuple[int, int]], at: str = "") -> None:
        task_context["sql.streaming.queryId"] = f"{letter * 8}-0000-4000-8000-000000000000"
        run(table, [places], checkpointLocation=str(tmp_path / (at or letter)))

    query("a", [(0, 0), (0, 2), (1, 0)])
    # As often as it is tried again, and where the other one has gone on.
    said = (
        "Another query of the load 'nightly' has passed offset 1 of orders-0, up to 3.*another name"
    )
    for _ in range(2):
        with pytest.raises(LoadConflictError, match=said):
            query("b", [(0, 1), (0, 3)])
    query("a", [(0, 2), (0, 4)])
    with pytest.raises(LoadConflictError, match="up to 5"):
        query("b", [(0, 1), (0, 3)])
    # Of other partitions, or from where the table ends on, it has what it reads.
    query("b", [(2, 0)])
    query("b", [(0, 5)])
    with pytest.raises(LoadConflictError, match=r"passed offset 4 of orders-0, up to 6"):
        query("a", [(0, 4), (0, 6)])
    query("a", [(1, 0), (1, 1)])
    # A load of the name took what there was; and the query's checkpoint was moved, or lost.
    position = table.open().position("nightly")
    stage = table.open().stage(storable(to_arrow_schema(ROW, timezone="UTC")))
    ranges = [OffsetRange("orders", 0, 6, 8)]
    table.open().commit(PendingCommit(stage, "nightly", position, ranges, [], {}))
    query("b", [(0, 7), (0, 8)], at="elsewhere")
    query("c", [(0, 0), (0, 8), (0, 9)], at="elsewhere")
    # A write in foreachBatch knows the query, and the place of its checkpoint where it is told.
    task_context["sql.streaming.queryId"] = "d"
    with pytest.raises(LoadConflictError, match=r"passed offset 9 of orders-0, up to 10"):
        write(table, [(0, 9), (0, 10)])
    write(table, [(0, 9), (0, 10)], checkpointLocation=str(tmp_path / "elsewhere"))
    rows_there = [(0, 0), (0, 2), (1, 0), (0, 4), (2, 0), (0, 5), (1, 1), (0, 8), (0, 9), (0, 10)]
    assert table.rows() == Counter(b"nightly %d %d" % place for place in rows_there)


def test_a_write_in_foreach_batch_has_rows_of_its_micro_batch_alone(
    table: Table, task_context: dict[str, str], tmp_path: Path
) -> None:
    """What a join has held back lies below the place of the name, as do rows that are there."""
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    for batch, end in enumerate((4, 6)):
        (offsets / f"{batch}").write_text(f'v1\n{{}}\n{{"orders":{{"0":{end}}}}}')
    task_context["sql.streaming.queryId"] = "a"
    told = {
        "checkpointLocation": str(tmp_path / "checkpoint"),
        "startingOffsets": "earliest",
        "uncheckedOffsets": "false",
    }

    def each(batch: int, places: list[tuple[int, int]]) -> None:
        task_context["streaming.sql.batchId"] = str(batch)
        write(table, places, **told)

    for _ in range(2):
        each(0, [(0, 0), (0, 3)])
    with pytest.raises(InvalidRowError, match=r"offsets 2 to 4 of orders-0 in .* reads 4 to 5"):
        each(1, [(0, 2), (0, 4)])
    assert table.rows() == Counter([b"nightly 0 0", b"nightly 0 3"])
    # Of another topic it may write what a read of its own gave.
    each(1, [(0, 4), (1, 0)])
    assert table.offsets("nightly") == {0: 5, 1: 1}
    told["checkpointLocation"] = str(tmp_path / "misspelt")
    with pytest.raises(InvalidOptionError, match=r"misspelt cannot be read from Python.*held back"):
        each(1, [(0, 2), (0, 5)])
    # Nor does Spark tell a thread of one's own which micro-batch is written.
    task_context.clear()
    with pytest.raises(InvalidOptionError, match=r"not say of which.*uncheckedOffsets"):
        write(table, [(0, 2), (0, 5)], **told)
    told["uncheckedOffsets"] = "true"
    each(1, [(0, 5)])
    assert table.offsets("nightly") == {0: 6, 1: 1}


def test_flows_of_pipelines_are_the_same_after_a_full_refresh() -> None:
    at = "/tmp/storage/_checkpoints/lake/flow"
    one = query_number("a", f"file:{at}/0")
    assert 0 < one < 2**62
    for checkpoint in (f"{at}/1", f"file://{at}/12/"):
        assert is_same_query(one, query_number("b", checkpoint))
    for elsewhere in ("/tmp/storage/_checkpoints/lake/other/0", f"s3a://x{at}/0", None):
        assert not is_same_query(one, query_number("b", elsewhere))
        assert is_same_query(one, query_number("a", elsewhere))
    assert not is_same_query(query_number("a", "/tmp/1"), query_number("b", "/tmp/2"))
    assert not is_same_query(query_number("a", None), query_number("b", None))


def test_an_abort_after_a_commit_that_may_have_published_drops_nothing(table: Table) -> None:
    writer = planned(table)
    message = writer.write(iter([rows((0, 0), (0, 1))]))
    a_writer(table).commit([message], 0)
    # As if the answer had been lost: Spark aborts what it could not commit.
    a_writer(table).abort([message], 0)
    assert table.rows() == expected(2)
    run(table, [[(0, 0), (0, 1)]])
    assert table.rows() == expected(2)


def test_an_abort_because_of_a_task_drops_what_the_others_wrote(table: Table) -> None:
    writer = planned(table)
    message = writer.write(iter([rows((0, 0))]))
    a_writer(table).abort([None, message], 0)
    with pytest.raises(TargetError):
        a_writer(table).commit([message], 0)
    assert table.rows() == Counter()
    a_writer(table).abort([None, None], 0)
    a_writer(table).abort([], 0)


def test_writers_to_commit_and_abort_make_no_stage(table: Table) -> None:
    a_writer(table)
    assert list(table.directory.iterdir()) == []


def test_files_are_laid_out_as_those_of_a_load(parquet: Table) -> None:
    options: dict[str, Any] = {
        "partitionBy": "partition",
        "sortBy": "offset desc",
        "compression": "snappy",
    }
    writer = pickle.loads(pickle.dumps(a_writer(parquet, **options)))
    message = writer.write(iter([rows((0, 0), (1, 0), (1, 1))]))
    a_writer(parquet, **options).commit([message], 0)
    [file] = parquet.directory.glob("table/partition=1/part-task-0-*.parquet")
    content = pq.ParquetFile(file)
    assert content.read().column("offset").to_pylist() == [1, 0]
    assert content.metadata.row_group(0).column(0).compression == "SNAPPY"
    assert parquet.offsets("nightly") == {0: 1, 1: 2}


def test_offsets_that_cannot_be_checked_are_refused_unless_that_is_allowed(
    parquet: Table, tmp_path: Path
) -> None:
    given: list[dict[str, Any]] = [{}, {"checkpointLocation": str(tmp_path / "gone")}]
    for options in given:
        message = planned(parquet).write(iter([rows((0, 0))]))
        writer = a_writer(parquet, uncheckedOffsets="false", **options)
        with pytest.raises(InvalidOptionError, match="set the option uncheckedOffsets to true"):
            writer.commit([message], 0)
    assert parquet.rows() == Counter()
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{}\n{"orders":{"0":1}}')
    message = planned(parquet).write(iter([rows((0, 0))]))
    checkpoint = str(tmp_path / "checkpoint")
    a_writer(parquet, uncheckedOffsets="false", checkpointLocation=checkpoint).commit([message], 0)
    assert parquet.rows() == expected(1)


class Brokers:
    """They know a topic `orders` by an id, and one that says none. Logs begin at `earliest`."""

    config = None

    def __init__(self) -> None:
        self.ids: dict[str, UUID | None] = {"orders": UUID(int=1), "old": None}
        self.earliest = 0
        self.asked: list[TopicPartition] = []

    def list_offsets(
        self, partitions: list[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        self.asked += partitions
        return {each: OffsetAndTimestamp(self.earliest, -1, -1) for each in partitions}

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self) -> dict[str, list[int]]:
        return {topic: [0, 1] for topic in self.ids}

    def topic_id(self, topic: str) -> UUID | None:
        return self.ids[topic]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """Of them no records are asked for."""
    known = Brokers()
    monkeypatch.setattr(sink_module, "Cluster", lambda config: known)
    monkeypatch.setattr(sink_module, "marks_of", lambda *asked: {})
    return known


def test_a_recreated_topic_is_refused_where_brokers_are_named(
    table: Table, brokers: Brokers
) -> None:
    asks: dict[str, Any] = {"kafka.bootstrap.servers": "localhost:9092"}
    run(table, [[(0, 0), (0, 1), (1, 0)]], **asks)
    assert table.open().position("nightly").topic_ids == {"orders": UUID(int=1)}
    run(table, [[(0, 2)]], **asks)
    brokers.ids["orders"] = UUID(int=2)
    with pytest.raises(TopicRecreatedError, match="orders: deleted and created again"):
        planned(table, **asks)
    run(table, [[(0, 0), (0, 1)]], failOnDataLoss="false", **asks)
    assert table.rows() == expected(3, 1) + expected(2)
    # Partition 1 of the old topic is forgotten.
    assert table.open().position("nightly").offsets == {TopicPartition("orders", 0): 2}
    run(table, [[(0, 1), (0, 2)]], **asks)
    assert table.rows() == expected(3, 1) + expected(3)


def test_a_query_that_was_overtaken_in_a_topic_created_again_is_refused(
    table: Table, brokers: Brokers
) -> None:
    """Its rows are of the old topic, also where both end at one offset."""
    asks: dict[str, Any] = {"kafka.bootstrap.servers": "localhost:9092"}
    run(table, [[(0, 0), (0, 1)]], **asks)
    message = planned(table, **asks).write(iter([rows((0, 2))]))
    brokers.ids["orders"] = UUID(int=2)
    run(table, [[(0, 0), (0, 1)]], failOnDataLoss="false", **asks)
    with pytest.raises(LoadConflictError, match="found orders created again"):
        a_writer(table, **asks).commit([message], 1)
    assert table.rows() == expected(2) + expected(2)
    run(table, [[(0, 2)]], 1, **asks)
    assert table.rows() == expected(2) + expected(3)


def test_what_retention_took_before_a_query_began_again_is_refused(
    table: Table, brokers: Brokers
) -> None:
    """Without its checkpoint, and told to begin at the beginning."""
    asks: dict[str, Any] = {
        "kafka.bootstrap.servers": "localhost:9092",
        "startingOffsets": "earliest",
    }
    run(table, [[(0, 0), (0, 1)]], **asks)
    run(table, [[(0, 4)]], **asks)
    brokers.earliest = 8
    with pytest.raises(DataLossError, match=r"goes on at offset 5 of orders-0.*from offset 8 on"):
        run(table, [[(0, 9)]], **asks)
    run(table, [[(0, 9)]], failOnDataLoss="false", **asks)
    assert table.offsets("nightly") == {0: 10}
    assert table.rows()[b"nightly 0 9"] == 1


def test_a_topic_that_retention_has_trimmed_is_taken_by_a_new_name(
    table: Table, brokers: Brokers
) -> None:
    brokers.earliest = 5
    asks = {"kafka.bootstrap.servers": "localhost:9092"}
    with pytest.raises(DataLossError, match=r"goes on at offset 5 of orders-0, which is new to it"):
        write(table, [(0, 6)], **asks)
    write(table, [(0, 5), (0, 6)], **asks)
    # Also of the partition that gave no row it is known where it begins, for a load that goes on.
    assert table.offsets("nightly") == {0: 7, 1: 5}
    brokers.earliest = 6
    with pytest.raises(DataLossError, match=r"goes on at offset 5 of orders-1, and"):
        write(table, [(1, 6)], **asks)
    write(table, [(0, 6)], "another", **{**asks, "startingOffsets": '{"orders":{"0":6,"1":8}}'})
    assert table.offsets("another") == {0: 7, 1: 8}
    write(table, [(0, 6)], "third", **{**asks, "startingOffsets": '{"orders":{"0":6}}'})
    assert table.offsets("third") == {0: 7, 1: 6}


def test_a_log_of_which_nobody_knows_where_it_begins_hides_no_loss(table: Table) -> None:
    write(table, [(0, 0), (0, 1)])
    with pytest.raises(DataLossError, match=r"goes on at offset 2 of orders-0.*from offset 4 on"):
        write(table, [(0, 4)], startingOffsets="earliest")


def test_a_topic_that_gave_no_row_keeps_the_id_that_it_had_when_it_was_read(
    parquet: Table, brokers: Brokers, tmp_path: Path
) -> None:
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{}\n{"orders":{"0":7}}')
    asks: dict[str, Any] = {
        "kafka.bootstrap.servers": "localhost:9092",
        "startingOffsets": "earliest",
        "checkpointLocation": str(tmp_path / "checkpoint"),
    }
    message = planned(parquet, **asks).write(iter([rows()]))
    brokers.ids["orders"] = UUID(int=2)
    a_writer(parquet, **asks).commit([message], 0)
    assert parquet.open().position("nightly").topic_ids == {"orders": UUID(int=1)}
    with pytest.raises(TopicRecreatedError, match="orders: deleted and created again"):
        planned(parquet, **asks)


def test_a_topic_that_a_load_goes_on_without_comes_back_with_its_id_alone(
    table: Table, brokers: Brokers
) -> None:
    asks: dict[str, Any] = {"kafka.bootstrap.servers": "localhost:9092"}
    run(table, [[(0, 0), (0, 1)]], **asks)
    target = table.open()
    # As `load` with a pattern and failOnDataLoss=false does.
    stage = target.stage(storable(to_arrow_schema(ROW, timezone="UTC")))
    gone = [OffsetRange("orders", 0, 2, 2)]
    target.commit(
        PendingCommit(
            stage,
            "nightly",
            target.position("nightly"),
            gone,
            [],
            {"orders": deleted(UUID(int=1))},
        )
    )
    with pytest.raises(TopicRecreatedError, match=r"orders: deleted, .*kafka.bootstrap.servers"):
        run(table, [[(0, 0), (0, 1)]])
    assert table.rows() == expected(2)
    brokers.ids["orders"] = UUID(int=2)
    for until in (2, 3):
        run(table, [[(0, offset) for offset in range(until)]], **asks)
    assert table.rows() == expected(2) + expected(3)


def test_a_micro_batch_asks_where_logs_begin_of_its_own_topics_alone(
    parquet: Table, brokers: Brokers
) -> None:
    """Any other may be without a leader, and would be waited for in each of them."""
    brokers.earliest = 3
    for batch in range(3):
        run(parquet, [[(0, 3 + batch)]], batch, **{"kafka.bootstrap.servers": "localhost:9092"})
    assert {each.topic for each in brokers.asked} == {"orders"}
    assert parquet.offsets("nightly") == {0: 6, 1: 3}


def test_only_the_first_task_carries_what_brokers_said(
    parquet: Table, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = planned(parquet, **{"kafka.bootstrap.servers": "localhost:9092"})
    first = writer.write(iter([rows((0, 0))]))
    context = SimpleNamespace(partitionId=lambda: 1, getLocalProperty={}.get)
    monkeypatch.setattr(sink_module, "TaskContext", SimpleNamespace(get=lambda: context))
    second = writer.write(iter([rows((1, 0))]))
    assert first.plan.topic_ids == {"orders": UUID(int=1)}
    assert (second.plan.topic_ids, second.plan.earliest) == ({}, {})


def test_a_backfill_in_pieces_goes_on_where_the_last_one_ended(table: Table) -> None:
    with pytest.raises(DataLossError, match=r"goes on at offset 0 .*from offset 5 on.*loaded_offs"):
        write(table, [(0, 5), (0, 6)])
    assert table.rows() == Counter()
    write(table, [(0, 0), (0, 1), (0, 2)])
    with pytest.raises(DataLossError, match=r"goes on at offset 3 .*from offset 5 on"):
        write(table, [(0, 5), (0, 6)])
    # What lies between was read, and filtered away.
    write(table, [(0, 5), (0, 6)], startingOffsets='{"orders":{"0":3}}')
    with pytest.raises(DataLossError, match=r"goes on at offset 7 .*from offset 8 on"):
        write(table, [(0, 9)], startingOffsets='{"orders":{"0":8}}')
    write(table, [(0, 9)], failOnDataLoss="false")
    assert table.offsets("nightly") == {0: 10}
    assert sum(table.rows().values()) == 6


def test_a_new_name_begins_where_it_is_said_that_the_read_does(table: Table) -> None:
    starts = {"offsets": '{"orders":{"0":5}}', "latest": "latest", "back": "-10 offsets"}
    for name, said in starts.items():
        writer = planned(table, name, startingOffsets=said)
        message = writer.write(iter([rows((0, 6))]))
        a_writer(table, name, kind=LoadWriter, startingOffsets=said).commit([message])
        assert table.offsets(name) == {0: 7}


def test_what_asks_brokers_does_not_travel_to_the_tasks(parquet: Table, brokers: Brokers) -> None:
    secret = {"kafka.sasl.jaas.config": 'x required username="u" password="sesame";'}
    asks: dict[str, Any] = {
        "kafka.bootstrap.servers": "localhost:9092",
        "kafka.sasl.mechanism": "PLAIN",
        **secret,
    }
    assert b"sesame" not in pickle.dumps(a_writer(parquet, **asks))


def test_the_ranges_of_a_commit_tile_each_partition(parquet: Table) -> None:
    run(parquet, [[(0, 4), (0, 7)]])
    run(parquet, [[(0, 9)], [(0, 12)]])
    target: Any = parquet.open()
    log = target._log
    assert [commit.ranges for commit in log] == [
        (OffsetRange("orders", 0, 0, 8),),
        (OffsetRange("orders", 0, 8, 13),),
    ]


def test_what_is_left_out_is_told(parquet: Table, caplog: pytest.LogCaptureFixture) -> None:
    run(parquet, [[(0, 0), (0, 1)]])
    assert not caplog.messages
    run(parquet, [[(0, 0), (0, 1)], [(0, 2)]])
    assert "2 rows are left out: load 'nightly' has gone past their offsets" in caplog.text


def test_a_batch_write_is_loaded_the_same_way(parquet: Table) -> None:
    for _ in range(2):
        writer = pickle.loads(pickle.dumps(a_writer(parquet, kind=LoadWriter)))
        message = writer.write(iter([rows((0, 0)), rows((0, 1))]))
        # Spark commits with the writer that went to the tasks.
        pickle.loads(pickle.dumps(writer)).commit([message])
    assert parquet.rows() == expected(2)


def test_rows_need_the_places_of_records() -> None:
    with pytest.raises(InvalidRowError, match="need the columns topic, partition and offset"):
        check_place_columns(StructType(ROW.fields[:3]))
    fields = [*ROW.fields[:3], StructField("offset", DoubleType())]
    with pytest.raises(
        InvalidRowError, match="'offset' must be that of the records, and is double"
    ):
        check_place_columns(StructType(fields))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "parquet:/x"}, "Option name must be set"),
        ({"name": "nightly", "target": " "}, "Option target must be set"),
        ({"name": "nightly", "target": "/x"}, "does not name a kind of target"),
        ({"name": "n", "target": "sql:x#t", "mode": "upsert"}, "takes neither mode nor key"),
        ({"name": "n", "target": "parquet:/x", "uncheckedOffsets": "no"}, "must be true or false"),
        ({"name": "n", "target": "parquet:/x", "compression": "rar"}, "compression is 'rar'"),
        ({"name": "n", "target": "parquet:/x"}, "kafka.bootstrap.servers must be set on the write"),
        ({"name": "n", "target": "parquet:/x", "kafka.bootstrap.servers": ""}, "servers must be"),
        (
            {
                "name": "n",
                "target": "parquet:/x",
                "uncheckedTopicIds": "true",
                "startingOffsets": "x",
            },
            "startingOffsets is malformed",
        ),
        (
            {"name": "n", "target": "parquet:/x", "targetFileBytes": "ten"},
            "targetFileBytes must be",
        ),
        (
            {"name": "n", "target": "parquet:/x", "uncheckedTopicIds": "true"}
            | {"onSchemaChange": "all"},
            "onSchemaChange is 'all': write one of fail, add, widen",
        ),
    ],
)
def test_options_that_are_missing_or_wrong(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        load_sink_options(options)


def test_an_option_that_nobody_knows_is_named(caplog: pytest.LogCaptureFixture) -> None:
    known = {"target": "parquet:/x", "name": "n", "uncheckedTopicIds": "true"}
    load_sink_options({**known, "nane": "x", "checkpointLocation": "c"})
    assert "Option nane is unknown and ignored. Did you mean name?" in caplog.text
