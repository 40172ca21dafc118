"""Which partition a row without one goes to, where its key does not say.

Owns the options `kafka.partitioner.class` and `kafka.partitioner.ignore.keys` other than their
default, which is the encoder's: round robin, and all rows of a batch together whatever their keys.
One task, one thread.
"""

import random

import pyarrow as pa

from pyspark_kafkalog.client.config import Partitioner


class Placement:
    """Fills the column `partition` of one topic's rows; begins anywhere, then goes around."""

    def __init__(self, partitioner: Partitioner, partition_count: int) -> None:
        self._partitioner = partitioner
        self._partition_count = partition_count
        self._next = random.randrange(partition_count)

    def place(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """`records` with a partition in each row, if it is not the keys that choose."""
        if self._partitioner == Partitioner.BY_KEY:
            return records
        if "partition" not in records.schema.names:
            column = self._fill([None] * records.num_rows)
            return records.append_column("partition", column)
        index = records.schema.get_field_index("partition")
        column = self._fill(records.column(index).to_pylist())
        return records.set_column(index, "partition", column)

    def _fill(self, partitions: list[int | None]) -> pa.Array:
        advances = self._partitioner == Partitioner.ROUND_ROBIN
        for row, partition in enumerate(partitions):
            if partition is None:
                partitions[row] = self._next
                if advances:
                    self._next = (self._next + 1) % self._partition_count
        if not advances:
            self._next = (self._next + 1) % self._partition_count
        return pa.array(partitions, pa.int32())
