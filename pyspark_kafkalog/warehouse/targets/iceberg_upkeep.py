"""The upkeep of an Iceberg table: small files compacted, old snapshots and their files removed.

pyiceberg has no compaction. Here it is a snapshot `replace`, whose rows are copied by upkeep.py: by
field ids, as pyiceberg's own way to read makes empty lists of null ones. Where loads go on are
table properties, which it does not touch. It is tried on the state in which all of its files were
seen to be there, after the staged files were (staging.sweep_directories), and whoever is too late
looks again. Tables with delete files are left: a copy would need them, too.

Snapshots expire by pyiceberg, which removes no files. Those that no snapshot needs any more are
told from the ones that somebody is about to commit by their age, and by a fence: a snapshot without
files, after which nobody can commit what was written for the one before. Files in directories of
loads are left to `IcebergTarget.vacuum`.

While a load is refused, as the table was rolled back to before it or lost its properties, nothing
is removed: what is left may be needed to put that right. Called by iceberg.py, and
iceberg_rewind.py, which copies files likewise.
"""

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.snapshots import Operation

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.commit import Stage
from pyspark_kafkalog.warehouse.rows.layout import FILE_BYTES
from pyspark_kafkalog.warehouse.rows.row_types import storable
from pyspark_kafkalog.warehouse.targets.deleted_keys import DIRECTORY
from pyspark_kafkalog.warehouse.targets.iceberg_files import with_field_ids
from pyspark_kafkalog.warehouse.targets.iceberg_history import lineage
from pyspark_kafkalog.warehouse.targets.iceberg_place import (
    data_place,
    is_in_store,
    metadata_place,
    name_in,
)
from pyspark_kafkalog.warehouse.targets.iceberg_replacement import Said, replace_files
from pyspark_kafkalog.warehouse.targets.iceberg_rules import rules_of_table, same_type
from pyspark_kafkalog.warehouse.targets.staged_files import FIELD_ID
from pyspark_kafkalog.warehouse.targets.staging import (
    check_staged,
    discard,
    new_load_id,
    remove_all_but,
    sync,
)
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace
from pyspark_kafkalog.warehouse.targets.upkeep import (
    SWEPT,
    LiveFile,
    Merge,
    Upkeep,
    Upkept,
    fits,
    fitting_merges,
    portions,
    written_portion,
)

_SAID = Said(Operation.REPLACE, {"kafkalog.maintain": "true"})
_DAYS_MS = 24 * 60 * 60 * 1000
_METADATA_FILE = re.compile(r"[^/]+\.(avro|metadata\.json)")


class IcebergUpkeep:
    """What is asked of one table, which `newest` gives in its newest state; `fence` makes a
    snapshot without files."""

    def __init__(
        self, newest: Callable[[], Table], fence: Callable[[], None], asked: Upkeep
    ) -> None:
        self._newest = newest
        self._fence = fence
        self._asked = asked
        self._kept = Upkept()

    def run(self, refused: Callable[[], Sequence[str]]) -> Upkept:
        """Does what is asked; `refused` tells which loads are refused. Raises InvalidOptionError
        for a retention that is too short, before anything is done."""
        table = self._newest()
        self._retention_ms(table)
        if self._asked.compacts:
            self._compact(table)
        if self._asked.expires:
            names, reason = refused(), next(rules_of_table(table), None)
            if reason:
                self._kept.left.append(f"old snapshots: the table {reason}")
            elif names:
                self._kept.left.append(
                    f"old snapshots: load {', '.join(names)} is refused, and they may be needed to "
                    "put that right"
                )
            elif keeps_all(table):
                self._kept.left.append(
                    "old snapshots, and what dead loads left: the table says gc.enabled=false"
                )
            else:
                self._expire()
                self._remove_orphans()
        return self._kept

    def _retention_ms(self, table: Table) -> int:
        own = int(table.properties.get("history.expire.max-snapshot-age-ms", 5 * _DAYS_MS))
        if self._asked.retention_s is None:
            return own
        wanted = int(self._asked.retention_s * 1000)
        if wanted < own and not self._asked.forced:
            raise InvalidOptionError(
                f"a retention of {wanted / 3_600_000:g} hours is less than the table's own "
                f"(history.expire.max-snapshot-age-ms, {own / 3_600_000:g} hours): those who read "
                "an older snapshot would miss files. To do so all the same, use force."
            )
        return wanted

    def _compact(self, table: Table) -> None:
        schema = file_schema(table.schema())
        live = _live_files(table)
        reason = next(rules_of_table(table), None)
        if reason is None and schema is None:
            reason = "has columns of types that loads do not write"
        if reason is None and live is None:
            reason = "has delete files, which its own engine has to apply"
        if reason or schema is None or live is None:
            self._kept.left.append(f"small files: the table {reason}")
            return
        wanted = table.properties.get("write.target-file-size-bytes", "")
        own = int(wanted) if wanted.isdecimal() and int(wanted) else FILE_BYTES
        file_bytes = self._asked.file_bytes or own
        merges = fitting_merges(live, file_bytes, lambda file: fits_in(file, schema), self._kept)
        if self._asked.dry_run:
            self._kept.add(merges)
            return
        for portion in portions(merges, file_bytes):
            stage = new_stage(table, schema)
            self._publish(table, stage, written_portion(stage, portion, by_id(schema)))

    def _publish(self, planned: Table, stage: Stage, merges: Sequence[Merge]) -> None:
        """Publishes those of the merges whose files nobody has replaced meanwhile."""
        sync(stage)
        while True:
            table = self._newest()
            there = {file.key: file.source for file in _live_files(table) or ()}
            valid = [merge for merge in merges if all(file.key in there for file in merge.files)]
            if not valid or _rules(table) != _rules(planned):
                discard(stage)
                self._kept.left.append(
                    "small files: others altered the table while they were copied"
                )
                return
            written = [file for merge in valid for file in merge.written]
            check_staged(stage, written, SWEPT)
            if replace_files(self._newest, table, stage, valid, _SAID):
                remove_all_but(stage, written)
                self._kept.add(valid)
                return

    def _expire(self) -> None:
        table = self._newest()
        old = _old_snapshots(table.metadata, self._retention_ms(table))
        if old and not self._asked.dry_run:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        self._kept.expired += len(old)

    def _remove_orphans(self) -> None:
        table = self._newest()
        before = time.time() - self._retention_ms(table) / 1000
        files = {
            place.path_of(name): (place, name)
            for place, name, changed in _files_of(table)
            if changed < before
        }
        unnamed = _unnamed(self._newest(), files)
        if unnamed and not self._asked.dry_run:
            # Whoever wrote one of them for the state before this cannot commit it any more.
            self._fence()
            unnamed = _unnamed(self._newest(), unnamed)
            for path in unnamed:
                place, name = files[path]
                place.remove([name])
        self._kept.removed += unnamed


def keeps_all(table: Table) -> bool:
    """Whether the table says that none of its files may go."""
    return bool(table.properties.get("gc.enabled", "true").lower() == "false")


def new_stage(table: Table, schema: pa.Schema) -> Stage:
    """For copies of files of the table."""
    load_id = new_load_id()
    return Stage(load_id, data_place(table).make_stage(load_id), schema)


def _rules(table: Table) -> tuple[Any, ...]:
    metadata = table.metadata
    return metadata.current_schema_id, metadata.default_spec_id, metadata.format_version


def file_schema(columns: Schema) -> pa.Schema | None:
    """The columns of files with the rows of a table that has such columns; None where these are of
    types that cannot be written here as they are."""
    there = schema_to_pyarrow(columns, include_field_ids=False)
    try:
        stored = storable(there)
    except InvalidOptionError:
        return None
    same = (same_type(one.type, other.type) for one, other in zip(there, stored, strict=True))
    return with_field_ids(stored, columns) if all(same) else None


def _live_files(table: Table) -> list[LiveFile] | None:
    """The table's files that can be copied, in the order in which they came; None where there are
    delete files."""
    found = all_files(table)
    return None if found is None else [file for file, odd in found if odd is None]


def all_files(table: Table) -> list[tuple[LiveFile, str | None]] | None:
    """The table's files, in the order in which they came, each with what is in the way of a copy;
    None where there are delete files."""
    snapshot = table.current_snapshot()
    found: list[tuple[int, LiveFile, str | None]] = []
    place = data_place(table)
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        entries = manifest.fetch_manifest_entry(table.io)
        if manifest.content == ManifestContent.DELETES and entries:
            return None
        is_current = manifest.partition_spec_id == table.spec().spec_id
        for entry in entries:
            file = entry.data_file
            earlier = None if is_current else "it is of an earlier partition spec"
            odd = _odd(file, place) or earlier
            number = entry.sequence_number or 0
            found.append((number, _live_file(table, place, file, odd is None), odd))
    return [(file, odd) for _, file, odd in sorted(found, key=lambda each: (each[0], each[1].key))]


def _odd(file: IcebergFile, place: TablePlace) -> str | None:
    if file.file_format != FileFormat.PARQUET:
        return "it is no Parquet file"
    if is_in_store(place.uri):
        return None if name_in(place, file.file_path) else f"it is elsewhere than in {place}"
    return None if re.match("/|file:", file.file_path) else "it is not on this machine"


def _live_file(table: Table, place: TablePlace, file: IcebergFile, is_plain: bool) -> LiveFile:
    """`is_plain`: nothing about it is odd."""
    name = name_in(place, file.file_path) if is_in_store(place.uri) else None
    content = functools.partial(place.source, name) if name else None
    path = file.file_path if content else re.sub(r"\Afile:/*", "/", file.file_path)
    if not is_plain:
        return LiveFile(file.file_path, path, file.file_size_in_bytes, (), file, content)
    names = [field.name for field in table.spec().fields]
    partition = tuple((name, repr(file.partition[number])) for number, name in enumerate(names))
    return LiveFile(file.file_path, path, file.file_size_in_bytes, partition, file, content)


def fits_in(file: LiveFile, schema: pa.Schema) -> bool:
    """Whether the file can be copied into one with the columns of `schema`."""
    try:
        there = pq.read_schema(file.opened())
    except FileNotFoundError:
        return False
    if not all(_id(field) for field in there):
        return False
    where = by_id(schema)(there)
    return fits(file, schema, by_id(schema)) and all(
        index is None or _has_same_ids(there.field(index).type, wanted.type)
        for index, wanted in zip(where, schema, strict=True)
    )


def by_id(schema: pa.Schema) -> Callable[[pa.Schema], list[int | None]]:
    """Where a file has the columns of `schema`."""

    def where(there: pa.Schema) -> list[int | None]:
        indices = {_id(field): index for index, field in enumerate(there)}
        return [indices.get(_id(field)) for field in schema]

    return where


def has_ids(there: pa.Schema) -> bool:
    """Whether any column has a field id, by which it is told then."""
    return any(_id(field) for field in there)


def by_mapped_name(
    schema: pa.Schema, mapping: NameMapping | None
) -> Callable[[pa.Schema], list[int | None]]:
    """Where a file without field ids has the columns of `schema`."""
    called = {str(one.field_id).encode(): one.names for one in mapping or ()}

    def where(there: pa.Schema) -> list[int | None]:
        found = (called.get(_id(field) or b"", [field.name]) for field in schema)
        places = ([there.get_field_index(name) for name in names] for names in found)
        return [next((place for place in each if place >= 0), None) for each in places]

    return where


def _id(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(FIELD_ID)


def _has_same_ids(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether what is within a type, which `wanted` holds, has the field ids that it has there."""
    if pa.types.is_struct(kind):
        pairs = [(field, wanted.field(field.name)) for field in kind]
    elif pa.types.is_map(kind):
        pairs = [(kind.key_field, wanted.key_field), (kind.item_field, wanted.item_field)]
    else:
        pairs = [(kind.field(each), wanted.field(each)) for each in range(kind.num_fields)]
    return all(_id(one) == _id(two) and _has_same_ids(one.type, two.type) for one, two in pairs)


def _old_snapshots(metadata: TableMetadata, age_ms: int) -> list[int]:
    """The snapshots that are older than `age_ms`, but for what branches and tags keep: each its
    head, and a branch as many as the table says (history.expire.min-snapshots-to-keep)."""
    now_ms = time.time() * 1000
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    at_least = int(metadata.properties.get("history.expire.min-snapshots-to-keep", 1))
    kept = set()
    for ref in metadata.refs.values():
        least = max(1, ref.min_snapshots_to_keep or at_least)
        age_of_ref = age_ms if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms
        for number, snapshot in enumerate(lineage(by_id, ref.snapshot_id)):
            if number < least or snapshot.timestamp_ms >= now_ms - age_of_ref:
                kept.add(snapshot.snapshot_id)
    return [
        each.snapshot_id
        for each in metadata.snapshots
        if each.timestamp_ms < now_ms - age_ms and each.snapshot_id not in kept
    ]


def _files_of(table: Table) -> Iterator[tuple[TablePlace, str, float]]:
    """What lies where the table keeps its files, and when it was written: metadata, and data, but
    for directories of loads, the keys that upserts have deleted, and what may be another table's,
    too."""
    place = metadata_place(table)
    for name, changed in place.changed().items():
        if _METADATA_FILE.fullmatch(name):
            yield place, name, changed
    if "write.data.path" not in table.properties:
        place = data_place(table)
        for name, changed in place.changed().items():
            is_apart = name.startswith(("load-", f"{DIRECTORY}/"))
            if name.endswith(".parquet") and not is_apart:
                yield place, name, changed


def _unnamed(table: Table, paths: Iterable[str]) -> list[str]:
    """Those of `paths` that nothing of the table names, by the last part of a name: there may be
    several ways to one file."""
    metadata = table.metadata
    named = {table.metadata_location, *(each.metadata_file for each in metadata.metadata_log)}
    named |= {each.statistics_path for each in metadata.statistics}
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
    }
    named |= {snapshot.manifest_list for snapshot in table.snapshots()}
    named |= manifests.keys()
    for manifest in manifests.values():
        named |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    kept = {path.rpartition("/")[2] for path in named if path}
    return [path for path in paths if path.rpartition("/")[2] not in kept]
