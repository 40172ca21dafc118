"""Where rows go that name no partition, by the partitioners of the Java client."""

from typing import Any

import pyarrow as pa

from pyspark_kafkalog.client.config import Partitioner
from pyspark_kafkalog.source.placement import Placement

ROWS = pa.RecordBatch.from_pydict({"key": [b"k"] * 6, "value": [b"v"] * 6})
PARTLY = ROWS.append_column("partition", pa.array([None, 2, None, None, 0, None], pa.int32()))


def placed(placement: Placement, rows: Any = ROWS) -> Any:
    return placement.place(rows).column("partition").to_pylist()


def test_keys_are_left_to_the_encoder() -> None:
    assert Placement(Partitioner.BY_KEY, 3).place(ROWS) is ROWS


def test_round_robin_goes_on_from_batch_to_batch() -> None:
    placement = Placement(Partitioner.ROUND_ROBIN, 4)
    partitions = placed(placement) + placed(placement)
    first = partitions[0]
    assert partitions == [(first + row) % 4 for row in range(12)]


def test_sticky_rows_stay_together_and_move_on_with_the_next_batch() -> None:
    placement = Placement(Partitioner.STICKY, 4)
    first, second = placed(placement), placed(placement)
    assert len(set(first)) == 1
    assert set(second) == {(first[0] + 1) % 4}


def test_a_row_that_names_a_partition_goes_there_and_takes_no_turn() -> None:
    partitions = placed(Placement(Partitioner.ROUND_ROBIN, 10), PARTLY)
    first = partitions[0]
    assert partitions == [first, 2, (first + 1) % 10, (first + 2) % 10, 0, (first + 3) % 10]
    assert placed(Placement(Partitioner.STICKY, 3), PARTLY)[1::3] == [2, 0]
