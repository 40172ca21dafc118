"""Rules of Iceberg tables that others made: files that would break one are never added."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    Commit,
    PendingCommit,
)
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.targets import iceberg_rules
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from tests.pyspark_kafkalog.warehouse.tables import IcebergTable

ROWS = pa.record_batch(
    {
        "id": pa.array([1, None], pa.int64()),
        "list": pa.array([[{"x": 1}], [None]], pa.list_(pa.struct([("x", pa.int64())]))),
        "map": pa.array([[("k", None)], []], pa.map_(pa.string(), pa.int64())),
    }
)


def schema(required: Sequence[Any] = (), identifiers: Sequence[Any] = ()) -> Schema:
    """The columns of ROWS; `required` are ids of fields."""
    inner = StructType(NestedField(4, "x", LongType(), required=4 in required))
    return Schema(
        NestedField(1, "id", LongType(), required=1 in required),
        NestedField(2, "list", ListType(3, inner, element_required=3 in required)),
        NestedField(
            5, "map", MapType(6, StringType(), 7, LongType(), value_required=7 in required)
        ),
        NestedField(8, "more", LongType(), required=8 in required),
        identifier_field_ids=list(identifiers),
    )


def catalog_of(table: IcebergTable) -> Catalog:
    catalog = load_catalog("kafkalog", uri=table.uri, warehouse=f"file://{table.directory}/lake")
    catalog.create_namespace("lake.raw")
    return catalog


def load(table: IcebergTable) -> Commit:
    target = table.open()
    stage = target.stage(ROWS.schema)
    files = list(write_files(stage, "orders", [ROWS]))
    return target.commit(
        PendingCommit(stage, "nightly", NOWHERE, [OffsetRange("orders", 0, 0, 2)], files)
    )


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (schema(required=[1]), "column id that may not be null"),
        (schema(required=[1], identifiers=[1]), "column id that may not be null"),
        (schema(required=[3]), r"column list\.element that may not be null"),
        (schema(required=[4]), r"column list\.element\.x that may not be null"),
        (schema(required=[7]), r"column map\.value that may not be null"),
        (schema(required=[8]), "column more that may not be null"),
    ],
)
def test_columns_that_may_not_be_null_are_refused(tmp_path: Path, made: Schema, said: str) -> None:
    table = IcebergTable(tmp_path)
    catalog_of(table).create_table("lake.raw.orders", made)
    with pytest.raises(TargetError, match=said):
        load(table)
    assert not list(tmp_path.glob("lake/**/load-*"))


@pytest.mark.parametrize(
    ("column", "transform"),
    [
        ("id", BucketTransform(4)),
        ("id", TruncateTransform(10)),
        ("at", MonthTransform()),
        ("at", YearTransform()),
    ],
)
def test_a_transform_that_was_not_said_is_named(
    tmp_path: Path, column: str, transform: Transform[Any, Any]
) -> None:
    table = IcebergTable(tmp_path)
    columns = Schema(*schema().fields, NestedField(9, "at", TimestamptzType()))
    made = catalog_of(table).create_table("lake.raw.orders", columns)
    with made.update_spec() as update:
        update.add_field(column, transform, "theirs")
    said = f"is partitioned by {transform}({column}), not by nothing: say the same, or"
    with pytest.raises(TargetError, match=re.escape(said)):
        load(table)
    assert not list(tmp_path.glob("lake/**/load-*"))


def test_a_field_that_is_left_over_is_not_to_be_said(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    made = catalog_of(table).create_table(
        "lake.raw.orders", schema(), properties={"format-version": "1"}
    )
    with made.update_spec() as update:
        update.add_identity("id")
    with made.update_spec() as update:
        update.remove_field("id")
        update.add_field("id", BucketTransform(4), "theirs")
    said = "is partitioned by bucket[4](id), not by nothing: say the same, or"
    with pytest.raises(TargetError, match=re.escape(said)):
        load(table)


def test_a_table_is_refused_that_was_partitioned_by_a_column_that_is_gone(tmp_path: Path) -> None:
    """pyiceberg cannot write a manifest of it."""
    table = IcebergTable(tmp_path)
    made = catalog_of(table).create_table(
        "lake.raw.orders",
        Schema(*schema().fields, NestedField(9, "gone", LongType())),
        properties={"format-version": "1"},
    )
    with made.update_spec() as update:
        update.add_identity("gone")
    with made.update_spec() as update:
        update.remove_field("gone")
    with made.update_schema() as columns:
        columns.delete_column("gone")
    with pytest.raises(TargetError, match=r"partitioned by void\(None\), .*: name another table"):
        load(table)


def test_a_load_that_widens_leaves_what_may_not_be_null_as_it_is(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    narrow = Schema(NestedField(1, "id", IntegerType(), required=True))
    catalog_of(table).create_table("lake.raw.orders", narrow)
    with pytest.raises(TargetError, match="column id that may not be null"):
        table.open().stage(ROWS.schema, (), SchemaChange(adds=True, widens=True))
    assert table.iceberg().schema().fields == narrow.fields


def test_encrypted_tables_are_refused(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    properties = {"encryption.key-id": "k"}
    catalog_of(table).create_table("lake.raw.orders", schema(), properties=properties)
    with pytest.raises(TargetError, match=r"is encrypted \(encryption\.key-id\)"):
        load(table)


def test_formats_that_cannot_be_written_are_refused_before_rows_land(tmp_path: Path) -> None:
    """pyiceberg itself makes no such table; a REST catalog may hold one."""
    made = catalog_of(IcebergTable(tmp_path)).create_table("lake.raw.orders", schema())
    fields = made.metadata.model_dump() | {"format-version": 3, "next-row-id": 0}
    made.metadata = TableMetadataV3.model_validate(fields)
    with pytest.raises(TargetError, match="is of format version 3"):
        iceberg_rules.refuse_unfit(made, made.schema(), ROWS.schema, (), "lake.raw.orders")


def test_tables_whose_rules_an_append_cannot_break_take_loads(tmp_path: Path) -> None:
    """A sort order is a wish, and files say whether they follow it; other formats may be mixed."""
    table = IcebergTable(tmp_path)
    made = catalog_of(table).create_table(
        "lake.raw.orders",
        schema(),
        sort_order=SortOrder(SortField(source_id=1, transform=IdentityTransform())),
        properties={"write.format.default": "orc", "commit.manifest-merge.enabled": "true"},
    )
    load(table)
    found = made.refresh().scan().to_arrow()
    assert found.column("id").to_pylist() == [1, None]
    assert found.column("more").to_pylist() == [None, None]
    [task] = made.scan().plan_files()
    assert task.file.sort_order_id is None
