"""Tables that their owners took back to an earlier version: what they lack is not left out unseen.

Their offsets stay where they were, as it takes no property and no txn back.
"""

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition
from pyiceberg.catalog import load_catalog

from pyspark_kafkalog import forget, load_status, loaded_offsets
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import PendingCommit
from pyspark_kafkalog.warehouse.targets import delta_history
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace, open_place
from tests.pyspark_kafkalog.warehouse.rows_loader import load, plan, write_rows
from tests.pyspark_kafkalog.warehouse.tables import (
    DeltaLakeTable,
    IcebergTable,
    Table,
    expected_rows,
)
from tests.support.patience import wait_until

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
GONE = r"was (restored|rolled back).* 'nightly' .*forget"


class Delta(DeltaLakeTable):
    def version(self) -> Any:
        return self.delta().version()

    def take_back(self, version: Any) -> None:
        self.delta().restore(version)

    def rewrite(self) -> None:
        self.delta().optimize.compact()


class Iceberg(IcebergTable):
    def _table(self) -> Any:
        return load_catalog("kafkalog", uri=self.uri).load_table("lake.raw.orders")

    def version(self) -> Any:
        return self._table().current_snapshot().snapshot_id

    def take_back(self, version: Any) -> None:
        self._table().manage_snapshots().set_current_snapshot(version).commit()

    def rewrite(self) -> None:
        table = self._table()
        table.overwrite(table.scan().to_arrow())


@pytest.fixture(params=[Delta, Iceberg])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path)


def restart(table: Table, *offsets: int) -> None:
    """Forgets the load and loads up to 7 from these offsets."""
    assert forget(table.name, "nightly")
    target = table.open()
    stage = target.stage(row_schema())
    starts = zip((ORDERS_0, ORDERS_1), offsets, strict=True)
    ranges = [OffsetRange.of(each, start, 7) for each, start in starts]
    files = [file for piece in ranges for file in write_rows(stage, "nightly", piece)]
    target.commit(PendingCommit(stage, "nightly", target.position("nightly"), ranges, files))


def check_noticed(table: Table, advice: str, *offsets: int) -> None:
    """The next load is refused with `advice`, and from these offsets the table becomes whole."""
    with pytest.raises(TargetError, match=GONE) as raised:
        load(table.open(), "nightly", 7)
    assert advice in str(raised.value)
    restart(table, *offsets)
    assert table.rows() == expected_rows("nightly", 7)


def test_rows_that_went_are_not_left_out_in_silence(table: Any) -> None:
    load(table.open(), "nightly", 3)
    load(table.open(), "hourly", 2)
    version = table.version()
    load(table.open(), "nightly", 5)
    table.rewrite()
    table.take_back(version)
    for attempt in (
        lambda: load(table.open(), "nightly", 7),
        lambda: table.open().position("nightly", read_only=True),
        lambda: loaded_offsets(table.name, "nightly"),
        lambda: load_status(table.name, "nightly"),
    ):
        with pytest.raises(TargetError, match=GONE) as raised:
            attempt()
    assert '"orders": {"0": 3, "1": 3}' in str(raised.value)
    assert '"orders": {"0": 5, "1": 5}' in str(raised.value)
    load(table.open(), "hourly", 4)
    assert table.rows() == expected_rows("nightly", 3) + expected_rows("hourly", 4)
    restart(table, 3, 3)
    assert table.rows() == expected_rows("nightly", 7) + expected_rows("hourly", 4)
    assert load(table.open(), "nightly", 7) is None


def test_who_does_without_them_says_so(table: Any) -> None:
    load(table.open(), "nightly", 3)
    version = table.version()
    load(table.open(), "nightly", 5)
    table.take_back(version)
    restart(table, 5, 5)
    assert table.rows() == expected_rows("nightly", 3) + expected_rows("nightly", 7, start=5)
    assert load(table.open(), "nightly", 7) is None


def test_a_table_that_has_its_newest_version_again_goes_on(table: Any) -> None:
    load(table.open(), "nightly", 3)
    version = table.version()
    load(table.open(), "nightly", 5)
    newest = table.version()
    table.take_back(version)
    with pytest.raises(TargetError, match=GONE):
        load(table.open(), "nightly", 7)
    table.take_back(newest)
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


def test_a_version_that_has_all_of_a_load_goes_on(table: Any) -> None:
    load(table.open(), "nightly", 3)
    version = table.version()
    load(table.open(), "hourly", 3)
    table.take_back(version)
    load(table.open(), "nightly", 7)
    table.rewrite()
    load(table.open(), "nightly", 9)
    assert table.rows() == expected_rows("nightly", 9)


def test_a_table_that_is_taken_back_while_rows_land_is_noticed(table: Any) -> None:
    load(table.open(), "nightly", 3)
    version = table.version()
    load(table.open(), "nightly", 5)
    target = table.open()
    last, ranges = plan(target, "nightly", 7)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, "nightly", piece)]
    table.take_back(version)
    with pytest.raises(TargetError, match=GONE):
        target.commit(PendingCommit(stage, "nightly", last, ranges, files))
    assert table.rows() == expected_rows("nightly", 3)


def test_a_delta_table_is_restored_to_before_all_loads(tmp_path: Path) -> None:
    table = Delta(tmp_path)
    load(table.open(), "nightly", 3)
    table.take_back(0)
    with pytest.raises(TargetError, match=f"{GONE}.* with no start"):
        load(table.open(), "nightly", 7)
    restart(table, 0, 0)
    assert table.rows() == expected_rows("nightly", 7)


@pytest.mark.parametrize("is_spark", [False, True])
def test_a_delta_table_is_restored_to_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_spark: bool
) -> None:
    """Which deltalake notes in milliseconds, and Spark in the zone of its session."""
    table = Delta(tmp_path)
    load(table.open(), "nightly", 3)
    committed_at = delta_history.commit_info(open_place(f"{tmp_path}/table"), 1)["timestamp"] / 1000
    wait_until(lambda: time.time() > committed_at + 0.002, "another millisecond", pause_s=0.001)
    load(table.open(), "nightly", 5)
    table.delta().restore(datetime.fromtimestamp(committed_at, timezone.utc))
    if is_spark:
        said = delta_history.commit_info

        def as_spark_says(place: TablePlace, version: int) -> dict[str, Any]:
            info = dict(said(place, version))
            if info.get("operation") == "RESTORE":
                info["operationParameters"] = {"timestamp": "2026-11-01 00:00:00.0"}
            return info

        monkeypatch.setattr(delta_history, "commit_info", as_spark_says)
    with pytest.raises(TargetError, match=GONE) as raised:
        load(table.open(), "nightly", 7)
    left = "what the table does not have" if is_spark else '{"orders": {"0": 3, "1": 3}}'
    assert f"at {left}" in str(raised.value)


def test_a_delta_table_is_replaced_by_a_clone(tmp_path: Path) -> None:
    """As of its backup, by Spark, whose entry says nothing of versions of this table."""
    table = Delta(tmp_path)
    load(table.open(), "nightly", 3)
    load(table.open(), "nightly", 5)
    table.delta().restore(1)
    entry = tmp_path / f"table/_delta_log/{3:020}.json"
    asked = {"source": "file:/backup", "sourceVersion": "1", "isShallow": "true"}
    actions = map(json.loads, entry.read_text().splitlines())
    as_spark_says = [
        {"commitInfo": {**each["commitInfo"], "operation": "CLONE", "operationParameters": asked}}
        if "commitInfo" in each
        else each
        for each in actions
    ]
    entry.write_text("\n".join(map(json.dumps, as_spark_says)))
    with pytest.raises(TargetError, match=GONE):
        load(table.open(), "nightly", 7)
    restart(table, 3, 3)
    assert table.rows() == expected_rows("nightly", 7)


def test_an_owner_who_has_moved_an_iceberg_load_is_believed(tmp_path: Path) -> None:
    table = Iceberg(tmp_path)
    load(table.open(), "nightly", 3)
    version = table.version()
    load(table.open(), "nightly", 5)
    table.take_back(version)
    iceberg = load_catalog("kafkalog", uri=table.uri).load_table("lake.raw.orders")
    with iceberg.transaction() as transaction:
        transaction.set_properties({"kafkalog.nightly.offsets": '{"orders": {"0": 3, "1": 3}}'})
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


def test_an_iceberg_table_does_not_forget_with_its_snapshots_that_it_was_rolled_back(
    tmp_path: Path,
) -> None:
    """Which expire once nothing leads to them."""
    table = Iceberg(tmp_path)
    load(table.open(), "nightly", 3)
    version = table.version()
    load(table.open(), "nightly", 5)
    newest = table.version()
    table.take_back(version)
    iceberg = load_catalog("kafkalog", uri=table.uri).load_table("lake.raw.orders")
    iceberg.maintenance.expire_snapshots().by_id(newest).commit()
    for _ in range(2):
        with pytest.raises(TargetError, match=GONE) as raised:
            load(table.open(), "nightly", 7)
        load(table.open(), "hourly", 4)
    assert '"orders": {"0": 3, "1": 3}' in str(raised.value)
    restart(table, 3, 3)
    load(table.open(), "nightly", 8)
    assert table.rows() == expected_rows("nightly", 8) + expected_rows("hourly", 4)


def test_what_an_expired_snapshot_brought_is_not_to_be_loaded_again(tmp_path: Path) -> None:
    """Of a partition that no kept snapshot tells of."""
    table = Iceberg(tmp_path)
    load(table.open(), "nightly", 3)
    first = table.version()
    load_one(table, 5)
    version = table.version()
    load_one(table, 6)
    expire(table, first)
    table.take_back(version)
    check_noticed(table, 'at {"orders": {"0": 5, "1": 3}}', 5, 3)


def test_of_what_expired_on_either_side_nobody_can_tell(tmp_path: Path) -> None:
    table = Iceberg(tmp_path)
    load(table.open(), "nightly", 3)
    first = table.version()
    load_one(table, 5)
    version = table.version()
    load_one(table, 6)
    last = table.version()
    table.take_back(version)
    expire(table, first, last)
    with pytest.raises(TargetError, match=GONE) as raised:
        load(table.open(), "nightly", 7)
    assert 'at {"orders": {"0": 5}}, and of orders-1 at what the table' in str(raised.value)


def test_a_table_that_was_rewritten_since_it_was_rolled_back_is_noticed(tmp_path: Path) -> None:
    """Also where the snapshot expired that it went back to."""
    table = Iceberg(tmp_path)
    load(table.open(), "nightly", 2)
    first = table.version()
    load(table.open(), "nightly", 3)
    version = table.version()
    load(table.open(), "nightly", 5)
    table.take_back(version)
    table.rewrite()
    expire(table, first, version)
    check_noticed(table, "at what the table does not have", 3, 3)


def test_a_table_that_went_back_to_a_tag_is_noticed(tmp_path: Path) -> None:
    """Though what was between the tag and the load's last snapshot has expired."""
    table = Iceberg(tmp_path)
    load(table.open(), "nightly", 3)
    version = table.version()
    iceberg = load_catalog("kafkalog", uri=table.uri).load_table("lake.raw.orders")
    iceberg.manage_snapshots().create_tag(version, "release").commit()
    load(table.open(), "nightly", 4)
    between = table.version()
    load(table.open(), "nightly", 5)
    expire(table, between)
    table.take_back(version)
    check_noticed(table, 'at {"orders": {"0": 3, "1": 3}}', 3, 3)


def test_a_commit_of_no_rows_takes_none_away(tmp_path: Path) -> None:
    table = Iceberg(tmp_path)
    load(table.open(), "nightly", 3)
    version = table.version()
    target = table.open()
    here = [OffsetRange("orders", partition, 3, 3) for partition in (0, 1)]
    stage = target.stage(row_schema())
    target.commit(PendingCommit(stage, "nightly", target.position("nightly"), here, []))
    table.take_back(version)
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


def load_one(table: Table, until_offset: int) -> None:
    """Of partition 0 alone."""
    target = table.open()
    last, ranges = plan(target, "nightly", until_offset)
    stage = target.stage(row_schema())
    target.commit(
        PendingCommit(stage, "nightly", last, ranges[:1], write_rows(stage, "nightly", ranges[0]))
    )


def expire(table: IcebergTable, *versions: int) -> None:
    iceberg = load_catalog("kafkalog", uri=table.uri).load_table("lake.raw.orders")
    iceberg.maintenance.expire_snapshots().by_ids(list(versions)).commit()
