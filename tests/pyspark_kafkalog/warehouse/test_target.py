"""The names of targets."""

import os

import pytest

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.parquet import ParquetTarget
from pyspark_kafkalog.warehouse.target import open_target


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
def test_a_parquet_target_is_a_directory(target, path):
    opened = open_target(target)
    assert isinstance(opened, ParquetTarget)
    assert opened.path == path


@pytest.mark.parametrize("target", ["delta:/data", "/data/orders", "", "Parquet:/data", "s3://b/k"])
def test_an_unknown_kind_names_the_known_ones(target):
    with pytest.raises(InvalidOptionError, match="for example parquet:/data/orders"):
        open_target(target)


@pytest.mark.parametrize(
    "target",
    [
        *("parquet:", "parquet:s3://bucket/key", "parquet://host/path"),
        *("parquet:hdfs:/data/orders", "parquet:dbfs:/orders"),
    ],
)
def test_a_place_that_is_no_path_is_refused(target):
    with pytest.raises(InvalidOptionError, match="is not a path"):
        open_target(target)


def test_a_place_in_the_home_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    assert repr(open_target("parquet:~/orders")) == "ParquetTarget('/home/ann/orders')"
