"""Decoding against kafka-python's record builder, and against damage of every kind."""

import struct
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecordsBuilder

from pyspark_kafkalog.arrow.schema import COLUMN_TYPES, DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.errors import BadRecordError
from pyspark_kafkalog.record.batch import batches, seal, stamp, stamp_append_time
from pyspark_kafkalog.record.compression import Codec
from tests.pyspark_kafkalog.arrow.conftest import DECODERS

ALL_COLUMNS = (*DEFAULT_COLUMNS, "headers")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
ANY_OFFSET = 1 << 62
Headers = list[tuple[str, bytes | None]]


def batch_of(
    records: Sequence[tuple[int, bytes | None, bytes | None, object]],
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
) -> bytearray:
    """One record batch of (timestamp ms, key, value, headers), by kafka-python."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 30)
    for timestamp_ms, key, value, headers in records:
        builder.append(timestamp=timestamp_ms, key=key, value=value, headers=headers)
    builder.close()
    batch = bytearray(builder.buffer())
    for header in batches(batch):
        stamp(batch, header, base_offset, 0)
    return batch


def plain_records(count: int, first: int = 0) -> list[Any]:
    return [(1000 + i, b"key-%d" % i, b"value-%d" % i, []) for i in range(first, first + count)]


def decoded(
    decode: ModuleType,
    data: bytearray,
    start: int = 0,
    until: int = ANY_OFFSET,
    aborted: Sequence[tuple[int, int]] = (),
    columns: tuple[str, ...] = ALL_COLUMNS,
    **sizes: int,
) -> Any:
    decoder = decode.RecordDecoder("orders", 3, columns, **sizes)
    found = list(decoder.decode(memoryview(data), start, until, aborted))
    found += decoder.finish()
    for batch in found:
        batch.validate(full=True)
    return pa.Table.from_batches(found, row_schema(columns))


@pytest.mark.parametrize("codec", list(Codec))
def test_every_field_arrives_in_every_codec(decode: ModuleType, codec: Codec) -> None:
    headers: Headers = [("trace", b"\x00\xff"), ("empty", b""), ("none", None)]
    records: list[tuple[int, bytes | None, bytes | None, Headers]] = [
        (1_700_000_000_123, b"k", b"v", headers),
        (1_700_000_000_122, None, b"", []),
        (0, b"", None, [("é", b"x")]),
        (1_700_000_000_999, None, None, []),
    ]
    rows = decoded(decode, batch_of(records, base_offset=41, codec=codec)).to_pylist()
    assert rows == [
        {
            "key": key,
            "value": value,
            "topic": "orders",
            "partition": 3,
            "offset": 41 + index,
            "timestamp": EPOCH + timedelta(milliseconds=timestamp_ms),
            "timestampType": 0,
            "headers": [{"key": name, "value": content} for name, content in found] or None,
        }
        for index, (timestamp_ms, key, value, found) in enumerate(records)
    ]


def test_a_header_key_that_is_no_text_is_replaced_as_in_java(decode: ModuleType) -> None:
    data = batch_of([(1, b"k", b"v", [("ab", b"\xff"), ("cd", None)]), (2, b"k", b"v", [])])
    data[data.index(b"ab")] = 0xFF
    seal(data)
    keys = decoded(decode, data).column("headers").to_pylist()
    assert keys == [[{"key": "\ufffdb", "value": b"\xff"}, {"key": "cd", "value": None}], None]


@given(
    records=st.lists(
        st.tuples(
            st.integers(0, 1 << 45),
            st.none() | st.binary(max_size=200),
            st.none() | st.binary(max_size=200),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=4),
        ),
        min_size=1,
        max_size=40,
    ),
    rows_per_batch=st.integers(1, 50),
    bytes_per_batch=st.integers(1, 1000),
    codec=st.sampled_from(Codec),
    form=st.sampled_from(sorted(DECODERS)),
)
def test_any_records_arrive_whatever_the_batch_sizes(
    records: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    rows_per_batch: int,
    bytes_per_batch: int,
    codec: Codec,
    form: Any,
) -> None:
    cut = len(records) // 2
    data = batch_of(records[:cut], 10, codec) if cut else bytearray()
    data += batch_of(records[cut:], 10 + cut, codec)
    table = decoded(
        DECODERS[form], data, rows_per_batch=rows_per_batch, bytes_per_batch=bytes_per_batch
    )
    assert table["key"].to_pylist() == [record[1] for record in records]
    assert table["value"].to_pylist() == [record[2] for record in records]
    assert table["offset"].to_pylist() == list(range(10, 10 + len(records)))
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [1000 * r[0] for r in records]
    assert table["headers"].to_pylist() == [
        [{"key": name, "value": content} for name, content in record[3]] or None
        for record in records
    ]


def test_rows_are_cut_to_the_range(decode: ModuleType) -> None:
    data = batch_of(plain_records(10), 0) + batch_of(plain_records(10), 10)
    assert decoded(decode, data, 7, 13)["offset"].to_pylist() == list(range(7, 13))
    assert decoded(decode, data, 20, 30).num_rows == 0
    assert decoded(decode, data, 10, 11)["offset"].to_pylist() == [10]


def test_gaps_of_compaction_are_no_rows(decode: ModuleType) -> None:
    data = batch_of(plain_records(3), 5) + batch_of(plain_records(2), 100)
    assert decoded(decode, data)["offset"].to_pylist() == [5, 6, 7, 100, 101]


def test_rows_gather_over_calls_until_a_batch_is_full(decode: ModuleType) -> None:
    decoder = decode.RecordDecoder("orders", 0, ("value",), rows_per_batch=4)
    first = list(decoder.decode(memoryview(batch_of(plain_records(3))), 0, ANY_OFFSET))
    second = list(decoder.decode(memoryview(batch_of(plain_records(6), 3)), 0, ANY_OFFSET))
    assert [batch.num_rows for batch in first] == []
    assert [batch.num_rows for batch in second] == [4, 4]
    assert [batch.num_rows for batch in decoder.finish()] == [1]
    assert list(decoder.finish()) == []


@pytest.mark.parametrize("columns", [("value",), ("offset", "key"), ("headers",), ("topic",), ()])
def test_only_the_columns_asked_for_come(decode: ModuleType, columns: tuple[str, ...]) -> None:
    table = decoded(decode, batch_of(plain_records(5)), columns=columns)
    assert table.schema == pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in columns])
    assert table.num_rows == 5 or not columns


def test_log_append_time_replaces_every_timestamp(decode: ModuleType) -> None:
    data = batch_of(plain_records(3))
    (header,) = batches(data)
    stamp_append_time(data, header, 1_700_000_000_000)
    table = decoded(decode, data)
    assert table["timestampType"].to_pylist() == [1, 1, 1]
    assert set(table["timestamp"].cast(pa.int64()).to_pylist()) == {1_700_000_000_000_000}


def transactional(data: bytearray, producer_id: int) -> bytearray:
    (header,) = batches(data)
    struct.pack_into(">h", data, 21, header.attributes | 0x10)
    seal(data, producer_id, 0, 0)
    return data


def marker(producer_id: int, base_offset: int, commit: bool) -> bytearray:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=True,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=-1,
        batch_size=1000,
    )
    builder.append(0, 5, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0), [])
    data = bytearray(builder.build())
    (header,) = batches(data)
    struct.pack_into(">h", data, 21, header.attributes | 0x20)
    seal(data, producer_id, 0, -1)
    stamp(data, header, base_offset, 0)
    return data


def test_aborted_transactions_and_markers_are_no_rows(decode: ModuleType) -> None:
    data = (
        transactional(batch_of(plain_records(2), 0), 7)
        + transactional(batch_of(plain_records(2), 2), 8)
        + marker(7, 4, commit=False)
        + transactional(batch_of(plain_records(2), 5), 7)
        + marker(7, 7, commit=True)
        + marker(8, 8, commit=True)
        + batch_of(plain_records(1), 9)
    )
    assert decoded(decode, data, aborted=[(7, 0)])["offset"].to_pylist() == [2, 3, 5, 6, 9]
    assert decoded(decode, data)["offset"].to_pylist() == [0, 1, 2, 3, 5, 6, 9]


def test_aborted_transactions_begin_in_the_order_of_their_offsets(decode: ModuleType) -> None:
    """Whatever order, and whatever producer ids, they are named in."""
    data = (
        transactional(batch_of(plain_records(1), 5), 9)
        + marker(9, 6, commit=False)
        + transactional(batch_of(plain_records(1), 7), 1)
        + marker(1, 8, commit=False)
        + batch_of(plain_records(1), 9)
    )
    for aborted in ([(1, 7), (9, 5)], [(9, 5), (1, 7)]):
        assert decoded(decode, data, aborted=aborted)["offset"].to_pylist() == [9]


def test_an_aborted_transaction_of_one_record_is_no_row(decode: ModuleType) -> None:
    data = transactional(batch_of(plain_records(1), 4), 7) + marker(7, 5, commit=False)
    assert decoded(decode, data + batch_of(plain_records(1), 6), aborted=[(7, 4)])[
        "offset"
    ].to_pylist() == [6]


def absurd(timestamp_ms: int, codec: Codec) -> bytearray:
    """Three records, of which that of offset 11 has `timestamp_ms`."""
    times = (1000, timestamp_ms, -1000)
    return batch_of([(time_ms, b"k", b"v", []) for time_ms in times], 10, codec)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("timestamp_ms", [1_700_000_000_123_456_789, -(1 << 62), (1 << 63) - 1])
def test_a_timestamp_that_is_no_time_costs_its_record_alone(
    decode: ModuleType, timestamp_ms: int, codec: Codec
) -> None:
    data = absurd(timestamp_ms, codec)
    said = rf"orders-3 at offset 11 has the timestamp {timestamp_ms} ms.*option mode to PERMISSIVE"
    with pytest.raises(BadRecordError, match=said):
        decoded(decode, data)
    # Where nobody asks for it there is nothing wrong.
    assert decoded(decode, data, columns=("value", "offset")).num_rows == 3
    decoder = decode.RecordDecoder("orders", 3, ALL_COLUMNS, permissive=True, rows_per_batch=2)
    found = [*decoder.decode(memoryview(data), 0, ANY_OFFSET), *decoder.finish()]
    rows = [row for batch in found for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == [10, 11, 12]
    assert [row["timestamp"] for row in rows] == [
        EPOCH + timedelta(seconds=1),
        None,
        EPOCH - timedelta(seconds=1),
    ]
    assert decoder.bad_timestamps == 1


def test_many_timestamps_that_are_none_are_the_right_ones(decode: ModuleType) -> None:
    times = [(1 << 62) if n % 3 == 1 else 1000 * n for n in range(100)]
    data = batch_of([(time_ms, None, b"v", []) for time_ms in times])
    decoder = decode.RecordDecoder("orders", 3, ["timestamp"], permissive=True)
    assert not list(decoder.decode(memoryview(data), 0, ANY_OFFSET))
    [batch] = decoder.finish()
    batch.validate(full=True)
    found = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert found == [None if n % 3 == 1 else 1_000_000 * n for n in range(100)]


def test_a_header_without_a_key_costs_its_record_alone(decode: ModuleType) -> None:
    data = batch_of([(1, b"k", b"v", [("ab", b"x")]), (1, b"k", b"v", [("cd", b"y")])])
    at = data.index(b"cd") - 1
    # Its length is -1 now, and what followed is a value of three bytes.
    data[at : at + 5] = b"\x01\x06abc"
    seal(data)
    with pytest.raises(BadRecordError, match="orders-3 at offset 1 has a header without a key"):
        decoded(decode, data)
    decoder = decode.RecordDecoder("orders", 3, ["headers"], permissive=True)
    assert not list(decoder.decode(memoryview(data), 0, ANY_OFFSET))
    [batch] = decoder.finish()
    assert batch.to_pylist()[1]["headers"][0]["key"] is None
    assert batch.to_pylist()[0]["headers"] == [{"key": "ab", "value": b"x"}]


def test_a_damaged_batch_is_named(decode: ModuleType) -> None:
    data = batch_of(plain_records(3), 40)
    struct.pack_into(">i", data, 57, 4)
    seal(data)
    with pytest.raises(CorruptRecordError, match=r"orders-3, batch of the offsets 40 to 42: "):
        decoded(decode, data)


def test_a_cut_off_last_batch_is_left_for_the_next_fetch(decode: ModuleType) -> None:
    data = batch_of(plain_records(2)) + batch_of(plain_records(2), 2)
    for cut in range(1, 60):
        assert decoded(decode, data[:-cut])["offset"].to_pylist() == [0, 1]


def test_nonsense_behind_a_valid_crc_is_rows_or_refused(decode: ModuleType) -> None:
    """What a broken or hostile producer can write: any bytes, properly sealed."""
    data = batch_of([(1000, b"key", b"value", [("name", b"content")])] * 3)
    for index in range(61, len(data)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF):
            damaged = bytearray(data)
            damaged[index] = value
            seal(damaged)
            try:
                decoded(decode, damaged)
            except (CorruptRecordError, BadRecordError, pa.ArrowInvalid):
                continue


@pytest.mark.parametrize("count", [0, 1, 2, 4, 1 << 30])
def test_a_wrong_record_count_is_refused(decode: ModuleType, count: int) -> None:
    data = batch_of(plain_records(3))
    struct.pack_into(">i", data, 57, count)
    seal(data)
    with pytest.raises(CorruptRecordError):
        decoded(decode, data)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD, Codec.LZ4, Codec.SNAPPY])
def test_a_decompression_bomb_is_refused(
    decode: ModuleType, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.arrow.decode.MAX_DECOMPRESSED_BYTES", 100_000)
    monkeypatch.setattr(decode, "MAX_DECOMPRESSED_BYTES", 100_000)
    data = batch_of([(0, None, bytes(1_000_000), [])], codec=codec)
    assert len(data) < 60_000
    with pytest.raises(CorruptRecordError, match="exceed 100000 bytes"):
        decoded(decode, data)


def test_a_value_larger_than_a_batch_is_one_row(decode: ModuleType) -> None:
    value = bytes(range(256)) * 400
    data = batch_of([(0, b"a", b"small", []), (0, b"b", value, []), (0, b"c", b"small", [])])
    table = decoded(decode, data, bytes_per_batch=1000)
    assert table["value"].to_pylist() == [b"small", value, b"small"]
