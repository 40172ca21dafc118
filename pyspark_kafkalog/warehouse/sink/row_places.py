"""Which record each row of a DataFrame was made of, and whether a target has it already.

A row's place is its columns topic, partition and offset. Of each partition a target knows the next
offset of a load; rows below it are there, as everything below it was committed together with it.
Many rows may have one place (a record that was exploded), as long as they come in one batch.

Used in tasks, one thread each; plain Arrow, no Spark.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import InvalidRowError
from pyspark_kafkalog.source.offsets import Offsets

PLACE_COLUMNS = ("topic", "partition", "offset")
_TYPES = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}


@dataclass(frozen=True, slots=True)
class Span:
    """The least and the greatest offset of some rows of one partition, both inclusive."""

    first: int
    last: int

    def __or__(self, other: "Span") -> "Span":
        return Span(min(self.first, other.first), max(self.last, other.last))


Spans = dict[TopicPartition, Span]


def joined(left: Mapping[TopicPartition, Span], right: Mapping[TopicPartition, Span]) -> Spans:
    """The spans of the rows of both."""
    return {
        **left,
        **{each: left[each] | span if each in left else span for each, span in right.items()},
    }


class NewRows:
    """Lets those rows of one task pass that a target does not have; counts what came.

    `seen` are the places of all rows; complete when all batches are through. `next_offsets` are the
    target's, and a partition that it does not name is new.
    """

    def __init__(self, next_offsets: Offsets) -> None:
        self._next_offsets = next_offsets
        self.seen: Spans = {}
        self.row_count = 0
        self.left_out_count = 0

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the target does not have, in their order.

        Raises InvalidRowError for a row whose place is null.
        """
        for batch in batches:
            if batch.num_rows:
                new = self._new_rows(batch)
                if new.num_rows:
                    yield new

    def _new_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        places = _places(batch)
        seen = _spans(places)
        self.seen = joined(self.seen, seen)
        self.row_count += batch.num_rows
        there = {each: span for each, span in seen.items() if span.first < self._next(each)}
        if not there:
            return batch
        is_new = pc.invert(self._is_there(places, there))
        new = batch.filter(is_new)
        self.left_out_count += batch.num_rows - new.num_rows
        return new

    def _is_there(self, places: pa.Table, there: Spans) -> pa.ChunkedArray:
        mask = pa.chunked_array([pa.repeat(False, places.num_rows)])
        for topic_partition in there:
            of_partition = pc.and_(
                pc.equal(places.column("topic"), topic_partition.topic),
                pc.equal(places.column("partition"), topic_partition.partition),
            )
            below = pc.less(places.column("offset"), self._next(topic_partition))
            mask = pc.or_(mask, pc.and_(of_partition, below))
        return mask

    def _next(self, topic_partition: TopicPartition) -> int:
        return self._next_offsets.get(topic_partition, 0)


def _places(batch: pa.RecordBatch) -> pa.Table:
    columns = {}
    for name in PLACE_COLUMNS:
        column = batch.column(name)
        if column.null_count:
            raise InvalidRowError(
                f"Column {name!r} is null in a row: a load has to know which record each row "
                "came from. Outer joins and aggregates make rows that came from no single record."
            )
        columns[name] = column.cast(_TYPES[name])
    return pa.table(columns)


def _spans(places: pa.Table) -> Spans:
    groups = places.group_by(["topic", "partition"]).aggregate(
        [("offset", "min"), ("offset", "max")]
    )
    return {
        TopicPartition(row["topic"], row["partition"]): Span(row["offset_min"], row["offset_max"])
        for row in groups.to_pylist()
    }
