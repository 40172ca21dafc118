"""Which rows a target has already, by topic, partition and offset."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import InvalidRowError
from pyspark_kafkalog.warehouse.sink.row_places import NewRows, Span

PLACES = st.tuples(st.sampled_from(["orders", "payments"]), st.integers(0, 2), st.integers(0, 9))
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["orders", "payments"]), st.integers(0, 2))


def a_batch(rows: list[Any]) -> Any:
    topics, partitions, offsets = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.record_batch(
        {
            "number": pa.array(range(len(rows)), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array(partitions, pa.int64()),
        }
    )


def spans(rows: list[tuple[str, int, int]]) -> dict[Any, Span]:
    found: dict[Any, Any] = {}
    for topic, partition, offset in rows:
        key = TopicPartition(topic, partition)
        known = found.get(key, Span(offset, offset))
        found[key] = Span(min(known.first, offset), max(known.last, offset))
    return found


@given(
    st.lists(st.lists(PLACES, max_size=12), max_size=4),
    st.dictionaries(PARTITIONS, st.integers(0, 10)),
)
def test_a_row_passes_if_its_offset_is_not_below_the_next_one(
    batches: list[list[tuple[str, int, int]]], next_offsets: dict[Any, int]
) -> None:
    rows = NewRows(next_offsets)
    passed = [
        tuple(row[name] for name in ("topic", "partition", "offset"))
        for batch in rows.of(iter(map(a_batch, batches)))
        for row in batch.to_pylist()
    ]
    every = [place for batch in batches for place in batch]
    new = [place for place in every if place[2] >= next_offsets.get(TopicPartition(*place[:2]), 0)]
    assert passed == new
    assert rows.seen == spans(every)
    assert (rows.row_count, rows.left_out_count) == (len(every), len(every) - len(new))


def test_what_is_new_as_a_whole_passes_as_it_is() -> None:
    batch = a_batch([("orders", 0, 7), ("orders", 1, 3)])
    [passed] = NewRows({TopicPartition("orders", 0): 7}).of(iter([batch]))
    assert passed is batch


@pytest.mark.parametrize("name", ["topic", "partition", "offset"])
def test_a_row_without_a_place_is_refused(name: str) -> None:
    batch = a_batch([("orders", 0, 7)])
    index = batch.schema.get_field_index(name)
    batch = batch.set_column(index, name, pa.nulls(1, batch.schema.field(name).type))
    with pytest.raises(InvalidRowError, match=f"Column '{name}' is null"):
        list(NewRows({}).of(iter([batch])))
