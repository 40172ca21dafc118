"""A history of topics, loads and owners, step by step, with what must be true after each step.

A `History` is a target and a list of steps. Steps are values that say what is done in small numbers
("partition 5" is the fifth modulo how many there are), so that any list of them makes sense, and
what hypothesis leaves out of a failing one leaves a story. Its repr is Python that replays it.

`World` carries steps out on a real broker and a real target, and asks load_oracle.py after each
what was due. It believes its own books (`places`), not the target's; the target's are compared.
"""

import uuid
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kafka.structs import TopicPartition

from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.property.killed_load import KillableLoads
from tests.property.load_oracle import Key, Place, Row
from tests.property.load_targets import Gaps, Owned, Rows, owned
from tests.property.topic_model import Partition, Topic, Topics, picked
from tests.support.broker_child import RawClient

SHORTS = ("a", "b")
NAMES = ("nightly", "hourly")


class _Told:
    """A value whose repr says only what is not its default: a line of a story."""

    __slots__ = ()

    def __repr__(self) -> str:
        said = [
            f"{each.name}={value!r}"
            for each in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, each.name)) != each.default
        ]
        return f"{type(self).__name__}({', '.join(said)})"


class Step(_Told):
    """Something that somebody does; `do` says in a few words what came of it."""

    __slots__ = ()

    def do(self, world: "World") -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, repr=False)
class History(_Told):
    """`layout` is what all loads of it have in common, as they must into one table."""

    target: str
    steps: tuple[Step, ...]
    headers: bool = False
    value_format: str = "binary"
    on_error: str = "fail"
    partition_by: str = ""

    def __repr__(self) -> str:
        head = ", ".join(
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if each.name != "steps" and getattr(self, each.name) != each.default
        )
        steps = "".join(f"    {step!r},\n" for step in self.steps)
        return f"History({head}, steps=(\n{steps}))"


class World:
    """Topics, a target, and the books of who has loaded what. One history; close it. With `spark`
    that runs the loads and queries, without what is done to them meanwhile, and without kills."""

    def __init__(
        self,
        history: History,
        servers: str,
        client: RawClient,
        directory: Path,
        killable: KillableLoads | None = None,
        spark: Any = None,
    ) -> None:
        self.history = history
        self.servers = servers
        self.killable = killable
        self.spark = spark
        self.directory = directory
        self.topics = Topics(client, f"h{uuid.uuid4().hex[:8]}-")
        self.target: Owned = owned(history.target, _made(directory / "target"))
        self.places: dict[str, Place] = {}
        self.rows: Rows = Counter()
        self.gaps: Gaps = set()
        self.versions: list[tuple[Any, Rows, dict[str, dict[Key, int]]]] = []
        """Of the target: what `roll_back` takes, the rows, and where each load was."""
        self.dropped: set[str] = set()
        self.is_made = False
        self.has_new_column = False
        self.queries: dict[str, Any] = {}
        self.story: list[str] = []

    def run(self) -> None:
        for number, step in enumerate(self.history.steps):
            place = len(self.story)
            self.story.append("")
            try:
                told = step.do(self)
            except BaseException as error:
                told = f"!! {type(error).__name__}: {error}"
                raise
            finally:
                self.story[place] = f"{number}. {step!r}\n        -> {told}"

    def close(self) -> None:
        self.topics.close()

    # Who is who.

    def short(self, topic: str) -> str:
        return topic.removeprefix(self.topics.prefix)

    def topic(self, number: int) -> Topic | None:
        there = list(self.topics.topics.values())
        return picked(there, number) if there else None

    def partition(self, number: int) -> Partition | None:
        there = [part for topic in self.topics.topics.values() for part in topic.partitions]
        return picked(there, number) if there else None

    def keys(self, shorts: tuple[str, ...]) -> tuple[Key, ...]:
        there = self.topics.topics
        return tuple(
            (short, part.number)
            for short in shorts
            if short in there
            for part in there[short].partitions
        )

    def named(self, topics: tuple[str, ...], names_missing: bool) -> tuple[str, ...]:
        """Those of `topics` that are there; all of them if none is, or missing ones are named."""
        there = tuple(short for short in topics if short in self.topics.topics)
        return topics if names_missing or not there else there

    # What is there.

    def target_rows(self) -> Rows:
        found: Counter[Row] = Counter()
        for (topic, offset, value), times in self.target.rows().items():
            found[self.short(topic), offset, value] += times
        return found

    def observed(self, name: str) -> Place:
        """Where the target says that a load goes on."""
        position = open_target(self.target.name).position(name).without_deleted()
        return Place(
            {(self.short(each.topic), each.partition): n for each, n in position.offsets.items()},
            {
                self.short(topic): self.topics.incarnations[one]
                for topic, one in position.topic_ids.items()
            },
        )

    def new_gaps(self) -> dict[Key, set[int]]:
        """The offsets that commits have given up since this was asked last."""
        now = self.target.gaps()
        found: dict[Key, set[int]] = {}
        for _, topic, partition, start, until in now - self.gaps:
            offsets = found.setdefault((self.short(topic), partition), set())
            assert offsets.isdisjoint(range(start, until)), f"given up twice: {now - self.gaps}"
            offsets.update(range(start, until))
        self.gaps = now
        return found

    def gaps_of(self, result: Any) -> dict[Key, set[int]]:
        found: dict[Key, set[int]] = {}
        for gap in result.gaps:
            topic_partition: TopicPartition = gap.topic_partition
            key = (self.short(topic_partition.topic), topic_partition.partition)
            found.setdefault(key, set()).update(range(gap.start_offset, gap.until_offset))
        return found

    def moved(self, name: str, place: Place) -> None:
        if place.offsets or place.incarnations or name in self.places:
            self.places[name] = place
            self.is_made = True
            version = None if self.dropped else self.target.version()
            if version is not None and (not self.versions or self.versions[-1][0] != version):
                places = {each: dict(there.offsets) for each, there in self.places.items()}
                self.versions.append((version, Counter(self.rows), places))

    def check_unchanged(self) -> None:
        now = self.target_rows()
        assert now == self.rows, f"rows changed: {now - self.rows} came, {self.rows - now} went"

    def check_place(self, name: str) -> None:
        now, booked = self.observed(name).offsets, self.places[name].offsets
        assert now == booked, f"{name} goes on at {now}, not at {booked}"


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
