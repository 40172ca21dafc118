"""The names of targets."""

import os
import sys

import pytest

from pyspark_kafkalog.errors import InvalidOptionError, MissingExtraError
from pyspark_kafkalog.warehouse.targets.parquet import ParquetTarget
from pyspark_kafkalog.warehouse.targets.target import open_target


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("parquet:/data/orders", "/data/orders"),
        ("parquet:/data/with spaces/o:r", "/data/with spaces/o:r"),
        ("parquet:///data/orders", "/data/orders"),
        ("parquet:file:///data/orders", "/data/orders"),
        ("parquet:orders", os.path.join(os.getcwd(), "orders")),
        ("parquet:./o:r", os.path.join(os.getcwd(), "o:r")),
        ("parquet:/data/orders/", "/data/orders"),
    ],
)
def test_a_parquet_target_is_a_directory(target: str, path: str) -> None:
    opened = open_target(target)
    assert isinstance(opened, ParquetTarget)
    assert str(opened) == f"parquet:{path}"


@pytest.mark.parametrize("target", ["hive:/data", "/data/orders", "", "Parquet:/data", "s3://b/k"])
def test_an_unknown_kind_names_the_known_ones(target: str) -> None:
    with pytest.raises(InvalidOptionError, match="for example parquet:/data/orders"):
        open_target(target)


@pytest.mark.parametrize(
    "target",
    [
        *("parquet:", "delta:hdfs:/data/orders", "parquet://host/path"),
        *("parquet:hdfs:/data/orders", "parquet:dbfs:/orders"),
    ],
)
def test_a_place_that_is_no_path_is_refused(target: str) -> None:
    with pytest.raises(InvalidOptionError, match="is not a path"):
        open_target(target)


@pytest.mark.parametrize(
    "target",
    [
        *("delta:s3://KEY:s3cret@bucket/x", "parquet://ann:s3cret@host/x"),
        *("iceberg:postgresql://ann:s3cret@host/db", "iceberg:a.b?s3cret"),
    ],
)
def test_what_may_hold_a_password_is_not_quoted(target: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        open_target(target)
    assert "s3cret" not in str(caught.value)


def test_a_place_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert repr(open_target("parquet:~/orders")) == "ParquetTarget('/home/ann/orders')"


def test_a_delta_target_is_a_directory() -> None:
    assert str(open_target("delta:/data/orders")) == "delta:/data/orders"
    assert str(open_target("delta:orders")) == f"delta:{os.getcwd()}/orders"
    with pytest.raises(InvalidOptionError, match="follows delta: in the target is not a path"):
        open_target("delta:dbfs:/orders")
    assert str(open_target("delta:s3://bucket/key?region=x")) == "delta:s3://bucket/key"
    with pytest.raises(InvalidOptionError, match="takes '%41' in a path for something else"):
        open_target("delta:s3://bucket/%41")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("delta:/data/a%20b", "deltalake takes '%20'"),
        ("delta:/data/a\\b", "deltalake takes"),
        ("delta:/data/a\nb", "deltalake takes"),
        ("iceberg:a.b?uri=sqlite:////c.db&warehouse=file:///data/a%23b", "follows '#' in a URL"),
        ("iceberg:a.b?uri=sqlite:////c.db&warehouse=file:///data/a?b", "'[?]' in a URL"),
    ],
)
def test_a_path_that_a_format_reads_in_another_way_is_refused(target: str, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        open_target(target).position("nightly", read_only=True)


@pytest.mark.parametrize(
    ("target", "module"),
    [
        ("delta:/data/orders", "deltalake"),
        ("iceberg:lake.orders", "pyiceberg.catalog"),
        ("sql:sqlite:///x.db#orders", "sqlalchemy"),
    ],
)
def test_a_missing_extra_is_named(
    target: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = target.partition(":")[0]
    monkeypatch.delitem(sys.modules, f"pyspark_kafkalog.warehouse.targets.{kind}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    library = module.partition(".")[0]
    wanted = rf"^target {kind}: needs {library}, which.*pip install 'pyspark-kafkalog\[{kind}\]'"
    with pytest.raises(MissingExtraError, match=wanted):
        open_target(target)


def test_an_unknown_kind_does_not_show_what_may_be_a_password() -> None:
    with pytest.raises(InvalidOptionError, match="target 'postgresql' does not name") as raised:
        open_target("postgresql://ann:secret@host/db#orders")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "place", ["", "orders", ".orders", "lake.", "lake..orders", "lake.orders?uri", "?uri=x"]
)
def test_an_iceberg_target_names_namespace_and_table(place: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"write NAMESPACE\.TABLE\?NAME=VALUE"):
        open_target(f"iceberg:{place}")
