"""Equal rows in the same order have equal digests, and others do not."""

import datetime
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.arrow.schema import HEADERS_TYPE
from pyspark_kafkalog.source.row_digest import RowDigest

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", HEADERS_TYPE),
    ]
)
BYTES = st.none() | st.binary(max_size=3)
ROWS = st.lists(
    st.tuples(
        BYTES,
        st.none() | st.text(max_size=2),
        st.none() | st.integers(0, 2),
        st.none() | st.datetimes(datetime.datetime(2020, 1, 1), datetime.datetime(2021, 1, 1)),
        st.none() | st.lists(st.tuples(st.sampled_from("ab"), BYTES), max_size=2),
    ),
    max_size=6,
)


def table_of(
    rows: list[
        tuple[
            bytes | None,
            str | None,
            int | None,
            datetime.datetime | None,
            list[tuple[str, bytes | None]] | None,
        ]
    ],
) -> Any:
    columns = [
        pa.array([row[number] for row in rows], field.type) for number, field in enumerate(SCHEMA)
    ]
    return pa.table(columns, schema=SCHEMA)


def digest_of(table: pa.Table, most_rows: int) -> str:
    digest = RowDigest()
    for batch in table.to_batches(max_chunksize=most_rows):
        digest.update(batch)
    return digest.text()


@given(ROWS, st.integers(1, 6), st.integers(1, 6))
def test_batches_do_not_matter(
    rows: list[
        tuple[
            bytes | None,
            str | None,
            int | None,
            datetime.datetime | None,
            list[tuple[str, bytes | None]] | None,
        ]
    ],
    one: int,
    other: int,
) -> None:
    table = table_of(rows)
    assert digest_of(table, one) == digest_of(table, other)


@given(ROWS, ROWS)
def test_rows_do(
    one: list[
        tuple[
            bytes | None,
            str | None,
            int | None,
            datetime.datetime | None,
            list[tuple[str, bytes | None]] | None,
        ]
    ],
    other: list[
        tuple[
            bytes | None,
            str | None,
            int | None,
            datetime.datetime | None,
            list[tuple[str, bytes | None]] | None,
        ]
    ],
) -> None:
    assert (digest_of(table_of(one), 9) == digest_of(table_of(other), 9)) == (one == other)


def test_strings_and_binaries_of_either_width_are_equal() -> None:
    narrow = pa.record_batch([pa.array([b"a", None, b"bc"], pa.binary())], ["value"])
    wide = pa.record_batch([pa.array(["a", None, "bc"], pa.large_string())], ["value"])
    texts = set()
    for batch in (narrow, wide):
        digest = RowDigest()
        digest.update(batch)
        texts.add(digest.text())
    assert len(texts) == 1


def test_the_same_bytes_in_other_values_are_other_rows() -> None:
    def text(*values: bytes | None) -> str:
        digest = RowDigest()
        digest.update(pa.record_batch({"value": pa.array(values, pa.binary())}))
        return digest.text()

    found = {text(b"ab", b"c"), text(b"a", b"bc"), text(b"abc", b""), text(b"abc", None)}
    assert len(found) == 4


def test_the_same_rows_for_another_topic_have_another_digest() -> None:
    batch = pa.record_batch({"value": pa.array([b"row"], pa.binary())})
    texts = set()
    for topic in (None, "a", "b"):
        digest = RowDigest(topic)
        digest.update(batch)
        texts.add(digest.text())
    assert len(texts) == 3
