"""The records of KIP-848 against bytes that Apache Kafka 4.3.0 has written, and any way round."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError, UnknownError

from broker.coordinator.consumer_group_records import (
    ClassicMember,
    CurrentAssignment,
    GroupEpoch,
    Kind,
    MemberState,
    ResolvedRegex,
    Subscription,
    TargetEpoch,
    TopicIdPartition,
    Update,
    decode,
    encode,
)
from broker.coordinator.state_records import StateRecord
from tests.support.present import present

TOPIC_ID = uuid.UUID("9973b2df-ebb7-4412-9c56-c9ff1d5012b8")
OTHER_ID = uuid.UUID(int=7)
MEMBER = "25395e97-3c57-40c4-b78b-de247701dc40"


def places(*numbers: int) -> list[Any]:
    return [TopicIdPartition(TOPIC_ID, number) for number in numbers]


# As they lay in `__consumer_offsets` of Apache Kafka 4.3.0.
KAFKA = {
    Update(Kind.GROUP, "sede4", "", GroupEpoch(3)): (
        b"\x00\x03\x00\x05sede4",
        b"\x00\x00\x00\x00\x00\x03\x00",
    ),
    Update(
        Kind.MEMBER,
        "sede4",
        MEMBER,
        Subscription("i1", None, "raw", "/127.0.0.1", frozenset({"taede419"}), "", 30_000),
    ): (
        b"\x00\x05\x00\x05sede4\x00$" + MEMBER.encode(),
        b"\x00\x00\x03i1\x00\x04raw\x0b/127.0.0.1\x02\ttaede419\x01\x00\x00u0\x00\x01\x00\x01\x00",
    ),
    Update(
        Kind.MEMBER,
        "sede4",
        MEMBER,
        Subscription(None, None, "raw", "/127.0.0.1", frozenset(), "t[ab]ede419", 30_000),
    ): (
        b"\x00\x05\x00\x05sede4\x00$" + MEMBER.encode(),
        b"\x00\x00\x00\x00\x04raw\x0b/127.0.0.1\x01\x0ct[ab]ede419\x00\x00u0\x00\x01\x00\x01\x00",
    ),
    Update(Kind.TARGET, "sede4", "", TargetEpoch(2, 1795272330098)): (
        b"\x00\x06\x00\x05sede4",
        b"\x00\x00\x00\x00\x00\x02\x01\x00\x08\x00\x00\x01\xa1\xfe\x91\xcbr",
    ),
    Update(Kind.TARGET_MEMBER, "sede4", MEMBER, frozenset()): (
        b"\x00\x07\x00\x05sede4\x00$" + MEMBER.encode(),
        b"\x00\x00\x01\x00",
    ),
    Update(
        Kind.REGEX, "sede4", "t[0-9]+", ResolvedRegex(frozenset({"t25"}), 4493, 1795272325896)
    ): (
        b"\x00\x10\x00\x05sede4\x00\x07t[0-9]+",
        b"\x00\x00\x02\x04t25\x00\x00\x00\x00\x00\x00\x11\x8d\x00\x00\x01\xa1\xfe\x91\xbb\x08\x00",
    ),
}
# Its assignments are no keys of a dict.
KAFKA_CURRENT = StateRecord(
    b"\x00\x08\x00\x05sede4\x00$" + MEMBER.encode(),
    b"\x00\x00\x00\x00\x00\x02\x00\x00\x00\x02\x01"
    b"\x02\x99s\xb2\xdf\xeb\xb7D\x12\x9cV\xc9\xff\x1dP\x12\xb8\x03\x00\x00\x00\x00\x00\x00\x00\x01"
    b"\x01\x00\t\x03\x00\x00\x00\x02\x00\x00\x00\x02"
    b"\x02\x99s\xb2\xdf\xeb\xb7D\x12\x9cV\xc9\xff\x1dP\x12\xb8\x03\x00\x00\x00\x02\x00\x00\x00\x03"
    b"\x01\x00\t\x03\x00\x00\x00\x02\x00\x00\x00\x02\x00",
)
CURRENT = CurrentAssignment(
    2,
    2,
    MemberState.UNREVOKED_PARTITIONS,
    dict.fromkeys(places(0, 1), 2),
    dict.fromkeys(places(2, 3), 2),
)


@pytest.mark.parametrize(("update", "record"), KAFKA.items())
def test_they_are_kafkas(update: Update, record: tuple[bytes, bytes]) -> None:
    assert encode(update) == StateRecord(*record)
    assert decode(*record) == update


def test_an_assignment_is_kafkas() -> None:
    update = Update(Kind.CURRENT, "sede4", MEMBER, CURRENT)
    assert encode(update) == KAFKA_CURRENT
    assert decode(KAFKA_CURRENT.key, present(KAFKA_CURRENT.value)) == update


def test_an_assignment_of_before_kafka_4_3_has_no_epochs() -> None:
    key, value = KAFKA_CURRENT
    old = present(value).replace(b"\x01\x00\t\x03\x00\x00\x00\x02\x00\x00\x00\x02", b"\x00")
    assert present(decode(key, old)).value.assigned == dict.fromkeys(places(0, 1), 0)


texts = st.text(max_size=8)
optional_texts = st.none() | texts
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
partitions = st.builds(
    TopicIdPartition, st.sampled_from([TOPIC_ID, OTHER_ID]), st.integers(0, 2**31 - 1)
)
owned = st.dictionaries(partitions, int32s, max_size=5)
names = st.frozensets(texts, max_size=3)
values = {
    Kind.GROUP: st.builds(GroupEpoch, int32s, int64s),
    Kind.MEMBER: st.builds(
        Subscription,
        *(optional_texts, optional_texts, texts, texts, names, texts, int32s, optional_texts),
        st.none()
        | st.builds(
            ClassicMember,
            int32s,
            st.lists(st.tuples(texts, st.binary(max_size=200)), max_size=3).map(tuple),
        ),
    ),
    Kind.TARGET: st.builds(TargetEpoch, int32s, int64s),
    Kind.TARGET_MEMBER: st.frozensets(partitions, max_size=5),
    Kind.CURRENT: st.builds(
        CurrentAssignment, int32s, int32s, st.sampled_from(MemberState), owned, owned
    ),
    Kind.REGEX: st.builds(ResolvedRegex, names, int64s, int64s),
}
updates = st.sampled_from(list(values)).flatmap(
    lambda kind: st.builds(
        Update,
        st.just(kind),
        texts,
        st.just("") if kind in (Kind.GROUP, Kind.TARGET) else texts,
        values[kind],
    )
)


@given(update=updates)
def test_what_is_written_is_read_back(update: Update) -> None:
    record = encode(update)
    assert decode(record.key, present(record.value)) == update


@given(update=updates, data=st.data())
def test_a_cut_record_is_corrupt(update: Update, data: st.DataObject) -> None:
    key, value = encode(update)
    cut = data.draw(st.integers(0, len(present(value)) - 1))
    with pytest.raises(CorruptRecordError):
        decode(key, present(value)[:cut])


def test_what_cannot_be_known() -> None:
    assert decode(b"\x00\x0b\x00\x01g", b"\x00\x00") is None
    with pytest.raises(CorruptRecordError):
        decode(b"\x00\x03\x00\x01g", b"\x00\x01\x00\x00\x00\x01\x00")
    with pytest.raises(CorruptRecordError):
        decode(KAFKA_CURRENT.key, b"\x00\x00" + bytes(8) + b"\x7f\x01\x01\x00")
    with pytest.raises(UnknownError):
        encode(Update(Kind.REGEX, "g", "x", ResolvedRegex(frozenset({"x" * 40_000}))))


def test_a_deletion_has_no_value() -> None:
    for kind in Kind:
        record = encode(Update(kind, "g", "m", None))
        assert record.value is None
        assert record.key[:5] == b"\x00" + bytes((kind,)) + b"\x00\x01g"
