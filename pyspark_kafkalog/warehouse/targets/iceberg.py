"""An Apache Iceberg table as a load target: files and offsets in one commit of its catalog.

    LOCATION/data/load-<load id>/part-orders-0-0-5000-<attempt>-0.parquet   where tasks write them
    table property `kafkalog.NAME.offsets`      {"orders":{"0":5000}}: where load NAME goes on
    table property `kafkalog.NAME.topic-ids`    {"orders":"6e0f..."}: the ids of these topics
    table property `kafkalog.NAME.epochs`       {"orders":{"0":7}}: the leader epochs of these
                                                partitions
    table property `kafkalog.NAME.marks`        {"orders":{"0":42}}: which record was read last of
                                                each (marks.py)
    table property `kafkalog.NAME.queries`      {"orders":{"0":42}}: which query moved each
                                                (query_number.py)
    table property `kafkalog.NAME.caught-up`    [{"orders":{"0":TIME}},{..},{..}], of an upsert: its
                                                caught_up.CaughtUp; null once NAME was
                                                forgotten, and all others {}
    snapshot summary                            `kafkalog.load-id`, `kafkalog.name` and
                                                `kafkalog.ranges`: what this snapshot brought, and
                                                `kafkalog.gaps`: what it gave up; and of a
                                                rewind `kafkalog.rewound`: to where

The commit point is the catalog's swap of the table's metadata, which carries the new snapshot and
the property together. The property is the truth: it outlives the expiry of snapshots, which the
summary does not; a load that has none is refused where a summary names it, or where files of loads
are in the table and no load has one. Files are written with the table's field ids and stay where
they are; what a killed load left behind is in no snapshot, and Iceberg's own removal of orphan
files deletes it.

Fenced: every commit makes a snapshot, also one without files, and requires that the table's current
snapshot, schema and partition spec are still those that were compared with the plan. pyiceberg's
retries would build the commit anew on whatever is there by then, so they are switched off
(`commit.retry.num-retries`, in memory alone); whoever is too late looks again. To roll the table
back rolls no offsets back: a load of which that took a snapshot is refused (iceberg_history.py).

Commit.sequence is the snapshot id. The catalog is named `kafkalog`; its properties are the target's
query, and those of pyiceberg's own environment variables and configuration file, where secrets are
better kept. Tables that are partitioned in another way than the load are refused, and locations
that are neither a directory, which needs the same path on driver and executors, nor in S3
(iceberg_place.py). Called by the driver, from any thread or process.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import (
    pyarrow_to_schema,
)
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionSpec
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.table import Table
from pyiceberg.utils.config import Config, merge_config
from pyiceberg.utils.properties import property_as_bool

from pyspark_kafkalog.client.config import Secret
from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError, TargetError
from pyspark_kafkalog.source.offsets import Offsets, describe, from_json, to_json
from pyspark_kafkalog.warehouse.caught_up import CaughtUp
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    Commit,
    CommitRecord,
    DataFile,
    PendingCommit,
    Position,
    Stage,
    Step,
    ids_from_json,
    ids_to_json,
    ranges_from_json,
    ranges_to_json,
)
from pyspark_kafkalog.warehouse.rows.allowed_change import UNSAID, SchemaChange
from pyspark_kafkalog.warehouse.rows.layout import PartitionField, Partitioning
from pyspark_kafkalog.warehouse.rows.schema_change import check_unchanged
from pyspark_kafkalog.warehouse.rows.upserts import Upsert, table_columns
from pyspark_kafkalog.warehouse.targets.deleted_keys import ANY_OFFSET
from pyspark_kafkalog.warehouse.targets.iceberg_evolution import (
    change_schema,
    changed_schema,
    joined_columns,
)
from pyspark_kafkalog.warehouse.targets.iceberg_files import (
    data_files,
    file_url,
    partition_of,
    with_field_ids,
)
from pyspark_kafkalog.warehouse.targets.iceberg_history import (
    ends_in_snapshots,
    is_named,
    rolled_back,
)
from pyspark_kafkalog.warehouse.targets.iceberg_place import (
    catalog_properties,
    data_place,
    name_in,
    place_at,
    refuse_odd_url,
)
from pyspark_kafkalog.warehouse.targets.iceberg_rest import (
    WAITS_FOR_FIRST_SNAPSHOT,
    BoundedRestCatalog,
    is_nessie,
    is_rest,
)
from pyspark_kafkalog.warehouse.targets.iceberg_rewind import IcebergRewind, Places
from pyspark_kafkalog.warehouse.targets.iceberg_rules import (
    refuse_other_ids,
    refuse_unfit,
    transform_of,
)
from pyspark_kafkalog.warehouse.targets.iceberg_transaction import (
    IN_MEMORY,
    commit_transaction,
    require_unaltered,
)
from pyspark_kafkalog.warehouse.targets.iceberg_upkeep import IcebergUpkeep, keeps_all
from pyspark_kafkalog.warehouse.targets.iceberg_upsert import (
    UpsertedIceberg,
    check_mode,
    deleted_keys,
    upserted,
)
from pyspark_kafkalog.warehouse.targets.publish import publish_fenced
from pyspark_kafkalog.warehouse.targets.rewound import SAID_BY, Rewind, Rewound, furthest
from pyspark_kafkalog.warehouse.targets.rewound_files import go_back
from pyspark_kafkalog.warehouse.targets.staging import LOAD_ID as LOAD_ID_FORM
from pyspark_kafkalog.warehouse.targets.staging import (
    discard,
    new_load_id,
)
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace
from pyspark_kafkalog.warehouse.targets.upkeep import Upkeep, Upkept
from pyspark_kafkalog.warehouse.targets.upserted import is_loaded, topics_alone
from pyspark_kafkalog.warehouse.targets.upserted_files import Change, FileUpsert

CATALOG = "kafkalog"
LOAD_ID = "kafkalog.load-id"

_OFFSETS_OF_A_LOAD = re.compile(r"kafkalog\.(?P<name>.*)\.offsets", re.DOTALL)
_FILE_OF_A_LOAD = re.compile(f"/load-{LOAD_ID_FORM}/")
_MISSING_FILE = (
    "The table's location has to be on a file system that the driver and all executors share. If "
    "it is, a removal of orphan files took what this load had written: run it again."
)
_CAUGHT = ("since_ms", "end", "end_ms")
_SHOWN_PROPERTIES = ("type", "uri", "warehouse")


class IcebergTarget:
    """The table `identifier`, NAMESPACE.TABLE, in the catalog that `properties` describe. See
    target.Target for the promises."""

    def __init__(self, identifier: str, properties: Mapping[str, str]) -> None:
        self.identifier = identifier
        self._properties = dict(properties)
        self._catalog: Catalog | None = None
        self._foreign_manifests: set[str] = set()

    def __repr__(self) -> str:
        return f"IcebergTarget({self.identifier!r})"

    def __str__(self) -> str:
        return f"iceberg:{self.identifier}"

    def is_there(self) -> bool:
        with self._explained(f"look for the load target {self}"):
            return self._existing_table() is not None

    def position(self, name: str, read_only: bool = False) -> Position:
        with self._explained(f"open the load target {self}"):
            table = self._existing_table()
            if table is None:
                return NOWHERE
            if not read_only:
                place = data_place(table)
                place.restore(lambda: self._named_files(place))
            return self.position_in(table, name)

    def names(self) -> list[str]:
        with self._explained(f"read the load target {self}"):
            table = self._existing_table()
            if table is None:
                return []
            found = (_OFFSETS_OF_A_LOAD.fullmatch(key) for key in table.metadata.properties)
            names = sorted(match["name"] for match in found if match)
            return [name for name in names if _kept_position(table, name) != NOWHERE]

    def history(self) -> Iterator[CommitRecord]:
        with self._explained(f"read the load target {self}"):
            table = self._existing_table()
            for snapshot in reversed(table.snapshots() if table else []):
                said = snapshot.summary
                if said and said.get("kafkalog.ranges") and not said.get(SAID_BY):
                    gaps = ranges_from_json(json.loads(said.get("kafkalog.gaps") or "[]"))
                    yield CommitRecord(
                        said.get("kafkalog.name") or "",
                        str(snapshot.snapshot_id),
                        snapshot.timestamp_ms,
                        gaps,
                    )

    def stage(
        self,
        schema: pa.Schema,
        partition_by: Sequence[PartitionField] = (),
        change: SchemaChange = UNSAID,
        upsert: Upsert | None = None,
    ) -> Stage:
        load_id = new_load_id()
        with self._explained(f"write to the load target {self}"):
            rows = table_columns(schema, upsert)
            table = self._table() or self._create(rows, partition_by)
            rows = joined_columns(table, rows, change)
            changed = changed_schema(table, rows, change)
            has_loads = upsert is not None and bool(self.names())
            check_mode(table, upsert, rows, has_loads, self.identifier)
            refuse_unfit(table, changed, rows, partition_by, self.identifier)
            path = data_place(table).make_stage(load_id)
            fields = tuple(partition_by)
            partitioning = Partitioning(fields, in_files=True) if fields else None
            rows = with_field_ids(rows, changed)
            staged = upsert.schema(rows) if upsert else rows
            return Stage(
                load_id, path, staged, partitioning=partitioning, change=change, upsert=upsert
            )

    def commit(self, pending: PendingCommit) -> Commit:
        with self._explained(
            f"commit to the load target {self} (to run the load again is safe: it goes on from the "
            "newest commit, whether that is this one or not)"
        ):
            return publish_fenced(pending, _FencedIceberg(self, pending))

    def discard(self, stage: Stage) -> None:
        discard(stage)

    def forget(self, name: str) -> bool:
        """A snapshot without files, so that a load at work conflicts with it, and the properties
        emptied: a property that is gone is no first load, but one that was lost."""
        with self._explained(f"forget load {name!r} in {self}"):
            was_there = False
            while (table := self._existing_table()) is not None:
                if _kept_position(table, name) == NOWHERE and not self._is_lost(table, name):
                    return was_there
                was_there = True
                base = table.metadata_location
                table.metadata.properties.update(IN_MEMORY)
                emptied = {_offsets_property(name): "{}", _ids_property(name): "{}"}
                emptied[_epochs_property(name)] = emptied[_marks_property(name)] = "{}"
                emptied[_queries_property(name)] = "{}"
                if _caught_property(name) in table.metadata.properties:
                    emptied[_caught_property(name)] = "null"
                places = dict.fromkeys(_kept_position(table, name).offsets, ANY_OFFSET)
                deleted = deleted_keys(table, places) if upserted(table) else None
                # What comes after the commit is of a load that has started over.
                names = deleted.names() if deleted else []
                known = self.names() if names else []
                others = [_kept_position(table, each).offsets for each in known if each != name]
                try:
                    _commit(table, emptied, {}, {"kafkalog.forgotten": name})
                    if deleted:
                        deleted.drop(names, topics_alone(places, others))
                    return True
                except CommitFailedException:
                    if self.newest().metadata_location == base:
                        raise
            return was_there

    def rewind(self, asked: Rewind) -> Rewound:
        with self._explained(f"rewind load {asked.name!r} in {self}"):
            if self._existing_table() is None:
                # Which says that there is no such load.
                asked.step_from(NOWHERE, str(self))
            places = Places(
                lambda table: self.position_in(table, asked.name),
                lambda table: ((name, self.position_in(table, name)) for name in self.names()),
                lambda table, position: _properties_of(table, asked.name, position),
            )
            return go_back(asked, IcebergRewind(self.newest, asked.name, places), str(self))

    def vacuum(self, idle_s: float, dry_run: bool) -> list[str]:
        with self._explained(f"sweep the load target {self}"):
            table = self._existing_table()
            if table is None:
                return []
            if keeps_all(table):
                # A file that no snapshot names may be that of an older one: a catalog such as
                # Nessie shows the newest alone, and has others on its branches.
                return []
            place = data_place(table)
            return place.sweep(idle_s, dry_run, lambda: self._named_files(place), self._fence)

    def upkeep(self, asked: Upkeep) -> Upkept:
        with self._explained(f"maintain the load target {self}"):
            return IcebergUpkeep(self.newest, self._fence, asked).run(self._refused)

    def _refused(self) -> list[str]:
        """The loads that cannot go on: see position_in."""
        table = self.newest()
        refused = []
        for name in self.names():
            try:
                self.position_in(table, name)
            except TargetError:
                refused.append(name)
        return refused

    def position_in(self, table: Table, name: str) -> Position:
        """Where load `name` goes on, in the table's metadata as it was loaded.

        Raises TargetError where that is lost, or the table was rolled back to before it."""
        if not self._is_lost(table, name):
            position = _kept_position(table, name)
            _refuse_rolled_back(table, name, position.offsets)
            return position
        witness, known = (
            f"its snapshots name load {name!r}",
            ends_in_snapshots(table.snapshots(), name),
        )
        if not is_named(table, name):
            witness = "files of loads are in it, while no load has such a property"
        ends = f"at least {json.dumps(to_json(known))}, and " if known else ""
        raise TargetError(
            f"the Iceberg table {'.'.join(table.name())} has no property {_offsets_property(name)} "
            f"any more, and {witness}: to begin again would double rows; nothing was written. Set "
            f"the property to where the load ended: {ends}every {'other ' if known else ''}"
            "partition at max(offset) + 1 of its rows, as one that is left out is loaded from the "
            'beginning ({"TOPIC": {"PARTITION": OFFSET}}; {} for a load that is new). Or let the '
            "load land everything again (pyspark_kafkalog.forget, kafkalog load --forget)."
        )

    def _is_lost(self, table: Table, name: str) -> bool:
        """Whether a load has no property, though it made snapshots; or no load has one, though
        files of loads are there. One that was forgotten has a property."""
        if _offsets_property(name) in table.metadata.properties:
            return False
        if is_named(table, name):
            return True
        if any(_OFFSETS_OF_A_LOAD.fullmatch(key) for key in table.metadata.properties):
            return False
        return self._has_files_of_loads(table)

    def _has_files_of_loads(self, table: Table) -> bool:
        """By the paths in the current snapshot. A manifest never changes, and is read once: others
        may commit so often that whoever reads them all is always late."""
        snapshot = table.current_snapshot()
        for manifest in snapshot.manifests(table.io) if snapshot else ():
            if manifest.manifest_path not in self._foreign_manifests:
                for entry in manifest.fetch_manifest_entry(table.io):
                    if _FILE_OF_A_LOAD.search(entry.data_file.file_path):
                        return True
                self._foreign_manifests.add(manifest.manifest_path)
        return False

    def _named_files(self, place: TablePlace) -> set[str]:
        """The files that any snapshot names, as they are called in a place."""
        table = self.newest()
        manifests = {
            manifest.manifest_path: manifest
            for snapshot in table.snapshots()
            for manifest in snapshot.manifests(table.io)
        }
        names = {
            name_in(place, entry.data_file.file_path)
            for manifest in manifests.values()
            for entry in manifest.fetch_manifest_entry(table.io)
        }
        return {name for name in names if name is not None}

    def _fence(self) -> None:
        """A snapshot without files: whoever was about to follow the one before looks again."""
        table = self.newest()
        with table.transaction() as transaction:
            transaction.update_snapshot({"kafkalog.vacuum": "true"}).fast_append().commit()

    def _catalog_of_target(self) -> Catalog:
        if self._catalog is None:
            try:
                self._catalog = _opened(self._properties)
            except Exception:
                # A SQL catalog makes its tables at first use, and fails when another one is doing
                # so; what else it may be, the second time tells.
                self._catalog = _opened(self._properties)
        return self._catalog

    def _existing_table(self) -> Table | None:
        """The table. A catalog that is missing is not made, which opening it would do: what the
        load is asked for may yet be refused."""
        _check_named(self.identifier, self._properties)
        return self._table() if _is_catalog_there(self._properties) else None

    def newest(self) -> Table:
        """The table in its newest state. In Nessie with a first snapshot: see iceberg_rest."""
        for _ in range(WAITS_FOR_FIRST_SNAPSHOT):
            table = self._catalog_of_target().load_table(self.identifier)
            if table.current_snapshot() is not None or not is_nessie(table.io.properties):
                return table
            time.sleep(1)
        raise TargetError(
            f"the Iceberg table {self.identifier} has no snapshot, and Nessie makes a first one "
            "without looking whether there is one by now: two loads could take each other's rows "
            "away. Drop it, and let the load make it; or insert a first row"
        )

    def _table(self) -> Table | None:
        try:
            return self.newest()
        except NoSuchTableError:
            return None

    def _create(self, schema: pa.Schema, partition_by: Sequence[PartitionField]) -> Table:
        catalog = self._catalog_of_target()
        warehouse = str(catalog.properties.get("warehouse", ""))
        if "://" in warehouse:
            # Before a table is made that could not be loaded into.
            place_at(self.identifier, warehouse, catalog.properties)
        namespace = catalog.identifier_to_tuple(self.identifier)[:-1]
        for length in range(1, len(namespace) + 1):
            try:
                catalog.create_namespace_if_not_exists(namespace[:length])
            except Exception:
                # Another loader may make it at this instant, which each catalog says in its way.
                if not catalog.namespace_exists(namespace[:length]):
                    raise
        numbers = count(1)
        numbered = pyarrow_to_schema(pa.schema([_numbered(field, numbers) for field in schema]))
        fields = [
            IcebergField(
                numbered.find_field(field.column).field_id,
                PARTITION_FIELD_ID_START + number,
                transform_of(field),
                field.name,
            )
            for number, field in enumerate(partition_by)
        ]
        spec = PartitionSpec(*fields)
        if not is_nessie(catalog.properties):
            return catalog.create_table_if_not_exists(
                self.identifier, numbered, partition_spec=spec
            )
        with suppress(TableAlreadyExistsError):
            table = catalog.create_table(self.identifier, numbered, partition_spec=spec)
            # By whoever made the table alone, and once: all others wait for it.
            table.metadata.properties.update(IN_MEMORY)
            with table.transaction() as transaction:
                transaction.update_snapshot({"kafkalog.created": "true"}).fast_append().commit()
        return self.newest()

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Errors of pyiceberg, its catalogs and file systems become a TargetError that says what
        could not be done, without the secrets of the target's properties."""
        try:
            yield
        except KafkalogError:
            raise
        except Exception as error:
            # pyiceberg's errors have no root of their own, and its catalogs add those of theirs.
            message = f"cannot {doing}: {type(error).__name__}: {error}"
            hidden = _hidden(message, _revealed(self._properties))
            raise TargetError(hidden) from (error if hidden == message else None)


class _FencedIceberg:
    """The table as one pending commit sees it: see publish.FencedTable."""

    advice = _MISSING_FILE
    _table: Table
    _upserted: UpsertedIceberg
    _change: Change

    def __init__(self, target: IcebergTarget, pending: PendingCommit) -> None:
        self._target = target
        self._pending = pending
        self._upsert: FileUpsert | None = None

    def look(self) -> None:
        if self._upsert is not None:
            self._upsert.discard()
        self._table = self._target.newest()

    def position(self) -> Position:
        table, pending, identifier = self._table, self._pending, self._target.identifier
        current = self._target.position_in(table, pending.name)
        pending.check_unmoved(current, str(self._target))
        # Again, others may have altered the table since the load began.
        stage = pending.stage
        partition_by = stage.partitioning.fields if stage.partitioning else ()
        rows = table_columns(stage.schema, stage.upsert)
        now = joined_columns(table, rows, stage.change)
        check_unchanged(rows, now, f"the Iceberg table {identifier}")
        changed = changed_schema(table, rows, stage.change)
        # Of appends nobody asks the catalog once more.
        passed = {} if stage.upsert is None else self._passed()
        check_mode(table, stage.upsert, rows, is_loaded(pending, passed), identifier)
        refuse_unfit(table, changed, rows, partition_by, identifier)
        refuse_other_ids(changed, rows, bool(stage.change.adds), identifier)
        if stage.upsert is not None:
            columns = changed if pending.files else table.schema()
            self._change_files(stage.upsert, UpsertedIceberg(table, columns, passed), current)
        return current

    def _passed(self) -> dict[str, Offsets]:
        """Where each load goes on."""
        names = sorted({*self._target.names(), self._pending.name})
        return {each: self._target.position_in(self._table, each).offsets for each in names}

    def _change_files(self, upsert: Upsert, seen: UpsertedIceberg, current: Position) -> None:
        pending, identifier = self._pending, self._target.identifier
        self._upsert = self._upsert or FileUpsert(
            pending, upsert, f"the Iceberg table {identifier}"
        )
        self._upserted = seen
        self._change = self._upsert.change(seen, current)

    def publish(self, step: Step) -> int | None:
        """The snapshot that this commit became."""
        table, position, gaps = self._table, step.position, step.gaps
        name, stage = self._pending.name, self._pending.stage
        base = table.metadata_location
        summary = {
            LOAD_ID: stage.load_id,
            "kafkalog.name": name,
            "kafkalog.ranges": json.dumps(ranges_to_json(self._pending.ranges)),
            **({"kafkalog.gaps": json.dumps(ranges_to_json(gaps))} if gaps else {}),
        }
        properties = _properties_of(table, name, position)
        if self._upsert is not None:
            published = self._upserted.publish(
                self._target.newest, self._change, stage, properties, summary
            )
            if published is not None:
                self._upsert.published()
            return published
        paths = {file_url(table, stage, file.name): file for file in self._pending.files}
        table.metadata.properties.update(IN_MEMORY)
        try:
            _commit(table, properties, paths, summary, stage)
        except TargetError:
            raise
        except Exception as error:
            # pyiceberg's errors have no root of their own. Whatever it was, the commit may be
            # there and its answer lost.
            table = self._target.newest()
            for snapshot in reversed(table.snapshots()):
                if snapshot.summary and snapshot.summary.get(LOAD_ID) == stage.load_id:
                    return snapshot.snapshot_id
            if isinstance(error, CommitFailedException) and table.metadata_location != base:
                return None
            raise
        newest = table.current_snapshot()
        assert newest is not None
        return newest.snapshot_id


def _properties_of(table: Table, name: str, position: Position) -> dict[str, str]:
    """The properties by which load `name` goes on at `position`."""
    properties = {_offsets_property(name): json.dumps(to_json(position.offsets))}
    if position.topic_ids:
        properties[_ids_property(name)] = json.dumps(ids_to_json(position.topic_ids))
    of_partitions = {
        _epochs_property(name): position.epochs,
        _marks_property(name): position.marks,
        _queries_property(name): position.queries,
    }
    for of_name, known in of_partitions.items():
        if known or of_name in table.metadata.properties:
            properties[of_name] = json.dumps(to_json(known))
    if position.caught_up:
        properties[_caught_property(name)] = json.dumps(
            [
                to_json({each: getattr(known, field) for each, known in position.caught_up.items()})
                for field in _CAUGHT
            ]
        )
    return properties


def _check_named(identifier: str, properties: Mapping[str, str]) -> None:
    """Raises InvalidOptionError unless something says which catalog it is."""
    settings = {**(Config().get_catalog_config(CATALOG) or {}), **properties}
    refuse_odd_url(identifier, str(settings.get("warehouse", "")))
    if not settings.keys() & {"uri", "type", "py-catalog-impl"}:
        raise InvalidOptionError(
            f"target iceberg:{identifier} names no catalog: write for example iceberg:{identifier}"
            "?uri=sqlite:////data/catalog.db&warehouse=/data/lake or ?uri=https://HOST for a REST "
            f"catalog, or configure one named {CATALOG} for pyiceberg "
            f"(PYICEBERG_CATALOG__{CATALOG.upper()}__URI)"
        )


def _is_catalog_there(properties: Mapping[str, str]) -> bool:
    """False for a SQL catalog without its tables, which pyiceberg makes when it opens one."""
    configured = Config().get_catalog_config(CATALOG) or {}
    uri = str(properties.get("uri", configured.get("uri", "")))
    if uri.startswith("sqlite"):
        path = uri.partition(":///")[2]
        if not os.path.exists(path) and os.path.isdir(os.path.dirname(os.path.abspath(path))):
            return False
    catalog = _opened({**properties, "init_catalog_tables": "false"})
    if not hasattr(catalog, "engine"):
        return True
    import sqlalchemy as sa

    return bool(sa.inspect(catalog.engine).has_table("iceberg_tables"))


def _opened(properties: Mapping[str, str]) -> Catalog:
    configured = Config().get_catalog_config(CATALOG) or {}
    given = catalog_properties(properties, configured)
    if is_rest({**configured, **given}):
        merged: Any = merge_config(configured, {**given})
        return BoundedRestCatalog(CATALOG, **merged)
    return load_catalog(CATALOG, **given)


def _commit(
    table: Table,
    properties: dict[str, str],
    files: Mapping[str, DataFile],
    summary: dict[str, str],
    stage: Stage | None = None,
) -> None:
    transaction = table.transaction()
    transaction.set_properties(properties)
    require_unaltered(table, transaction)
    if stage is not None and files:
        change_schema(transaction, table, stage.schema, stage.change)
    # Also without files: it is the snapshot that makes a commit conflict with another one.
    update = transaction.update_snapshot(summary)
    merges = property_as_bool(table.properties, "commit.manifest-merge.enabled", False)
    with update.merge_append() if merges else update.fast_append() as append:
        columns = transaction.table_metadata.schema()
        described = {
            path: (file, partition_of(table, columns, file)) for path, file in files.items()
        }
        for data_file in data_files(table, columns, stage, described) if stage else ():
            append.append_data_file(data_file)
    commit_transaction(table, transaction)


def _revealed(properties: Mapping[str, str]) -> dict[str, str]:
    """What is not to be shown: also what references stand for, where that can be told."""
    found = dict(properties)
    for name, value in properties.items():
        with suppress(KafkalogError):
            found[name] = Secret(value).reveal()
    return found


def _hidden(text: str, properties: Mapping[str, str]) -> str:
    """`text` without the values of properties that may be secrets, and passwords of URIs."""
    for key, value in properties.items():
        if key not in _SHOWN_PROPERTIES and len(value) > 3:
            text = text.replace(value, "***")
        with suppress(ValueError):
            password = urlsplit(value).password
            if password:
                text = text.replace(password, "***")
    return text


def _offsets_property(name: str) -> str:
    return f"kafkalog.{name}.offsets"


def _ids_property(name: str) -> str:
    return f"kafkalog.{name}.topic-ids"


def _epochs_property(name: str) -> str:
    return f"kafkalog.{name}.epochs"


def _marks_property(name: str) -> str:
    return f"kafkalog.{name}.marks"


def _caught_property(name: str) -> str:
    return f"kafkalog.{name}.caught-up"


def _queries_property(name: str) -> str:
    return f"kafkalog.{name}.queries"


def _refuse_rolled_back(table: Table, name: str, offsets: Offsets) -> None:
    found = rolled_back(table, name, offsets)
    if found is None:
        return
    places = [json.dumps(to_json(found.ends))] if found.ends else []
    if found.unknown:
        of = f"of {describe(found.unknown)} at " if places else ""
        places.append(f"{of}what the table does not have")
    at = f" with `starting` (--from) at {', and '.join(places)}" if places else ""
    without = json.dumps(to_json(furthest(offsets, found.ends)))
    raise TargetError(
        f"the Iceberg table {'.'.join(table.name())} was rolled back to before load {name!r} came "
        f"to {json.dumps(to_json(offsets))}: to go on there would leave out what is gone from the "
        "table since, or double what is back; nothing was written. To load again what is gone, let "
        f"the load start over (pyspark_kafkalog.forget, kafkalog load --forget){at}; to do without "
        f"it, with `starting` at {without}; or make the newest snapshot the current one again"
    )


def _kept_position(table: Table, name: str) -> Position:
    properties = table.metadata.properties
    offsets = json.loads(properties.get(_offsets_property(name), "{}"))
    topic_ids = json.loads(properties.get(_ids_property(name), "{}"))
    epochs = json.loads(properties.get(_epochs_property(name), "{}"))
    marks = json.loads(properties.get(_marks_property(name), "{}"))
    queries = json.loads(properties.get(_queries_property(name), "{}"))
    caught = json.loads(properties.get(_caught_property(name), "null")) or [{}] * len(_CAUGHT)
    since, end, at = map(from_json, caught)
    return Position(
        from_json(offsets),
        ids_from_json(topic_ids),
        from_json(epochs),
        from_json(marks),
        from_json(queries),
        {each: CaughtUp(since[each], end[each], at[each]) for each in since},
    )


def _numbered(field: pa.Field, numbers: Iterator[int]) -> pa.Field:
    """`field` with ids of its own, by which a partition spec names columns. A catalog gives the
    table others."""
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, numbers))
    elif pa.types.is_map(kind):
        key = _numbered(kind.key_field, numbers).with_nullable(False)
        kind = pa.map_(key, _numbered(kind.item_field, numbers))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_numbered(child, numbers) for child in kind])
    return pa.field(field.name, kind, metadata={"PARQUET:field_id": str(next(numbers))})
