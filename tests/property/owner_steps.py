"""What other owners do to a target in a history, and what is lost there: steps of load_model.py."""

from collections import Counter
from dataclasses import dataclass

import pyspark_kafkalog
from pyspark_kafkalog.errors import TargetError, WouldDoubleError
from pyspark_kafkalog.warehouse.targets.target import open_target
from pyspark_kafkalog.warehouse.targets.upkeep import Upkeep
from tests.property.load_model import NAMES, Step, World
from tests.property.load_oracle import Key, Place, Row
from tests.property.load_steps import Load
from tests.property.task_session import TaskSession
from tests.property.topic_model import picked


@dataclass(frozen=True, slots=True, repr=False)
class Owner(Step):
    """`what`: drop, add_column, optimize, vacuum, roll_back, our_vacuum, upkeep."""

    what: str = "optimize"
    back: int = 0

    def do(self, world: World) -> str:
        if not world.is_made:
            return "there is no table yet"
        return str(getattr(self, f"_{self.what}")(world))

    def _drop(self, world: World) -> str:
        world.target.drop()
        if world.target.keeps_offsets_when_dropped():
            world.dropped |= world.places.keys()
        else:
            world.places.clear()
        world.rows = Counter()
        world.gaps = world.target.gaps()
        world.versions.clear()
        world.has_new_column = False
        world.is_made = False
        return "dropped"

    def _add_column(self, world: World) -> str:
        if world.has_new_column or world.dropped:
            return "nothing"
        world.target.add_column()
        world.has_new_column = world.target.is_table
        world.versions.clear()
        return "added"

    def _optimize(self, world: World) -> str:
        if world.dropped:
            return "nothing"
        world.target.optimize()
        return "done"

    def _vacuum(self, world: World) -> str:
        if world.dropped:
            return "nothing"
        world.target.vacuum()
        world.versions.clear()
        return "done"

    def _our_vacuum(self, world: World) -> str:
        return f"swept {len(open_target(world.target.name).vacuum(0, False))}"

    def _upkeep(self, world: World) -> str:
        if world.dropped:
            return "nothing"
        asked = Upkeep(retention_s=0, forced=True)
        done = open_target(world.target.name).upkeep(asked)
        world.versions.clear()
        return f"{done.compacted_files} files into {done.written_files}, {done.left}"

    def _roll_back(self, world: World) -> str:
        if not world.versions or world.dropped:
            return "nothing"
        version, rows, places = world.versions[-1 - self.back % len(world.versions)]
        world.target.roll_back(version)
        world.rows = Counter(rows)
        world.versions.clear()
        refused = [name for name in [*world.places] if self._is_refused(world, name, places)]
        return f"to {version}, {sum(rows.values())} rows, refused: {refused}"

    def _is_refused(self, world: World, name: str, places: dict[str, dict[Key, int]]) -> bool:
        """Whether a load has moved since then, and is refused; it starts over."""
        try:
            world.observed(name)
        except TargetError as error:
            told = str(error)
        else:
            assert places.get(name) == world.places[name].offsets, f"{name} goes on beyond its rows"
            return False
        assert "start over" in told
        assert pyspark_kafkalog.forget(world.target.name, name)
        del world.places[name]
        return True


@dataclass(frozen=True, slots=True, repr=False)
class LoseOffsets(Step):
    """What a name keeps in the target is lost, a load of it is refused, it is brought back."""

    name: int = 0

    def do(self, world: World) -> str:
        name = picked(NAMES, self.name)
        if not world.places.get(name, Place()).offsets or world.dropped:
            return "nothing"
        if not world.rows:
            return "nothing"
        restore = world.target.lose_offsets(name)
        if restore is None:
            return "nothing"
        shorts = sorted({key[0] for key in world.places[name].offsets} & world.topics.topics.keys())
        error: BaseException | None = None
        try:
            if shorts:
                load = Load(name=self.name, topics=tuple(shorts), fails_on_loss=False)
                load.call(world, load.asked(world), TaskSession())
                raise AssertionError(f"the offsets of load {name} are lost, and it loads")
        except TargetError as refused:
            error = refused
        finally:
            restore()
        world.check_unchanged()
        return f"refused: {error}"


@dataclass(frozen=True, slots=True, repr=False)
class Forget(Step):
    name: int = 0

    def do(self, world: World) -> str:
        name = picked(NAMES, self.name)
        # Also where it goes on without all topics that it knew: which these were is remembered.
        had = name in world.places
        done = pyspark_kafkalog.forget(world.target.name, name)
        assert done == had, f"forget returned {done}"
        world.places.pop(name, None)
        world.dropped.discard(name)
        world.check_unchanged()
        return str(done)


@dataclass(frozen=True, slots=True, repr=False)
class Rewind(Step):
    """A load goes back by some offsets in one partition."""

    name: int = 0
    partition: int = 0
    back: int = 1
    truncates: bool = True

    def do(self, world: World) -> str:
        name = picked(NAMES, self.name)
        offsets = world.places.get(name, Place()).offsets
        # A value that became null does not say which partition it is of.
        if not offsets or world.dropped or world.history.on_error == "null":
            return "nothing"
        key = picked(sorted(offsets), self.partition)
        to = max(0, offsets[key] - self.back)
        rows = self._beyond(world, key, to)
        errors = self._errors(world, key, rows, name)
        try:
            done = pyspark_kafkalog.rewind(
                world.target.name,
                name,
                {world.topics.name(key[0]): {str(key[1]): to}},
                truncate_after=self.truncates,
                options={"failOnDataLoss": "false"},
            )
        except tuple(errors) as refused:
            world.check_unchanged()
            world.check_place(name)
            return f"refused: {refused}"
        assert not rows or (self.truncates and not errors), f"{sum(rows.values())} rows in the way"
        assert done.deleted_rows == sum(rows.values())
        world.rows -= rows
        world.check_unchanged()
        offsets[key] = to
        world.check_place(name)
        world.moved(name, world.places[name])
        return f"{key} to {to}, {done.deleted_rows} rows deleted"

    def _beyond(self, world: World, key: Key, to: int) -> Counter[Row]:
        """The rows of the partition from an offset on, of whatever topic had that name."""
        return Counter(
            {
                row: times
                for row, times in world.rows.items()
                if row[0] == key[0]
                and world.topics.by_value[row[2]].partition == key[1]
                and row[1] >= to
            }
        )

    def _errors(
        self, world: World, key: Key, rows: Counter[Row], name: str
    ) -> list[type[Exception]]:
        if not world.target.is_table:
            # Of all that a commit brought, whatever it is of.
            return [WouldDoubleError] if world.rows else []
        if not rows:
            return []
        if not self.truncates:
            return [WouldDoubleError]
        at = world.places[name].offsets[key]
        is_shared = any(
            key in place.offsets or any(key in gone.offsets for gone in place.away.values())
            for other, place in world.places.items()
            if other != name
        )
        is_beyond = any(row[1] >= at for row in rows)
        return [TargetError] if is_shared or is_beyond else []
