"""What the arguments of a load mean, and what of them is refused before anybody is asked."""

import inspect
from typing import Any

import pytest

from pyspark_kafkalog import load
from pyspark_kafkalog.client.config import Isolation
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.offsets import RelativeLimit
from pyspark_kafkalog.warehouse.options import LoadArguments, LoadOptions, load_options
from pyspark_kafkalog.warehouse.rows.dead_letters import BesideLetters
from pyspark_kafkalog.warehouse.rows.layout import PLAIN

OPTIONS = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "orders"}


def wanted(options: dict[str, str] | None = None, **arguments: Any) -> LoadOptions:
    return load_options(
        "nightly", "parquet:/never/made", {**OPTIONS, **(options or {})}, **arguments
    )


def test_what_is_not_said_is_as_load_says_it() -> None:
    given = inspect.signature(load).parameters
    said: Any = {name: given[name].default for name in LoadArguments.__annotations__}
    assert wanted() == wanted(**said)
    assert wanted().layout == PLAIN


def test_a_warehouse_keeps_committed_records_unless_it_is_told_otherwise() -> None:
    assert wanted().source.client.isolation_level == Isolation.READ_COMMITTED
    told = wanted({"kafka.Isolation.Level": "read_uncommitted"})
    assert told.source.client.isolation_level == Isolation.READ_UNCOMMITTED


def test_bounds_are_numbers_of_bytes() -> None:
    bounded = wanted(max_bytes="1m", chunk_bytes=5, target_file_bytes="2MiB")
    assert (bounded.max_bytes, bounded.chunk_bytes) == (1 << 20, 5)
    assert bounded.layout.file_bytes == 2 << 20


def test_a_start_is_that_of_the_read_and_known_as_said() -> None:
    assert not wanted({"startingOffsets": "-10 minutes"}).has_start
    told = wanted(starting="-10 minutes")
    assert told.has_start
    assert isinstance(told.source.starting, RelativeLimit)


def test_dead_letters_are_beside_what_is_read() -> None:
    told = wanted(value_format="string", on_error="deadletter")
    assert told.has_dead_letters
    assert isinstance(told.source.subscription, BesideLetters)
    assert not wanted(value_format="string", on_error="null").has_dead_letters


def test_headers_are_a_column_where_they_are_asked_for() -> None:
    assert "headers" not in wanted().reading().columns
    assert "headers" in wanted({"includeHeaders": "true"}).reading().columns


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"chunk_bytes": "ten"}, "chunk_bytes must be a number of bytes"),
        ({"max_bytes": "-1"}, "max_bytes"),
        ({"target_file_bytes": 7}, "target_file_bytes is 7"),
        ({"starting": "soon"}, "no place where a load can begin"),
        ({"until": "earliest"}, "endingOffsets cannot be earliest"),
        ({"partition_by": "day"}, "day"),
        ({"sort_by": "kee"}, "kee"),
        ({"transform": "f"}, "give a function"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        wanted(**arguments)
