"""A Delta Lake table as a load target: files and offsets in one entry of the table's log.

    TABLE/load-<load id>/part-orders-0-0-5000-<attempt>-0.parquet   where tasks write, and it stays
    TABLE/_delta_log/00000000000000000007.json   commitInfo, an `add` for each file, and `txn`s

The commit point is the log entry, which deltalake creates under a number that must be free: a file
that no entry adds is no part of the table, so nothing is moved or rewritten. Delta's own VACUUM
(in deltalake with full=True) deletes what a killed load left behind. An entry holds, for load NAME
(percent-encoded):
- `txn` with the appId `kafkalog:NAME:TOPIC:PARTITION`, version = the next offset of that partition;
- `txn` with the appId `kafkalog:NAME`, version = how many partitions the name has such a txn of;
- `txn` with the appId `kafkalog:NAME:TOPIC:id:UUID` when the topic's id is another one than before,
  version = the entry's own number: the greatest says the topic's id;
- `txn` with the appId `kafkalog:NAME:TOPIC:epoch:PARTITION`, version = the leader epoch of that
  partition when the commit was planned, `kafkalog:NAME:TOPIC:mark:PARTITION`, version = the
  mark of the record that was read last (marks.py), and `kafkalog:NAME:TOPIC:query:PARTITION`,
  version = the query that moved the partition (query_number.py), and of an upsert `caught-since:`,
  `caught-end:` and `caught-at:` likewise (caught_up.py);
- no txn is ever deleted, so one that holds no more has version -1: that of a partition which a
  recreated topic has not, and those of a name that was forgotten (`kafkalog.forgotten` says it in
  commitInfo), but for the count;
- one of a rewind says so (`kafkalog.rewound`), and replaces files that have rows to be deleted;
- in commitInfo, for people: `kafkalog.load-id`, `kafkalog.name` and `kafkalog.offsets`, and the
  offsets that were given up, `kafkalog.gaps`, if any.

The txns are the truth: checkpoints keep them, while commitInfo goes when the log is cleaned up.
deltalake tells the version of an appId that one names, but not which there are, and takes half a
minute for thousands, so they are looked up in the log itself; the count shows that none was
overlooked. Where it is gone as well, history and files may still tell that there were loads: then a
load is refused, as it would double rows.

Fenced: Delta leaves the meaning of a txn to the writer, and deltalake accepts an old version from a
handle that was opened later. So a commit is tried at one log number only, the one after the state
whose offsets were compared with the plan (`max_commit_retries=0`); whoever is too late looks again.

Commit.sequence is Delta's table version. A commit is as durable as deltalake makes it. Landed files
are added as they are, so that tables with rules for their rows are refused (delta_rules.py).
In a directory of one path for driver and executors, or in an object store (table_place.py): there a
log entry is a conditional put. Called by the driver, from any thread or process.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import KafkalogError, TargetError
from pyspark_kafkalog.source.offsets import Offsets, from_json, to_json
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
    ranges_from_json,
    ranges_to_json,
)
from pyspark_kafkalog.warehouse.rows.allowed_change import UNSAID, SchemaChange
from pyspark_kafkalog.warehouse.rows.layout import (
    PartitionField,
    Partitioning,
    refuse_fields_of_iceberg,
)
from pyspark_kafkalog.warehouse.rows.schema_change import check_unchanged
from pyspark_kafkalog.warehouse.rows.upserts import Upsert, table_columns
from pyspark_kafkalog.warehouse.targets.deleted_keys import ANY_OFFSET, DeletedKeys
from pyspark_kafkalog.warehouse.targets.delta_evolution import (
    append_with_schema,
    changed_schema,
    joined_columns,
)
from pyspark_kafkalog.warehouse.targets.delta_history import (
    commit_info,
    names_load,
    restored,
)
from pyspark_kafkalog.warehouse.targets.delta_log import app_ids, named_files, txns
from pyspark_kafkalog.warehouse.targets.delta_rewind import DeltaRewind
from pyspark_kafkalog.warehouse.targets.delta_rules import (
    refuse_nulls,
    refuse_unfit,
    with_partitions,
)
from pyspark_kafkalog.warehouse.targets.delta_statistics import FileStatistics, file_statistics
from pyspark_kafkalog.warehouse.targets.delta_table import create_table, open_table
from pyspark_kafkalog.warehouse.targets.delta_upkeep import keep_up
from pyspark_kafkalog.warehouse.targets.delta_upsert import UpsertedDelta, check_mode
from pyspark_kafkalog.warehouse.targets.publish import publish_fenced
from pyspark_kafkalog.warehouse.targets.rewound import SAID_BY, Rewind, Rewound, furthest
from pyspark_kafkalog.warehouse.targets.rewound_files import go_back
from pyspark_kafkalog.warehouse.targets.staging import LOAD_ID as LOAD_ID_FORM
from pyspark_kafkalog.warehouse.targets.staging import (
    check_rows,
    discard,
    new_load_id,
    staged_file,
)
from pyspark_kafkalog.warehouse.targets.storage import is_url
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_stage
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace, open_place
from pyspark_kafkalog.warehouse.targets.upkeep import Upkeep, Upkept
from pyspark_kafkalog.warehouse.targets.upserted import is_loaded, topics_alone
from pyspark_kafkalog.warehouse.targets.upserted_files import Change, FileUpsert

LOAD_ID = "kafkalog.load-id"

_APP = "kafkalog"
_ID = "id:"
_EPOCH = "epoch:"
_MARK = "mark:"
_QUERY = "query:"
# Since when tombstones are sure to be there: see caught_up.CaughtUp.
_CAUGHT = ("caught-since:", "caught-end:", "caught-at:")
_OF_PARTITIONS = (_EPOCH, _MARK, _QUERY, *_CAUGHT)
# The version of a txn that holds no more, as there is no way to delete one.
_DROPPED = -1
_Place = TypeVar("_Place", TopicPartition, tuple[str, str])
_FILE_OF_A_LOAD = re.compile(f"/load-{LOAD_ID_FORM}/")
_MISSING_FILE = (
    "The target has to be on a file system that the driver and all executors share. If it is, a "
    "VACUUM removed what this load had written: run it again."
)
_SWEPT = "A sweep or a VACUUM removed what this load had written: run it again."


class DeltaTarget:
    """The table at `path`, absolute or the URL of an object store. See target.Target for the
    promises."""

    def __init__(self, path: str) -> None:
        self.place = open_place(path)

    def __repr__(self) -> str:
        return f"DeltaTarget({str(self.place)!r})"

    def __str__(self) -> str:
        return f"delta:{self.place}"

    def is_there(self) -> bool:
        with self._explained(f"look for the Delta table {self.place}"):
            return self._table() is not None

    def position(self, name: str, read_only: bool = False) -> Position:
        with self._explained(f"open the load target {self.place}"):
            table = self._table()
            if table is None:
                _refuse_foreign_files(self.place)
                return NOWHERE
            if not read_only:
                self.place.restore(self._named_files)
            found = self.position_in(table, name)
            return replace(found, offsets=_without_dropped(found.offsets))

    def names(self) -> list[str]:
        with self._explained(f"read the log of the Delta table {self.place}"):
            table = self._table()
            if table is None:
                return []
            found = app_ids(self.place)
            parts_of = (app_id.split(":") for app_id in found)
            names = {unquote(parts[1]) for parts in parts_of if parts[0] == _APP and len(parts) > 1}
            return sorted(name for name in names if self._is_placed(table, name))

    def history(self) -> Iterator[CommitRecord]:
        with self._explained(f"read the log of the Delta table {self.place}"):
            table = self._table()
            for version in range(table.version() if table else -1, -1, -1):
                try:
                    said = commit_info(self.place, version)
                except FileNotFoundError:
                    return  # cleaned up, and all before it
                if "kafkalog.offsets" in said and SAID_BY not in said:
                    gaps = ranges_from_json(json.loads(said.get("kafkalog.gaps", "[]")))
                    at = said["timestamp"]
                    yield CommitRecord(said["kafkalog.name"], str(version), at, gaps)

    def _held(self, table: DeltaTable, name: str) -> list[TopicPartition]:
        """The partitions in which a load has a place, refused or not."""
        return _partitions_of(_without_dropped(self._versions(table, name)))

    def _is_placed(self, table: DeltaTable, name: str) -> bool:
        return bool(_without_dropped(self._versions(table, name)))

    def stage(
        self,
        schema: pa.Schema,
        partition_by: Sequence[PartitionField] = (),
        change: SchemaChange = UNSAID,
        upsert: Upsert | None = None,
    ) -> Stage:
        load_id = new_load_id()
        refuse_fields_of_iceberg(partition_by)
        with self._explained(f"write to the load target {self.place}"):
            self.place.make()
            rows = table_columns(schema, upsert)
            table = self._table() or self._create(rows, partition_by)
            rows = joined_columns(table, rows, change)
            changed = changed_schema(table, rows, change, self.place)
            has_loads = upsert is not None and bool(self.names())
            check_mode(table, upsert, rows, has_loads, self.place)
            refuse_unfit(table, changed, rows, partition_by, self.place)
            path = self.place.make_stage(load_id)
            self.place.try_create(load_id)
        partitioning = Partitioning(tuple(partition_by)) if partition_by else None
        staged = upsert.schema(rows) if upsert else rows
        return Stage(load_id, path, staged, partitioning=partitioning, change=change, upsert=upsert)

    def commit(self, pending: PendingCommit) -> Commit:
        with self._explained(
            f"commit to the load target {self.place} (to run the load again is safe: it goes on "
            "from the newest commit, whether that is this one or not)"
        ):
            return publish_fenced(pending, _FencedDelta(self, pending))

    def discard(self, stage: Stage) -> None:
        discard(stage)

    def forget(self, name: str) -> bool:
        with self._explained(f"forget load {name!r} in {self.place}"):
            was_there = False
            while (table := self._table()) is not None:
                versions = self._versions(table, name)
                held = _without_dropped(versions)
                if not held and not self._is_lost(table, name, versions):
                    return was_there
                was_there = True
                count = sum(rest.isdecimal() for _, rest in versions)
                transactions = [Transaction(_app_id(name), count)]
                transactions += [
                    Transaction(f"{_app_id(name)}:{topic}:{rest}", _DROPPED)
                    for topic, rest in sorted(held)
                ]
                places = dict.fromkeys(_partitions_of(held), ANY_OFFSET)
                deleted = DeletedKeys(self.place, places)
                # What comes after the commit is of a load that has started over.
                names = deleted.names()
                known = self.names() if names else []
                others = [self._held(table, each) for each in known if each != name]
                try:
                    _append(table, [], transactions, {"kafkalog.forgotten": name})
                    deleted.drop(names, topics_alone(places, others))
                    return True
                except CommitFailedError:
                    if open_table(self.place).version() == table.version():
                        raise
            return was_there

    def rewind(self, asked: Rewind) -> Rewound:
        with self._explained(f"rewind load {asked.name!r} in {self.place}"):
            if self._table() is None:
                # Which says that there is no such load.
                asked.step_from(NOWHERE, str(self))
            return go_back(
                asked, DeltaRewind(self.place, asked.name, _Places(self, asked.name)), str(self)
            )

    def vacuum(self, idle_s: float, dry_run: bool) -> list[str]:
        with self._explained(f"sweep the load target {self.place}"):
            return self.place.sweep(idle_s, dry_run, self._named_files, self._fence)

    def upkeep(self, asked: Upkeep) -> Upkept:
        with self._explained(f"maintain the load target {self.place}"):
            return keep_up(self.place, asked, self._refused)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Errors of deltalake and of the operating system become a TargetError that says what could
        not be done."""
        try:
            yield
        except KafkalogError:
            raise
        except (DeltaError, OSError, ValueError) as error:
            # Its own words may hold what is not to be shown.
            cause = None if is_url(self.place.uri) else error
            said = self.place.in_words(error)
            raise TargetError(f"cannot {doing}: {said}. {self.place.advice}") from cause

    def _refused(self) -> list[str]:
        """The loads that cannot go on: see position_in."""
        refused = []
        for name in self.names():
            try:
                self.position(name, read_only=True)
            except TargetError:
                refused.append(name)
        return refused

    def _named_files(self) -> set[str]:
        return named_files(self.place)

    def _fence(self) -> None:
        """A log entry without files: whoever was about to write its number looks again."""
        table = open_table(self.place)
        table.create_write_transaction(
            [],
            "append",
            table.schema(),
            commit_properties=CommitProperties(custom_metadata={"kafkalog.vacuum": "true"}),
        )

    def _table(self) -> DeltaTable | None:
        try:
            return open_table(self.place)
        except TableNotFoundError:
            return None

    def _create(self, schema: pa.Schema, partition_by: Sequence[PartitionField]) -> DeltaTable:
        _refuse_foreign_files(self.place)
        columns = Schema.from_arrow(with_partitions(schema, partition_by))
        try:
            return create_table(self.place, columns, [field.name for field in partition_by])
        except (DeltaError, OSError):
            # Another loader was faster, and killed or not, what it made is a table; or it is this
            # one, and the answer was lost.
            table = self._table()
            if table is None:
                raise
            return table

    def position_in(
        self, table: DeltaTable, name: str, seen_version: int | None = None
    ) -> Position:
        """Where load `name` goes on, in the table version that `table` was opened at. This was
        asked before at `seen_version`: later entries alone are looked through.

        Raises TargetError where that is lost, or the table was restored to before it."""
        offsets = {}
        newest: dict[str, tuple[int, UUID]] = {}
        kinds: dict[str, dict[TopicPartition, int]] = {kind: {} for kind in _OF_PARTITIONS}
        versions = self._versions(table, name)
        for (topic, rest), version in versions.items():
            if rest.isdecimal():
                offsets[TopicPartition(topic, int(rest))] = version
            elif version != _DROPPED:
                kind, colon, of_kind = rest.partition(":")
                if kind + colon == _ID:
                    found = version, UUID(of_kind)
                    newest[topic] = max(newest.get(topic, found), found)
                else:
                    kinds[kind + colon][TopicPartition(topic, int(of_kind))] = version
        if self._is_lost(table, name, versions, seen_version):
            raise TargetError(
                f"the log of the Delta table {self.place} does not hold all offsets of load "
                f"{name!r}, so it is unknown where it goes on; nothing was written. Restore the "
                "log from a backup, and unset delta.setTransactionRetentionDuration if it is set; "
                "or let the load land everything again (pyspark_kafkalog.forget, kafkalog load "
                "--forget)."
            )
        self._refuse_restored(table, name, _without_dropped(offsets), seen_version)
        ids = {topic: topic_id for topic, (_, topic_id) in newest.items()}
        since, end, at = (kinds[kind] for kind in _CAUGHT)
        caught = {each: CaughtUp(since[each], end[each], at[each]) for each in since}
        return Position(offsets, ids, kinds[_EPOCH], kinds[_MARK], kinds[_QUERY], caught)

    def _refuse_restored(
        self, table: DeltaTable, name: str, offsets: Offsets, seen_version: int | None
    ) -> None:
        oldest = 0 if seen_version is None else seen_version + 1
        found = restored(self.place, name, offsets, table.version(), oldest) if offsets else None
        if found is None:
            return
        left = "what the table does not have" if found.offsets is None else found.offsets
        again = "no start" if left == "{}" else f"`starting` (--from) at {left}"
        without = furthest(offsets, from_json(json.loads(found.offsets or "{}")))
        raise TargetError(
            f"the Delta table {self.place} was restored (its version {found.version}) to before "
            f"load {name!r} came to {json.dumps(to_json(offsets))}: to go on there would leave out "
            "what is gone from the table since, or double what is back; nothing was written. To "
            "load again what is gone, let the load start over (pyspark_kafkalog.forget, kafkalog "
            f"load --forget) with {again}; to do without it, with `starting` at "
            f"{json.dumps(to_json(without))}; or restore the table to its newest version"
        )

    def _is_lost(
        self,
        table: DeltaTable,
        name: str,
        versions: Mapping[tuple[str, str], int],
        seen_version: int | None = None,
    ) -> bool:
        """Whether load `name` had txns that are gone: fewer or more than were counted; or none,
        where the history names the load, or files of loads are there and no txn of any load.

        At `seen_version` there was no such loss, so only later entries are read: others may commit
        so often that whoever reads the whole history each time is always late."""
        count = table.transaction_version(_app_id(name))
        kept = sum(rest.isdecimal() for _, rest in versions)
        if count is not None or kept:
            return count != kept
        oldest = 0 if seen_version is None else seen_version + 1
        if names_load(self.place, name, range(oldest, table.version() + 1)):
            return True
        if seen_version is not None or any(
            app_id.startswith(f"{_APP}:") for app_id in app_ids(self.place)
        ):
            return False
        return any(_FILE_OF_A_LOAD.search(uri) for uri in table.file_uris())

    def _versions(self, table: DeltaTable, name: str) -> dict[tuple[str, str], int]:
        """The versions of the txns of load `name`, by topic and what follows it in their appIds."""
        newest: dict[str, int | None] = {}
        expire = "delta.setTransactionRetentionDuration" in table.metadata().configuration
        for txn in txns(self.place):
            if expire or (txn.is_checkpoint and txn.entry > table.version()):
                newest[txn.app_id] = table.transaction_version(txn.app_id)
            elif txn.entry <= table.version():
                newest[txn.app_id] = txn.version
        found = {}
        for app_id, version in newest.items():
            key = app_id.removeprefix(f"{_app_id(name)}:")
            topic, _, rest = key.partition(":")
            is_known = rest.isdecimal() or rest.startswith((_ID, *_OF_PARTITIONS))
            if key != app_id and is_known and version is not None:
                found[topic, rest] = version
        return found


class _Places:
    """Where loads go on, as a rewind of one of them sees it: see delta_rewind.Places."""

    _current: Position

    def __init__(self, target: DeltaTarget, name: str) -> None:
        self._target = target
        self._name = name

    def of_load(self, table: DeltaTable) -> Position:
        self._current = self._target.position_in(table, self._name)
        return replace(self._current, offsets=_without_dropped(self._current.offsets))

    def of_others(self, table: DeltaTable) -> Iterator[tuple[str, Position]]:
        for name in self._target.names():
            found = self._target.position_in(table, name)
            yield name, replace(found, offsets=_without_dropped(found.offsets))

    def moves(self, position: Position, version: int) -> list[Transaction]:
        return _moves(self._name, self._current, position, version)


class _FencedDelta:
    """The table as one pending commit sees it: see publish.FencedTable."""

    _table: DeltaTable
    _schema: Schema
    """The table's columns as the commit leaves them."""
    _current: Position
    """With the txns that hold no more: these are not written again."""
    _upserted: UpsertedDelta
    _change: Change

    def __init__(self, target: DeltaTarget, pending: PendingCommit) -> None:
        self._target = target
        self._place = target.place
        self.advice = _SWEPT if is_url(target.place.uri) else _MISSING_FILE
        self._pending = pending
        self._statistics: list[FileStatistics] = []
        self._seen_version: int | None = None
        self._upsert: FileUpsert | None = None

    def look(self) -> None:
        if self._upsert is not None:
            self._upsert.discard()
        if not self._statistics and self._pending.stage.upsert is None:
            stage = self._pending.stage
            staged = open_stage(stage.path)
            names = [staged_file(stage, file.name) for file in self._pending.files]
            with ThreadPoolExecutor() as threads:
                footers = threads.map(lambda name: pq.read_metadata(staged.source(name)), names)
                for name, file, footer in zip(names, self._pending.files, footers, strict=True):
                    check_rows(staged.path_of(name), file, footer.num_rows)
                    self._statistics.append(file_statistics(footer))
        self._table = open_table(self._place)

    def position(self) -> Position:
        table, pending = self._table, self._pending
        self._current = self._target.position_in(table, pending.name, self._seen_version)
        self._seen_version = table.version()
        current = self._current
        position = replace(current, offsets=_without_dropped(current.offsets))
        pending.check_unmoved(position, str(self._place))
        # Again, others may have altered the table since the load began.
        stage = pending.stage
        partition_by = stage.partitioning.fields if stage.partitioning else ()
        rows = table_columns(stage.schema, stage.upsert)
        now = joined_columns(table, rows, stage.change)
        check_unchanged(rows, now, f"the Delta table {self._place}")
        self._schema = changed_schema(table, rows, stage.change, self._place)
        passed = {} if stage.upsert is None else self._passed()
        check_mode(table, stage.upsert, rows, is_loaded(pending, passed), self._place)
        refuse_unfit(table, self._schema, rows, partition_by, self._place)
        if stage.upsert is not None:
            self._change_files(stage.upsert, passed, position)
        else:
            refuse_nulls(table, stage, pending.files, self._statistics, self._place)
        return position

    def _passed(self) -> dict[str, Offsets]:
        """Where each load goes on."""
        names = sorted({*self._target.names(), self._pending.name})
        places = {name: self._target.position_in(self._table, name) for name in names}
        return {name: _without_dropped(each.offsets) for name, each in places.items()}

    def _change_files(
        self, upsert: Upsert, passed: Mapping[str, Offsets], current: Position
    ) -> None:
        table, pending = self._table, self._pending
        self._upsert = self._upsert or FileUpsert(pending, upsert, f"the Delta table {self._place}")
        schema = self._schema if pending.files else table.schema()
        seen = UpsertedDelta(table, schema, self._place, passed)
        self._change = self._upsert.change(seen, current)
        written = self._change.written()
        open_written = open_stage(self._change.stage.path).source
        footers = [file_statistics(pq.read_metadata(open_written(one.name))) for one in written]
        try:
            refuse_nulls(table, self._change.stage, written, footers, self._place)
        except TargetError:
            self._upsert.discard()
            raise
        self._upserted = seen

    def publish(self, step: Step) -> int | None:
        """The table version that this commit became."""
        table, current, position = self._table, self._current, step.position
        name, stage = self._pending.name, self._pending.stage
        base = table.version()
        transactions = _moves(name, current, position, base + 1)
        metadata = {
            LOAD_ID: stage.load_id,
            "kafkalog.name": name,
            "kafkalog.offsets": json.dumps(to_json(position.offsets)),
        }
        if step.gaps:
            metadata["kafkalog.gaps"] = json.dumps(ranges_to_json(step.gaps))
        try:
            self._write(transactions, metadata)
        except (DeltaError, OSError) as error:
            # It may be there and its answer lost, or what follows a commit, such as a checkpoint,
            # may have failed.
            newest = open_table(self._place)
            for version in range(base + 1, newest.version() + 1):
                if commit_info(self._place, version).get(LOAD_ID) == stage.load_id:
                    return version
            if isinstance(error, CommitFailedError) and newest.version() > base:
                return None
            raise
        if self._upsert is not None:
            self._upsert.published()
        return base + 1

    def _write(self, transactions: Sequence[Transaction], said: Mapping[str, str]) -> None:
        table, stage, files = self._table, self._pending.stage, self._pending.files
        if self._upsert is not None:
            self._upserted.write(self._change, stage, transactions, said)
            return
        adds = _add_actions(table, stage, files, self._statistics)
        if files and self._schema != table.schema():
            append_with_schema(self._place, table, stage, self._schema, adds, transactions, said)
        else:
            _append(table, adds, transactions, said)


def _app_id(name: str, key: TopicPartition | None = None) -> str:
    suffix = f":{key.topic}:{key.partition}" if key else ""
    return f"{_APP}:{quote(name, safe='')}{suffix}"


def _moves(name: str, current: Position, position: Position, version: int) -> list[Transaction]:
    """The txns by which load `name`, at `current` with what holds no more, comes to `position` in
    that version of the table."""
    # A txn stays for ever; that of a partition which a recreated topic has not is dropped.
    offsets = dict.fromkeys(current.offsets, _DROPPED) | dict(position.offsets)
    transactions = [Transaction(_app_id(name), len(offsets))]
    transactions += [
        Transaction(_app_id(name, key), offset)
        for key, offset in sorted(offsets.items())
        if current.offsets.get(key) != offset
    ]
    transactions += [
        Transaction(f"{_app_id(name)}:{topic}:{_ID}{topic_id}", version)
        for topic, topic_id in sorted(position.topic_ids.items())
        if current.topic_ids.get(topic) != topic_id
    ]
    transactions += _changed(name, _EPOCH, current.epochs, position.epochs)
    transactions += _changed(name, _MARK, current.marks, position.marks)
    transactions += _changed(name, _QUERY, current.queries, position.queries)
    for kind, field in zip(_CAUGHT, ("since_ms", "end", "end_ms"), strict=True):
        before, now = (
            {each: getattr(known, field) for each, known in of.caught_up.items()}
            for of in (current, position)
        )
        transactions += _changed(name, kind, before, now)
    return transactions


def _changed(
    name: str, kind: str, current: Mapping[TopicPartition, int], now: Mapping[TopicPartition, int]
) -> list[Transaction]:
    """The txns of a `kind` by which what is kept of partitions becomes that of `now`."""
    versions = dict.fromkeys(current, _DROPPED) | dict(now)
    return [
        Transaction(f"{_app_id(name)}:{key.topic}:{kind}{key.partition}", version)
        for key, version in sorted(versions.items())
        if current.get(key) != version
    ]


def _append(
    table: DeltaTable,
    adds: Sequence[AddAction],
    transactions: Sequence[Transaction],
    metadata: Mapping[str, str],
) -> None:
    """One log entry, at the number that follows the version `table` was opened at or none."""
    table.create_write_transaction(
        list(adds),
        "append",
        table.schema(),
        partition_by=table.metadata().partition_columns or None,
        commit_properties=CommitProperties(
            custom_metadata=dict(metadata),
            app_transactions=list(transactions),
            max_commit_retries=0,
        ),
    )


def _partitions_of(held: Iterable[tuple[str, str]]) -> list[TopicPartition]:
    """Those of which txns tell an offset."""
    return [TopicPartition(topic, int(rest)) for topic, rest in held if rest.isdecimal()]


def _without_dropped(offsets: Mapping[_Place, int]) -> dict[_Place, int]:
    return {key: offset for key, offset in offsets.items() if offset != _DROPPED}


def _add_actions(
    table: DeltaTable, stage: Stage, files: Sequence[DataFile], statistics: Sequence[FileStatistics]
) -> list[AddAction]:
    there = {field.name for field in table.schema().fields if isinstance(field.type, PrimitiveType)}
    lacking = sorted(there - set(stage.schema.names) - set(table.metadata().partition_columns))
    names = [staged_file(stage, file.name) for file in files]
    modified_ms = open_stage(stage.path).modified_ms(names)
    return [
        AddAction(
            path=f"load-{stage.load_id}/{file.name}",
            size=file.size_bytes,
            partition_values=_partition_values(stage, file),
            modification_time=modified_ms[staged_file(stage, file.name)],
            data_change=True,
            stats=found.to_json(lacking),
        )
        for file, found in zip(files, statistics, strict=True)
    ]


def _partition_values(stage: Stage, file: DataFile) -> dict[str, str | None]:
    fields = stage.partitioning.fields if stage.partitioning else ()
    return {field.name: value for field, value in zip(fields, file.partition, strict=True)}


def _refuse_foreign_files(place: TablePlace) -> None:
    try:
        names = place.names()
    except NotADirectoryError:
        raise TargetError(f"the load target {place} is a file: name a directory") from None
    if "_kafkalog" in names:
        raise TargetError(
            f"{place} is a Parquet target of loads (_kafkalog): name it parquet:{place}, or name a "
            "new or empty directory for the Delta table"
        )
    visible = sorted(name for name in names if not name.startswith(("_", ".", "load-")))
    if visible:
        raise TargetError(
            f"{place} is not a Delta table and holds files of others ({visible[0]}): name a Delta "
            "table, or a new or empty directory"
        )
