"""In a process that Spark started, and in one that it did not."""

import pickle
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from pyspark import accumulators
from pyspark.accumulators import SpecialAccumulatorIds, _deserialize_accumulator
from pyspark.sql.profiler import ProfileResultsParamV2

from pyspark_kafkalog import DefaultSource, LoadSink

PROFILER = SpecialAccumulatorIds.SQL_UDF_PROFIER_V2
USERS = 7


@pytest.fixture
def registry(monkeypatch):
    """PySpark's accumulators of a process: a profiler's that has found nothing, and a user's."""
    found = {}
    monkeypatch.setattr(accumulators, "_accumulatorRegistry", found)
    for number in (PROFILER, USERS):
        _deserialize_accumulator(number, {}, ProfileResultsParamV2)
    return found


@pytest.fixture
def in_worker(monkeypatch):
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.parametrize("kind", [DefaultSource, LoadSink])
def test_a_profiler_that_finds_nothing_is_forgotten_by_a_worker(kind, registry, in_worker):
    sent = pickle.dumps(kind({"topic": "a"}))
    assert list(registry) == [USERS]
    _deserialize_accumulator(PROFILER, {}, ProfileResultsParamV2)
    assert pickle.loads(sent).options == {"topic": "a"}
    assert list(registry) == [USERS]


def test_a_profiler_at_work_stays(registry, in_worker):
    sys.setprofile(lambda *_: None)
    try:
        DefaultSource({})
    finally:
        sys.setprofile(None)
    assert set(registry) == {PROFILER, USERS}


def test_what_a_profiler_has_found_stays(registry, in_worker):
    registry[PROFILER].add({"read": {}})
    DefaultSource({})
    assert set(registry) == {PROFILER, USERS}


def test_a_users_process_keeps_all(registry):
    DefaultSource({})
    assert set(registry) == {PROFILER, USERS}
