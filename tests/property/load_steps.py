"""`pyspark_kafkalog.load` in a history: the step, and the check of what came of it."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc

import pyspark_kafkalog
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import (
    DataLossError,
    KafkalogError,
    LoadConflictError,
    TargetError,
    UnknownTopicError,
)
from tests.property.killed_load import Killed
from tests.property.load_model import NAMES, Step, World
from tests.property.load_oracle import Account, Asked, Key, Place, due, visible
from tests.property.task_session import TaskSession
from tests.property.topic_model import Record, picked


def odd_only(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that leaves rows out."""
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("offset"), 1), 1))


def as_they_come(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


TRANSFORMS: Mapping[str, Callable[[pa.RecordBatch], pa.RecordBatch]] = {
    "odd": odd_only,
    "same": as_they_come,
}


@dataclass(frozen=True, slots=True, repr=False)
class Load(Step):
    """`pyspark_kafkalog.load`.

    `topics`, those of them that are there unless it `names_missing`, by `way` (subscribe, pattern,
    assign); `starting` is None, earliest, latest, -N, or N
    offsets after the beginning of each partition, `until` is None or such an N. `meanwhile` is a
    step that is done when the tasks of commit number `at` are about to run, or, of the first and
    only one, when they have run (`is_late`). `kill` is the call of
    the system before which its process is killed, then without any `meanwhile`. A pattern does not
    see the topic that it `hides`. One that `evolves` brings headers, for which the table may have
    no column yet, and may add it.
    """

    name: int = 0
    topics: tuple[str, ...] = ("a",)
    names_missing: bool = False
    way: str = "subscribe"
    fails_on_loss: bool = True
    committed: bool = True
    says_isolation: bool = False
    starting: str | int | None = None
    until: int | None = None
    max_bytes: int | None = None
    chunk_bytes: int | None = None
    transform: str | None = None
    runs_twice: bool = False
    dry_run: bool = False
    meanwhile: Step | None = None
    at: int = 0
    is_late: bool = False
    kill: int | None = None
    hides: int | None = None
    evolves: bool = False

    def do(self, world: World) -> str:
        return LoadCheck(world, self).run()

    def asked(self, world: World) -> Asked:
        shorts = world.named(self.topics, self.names_missing)
        hidden = self._hidden(world, shorts)
        keys = world.keys(tuple(short for short in shorts if short not in hidden))
        is_all_there = self.way == "pattern" or all(
            short in world.topics.topics for short in shorts
        )
        if self.way == "assign":
            # Not all of them: the last partition of each topic, if there are more, is left out.
            keys = tuple(key for key in keys if key[1] == 0 or (*key[:1], key[1] + 1) in keys)
        log = world.topics.seen()

        def offset(key: Key, number: int) -> int:
            seen = log[key]
            end = seen.stable_end if self.committed else seen.end
            return min(max(end, seen.start), seen.start + number)

        starting: Any = self.starting
        if starting is None or not keys:
            starting = "earliest"
        elif isinstance(starting, int) and starting >= 0:
            starting = {key: offset(key, starting) for key in keys}
        elif isinstance(starting, int):
            starting = -starting
        until = (
            None
            if self.until is None or not keys
            else {key: offset(key, self.until) for key in keys}
        )
        keeps_bad = world.history.on_error != "fail"
        pattern = shorts if self.way == "pattern" else ()
        how = self.fails_on_loss, self.committed, starting, until, keeps_bad, pattern, hidden
        return Asked(keys, is_all_there, *how)

    def _hidden(self, world: World, shorts: tuple[str, ...]) -> tuple[str, ...]:
        is_hiding = self.way == "pattern" and self.kill is None and self.meanwhile is None
        topic = world.topic(self.hides) if self.hides is not None and is_hiding else None
        return tuple(short for short in shorts if topic is not None and short == topic.short)

    @property
    def _is_evolving(self) -> bool:
        """What others do to the columns meanwhile may be in its way."""
        return self.evolves and self.meanwhile is None

    def call(self, world: World, asked: Asked, session: Any) -> Any:
        """The load itself, as a user calls it."""
        history = world.history
        given = {
            "starting": None if self.starting is None else self._place(world, asked.starting),
            "until": None if asked.until is None else self._place(world, asked.until),
            "max_bytes": self.max_bytes,
            "chunk_bytes": self.chunk_bytes,
            "transform": self.transform and TRANSFORMS[self.transform],
            "partition_by": history.partition_by or None,
        }
        arguments = {
            "name": picked(NAMES, self.name),
            "target": world.target.name,
            "options": self._options(world, asked),
            "dry_run": self.dry_run,
            "value_format": history.value_format,
            "on_error": history.on_error,
            **{name: value for name, value in given.items() if value is not None},
            **({"on_schema_change": "add"} if self._is_evolving else {}),
        }
        if world.spark is not None:
            if self.transform == "odd":
                arguments["transform"] = lambda rows: rows.where("offset % 2 = 1")
            session = world.spark
        elif self.kill is not None and world.killable is not None:
            return world.killable.load(arguments, self.kill)
        return pyspark_kafkalog.load(session, **arguments)

    def _options(self, world: World, asked: Asked) -> dict[str, str]:
        options = {
            "kafka.bootstrap.servers": world.servers,
            "failOnDataLoss": str(self.fails_on_loss).lower(),
            "includeHeaders": str(world.history.headers or self._is_evolving).lower(),
            **self._subscription(world, asked),
        }
        if not self.committed:
            options["kafka.isolation.level"] = "read_uncommitted"
        elif self.says_isolation:
            options["kafka.isolation.level"] = "read_committed"
        return options

    def _subscription(self, world: World, asked: Asked) -> dict[str, str]:
        names = [world.topics.name(short) for short in world.named(self.topics, self.names_missing)]
        if self.way == "pattern":
            return {"subscribePattern": f"^({'|'.join(map(re.escape, names))})"}
        if self.way == "assign":
            parts: dict[str, list[int]] = {name: [] for name in names}
            for short, number in asked.keys:
                parts[world.topics.name(short)].append(number)
            return {"assign": json.dumps({name: part or [0] for name, part in parts.items()})}
        return {"subscribe": ",".join(names)}

    def _place(self, world: World, place: Any) -> Any:
        if isinstance(place, int):
            return f"-{place} offsets"
        if isinstance(place, str):
            return place
        topics: dict[str, dict[str, int]] = {}
        for (short, number), offset in place.items():
            topics.setdefault(world.topics.name(short), {})[str(number)] = offset
        return topics


@dataclass(frozen=True, slots=True, repr=False)
class InTurn(Step):
    """What one after the other does while a load is at work: `meanwhile` of one."""

    steps: tuple[Step, ...] = ()

    def do(self, world: World) -> str:
        return "; ".join(step.do(world) for step in self.steps)


@contextmanager
def out_of_sight(topics: Collection[str]) -> Iterator[None]:
    """Brokers do not know these topics for a while."""
    there = Cluster.topics

    def hiding(
        cluster: Cluster, names: Sequence[str] | None = None, create: bool = False
    ) -> dict[str, list[int]]:
        for name in topics:
            if names is not None and name in names:
                raise UnknownTopicError(name)
        found = there(cluster, names, create)
        return {name: numbers for name, numbers in found.items() if name not in topics}

    with patch.object(Cluster, "topics", hiding) if topics else nullcontext():
        yield


class LoadCheck:
    """One load: what was due, what came."""

    def __init__(self, world: World, step: Load) -> None:
        self.world = world
        self.step = step
        self.name = picked(NAMES, step.name)
        self.asked = step.asked(world)
        self.before = world.topics.seen()
        self.known = world.places.get(self.name, Place())
        self.place = self.known.seeing(self.asked.keys, self.before)
        self.due = due(self.asked, self.place, self.before)
        self.rows_before = world.rows
        if world.dropped:
            self.due.errors.add(TargetError)

    def run(self) -> str:
        session = TaskSession(self._before_tasks, self._after_tasks, self.step.runs_twice)
        result: Any = None
        error: Exception | None = None
        try:
            with out_of_sight([self.world.topics.name(short) for short in self.asked.hidden]):
                result = self.step.call(self.world, self.asked, session)
        except Killed as killed:
            error = killed
            self.world.target.settle()
        except KafkalogError as raised:
            error = raised
        if self.step.dry_run:
            return self._check_plan(result, error)
        self._check_error(error)
        if self.world.dropped:
            self.world.check_unchanged()
            return f"{type(error).__name__}: {error}"
        self._check_rows(result, error)
        return f"{type(error).__name__}: {error}" if error else repr(result)

    def _check_plan(self, plan: Any, error: Exception | None) -> str:
        self.due.errors.discard(KafkalogError)
        self._check_error(error)
        self.world.check_unchanged()
        if error is not None:
            return f"{type(error).__name__}: {error}"
        planned = {
            (self.world.short(piece.topic), piece.partition): (
                piece.start_offset,
                piece.until_offset,
            )
            for piece in plan.ranges
            if piece.offset_count
        }
        if self.step.max_bytes is None:
            wanted = {key: each for key, each in self.due.ranges.items() if each[0] < each[1]}
            assert planned == wanted, f"planned {planned}, due are {wanted}"
        return repr(plan)

    def _check_error(self, error: Exception | None) -> None:
        if isinstance(error, Killed):
            return
        errors = self.due.errors
        names = " or ".join(sorted(each.__name__ for each in errors))
        if error is None:
            assert not errors, f"{names} was due, and the load went through"
        elif not errors:
            raise AssertionError(f"no error was due: {type(error).__name__}") from error
        elif not isinstance(error, tuple(errors)):
            raise AssertionError(f"{names} was due, not {type(error).__name__}") from error

    def _check_rows(self, result: Any, error: Exception | None) -> None:
        world, due_ = self.world, self.due
        # First: it puts in place what a loader had published that was killed.
        says = world.observed(self.name)
        now = world.target_rows()
        missing = self.rows_before - now
        assert not missing, f"rows that were there are gone: {missing}"
        passed = {
            key: (due_.gaps.get(key, (start,))[0], self._end(key, start, until, says, error))
            for key, (start, until) in due_.ranges.items()
        }
        gaps = world.new_gaps()
        if result is not None:
            said = world.gaps_of(result)
            assert gaps == said, f"given up are {said}, and the target says {gaps}"
        account = Account(
            self.asked,
            self.before,
            world.topics.seen(),
            passed,
            now - self.rows_before,
            gaps,
            self._keeps,
            frozenset(due_.anew),
        )
        problems = account.problems()
        assert not problems, "\n".join(problems)
        self._check_others(says)
        self._check_letters(passed)
        is_one_commit = self.step.chunk_bytes is None and self.step.max_bytes is None
        if isinstance(error, Killed) and is_one_commit:
            ends = {key: until for key, (_, until) in passed.items()}
            moved = {key for key, (start, until) in passed.items() if start < until}
            whole = {key for key, (_, until) in due_.ranges.items() if ends[key] == until}
            assert not moved or len(whole) == len(ends), f"killed in between: {passed}"
        if result is not None:
            came = sum(account.new.values())
            assert result.records == came, f"{result.records} reported, {came} came"
        world.rows = now
        world.moved(self.name, self._moved(passed, says, error))

    def _end(self, key: Key, start: int, until: int, says: Place, error: Exception | None) -> int:
        """Where the target says that the name goes on, if that may be."""
        begins = self.due.gaps.get(key, (start,))[0]
        is_same = says.incarnations.get(key[0]) in (None, self.before[key].incarnation)
        end = says.offsets.get(key, begins) if is_same else begins
        if error is not None:
            is_partly = self.step.chunk_bytes is not None or isinstance(error, Killed)
            most = until if is_partly else begins
            # A place that was read further before is where it was; one in a topic that was created
            # again is that of the new one, or begins.
            was = begins if key[0] in self.due.anew else self.place.offsets.get(key, begins)
            fits = end == was or begins <= end <= most
            end = begins if end == was or end < begins else end
        elif self.step.max_bytes is not None:
            fits = min(start + 1, until) <= end <= until or end == start == until
        else:
            fits = end == until or (begins == until and key not in says.offsets)
            end = until
        assert fits, f"{key} goes on at {says.offsets.get(key)}, due was {begins} to {until}"
        return end

    def _check_others(self, says: Place) -> None:
        """What the load was not asked for is where it was."""
        for key, offset in self.place.offsets.items():
            if key not in self.due.ranges and key[0] not in self.due.anew:
                assert says.offsets.get(key, offset) == offset, f"{key} moved to {says.offsets}"

    def _check_letters(self, passed: Mapping[Key, tuple[int, int]]) -> None:
        """What became no row is in the topic of dead letters."""
        if self.world.history.on_error != "deadletter":
            return
        ranges = {key: passed[key] for key in passed.keys() & self.before.keys()}
        bad = [each for each in visible(self.asked, ranges, self.before) if each.is_absurd]
        for short in {each.topic for each in bad}:
            letters = self.world.topics.dead_letters(short)
            for record in bad:
                is_lost = record.topic == short and record.value not in letters
                is_gone = record not in self.world.topics.there(record)
                assert not is_lost or is_gone, f"{record} is no row, and no dead letter"

    def _moved(
        self, passed: Mapping[Key, tuple[int, int]], says: Place, error: Exception | None
    ) -> Place:
        """Where the name is now. After an error its target says how far it came, within what was
        found to be right; else it is where it had to get."""
        here = {key[0]: self.before[key].incarnation for key in passed}
        if error is None:
            ends = {key: until for key, (_, until) in passed.items()}
        else:
            here = {t: one for t, one in here.items() if says.incarnations.get(t) == one}
            ends = {key: says.offsets[key] for key in passed.keys() & says.offsets.keys()}
            ends = {key: end for key, end in ends.items() if key[0] in here}
        anew = self.due.anew & here.keys()
        gone = self.due.gone if error is None else self.due.gone - says.incarnations.keys()
        kept = {key: at for key, at in self.place.offsets.items() if key[0] not in anew | gone}
        were = {t: one for t, one in self.place.incarnations.items() if t not in gone}
        now = Place(kept | ends, were | here)
        after = self.known.after(now, now if error is None else says, gone)
        after.away |= {topic: self.place.only({topic}) for topic in gone}
        return after

    def _keeps(self, record: Record) -> bool:
        if self.step.transform == "odd" and record.offset % 2 == 0:
            return False
        if record.is_absurd:
            return self.world.history.on_error == "null"
        return True

    def _before_tasks(self, commit: int) -> None:
        if commit == self.step.at and not self.step.is_late:
            for step in self._meanwhile():
                self._do_before_tasks(step, commit)

    def _after_tasks(self, commit: int) -> None:
        """What happens to topics now does not matter to what has landed."""
        if not self.step.is_late or self.step.chunk_bytes is not None or self.world.spark:
            return
        for step in self._meanwhile():
            if isinstance(step, Load):
                self._rival(step)
            else:
                self.world.story.append(f"    meanwhile, before the commit: {step!r}")
                step.do(self.world)

    def _meanwhile(self) -> Sequence[Step]:
        step = self.step.meanwhile
        if isinstance(step, InTurn):
            return step.steps
        return [] if step is None else [step]

    def _do_before_tasks(self, step: Step, commit: int) -> None:
        world = self.world
        unread = {key: start for key, (start, _) in self.due.ranges.items()}
        if commit:
            unread |= world.observed(self.name).offsets
        if isinstance(step, Load):
            if commit == 0:
                self._rival(step)
            return
        story = f"    meanwhile, before commit {commit}: {step!r}"
        world.story.append(story)
        step.do(world)
        after = world.topics.seen()
        for key, (_, until) in self.due.ranges.items():
            if unread[key] >= until or not self.asked.fails_on_loss:
                continue
            if (
                key not in after
                or after[key].incarnation != self.before[key].incarnation
                or unread[key] < after[key].start
            ):
                self.due.errors.add(DataLossError)

    def _rival(self, step: Load) -> None:
        """Another load of this name, which is faster."""
        world = self.world
        world.story.append(f"    meanwhile: {step!r}")
        told = step.do(world)
        world.story.append(f"        -> {told}")
        self.known = world.places.get(self.name, Place())
        now = self.known.seeing(self.asked.keys, self.before)
        for key in self.due.ranges:
            planned = self.place.incarnations.get(key[0], self.before[key].incarnation)
            is_other = now.incarnations.get(key[0], planned) != planned
            if is_other or now.offsets.get(key) != self.place.offsets.get(key):
                self.due.errors.add(LoadConflictError)
        self.rows_before = world.rows
        self.place = now
