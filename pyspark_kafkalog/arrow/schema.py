"""The columns of a topic's rows, as Spark's own Kafka connector names, orders and types them.

From Spark's "Structured Streaming + Kafka Integration Guide". Every column is nullable; timestamps
are microseconds in UTC, as Spark wants them from Arrow. Pure functions: any thread.
"""

from collections.abc import Sequence

import pyarrow as pa

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

COLUMN_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""Every column there can be, in order; `headers` comes only when it is asked for."""

DEFAULT_COLUMNS = tuple(COLUMN_TYPES)[:-1]


def row_schema(columns: Sequence[str] = DEFAULT_COLUMNS) -> pa.Schema:
    """The Arrow schema of rows that have `columns`, in that order; KeyError for an unknown one."""
    return pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in columns])
