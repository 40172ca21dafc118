"""Rows into MariaDB: INSERT statements of many rows, as large as the server takes them.

LOAD DATA LOCAL takes what does not fit for warnings, even in strict sessions, and leaves rows out.
So does INSERT with spaces at the end of a text, which it cuts off with a note: notes are read.
So values become literals, by columns: bytes in hexadecimal, texts with quotes and backslashes
escaped (sessions have no NO_BACKSLASH_ESCAPES), floating point numbers and decimals as text, of
which MariaDB makes the number itself. Called by sql_copy.py, within a transaction of the caller.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from pyspark_kafkalog.errors import InvalidRowError
from pyspark_kafkalog.warehouse.targets.hexadecimal import hexadecimal
from pyspark_kafkalog.warehouse.targets.sql_database import driver_cursor

_STATEMENT_BYTES = 4 << 20
"""Of many rows; one that is larger has a statement of its own."""
# The packet's own bytes.
_OVERHEAD_BYTES = 64
# "Data truncated for column": a note.
_CUT = 1265


class Insertion:
    """Of rows into `into`, a table with its columns as SQL has it."""

    def __init__(self, connection: sa.Connection, into: str) -> None:
        self._head = f"INSERT INTO {into} VALUES ".encode()
        self._connection = connection
        query = "SELECT @@max_allowed_packet"
        most_bytes = int(connection.exec_driver_sql(query).scalar_one())
        self._room_bytes = most_bytes - len(self._head) - _OVERHEAD_BYTES

    def insert(self, columns: list[pa.Array]) -> int:
        """Returns how many rows the database says went in. Raises InvalidRowError for a row that is
        larger than what the server takes, or a text that is longer than its column."""
        literals = [_literals(column) for column in columns]
        rows = pc.binary_join_element_wise(*literals, _text(","))
        rows = pc.binary_join_element_wise(_text("("), rows, _text(")"), _text("")).cast(
            pa.large_binary()
        )
        with driver_cursor(self._connection) as cursor:
            count = 0
            for some in self._statements(rows):
                count += cursor.execute(self._head + b",".join(some))
                cursor.execute("SHOW WARNINGS")
                for _, code, message in cursor.fetchall():
                    if code == _CUT:
                        raise InvalidRowError(
                            "a text with spaces at its end is longer than its column, and would "
                            f"be cut off there ({message}): leave the row out, or make the column "
                            "longer. Nothing was committed"
                        )
            return count

    def _statements(self, rows: pa.LargeBinaryArray) -> Iterator[list[bytes]]:
        some: list[bytes] = []
        size_bytes = 0
        for row in rows.to_pylist():
            if len(row) > self._room_bytes:
                raise InvalidRowError(
                    f"a row is {len(row)} bytes as SQL, and the server's max_allowed_packet leaves "
                    f"{self._room_bytes}: raise that, or leave the row out. Nothing was committed"
                )
            if some and size_bytes + len(row) > min(_STATEMENT_BYTES, self._room_bytes):
                yield some
                some, size_bytes = [], 0
            some.append(row)
            size_bytes += len(row) + 1
        if some:
            yield some


def _literals(column: pa.Array) -> pa.LargeStringArray:
    kind = column.type
    if pa.types.is_string(kind):
        texts = pc.replace_substring(column.cast(pa.large_string()), "\\", "\\\\")
        texts = pc.replace_substring(texts, "'", "\\'")
        texts = pc.binary_join_element_wise(_text("'"), texts, _text("'"), _text(""))
    elif pa.types.is_binary(kind):
        texts = hexadecimal(column, "x'", "'")
    elif pa.types.is_floating(kind):
        # All digits of its value.
        texts = column.cast(pa.float64()).cast(pa.large_string())
        texts = pc.binary_join_element_wise(_text("'"), texts, _text("'"), _text(""))
    else:
        texts = column.cast(pa.large_string())
    return pc.fill_null(texts, _text("NULL"))


def _text(text: str) -> pa.LargeStringScalar:
    return pa.scalar(text, pa.large_string())
