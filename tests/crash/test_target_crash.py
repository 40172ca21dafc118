"""SIGKILL before each call by which a load changes files or talks to its database.

The kill comes from below every library (kill_before_call.c). Then, half of the time, the load that
recovers is killed too. Afterwards one clean load: every record once, offsets equal to data. A run
tries KAFKALOG_CRASH_KILLS calls of each target (2), with KAFKALOG_CRASH_ALL_CALLS=1 each of them
(`make crash`); KAFKALOG_CRASH_SEED replays a run. The Parquet target has a suite of its own
(tests/pyspark_kafkalog/warehouse/targets/test_commit_crash.py).
"""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from tests.crash.kill_before_call import kill_library
from tests.pyspark_kafkalog.warehouse.rows_loader import load, write_rows
from tests.pyspark_kafkalog.warehouse.tables import (
    DATABASES,
    IN_AZURE,
    KINDS,
    TABLES_IN_STORES,
    DeltaLakeTable,
    IcebergTable,
    MariaDbTable,
    Table,
    expected_rows,
    table_of,
)
from tests.pyspark_kafkalog.warehouse.upsert_loader import Record, batch_of, found, upsert

pytestmark = [pytest.mark.crash, pytest.mark.long]

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KAFKALOG_CRASH_KILLS", "2"))
ALL_CALLS = os.environ.get("KAFKALOG_CRASH_ALL_CALLS") == "1"
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
NEVER = -1


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return kill_library(tmp_path_factory.mktemp("library"))


class Loader:
    """The child program that loads `table` up to an offset, each time in a fork of its own."""

    def __init__(self, table: Table, until_offset: int, library: str, *more: str) -> None:
        program = "tests.crash.killed_table_loader"
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, table.name, str(until_offset), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "LD_PRELOAD": library},
        )
        self.table = table

    def run(self, step: int) -> int | None:
        """Loads, killed before call `step`: the number of calls if it came to its end first."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline().split()
        self.table.settle()
        if said == ["killed"]:
            return None
        assert said
        assert said[0] == "ended"
        return int(said[1])

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        self._process.stdout.close()


@pytest.fixture(
    params=[kind for kind in [*KINDS, *TABLES_IN_STORES, *IN_AZURE] if kind != "parquet"]
)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "place"
    directory.mkdir()
    return table_of(request.param, directory)


@pytest.fixture
def loader(table: Table, library: str) -> Iterator[Loader]:
    running = Loader(table, 7, library)
    yield running
    running.close()


def check_whole_commits(table: Table, before: Counter[bytes], loaded: int) -> bool:
    """Readers see what was there before or what the load made of it; true for the latter."""
    whole = before + expected_rows("nightly", 7, start=loaded)
    rows, offsets = table.rows(), table.offsets("nightly")
    if rows == whole:
        assert offsets == {0: 7, 1: 7}
        return True
    assert rows == before
    assert offsets == ({0: loaded, 1: loaded} if loaded else {})
    return False


def test_a_load_killed_before_any_call_leaves_whole_commits(
    table: Table, loader: Loader, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    for loaded in (0, 3):
        calls, tried, committed = kill_loads(table, loader, loaded, chance)
        with capsys.disabled():
            print(
                f"\n  {type(table).__name__}, {loaded} offsets there: killed before {tried} of "
                f"{calls} calls, {committed} after the commit point, KAFKALOG_CRASH_SEED={SEED}",
                end="",
            )
        if tries_all(table):
            # A load into Iceberg ends with the call that commits: the catalog's journal is deleted.
            ends_by_commit = isinstance(table, IcebergTable)
            assert committed == 0 if ends_by_commit else 0 < committed < tried


def tries_all(table: Table) -> bool:
    """Of tables in stores, which take 4 to 20 s for each kill, only some."""
    return ALL_CALLS and not isinstance(table, (*TABLES_IN_STORES.values(), *IN_AZURE.values()))


def steps_of(loader: Loader, chance: random.Random) -> tuple[int, list[int]]:
    """How many calls it makes, and before which of them it is to be killed."""
    calls = loader.run(10**9)
    assert calls is not None
    steps = list(range(1, calls + 1))
    return calls, steps if tries_all(loader.table) else sorted(chance.sample(steps, KILLS))


def kill_loads(
    table: Table,
    loader: Loader,
    loaded: int,
    chance: random.Random,
    is_changed: Callable[[Table], bool] | None = None,
) -> tuple[int, int, int]:
    """Kills loads into a table with `loaded` offsets: calls that there are, tried, committed.

    `is_changed` tells whether the table is changed as the loads change it, by their commit."""

    def check() -> bool:
        is_whole = check_whole_commits(table, before, loaded)
        if isinstance(table, MariaDbTable):
            # Which commits a column before the rows that need it.
            assert is_changed is None or is_changed(table) >= is_whole
        else:
            assert is_changed is None or is_changed(table) == is_whole
        return is_whole

    def prepare(table: Table) -> None:
        if loaded:
            load(table.open(), "hourly", 2)
            load(table.open(), "nightly", loaded)

    before = expected_rows("hourly", 2) + expected_rows("nightly", loaded) if loaded else Counter()
    table.again(prepare, f"{loaded}")
    calls, steps = steps_of(loader, chance)
    committed = 0
    for step in steps:
        table.again(prepare, f"{loaded}")
        if loader.run(step) is None:
            committed += check()
            if chance.random() < 0.5 and loader.run(chance.choice(steps)) is None:
                check()
        assert loader.run(NEVER) is not None
        assert check()
    return calls, len(steps), committed


@pytest.fixture
def evolving_loader(table: Table, library: str) -> Iterator[Loader]:
    running = Loader(table, 7, library, "headers")
    yield running
    running.close()


def test_a_column_is_there_with_the_rows_that_need_it_whatever_is_killed(
    table: Table, evolving_loader: Loader, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loads bring headers, which the table has no column for."""
    chance = random.Random(SEED)
    calls, tried, committed = kill_loads(table, evolving_loader, 3, chance, has_column)
    with capsys.disabled():
        print(
            f"\n  {type(table).__name__}, evolving: killed before {tried} of {calls} calls, "
            f"{committed} after the commit point, KAFKALOG_CRASH_SEED={SEED}",
            end="",
        )


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_maintenance_killed_before_any_call_changes_no_row(
    kind: str, tmp_path: Path, library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are compacted, versions removed, a dead load's files swept; the next load goes on."""
    (tmp_path / "place").mkdir()
    table, chance = KINDS[kind](tmp_path / "place"), random.Random(SEED)
    rows = expected_rows("hourly", 2) + expected_rows("nightly", 4)

    def prepare(table: Table) -> None:
        load(table.open(), "hourly", 2)
        for until_offset in range(1, 5):
            load(table.open(), "nightly", until_offset)
        target = table.open()
        write_rows(target.stage(row_schema()), "dead", OffsetRange("orders", 0, 4, 5))

    table.again(prepare, "full")
    maintainer = Loader(table, 0, library, "maintain")
    calls, steps = steps_of(maintainer, chance)
    for step in steps:
        table.again(prepare, "full")
        if maintainer.run(step) is None:
            assert table.rows() == rows
            if chance.random() < 0.5 and maintainer.run(chance.choice(steps)) is None:
                assert table.rows() == rows
        load(table.open(), "nightly", 5)
        assert maintainer.run(NEVER) is not None
        assert table.rows() == rows + expected_rows("nightly", 5, start=4)
        assert table.offsets("nightly") == {0: 5, 1: 5}
        load(table.open(), "nightly", 7)
        assert table.rows() == rows + expected_rows("nightly", 7, start=4)
    maintainer.close()
    with capsys.disabled():
        print(f"\n  {kind}: killed before {len(steps)} of {calls} calls, {SEED=}", end="")


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_maintenance_killed_before_any_call_keeps_what_was_deleted(
    kind: str, tmp_path: Path, library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a table that is upserted: no key comes back, and none goes."""
    (tmp_path / "place").mkdir()
    table, chance = KINDS[kind](tmp_path / "place"), random.Random(SEED)
    by_time = Upsert(order_by="timestamp")
    first, second = Record(b"b", b"1", time=1), Record(b"b", b"2", time=2)
    gone = Record(b"a", None, time=9)

    def prepare(table: Table) -> None:
        for record in (Record(b"a", b"1", time=1), first, second, gone):
            upsert(table.open(), "nightly", record, how=by_time)
        target = table.open()
        stage = target.stage(by_time.schema(row_schema()), (), SchemaChange(adds=True), by_time)
        list(write_files(stage, "dead", [by_time.marked(batch_of([(4, second)], "orders"))]))

    table.again(prepare, "full")
    maintainer = Loader(table, 0, library, "maintain")
    calls, steps = steps_of(maintainer, chance)
    for step in steps:
        table.again(prepare, "full")
        if maintainer.run(step) is None:
            assert found(table) == {b"b": b"2"}
            if chance.random() < 0.5 and maintainer.run(chance.choice(steps)) is None:
                assert found(table) == {b"b": b"2"}
        late = [Record(b"a", b"late", 1, 5), Record(b"c", b"1", 1, 5)]
        upsert(table.open(), "nightly", *late, how=by_time)
        assert maintainer.run(NEVER) is not None
        assert found(table) == {b"b": b"2", b"c": b"1"}
        upsert(table.open(), "nightly", Record(b"a", b"back", 1, 10), how=by_time)
        assert found(table) == {b"a": b"back", b"b": b"2", b"c": b"1"}
    maintainer.close()
    with capsys.disabled():
        print(f"\n  {kind}, upserted: killed before {len(steps)} of {calls} calls, {SEED=}", end="")


@pytest.mark.parametrize("kind", ["delta", "iceberg", "sqlite", "duckdb", "postgresql", "mariadb"])
def test_a_load_goes_back_with_its_rows_or_not_at_all_whatever_is_killed(
    kind: str, tmp_path: Path, library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "place").mkdir()
    table, chance = KINDS[kind](tmp_path / "place"), random.Random(SEED)

    def prepare(table: Table) -> None:
        load(table.open(), "nightly", 2)
        load(table.open(), "nightly", 7)

    def is_back() -> bool:
        at = table.offsets("nightly")[0]
        assert at in (4, 7)
        assert table.offsets("nightly") == {0: at, 1: at}
        assert table.rows() == expected_rows("nightly", at)
        return at == 4

    table.again(prepare, "loaded")
    rewinder = Loader(table, 4, library, "rewind")
    calls, steps = steps_of(rewinder, chance)
    back = 0
    for step in steps:
        table.again(prepare, "loaded")
        if rewinder.run(step) is None:
            back += is_back()
            if chance.random() < 0.5 and rewinder.run(chance.choice(steps)) is None:
                is_back()
        assert rewinder.run(NEVER) is not None
        assert is_back()
        load(table.open(), "nightly", 9)
        if isinstance(table, DeltaLakeTable | IcebergTable):
            # Of a database it would take what others have staged on this machine.
            table.open().vacuum(0, False)
        assert table.rows() == expected_rows("nightly", 9)
    rewinder.close()
    with capsys.disabled():
        print(
            f"\n  {kind}, rewind: killed before {len(steps)} of {calls} calls, {back} after the "
            f"commit point, KAFKALOG_CRASH_SEED={SEED}",
            end="",
        )


def has_column(table: Table) -> bool:
    """Whether the table's schema has a column for headers, as its format tells it."""
    if isinstance(table, DeltaLakeTable):
        return "headers" in [field.name for field in table.delta().schema().fields]
    if isinstance(table, IcebergTable):
        metadata = table.iceberg()
        return metadata is not None and "headers" in metadata.schema().column_names
    return any("headers" in row for row in table.all_rows())


@pytest.mark.parametrize("kind", [*DATABASES, "delta", "iceberg", *TABLES_IN_STORES])
def test_an_upsert_is_whole_whatever_is_killed(
    kind: str, tmp_path: Path, library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    (tmp_path / "place").mkdir()
    table = table_of(kind, tmp_path / "place")
    before, after = {b"a": b"old", b"b": b"old"}, {b"a": b"new", b"c": b"2", b"gone": b"back"}

    def prepare(table: Table) -> None:
        first = [Record(key, b"old") for key in (b"a", b"b", b"gone")]
        upsert(table.open(), "nightly", *first, Record(b"gone", None))

    def is_committed() -> bool:
        rows = {bytes(row["key"]): bytes(row["value"]) for row in table.all_rows()}
        assert (rows, table.offsets("nightly")) in ((before, {0: 4}), (after, {0: 9}))
        return rows == after

    loader = Loader(table, 0, library, "upsert")
    try:
        table.again(prepare, "upserted")
        calls, steps = steps_of(loader, chance)
        committed = 0
        for step in steps:
            table.again(prepare, "upserted")
            if loader.run(step) is None:
                committed += is_committed()
            if not is_committed():
                assert loader.run(NEVER) is not None
            assert is_committed()
    finally:
        loader.close()
    with capsys.disabled():
        print(
            f"\n  {kind}, upsert: killed before {len(steps)} of {calls} calls, {committed} after "
            f"the commit point, KAFKALOG_CRASH_SEED={SEED}",
            end="",
        )
