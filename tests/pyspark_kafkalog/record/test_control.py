"""Markers that end transactions: what kafka-python reads in them, and what is read back."""

import struct

import pytest
from kafka.errors import CorruptRecordError
from kafka.record.memory_records import MemoryRecords

from pyspark_kafkalog.record.batch import HEADER_BYTES, check_crc, read_header
from pyspark_kafkalog.record.control import TransactionMarker, decode_marker, encode_marker

MARKERS = [TransactionMarker(True, 3), TransactionMarker(False, 2**31 - 1)]


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_is_what_kafka_python_reads(marker: TransactionMarker) -> None:
    data = bytes(encode_marker(marker, 7, 2, 99))
    check_crc(data, read_header(data))
    (read,) = MemoryRecords(data).next_batch()
    assert (read.commit, read.abort) == (marker.is_commit, not marker.is_commit)
    assert read.value == struct.pack(">hi", 0, marker.coordinator_epoch)


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_is_read_back(marker: TransactionMarker) -> None:
    data = encode_marker(marker, 7, 2, 99)
    header = read_header(data)
    assert (header.producer_id, header.producer_epoch, header.max_timestamp_ms) == (7, 2, 99)
    assert header.is_control
    assert header.is_transactional
    assert decode_marker(bytes(data)) == marker


def test_a_control_record_of_another_type_is_no_marker() -> None:
    data = encode_marker(MARKERS[0], 7, 2, 99)
    data[HEADER_BYTES + 8] = 2
    assert decode_marker(bytes(data)) is None


def test_a_short_value_is_corrupt() -> None:
    data = encode_marker(MARKERS[0], 7, 2, 99)
    data[HEADER_BYTES + 9] = 2
    with pytest.raises(CorruptRecordError):
        decode_marker(bytes(data))
