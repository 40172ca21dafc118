"""A compacted topic through real clients, and its files through Kafka's own DumpLogSegments.

What stays is compared with what Apache Kafka leaves of the same records where the jars are there.
"""

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.config.log import LogConfig
from broker.log.checkpoint import CLEAN
from broker.log.files import DiskFiles
from broker.log.log import Log
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.log.batches import GZIP, LZ4, NOW_MS, SNAPPY, ZSTD, batch
from tests.broker.log.compaction import compact
from tests.interop.test_kafka_log_tools import JARS
from tests.interop.test_kafka_log_tools import dump as dump_or_fail
from tests.support.broker_child import BrokerChild
from tests.support.kafka_server import KafkaServer, require_kafka
from tests.support.patience import attempts, wait_for
from tests.support.present import present

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Read = tuple[int | None, bytes | None, bytes | None]
"""(offset, key, value)."""

TOPIC = "table"
RECORDS = 20_000
KEYS = 500
TIMEOUT_S = 60
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
    "file.delete.delay.ms": "100",
}


def dump(paths: Sequence[Path], *options: str) -> Any:
    """As the tool says it; gaps in the offsets are its one reason to exit with 1."""
    try:
        return dump_or_fail(paths, *options)
    except subprocess.CalledProcessError as error:
        output = error.stdout + error.stderr
        assert "Non-consecutive offsets in" in output, output
        return output


@pytest.mark.skipif(not list(JARS.glob("kafka-tools-*.jar")), reason=f"needs the jars in {JARS}")
def test_kafka_accepts_compacted_segments(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    now = [NOW_MS]
    config = LogConfig(
        segment_bytes=8_000,
        index_interval_bytes=300,
        cleanup_policy=("compact",),
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=1000,
        file_delete_delay_ms=0,
    )
    log = Log(directory, config, lambda: now[0], known=CLEAN)

    def append(number: int, **options: Any) -> None:
        pairs = [(number + 7 * each) % 50 for each in range(3)]
        values = [None if key % 11 == 0 else b"%d." % number + bytes(50) for key in pairs]
        keys = [b"key-%d" % key for key in pairs]
        transactional = bool(options.get("transactional"))
        log.append(batch(values, keys=keys, **options), 0, transactional=transactional)

    for turn in range(3):
        for number in range(turn * 200, turn * 200 + 200):
            append(number, codec=(0, GZIP, SNAPPY, LZ4, ZSTD)[number % 5], step_ms=number % 3)
        append(0, producer=(7 + turn, 0, 0), transactional=True)
        log.append_end_marker(7 + turn, 0, TransactionMarker(turn == 1, 0), 0)
        now[0] += 600
        assert compact(log, DiskFiles(), lambda: now[0]) == 1
    log.remove_deleted_files()
    log.close()
    logs = sorted(directory.glob("*.log"))
    output = dump(logs, "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in output
    assert output.count("isvalid: true") > 20
    assert "deleteHorizonMs: OptionalLong[" in output
    assert "endTxnMarker: ABORT" in output
    assert "Found" not in output
    indexes = sorted([*directory.glob("*.index"), *directory.glob("*.timeindex")])
    output = dump(indexes, "--index-sanity-check")
    assert output.count("passed sanity check") + output.count("is empty") == len(indexes)
    verified = dump(indexes, "--verify-index-only")
    for complaint in ("Mismatches", "not found", "out of order", "exception"):
        assert complaint not in verified
    transactions = dump(sorted(directory.glob("*.txnindex")))
    assert "producerId: 7" in transactions
    assert "producerId: 8" not in transactions


def write(bootstrap: str, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
    from confluent_kafka import KafkaError, Producer

    failures: list[KafkaError] = []

    def noted(error: KafkaError | None, _: object) -> None:
        if error:
            failures.append(error)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": "lz4", "enable.idempotence": True}
    )
    for key, value in rows:
        producer.produce(TOPIC, value, key, on_delivery=noted)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == []


def read(bootstrap: str) -> list[Read]:
    """(offset, key, value) of all there is."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=TIMEOUT_S)
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[Read] = []
        for _ in attempts(lambda: len(found), TIMEOUT_S):
            if found and present(found[-1][0]) >= end - 1:
                break
            for message in consumer.consume(10_000, timeout=1):
                assert message.error() is None, message.error()
                found.append((message.offset(), message.key(), message.value()))
        return found
    finally:
        consumer.close()


def read_by_kafka_python(bootstrap: str) -> list[tuple[Any, Any, Any]]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None
    )
    try:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        found: list[Read] = []
        for _ in attempts(lambda: len(found), TIMEOUT_S):
            if found and present(found[-1][0]) >= end - 1:
                break
            for records in consumer.poll(timeout_ms=1000).values():
                found.extend((record.offset, record.key, record.value) for record in records)
        return found
    finally:
        consumer.close()


def compacted(
    bootstrap: str,
) -> tuple[list[tuple[bytes, bytes | None]], list[Read], Any]:
    """Creates the topic, fills it, waits until it is compacted; what is read then."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(TOPIC, 1, 1, config=TOPIC_CONFIG)])
    created[TOPIC].result(TIMEOUT_S)
    rows: list[tuple[bytes, bytes | None]] = [
        (b"key-%d" % (n * 7 % KEYS), b"%d." % n + bytes(200)) for n in range(RECORDS)
    ]
    write(bootstrap, rows)
    write(bootstrap, [(b"key-%d" % n, None) for n in range(KEYS // 2)])
    numbers = itertools.count()

    def read_on() -> list[Read]:
        # Something new, so that the log rolls, is dirty again, and tombstones may go.
        write(bootstrap, [(b"tick", b"%d" % next(numbers))])
        return [row for row in read(bootstrap) if row[1] != b"tick"]

    def is_compact(found: list[Read]) -> bool:
        return len(found) == KEYS - KEYS // 2

    found = wait_for(read_on, is_compact, TIMEOUT_S, pause_s=1.1)
    return rows, found, read_by_kafka_python(bootstrap)


def check(
    rows: list[tuple[bytes, bytes | None]], found: list[Any], found_by_kafka_python: list[Any]
) -> None:
    latest = {key: (offset, key, value) for offset, (key, value) in enumerate(rows)}
    expected = [latest[b"key-%d" % number] for number in range(KEYS // 2, KEYS)]
    assert found == sorted(expected)
    assert [row for row in found_by_kafka_python if row[1] != b"tick"] == found


def test_a_compacted_topic_through_real_clients(tmp_path: Path) -> None:
    properties = {"log.cleaner.backoff.ms": "100", "auto.create.topics.enable": "false"}
    with BrokerChild(tmp_path, properties) as broker:
        check(*compacted(broker.address))
        assert "level=error" not in broker.stderr()
        broker.kill()
    with BrokerChild(tmp_path, properties) as broker:
        again = [row for row in read(broker.address) if row[1] != b"tick"]
        assert len(again) == KEYS - KEYS // 2
        from confluent_kafka import Producer

        errors = []
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce(TOPIC, b"v", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        assert [present(error).name() for error in errors] == ["INVALID_RECORD"]
        assert broker.stop() == 0


@pytest.mark.long
def test_apache_kafka_leaves_the_same(tmp_path: Path) -> None:
    require_kafka()
    with KafkaServer(tmp_path) as kafka:
        check(*compacted(kafka.bootstrap_servers))
