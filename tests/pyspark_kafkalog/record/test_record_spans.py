"""record_spans, compiled and plain, against kafka-python."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError
from kafka.record.memory_records import MemoryRecords

from pyspark_kafkalog.record import record_spans as compiled
from pyspark_kafkalog.record.batch import HEADER_BYTES
from pyspark_kafkalog.record.record_spans import RecordSpan
from tests.support.records import NOW_MS, batch_of

SOURCE = Path(__file__).parents[3] / "pyspark_kafkalog" / "record" / "record_spans.py"


def plain_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plain_record_spans", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


record_spans = pytest.mark.parametrize(
    "spans", [compiled.record_spans, plain_module().record_spans]
)
Spans: TypeAlias = Callable[[bytes | bytearray, int], Iterator[RecordSpan]]
OPTIONAL = st.none() | st.binary(max_size=200)


@record_spans
@given(rows=st.lists(st.tuples(OPTIONAL, OPTIONAL), min_size=1, max_size=30))
def test_finds_what_kafka_python_finds(
    spans: Spans, rows: list[tuple[bytes | None, bytes | None]]
) -> None:
    batch = batch_of(rows)
    records = batch[HEADER_BYTES:]
    found = list(spans(records, len(rows)))
    expected = list(MemoryRecords(batch).next_batch())
    assert [span.offset_delta for span in found] == [record.offset for record in expected]
    assert [NOW_MS + span.timestamp_delta for span in found] == [r.timestamp for r in expected]
    assert [span.has_value for span in found] == [r.value is not None for r in expected]
    keys = [None if s.key_end < 0 else records[s.key_start : s.key_end] for s in found]
    assert keys == [record.key for record in expected]
    assert [span.end for span in found[:-1]] == [span.start for span in found[1:]]
    assert found[-1].end == len(records)


@record_spans
@given(rows=st.lists(st.tuples(OPTIONAL, OPTIONAL), min_size=1, max_size=5), data=st.data())
def test_damaged_bytes_are_found_or_stay_within_bounds(
    spans: Spans, rows: list[tuple[bytes | None, bytes | None]], data: st.DataObject
) -> None:
    records = bytearray(batch_of(rows)[HEADER_BYTES:])
    position = data.draw(st.integers(0, len(records) - 1))
    records[position] ^= data.draw(st.integers(1, 255))
    try:
        for span in spans(records, len(rows)):
            assert 0 <= span.start < span.offset_position <= span.end <= len(records)
            assert span.key_end < 0 or span.start < span.key_start <= span.key_end <= span.end
    except CorruptRecordError:
        pass


@record_spans
@pytest.mark.parametrize("count", [0, 1, 3, 10**9])
def test_a_wrong_count_is_refused(spans: Spans, count: int) -> None:
    records = batch_of(2)[HEADER_BYTES:]
    with pytest.raises(CorruptRecordError):
        list(spans(records, count))


@record_spans
def test_no_records_in_no_bytes(spans: Spans) -> None:
    assert list(spans(b"", 0)) == []


@record_spans
def test_offsets_that_come_twice_are_refused(spans: Spans) -> None:
    one = bytes(batch_of(1)[HEADER_BYTES:])
    assert len(list(spans(one, 1))) == 1
    with pytest.raises(CorruptRecordError, match="record 1 of a batch has offset delta 0"):
        list(spans(one + one, 2))
