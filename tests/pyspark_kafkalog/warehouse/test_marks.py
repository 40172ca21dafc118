"""Logs that have other records than a load has read, where no leader epoch tells."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.source.log_identity import identity_in
from pyspark_kafkalog.source.partitions import log_bounds
from tests.pyspark_kafkalog.warehouse.test_truncation import Log, log, some

__all__ = ["log"]


@pytest.fixture(autouse=True)
def no_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of brokers that tell none, or begin the same one again."""

    def without(*asked: Any) -> Any:
        return replace(log_bounds(*asked), epochs={})

    def noted_without(end: Any) -> Any:
        return replace(identity_in(end), epochs={})

    for module in ("plan", "sink.writer"):
        monkeypatch.setattr(f"pyspark_kafkalog.warehouse.{module}.log_bounds", without)
    monkeypatch.setattr("pyspark_kafkalog.source.checkpoint.identity_in", noted_without)


def test_another_record_in_the_place_of_the_last_one_is_found_out(log: Log) -> None:
    log.write(some("old", 10))
    assert log.load().records == 10
    log.restart(keeps=0.5)
    log.write(some("new", 6))
    for how in ({}, {"dry_run": True}, {"chunk_bytes": 1}):
        with pytest.raises(DataLossError, match=r"orders-0 has another record at offset 9 .* 10"):
            log.load(**how)
    assert log.load(fails=False).records == 1
    log.write(some("last", 1))
    assert log.load().records == 1


def test_a_log_that_is_as_it_was_raises_no_alarm(log: Log) -> None:
    for number in range(3):
        log.write(some(f"{number}:", 5))
        log.restart()
        assert log.load(chunk_bytes=1).records == 5
        assert log.load().records == 0


def test_a_record_that_was_deleted_raises_no_alarm(log: Log) -> None:
    log.write(some("old", 10))
    assert log.load().records == 10
    log.delete_before(10)
    log.write(some("new", 6))
    assert log.load().records == 6


ANOTHER = r"orders-0 has another record at offset 9 .* 10"


@pytest.mark.parametrize(
    ("first", "then"),
    [(Log.load, Log.stream), (Log.stream, Log.append), (Log.append, Log.stream)],
)
def test_a_write_of_rows_keeps_and_compares_them_too(
    log: Log, first: Callable[..., Any], then: Callable[..., Any]
) -> None:
    log.write(some("old", 10))
    first(log)
    log.restart(keeps=0.5)
    log.write(some("new", 6))
    for write in (then, Log.load):
        with pytest.raises(DataLossError, match=ANOTHER):
            write(log)
    assert log.loaded() == Counter(some("old", 10))
    then(log, failOnDataLoss="false")
    log.write(some("last", 1))
    then(log)
    assert log.loaded() == Counter([*some("old", 10), *some("new", 6)[5:], *some("last", 1)])


def test_streams_of_a_log_that_is_as_it_was_raise_no_alarm(log: Log) -> None:
    for number in range(3):
        log.write(some(f"{number}:", 5))
        log.restart()
        log.stream()
        log.write(some(f"{number} again:", 5))
        log.append()
    assert log.load().records == 0
    assert sum(log.loaded().values()) == 30
