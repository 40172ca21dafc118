"""Upserts beside a dictionary: random histories of records, tombstones, names, new beginnings,
steps back, topics that are created again and upkeep.

Two loads of one table have partitions of their own. A key keeps to its partition, but for records
that are made to break that; with `order_by` it may be in any. KAFKALOG_UPSERT_SEED replays a run,
KAFKALOG_UPSERT_STEPS makes it longer (`make property`).
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from pyspark_kafkalog import forget, maintain, rewind
from pyspark_kafkalog.errors import InvalidRowError
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from tests.pyspark_kafkalog.warehouse.tables import (
    DeltaLakeTable,
    DuckTable,
    IcebergTable,
    MariaDbTable,
    PostgresTable,
    SqliteTable,
    Table,
)
from tests.pyspark_kafkalog.warehouse.upsert_loader import Record, next_offset, upsert

SEED = int(os.environ.get("KAFKALOG_UPSERT_SEED", random.SystemRandom().randrange(1_000_000)))
STEPS = int(os.environ.get("KAFKALOG_UPSERT_STEPS", "10"))
PARTITIONS = {"first": (0, 1), "second": (2,)}
KEYS = [b"", b"a", b"A", b"a ", b"\x00", b"b", b"\xff", b"'"]


class Known(NamedTuple):
    """What the newest record of a key says; None is that it is deleted."""

    time: int
    partition: int
    value: bytes | None


class Oracle:
    """What a table holds, by key."""

    def __init__(self, is_ordered: bool) -> None:
        self.is_ordered = is_ordered
        self.known: dict[bytes, Known] = {}

    def takes(self, records: list[Record]) -> bool:
        """Whether it is known which of these is the newest, of those that are there too."""
        places = {key: {known.partition} for key, known in self.known.items()}
        for record in records:
            places.setdefault(record.key or b"", set()).add(record.partition)
        return self.is_ordered or all(len(of_key) == 1 for of_key in places.values())

    def upsert(self, records: list[Record]) -> None:
        for record in sorted(records, key=lambda record: record.partition):
            new = Known(record.time, record.partition, record.value)
            old = self.known.get(record.key or b"")
            if not self.is_ordered or old is None or new[:2] >= old[:2]:
                self.known[record.key or b""] = new

    def forget(self, name: str) -> None:
        for key, known in list(self.known.items()):
            if known.value is None and known.partition in PARTITIONS[name]:
                del self.known[key]

    def rows(self) -> dict[bytes, bytes]:
        return {key: known.value for key, known in self.known.items() if known.value is not None}


class History:
    """Partitions that grow, and two loads of them."""

    def __init__(self, table: Table, chance: random.Random, is_ordered: bool) -> None:
        self.table = table
        self.has_upkeep = isinstance(table, DeltaLakeTable | IcebergTable)
        self.chance = chance
        self.how = Upsert(order_by="timestamp") if is_ordered else Upsert()
        self.oracle = Oracle(is_ordered)
        self.logs: dict[int, list[Record]] = {0: [], 1: [], 2: []}
        self.topic_ids = {name: UUID(int=number) for number, name in enumerate(PARTITIONS, 1)}
        self.loaded: set[str] = set()
        """Names that have a place: also one that went back to the beginning."""

    def step(self) -> None:
        name = self.chance.choice(list(PARTITIONS))
        if self.chance.random() < 0.1:
            assert forget(self.table.name, name) == (name in self.loaded)
            self.loaded.discard(name)
            self.oracle.forget(name)
        elif self.chance.random() < 0.15:
            self.go_back(name)
        elif self.chance.random() < 0.1:
            self.create_topic_again(name)
        elif self.chance.random() < 0.1 and self.has_upkeep and self.is_there():
            # In a database that would sweep what the loads of other tests have staged.
            maintain(self.table.name, retention_hours=0, force=True)
        elif self.chance.random() < 0.2:
            self.load_misplaced(name)
        else:
            for _ in range(self.chance.randrange(6)):
                record = self.record(self.chance.choice(PARTITIONS[name]))
                self.logs[record.partition].append(record)
            self.load(name, self.new(name))
        assert self.found() == self.oracle.rows(), f"KAFKALOG_UPSERT_SEED={SEED}"

    def places(self, name: str) -> dict[int, int]:
        target = self.table.open()
        if target.position(name).topic_ids.get("orders") not in (None, self.topic_ids[name]):
            return dict.fromkeys(PARTITIONS[name], 0)
        return {each: next_offset(target, name, each) for each in PARTITIONS[name]}

    def create_topic_again(self, name: str) -> None:
        """Which each load sees for itself, with its next records."""
        self.topic_ids[name] = UUID(int=self.topic_ids[name].int + len(PARTITIONS))
        for partition in PARTITIONS[name]:
            self.logs[partition] = []

    def new(self, name: str) -> list[Record]:
        """Some of what the load does not have yet."""
        found = []
        for partition, place in self.places(name).items():
            left = self.logs[partition][place:]
            found += left[: self.chance.randint(0, len(left))]
        return found

    def go_back(self, name: str) -> None:
        loaded = {each: place for each, place in self.places(name).items() if place}
        places = {str(each): self.chance.randint(0, place) for each, place in loaded.items()}
        if places:
            rewind(self.table.name, name, {"orders": places})

    def load(self, name: str, records: list[Record]) -> bool:
        """Whether that is not refused."""
        if self.oracle.takes(records):
            if records:
                self.upsert(name, records)
                self.oracle.upsert(records)
                self.loaded.add(name)
            return True
        with pytest.raises(InvalidRowError, match="records of one key"):
            self.upsert(name, records)
        return False

    def upsert(self, name: str, records: list[Record]) -> None:
        upsert(self.table.open(), name, *records, how=self.how, topic_id=self.topic_ids[name])

    def load_misplaced(self, name: str) -> None:
        """Also a record of a key that may be in another partition, if all before it is loaded. What
        is refused never was in the log."""
        places, partition = self.places(name), self.chance.choice(PARTITIONS[name])
        misplaced = self.record(partition)._replace(key=self.chance.choice(KEYS))
        if self.load(name, [*self.logs[partition][places[partition] :], misplaced]):
            self.logs[partition].append(misplaced)

    def record(self, partition: int) -> Record:
        keys = KEYS if self.oracle.is_ordered else KEYS[partition::3]
        value = None if self.chance.random() < 0.3 else b"%d" % self.chance.randrange(10**9)
        return Record(self.chance.choice(keys), value, partition, self.chance.randrange(12))

    def found(self) -> dict[bytes, bytes]:
        rows = self.table.all_rows() if self.is_there() else []
        found = {bytes(row["key"]): bytes(row["value"]) for row in rows}
        assert len(found) == len(rows)
        return found

    def is_there(self) -> bool:
        return self.table.open().is_there()


TABLES: list[Callable[[Path], Table]] = [
    SqliteTable,
    DuckTable,
    PostgresTable,
    MariaDbTable,
    DeltaLakeTable,
    IcebergTable,
]


@pytest.mark.parametrize("is_ordered", [False, True], ids=["by offset", "by time"])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, marks=[pytest.mark.long] if make is not SqliteTable else [])
        for make in TABLES
    ],
)
def test_a_table_is_what_a_dictionary_would_be(
    make: Callable[[Path], Table], is_ordered: bool, tmp_path: Path
) -> None:
    print(f"KAFKALOG_UPSERT_SEED={SEED}")
    history = History(make(tmp_path), random.Random(SEED), is_ordered)
    for _ in range(STEPS):
        history.step()
