"""What the readers of a transform of DataFrames leave for the driver. With Spark:
tests/spark/test_load.py."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.source.options import batch_options
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse import landing
from pyspark_kafkalog.warehouse.engines import dataframe
from pyspark_kafkalog.warehouse.engines.dataframe import read_counts
from pyspark_kafkalog.warehouse.landing import Reading

ASKED = {"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "orders"}
WHOLE = OffsetRange("orders", 0, 0, 10)


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """One attempt of a task that reads WHOLE, of which offsets before `begins` are gone."""
    monkeypatch.setattr(dataframe, "kept_cluster", lambda _: nullcontext())

    def run(begins: int = 0, fail_on_data_loss: bool = False) -> None:
        def read(*arguments: Any) -> Iterator[pa.RecordBatch]:
            *_, on_gap, _epoch = arguments
            if begins:
                on_gap(replace(WHOLE, until_offset=begins))
            count = WHOLE.until_offset - begins
            columns = [pa.nulls(count, field.type) for field in row_schema(DEFAULT_COLUMNS)]
            offsets = pa.array(range(begins, WHOLE.until_offset), pa.int64())
            columns[DEFAULT_COLUMNS.index("offset")] = offsets
            yield pa.RecordBatch.from_arrays(columns, schema=row_schema(DEFAULT_COLUMNS))

        monkeypatch.setattr(landing, "read_range", read)
        options = batch_options({**ASKED, "failondataloss": str(fail_on_data_loss).lower()})
        reading = Reading(options, DEFAULT_COLUMNS)
        reader = dataframe._Reader(reading, reading.schema(), [(WHOLE,)], str(tmp_path))
        rows = sum(batch.num_rows for batch in reader.read(InputPartition((WHOLE,))))
        assert rows == WHOLE.until_offset - begins

    return run


def test_a_gap_counts_where_every_attempt_found_it(
    attempt: Callable[..., None], tmp_path: Path
) -> None:
    attempt(4)
    attempt(4)
    assert read_counts(str(tmp_path)) == (0, [OffsetRange("orders", 0, 0, 4)])


@pytest.mark.parametrize("begins", [(0, 4), (4, 0), (4, 6)])
def test_whose_rows_count_is_not_guessed_where_attempts_found_other_offsets(
    attempt: Callable[..., None], tmp_path: Path, begins: tuple[int, int]
) -> None:
    for each in begins:
        attempt(each)
    with pytest.raises(KafkalogError, match=r"read twice.*run the load again"):
        read_counts(str(tmp_path))


def test_a_reader_that_loses_nothing_or_fails_leaves_nothing(
    attempt: Callable[..., None], tmp_path: Path
) -> None:
    attempt(fail_on_data_loss=True)
    assert list(tmp_path.glob("*.read")) == []
    assert read_counts(str(tmp_path)) == (0, [])
