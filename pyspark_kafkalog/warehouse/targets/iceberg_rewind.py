"""A load of an Iceberg table goes back: its properties, and files without the rows that it lands
again.

One snapshot `overwrite`, which is what readers that stream the table see. Its summary names ranges
of no offsets where the load goes on, as the summaries of loads do (iceberg_history.py). Tables with
delete files keep their rows: they may be gone already. Called by iceberg.py alone.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.offsets import to_json
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import Position, Stage, ranges_to_json
from pyspark_kafkalog.warehouse.targets.deleted_keys import DeletedKeys
from pyspark_kafkalog.warehouse.targets.iceberg_history import NAME, RANGES
from pyspark_kafkalog.warehouse.targets.iceberg_replacement import Said, replace_files
from pyspark_kafkalog.warehouse.targets.iceberg_rules import rules_of_table
from pyspark_kafkalog.warehouse.targets.iceberg_upkeep import (
    all_files,
    by_id,
    file_schema,
    fits_in,
    new_stage,
)
from pyspark_kafkalog.warehouse.targets.iceberg_upsert import known_deleted_keys, upserted
from pyspark_kafkalog.warehouse.targets.rewound import SAID_BY, StepBack, cannot_cut
from pyspark_kafkalog.warehouse.targets.upkeep import Columns, LiveFile, Merge


@dataclass(frozen=True, slots=True)
class Places:
    """Where the loads of a table go on: the one that is asked for, all others, and the properties
    that say so of it."""

    of_load: Callable[[Table], Position]
    of_others: Callable[[Table], Iterable[tuple[str, Position]]]
    properties: Callable[[Table, Position], Mapping[str, str]]


class IcebergRewind:
    """A table, which `newest` gives in its newest state, as a rewind of load `name` sees it: see
    rewound_files.RewoundTable."""

    _table: Table

    def __init__(self, newest: Callable[[], Table], name: str, places: Places) -> None:
        self._newest = newest
        self._name = name
        self._places = places

    def look(self) -> Position:
        self._table = self._newest()
        return self._places.of_load(self._table)

    def others(self) -> Iterable[tuple[str, Position]]:
        return self._places.of_others(self._table)

    def is_upserted(self) -> bool:
        return upserted(self._table) is not None

    def deleted(self) -> DeletedKeys:
        return known_deleted_keys(self._table, {})

    def files(self) -> Sequence[tuple[LiveFile, str | None]]:
        found = all_files(self._table)
        if found is None:
            raise self._refused("has delete files, which its own engine has to apply")
        return found

    def schema(self) -> pa.Schema:
        reason = next(rules_of_table(self._table), None)
        schema = file_schema(self._table.schema())
        if reason or schema is None:
            raise self._refused(reason or "has columns of types that loads do not write")
        return schema

    def columns(self, schema: pa.Schema) -> Columns:
        return by_id(schema)

    def constants(self, file: LiveFile) -> Mapping[str, str | None]:
        return {}

    def fits(self, file: LiveFile, schema: pa.Schema) -> bool:
        return fits_in(file, schema)

    def stage(self) -> Stage:
        return new_stage(self._table, self.schema())

    def refuse_cuts(self) -> None:
        pass

    def publish(self, stage: Stage, step: StepBack, cuts: Sequence[Merge]) -> bool:
        here = [OffsetRange.of(key, place, place) for key, place in step.places.items()]
        said = Said(
            Operation.OVERWRITE if cuts else Operation.APPEND,
            {
                NAME: self._name,
                RANGES: json.dumps(ranges_to_json(here)),
                SAID_BY: json.dumps(to_json(step.places)),
            },
            self._places.properties(self._table, step.position),
        )
        return replace_files(self._newest, self._table, stage, cuts, said) is not None

    def _refused(self, why: str) -> TargetError:
        return cannot_cut(f"the Iceberg table {'.'.join(self._table.name())} {why}")
