"""A load goes back beside loads of its name in processes of their own: each row is there once."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_kafkalog import rewind
from tests.pyspark_kafkalog.warehouse.rows_loader import load
from tests.pyspark_kafkalog.warehouse.tables import KINDS, expected_rows

pytestmark = [pytest.mark.crash, pytest.mark.long]

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
LOADS = 15
UNASKED = {"failOnDataLoss": "false"}
LOADER = """
import sys
from pyspark_kafkalog.errors import LoadConflictError
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import load
conflicts = 0
for until_offset in range(1, {loads} + 1):
    while True:
        try:
            load(open_target(sys.argv[1]), "nightly", until_offset)
            break
        except LoadConflictError:
            conflicts += 1
print(conflicts)
"""


@pytest.mark.parametrize("kind", ["delta", "iceberg", "sqlite", "postgresql", "mariadb"])
def test_each_row_is_there_once_beside_loads_at_work(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, chance = KINDS[kind](tmp_path), random.Random(SEED)
    load(table.open(), "nightly", 1)
    loaders = [
        subprocess.Popen(
            [sys.executable, "-c", LOADER.format(loads=LOADS), table.name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    times = rows = 0
    while any(loader.poll() is None for loader in loaders):
        at = table.offsets("nightly")
        to = {str(each): chance.randrange(at[each] + 1) for each in chance.choice([(0,), (0, 1)])}
        done = rewind(table.name, "nightly", {"orders": to}, truncate_after=True, options=UNASKED)
        times, rows = times + bool(done.ranges), rows + done.deleted_rows
    conflicts = [int(loader.communicate(timeout=60)[0]) for loader in loaders]
    assert [loader.returncode for loader in loaders] == [0, 0]
    with capsys.disabled():
        print(
            f"\n  {kind}: back {times} times, {rows} rows deleted, {sum(conflicts)} conflicts of "
            f"{2 * LOADS} loads, KAFKALOG_CRASH_SEED={SEED}",
            end="",
        )
    assert times
    at = table.offsets("nightly")
    assert table.rows() == {
        value: 1
        for value in expected_rows("nightly", LOADS)
        if int(value.split()[2]) < at[int(value.split()[1])]
    }
    load(table.open(), "nightly", LOADS + 1)
    assert table.rows() == expected_rows("nightly", LOADS + 1)
