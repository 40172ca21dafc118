"""Kafka's own DumpLogSegments reads our directory: every batch, index, snapshot and checkpoint.

The jars lie in `$KAFKALOG_PEERS/kafka` (default: `.peers` in the repository root).
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker.config.log import LogConfig
from broker.log.checkpoint import CLEAN
from broker.log.conversion import convert_for_log, needs_conversion
from broker.log.log import Log
from broker.log.validator import AppendRules
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.log.batches import GZIP, LZ4, NOW_MS, SNAPPY, ZSTD, batch
from tests.support.jvm import PEERS, peer_java
from tests.support.records import batch_of

JARS = PEERS / "kafka"

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("java") or not list(JARS.glob("kafka-tools-*.jar")),
        reason=f"needs java and Kafka's jars in {JARS}",
    ),
]


def dump(paths: Sequence[Path], *options: str) -> str:
    command = [*peer_java("kafka"), "org.apache.kafka.tools.DumpLogSegments", *options]
    command += ["--files", ",".join(str(path) for path in paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout + done.stderr


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=500)
    log = Log(directory, config, known=CLEAN)
    for number in range(200):
        codec = (0, GZIP, SNAPPY, LZ4, ZSTD)[number % 5]
        values = [b"%d.%d" % (number, each) + os.urandom(60) for each in range(3)]
        producer = (number % 4, 0, 3 * (number // 4))
        timestamp_ms = NOW_MS + number * 7 % 50 + number
        records = batch(values, timestamp_ms=timestamp_ms, codec=codec, producer=producer)
        log.append(records, number // 50)
    log.close()
    return directory


@pytest.fixture
def transactions(tmp_path: Path) -> Path:
    """Three producers; every other transaction aborted, the last one open; killed, not closed."""
    directory = tmp_path / "transactions-0"
    directory.mkdir()
    log = Log(directory, LogConfig(segment_bytes=3000, index_interval_bytes=500), known=CLEAN)
    for number in range(91):
        records = batch(
            [b"%d" % number] * 3, producer=(number % 3, 0, number // 3 * 3), transactional=True
        )
        log.append(records, 0, transactional=True)
        if number < 90:
            marker = TransactionMarker(is_commit=number % 2 == 0, coordinator_epoch=7)
            log.append_end_marker(number % 3, 0, marker, 0)
    recovered = Log(directory, LogConfig(segment_bytes=3000, index_interval_bytes=500))
    assert recovered.log_end_offset == log.log_end_offset
    recovered.close()
    return directory


def test_kafka_accepts_transactions(transactions: Path) -> None:
    logs = sorted(transactions.glob("*.log"))
    assert len(logs) > 3
    output = dump(logs, "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in output
    assert output.count("endTxnMarker: COMMIT coordinatorEpoch: 7") == 45
    assert output.count("endTxnMarker: ABORT coordinatorEpoch: 7") == 45
    indexes = sorted(transactions.glob("*.txnindex"))
    output = dump(indexes)
    assert output.count("version: 0 producerId: ") == 45
    assert "version: 0 producerId: 1 firstOffset: 4 lastOffset: 7 lastStableOffset: 8" in output
    output = dump(sorted(transactions.glob("*.snapshot"))[-1:])
    assert "producerId: 0 producerEpoch: 0 coordinatorEpoch: 7 currentTxnFirstOffset: 360" in (
        output.replace("OptionalLong[360]", "360")
    )


def test_kafka_accepts_every_file(directory: Path) -> None:
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 3
    output = dump(logs, "--deep-iteration", "--print-data-log")
    assert output.count("isvalid: true") == 200
    assert "isvalid: false" not in output
    assert output.count("| offset:") == 600
    assert "Found" not in output


def test_kafka_accepts_what_was_converted(tmp_path: Path) -> None:
    """From both old formats and all codecs to every codec that a topic may choose."""
    directory = tmp_path / "converted-0"
    directory.mkdir()
    log = Log(directory, LogConfig(), known=CLEAN)
    targets = ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
    sent = [
        memoryview(bytearray(batch_of(100, magic=magic, codec=codec)))
        for magic, codec in [(2, "none"), (1, "none"), (1, "gzip"), (0, "snappy"), (1, "lz4")]
    ]
    for target in targets:
        config = LogConfig(compression_type=target)
        for records in sent:
            if needs_conversion(records, AppendRules(config), NOW_MS):
                log.append(convert_for_log(records, config, 1 << 20, "converted-0", NOW_MS), 0)
    appended = log.log_end_offset // 100
    log.close()
    output = dump(sorted(directory.glob("*.log")), "--deep-iteration", "--print-data-log")
    assert appended >= 28
    assert output.count("isvalid: true") == appended
    assert output.count("payload: value-99") == appended
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in output


def test_kafka_finds_the_indexes_sane_and_right(directory: Path) -> None:
    indexes = sorted([*directory.glob("*.index"), *directory.glob("*.timeindex")])
    output = dump(indexes, "--index-sanity-check")
    assert output.count("passed sanity check") == len(indexes)
    verified = dump(indexes, "--verify-index-only")
    for complaint in ("Mismatches", "not found", "out of order", "exception"):
        assert complaint not in verified


def test_kafka_reads_the_producer_snapshots(directory: Path) -> None:
    snapshots = sorted(directory.glob("*.snapshot"))
    output = dump(snapshots[-1:])
    assert output.count("producerId: ") == 4
    assert "producerId: 3 producerEpoch: 0" in output
    assert "lastSequence: 149" in output
