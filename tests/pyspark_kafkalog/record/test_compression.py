"""Each codec against the one kafka-python uses, and against damaged or oversized input."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec as oracle
from kafka.errors import CorruptRecordError, UnsupportedCompressionTypeError

from pyspark_kafkalog.record.compression import Codec, compress, decompress

LIMIT = 1 << 20
ORACLE = {
    Codec.GZIP: (oracle.gzip_encode, oracle.gzip_decode),
    Codec.SNAPPY: (oracle.snappy_encode, oracle.snappy_decode),
    Codec.LZ4: (oracle.lz4_encode, oracle.lz4_decode),
    Codec.ZSTD: (oracle.zstd_encode, oracle.zstd_decode),
}
REAL = list(ORACLE)


@given(data=st.binary(max_size=100_000), codec=st.sampled_from(REAL))
def test_what_is_compressed_comes_back(data: bytes, codec: Codec) -> None:
    assert bytes(decompress(codec, compress(codec, data), LIMIT)) == data


@pytest.mark.parametrize("codec", REAL)
@pytest.mark.parametrize("data", [b"", b"x", bytes(100_000), bytes(range(256)) * 300])
def test_the_oracle_reads_ours_and_we_read_the_oracles(codec: Codec, data: bytes) -> None:
    encode, decode = ORACLE[codec]
    assert bytes(decode(bytes(compress(codec, data)))) == data
    assert bytes(decompress(codec, encode(data), LIMIT)) == data


def test_raw_snappy_as_librdkafka_writes_it_is_read() -> None:
    raw = oracle.snappy_encode(b"hello " * 1000, xerial_compatible=False)
    assert bytes(decompress(Codec.SNAPPY, raw, LIMIT)) == b"hello " * 1000


@pytest.mark.parametrize("codec", REAL)
def test_damage_is_refused_or_harmless(codec: Codec) -> None:
    whole = bytearray(compress(codec, bytes(range(256)) * 40))
    for size in range(1, len(whole)):
        try:
            # Blocks of snappy's framing may end where the cut is; the batch's CRC sees that.
            assert len(decompress(codec, whole[:size], LIMIT)) < 256 * 40
        except CorruptRecordError:
            continue
    for index in range(len(whole)):
        damaged = bytearray(whole)
        damaged[index] ^= 0xFF
        try:
            decompress(codec, damaged, LIMIT)
        except CorruptRecordError:
            continue


@pytest.mark.parametrize("codec", REAL)
def test_the_limit_holds_to_the_byte(codec: Codec) -> None:
    packed = compress(codec, bytes(1000))
    assert len(decompress(codec, packed, 1000)) == 1000
    with pytest.raises(CorruptRecordError, match="exceed 999 bytes"):
        decompress(codec, packed, 999)


@pytest.mark.parametrize("codec", REAL)
def test_the_limit_holds_where_the_size_is_found_by_trying(codec: Codec) -> None:
    packed = compress(codec, bytes(250_000))
    with pytest.raises(CorruptRecordError, match="exceed 200000 bytes"):
        decompress(codec, packed, 200_000)
    assert len(decompress(codec, packed, 250_000)) == 250_000


def test_codecs_have_kafkas_names_and_numbers() -> None:
    assert [codec.name.lower() for codec in Codec] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert Codec.of("lz4") == 3
    with pytest.raises(ValueError, match="none, gzip, snappy, lz4, zstd"):
        Codec.of("brotli")


@pytest.mark.parametrize("action", [compress, lambda codec, data: decompress(codec, data, LIMIT)])
def test_an_unknown_codec_is_refused(action: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedCompressionTypeError):
        action(7, b"data")
