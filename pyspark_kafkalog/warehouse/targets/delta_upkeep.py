"""The upkeep of a Delta table: small files compacted, old versions and log entries removed.

Compaction is a log entry OPTIMIZE without `dataChange`, whose rows are copied here (upkeep.py). It
is not deltalake's own: that says bounds of numbers without their NaN, which Spark would then not
find, and of times rounded down, holds whole row groups of a million rows in memory, and cannot be
interrupted. Such an entry has no `txn`, so it moves no load. It is tried at the one log number that
follows the state in which all of its files were seen to be there, without a deletion vector, and
after the staged files were (staging.sweep_directories); as loads are tried at one number, too, each
sees what the other did.

All else is deltalake's: VACUUM, which removes the files of versions that are older than
delta.deletedFileRetentionDuration (a week), a checkpoint, which holds all `txn`s, and the clean-up
of entries before it that are older than delta.logRetentionDuration (30 days). Files that no version
knows are found by deltalake's list of a full VACUUM and removed here, but for deletion vectors,
which it takes for files that nobody needs, and for those in directories of loads, which
`DeltaTarget.vacuum` sweeps behind a fence: a full VACUUM would know by age alone that nobody is
going to commit them.

While a load is refused, as the table was restored to before it or lost its `txn`s, nothing is
removed: what is left may be needed to put that right. Called by delta.py, and
delta_rewind.py, which replaces files likewise.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction

from pyspark_kafkalog.errors import InvalidOptionError, TargetError
from pyspark_kafkalog.warehouse.commit import Stage
from pyspark_kafkalog.warehouse.rows.layout import FILE_BYTES
from pyspark_kafkalog.warehouse.rows.row_types import storable
from pyspark_kafkalog.warehouse.targets.delta_entry import add, write_entry
from pyspark_kafkalog.warehouse.targets.delta_rules import rules_of_rewriting, unknown_features
from pyspark_kafkalog.warehouse.targets.delta_statistics import file_statistics
from pyspark_kafkalog.warehouse.targets.delta_table import LOG, open_table
from pyspark_kafkalog.warehouse.targets.staging import (
    check_staged,
    discard,
    new_load_id,
    remove_all_but,
    sync,
)
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_stage
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

_FILE_BYTES = "delta.targetFileSize"
_PARTITION_KINDS = frozenset(("string", "boolean", "byte", "short", "integer", "long", "date"))


def keep_up(place: TablePlace, asked: Upkeep, refused: Callable[[], Sequence[str]]) -> Upkept:
    """Does what is asked of the table at `place`; `refused` tells which loads are refused.

    Raises InvalidOptionError for a retention that is too short, before anything is done.
    """
    kept = Upkept()
    # Also to find out whether the retention will do.
    stale = _stale(place, asked)
    if asked.compacts:
        _compact(place, asked, kept)
    if asked.expires:
        names, reason = refused(), next(unknown_features(open_table(place)), None)
        if reason:
            kept.left.append(f"old versions: the table {reason}")
        elif names:
            kept.left.append(
                f"old versions: load {', '.join(names)} is refused, and they may be needed to put "
                "that right"
            )
        elif asked.dry_run:
            kept.removed += [place.path_of(name) for name in stale]
        else:
            _expire(place, asked, kept)
    return kept


def _compact(place: TablePlace, asked: Upkeep, kept: Upkept) -> None:
    table = open_table(place)
    reason = next(rules_of_rewriting(table), None)
    schema = file_schema(table)
    reason = reason or unfit(table, schema)
    if reason:
        kept.left.append(f"small files: the table {reason}")
        return
    file_bytes = asked.file_bytes or _file_bytes(table)
    live = _live_files(table, place)
    merges = fitting_merges(live, file_bytes, lambda file: fits_in(file, schema), kept)
    if asked.dry_run:
        kept.add(merges)
        return
    for portion in portions(merges, file_bytes):
        stage = new_stage(place, schema)
        _publish(place, table, stage, written_portion(stage, portion, by_name(schema)), kept)


def file_schema(table: DeltaTable) -> pa.Schema:
    """The columns of files: all but those that the table is partitioned by."""
    by = table.metadata().partition_columns
    columns = pa.schema(table.schema().to_arrow())
    return pa.schema([field for field in columns if field.name not in by])


def new_stage(place: TablePlace, schema: pa.Schema) -> Stage:
    """For copies of files of the table at `place`."""
    load_id = new_load_id()
    path = place.make_stage(load_id)
    place.try_create(load_id)
    return Stage(load_id, path, schema)


def _publish(
    place: TablePlace, planned: DeltaTable, stage: Stage, merges: Sequence[Merge], kept: Upkept
) -> None:
    """Publishes those of the merges whose files nobody has replaced meanwhile."""
    sync(stage)
    while True:
        table = open_table(place)
        there = {file.key for file in _live_files(table, place)}
        valid = [merge for merge in merges if all(file.key in there for file in merge.files)]
        if not valid or _rules(table) != _rules(planned):
            discard(stage)
            kept.left.append("small files: others altered the table while they were copied")
            return
        written = [file for merge in valid for file in merge.written]
        # After the table was opened: see staging.sweep_directories.
        check_staged(stage, written, SWEPT)
        try:
            actions = file_actions(stage, valid)
            write_entry(place, stage, table.version() + 1, _said(table, valid), actions)
        except CommitFailedError:
            continue
        except FileNotFoundError as error:
            raise TargetError(f"{error}; nothing was published. {SWEPT}") from error
        remove_all_but(stage, written)
        kept.add(valid)
        return


def _said(table: DeltaTable, merges: Sequence[Merge]) -> dict[str, Any]:
    done = Upkept()
    done.add(merges)
    return {
        "operation": "OPTIMIZE",
        "operationParameters": {"predicate": "[]"},
        "readVersion": table.version(),
        "isolationLevel": "SnapshotIsolation",
        "isBlindAppend": False,
        "operationMetrics": {
            "numRemovedFiles": str(done.compacted_files),
            "numRemovedBytes": str(done.compacted_bytes),
            "numAddedFiles": str(done.written_files),
            "numAddedBytes": str(done.written_bytes),
        },
        "kafkalog.maintain": "true",
    }


def file_actions(
    stage: Stage, merges: Sequence[Merge], changes_rows: bool = False
) -> Iterator[dict[str, Any]]:
    """What a log entry does to files: those of `merges` go, and what was written comes."""
    staged = open_stage(stage.path)
    modified_ms = staged.modified_ms([file.name for merge in merges for file in merge.written])
    for merge in merges:
        partition = dict(merge.files[0].partition) if merge.files else {}
        for file in merge.written:
            footer = pq.read_metadata(staged.source(file.name))
            yield add(
                AddAction(
                    path=f"load-{stage.load_id}/{file.name}",
                    size=file.size_bytes,
                    partition_values=partition,
                    modification_time=modified_ms[file.name],
                    data_change=changes_rows,
                    stats=file_statistics(footer).to_json(()),
                )
            )
        for old in merge.files:
            yield {
                "remove": {
                    "path": old.key,
                    "deletionTimestamp": time.time_ns() // 1_000_000,
                    "dataChange": changes_rows,
                    "extendedFileMetadata": True,
                    "partitionValues": partition,
                    "size": old.size_bytes,
                }
            }


def _rules(table: DeltaTable) -> tuple[object, ...]:
    metadata, protocol = table.metadata(), table.protocol()
    return table.schema().to_json(), tuple(metadata.partition_columns), protocol


def unfit(table: DeltaTable, schema: pa.Schema) -> str | None:
    """Why files with the table's columns cannot be written here."""
    kinds = {field.name: field.type for field in table.schema().fields}
    for name in table.metadata().partition_columns:
        kind = kinds[name]
        if not isinstance(kind, PrimitiveType) or kind.type not in _PARTITION_KINDS:
            return f"is partitioned by {name}, which is of another type than loads partition by"
    try:
        if storable(schema).equals(schema):
            return None
    except InvalidOptionError:
        pass
    return "has columns of types that loads do not write"


def _live_files(table: DeltaTable, place: TablePlace) -> list[LiveFile]:
    """The table's files, oldest first, that can be copied."""
    return [file for file, odd in all_files(table, place) if odd is None]


def all_files(table: DeltaTable, place: TablePlace) -> list[tuple[LiveFile, str | None]]:
    """The table's files, oldest first; of those with a deletion vector, and of other tables, as
    shallow clones have them, also why they cannot be copied."""
    by = table.metadata().partition_columns
    rows = pa.table(table.get_add_actions()).to_pylist()
    masked: set[str] = set()
    if "deletionVectors" in (table.protocol().writer_features or ()):
        uris = pa.table(table.deletion_vectors()).column("filepath").to_pylist()
        masked = {unquote(uri).rpartition("/")[2] for uri in uris}
    found = [
        (
            row["modification_time"],
            LiveFile(
                row["path"],
                place.path_of(name := unquote(row["path"])),
                row["size_bytes"],
                tuple((column, _text(row["partition"][column])) for column in by),
                content=functools.partial(place.source, name),
            ),
        )
        for row in rows
    ]

    def odd(file: LiveFile) -> str | None:
        if "://" in file.key or file.key.startswith("/"):
            return "it is another table's, as a shallow clone has them"
        return "it has a deletion vector" if file.path.rpartition("/")[2] in masked else None

    return [(file, odd(file)) for _, file in sorted(found, key=lambda each: (each[0], each[1].key))]


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else None if value is None else str(value)


def fits_in(file: LiveFile, schema: pa.Schema) -> bool:
    """Whether the file can be copied into one with the columns of `schema`."""
    return fits(file, schema, by_name(schema))


def by_name(schema: pa.Schema) -> Callable[[pa.Schema], list[int | None]]:
    """Where a file has the columns of `schema`."""

    def where(there: pa.Schema) -> list[int | None]:
        found = (there.get_all_field_indices(name) for name in schema.names)
        return [indices[0] if indices else None for indices in found]

    return where


def _file_bytes(table: DeltaTable) -> int:
    wanted = table.metadata().configuration.get(_FILE_BYTES, "")
    return int(wanted) if wanted.isdecimal() and int(wanted) else FILE_BYTES


def _expire(place: TablePlace, asked: Upkeep, kept: Upkept) -> None:
    table = open_table(place)
    stale = _stale(place, asked)
    known = set(_vacuum(table, asked))
    if known.intersection(stale):
        _vacuum(table, asked, dry_run=False)
    # deltalake's are gone.
    place.remove(stale)
    kept.removed += [place.path_of(name) for name in stale]
    before = set(place.names(LOG))
    table = open_table(place)
    if f"{table.version():020}.checkpoint.parquet" not in before:
        table.create_checkpoint()
    if table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true") != "false":
        table.cleanup_metadata()
    kept.expired += len(before.difference(place.names(LOG)))


def _stale(place: TablePlace, asked: Upkeep) -> list[str]:
    """The files that no version needs which is kept, relative to the table, but for those that
    loads have staged."""
    table = open_table(place)
    known = set(_vacuum(table, asked))
    found = sorted(known.union(_vacuum(table, asked, full=True)))
    return [
        name
        for name in found
        if (name in known or (_is_data(name) and not name.startswith("load-")))
        and place.exists(name)
    ]


def _is_data(name: str) -> bool:
    """Not a deletion vector, of which deltalake's list does not tell whether it is needed."""
    return name.endswith(".parquet")


def _vacuum(
    table: DeltaTable, asked: Upkeep, dry_run: bool = True, full: bool = False
) -> list[str]:
    hours = None if asked.retention_s is None else math.ceil(asked.retention_s / 3600)
    try:
        return table.vacuum(
            hours, dry_run=dry_run, enforce_retention_duration=not asked.forced, full=full
        )
    except DeltaError as error:
        if "Invalid retention period" not in str(error):
            raise
        raise InvalidOptionError(
            f"a retention of {hours} hours is less than the table's own "
            "(delta.deletedFileRetentionDuration): those who read an older version would miss "
            "files. To do so all the same, use force."
        ) from error
