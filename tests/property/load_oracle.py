"""What is due of a load: which offsets it passes, what it gives up, or which errors.

The promises, written down without a look at how they are kept. `due` says what a load of some
partitions has to do, given where its name is and what the log holds; `Account` then takes each
offset that was passed and asks where it went: into the target once, into the gaps, or nowhere
because no reader was to see it. Knows no broker, no target and nothing of pyspark_kafkalog but the
names of its errors.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pyspark_kafkalog.errors import (
    DataLossError,
    InvalidOptionError,
    KafkalogError,
    TopicRecreatedError,
    UnknownTopicError,
)
from tests.property.topic_model import Record, Seen

Key = tuple[str, int]
"""A partition: its topic's short name and its number."""

Row = tuple[str, int, bytes]
"""What is looked at of a row in the target: its topic's short name, its offset, its value."""


@dataclass(slots=True)
class Place:
    """Where a load name is: the next offset of each partition that it has seen, and which topics
    of that name these were. `away` are topics that it goes on without, each with its place."""

    offsets: dict[Key, int] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)
    away: dict[str, "Place"] = field(default_factory=dict)

    def seeing(self, keys: Iterable[Key], log: Mapping[Key, Seen]) -> "Place":
        """The place of who sees these partitions: a very topic that is back has its place."""
        found = Place(dict(self.offsets), dict(self.incarnations), dict(self.away))
        for key in keys:
            was = found.away.get(key[0])
            if was is not None and was.incarnations[key[0]] == log[key].incarnation:
                found.offsets |= was.offsets
                found.incarnations |= was.incarnations
                del found.away[key[0]]
        return found

    def only(self, topics: Collection[str]) -> "Place":
        return Place(
            {key: at for key, at in self.offsets.items() if key[0] in topics},
            {topic: one for topic, one in self.incarnations.items() if topic in topics},
        )

    def after(self, now: "Place", told: "Place", gone: Collection[str]) -> "Place":
        """The place `now` of a name that was here, which goes on without `gone` topics, and without
        those that are away and that nobody was `told` to be back."""
        away = {t: was for t, was in self.away.items() if t not in told.incarnations}
        left = now.only(now.incarnations.keys() - away.keys() - set(gone))
        return Place(left.offsets, left.incarnations, away)

    def start(self, key: Key, seen: Seen) -> int | None:
        """Where it goes on in a partition: of a topic that it has seen, new partitions begin at 0,
        and so does all of a topic that was created again; None at the first sight of a topic."""
        if key[0] not in self.incarnations:
            return None
        if self.incarnations[key[0]] != seen.incarnation:
            return 0
        return self.offsets.get(key, 0)

    def is_recreated(self, key: Key, seen: Seen) -> bool:
        return self.incarnations.get(key[0], seen.incarnation) != seen.incarnation


@dataclass(frozen=True, slots=True)
class Asked:
    """What a load is asked for: which partitions, from where at first sight, up to where.

    `starting` is `earliest`, `latest`, a number of offsets to count back, or an offset of each.
    `pattern` is what topics a pattern finds, there or not; `hidden` are not to be seen.
    """

    keys: tuple[Key, ...]
    is_all_there: bool = True
    fails_on_loss: bool = True
    committed: bool = True
    starting: str | int | Mapping[Key, int] = "earliest"
    until: Mapping[Key, int] | None = None
    keeps_bad: bool = False
    pattern: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


@dataclass(slots=True)
class Due:
    """What has to come of it: one of `errors`, if there are any, or the `ranges` passed from where
    they begin to where they end, with `gaps` before them given up. `anew` are topics that begin
    from their beginning, `gone` those that were deleted, and that it goes on without."""

    errors: set[type[Exception]] = field(default_factory=set)
    ranges: dict[Key, tuple[int, int]] = field(default_factory=dict)
    gaps: dict[Key, tuple[int, int]] = field(default_factory=dict)
    anew: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)


def due(asked: Asked, place: Place, log: Mapping[Key, Seen]) -> Due:
    found = Due() if asked.is_all_there else Due(_of_missing(asked))
    there = {topic for topic, _ in log} - set(asked.hidden)
    gone = {topic for topic, _ in place.offsets if topic in asked.pattern} - there
    if gone and asked.fails_on_loss:
        found.errors.add(DataLossError)
    # Of one that nobody has seen, but for its rows, it could not tell the next one of its name.
    found.gone = gone & place.incarnations.keys()
    for key in asked.keys:
        seen = log[key]
        end = seen.stable_end if asked.committed else seen.end
        if place.is_recreated(key, seen):
            found.anew.add(key[0])
        start = _start(asked, place, key, seen, found)
        if asked.fails_on_loss and key[0] in found.anew:
            found.errors.add(TopicRecreatedError)
        elif asked.fails_on_loss and start < seen.start:
            found.errors.add(DataLossError)
        if start < seen.start:
            found.gaps[key] = start, seen.start
            start = seen.start
        until = end if asked.until is None else min(end, asked.until[key])
        found.ranges[key] = start, max(start, until)
    if not asked.keeps_bad and any(absurd(asked, found.ranges, log)):
        found.errors.add(KafkalogError)
    return found


def _start(asked: Asked, place: Place, key: Key, seen: Seen, found: Due) -> int:
    """Where a load has to begin in a partition, whether that is there or not."""
    start = place.start(key, seen)
    if start is None:
        return _first(asked.starting, key, seen, seen.stable_end if asked.committed else seen.end)
    if not isinstance(asked.starting, Mapping):
        return start
    if key not in place.offsets:
        start = asked.starting[key]
    elif asked.starting[key] > start:
        # It would leave records out.
        found.errors.add(InvalidOptionError)
    return start


def _of_missing(asked: Asked) -> set[type[Exception]]:
    if asked.until is not None or isinstance(asked.starting, Mapping):
        # Offsets are given of partitions that are there, and not of the others.
        return {UnknownTopicError, InvalidOptionError}
    return {UnknownTopicError}


def _first(starting: str | int | Mapping[Key, int], key: Key, seen: Seen, end: int) -> int:
    if isinstance(starting, Mapping):
        return starting[key]
    if isinstance(starting, int):
        return max(seen.start, end - starting)
    return end if starting == "latest" else seen.start


def visible(
    asked: Asked, ranges: Mapping[Key, tuple[int, int]], log: Mapping[Key, Seen]
) -> Iterable[Record]:
    """The records that a reader of these ranges has to see."""
    for key, (start, until) in ranges.items():
        for record in log[key].records:
            if start <= record.offset < until and record.is_visible(asked.committed):
                yield record


def absurd(
    asked: Asked, ranges: Mapping[Key, tuple[int, int]], log: Mapping[Key, Seen]
) -> Iterable[bool]:
    return (record.is_absurd for record in visible(asked, ranges, log))


@dataclass(frozen=True, slots=True)
class Account:
    """One load and all that may be known of it.

    `before` and `after` are what the log held when it began and when it ended, `passed` what the
    target says of each partition now, from where the load had to begin to where it goes on, `new`
    the rows that came, `gaps` what its commits call given up.
    """

    asked: Asked
    before: Mapping[Key, Seen]
    after: Mapping[Key, Seen]
    passed: Mapping[Key, tuple[int, int]]
    new: Counter[Row]
    gaps: Mapping[Key, set[int]]
    keeps: Callable[[Record], bool]
    """Whether a record becomes a row."""
    anew: frozenset[str] = frozenset()

    def problems(self) -> list[str]:
        """What is wrong, in words; empty if nothing is."""
        found = []
        left = Counter(self.new)
        for key in self.passed:
            found += self._of_partition(key, left)
        found += [f"a row that is not due ({times} x): {row}" for row, times in (+left).items()]
        found += [
            f"offsets {sorted(offsets)} of {key} are called gaps and were not passed"
            for key, offsets in self.gaps.items()
            if offsets and key not in self.passed
        ]
        return found

    def _of_partition(self, key: Key, left: Counter[Row]) -> list[str]:
        start, until = self.passed[key]
        before = self.before[key]
        records = {record.offset: record for record in before.records}
        gaps = self.gaps.get(key, set())
        found = []
        for offset in range(start, until):
            record = records.get(offset)
            wrong = self._wrong(key, offset, record, offset in gaps, left)
            if wrong:
                found.append(f"offset {offset} of {key}: {wrong}")
        outside = gaps - set(range(start, until))
        if outside:
            found.append(f"offsets {sorted(outside)} of {key} are called gaps and lie elsewhere")
        return found

    def _wrong(
        self,
        key: Key,
        offset: int,
        record: Record | None,
        is_gap: bool,
        left: Counter[Row],
    ) -> str | None:
        later = self.after.get(key)
        before = self.before[key]
        was_gone = offset < before.start
        is_gone = later is None or later.incarnation != before.incarnation or offset < later.start
        if was_gone:
            # At the first load of a topic that was created again, either is a way to count.
            is_missing = not is_gap and key[0] not in self.anew
            return "was given up, was passed, and is in no gap" if is_missing else None
        if is_gap:
            return None if is_gone else "is called a gap, and is there"
        if record is None or not record.is_visible(self.asked.committed):
            return None
        wanted = self.keeps(record)
        row = (record.topic, record.offset, record.value)
        if not wanted:
            return None
        if left[row]:
            left[row] -= 1
            return None
        return "was passed, and its row is not there, nor in a gap"
