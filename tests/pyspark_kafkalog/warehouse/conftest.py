"""Which targets are tried when: of those that commit alike, one by `make test`.

What all targets promise (test_every_target) is tried of the others by `make test-slow`, and all
else by `make targets`.
"""

from pathlib import Path

import pytest

from tests.support.kept_workers import keep_workers

# DuckDB is an embedded database beside SQLite, S3 a place beside the folder.
SECOND_KINDS = {"duckdb", "s3"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents and (call := getattr(item, "callspec", None)):
            kinds = {value for value in call.params.values() if isinstance(value, str)}
            if kinds & SECOND_KINDS:
                item.add_marker("slow" if item.path.stem == "test_every_target" else "long")


@pytest.fixture(autouse=True)
def kept_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_workers(monkeypatch)
