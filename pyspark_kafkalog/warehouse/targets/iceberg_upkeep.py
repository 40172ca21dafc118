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

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import FileFormat, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.commit import Stage
from pyspark_kafkalog.warehouse.rows.layout import FILE_BYTES
from pyspark_kafkalog.warehouse.rows.row_types import storable
from pyspark_kafkalog.warehouse.targets.directory_storage import make_directory, sync_directory
from pyspark_kafkalog.warehouse.targets.iceberg_files import (
    as_path,
    data_directory,
    with_field_ids,
)
from pyspark_kafkalog.warehouse.targets.iceberg_history import lineage
from pyspark_kafkalog.warehouse.targets.iceberg_replacement import Said, replace_files
from pyspark_kafkalog.warehouse.targets.iceberg_rules import rules_of_table, same_type
from pyspark_kafkalog.warehouse.targets.staging import (
    check_staged,
    discard,
    new_load_id,
    remove_all_but,
)
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
_FIELD_ID = b"PARQUET:field_id"
_METADATA_FILE = re.compile(r".+\.(avro|metadata\.json)")


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
            elif table.properties.get("gc.enabled", "true").lower() == "false":
                self._kept.left.append("old snapshots: the table says gc.enabled=false")
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
        schema = file_schema(table)
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
        sync_directory(stage.path)
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
        found = [path for path in _files_of(table) if _changed(path) < before]
        unnamed = _unnamed(self._newest(), found)
        if unnamed and not self._asked.dry_run:
            # Whoever wrote one of them for the state before this cannot commit it any more.
            self._fence()
            unnamed = _unnamed(self._newest(), unnamed)
            for path in unnamed:
                with suppress(FileNotFoundError):
                    os.unlink(path)
        self._kept.removed += unnamed


def new_stage(table: Table, schema: pa.Schema) -> Stage:
    """For copies of files of the table."""
    load_id = new_load_id()
    stage = Stage(load_id, os.path.join(data_directory(table), f"load-{load_id}"), schema)
    make_directory(stage.path)
    return stage


def _rules(table: Table) -> tuple[Any, ...]:
    metadata = table.metadata
    return metadata.current_schema_id, metadata.default_spec_id, metadata.format_version


def file_schema(table: Table) -> pa.Schema | None:
    """The columns of files with the table's rows; None where these are of types that cannot be
    written here as they are."""
    there = schema_to_pyarrow(table.schema(), include_field_ids=False)
    try:
        stored = storable(there)
    except InvalidOptionError:
        return None
    same = (same_type(one.type, other.type) for one, other in zip(there, stored, strict=True))
    return with_field_ids(stored, table.schema()) if all(same) else None


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
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        entries = manifest.fetch_manifest_entry(table.io)
        if manifest.content == ManifestContent.DELETES and entries:
            return None
        is_current = manifest.partition_spec_id == table.spec().spec_id
        for entry in entries:
            file = entry.data_file
            odd = _odd(file) or (None if is_current else "it is of an earlier partition spec")
            number = entry.sequence_number or 0
            found.append((number, _live_file(table, file, odd is None), odd))
    return [(file, odd) for _, file, odd in sorted(found, key=lambda each: (each[0], each[1].key))]


def _odd(file: IcebergFile) -> str | None:
    if file.file_format != FileFormat.PARQUET:
        return "it is no Parquet file"
    return None if re.match("/|file:", file.file_path) else "it is not on this machine"


def _live_file(table: Table, file: IcebergFile, is_plain: bool) -> LiveFile:
    """`is_plain`: nothing about it is odd."""
    if not is_plain:
        path = re.sub(r"\Afile:/*", "/", file.file_path)
        return LiveFile(file.file_path, path, file.file_size_in_bytes, (), file)
    path = as_path(".".join(table.name()), file.file_path)
    names = [field.name for field in table.spec().fields]
    partition = tuple((name, repr(file.partition[number])) for number, name in enumerate(names))
    return LiveFile(file.file_path, path, file.file_size_in_bytes, partition, file)


def fits_in(file: LiveFile, schema: pa.Schema) -> bool:
    """Whether the file can be copied into one with the columns of `schema`."""
    try:
        there = pq.read_schema(file.path)
    except FileNotFoundError:
        return False
    if not all(_id(field) for field in there):
        return False
    where = by_id(schema)(there)
    return fits(file, schema, by_id(schema)) and all(
        index is None or _ids_within(there.field(index).type) == _ids_within(wanted.type)
        for index, wanted in zip(where, schema, strict=True)
    )


def by_id(schema: pa.Schema) -> Callable[[pa.Schema], list[int | None]]:
    """Where a file has the columns of `schema`."""

    def where(there: pa.Schema) -> list[int | None]:
        indices = {_id(field): index for index, field in enumerate(there)}
        return [indices.get(_id(field)) for field in schema]

    return where


def _id(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(_FIELD_ID)


def _ids_within(kind: pa.DataType) -> list[bytes | None]:
    """The field ids at any depth of a type."""
    children = [kind.field(number) for number in range(kind.num_fields)]
    if pa.types.is_map(kind):
        children = [kind.key_field, kind.item_field]
    return [each for child in children for each in (_id(child), *_ids_within(child.type))]


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


def _files_of(table: Table) -> Iterator[str]:
    """What lies where the table keeps its files: metadata, and data, but for directories of loads
    and what may be another table's, too."""
    name, location = ".".join(table.name()), table.location()
    metadata = as_path(name, table.properties.get("write.metadata.path", f"{location}/metadata"))
    for file in _names(metadata):
        if _METADATA_FILE.fullmatch(file):
            yield os.path.join(metadata, file)
    if "write.data.path" not in table.properties:
        data = data_directory(table)
        for directory in _names(data, files=False):
            if not directory.startswith("load-"):
                for path, _, files in os.walk(os.path.join(data, directory)):
                    yield from (os.path.join(path, file) for file in files if _is_data(file))
        yield from (os.path.join(data, file) for file in _names(data) if _is_data(file))


def _is_data(file: str) -> bool:
    return file.endswith(".parquet")


def _names(path: str, files: bool = True) -> list[str]:
    with suppress(FileNotFoundError), os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_file() == files)
    return []


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return time.time()


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
    kept = {os.path.basename(path) for path in named if path}
    return [path for path in paths if os.path.basename(path) not in kept]
