"""A load without Spark and without Parquet: the files hold their offsets as lines of text.

Enough to check a target's promise: what a reader of the directory sees is each offset once.
"""

import glob
import os
import uuid
from collections import Counter

from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    Commit,
    DataFile,
    PendingCommit,
    Stage,
)
from pyspark_kafkalog.warehouse.targets.parquet import ParquetTarget
from pyspark_kafkalog.warehouse.targets.storage import STAGED_SUFFIX

PARTITIONS = (0, 1)


def write_file(stage: Stage, name: str, offset_range: OffsetRange) -> DataFile:
    """One staged file with a line per offset."""
    offsets = range(offset_range.start_offset, offset_range.until_offset)
    content = "".join(f"{name} {offset_range.partition} {offset}\n" for offset in offsets)
    file_name = f"part-{offset_range.partition}-{uuid.uuid4().hex}.parquet"
    with open(os.path.join(stage.path, file_name + STAGED_SUFFIX), "w") as file:
        file.write(content)
    # As of a load with partition_by, whose directories are made after the commit.
    directory = f"p={offset_range.partition}/q=0/" if offset_range.partition else ""
    return DataFile(directory + file_name, len(offsets), len(content))


def load(path: str, name: str, until_offset: int, topic: str = "orders") -> Commit | None:
    """Loads both partitions of a topic up to `until_offset`; None when they were there before."""
    target = ParquetTarget(path)
    last = target.position(name)
    keys = [TopicPartition(topic, partition) for partition in PARTITIONS]
    # Another loader of the same name may be further on already.
    ranges = [
        OffsetRange(key.topic, key.partition, last.offsets.get(key, 0), until_offset)
        for key in keys
        if last.offsets.get(key, 0) < until_offset
    ]
    if not ranges:
        return None
    stage = target.stage(row_schema())
    files = [write_file(stage, name, piece) for piece in ranges]
    return target.commit(PendingCommit(stage, name, last, ranges, files))


def visible_lines(path: str) -> Counter[str]:
    """All lines that a reader of the directory sees, and how often."""
    return lines_of(glob.glob(os.path.join(glob.escape(path), "**", "*.parquet"), recursive=True))


def lines_of(files: list[str]) -> Counter[str]:
    lines: Counter[str] = Counter()
    for name in files:
        with open(name) as file:
            lines.update(file)
    return lines


def expected_lines(name: str, until_offset: int) -> Counter[str]:
    """Each offset below `until_offset` once."""
    return Counter(
        f"{name} {partition} {offset}\n"
        for partition in PARTITIONS
        for offset in range(until_offset)
    )
