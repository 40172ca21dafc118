"""What a target tells of its loads: their last commits, where they go on, what was given up."""

from pathlib import Path
from uuid import UUID

import pytest
from deltalake import DeltaTable
from kafka.structs import TopicPartition

from pyspark_kafkalog import forget, load_status
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import PendingCommit, now_ms
from tests.pyspark_kafkalog.warehouse.rows_loader import load, write_rows
from tests.pyspark_kafkalog.warehouse.tables import EVERY_KIND, KINDS, Table, table_of

ODD = "a name: with/odd, 'signs\" %41 ü"


@pytest.fixture(params=EVERY_KIND)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "the place"
    directory.mkdir()
    return table_of(request.param, directory)


def land(table: Table, name: str, *ranges: OffsetRange) -> None:
    """Loads these ranges, whatever lies before them, of a topic with an id."""
    target = table.open()
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, name, piece)]
    last = target.position(name)
    target.commit(PendingCommit(stage, name, last, ranges, files, {"orders": UUID(int=7)}))


def test_a_target_tells_of_its_loads(table: Table) -> None:
    assert load_status(table.name) == []
    assert list(table.directory.iterdir()) == []
    before_ms = now_ms()
    load(table.open(), "nightly", 5)
    first_lost, second_lost = (OffsetRange("orders", 0, *ends) for ends in ((5, 7), (9, 12)))
    land(table, "nightly", OffsetRange("orders", 0, 7, 9), OffsetRange("orders", 1, 5, 6))
    land(table, "nightly", OffsetRange("orders", 0, 12, 13))
    commit = load(table.open(), ODD, 3)
    assert commit is not None
    odd, nightly = load_status(table.name)
    assert (odd.name, nightly.name) == (ODD, "nightly")
    assert nightly.position == table.open().position("nightly")
    assert nightly.position.offsets == {
        TopicPartition("orders", 0): 13,
        TopicPartition("orders", 1): 6,
    }
    assert odd.last is not None
    assert odd.last.commit_id == commit.commit_id
    assert (odd.gaps, nightly.gaps) == ((), (second_lost,))
    assert nightly.last is not None
    assert before_ms <= nightly.last.committed_at_ms <= odd.last.committed_at_ms <= now_ms()
    (alone,) = load_status(table.name, "nightly", all_gaps=True)
    assert alone.last == nightly.last
    assert alone.gaps == (second_lost, first_lost)


def test_a_load_that_was_forgotten_is_none(table: Table) -> None:
    load(table.open(), "nightly", 5)
    load(table.open(), "hourly", 3)
    forget(table.name, "nightly")
    assert [each.name for each in load_status(table.name)] == ["hourly"]
    with pytest.raises(InvalidOptionError, match="no commit of load 'nightly'\\. It knows hourly"):
        load_status(table.name, "nightly")
    load(table.open(), "nightly", 2)
    assert [each.name for each in load_status(table.name)] == ["hourly", "nightly"]


def test_a_history_that_was_cut_off(tmp_path: Path) -> None:
    """As Delta's own cleaning of its log does: the place is kept, the commit's time is not."""
    table = KINDS["delta"](tmp_path)
    load(table.open(), "nightly", 5)
    DeltaTable(tmp_path / "table").create_checkpoint()
    load(table.open(), "hourly", 3)
    for entry in (tmp_path / "table/_delta_log").glob("*.json"):
        if int(entry.stem) <= 1:
            entry.unlink()
    nightly = load_status(table.name)[1]
    assert (nightly.name, nightly.last, nightly.gaps) == ("nightly", None, ())
    assert nightly.position.offsets[TopicPartition("orders", 1)] == 5
