"""Which offsets a micro-batch reads, as Spark's checkpoint has it before the batch runs.

`CHECKPOINT/offsets/N` has a line for each source with where batch N ends; of a topic, as kafkalog
and the Kafka connector write it, the JSON `{"topic": {"0": 123}}`. Where it begins is in N - 1.
The rest of the file, and what other sources write, is passed over. Reads only, in any process that
can see it.
"""

import json
import os
import re
from dataclasses import dataclass, field

import pyarrow.fs
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import InvalidRowError
from pyspark_kafkalog.source.offsets import Offsets, describe, from_json
from pyspark_kafkalog.warehouse.row_places import Spans

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Where a micro-batch begins, and ends, of each partition of a topic that its query reads.

    In the first batch of a query `starts` is empty, as that is not written down.
    `unequal` are partitions that two sources read in different portions.
    """

    starts: Offsets = field(default_factory=dict)
    untils: Offsets = field(default_factory=dict)
    unequal: frozenset[TopicPartition] = frozenset()
    is_first: bool = True

    def check(self, seen: Spans) -> None:
        """Raises InvalidRowError for rows of other offsets than the batch reads.

        Such rows were held back (by a join, or by state of a program's own) or do not come from a
        topic. A later batch would have some more of the same offsets, which nobody could tell from
        rows that are in the target already.
        """
        for tp, span in sorted(seen.items()):
            if tp not in self.untils:
                raise InvalidRowError(
                    f"There are rows of {describe([tp])}, which no source of this query reads: "
                    "kafkalog_load takes rows of topics, read by kafkalog in the same query."
                )
            if tp in self.unequal:
                raise InvalidRowError(
                    f"Two sources of this query read {describe([tp])}, and not the same offsets in "
                    "this micro-batch: read it once, and use that DataFrame twice."
                )
            start, until = self.starts.get(tp, 0), self.untils[tp]
            if not start <= span.first <= span.last < until:
                raise InvalidRowError(
                    f"There are rows of offsets {span.first} to {span.last} of {describe([tp])} in "
                    f"a micro-batch that reads {start} to {until - 1}: an operator that holds rows "
                    "back, such as a join of streams, cannot be loaded by offsets. Load its "
                    "inputs, and join what was loaded."
                )


def micro_batch(checkpoint: str, batch: int) -> MicroBatch | None:
    """What batch number `batch` reads; None where the checkpoint cannot be read from here."""
    # Arrow's name of the scheme, and Hadoop's of a local directory.
    place = re.sub(r"\As3[an]:", "s3:", re.sub(r"\Afile:/(?!/)", "file:///", checkpoint))
    if not _SCHEME.match(place):
        place = os.path.abspath(place)
    unequal: set[TopicPartition] = set()
    try:
        files, path = pyarrow.fs.FileSystem.from_uri(place)
        untils = _ends(files, f"{path}/offsets/{batch}", unequal)
        starts = _ends(files, f"{path}/offsets/{batch - 1}", unequal) if batch else {}
    except (OSError, ValueError, NotImplementedError):
        return None
    return MicroBatch(starts, untils, frozenset(unequal), is_first=batch == 0)


def _ends(files: pyarrow.fs.FileSystem, path: str, unequal: set[TopicPartition]) -> Offsets:
    with files.open_input_stream(path) as stream:
        lines = stream.read().decode().splitlines()
    ends: Offsets = {}
    for line in lines:
        for tp, offset in _topic_offsets(line).items():
            if ends.setdefault(tp, offset) != offset:
                unequal.add(tp)
    return ends


def _topic_offsets(line: str) -> Offsets:
    try:
        return from_json(json.loads(line))
    except (ValueError, AttributeError, TypeError):
        return {}
