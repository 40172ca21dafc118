"""Encoding read back by kafka-python, and partitions chosen as Kafka's Java client chooses them."""

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2
from kafka.record.memory_records import MemoryRecords

from pyspark_kafkalog.arrow.schema import COLUMN_TYPES
from pyspark_kafkalog.record.batch import batches, check_crc, seal
from pyspark_kafkalog.record.compression import Codec
from tests.pyspark_kafkalog.arrow.conftest import ENCODERS

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def rows_of(**columns: Sequence[object]) -> Any:
    fields = [pa.field(name, COLUMN_TYPES[name]) for name in columns]
    arrays = [pa.array(column, COLUMN_TYPES[name]) for name, column in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def encoded(
    encode: ModuleType,
    rows: Any,
    partition_count: int = 1,
    codec: Codec = Codec.NONE,
    **sizes: int,
) -> dict[Any, Any]:
    """{partition: [kafka-python's records]}, each batch sealed and checked on the way."""
    encoder = encode.RecordEncoder(partition_count, codec, **sizes)
    found: dict[int, list[Any]] = {}
    for part in rows if isinstance(rows, list) else [rows]:
        for partition, batch in encoder.encode(part):
            found.setdefault(partition, []).append(batch)
    for partition, batch in encoder.finish():
        found.setdefault(partition, []).append(batch)
    return {partition: read_back(sealed) for partition, sealed in found.items()}


def read_back(sealed: Any) -> list[Any]:
    records = []
    for data in sealed:
        seal(data)
        (header,) = batches(data)
        check_crc(data, header)
        reader = MemoryRecords(bytes(data))
        for batch in iter(reader.next_batch, None):
            in_batch = list(batch)
            assert len(in_batch) == header.record_count
            assert max(record.timestamp for record in in_batch) == header.max_timestamp_ms
            records += in_batch
    return records


@pytest.mark.parametrize("codec", list(Codec))
def test_every_field_is_written_in_every_codec(encode: ModuleType, codec: Codec) -> None:
    rows = rows_of(
        key=[b"k", None, b""],
        value=[b"v", b"", None],
        timestamp=[1_700_000_000_123_999, 0, -1],
        headers=[[("a", b"\x00"), ("é", None)], [], None],
    )
    (records,) = encoded(encode, rows, codec=codec).values()
    assert [(r.key, r.value, r.timestamp, list(r.headers)) for r in records] == [
        (b"k", b"v", 1_700_000_000_123, [("a", b"\x00"), ("é", None)]),
        (None, b"", 0, []),
        (b"", None, -1, []),
    ]


def test_a_part_of_a_batch_is_written_alone(encode: ModuleType) -> None:
    """Spark hands over slices: their buffers begin before their first row."""
    rows = rows_of(
        key=[b"a", b"bb", None, b"cccc"],
        value=[b"0", b"1", b"22", None],
        timestamp=[1000, 2000, 3000, 4000],
        partition=[0, 1, 2, 1],
        headers=[[("a", b"0")], [], [("b", b"2"), ("c", None)], [("d", b"3")]],
    )
    found = encoded(encode, rows.slice(1, 3), partition_count=3)
    assert {
        number: [(r.key, r.value, r.timestamp, list(r.headers)) for r in records]
        for number, records in found.items()
    } == {
        1: [(b"bb", b"1", 2, []), (b"cccc", None, 4, [("d", b"3")])],
        2: [(None, b"22", 3, [("b", b"2"), ("c", None)])],
    }


def test_headers_that_lie_under_a_null_are_none(encode: ModuleType) -> None:
    there = rows_of(headers=[[("a", b"1")], [("b", b"2")]]).column(0)
    validity = pa.py_buffer(bytes([0b10]))
    hidden = pa.Array.from_buffers(
        there.type, 2, [validity, there.buffers()[1]], 1, children=[there.values]
    )
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"x", b"y"], pa.binary()), hidden], names=["value", "headers"]
    )
    (records,) = encoded(encode, rows).values()
    assert [list(record.headers) for record in records] == [[], [("b", b"2")]]


def test_nothing_is_open_any_more_at_the_end(encode: ModuleType) -> None:
    encoder = encode.RecordEncoder(3, max_batch_bytes=2000)
    for _ in range(3):
        rows = rows_of(value=[b"." * 500] * 20, partition=[n % 3 for n in range(20)])
        assert len(list(encoder.encode(rows))) > 2
    assert 0 < encoder.open_bytes <= 6000
    assert len(list(encoder.finish())) == 3
    assert encoder.open_bytes == 0


@given(
    records=st.lists(
        st.tuples(
            st.none() | st.binary(max_size=100),
            st.none() | st.binary(max_size=300),
            st.integers(0, 1 << 44),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
        ),
        min_size=1,
        max_size=60,
    ),
    cut=st.integers(0, 60),
    offset=st.integers(0, 5),
    max_batch_bytes=st.integers(70, 2000),
    form=st.sampled_from(sorted(ENCODERS)),
)
def test_any_rows_are_written_once_and_in_order(
    records: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]],
    cut: int,
    offset: int,
    max_batch_bytes: int,
    form: Any,
) -> None:
    keys, values, timestamps_ms, headers = (list(column) for column in zip(*records, strict=True))
    rows = rows_of(
        key=keys, value=values, timestamp=[1000 * t for t in timestamps_ms], headers=headers
    )
    parts = [rows.slice(0, cut), rows.slice(cut)]
    found = encoded(ENCODERS[form], parts, max_batch_bytes=max_batch_bytes)
    assert [(r.key, r.value, r.timestamp, list(r.headers)) for r in found[0]] == records


def test_keys_go_where_the_java_client_sends_them(encode: ModuleType) -> None:
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"\xff\xfe\xfd\xfc\xfb\xfa\xf9"]
    keys += [b"key-%d" % i for i in range(1000)]
    found = encoded(encode, rows_of(key=keys, value=keys), partition_count=7)
    for partition, records in found.items():
        for record in records:
            assert (murmur2(record.key) & 0x7FFFFFFF) % 7 == partition
    assert sum(map(len, found.values())) == len(keys)


def test_rows_without_a_key_stick_together_and_move_on(encode: ModuleType) -> None:
    parts = [rows_of(value=[b"x"] * 10) for _ in range(6)]
    found = encoded(encode, parts, partition_count=3)
    assert {partition: len(records) for partition, records in found.items()} == {
        0: 20,
        1: 20,
        2: 20,
    }


def test_a_named_partition_wins_over_the_key(encode: ModuleType) -> None:
    rows = rows_of(key=[b"a", b"a", b"a"], value=[b"0", b"1", b"2"], partition=[4, None, 0])
    found = encoded(encode, rows, partition_count=5)
    by_key = (murmur2(b"a") & 0x7FFFFFFF) % 5
    where = {record.value: partition for partition, records in found.items() for record in records}
    assert where == {b"0": 4, b"1": by_key, b"2": 0}


@pytest.mark.parametrize("wrong", [-1, 2, 1000])
def test_a_partition_that_does_not_exist_is_refused(encode: ModuleType, wrong: int) -> None:
    encoder = encode.RecordEncoder(2)
    with pytest.raises(ValueError, match=f"partition {wrong}, the topic has 0 to 1"):
        list(encoder.encode(rows_of(value=[b"x", b"y"], partition=[0, wrong])))


def test_batches_keep_to_their_size_and_a_larger_record_goes_alone(encode: ModuleType) -> None:
    values = [b"x" * 100] * 50 + [b"y" * 5000] + [b"x" * 100] * 50
    encoder = encode.RecordEncoder(1, max_batch_bytes=1000)
    sizes = [len(batch) for _, batch in encoder.encode(rows_of(value=values))]
    sizes += [len(batch) for _, batch in encoder.finish()]
    assert sum(size > 1000 for size in sizes) == 1
    assert len(sizes) <= 2 + 2 * 50 // 7


def test_the_open_batches_of_many_partitions_share_their_memory(
    encode: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "MAX_OPEN_BYTES", 40 * encode.LEAST_BATCH_BYTES)
    encoder = encode.RecordEncoder(20)
    rows = rows_of(value=[b"x" * 10_000] * 80, partition=list(range(20)) * 4)
    sizes_bytes = [len(batch) for _, batch in encoder.encode(rows)]
    assert len(sizes_bytes) == 20
    assert max(sizes_bytes) <= 2 * encode.LEAST_BATCH_BYTES
    assert len(list(encoder.finish())) == 20


def test_a_row_without_a_time_gets_the_time_of_encoding(encode: ModuleType) -> None:
    before = datetime.now(timezone.utc) - timedelta(milliseconds=1)
    (records,) = encoded(encode, rows_of(value=[b"x", b"y"], timestamp=[None, 5_000])).values()
    written = EPOCH + timedelta(milliseconds=records[0].timestamp)
    assert before <= written <= datetime.now(timezone.utc)
    assert records[1].timestamp == 5


def test_no_rows_are_no_batches(encode: ModuleType) -> None:
    assert encoded(encode, rows_of(key=[], value=[], headers=[], timestamp=[]), 3) == {}
