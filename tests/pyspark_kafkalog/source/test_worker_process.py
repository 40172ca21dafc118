"""In a process that Spark started, and in one that it did not."""

import pickle
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
from pyspark import accumulators
from pyspark.accumulators import Accumulator, SpecialAccumulatorIds, _deserialize_accumulator
from pyspark.sql.profiler import ProfileResultsParamV2

from pyspark_kafkalog import DefaultSource, LoadSink

PROFILER = SpecialAccumulatorIds.SQL_UDF_PROFIER_V2
USERS = 7


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[int, Accumulator[Any]]:
    """PySpark's accumulators of a process: a profiler's that has found nothing, and a user's."""
    found: dict[int, Accumulator[Any]] = {}
    monkeypatch.setattr(accumulators, "_accumulatorRegistry", found)
    for number in (PROFILER, USERS):
        _deserialize_accumulator(number, {}, ProfileResultsParamV2)
    return found


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.parametrize("kind", [DefaultSource, LoadSink])
def test_a_profiler_that_finds_nothing_is_forgotten_by_a_worker(
    kind: type[DefaultSource] | type[LoadSink],
    registry: dict[int, Accumulator[Any]],
    in_worker: None,
) -> None:
    sent = pickle.dumps(kind({"topic": "a"}))
    assert list(registry) == [USERS]
    _deserialize_accumulator(PROFILER, {}, ProfileResultsParamV2)
    assert pickle.loads(sent).options == {"topic": "a"}
    assert list(registry) == [USERS]


def test_a_profiler_at_work_stays(registry: dict[int, Accumulator[Any]], in_worker: None) -> None:
    sys.setprofile(lambda *_: None)
    try:
        DefaultSource({})
    finally:
        sys.setprofile(None)
    assert set(registry) == {PROFILER, USERS}


def test_what_a_profiler_has_found_stays(
    registry: dict[int, Accumulator[Any]], in_worker: None
) -> None:
    registry[PROFILER].add({"read": {}})
    DefaultSource({})
    assert set(registry) == {PROFILER, USERS}


def test_a_users_process_keeps_all(registry: dict[int, Accumulator[Any]]) -> None:
    DefaultSource({})
    assert set(registry) == {PROFILER, USERS}
