"""The hardware CRC against crcmod's, which is computed from the polynomial."""

import crcmod.predefined
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.record.crc import crc32c

oracle = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


def test_the_check_value_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=5000))
def test_any_bytes(data: bytes) -> None:
    assert crc32c(data) == oracle(data)
    assert crc32c(memoryview(data)) == oracle(data)
