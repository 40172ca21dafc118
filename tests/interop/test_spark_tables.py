"""Tables that loads made, as Spark reads and changes them by Delta's and Iceberg's own jars.

Those are not there for the newest Spark yet: another one is beside it (`make spark-tables`).
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_kafkalog import maintain
from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.warehouse.rows.layout import make_layout
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from tests.pyspark_kafkalog.warehouse.rows_loader import load
from tests.pyspark_kafkalog.warehouse.tables import DeltaLakeTable, Table, expected_rows, table_of
from tests.pyspark_kafkalog.warehouse.upsert_loader import Record, upsert
from tests.support.jvm import PEERS

pytestmark = [pytest.mark.interop, pytest.mark.long]

PLACE = PEERS / "spark-tables"


class Spark:
    """The child program, and what it is asked for of one table."""

    def __init__(self, program: "subprocess.Popen[str]", table: Table) -> None:
        self._program = program
        self._catalog = f"{table.directory}/catalog.db"
        is_delta = isinstance(table, DeltaLakeTable)
        self.table = f"delta.`{table.directory}/table`" if is_delta else "kafkalog.lake.raw.orders"

    def sql(self, text: str) -> list[list[str]]:
        assert self._program.stdin
        assert self._program.stdout
        asked = {"catalog": self._catalog, "sql": text.format(table=self.table)}
        self._program.stdin.write(json.dumps(asked) + "\n")
        self._program.stdin.flush()
        answer = json.loads(self._program.stdout.readline())
        assert "rows" in answer, answer["error"][:2000]
        rows: list[list[str]] = answer["rows"]
        return rows

    def rows(self, where: str = "true") -> Counter[bytes]:
        """The values, as they are told of by `Table.rows`."""
        found = self.sql(f"SELECT cast(value AS string) FROM {{table}} WHERE {where}")
        return Counter(value.encode() for [value] in found)


@pytest.fixture(scope="module")
def program() -> Iterator["subprocess.Popen[str]"]:
    assert (PLACE / "python").is_dir(), f"no Spark in {PLACE}: make spark-tables"
    jars = ",".join(map(str, sorted(PLACE.glob("*.jar"))))
    script = str(Path(__file__).with_name("spark_tables.py"))
    with subprocess.Popen(
        [sys.executable, script, jars],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PLACE / "python")},
    ) as running:
        yield running
        assert running.stdin
        running.stdin.close()


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return table_of(request.param, tmp_path)


@pytest.fixture
def spark(program: "subprocess.Popen[str]", table: Table) -> Spark:
    return Spark(program, table)


LAYOUTS = {
    "delta": ["", "partition", "days(timestamp)", "months(timestamp), partition"],
    "iceberg": [
        *("", "partition", "hours(timestamp)", "years(timestamp), bucket(3, key)"),
        "months(timestamp), truncate(4, offset)",
    ],
}
CONDITIONS: dict[str, Callable[[int, int], bool]] = {
    "partition = 1": lambda partition, offset: partition == 1,
    "offset = 3": lambda partition, offset: offset == 3,
    "offset > 3": lambda partition, offset: offset > 3,
    "key = X'00FF206B65792034'": lambda partition, offset: offset == 4,
    "key IS NULL": lambda partition, offset: offset % 3 == 0,
    "timestamp > TIMESTAMP'2023-11-14T22:13:24Z'": lambda partition, offset: offset > 3,
}
"""Of SQL, and of the records whose values are `nightly PARTITION OFFSET`."""


@pytest.mark.parametrize(
    ("table", "partition_by"),
    [(kind, partition_by) for kind in LAYOUTS for partition_by in LAYOUTS[kind]],
    indirect=["table"],
)
def test_spark_finds_the_rows_that_it_asks_for(
    table: Table, spark: Spark, partition_by: str
) -> None:
    layout = make_layout(partition_by, (), "zstd", 1 << 20)
    for until_offset in (2, 5, 7):
        load(table.open(), "nightly", until_offset, layout=layout)
    for _ in range(2):
        assert spark.rows() == expected_rows("nightly", 7)
        for where, is_wanted in CONDITIONS.items():
            wanted = {
                value: count
                for value, count in expected_rows("nightly", 7).items()
                if is_wanted(*map(int, value.split()[1:]))
            }
            assert spark.rows(where) == wanted, where
        maintain(table.name)


DELETE = "DELETE FROM {table} WHERE offset < 2"
SET = "ALTER TABLE {table} SET TBLPROPERTIES"
CALL = "CALL kafkalog.system"
OF = "table => 'lake.raw.orders'"
CHANGES = {
    ("delta", "none"): [
        DELETE,
        "UPDATE {table} SET key = NULL WHERE offset < 2",
        "OPTIMIZE {table}; VACUUM {table} RETAIN 0 HOURS",
        "OPTIMIZE {table} ZORDER BY (offset)",
        f"{DELETE}; RESTORE {{table}} TO VERSION AS OF 2",
        f"{SET} ('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '1'); {DELETE}",
    ],
    ("delta", "upserts"): [
        "ALTER TABLE {table} ADD COLUMN note STRING",
        f"{SET} ('delta.enableDeletionVectors' = 'true'); {DELETE}",
    ],
    ("delta", "all"): [
        f"{SET} ('delta.enableRowTracking' = 'true')",
        f"{SET} ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', "
        "'delta.minWriterVersion' = '5')",
        "ALTER TABLE {table} ADD CONSTRAINT c CHECK (offset >= 0)",
        "ALTER TABLE {table} CLUSTER BY (offset)",
    ],
    ("iceberg", "none"): [
        DELETE,
        "UPDATE {table} SET key = NULL WHERE offset < 2",
        f"{CALL}.rewrite_data_files({OF}, options => map('rewrite-all', 'true')); "
        f"{CALL}.expire_snapshots({OF}, older_than => TIMESTAMP '2100-01-01', retain_last => 1)",
        f"{CALL}.rewrite_manifests({OF})",
        "ALTER TABLE {table} RENAME COLUMN key TO k; ALTER TABLE {table} RENAME COLUMN k TO key",
        "ALTER TABLE {table} WRITE ORDERED BY offset",
        "ALTER TABLE {table} CREATE BRANCH b; DELETE FROM {table}.branch_b WHERE offset < 2",
    ],
    ("iceberg", "upserts"): [
        "ALTER TABLE {table} ADD COLUMN note STRING",
        f"{SET} ('write.delete.mode' = 'merge-on-read'); {DELETE}",
    ],
    ("iceberg", "all"): [
        "ALTER TABLE {table} ADD PARTITION FIELD bucket(4, key)",
        f"{SET} ('format-version' = '3')",
    ],
}
"""What Spark does, by the kind of the table and the loads that are refused afterwards."""


@pytest.mark.parametrize("upserts", [False, True])
@pytest.mark.parametrize(
    ("table", "refused", "changes"),
    [(*each, changes) for each in CHANGES for changes in CHANGES[each]],
    indirect=["table"],
)
def test_a_load_goes_on_beside_spark_or_says_why_not(
    table: Table, spark: Spark, refused: str, changes: str, upserts: bool
) -> None:
    """And whichever it does, what Spark made of the table stays."""

    def go_on(number: int) -> Counter[bytes]:
        if not upserts:
            load(table.open(), "nightly", 3 * number)
            return expected_rows("nightly", 3 * number, start=3 * number - 3)
        fresh = [b"%d of %d" % (each, number) for each in range(3)]
        keys = [b"key %d" % (each * number) for each in range(3)]
        upsert(table.open(), "nightly", *map(Record, keys, fresh), how=Upsert())
        return Counter(fresh)

    go_on(1)
    go_on(2)
    for change in changes.split("; "):
        spark.sql(change)
    before = spark.rows()
    if refused == "all" or (refused == "upserts" and upserts):
        with pytest.raises(TargetError):
            go_on(3)
        assert spark.rows() == before
        return
    new = go_on(3)
    stays = before - Counter(value for value in before if upserts and value == b"0 of 2")
    assert spark.rows() == stays + new
