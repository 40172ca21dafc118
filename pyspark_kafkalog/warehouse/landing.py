"""What one Spark task of a load does: ranges of offsets into staged Parquet files.

Wire to Parquet happens in this process, no row crosses into the JVM. Owns the reading side and the
marks of progress; staged_files.py owns the files.

Memory of a task: what staged_files.py says, a few batches of 4 MiB with room to spare, and the
fetches in flight (two of 4 MiB, of 16 where the network is slow, and one decompressed record
batch). Measured: 150 MiB beyond the interpreter with its libraries, 260 MiB with headers.

Runs in Spark's Python workers, one thread. Never commits.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa

from pyspark_kafkalog.source.options import SourceOptions
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.reader import read_range
from pyspark_kafkalog.warehouse.commit import DataFile, Stage
from pyspark_kafkalog.warehouse.progress import Passed, tell_passed
from pyspark_kafkalog.warehouse.staged_files import write_files

_OFFSETS_BETWEEN_MARKS = 100_000
_LONGEST_TOPIC_IN_NAME = 120


@dataclass(frozen=True, slots=True)
class Landing:
    """All that the tasks of a load have in common; travels to them pickled.

    `topic_ids` are those of the topics when the load was planned, where brokers say them.
    """

    options: SourceOptions
    stage: Stage
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Landed:
    """What became of one range: how many records were read, from which offset to which (inclusive;
    -1 for none), and the files that they went into."""

    offset_range: OffsetRange
    records: int = 0
    first_offset: int = -1
    last_offset: int = -1
    files: tuple[DataFile, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Landed":
        fields = json.loads(text)
        fields["offset_range"] = OffsetRange(**fields["offset_range"])
        fields["files"] = tuple(DataFile(**file) for file in fields["files"])
        return cls(**fields)


def land(landing: Landing, ranges: Iterable[OffsetRange]) -> Iterator[Landed]:
    """Lands ranges one after the other. Errors are raised: Spark's settings say how often it tries
    a task again."""
    for offset_range in ranges:
        topic_id = landing.topic_ids.get(offset_range.topic)
        columns = landing.stage.schema.names
        batches = read_range(landing.options, columns, offset_range, topic_id)
        records = _Records(batches, offset_range, landing.stage.path)
        files = tuple(write_files(landing.stage, range_label(offset_range), records))
        yield Landed(offset_range, records.count, records.first_offset, records.last_offset, files)


def range_label(offset_range: OffsetRange) -> str:
    """A range as part of a file's name."""
    topic = quote(offset_range.topic, safe="")[:_LONGEST_TOPIC_IN_NAME]
    return (
        f"{topic}-{offset_range.partition}-{offset_range.start_offset}-{offset_range.until_offset}"
    )


class _Records:
    """The records of a range on their way: counts them, and marks how far they have come."""

    def __init__(
        self, batches: Iterable[pa.RecordBatch], offset_range: OffsetRange, stage_path: str
    ) -> None:
        self.count = 0
        self.first_offset = self.last_offset = -1
        self._batches = batches
        self._range = offset_range
        self._stage_path = stage_path
        self._attempt = uuid.uuid4().hex[:16]
        self._bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        marked = self._range.start_offset
        for batch in self._batches:
            if batch.num_rows:
                offsets = batch.column("offset")
                if not self.count:
                    self.first_offset = offsets[0].as_py()
                self.last_offset = offsets[-1].as_py()
                self.count += batch.num_rows
                self._bytes += batch.nbytes
            yield batch
            if self.last_offset + 1 - marked >= _OFFSETS_BETWEEN_MARKS:
                marked = self.last_offset + 1
                self._mark(marked)
        self._mark(self._range.until_offset)

    def _mark(self, next_offset: int) -> None:
        passed = Passed(
            self._range.topic,
            self._range.partition,
            self._range.start_offset,
            next_offset - self._range.start_offset,
            self.count,
            self._bytes,
        )
        tell_passed(self._stage_path, self._attempt, passed)
