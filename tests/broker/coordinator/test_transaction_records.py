"""Records of `__transaction_state`: bytes that Apache Kafka 4.3 wrote, and any that we write."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError, UnknownError
from kafka.structs import TopicPartition

from broker.coordinator.transaction_metadata import TransactionMetadata, TransactionState
from broker.coordinator.transaction_records import (
    decode_key,
    decode_transaction,
    transaction_record,
    transaction_tombstone,
)

ONGOING = TransactionMetadata(
    producer_id=7,
    timeout_ms=60_000,
    last_update_ms=1_700_000_000_001,
    producer_epoch=3,
    previous_producer_id=7,
    state=TransactionState.ONGOING,
    partitions=frozenset((TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("a", 0))),
    start_ms=1_700_000_000_000,
    client_version=2,
)
GOLDEN = bytes.fromhex(
    "0001"  # version
    "0000000000000007 0003 0000ea60 01"  # producer id, epoch, timeout, state
    "03 0261 03 00000000 00000002 00 0262 02 00000001 00"  # partitions
    "0000018bcfe56801 0000018bcfe56800"  # last update, start
    "02 00 08 0000000000000007 02 02 0002"  # previous id, the client's transaction version
)
VERSION_0 = bytes.fromhex(
    "0000 0000000000000007 0003 0000ea60 01 00000001 0001 61 00000001 00000002"
    "0000018bcfe56801 0000018bcfe56800"
)

transactions = st.builds(
    TransactionMetadata,
    producer_id=st.integers(0, 2**63 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    last_update_ms=st.integers(-1, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    state=st.sampled_from(
        [each for each in TransactionState if each is not TransactionState.EMPTY]
    ),
    partitions=st.frozensets(
        st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 2**31 - 1)),
        max_size=5,
    ),
    start_ms=st.integers(-1, 2**63 - 1),
    client_version=st.integers(0, 2),
)


def test_the_golden_bytes() -> None:
    key, value = transaction_record("mine", ONGOING)
    assert key == b"\x00\x00\x00\x04mine"
    assert value == GOLDEN
    assert decode_key(key) == "mine"
    assert decode_transaction(GOLDEN) == ONGOING
    assert transaction_tombstone("mine") == (key, None)


def test_version_0_has_no_tags() -> None:
    found = decode_transaction(VERSION_0)
    assert found.partitions == {TopicPartition("a", 2)}
    assert (found.previous_producer_id, found.next_producer_id, found.client_version) == (-1, -1, 0)


def test_an_empty_one_has_no_partitions() -> None:
    empty = TransactionMetadata(7, 1000, 5, producer_epoch=0)
    _, value = transaction_record("mine", empty)
    assert value is not None
    assert decode_transaction(value) == empty


@given(st.text(max_size=20), transactions)
def test_what_is_written_is_read(transactional_id: str, transaction: TransactionMetadata) -> None:
    key, value = transaction_record(transactional_id, transaction)
    assert decode_key(key) == transactional_id
    assert value is not None
    assert decode_transaction(value) == transaction


@given(st.data())
def test_damage_is_noticed_or_harmless(data: st.DataObject) -> None:
    value = bytearray(GOLDEN)
    position = data.draw(st.integers(0, len(value) - 1))
    value[position] = data.draw(st.integers(0, 255))
    for damaged in (bytes(value), bytes(value[:position])):
        with contextlib.suppress(CorruptRecordError):
            decode_transaction(damaged)


def test_what_cannot_be_a_record() -> None:
    for value in (b"", b"\x00\x02" + GOLDEN[2:], GOLDEN[:-1], GOLDEN[:16] + b"\x09" + GOLDEN[17:]):
        with pytest.raises(CorruptRecordError):
            decode_transaction(value)
    assert decode_key(b"\x00\x01\x00\x00") is None
    with pytest.raises(UnknownError):
        transaction_record("x" * 2**15, ONGOING)
