"""Reading over a network that takes its time: what prefetching hides of it.

    python -m benchmarks.fetch_latency [--round-trips 0,2,10,50] [--megabytes 200] [--repeats 3]

Four partitions behind a proxy that delays both directions by half a round trip, read to Arrow
batches as two Spark tasks at a time do, each in a process of its own. Side by side, in turn:
without prefetching (a fetch is sent when its records are asked for), with one fetch of 4 MiB ahead,
and as it is, where fetches grow while their answers come late. `--work-ms` is what a consumer does
with an Arrow batch of 10,000 rows, such as to write it. Prints rows/s, medians.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client.admin import create_topic
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.source.options import batch_options
from pyspark_kafkalog.source.partitions import OffsetRange, ReadTask
from pyspark_kafkalog.source.reading import read_task

TOPIC = "far-away"
PARTITIONS = 4
PROCESSES = 2
VALUE_BYTES = 100
ROWS_PER_SLICE = 10_000
WAYS = ("none", "4 MiB ahead", "as it is")
_CHUNK_BYTES = 256 << 10


class _DelayingProxy:
    """Passes connections to one broker; every chunk leaves `_delay_s` after it came."""

    def __init__(self) -> None:
        self._target_port = 0
        self._delay_s = 0.0

    async def serve(self, control: Connection) -> None:
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0, limit=_CHUNK_BYTES)
        control.send(server.sockets[0].getsockname()[1])
        while (asked := await asyncio.to_thread(control.recv)) is not None:
            self._target_port, self._delay_s = asked
            control.send("done")

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(
            "127.0.0.1", self._target_port, limit=_CHUNK_BYTES
        )
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        leaving = loop.create_task(self._leave(under_way, sink))
        while chunk := await source.read(_CHUNK_BYTES):
            under_way.put_nowait((loop.time() + self._delay_s, chunk))
        under_way.put_nowait((0.0, b""))
        await leaving

    async def _leave(
        self, under_way: "asyncio.Queue[tuple[float, bytes]]", sink: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, chunk = await under_way.get()
            if not chunk:
                sink.close()
                return
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            sink.write(chunk)
            await sink.drain()


def _run_proxy(control: Connection) -> None:
    asyncio.run(_DelayingProxy().serve(control))


class Link:
    """The proxy's process: its port, where it leads to, and how long a round trip takes."""

    def __init__(self, port: int, control: Connection) -> None:
        self.port = port
        self._control = control

    def takes(self, round_trip_ms: float, target_port: int) -> None:
        self._control.send((target_port, round_trip_ms / 2000))
        self._control.recv()


@contextmanager
def open_link() -> Iterator[Link]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_run_proxy, args=(theirs,), daemon=True)
    process.start()
    try:
        yield Link(ours.recv(), ours)
    finally:
        ours.send(None)
        process.join(10)


def fill(servers: str, megabytes: int) -> int:
    """Fills the topic evenly; returns how many rows a partition has."""
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array([b"x" * VALUE_BYTES] * ROWS_PER_SLICE, pa.binary())}
    )
    slices = max(1, megabytes * 1_000_000 // (VALUE_BYTES * ROWS_PER_SLICE * PARTITIONS))
    with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
        create_topic(cluster, TOPIC, PARTITIONS)
        with Producer(cluster) as producer:
            for partition in range(PARTITIONS):
                topic_partition = TopicPartition(TOPIC, partition)
                encoder = RecordEncoder(1)
                for _ in range(slices):
                    for _, batch in encoder.encode(rows):
                        producer.send(topic_partition, batch)
                for _, batch in encoder.finish():
                    producer.send(topic_partition, batch)
        end_offsets = cluster.list_offsets(
            [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)], LATEST
        )
    return min(int(at.offset) for at in end_offsets.values())


def _without_prefetch() -> None:
    """Has this process's fetchers send nothing while they accept an answer."""
    accept, send = Fetcher._accept, Fetcher._send

    def accept_only(self: Fetcher, *arguments: Any) -> Any:
        self._send = lambda connection: None  # type: ignore[method-assign]
        try:
            return accept(self, *arguments)
        finally:
            self._send = lambda connection: send(self, connection)  # type: ignore[method-assign]

    Fetcher._accept = accept_only  # type: ignore[assignment, method-assign]


def read_partition(servers: str, partition: int, rows: int, way: str, work_ms: float) -> int:
    """A Spark task, as far as it is ours; returns the rows that it read."""
    settings = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC}
    if way != "as it is":
        settings["kafka.max.partition.fetch.bytes"] = str(4 << 20)
    if way == "none":
        _without_prefetch()
    options = batch_options(settings)
    found = 0
    task = ReadTask((OffsetRange(TOPIC, partition, 0, rows),), {})
    for batch in read_task(options, ("value",), task):
        found += int(batch.num_rows)
        until_s = time.perf_counter() + work_ms / 1000
        while time.perf_counter() < until_s:
            pass
    return found


def read_all(servers: str, rows: int, way: str, work_ms: float) -> float:
    """Rows/s of all partitions, by processes that were started before."""
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("fork")) as pool:
        list(pool.map(time.sleep, [0.05] * PROCESSES))
        began_s = time.perf_counter()
        tasks = [
            pool.submit(read_partition, servers, partition, rows, way, work_ms)
            for partition in range(PARTITIONS)
        ]
        assert sum(task.result() for task in tasks) == rows * PARTITIONS
        return rows * PARTITIONS / (time.perf_counter() - began_s)


def compare(round_trips_ms: list[float], megabytes: int, repeats: int, work_ms: float) -> None:
    with open_link() as link:
        advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{link.port}"}
        with EmbeddedBroker(config=advertised) as broker:
            target_port = int(broker.bootstrap_servers.rpartition(":")[2])
            link.takes(0, target_port)
            servers = f"127.0.0.1:{link.port}"
            rows = fill(servers, megabytes)
            print("round trip   " + "".join(f"{way:>16}" for way in WAYS) + "   as it is / 4 MiB")
            for round_trip_ms in round_trips_ms:
                link.takes(round_trip_ms, target_port)
                found: dict[str, list[float]] = {way: [] for way in WAYS}
                for turn in range(repeats):
                    # Another one first each time: what runs last found the machine slower.
                    first = turn % len(WAYS)
                    for way in (*WAYS[first:], *WAYS[:first]):
                        found[way].append(read_all(servers, rows, way, work_ms))
                middle = {way: statistics.median(found[way]) for way in WAYS}
                print(
                    f"{round_trip_ms:7g} ms   "
                    + "".join(f"{middle[way] / 1e6:13.2f} M/s"[:16] for way in WAYS)
                    + f"   {middle[WAYS[2]] / middle[WAYS[1]]:8.2f}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading over a network that takes its time.")
    parser.add_argument("--round-trips", default="0,2,10,50", help="milliseconds")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work-ms", type=float, default=0.0)
    options = parser.parse_args()
    round_trips_ms = [float(text) for text in options.round_trips.split(",")]
    compare(round_trips_ms, options.megabytes, options.repeats, options.work_ms)


if __name__ == "__main__":
    main()
