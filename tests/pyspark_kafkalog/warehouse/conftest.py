"""Which targets are tried when: of those that commit alike, one by `make test`.

PostgreSQL is SQLite's second there, and tried by `make test-all` of what all targets promise
(test_every_target) and of what only databases have (test_sql...). All else is `make targets`.
"""

from pathlib import Path

import pytest

from tests.support.kept_workers import keep_workers

# DuckDB is an embedded database beside SQLite, S3 a place beside the folder.
THIRD_KINDS = {"duckdb", "s3"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents and (call := getattr(item, "callspec", None)):
            kinds = {value for value in call.params.values() if isinstance(value, str)}
            if kinds & THIRD_KINDS:
                item.add_marker("long")
            elif "postgresql" in kinds:
                is_of_sql = item.path.stem.startswith(("test_every_target", "test_sql"))
                item.add_marker("slow" if is_of_sql else "long")


@pytest.fixture(autouse=True)
def kept_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_workers(monkeypatch)
