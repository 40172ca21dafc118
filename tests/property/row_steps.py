"""`format("kafkalog_load")` in a history: streams and batch writes, and what came of them."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from pyspark_kafkalog import LoadSink, errors
from pyspark_kafkalog.errors import DataLossError, InvalidOptionError, KafkalogError, TargetError
from tests.property.load_model import NAMES, Step, World
from tests.property.load_oracle import Asked, Key, Place, absurd
from tests.property.task_session import StreamQuery, copy_checkpoint, write_rows
from tests.property.topic_model import picked


def numbers_in(directory: Path) -> list[int]:
    """The batches that a checkpoint has, without the checksums that Spark writes beside them."""
    names = [path.name for path in directory.iterdir()] if directory.exists() else []
    return sorted(int(name) for name in names if name.isdecimal())


@dataclass(slots=True)
class QueryState:
    """A streaming query, by the name of its load."""

    checkpoint: Path
    incarnations: dict[str, int] = field(default_factory=dict)
    backups: list[Path] = field(default_factory=list)

    def ends(self) -> dict[str, dict[str, int]]:
        offsets = self.checkpoint / "offsets"
        numbers = numbers_in(offsets)
        if not numbers:
            return {}
        found: dict[str, dict[str, int]] = json.loads(
            (offsets / str(numbers[-1])).read_text().splitlines()[-1]
        )
        return found

    def replays(self) -> tuple[dict[str, dict[str, int]], bool]:
        """Where the next run begins to read, and whether it runs a batch again."""
        offsets = self.checkpoint / "offsets"
        numbers = numbers_in(offsets)
        if not numbers or (self.checkpoint / "commits" / str(numbers[-1])).exists():
            return self.ends(), False
        if len(numbers) == 1:
            return {}, True
        found: dict[str, dict[str, int]] = json.loads(
            (offsets / str(numbers[-2])).read_text().splitlines()[-1]
        )
        return found, True

    def back_up(self) -> None:
        backup = self.checkpoint.with_name(f"{self.checkpoint.name}-{len(self.backups)}")
        copy_checkpoint(self.checkpoint, backup)
        self.backups.append(backup)


def query_of(world: World, name: str) -> QueryState:
    if name not in world.queries:
        world.queries[name] = QueryState(world.directory / f"checkpoint-{name}")
    found: QueryState = world.queries[name]
    return found


@dataclass(frozen=True, slots=True, repr=False)
class Rowwise(Step):
    """`format("kafkalog_load")`: a stream (`way` stream) with availableNow, or `df.write` (write).

    `checkpoint`: kept, lost, or older, which is a backup of the run before.
    """

    name: int = 0
    topics: tuple[str, ...] = ("a",)
    names_missing: bool = False
    way: str = "stream"
    checkpoint: str = "kept"
    most_offsets: int | None = None
    says_servers: bool = True

    def do(self, world: World) -> str:
        if (world.history.value_format, world.history.on_error) != (
            "binary",
            "fail",
        ):
            return "nothing"
        return RowwiseCheck(world, self).run()


def as_raised(text: str) -> KafkalogError:
    """Our error that Spark's text is about, as a query of Spark hands none on."""
    found = re.findall(r"\b(\w+Error): ", text)
    kinds = [kind for name in found if (kind := getattr(errors, name, None)) is not None]
    return kinds[-1](text) if kinds else KafkalogError(text)


class RowwiseCheck:
    """One run of a query, or one write, of rows with the places of their records."""

    def __init__(self, world: World, step: Rowwise) -> None:
        self.world = world
        self.step = step
        self.name = picked(NAMES, step.name)
        self.topics = world.named(step.topics, step.names_missing)
        self.keys = world.keys(self.topics)
        self.before = world.topics.seen()
        self.known = world.places.get(self.name, Place())
        self.place = self.known.seeing(self.keys, self.before)
        self.errors: set[type[Exception]] = set()
        self.maybe: set[type[Exception]] = set()
        self.query = query_of(world, self.name)

    def run(self) -> str:
        world, step = self.world, self.step
        if step.way == "stream":
            self._prepare_checkpoint()
        reads = self._reads()
        error = None
        try:
            self._call()
        except KafkalogError as raised:
            error = raised
        self._check_error(error)
        if world.dropped:
            world.check_unchanged()
            return f"{type(error).__name__}: {error}"
        self._check_rows(reads, error)
        if error is None and step.way == "stream":
            self.query.incarnations |= {key[0]: self.before[key].incarnation for key in self.keys}
            self.query.back_up()
        return f"{type(error).__name__}: {error}" if error else f"{sum(world.rows.values())} rows"

    def _prepare_checkpoint(self) -> None:
        query = self.query
        if self.step.checkpoint == "lost":
            shutil.rmtree(query.checkpoint, ignore_errors=True)
            query.incarnations.clear()
        elif self.step.checkpoint == "older" and len(query.backups) > 1:
            copy_checkpoint(query.backups[-2], query.checkpoint)

    def _reads(self) -> dict[Key, tuple[int, int]]:
        """What the source reads of each partition; what is due besides."""
        if not all(short in self.world.topics.topics for short in self.topics):
            # A query that knows the topic says that its partitions are gone.
            self.errors |= {KafkalogError}
        if not self.step.says_servers:
            self.maybe.add(InvalidOptionError)
        starts: Mapping[str, Mapping[str, int]] = {}
        replays = False
        if self.step.way == "stream":
            starts, replays = self.query.replays()
        gone = {self.world.short(topic) for topic in starts} - {key[0] for key in self.keys}
        if gone or replays:
            self.maybe.add(DataLossError)
        reads = {}
        for key in self.keys:
            start = self._start(key, starts)
            reads[key] = start, max(start, self.before[key].stable_end)
        if replays or not starts or any(start < until for start, until in reads.values()):
            self._is_written(reads, bool(starts))
        ranges = {key: (0, end) for key, (_, end) in reads.items()}
        if any(absurd(Asked(self.keys), ranges, self.before)):
            if any(absurd(Asked(self.keys), reads, self.before)):
                self.errors.add(KafkalogError)
            self.maybe.add(KafkalogError)
        return reads

    def _is_written(self, reads: Mapping[Key, tuple[int, int]], goes_on: bool) -> None:
        """What is due of a write that takes place."""
        if self.world.dropped:
            self.errors.add(TargetError)
        if not self.step.says_servers:
            self.errors.add(InvalidOptionError)
        for key, (start, until) in reads.items():
            seen = self.before[key]
            at = self.place.start(key, seen)
            rows = [each.offset for each in seen.records if each.is_visible(True)]
            if self.step.way == "write":
                until = max([offset + 1 for offset in rows if offset < until], default=0)
            if self.place.is_recreated(key, seen) or (at is not None and at < start and at < until):
                self.errors.add(DataLossError)
            elif at is None and goes_on and start > 0:
                # The checkpoint is ahead of its table.
                self.errors.add(DataLossError)
        for short, incarnation in self.place.incarnations.items():
            topic = self.world.topics.topics.get(short)
            if topic is not None and topic.incarnation != incarnation:
                self.maybe.add(DataLossError)

    def _start(self, key: Key, starts: Mapping[str, Mapping[str, int]]) -> int:
        seen = self.before[key]
        known = starts.get(self.world.topics.name(key[0]), {}).get(str(key[1]))
        if known is None:
            if starts and seen.start > 0:
                self.errors.add(DataLossError)
            return seen.start
        if self.query.incarnations.get(key[0], seen.incarnation) != seen.incarnation:
            # What was read of the old one may be too little to tell.
            self.maybe.add(DataLossError)
            return min(known, seen.stable_end)
        if known < seen.start and known != seen.stable_end:
            self.errors.add(DataLossError)
        if known > seen.stable_end:
            self.errors.add(DataLossError)
        return max(known, seen.start)

    def _call(self) -> None:
        world, step = self.world, self.step
        servers = {"kafka.bootstrap.servers": world.servers}
        source = {
            **servers,
            "subscribe": ",".join(map(world.topics.name, self.topics)),
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            "includeHeaders": str(world.history.headers).lower(),
        }
        sink = {"target": world.target.name, "name": self.name, "startingOffsets": "earliest"}
        if world.history.partition_by:
            sink["partitionBy"] = world.history.partition_by
        if step.says_servers:
            sink |= servers
        if step.way == "stream" and step.most_offsets is not None:
            source["maxOffsetsPerTrigger"] = str(step.most_offsets)
        if world.spark is not None:
            self._call_spark(world.spark, source, sink)
        elif step.way == "write":
            write_rows(source, sink)
        else:
            StreamQuery(self.query.checkpoint, source, sink).run()

    def _call_spark(self, spark: Any, source: dict[str, str], sink: dict[str, str]) -> None:
        spark.dataSource.register(LoadSink)
        try:
            if self.step.way == "write":
                rows = spark.read.format("kafkalog").options(**source).load()
                rows.write.format("kafkalog_load").options(**sink).mode("append").save()
                return
            rows = spark.readStream.format("kafkalog").options(**source).load()
            writer = rows.writeStream.format("kafkalog_load").options(**sink)
            checkpoint = str(self.query.checkpoint)
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            query.start().awaitTermination()
        except PySparkException as error:
            raise as_raised(str(error)) from error

    def _check_error(self, error: KafkalogError | None) -> None:
        names = " or ".join(sorted(each.__name__ for each in self.errors))
        if error is None:
            assert not self.errors, f"{names} was due, and the rows went through"
        elif not isinstance(error, tuple(self.errors | self.maybe)):
            what = f"{names} was due, not" if names else "no error was due:"
            raise AssertionError(f"{what} {type(error).__name__}") from error

    def _check_rows(
        self, reads: Mapping[Key, tuple[int, int]], error: KafkalogError | None
    ) -> None:
        world = self.world
        now = world.target_rows()
        missing = world.rows - now
        assert not missing, f"rows that were there are gone: {missing}"
        left = now - world.rows
        says = world.observed(self.name)
        here = {key: self.before[key].incarnation for key in reads}
        moved = Place(dict(self.place.offsets), dict(self.place.incarnations))
        for key, (start, until) in reads.items():
            at = self.place.offsets.get(key, 0)
            is_moved = key in says.offsets and says.incarnations.get(key[0]) == here[key]
            end = says.offsets[key] if is_moved else at
            assert at <= end <= max(at, until), f"{key} goes on at {end}, due {at} to {until}"
            if is_moved:
                moved.offsets[key], moved.incarnations[key[0]] = end, here[key]
            for record in self.before[key].records:
                if not (max(start, at) <= record.offset < until and record.is_visible(True)):
                    continue
                row = (record.topic, record.offset, record.value)
                if record.offset < end and left[row]:
                    left[row] -= 1
                elif record.offset < end or error is None:
                    raise AssertionError(f"the row of {key} at {record.offset} is missing")
        assert not +left, f"rows that are not due: {+left}"
        gaps = world.new_gaps()
        assert not gaps, f"nothing was to be given up, and the target says {gaps}"
        world.rows = now
        world.moved(self.name, self.known.after(moved, says, ()))
