"""Rules of Delta tables that others made: files that would break one are never added."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    Commit,
    PendingCommit,
)
from pyspark_kafkalog.warehouse.rows.layout import PartitionField
from pyspark_kafkalog.warehouse.targets.delta import DeltaTarget
from pyspark_kafkalog.warehouse.targets.staged_files import write_files

ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "name": pa.array(["a", None]),
        "value": pa.array([b"x", None], pa.binary()),
        "list": pa.array([[{"x": 1}], [None]], pa.list_(pa.struct([("x", pa.int64())]))),
        "map": pa.array([[("k", None)], []], pa.map_(pa.string(), pa.int64())),
    }
)


def field(name: str, kind: object, nullable: Any = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def element(contains_null: Any = True, nullable: Any = True, **metadata: Any) -> dict[str, Any]:
    inner = {"type": "struct", "fields": [field("x", "long", nullable, **metadata)]}
    return {"type": "array", "elementType": inner, "containsNull": contains_null}


def entries(contains_null: bool = True) -> dict[str, Any]:
    shape = {"keyType": "string", "valueType": "long", "valueContainsNull": contains_null}
    return {"type": "map", **shape}


COLUMNS = {
    "id": field("id", "long"),
    "name": field("name", "string"),
    "value": field("value", "binary"),
    "list": field("list", element()),
    "map": field("map", entries()),
}


def make(
    path: Path,
    *columns: dict[str, Any],
    configuration: dict[str, str] | None = None,
    features: list[str] | None = None,
    partition_by: Sequence[Any] = (),
    version: int = 2,
) -> None:
    """A table as another writer's log entry made it."""
    log = Path(path, "_delta_log")
    log.mkdir(parents=True)
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": version}
    if features:
        protocol |= {"minWriterVersion": 7, "writerFeatures": features}
        reader_features = sorted({"deletionVectors", "v2Checkpoint"} & {*features})
        if reader_features:
            protocol |= {"minReaderVersion": 3, "readerFeatures": reader_features}
    fields = list({**COLUMNS, **{column["name"]: column for column in columns}}.values())
    metadata = {
        "id": "made",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(partition_by),
        "configuration": configuration or {},
    }
    actions = [{"protocol": protocol}, {"metaData": metadata}]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


def load(path: str, rows: pa.RecordBatch = ROWS, partition_by: Sequence[Any] = ()) -> Commit:
    target = DeltaTarget(path)
    stage = target.stage(rows.schema, partition_by)
    files = list(write_files(stage, "orders", rows.to_batches()))
    return target.commit(
        PendingCommit(stage, "nightly", NOWHERE, [OffsetRange("orders", 0, 0, len(rows))], files)
    )


INVARIANT = json.dumps({"expression": {"expression": "id > 10"}})


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ([field("id", "long", **{"delta.invariants": INVARIANT})], {}, "invariant on .* id .*> 10"),
        (
            [field("list", element(**{"delta.invariants": INVARIANT}))],
            {},
            r"invariant on the column list\.x",
        ),
        (
            [field("id", "long", **{"delta.generationExpression": "1 + 1"})],
            {},
            r"generated column id \(1 \+ 1\)",
        ),
        (
            [field("more", "long", **{"delta.generationExpression": "id + 1"})],
            {},
            "generated column more",
        ),
        (
            [field("more", "long", **{"delta.identity.start": 1, "delta.identity.step": 1})],
            {"version": 6},
            "identity column more",
        ),
        ([field("more", "long", CURRENT_DEFAULT="7")], {}, r"column more with a default \(7\)"),
        ([field("more", "long", nullable=False)], {}, "a column more that may not be null"),
        (
            [field("name", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(1)")],
            {},
            r"a column name of texts of bounded length \(varchar\(1\)\)",
        ),
        ([field("list", element(contains_null=False))], {}, "an element of list may not be null"),
        ([field("list", element(nullable=False))], {}, r"list\.element\.x may not be null"),
        ([field("map", entries(contains_null=False))], {}, "a value of map may not be null"),
        (
            [],
            {"configuration": {"delta.constraints.big": "id > 10"}},
            r"has constraints \(delta\.constraints\.big = id > 10\)",
        ),
        ([], {"configuration": {"delta.columnMapping.mode": "name"}}, "has column mapping"),
        ([], {"features": ["rowTracking", "appendOnly"]}, "features rowTracking"),
        ([], {"features": ["icebergCompatV2"]}, "features icebergCompatV2"),
        ([], {"version": 8}, "version"),
    ],
)
def test_rules_that_files_would_break_unseen_are_refused_before_rows_land(
    tmp_path: Path,
    columns: list[Any],
    options: dict[str, Any],
    said: str,
) -> None:
    make(tmp_path / "table", *columns, **options)
    with pytest.raises(TargetError, match=said):
        DeltaTarget(f"{tmp_path}/table").stage(ROWS.schema)
    assert [path.name for path in (tmp_path / "table").iterdir()] == ["_delta_log"]


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ([field("id", "long", comment="the id"), field("list", element(comment="one"))], {}),
        ([], {"configuration": {"delta.appendOnly": "true"}}),
        ([], {"configuration": {"delta.enableChangeDataFeed": "true"}, "version": 4}),
        ([], {"features": ["appendOnly", "invariants", "deletionVectors", "v2Checkpoint"]}),
        ([field("id", "long", nullable=False)], {}),
        ([field("more", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(1)")], {}),
    ],
)
def test_tables_whose_rules_an_append_cannot_break_take_loads(
    tmp_path: Path, columns: list[Any], options: dict[str, Any]
) -> None:
    make(tmp_path / "table", *columns, **options)
    load(f"{tmp_path}/table")
    assert DeltaTable(f"{tmp_path}/table").count() == 2


@pytest.mark.parametrize("name", ["name", "value"])
def test_nulls_are_not_committed_where_none_may_be(tmp_path: Path, name: str) -> None:
    """Of values there are no statistics, so they are looked at."""
    make(tmp_path / "table", {**COLUMNS[name], "nullable": False})
    with pytest.raises(TargetError, match=f"column {name} .* may not be null, and 1 of 2 rows"):
        load(f"{tmp_path}/table")
    assert DeltaTable(f"{tmp_path}/table").version() == 0
    assert not list((tmp_path / "table").glob("load-*/*"))
    load(f"{tmp_path}/table", ROWS.slice(0, 1))
    assert DeltaTable(f"{tmp_path}/table").count() == 1


def test_nulls_are_not_committed_as_partitions_either(tmp_path: Path) -> None:
    make(tmp_path / "table", {**COLUMNS["name"], "nullable": False}, partition_by=["name"])
    with pytest.raises(TargetError, match=r"column name .* may not be null"):
        load(f"{tmp_path}/table", partition_by=[PartitionField("name")])
    load(f"{tmp_path}/table", ROWS.slice(0, 1), partition_by=[PartitionField("name")])
    assert DeltaTable(f"{tmp_path}/table").count() == 1
