"""Maintenance beside loads at work, in processes of their own: no row is lost or doubled."""

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_kafkalog.warehouse.targets.upkeep import Upkeep
from tests.pyspark_kafkalog.warehouse.rows_loader import load
from tests.pyspark_kafkalog.warehouse.tables import KINDS, expected_rows

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
LOADS = 6
LOADER = """
import sys
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import load
for until_offset in range(1, {loads} + 1):
    load(open_target(sys.argv[1]), sys.argv[2], until_offset)
"""


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_nothing_is_lost_or_doubled_beside_loads_at_work(kind: str, tmp_path: Path) -> None:
    table, names = KINDS[kind](tmp_path), ["nightly", "hourly"]
    load(table.open(), "first", 2)
    loaders = [
        subprocess.Popen(
            [sys.executable, "-c", LOADER.format(loads=LOADS), table.name, name], cwd=ROOT
        )
        for name in names
    ]
    rounds = compacted = 0
    while any(loader.poll() is None for loader in loaders):
        # No sweep, which would be asked to take what a load has just staged.
        compacted += table.open().upkeep(Upkeep()).compacted_files
        rounds += 1
    assert [loader.returncode for loader in loaders] == [0, 0]
    print(f"\n  {kind}: {compacted} files compacted in {rounds} rounds beside {2 * LOADS} loads")
    assert compacted
    expected = expected_rows("first", 2)
    for name in names:
        expected += expected_rows(name, LOADS)
        assert table.offsets(name) == {0: LOADS, 1: LOADS}
    assert table.rows() == expected
    table.open().upkeep(Upkeep(retention_s=0, forced=True))
    assert table.rows() == expected
    for name in names:
        load(table.open(), name, LOADS + 1)
    assert table.rows() == expected_rows("first", 2) + expected_rows(
        "nightly", LOADS + 1
    ) + expected_rows("hourly", LOADS + 1)
