"""What a database keeps of loads, beside the tables that they load into.

    kafkalog_commits   a row for each load: TABLE, load name, number from 1, load id, time, records,
                       how many rows the name then had in kafkalog_offsets, and a digest of all its
                       rows there, in kafkalog_topics and kafkalog_epochs; one of load id
                       `forgotten-...` where the name was told to start over, `rewound-...` where it
                       was to go back
    kafkalog_offsets   where each load goes on: TABLE, load name, topic, partition, next offset
    kafkalog_topics    the ids of these topics: TABLE, load name, topic, topic id
    kafkalog_epochs    the leader epochs of their partitions when they were planned: TABLE, load
                       name, topic, partition, leader epoch
    kafkalog_marks     which record was read last (marks.py): TABLE, load name, topic, partition,
                       mark
    kafkalog_queries   which query moved each partition (query_number.py): TABLE, load name, topic,
                       partition, query
    kafkalog_gaps      the offsets that loads gave up: TABLE, load name, number of the commit, range
    kafkalog_upserts   by which key and order a table is upserted: TABLE, key (JSON), order_by, and
                       all columns that loads have filled, with what these hold, null for others
                       (JSON)
    kafkalog_deleted   the keys that tombstones deleted last: TABLE, key (bytes), topic, partition,
                       order (a number)
    kafkalog_caught_up since when an upsert is sure of tombstones (caught_up.py): TABLE, load name,
                       topic, partition, since_ms, log_end, end_ms

They are in the schema of the table. A name has committed and has just what its newest commit left,
or neither: what is without the other, or is as it was before, is lost, not new. Databases of an
earlier layout have no count, digest, kafkalog_epochs, kafkalog_marks or kafkalog_queries; they get
these where that may be, and go on without elsewhere. The last three tables are made by the first
upsert.
Called by the driver, within a transaction of the caller, which is what makes rows and records one.
Numbers fence: the primary key lets one loader take the next one.
"""

import functools
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from kafka.structs import TopicPartition
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable

from pyspark_kafkalog.errors import InvalidOptionError, TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.caught_up import Caught, CaughtUp
from pyspark_kafkalog.warehouse.commit import NOWHERE, CommitRecord, Position, TopicIds
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets import mariadb_session
from pyspark_kafkalog.warehouse.targets.mariadb_types import MOST_KEY_BYTES
from pyspark_kafkalog.warehouse.targets.staging import new_load_id
from pyspark_kafkalog.warehouse.targets.upserted import Upserted

_FORGOTTEN, _REWOUND = "forgotten-", "rewound-"
_COUNT, _DIGEST = "partitions", "position_digest"

# Also of tables that lack a column.
_ALL: sa.ColumnClause[Any] = sa.literal_column("*")

# By the columns that are a key's and their values: the other columns and theirs.
_Rows: TypeAlias = Mapping[tuple[tuple[str, Any], ...], Mapping[str, Any]]


class _Tables(NamedTuple):
    """The records' tables in one schema of the database."""

    commits: sa.Table
    offsets: sa.Table
    topics: sa.Table
    epochs: sa.Table
    marks: sa.Table
    queries: sa.Table
    gaps: sa.Table
    upserts: sa.Table
    deleted: sa.Table
    caught_up: sa.Table


# An index of MariaDB has 3072 bytes, of which a character takes 4.
_MOST_CHARACTERS = {"table_name": 64, "load_name": 255, "topic": 249}
_MOMENT = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mariadb")
_ROW_KEY = sa.LargeBinary().with_variant(mysql.VARBINARY(MOST_KEY_BYTES), "mariadb")


def _text_of(name: str) -> sa.types.TypeEngine[Any]:
    return sa.Text().with_variant(mysql.VARCHAR(_MOST_CHARACTERS[name]), "mariadb")


@functools.cache
def _tables(schema: str) -> _Tables:
    metadata = sa.MetaData(schema=schema)

    def key(name: str, kind: type[sa.types.TypeEngine[Any]] | None = None) -> sa.Column[Any]:
        return sa.Column(name, kind or _text_of(name), primary_key=True, autoincrement=False)

    def table_of(name: str, *columns: sa.Column[Any]) -> sa.Table:
        return sa.Table(f"kafkalog_{name}", metadata, *columns, **mariadb_session.TABLES)

    def table(name: str, *columns: sa.Column[Any]) -> sa.Table:
        return table_of(name, key("table_name"), key("load_name"), *columns)

    def of_partitions(name: str, **numbers: type[sa.types.TypeEngine[Any]]) -> sa.Table:
        columns = [sa.Column(each, kind, nullable=False) for each, kind in numbers.items()]
        return table(name, key("topic"), key("partition", sa.Integer), *columns)

    return _Tables(
        commits=table(
            "commits",
            key("commit_number", sa.BigInteger),
            sa.Column("load_id", sa.Text, nullable=False),
            sa.Column("committed_at", _MOMENT, nullable=False),
            sa.Column("records", sa.BigInteger, nullable=False),
            sa.Column(_COUNT, sa.BigInteger),
            sa.Column(_DIGEST, sa.Text),
        ),
        offsets=of_partitions("offsets", next_offset=sa.BigInteger),
        topics=table("topics", key("topic"), sa.Column("topic_id", sa.Text, nullable=False)),
        epochs=of_partitions("epochs", leader_epoch=sa.Integer),
        marks=of_partitions("marks", mark=sa.BigInteger),
        queries=of_partitions("queries", query=sa.BigInteger),
        gaps=table(
            "gaps",
            key("commit_number", sa.BigInteger),
            key("topic"),
            key("partition", sa.Integer),
            key("start_offset", sa.BigInteger),
            sa.Column("until_offset", sa.BigInteger, nullable=False),
        ),
        upserts=table_of(
            "upserts",
            key("table_name"),
            sa.Column("key_columns", sa.Text, nullable=False),
            sa.Column("order_by", sa.Text),
            sa.Column("kinds", sa.Text, nullable=False),
        ),
        deleted=table_of(
            "deleted",
            key("table_name"),
            sa.Column("row_key", _ROW_KEY, primary_key=True),
            sa.Column("topic", sa.Text, nullable=False),
            sa.Column("partition", sa.Integer, nullable=False),
            sa.Column("row_order", sa.BigInteger),
        ),
        caught_up=of_partitions(
            "caught_up", since_ms=sa.BigInteger, log_end=sa.BigInteger, end_ms=sa.BigInteger
        ),
    )


NAMES = tuple(table.name for table in _tables(""))
"""What no table to load into can be called."""


class Records:
    """The records of the loads into `table`, a name in `schema`. Without the tables of records, or
    some of them, there are no such rows."""

    def __init__(self, connection: sa.Connection, schema: str, table: str) -> None:
        self._connection = connection
        self._tables = _tables(schema)
        self._inspector = sa.inspect(connection)
        self._table = table

    def create_missing(self, upserts: bool = False) -> None:
        of_upserts = (self._tables.upserts, self._tables.deleted, self._tables.caught_up)
        if upserts and self.upsert() is not None and not self._is_there(self._tables.deleted):
            raise TargetError(
                f"{self._table} was upserted, and {self._tables.deleted.fullname}, which says "
                "which keys were deleted, is gone: an older record would bring one back. Nothing "
                "was committed. Restore it from a backup, or load into a new table"
            )
        wanted = [table for table in self._tables if upserts or table not in of_upserts]
        missing = [table for table in wanted if not self._is_there(table)]
        is_earlier = len(missing) < len(wanted)
        later = (self._tables.epochs, self._tables.marks, self._tables.queries)
        for table in missing:
            statement = CreateTable(table, if_not_exists=True)
            if is_earlier and table in later:
                self._alter(statement)
            else:
                self._connection.execute(statement)
        preparer = self._connection.dialect.identifier_preparer
        commits = preparer.format_table(self._tables.commits)
        for column, kind in ((_COUNT, "BIGINT"), (_DIGEST, "TEXT")):
            if column not in self._columns_of_commits():
                self._alter(sa.text(f"ALTER TABLE {commits} ADD COLUMN {column} {kind}"))

    def _alter(self, statement: sa.Executable) -> None:
        """Brings an earlier layout up to date."""
        if self._connection.dialect.name != "postgresql":
            self._connection.execute(statement)
            return
        # Of another role, or while a load of others is at its commit: the next one may do so.
        with suppress(DBAPIError), self._connection.begin_nested():
            self._connection.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
            self._connection.execute(statement)

    def _columns_of_commits(self) -> set[str]:
        """Those of an earlier layout lack the last ones."""
        none = sa.select(_ALL).select_from(self._tables.commits).limit(0)
        return set(self._connection.execute(none).keys())

    def spellings(self) -> set[str]:
        """The tables that any load went into, as they were called."""
        return {
            name
            for table in (self._tables.commits, self._tables.offsets)
            for name in self._rows(sa.select(table.c.table_name).distinct())
        }

    def any(self) -> bool:
        """Whether any load went into the table."""
        return any(
            bool(self._rows(sa.select(table.c.table_name).where(self._of_table(table)).limit(1)))
            for table in (self._tables.offsets, self._tables.commits)
        )

    def names(self) -> list[str]:
        """The loads that have a place to go on from, or have lost it."""
        commits, offsets = self._tables.commits, self._tables.offsets
        known = sa.select(offsets.c.load_name).where(self._of_table(offsets)).distinct()
        by_name = sa.select(commits.c.load_name).where(self._of_table(commits)).distinct()
        committed = {name for name in self._rows(by_name) if self._has_committed(name)}
        return sorted({*self._rows(known), *committed})

    def history(self) -> list[CommitRecord]:
        """All commits of loads into the table, newest first."""
        commits, gaps = self._tables.commits, self._tables.gaps
        given_up: dict[tuple[str, int], list[OffsetRange]] = {}
        for row in self._all_rows_of(gaps):
            piece = OffsetRange(row.topic, row.partition, row.start_offset, row.until_offset)
            given_up.setdefault((row.load_name, row.commit_number), []).append(piece)
        found = []
        latest_ms: dict[str, int] = {}
        for row in sorted(self._all_rows_of(commits), key=lambda row: row.commit_number):
            name, number, at_ms = row.load_name, row.commit_number, _time_ms(row.committed_at)
            # Numbers, not the clocks of several drivers, say which of a name's commits came later.
            latest_ms[name] = max(at_ms, latest_ms.get(name, at_ms))
            if _commits(row) and not row.load_id.startswith(_REWOUND):
                commit = CommitRecord(
                    name, str(number), at_ms, tuple(given_up.get((name, number), ()))
                )
                found.append((latest_ms[name], number, commit))
        return [commit for _, _, commit in sorted(found, key=lambda each: each[:2])[::-1]]

    def newest(self, name: str) -> int:
        """The number of a load's last commit; 0 before the first."""
        row = self._newest(name)
        return row.commit_number if row else 0

    def has_load(self, load_id: str) -> bool:
        commits = self._tables.commits
        return bool(self._rows(sa.select(commits).where(commits.c.load_id == load_id)))

    def position(self, name: str) -> Position:
        """Where a load goes on. Raises TargetError when that is lost."""
        most = _MOST_CHARACTERS["load_name"]
        if len(name) > most and self._connection.dialect.name == "mariadb":
            raise InvalidOptionError(f"in MariaDB the name of a load has {most} characters at most")
        newest, position = self._newest(name), self.recorded_position(name)
        while (newer := self._newest(name)) != newest:
            # A rival's commit came between the two.
            newest, position = newer, self.recorded_position(name)
        there, counted = len(position.offsets), newest and newest._mapping.get(_COUNT)
        digest = newest and newest._mapping.get(_DIGEST)
        lost, kept = self._tables.offsets.fullname, self._tables.commits.fullname
        if there and newest is None:
            lost, kept, rows = kept, lost, "no row"
        elif not there and _commits(newest):
            rows = "no row"
        elif counted not in (None, there):
            rows = f"{there} of {counted} rows"
        elif digest not in (None, _digest(position)):
            lost = f"{lost}, {self._tables.topics.fullname} or {self._tables.epochs.fullname}"
            rows = "not what its last commit left"
        else:
            return position
        raise TargetError(
            f"{kept} says that load {name!r} went into {self._table}, and {lost} has {rows} of it: "
            f"where it goes on cannot be trusted. Restore {lost} from a backup that is as new; or "
            "let the name start over, which loads everything again: pyspark_kafkalog.forget("
            f"target, {name!r}) or kafkalog load --forget; or go on under another name, with "
            "`starting` at what the table does not have yet"
        )

    def recorded_position(self, name: str) -> Position:
        """What is recorded of where a load goes on."""
        tables = self._tables
        return Position(
            {
                TopicPartition(row.topic, row.partition): row.next_offset
                for row in self._rows_of(tables.offsets, name)
            },
            {row.topic: UUID(row.topic_id) for row in self._rows_of(tables.topics, name)},
            {
                TopicPartition(row.topic, row.partition): row.leader_epoch
                for row in self._rows_of(tables.epochs, name)
            },
            {
                TopicPartition(row.topic, row.partition): row.mark
                for row in self._rows_of(tables.marks, name)
            },
            {
                TopicPartition(row.topic, row.partition): row._mapping["query"]
                for row in self._rows_of(tables.queries, name)
            },
            {
                TopicPartition(row.topic, row.partition): CaughtUp(
                    row.since_ms, row.log_end, row.end_ms
                )
                for row in self._rows_of(tables.caught_up, name)
            },
        )

    def take_number(
        self, name: str, number: int, load_id: str, records: int, position: Position
    ) -> None:
        """Inserts the row of a commit that moves the load to `position`."""
        if not self._is_there(self._tables.epochs):
            position = replace(position, epochs={})
        columns = self._columns_of_commits()
        of_position = {_COUNT: len(position.offsets), _DIGEST: _digest(position)}
        values = {
            **self._key(name),
            "commit_number": number,
            "load_id": load_id,
            "committed_at": datetime.now(timezone.utc),
            "records": records,
            **{column: value for column, value in of_position.items() if column in columns},
        }
        self._connection.execute(self._tables.commits.insert(), values)

    def move(self, name: str, current: Position, position: Position) -> None:
        """Makes the rows of a load, which are those of `current`, those of `position`."""
        rows = [_partition_rows("next_offset", each.offsets) for each in (current, position)]
        self._replace(self._tables.offsets, name, *rows)
        if self._is_there(self._tables.epochs):
            rows = [_partition_rows("leader_epoch", each.epochs) for each in (current, position)]
            self._replace(self._tables.epochs, name, *rows)
        if self._is_there(self._tables.marks):
            rows = [_partition_rows("mark", each.marks) for each in (current, position)]
            self._replace(self._tables.marks, name, *rows)
        if self._is_there(self._tables.queries):
            rows = [_partition_rows("query", each.queries) for each in (current, position)]
            self._replace(self._tables.queries, name, *rows)
        if self._is_there(self._tables.caught_up):
            rows = [_caught_up_rows(each.caught_up) for each in (current, position)]
            self._replace(self._tables.caught_up, name, *rows)
        rows = [_id_rows(each.topic_ids) for each in (current, position)]
        self._replace(self._tables.topics, name, *rows)

    def add_gaps(self, name: str, number: int, gaps: Sequence[OffsetRange]) -> None:
        of_commit = {**self._key(name), "commit_number": number}
        for gap in gaps:
            self._connection.execute(self._tables.gaps.insert(), {**of_commit, **asdict(gap)})

    @property
    def deleted(self) -> sa.Table:
        """The keys that tombstones deleted last."""
        return self._tables.deleted

    def upsert(self) -> Upserted | None:
        """How the table is upserted; None where it is appended to, or nothing was loaded."""
        upserts = self._tables.upserts
        query = sa.select(upserts).where(self._of_table(upserts))
        row = self._connection.execute(query).first() if self._is_there(upserts) else None
        if row is None:
            return None
        how = Upsert(tuple(json.loads(row.key_columns)), row.order_by)
        return Upserted(how, json.loads(row.kinds))

    def record_upsert(self, upserted: Upserted) -> None:
        """In the place of what is recorded of the table, if anything is."""
        upserts = self._tables.upserts
        values = {
            "key_columns": json.dumps(upserted.how.key),
            "order_by": upserted.how.order_by,
            "kinds": json.dumps(upserted.kinds),
        }
        of_table = {"table_name": self._table}
        self._connection.execute(upserts.delete().where(self._of_table(upserts)))
        self._connection.execute(upserts.insert(), {**of_table, **values})

    def others_in(self, name: str, partitions: Collection[TopicPartition]) -> dict[str, str]:
        """Other loads that have a place in some of the partitions, each with one of these."""
        offsets = self._tables.offsets
        query = sa.select(offsets).where(self._of_table(offsets), offsets.c.load_name != name)
        return {
            row.load_name: f"{row.topic}-{row.partition}"
            for row in self._connection.execute(query)
            if TopicPartition(row.topic, row.partition) in partitions
        }

    def forget_keys(self, name: str, partitions: Collection[TopicPartition]) -> None:
        """Forgets which keys were deleted from these partitions, which are a load's; of a topic in
        which no other load has a place, from all that it may have had once."""
        offsets, deleted = self._tables.offsets, self._tables.deleted
        if not self._is_there(deleted):
            return
        shared = self._rows(
            sa.select(offsets.c.topic).where(self._of_table(offsets), offsets.c.load_name != name)
        )
        for topic in sorted({each.topic for each in partitions}):
            place = [deleted.c.topic == topic]
            if topic in shared:
                ours = [each.partition for each in partitions if each.topic == topic]
                place.append(deleted.c.partition.in_(ours))
            self._connection.execute(deleted.delete().where(self._of_table(deleted), *place))

    def forget_upserts(self) -> None:
        """Forgets that a table was upserted that is gone, unless a load has a place in it now."""
        offsets = self._tables.offsets
        is_loaded = sa.exists().where(self._of_table(offsets))
        for table in (self._tables.upserts, self._tables.deleted):
            if self._is_there(table):
                self._connection.execute(
                    table.delete().where(self._of_table(table), sa.not_(is_loaded))
                )

    def has_anything_of(self, name: str) -> bool:
        """Whether there is anything to forget."""
        return self.recorded_position(name) != NOWHERE or self._has_committed(name)

    def forget(self, name: str, number: int, load_id: str) -> None:
        """As a commit that takes `number`: a load at work finds itself overtaken. `load_id` is one
        of `forgotten_id`."""
        self.take_number(name, number, load_id, 0, NOWHERE)
        current = self.recorded_position(name)
        self.move(name, current, NOWHERE)
        self.forget_keys(name, current.offsets.keys())

    def _has_committed(self, name: str) -> bool:
        return _commits(self._newest(name))

    def _newest(self, name: str) -> Any:
        commits = self._tables.commits
        query = sa.select(_ALL).select_from(commits).filter_by(**self._key(name))
        newest_first = query.order_by(commits.c.commit_number.desc()).limit(1)
        return self._connection.execute(newest_first).first() if self._is_there(commits) else None

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        """The first column of the rows; none of a table that is missing."""
        [table] = query.get_final_froms()
        return self._connection.execute(query).scalars().all() if self._is_there(table) else []

    def _rows_of(self, table: sa.Table, name: str) -> Sequence[Any]:
        query = sa.select(table).filter_by(**self._key(name))
        return self._connection.execute(query).all() if self._is_there(table) else []

    def _all_rows_of(self, table: sa.Table) -> Sequence[Any]:
        # Also of tables that lack the last ones.
        columns = [column for column in table.c if column.name not in (_COUNT, _DIGEST)]
        query = sa.select(*columns).where(self._of_table(table))
        return self._connection.execute(query).all() if self._is_there(table) else []

    def _is_there(self, table: Any) -> bool:
        return self._inspector.has_table(table.name, table.schema)

    def _of_table(self, table: sa.Table) -> sa.ColumnElement[bool]:
        return table.c.table_name == self._table

    def _key(self, name: str) -> dict[str, str]:
        return {"table_name": self._table, "load_name": name}

    def _replace(self, table: sa.Table, name: str, current: _Rows, wanted: _Rows) -> None:
        for key in sorted(current.keys() | wanted.keys()):
            if current.get(key) == wanted.get(key):
                continue
            whole_key = {**self._key(name), **dict(key)}
            of_key = [table.c[column] == value for column, value in whole_key.items()]
            if key not in wanted:
                self._connection.execute(table.delete().where(*of_key))
            elif key not in current:
                self._connection.execute(table.insert(), {**whole_key, **wanted[key]})
            else:
                self._connection.execute(table.update().where(*of_key), dict(wanted[key]))


def forgotten_id() -> str:
    """A load id for a row that says that a name was told to start over."""
    return _FORGOTTEN + new_load_id()


def rewound_id() -> str:
    """A load id for a row that says that a name was told to go back."""
    return _REWOUND + new_load_id()


def _commits(newest: Any) -> bool:
    """Whether a load's newest row in kafkalog_commits leaves it a place to go on from."""
    return newest is not None and not newest.load_id.startswith(_FORGOTTEN)


def _digest(position: Position) -> str:
    """What tells a position from any other one."""
    whole = [
        sorted([*key, offset] for key, offset in position.offsets.items()),
        sorted([topic, str(topic_id)] for topic, topic_id in position.topic_ids.items()),
        sorted([*key, epoch] for key, epoch in position.epochs.items()),
    ]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


def _time_ms(moment: datetime) -> int:
    """SQLite keeps no zones: what is written is in UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return round(moment.timestamp() * 1000)


def _partition_rows(column: str, numbers: Mapping[TopicPartition, int]) -> _Rows:
    return {tuple(key._asdict().items()): {column: number} for key, number in numbers.items()}


def _id_rows(topic_ids: TopicIds) -> _Rows:
    return {(("topic", topic),): {"topic_id": str(one)} for topic, one in topic_ids.items()}


def _caught_up_rows(caught_up: Caught) -> _Rows:
    return {
        tuple(key._asdict().items()): {
            "since_ms": known.since_ms,
            "log_end": known.end,
            "end_ms": known.end_ms,
        }
        for key, known in caught_up.items()
    }
