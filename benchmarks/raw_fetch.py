"""Raw fetch: our connection against kafka-python's, side by side.

    python -m benchmarks.raw_fetch [--bootstrap-servers HOST:PORT] [--megabytes 500] [--repeats 3]

The same Fetch requests over the same records of one partition, each next one sent before the answer
is looked at, without decoding: this is what receiving costs. Ours is client.Fetcher; the other is
KafkaConnectionManager of kafka.net, which the design had chosen first. Prints the medians of wall
time and of this process's CPU time. On an embedded broker unless another one is named.
"""

import argparse
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import FetchRequest
from kafka.structs import TopicPartition

from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client.admin import create_topic, delete_topics
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetch_state import whole_batches
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.producer import Producer

VALUE_BYTES = (100, 1000)
FETCH_MEGABYTES = (1, 4, 8)
ROWS_PER_SLICE = 10_000
FETCH_VERSION = 12


def config(bootstrap: str, fetch_bytes: int = 4 << 20) -> ClientConfig:
    return ClientConfig.from_options(
        {"bootstrap.servers": bootstrap, "max.partition.fetch.bytes": str(fetch_bytes)}
    )


@contextmanager
def topic_of(bootstrap: str, value_bytes: int, megabytes: int) -> Iterator[TopicPartition]:
    """A topic of one partition filled with equal records; deleted afterwards."""
    topic_partition = TopicPartition(f"raw-fetch-{uuid.uuid4().hex[:8]}", 0)
    values = pa.array([b"x" * value_bytes] * ROWS_PER_SLICE, pa.binary())
    rows = pa.RecordBatch.from_pydict({"value": values})
    with Cluster(config(bootstrap)) as cluster:
        create_topic(cluster, topic_partition.topic, 1)
        encoder = RecordEncoder(1)
        with Producer(cluster) as producer:
            for _ in range(max(1, megabytes * 1_000_000 // (value_bytes * ROWS_PER_SLICE))):
                for _, batch in encoder.encode(rows):
                    producer.send(topic_partition, batch)
            for _, batch in encoder.finish():
                producer.send(topic_partition, batch)
        yield topic_partition
        delete_topics(cluster, [topic_partition.topic])


def ours(bootstrap: str, topic_partition: TopicPartition, fetch_bytes: int) -> int:
    """Bytes of record batches that Fetcher hands out."""
    with Cluster(config(bootstrap, fetch_bytes)) as cluster:
        end_offset = cluster.list_offsets([topic_partition], LATEST)[topic_partition].offset
        fetcher = Fetcher(cluster, topic_partition, 0, end_offset)
        return sum(len(fetched.records) for fetched in fetcher.records())


def theirs(bootstrap: str, topic_partition: TopicPartition, fetch_bytes: int) -> int:
    """The same through kafka.net, whose answers hold the records as bytes."""
    manager = KafkaConnectionManager(
        NetworkSelector(), bootstrap_servers=bootstrap, receive_message_max_bytes=1 << 28
    )
    manager.bootstrap(timeout_ms=10_000)
    node = next(iter(manager.cluster.brokers())).node_id

    def ask(offset: int) -> Any:
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=topic_partition.partition,
            fetch_offset=offset,
            partition_max_bytes=fetch_bytes,
        )
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=50 << 20,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=topic_partition.topic, partitions=[partition])],
            rack_id="",
            max_version=FETCH_VERSION,
        )
        return manager.send(request, node_id=node)

    async def drain() -> int:
        offset = received_bytes = 0
        asked = ask(0)
        while True:
            answer = await asked
            found = answer.responses[0].partitions[0]
            size_bytes, offset, *_ = whole_batches(memoryview(found.records or b""), offset)
            if not size_bytes:
                return received_bytes
            received_bytes += size_bytes
            if offset >= found.high_watermark:
                return received_bytes
            asked = ask(offset)

    try:
        return int(manager.run(drain))
    finally:
        manager.close()


def measure(drain: Callable[[], int], repeats: int) -> tuple[float, float]:
    """Medians of MB/s by wall time and by CPU time."""
    wall, cpu = [], []
    for _ in range(repeats):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        size_bytes = drain()
        wall.append(size_bytes / (time.perf_counter() - wall_s) / 1e6)
        cpu.append(size_bytes / (time.process_time() - cpu_s) / 1e6)
    return statistics.median(wall), statistics.median(cpu)


def compare(bootstrap: str, megabytes: int, repeats: int) -> None:
    print("value  fetch   ours MB/s (per CPU s)   kafka.net MB/s (per CPU s)   ratio")
    for value_bytes in VALUE_BYTES:
        with topic_of(bootstrap, value_bytes, megabytes) as topic_partition:
            for fetch_megabytes in FETCH_MEGABYTES:
                fetch_bytes = fetch_megabytes << 20
                assert ours(bootstrap, topic_partition, fetch_bytes) == theirs(
                    bootstrap, topic_partition, fetch_bytes
                )
                a = measure(partial(ours, bootstrap, topic_partition, fetch_bytes), repeats)
                b = measure(partial(theirs, bootstrap, topic_partition, fetch_bytes), repeats)
                print(
                    f"{value_bytes:4} B {fetch_megabytes:2} MiB  {a[0]:9.0f} ({a[1]:.0f})"
                    f"            {b[0]:9.0f} ({b[1]:.0f})               {a[0] / b[0]:5.1f} x"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description="Raw fetch: ours against kafka-python's.")
    parser.add_argument("--bootstrap-servers")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.bootstrap_servers:
        compare(options.bootstrap_servers, options.megabytes, options.repeats)
        return
    with EmbeddedBroker() as broker:
        compare(broker.bootstrap_servers, options.megabytes, options.repeats)


if __name__ == "__main__":
    main()
