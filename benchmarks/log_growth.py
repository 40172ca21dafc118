"""Cost against size: append, fetch and restart at small and large logs, few and many partitions.

    python -m benchmarks.log_growth [--gigabytes 1 50] [--partitions 1 2000]
        [--restart-gigabytes 10]

The large logs are real ones in format (whole batches of 1 MB with right checksums, indexes,
checkpoints, segments of 1 GB), written straight into a data directory, and sparse on disk: the
value in each batch is zeros, which take no space. So offsets are looked up, read and sent as from a
full log, but from holes and the page cache, not from a disk. Each figure is the median of single
requests on one connection, one in flight. The restart kills the broker with SIGKILL, and counts
from the start of the new process to its `listening` line.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kafka.structs import TopicPartition
from rich.console import Console
from rich.progress import track
from rich.table import Table

from broker.config import LogConfig
from broker.log.checkpoint import RECOVERY_POINTS, OffsetCheckpointFile
from broker.log.files import DiskFiles
from broker.log.leader_epoch import LeaderEpochFileCache
from broker.log.manager import directory_name
from broker.log.producer_state import ProducerStateManager
from broker.log.segment import LogSegment
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
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
from tests.broker.child import BrokerChild, RawClient

GIGABYTE = 1 << 30
VALUE_BYTES = 1_000_000
FETCH_VERSION = 12
REQUESTS = 300
LARGE_REQUESTS = 50
START_MS = 1_700_000_000_000
TOPIC = "grown"


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


def median_us(step: Callable[[], object], count: int = REQUESTS) -> float:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def fetch(client: RawClient, offset: int, topic: str = TOPIC, partition: int = 0) -> int:
    wanted = FetchPartition(topic, partition, offset, VALUE_BYTES)
    request = FetchRequest(FETCH_VERSION, 500, 1, [wanted])
    (found,) = client.fetch(request).partitions
    assert found.error_code == 0
    assert found.records is not None
    return len(found.records)


def against_size(data_dir: Path, gigabytes: int) -> list[str]:
    count = write_log(data_dir, gigabytes)
    choose = random.Random(1)
    with BrokerChild(data_dir) as broker, RawClient(broker.host, broker.port) as client:
        small, large = bytes(zeros_batch(100)), bytes(zeros_batch(VALUE_BYTES))
        appended = median_us(lambda: client.produce(TOPIC, 0, small))
        appended_large = median_us(lambda: client.produce(TOPIC, 0, large), LARGE_REQUESTS)
        anywhere = median_us(lambda: fetch(client, choose.randrange(count)))
        last = count + REQUESTS + LARGE_REQUESTS - 1
        at_end = median_us(lambda: fetch(client, last), 100)
        memory = broker.resident_bytes()
        assert broker.stop() == 0
    figures = (appended, appended_large, anywhere, at_end)
    return [f"{gigabytes} GB, 1 partition", *(f"{us:,.0f}" for us in figures), mebibytes(memory)]


def against_partitions(data_dir: Path, partitions: int) -> list[str]:
    batch = bytes(zeros_batch(100))
    choose = random.Random(1)
    with BrokerChild(data_dir) as broker, RawClient(broker.host, broker.port) as client:
        config = ClientConfig.from_options({"bootstrap.servers": broker.address})
        with Cluster(config) as cluster:
            admin.create_topic(cluster, "many", partitions)
        large = bytes(zeros_batch(VALUE_BYTES))
        for partition in range(partitions):
            client.produce("many", partition, batch)

        def append(records: bytes) -> Callable[[], object]:
            return lambda: client.produce("many", choose.randrange(partitions), records)

        appended = median_us(append(batch))
        appended_large = median_us(append(large), LARGE_REQUESTS)
        anywhere = median_us(lambda: fetch(client, 0, "many", choose.randrange(partitions)))
        memory = broker.resident_bytes()
        assert broker.stop() == 0
    figures = (appended, appended_large, anywhere)
    return [f"{partitions} partitions", *(f"{us:,.0f}" for us in figures), "", mebibytes(memory)]


def restart(data_dir: Path, repeats: int) -> tuple[float, float]:
    """Median seconds to the `listening` line, after SIGKILL and after a clean stop."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for is_killed in [True, False] * repeats:
        with BrokerChild(data_dir) as broker:
            with RawClient(broker.host, broker.port) as client:
                client.produce(TOPIC, 0, bytes(zeros_batch(100)))
            if is_killed:
                broker.kill()
            else:
                broker.stop()
        started = time.perf_counter()
        with BrokerChild(data_dir) as broker:
            times[is_killed].append(time.perf_counter() - started)
            broker.kill() if is_killed else broker.stop()
    return statistics.median(times[True]), statistics.median(times[False])


def mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Cost of append, fetch and restart by log size.")
    parser.add_argument("--gigabytes", type=int, nargs="*", default=[1, 50])
    parser.add_argument("--partitions", type=int, nargs="*", default=[1, 2000])
    parser.add_argument("--restart-gigabytes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    console = Console()
    table = Table(title="one request, one in flight; medians in microseconds")
    headings = "log|append 100 B|append 1 MB|fetch 1 MB anywhere|fetch at the end|memory MiB"
    for heading in headings.split("|"):
        table.add_column(heading, justify="left" if heading == "log" else "right")
    for gigabytes in options.gigabytes:
        with tempfile.TemporaryDirectory() as directory:
            table.add_row(*against_size(Path(directory), gigabytes))
    for partitions in options.partitions:
        with tempfile.TemporaryDirectory() as directory:
            table.add_row(*against_partitions(Path(directory), partitions))
    console.print(table)
    with tempfile.TemporaryDirectory() as directory:
        write_log(Path(directory), options.restart_gigabytes)
        killed_s, clean_s = restart(Path(directory), options.repeats)
    console.print(
        f"restart with {options.restart_gigabytes} GB: {killed_s:.2f} s after SIGKILL, "
        f"{clean_s:.2f} s after a clean stop"
    )


if __name__ == "__main__":
    main()
