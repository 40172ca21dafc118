"""Lag from Spark's progress events, as far as they are about topics."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_kafkalog.source.lag_listener import LagListener, QueryLag


def progress(
    *sources: tuple[object, object],
    name: str | None = "landing",
    batch_id: int = 3,
) -> Any:
    documents = [
        SimpleNamespace(endOffset=json.dumps(end), latestOffset=json.dumps(latest))
        for end, latest in sources
    ]
    return SimpleNamespace(
        progress=SimpleNamespace(name=name, id="an-id", batchId=batch_id, sources=documents)
    )


def test_what_lies_between_the_batch_and_the_end_of_the_topics_is_the_lag() -> None:
    told: list[QueryLag] = []
    LagListener(told.append).onQueryProgress(
        progress(
            ({"orders": {"0": 5, "1": 7}}, {"orders": {"0": 9, "1": 7, "2": 4}}),
            ({"payments": {"0": 1}}, {"payments": {"0": 2}}),
        )
    )
    lag = {("orders", 0): 4, ("orders", 1): 0, ("orders", 2): 4, ("payments", 0): 1}
    assert told == [QueryLag("landing", 3, lag)]
    assert str(told[0]) == "query landing, batch 3: 9 offsets behind"


def test_other_sources_have_no_lag() -> None:
    told: list[QueryLag] = []
    listener = LagListener(told.append)
    listener.onQueryProgress(progress((17, 18), ({"logOffset": 1}, {"logOffset": 2}), (None, None)))
    listener.onQueryProgress(progress())
    assert told == []


def test_what_is_told_may_fail_and_a_query_without_a_name_has_its_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(lag: QueryLag) -> None:
        raise RuntimeError(f"no room for {lag}")

    source = ({"orders": {"0": 5}}, {"orders": {"0": 9}})
    LagListener(fail).onQueryProgress(progress(source, name=None))
    assert "no room for query an-id, batch 3: 4 offsets behind" in caplog.text
    with caplog.at_level("INFO"):
        LagListener().onQueryProgress(progress(source))
    assert "query landing, batch 3: 4 offsets behind" in caplog.text
