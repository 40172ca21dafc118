"""The one look into a batch: what is in there came from anyone."""

import struct
import zlib

import pytest
from kafka.errors import CorruptRecordError

from broker.log.record_search import first_record_at_or_after
from pyspark_kafkalog.record.batch import HEADER_BYTES
from tests.broker.log.batches import GZIP, NOW_MS, batch

MILLIONS = 2**31 - 1


@pytest.mark.parametrize("length", [0x00, 0x01, 0x0A], ids=["none", "backwards", "too short"])
def test_a_record_that_leads_nowhere_ends_the_search(length: int) -> None:
    """Without end: two thousand million records, each of which begins where the last one began."""
    deflate = zlib.compressobj(wbits=31)
    records = deflate.compress(bytes([length]) + bytes(40)) + deflate.flush()
    data = bytearray(batch([b"a" * 500], codec=GZIP)[:HEADER_BYTES]) + records
    struct.pack_into(">i", data, 57, MILLIONS)
    with pytest.raises(CorruptRecordError):
        first_record_at_or_after(bytes(data), NOW_MS + 1, 0)


def test_the_smallest_record_is_one() -> None:
    data = bytes(batch([None, None], step_ms=1))
    assert first_record_at_or_after(data, NOW_MS + 1, 0) == (1, NOW_MS + 1)
