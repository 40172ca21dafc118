"""Numbers, lengths and their ends."""

import pytest
from kafka.errors import KafkaProtocolError

from pyspark_kafkalog.protocol.wire import INT16, INT32, Reader, Writer

AROUND = [0, 1, 126, 127, 128, 129, 255, 256, 16_382, 16_383, 16_384, 2**21, 2**28, 2**32 - 1]


def bytes_of(writer: Writer) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in writer.parts()))


@pytest.mark.parametrize("number", AROUND)
def test_a_number_is_read_as_it_was_written(number: int) -> None:
    writer = Writer(flexible=True)
    writer.varint(number)
    reader = Reader(bytes_of(writer), flexible=True)
    assert (reader.varint(), reader.position) == (number, reader.end)


@pytest.mark.parametrize("flexible", [True, False])
@pytest.mark.parametrize("length", [-1, 0, 1, 125, 126, 127, 128, 16_382, 16_383, 16_384])
def test_a_length_is_read_as_it_was_written(length: int, flexible: bool) -> None:
    writer = Writer(flexible)
    writer.length(INT32, length)
    data = bytes_of(writer)
    whole = Reader(memoryview(bytes(data) + bytes(max(0, length))), flexible)
    assert (whole.length(INT32), whole.position) == (length, len(data))
    if length > 0:
        with pytest.raises(KafkaProtocolError, match=f"a length of {length} is announced"):
            Reader(memoryview(bytes(data) + bytes(length - 1)), flexible).length(INT32)


def test_lengths_below_null_are_refused() -> None:
    writer = Writer(flexible=False)
    writer.fields(INT16, -2)
    with pytest.raises(KafkaProtocolError):
        Reader(bytes_of(writer), flexible=False).length(INT16)
