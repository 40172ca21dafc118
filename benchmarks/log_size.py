"""Append, fetch and restart with a small and a large log of our broker: the cost shall be flat.

The large logs are real ones in format (whole batches of 1 MB with right checksums, indexes,
checkpoints, segments of 1 GB), written straight into a data directory, and sparse on disk: the
value in each batch is zeros, which take no space. So offsets are looked up, read and sent as from a
full log, but from holes and the page cache, not from a disk: each place is fetched three times, and
the third counts. The first brings it into memory, where the small log lies anyway; the second
meets the mark at which the kernel reads ahead, and waits for it, a tenth of a fetch. A figure is
the median of single requests on one connection, one in flight, after some that warm up. The restart
kills the broker with SIGKILL while the last segment is not known to be whole, and counts from the
start of the process to its `listening` line.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from kafka.structs import TopicPartition
from rich.progress import track

from benchmarks.pairs import Comparison, Row
from benchmarks.running import Running
from broker.config.log import LogConfig
from broker.log.checkpoint import RECOVERY_POINTS, OffsetCheckpointFile
from broker.log.files import DiskFiles
from broker.log.leader_epoch import LeaderEpochFileCache
from broker.log.manager import directory_name
from broker.log.producer_state import ProducerStateManager
from broker.log.segment import LogSegment
from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafkalog.record.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    seal,
)
from pyspark_kafkalog.record.records import varint
from tests.support.broker_child import BrokerChild, RawClient

GROUP = "Broker and the size of its log"
GIGABYTE = 1 << 30
VALUE_BYTES = 1_000_000
FETCH_VERSION = 12
SMALL_REQUESTS = 3000
REQUESTS = 300
LARGE_REQUESTS = 50
START_MS = 1_700_000_000_000
TOPIC = "grown"
SMALL_GB, LARGE_GB, RESTART_GB = 1, 100, 10
# Flat as far as medians of requests of a tenth of a millisecond can tell.
_FLAT = 0.9
_RESTART_LIMIT_S = 2.0


def comparisons(running: Running) -> list[Comparison]:
    large_gb = max(2, round(LARGE_GB * running.scale))
    restart_gb = max(1, round(RESTART_GB * running.scale))
    large, small = Log(running.stack, large_gb), Log(running.stack, SMALL_GB)
    restarted = Log(running.stack, restart_gb)
    work = "1 connection, 1 in flight; of a fetch the third of its place"
    settings = {"both": f"sparse log of 1 MB batches, {work}"}
    rows = tuple(
        Row(
            *(GROUP, f"{name}, {large_gb} GB of log", "us", _FLAT),
            higher_is_better=False,
            peer_name=f"the same with {SMALL_GB} GB",
            settings=settings,
        )
        for name in ("append 100 B", "append 1 MB", "fetch 1 MB")
    )
    restart = Row(
        *(GROUP, f"restart after SIGKILL, {restart_gb} GB of log", "s", None, _RESTART_LIMIT_S),
        higher_is_better=False,
        peer_name="the same after a clean stop",
        settings={"both": "sparse log of 1 MB batches, 1 GB segments, the last one recovered"},
    )
    return [
        Comparison(rows, large.request_us, small.request_us, pair_s=1.5),
        Comparison.of_one(
            restart,
            lambda: restarted.restart_s(is_killed=True),
            lambda: restarted.restart_s(is_killed=False),
            pair_s=2.5,
        ),
    ]


class Log:
    """A data directory with a log of that size, and our broker on it, each made when needed."""

    def __init__(self, stack: ExitStack, gigabytes: int) -> None:
        self._stack = stack
        self._gigabytes = gigabytes
        self._choose = random.Random(1)
        self._count = 0

    @cached_property
    def data_dir(self) -> Path:
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="log-")))
        self._count = write_log(directory, self._gigabytes)
        return directory

    @cached_property
    def broker(self) -> BrokerChild:
        return self._stack.enter_context(BrokerChild(self.data_dir))

    def request_us(self) -> tuple[float, float, float]:
        """Microseconds of an append of 100 B, of one of 1 MB, of a fetch of 1 MB anywhere."""
        small, large = bytes(zeros_batch(100)), bytes(zeros_batch(VALUE_BYTES))
        with RawClient(self.broker.host, self.broker.port) as client:
            return (
                median_us(lambda: append(client, small), SMALL_REQUESTS),
                median_us(lambda: append(client, large), LARGE_REQUESTS),
                statistics.median(self._fetches_us(client)),
            )

    def _fetches_us(self, client: RawClient) -> Iterator[float]:
        for _ in range(REQUESTS):
            offset = self._choose.randrange(self._count)
            fetch(client, offset)
            fetch(client, offset)
            yield timed_us(lambda: fetch(client, offset))  # noqa: B023 - called at once

    def restart_s(self, *, is_killed: bool) -> float:
        """Seconds to the `listening` line, after SIGKILL or after a clean stop."""
        with BrokerChild(self.data_dir) as broker:
            with RawClient(broker.host, broker.port) as client:
                append(client, bytes(zeros_batch(100)))
            broker.kill() if is_killed else broker.stop()
        began = time.perf_counter()
        with BrokerChild(self.data_dir) as broker:
            seconds = time.perf_counter() - began
            broker.stop()
        return seconds


def zeros_batch(value_bytes: int, timestamp_ms: int = START_MS) -> bytearray:
    """One record whose value is zeros, as everything behind the value's length is."""
    fields = b"\0\0\0" + varint(-1) + varint(value_bytes)
    length = len(fields) + value_bytes + 1
    head = varint(length) + fields
    batch = bytearray(HEADER_BYTES + len(varint(length)) + length)
    HEADER.pack_into(
        batch,
        0,
        *(0, len(batch) - LOG_OVERHEAD_BYTES, 0, MAGIC, 0, 0, 0),
        *(timestamp_ms, timestamp_ms, -1, -1, -1, 1),
    )
    batch[HEADER_BYTES : HEADER_BYTES + len(head)] = head
    seal(batch)
    return batch


def write_log(data_dir: Path, gigabytes: int, *, synced_segments: bool = True) -> int:
    """A log of that size as partition 0 of TOPIC; returns the number of its records.

    With `synced_segments` all but the last segment lie below the recovery point, as after rolls.
    """
    files = DiskFiles()
    partition = TopicPartition(TOPIC, 0)
    directory = data_dir / directory_name(partition)
    files.make_directory(directory)
    config = LogConfig()
    batch = zeros_batch(VALUE_BYTES)
    head_bytes = HEADER_BYTES + 16
    head = batch[:head_bytes]
    count = gigabytes * GIGABYTE // len(batch)
    per_segment = config.segment_bytes // len(batch)
    segment = LogSegment.create(directory, 0, config, files, START_MS)
    for offset in track(range(count), f"write {gigabytes} GB (sparse)", transient=True):
        if offset and offset % per_segment == 0:
            segment.seal()
            segment = LogSegment.create(directory, offset, config, files, START_MS)
        position = offset % per_segment * len(batch)
        head[0:8] = offset.to_bytes(8, "big")
        segment.file.pwrite(head, position)
        segment.size_bytes = position + len(batch)
        segment.index_batch(BatchHeader(head, 0), position)
        segment.file.truncate(segment.size_bytes)
    segment.seal()
    epochs = LeaderEpochFileCache(directory, files)
    epochs.load()
    epochs.assign(0, 0)
    recovery_point = segment.base_offset if synced_segments else 0
    ProducerStateManager(directory, files).take_snapshot(segment.base_offset)
    OffsetCheckpointFile(data_dir / RECOVERY_POINTS, files).write({partition: recovery_point})
    return count


def median_us(step: Callable[[], object], count: int) -> float:
    for _ in range(count // 10):
        step()
    return statistics.median(timed_us(step) for _ in range(count))


def timed_us(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return (time.perf_counter() - began) * 1e6


def append(client: RawClient, batch: bytes) -> None:
    assert not client.produce(TOPIC, 0, batch).error_code


def fetch(client: RawClient, offset: int) -> int:
    wanted = FetchPartition(TOPIC, 0, offset, VALUE_BYTES)
    request = FetchRequest(FETCH_VERSION, 500, 1, [wanted])
    (found,) = client.fetch(request).partitions
    assert found.error_code == 0
    assert found.records is not None
    return len(found.records)
