"""A load of a Delta table goes back: its `txn`s, and files without the rows that it lands again.

One log entry DELETE, whose `remove`s and `add`s say that rows changed: whoever streams the table
stops there, unless it was told not to (skipChangeCommits). It is tried at the one log number that
follows the state that was looked at. Tables that may only be appended to, and those with a change
feed, which would be told of rows that stay, keep their rows. Called by delta.py alone.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.offsets import to_json
from pyspark_kafkalog.warehouse.commit import Position, Stage
from pyspark_kafkalog.warehouse.targets.deleted_keys import DeletedKeys
from pyspark_kafkalog.warehouse.targets.delta_entry import txn, write_entry
from pyspark_kafkalog.warehouse.targets.delta_rules import rules_of_rewriting
from pyspark_kafkalog.warehouse.targets.delta_table import open_table
from pyspark_kafkalog.warehouse.targets.delta_upkeep import (
    all_files,
    by_name,
    file_actions,
    file_schema,
    fits_in,
    new_stage,
    unfit,
)
from pyspark_kafkalog.warehouse.targets.delta_upsert import deleted_keys, upserted
from pyspark_kafkalog.warehouse.targets.rewound import SAID_BY, StepBack, cannot_cut
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace
from pyspark_kafkalog.warehouse.targets.upkeep import SWEPT, Columns, LiveFile, Merge


class Places(Protocol):
    """Where the loads of a table go on, in the version that it was opened at."""

    def of_load(self, table: DeltaTable) -> Position: ...
    def of_others(self, table: DeltaTable) -> Iterable[tuple[str, Position]]: ...

    def moves(self, position: Position, version: int) -> list[Transaction]:
        """The `txn`s by which the load that was asked for comes to `position` in a version."""


class DeltaRewind:
    """The table at `path` as a rewind of load `name` sees it: see rewound_files.RewoundTable."""

    _table: DeltaTable

    def __init__(self, place: TablePlace, name: str, places: Places) -> None:
        self._place = place
        self._name = name
        self._places = places

    def look(self) -> Position:
        self._table = open_table(self._place)
        return self._places.of_load(self._table)

    def others(self) -> Iterable[tuple[str, Position]]:
        return self._places.of_others(self._table)

    def is_upserted(self) -> bool:
        return upserted(self._table) is not None

    def deleted(self) -> DeletedKeys:
        return deleted_keys(self._table, self._place, {})

    def files(self) -> Sequence[tuple[LiveFile, str | None]]:
        return all_files(self._table, self._place)

    def schema(self) -> pa.Schema:
        reason = next(rules_of_rewriting(self._table), None)
        reason = reason or unfit(self._table, file_schema(self._table))
        if reason:
            raise self._refused(reason)
        return pa.schema(self._table.schema().to_arrow())

    def columns(self, schema: pa.Schema) -> Columns:
        return by_name(schema)

    def constants(self, file: LiveFile) -> Mapping[str, str | None]:
        return dict(file.partition)

    def fits(self, file: LiveFile, schema: pa.Schema) -> bool:
        return fits_in(file, schema)

    def stage(self) -> Stage:
        return new_stage(self._place, file_schema(self._table))

    def refuse_cuts(self) -> None:
        settings = self._table.metadata().configuration
        for setting, what in (
            ("delta.appendOnly", "may only be appended to"),
            ("delta.enableChangeDataFeed", "has a change feed"),
        ):
            if settings.get(setting, "").lower() == "true":
                raise self._refused(f"{what} ({setting} = true)")

    def publish(self, stage: Stage, step: StepBack, cuts: Sequence[Merge]) -> bool:
        version = self._table.version() + 1
        moves = self._places.moves(step.position, version)
        said = {
            "operation": "DELETE" if cuts else "WRITE",
            "operationParameters": {"predicate": "[]"} if cuts else {"mode": "Append"},
            "readVersion": version - 1,
            "isolationLevel": "Serializable",
            "isBlindAppend": False,
            "kafkalog.name": self._name,
            "kafkalog.offsets": json.dumps(to_json(step.position.offsets)),
            SAID_BY: json.dumps(to_json(step.places)),
        }
        actions = [*map(txn, moves)]
        try:
            actions += file_actions(stage, cuts, changes_rows=True)
            write_entry(self._place, stage, version, said, actions)
        except CommitFailedError:
            return False
        except FileNotFoundError as error:
            raise TargetError(f"{error}; nothing was published. {SWEPT}") from error
        return True

    def _refused(self, why: str) -> TargetError:
        return cannot_cut(f"the Delta table {self._place} {why}")
