"""Produce names the records that a topic refuses (KIP-467), in Apache Kafka's words; and how many
replicas acks=all asks for."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka.record.memory_records import MemoryRecordsBuilder

from tests.support.broker_child import RawClient
from tests.support.present import present
from tests.support.records import CODECS, batch_of

INVALID_TIMESTAMP, INVALID_RECORD = 32, 87
HOUR_MS = 3_600_000


def rows(count: int = 8, keyless: range | tuple[int, ...] = (2, 5)) -> list[Any]:
    return [(None if n in keyless else b"key", b"value-%d" % n) for n in range(count)]


def batch_at(timestamps_ms: list[Any], codec: str) -> bytes:
    builder = MemoryRecordsBuilder(2, CODECS[codec], 1 << 20)
    for timestamp_ms in timestamps_ms:
        builder.append(timestamp_ms, b"key", b"value")
    builder.close()
    return bytes(builder.buffer())


def no_key(name: str) -> str:
    return f"Compacted topic cannot accept message without key in topic partition {name}-0"


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("stored", ["producer", "lz4"])
def test_records_without_a_key_for_a_compacted_topic(
    client: RawClient, create: Callable[..., str], codec: str, stored: str
) -> None:
    name = create(**{"cleanup.policy": "compact", "compression.type": stored})
    assert client.produce(name, 0, batch_of(rows(3, ()))).base_offset == 0
    produced = client.produce(name, 0, batch_of(rows(), codec=codec))
    assert produced.error_code == INVALID_RECORD
    assert produced.record_errors == ((2, no_key(name)), (5, no_key(name)))
    assert (produced.base_offset, produced.log_append_time_ms) == (-1, -1)
    assert produced.log_start_offset == 0
    assert produced.error_message == (
        "One or more records have been rejected due to 2 record errors in total, and only showing "
        "the first three errors at most: "
        f"[RecordError(batchIndex=2, message='{no_key(name)}'), "
        f"RecordError(batchIndex=5, message='{no_key(name)}')]"
    )


def test_three_of_many_are_in_the_message(client: RawClient, create: Callable[..., str]) -> None:
    name = create(**{"cleanup.policy": "compact"})
    produced = client.produce(name, 0, batch_of(rows(50, range(0, 50, 5))))
    assert [index for index, _ in produced.record_errors] == list(range(0, 50, 5))
    assert "due to 10 record errors in total" in present(produced.error_message)
    assert present(produced.error_message).count("RecordError(") == 3


def test_clients_of_before_hear_the_code_alone(
    client: RawClient, create: Callable[..., str]
) -> None:
    name = create(**{"cleanup.policy": "compact"})
    produced = client.produce(name, 0, batch_of(rows()), version=7)
    assert (produced.error_code, produced.record_errors) == (INVALID_RECORD, ())


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize(("limit", "sign"), [("before", -1), ("after", 1)])
def test_records_out_of_time(
    client: RawClient, create: Callable[..., str], limit: str, sign: int, codec: str
) -> None:
    """Those that are, and they alone, though the batch's newest record may be in time."""
    name = create(**{f"message.timestamp.{limit}.max.ms": str(HOUR_MS)})
    now_ms = int(time.time() * 1000)
    out_ms = now_ms + sign * 2 * HOUR_MS
    batch = batch_at([now_ms, out_ms, now_ms, out_ms + 7], codec)
    produced = client.produce(name, 0, batch)
    assert produced.error_code == INVALID_TIMESTAMP
    assert produced.error_message == (
        "One or more records have been rejected due to invalid timestamp"
    )
    assert [
        present(reason).partition("[")[0]
        for index, reason in produced.record_errors
        if index in (1, 3)
    ] == [
        f"Timestamp {out_ms + more} of message with offset {index} is out of range. "
        "The timestamp should be within "
        for index, more in ((1, 0), (3, 7))
    ]
    assert len(produced.record_errors) == 2
    assert client.produce(name, 0, batch_at([now_ms, -1], codec)).error_code == 0


def test_no_key_and_out_of_time(client: RawClient, create: Callable[..., str]) -> None:
    """The worse code of the two; each record has its own reason."""
    name = create(**{"cleanup.policy": "compact"})
    late_ms = int(time.time() * 1000) + 2 * HOUR_MS
    produced = client.produce(name, 0, batch_of(rows(3, (1,)), timestamp_ms=late_ms))
    assert produced.error_code == INVALID_TIMESTAMP
    reasons = dict(produced.record_errors)
    assert reasons[1] == no_key(name)
    assert all(f"Timestamp {late_ms + index}" in present(reasons[index]) for index in (0, 2))


def test_the_brokers_own_time_is_never_out_of_bounds(
    client: RawClient, create: Callable[..., str]
) -> None:
    configs = {"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "1"}
    late_ms = int(time.time() * 1000) + 2 * HOUR_MS
    produced = client.produce(create(**configs), 0, batch_of(3, timestamp_ms=late_ms))
    assert (produced.error_code, produced.record_errors) == (0, ())


def test_no_more_replicas_in_sync_are_needed_than_there_are(
    client: RawClient, create: Callable[..., str]
) -> None:
    name = create(**{"min.insync.replicas": "2"})
    for acks in (1, -1):
        assert client.produce(name, 0, batch_of(1), acks=acks).error_code == 0
