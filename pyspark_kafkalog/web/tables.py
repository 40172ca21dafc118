"""Rows of the page's tables: by which column they are sorted, and which of them a page shows.

An address says `sort=size`, or `sort=-size` for the other way round. Figures begin with the
largest, names with the first; what nobody knows comes last. To sort by what brokers are asked for
costs a question about all rows, so that is bounded; else those of one page are asked for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyspark_kafkalog.client.cluster import PartitionMetadata
from pyspark_kafkalog.web.figures import Figures
from pyspark_kafkalog.web.groups import Group

_ROWS_A_PAGE = 50

_UNKNOWN = Figures()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic's line in a table."""

    name: str
    partitions: Sequence[PartitionMetadata]
    figures: Figures = _UNKNOWN


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition's line in a table."""

    at: PartitionMetadata
    figures: Figures = _UNKNOWN


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """`key` is what rows are sorted by, None where they cannot be; `is_asked_for` says that
    brokers tell it, not metadata. Figures stand to the right."""

    name: str
    words: str
    key: Callable[[T], Any] | None = None
    is_figure: bool = True
    is_largest_first: bool = True
    is_asked_for: bool = True


TOPICS: Sequence[Column[TopicRow]] = (
    Column("name", "Topic", lambda row: row.name, False, False, False),
    Column("partitions", "Partitions", lambda row: len(row.partitions), is_asked_for=False),
    Column("replicas", "Replicas"),
    Column("records", "Records", lambda row: row.figures.records),
    Column("rate", "Records/s", lambda row: row.figures.record_rate),
    Column("size", "Size", lambda row: row.figures.size),
    Column("growth", "Growth", lambda row: row.figures.byte_rate),
    Column("state", "State", is_figure=False),
)
PARTITIONS: Sequence[Column[PartitionRow]] = (
    Column("number", "Partition", lambda row: row.at.partition, True, False, False),
    Column("leader", "Leader"),
    Column("isr", "In sync", is_figure=False),
    Column("behind", "Not in sync", is_figure=False),
    Column("begin", "Begin"),
    Column("end", "End", lambda row: row.figures.end),
    Column("records", "Records", lambda row: row.figures.records),
    Column("rate", "Records/s", lambda row: row.figures.record_rate),
    Column("size", "Size", lambda row: row.figures.size),
)
GROUPS: Sequence[Column[Group]] = (
    Column("name", "Group", lambda row: row.listed.name, False, False, False),
    Column("state", "State", is_figure=False),
    Column("type", "Type", is_figure=False),
    Column("members", "Members"),
    Column("topics", "Topics", is_figure=False),
    Column("lag", "Lag", lambda row: row.lag),
)


class Sorting(Generic[T]):
    """The columns of a table, and the one that counts."""

    def __init__(self, columns: Sequence[Column[T]], wanted: str, is_bounded: bool) -> None:
        """`wanted` is what the address says; the first column counts where that is none, or where
        brokers would be asked for it and `is_bounded` is False: `refused` names it then."""
        self.columns = columns
        self.by, self.is_reversed, self.refused = columns[0], False, ""
        for each in columns:
            if each.key is None or each.name != wanted.removeprefix("-"):
                continue
            if each.is_asked_for and not is_bounded:
                self.refused = each.words
            else:
                self.by, self.is_reversed = each, wanted.startswith("-")

    def of(self, rows: Sequence[T]) -> list[T]:
        """Sorted; of equals those first that came first."""
        key = self.by.key
        assert key is not None
        known = [row for row in rows if key(row) is not None]
        known.sort(key=key, reverse=self.by.is_largest_first != self.is_reversed)
        return [*known, *(row for row in rows if key(row) is None)]

    def order(self, column: Column[T]) -> str:
        """As aria-sort has it; empty for a column that does not count."""
        if column is not self.by:
            return ""
        return "descending" if column.is_largest_first != self.is_reversed else "ascending"

    def next(self, column: Column[T]) -> str:
        """What an address says to sort by a column: the other way round where it counts already,
        nothing for the order that there is without a word."""
        if column is self.by and not self.is_reversed:
            return f"-{column.name}"
        return "" if column is self.columns[0] else column.name


class Paged(Generic[T]):
    """One page of rows; pages count from 1."""

    def __init__(self, rows: Sequence[T], wanted: int, size: int | None = None) -> None:
        size = size or _ROWS_A_PAGE
        self.total = len(rows)
        self.pages = max(1, -(-self.total // size))
        self.number = min(max(1, wanted), self.pages)
        self.first = (self.number - 1) * size
        self.rows = rows[self.first : self.first + size]


def paged(
    rows: Sequence[T],
    sorting: Sorting[T],
    ask: Callable[[Sequence[T]], tuple[Sequence[T], list[str]]],
    number: int,
    size: int | None = None,
) -> tuple[Paged[T], list[str]]:
    """A page of sorted rows as `ask` completes them, and what that could not: it is asked for all
    rows where the order needs it."""
    if sorting.by.is_asked_for:
        rows, missing = ask(rows)
        return Paged(sorting.of(rows), number, size), missing
    page = Paged(sorting.of(rows), number, size)
    page.rows, missing = ask(page.rows)
    return page, missing
