"""Which rows are of records at given places: from an offset of their partition on, or before it.

A pure function.
"""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.source.offsets import Offsets


def rows_at(
    origin: Sequence[pa.Array],
    places: Offsets,
    compare: Callable[[pa.Array, int], pa.BooleanArray],
) -> pa.BooleanArray:
    """Of rows with these topics, partitions and offsets, none of them null, those of the partitions
    of `places` whose offset `compare` holds for, such as `pc.greater_equal`."""
    topics, partitions, offsets = origin
    found = pa.repeat(pa.scalar(False), len(offsets))
    seen_topics = set(pc.unique(topics).to_pylist())
    seen_partitions = set(pc.unique(partitions).to_pylist())
    for (topic, partition), place in places.items():
        if topic in seen_topics and partition in seen_partitions:
            of_partition = pc.and_(pc.equal(topics, topic), pc.equal(partitions, partition))
            found = pc.or_(found, pc.and_(of_partition, compare(offsets, place)))
    return found
