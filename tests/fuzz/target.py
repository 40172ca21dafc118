"""What is fuzzed, in process: a broker's dispatcher, and what reads record batches.

`BrokerTarget` answers frames as a connection would hand them over, on a real BrokerServer in a
temporary directory. Everything else here is a function of bytes. Each raises what is a finding:
any error that is not typed, an answer that is no bytes, a record of before that is lost.
"""

import asyncio
import contextlib
import logging
import shutil
import socket
import struct
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError
from kafka.protocol.admin import CreateTopicsRequest
from kafka.structs import TopicPartition

from broker.api import create_partitions, create_topics
from broker.config.broker import BrokerConfig
from broker.config.log import LogConfig
from broker.log.checkpoint import CLEAN
from broker.log.conversion import convert_for_log, needs_conversion
from broker.log.log import Log
from broker.log.record_search import first_record_at_or_after
from broker.log.validator import AppendRules, check_timestamps, stamp_offsets, validate
from broker.network.buffers import ReceiveBuffers
from broker.network.connection import BrokerConnection, CloseConnection, ConnectionLimits
from broker.network.log_limit import LimitedLog
from broker.network.loop import new_event_loop
from broker.network.peer import Peer
from broker.network.send import Part
from broker.network.transport import PlainTransport
from broker.server import BrokerServer
from pyspark_kafkalog.arrow.decode import RecordDecoder
from pyspark_kafkalog.errors import BadRecordError
from pyspark_kafkalog.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from pyspark_kafkalog.protocol.frames import encode_request_header
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from pyspark_kafkalog.record.batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    batches,
)
from pyspark_kafkalog.record.compression import decompress
from pyspark_kafkalog.record.crc import crc32c
from tests.broker.log.batches import bytes_of
from tests.support.patience import turns
from tests.support.records import batch_of, values_of

_log = logging.getLogger(__name__)

TOPIC = "fuzz"
KEPT = "kept"
# A frame is answered within this time, or its handler hangs.
ANSWER_S = 10.0
_MAX_DECOMPRESSED_BYTES = 1 << 20
_FETCH = b"\0\1"
# Who joins a group or waits for its assignment leaves at once.
_WAITS_FOR_OTHERS = (b"\0\x0b", b"\0\x0e")
_STORED_CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


class BrokerTarget:
    """A broker whose frames come by no socket. Two topics: one that inputs may change, one whose
    only record must outlive them all."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.directory = Path(tempfile.mkdtemp(prefix="kafkalog-fuzz-"))
        ours, self._peer = socket.socketpair()
        self._connection = BrokerConnection(
            PlainTransport(ours),
            Peer("PLAINTEXT", "127.0.0.1", 1),
            lambda _frame, _connection: None,
            ConnectionLimits(1 << 20),
            ReceiveBuffers(),
            LimitedLog(_log),
            self.loop,
            lambda _: None,
        )
        self._open()

    def _open(self) -> None:
        config = BrokerConfig.from_properties(
            {
                "log.dirs": str(self.directory),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.segment.bytes": str(1 << 20),
                # Records of tests are years old, and a long run lasts until retention looks.
                "log.retention.ms": "-1",
            }
        )
        # Ten thousand partitions for one request are allowed, but take their time to make.
        create_topics.MAX_PARTITIONS_PER_REQUEST = 3
        create_partitions.MAX_PARTITIONS_PER_REQUEST = 3  # type: ignore[attr-defined]
        self.server = BrokerServer(config, self.loop)
        self.server.open()
        self.loop.run_until_complete(self.server.start())
        self._create(TOPIC)
        self._create(KEPT)
        self.feed(produce_frame(KEPT, batch_of([(None, b"kept")])))

    def feed(self, frame: bytes, fetch_wait_s: float = 0.1) -> bytes | None:
        """The answer to one frame; None when there is none or the connection would be closed.

        Who fetches leaves after `fetch_wait_s`: at once, if the version waits for records alone.
        """
        return self.loop.run_until_complete(self._answer(frame, fetch_wait_s))

    async def _answer(self, frame: bytes, fetch_wait_s: float) -> bytes | None:
        try:
            answer: Any = self.server._dispatcher(
                memoryview(bytearray(frame)),
                self._connection,
            )
            if isinstance(answer, asyncio.Future):
                if frame[:2] == _FETCH:
                    is_converted = frame[2:4] < b"\0\4"
                    await asyncio.wait([answer], timeout=fetch_wait_s if is_converted else 0)
                    if not answer.done():
                        answer.cancel()  # the peer left
                        return None
                if frame[:2] in _WAITS_FOR_OTHERS:
                    await turns()
                    if not answer.done():
                        answer.cancel()
                        return None
                answer = await asyncio.wait_for(answer, ANSWER_S)
        except CloseConnection:
            return None
        return None if answer is None else b"".join(_bytes_of(part) for part in answer)

    def feed_records(self, records: bytes) -> None:
        """Records with right checksums, on their way through the log: in, searched, and out."""
        answer = self.feed(produce_frame(TOPIC, resealed(records)))
        assert answer is not None
        log = self.server._logs.get(TopicPartition(TOPIC, 0))
        if log is None:  # deleted by a request
            return
        # Clients of old get it converted.
        for version in (1, 3):
            frame = fetch_frame(TOPIC, max(0, log.log_end_offset - 1), version)
            began_s = time.monotonic()
            assert self.feed(frame, fetch_wait_s=ANSWER_S), time.monotonic() - began_s
        for timestamp_ms in (0, 1_700_000_000_001, 2**62):
            with contextlib.suppress(KafkaError):
                log.offset_for_timestamp(timestamp_ms)

    def check_kept(self) -> None:
        """The record from before is still there, and only that."""
        log = self.server._logs.get(TopicPartition(KEPT, 0))
        if log is None:  # deleted by a request, as it may be
            return
        values = values_of(bytes_of(log.read(log.log_start_offset, 1 << 20, log.log_end_offset)))
        assert (0, b"kept") in values, values

    def restart(self) -> None:
        """Stops the broker and opens it again on what it left; then in a fresh directory."""
        self.loop.run_until_complete(self.server.stop())
        again = BrokerServer(self.server._config, self.loop)
        again.open()
        self.server = again
        self.loop.run_until_complete(self.server.start())
        self.check_kept()
        self.loop.run_until_complete(self.server.stop())
        shutil.rmtree(self.directory)
        self.directory.mkdir()
        self._open()

    def close(self) -> None:
        self.loop.run_until_complete(self.server.stop())
        self._connection.close("the end")
        self._peer.close()
        self.loop.close()
        shutil.rmtree(self.directory)

    def _create(self, name: str) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
        body = bytes(request.encode(version=4))
        assert self.feed(encode_request_header(19, 4, 1, None) + body)


def _bytes_of(part: Part) -> bytes:
    if isinstance(part, bytes | bytearray | memoryview):
        return bytes(part)
    return part.read()  # type: ignore[attr-defined,no-any-return]


def produce_frame(topic: str, records: bytes, version: int = 9, acks: int = 1) -> bytes:
    request = ProduceRequest(version, None, acks, 1000, [ProducePartition(topic, 0, records)])
    body = b"".join(bytes(part) for part in encode_produce_request(request))
    return encode_request_header(0, version, 1, "fuzz") + body


def fetch_frame(topic: str, offset: int, version: int) -> bytes:
    request = FetchRequest(version, 0, 0, [FetchPartition(topic, 0, offset, 1 << 20)])
    return encode_request_header(1, version, 1, "fuzz") + bytes(encode_fetch_request(request))


def resealed(data: bytes) -> bytes:
    """`data` with the checksums that its batches should have: else nobody looks further."""
    sealed = bytearray(data)
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] < MAGIC:
        _reseal_messages(sealed)
        return bytes(sealed)
    with contextlib.suppress(KafkaError):
        for header in batches(data):
            start = header.position + ATTRIBUTES_POSITION
            struct.pack_into(
                ">I",
                sealed,
                header.position + CRC_POSITION,
                crc32c(sealed[start : header.end_position]),
            )
    return bytes(sealed)


def _reseal_messages(sealed: bytearray) -> None:
    """The same for messages of the formats before record batches."""
    position = 0
    while position + MAGIC_POSITION < len(sealed):
        (size,) = struct.unpack_from(">i", sealed, position + 8)
        end = position + LOG_OVERHEAD_BYTES + size
        if size < 5 or end > len(sealed):
            return
        checksum = zlib.crc32(sealed[position + MAGIC_POSITION : end])
        struct.pack_into(">I", sealed, position + LOG_OVERHEAD_BYTES, checksum)
        position = end


def feed_batches(data: bytes) -> None:
    """Everything that looks at record batches, on `data` as it is and with right checksums."""
    for each in (data, resealed(data)):
        _feed_batches(each)


def _feed_batches(data: bytes) -> None:
    writable = memoryview(bytearray(data))
    with contextlib.suppress(KafkaError):
        headers = validate(writable, 1 << 20)
        with contextlib.suppress(KafkaError):
            check_timestamps(headers, 1_700_000_000_000, 2**63 - 1, 3_600_000)
        stamp_offsets(writable, headers, 2**40, 7, 1_700_000_000_000)
    with contextlib.suppress(KafkaError):
        for header in batches(data):
            assert header.end_position <= len(data)
            feed_records(data[header.position : header.end_position])
    feed_decoder(data)
    for codec in _STORED_CODECS:
        config = LogConfig(compression_type=codec)
        rules = AppendRules(config)
        if len(data) >= HEADER_BYTES and needs_conversion(memoryview(data), rules, 0):
            with contextlib.suppress(KafkaError):
                converted = convert_for_log(
                    memoryview(bytearray(data)), config, _MAX_DECOMPRESSED_BYTES, "t-0", 0
                )
                validate(converted, 1 << 30)


def feed_records(batch: bytes) -> None:
    """One whole batch whose header makes sense, whatever its records are."""
    for timestamp_ms in (0, 1_700_000_000_001, 2**63 - 1):
        with contextlib.suppress(KafkaError):
            first_record_at_or_after(batch, timestamp_ms, BatchHeader(batch, 0).base_offset)


def feed_decoder(data: bytes) -> None:
    """The connector's decoder, compiled where it is, in both modes."""
    with contextlib.suppress(KafkaError, BadRecordError):
        _decode(data, permissive=False)
    with contextlib.suppress(KafkaError):
        _decode(data, permissive=True)


def _decode(data: bytes, *, permissive: bool) -> None:
    decoder = RecordDecoder(
        TOPIC, 0, _COLUMNS, rows_per_batch=100, bytes_per_batch=10_000, permissive=permissive
    )
    for decoded in decoder.decode(memoryview(data), 0, 2**63 - 1):
        decoded.validate(full=True)
    for decoded in decoder.finish():
        decoded.validate(full=True)


def feed_decompressors(codec: int, data: bytes) -> None:
    with contextlib.suppress(KafkaError):
        assert len(decompress(codec, data, _MAX_DECOMPRESSED_BYTES)) <= max(
            _MAX_DECOMPRESSED_BYTES, len(data)
        )


def feed_answers(version: int, body: bytes) -> None:
    """What a client does with an answer of Fetch or Produce."""
    with contextlib.suppress(KafkaError):
        decode_fetch_response(memoryview(body), version)
    with contextlib.suppress(KafkaError):
        decode_produce_response(memoryview(body), min(version, 11))


def feed_directory(files: dict[str, bytes]) -> None:
    """A log's directory with these files after an unclean stop: it opens, and takes a record."""
    with tempfile.TemporaryDirectory(prefix="kafkalog-fuzz-") as name:
        directory = Path(name) / "fuzz-0"
        directory.mkdir()
        for file_name, content in files.items():
            (directory / file_name).write_bytes(content)
        with contextlib.suppress(KafkaError, OSError):
            log = Log(directory, LogConfig())
            end_offset = log.log_end_offset
            with contextlib.suppress(KafkaError):
                log.append(memoryview(bytearray(batch_of([(None, b"new")]))), 2**30)
                assert log.log_end_offset == end_offset + 1
                found = log.read(end_offset, 1 << 20, end_offset + 1)
                assert values_of(bytes_of(found))[-1][1] == b"new"
            with contextlib.suppress(KafkaError):
                log.offset_for_timestamp(0)
            log.close()
            Log(directory, LogConfig(), known=CLEAN).close()
