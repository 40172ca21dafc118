"""Streaming queries of both connectors: a backlog drained, steady small batches, and how long a row
takes from its producer through a query to a consumer of what the query wrote."""

import statistics
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from kafka.structs import TopicPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from benchmarks.made_rows import PARTITIONS, MadeTopic
from benchmarks.pairs import Comparison, Measure, Measures, Row
from benchmarks.running import (
    FETCH_OPTIONS,
    OURS,
    SPARK_CONNECTOR,
    THEIRS,
    Broker,
    Running,
    cluster,
    topic,
)
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client.producer import Producer

ROWS_PER_S = 1000
_TICK_S = 0.1
_ROWS_PER_TICK = int(ROWS_PER_S * _TICK_S)
_VALUE_BYTES = 100
_STEADY_S = 10.0
_WARM_UP_BATCHES = 3
# The JVM compiles what streams have for themselves through the first queries of either connector.
_WARM_UP = 3
# Rows of the first seconds, from the first that arrives, do not count.
_LATENCY_WARM_UP_S = 3.0
_LATENCY_S = 8.0
_TIMEOUT_S = 120.0


def comparisons(running: Running) -> list[Comparison]:
    """The rows of the design."""
    small = MadeTopic(lambda: running.kafka, int(5_000_000 * running.scale))
    group = "Connector"
    return [
        Comparison.of_one(
            Row(group, f"AvailableNow drain {small.title}", "M rows/s", 2, None, True, _PEER),
            drain(running, small, OURS),
            drain(running, small, THEIRS),
            pair_s=5,
            warm_up=_WARM_UP,
        ),
        Comparison.of_one(
            Row(
                *(group, f"micro-batch at {ROWS_PER_S:,} rows/s, p50 of its time", "ms", 1),
                higher_is_better=False,
                peer_name=_PEER,
            ),
            steady(running, OURS),
            steady(running, THEIRS),
            pair_s=2 * (_STEADY_S + 2),
            warm_up=_WARM_UP,
        ),
    ]


def beyond(running: Running) -> list[Comparison]:
    rows = tuple(
        Row(
            "Connector, beyond the goals",
            f"producer to sink at {ROWS_PER_S:,} rows/s, {percentile}",
            "ms",
            higher_is_better=False,
            peer_name=_PEER,
            settings={"both": "default trigger, source and sink of the same connector"},
        )
        for percentile in ("p50", "p99")
    )
    ours, theirs = end_to_end(running, OURS), end_to_end(running, THEIRS)
    pair_s = 2 * (_LATENCY_WARM_UP_S + _LATENCY_S + 3)
    return [Comparison(rows, ours, theirs, pair_s, warm_up=_WARM_UP)]


_PEER = SPARK_CONNECTOR


def drain(running: Running, rows: MadeTopic, connector: str) -> Measure:
    def measure() -> float:
        stream = _stream(running, rows.broker, connector, rows.name)
        stream = stream.option("startingOffsets", "earliest")
        with tempfile.TemporaryDirectory() as checkpoint:
            began = time.perf_counter()
            query = (
                stream.load()
                .writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            seconds = time.perf_counter() - began
            assert sum(each["numInputRows"] for each in query.recentProgress) == rows.count
        return rows.count / seconds / 1e6

    return measure


def steady(running: Running, connector: str) -> Measure:
    """Milliseconds of a trigger while rows come in evenly."""

    def measure() -> float:
        broker, seconds = running.kafka, max(4.0, _STEADY_S * min(1.0, running.scale * 4))
        with topic(broker, PARTITIONS) as name, tempfile.TemporaryDirectory() as checkpoint:
            frame = _stream(running, broker, connector, name).load()
            query = (
                frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
            )
            with feeding(broker, name):
                wait_for(lambda: len(trigger_times_ms(query)) >= _WARM_UP_BATCHES, query)
                query.awaitTermination(int(seconds))
            query.stop()
        times = trigger_times_ms(query)[_WARM_UP_BATCHES:]
        assert times, "no batch with rows"
        return float(statistics.median(times))

    return measure


def trigger_times_ms(query: StreamingQuery) -> list[int]:
    """Of the batches that had rows."""
    return [
        each["durationMs"]["triggerExecution"]
        for each in query.recentProgress
        if each["numInputRows"]
    ]


def wait_for(condition: Callable[[], bool], query: StreamingQuery) -> None:
    """Returns when the condition holds, while the query goes on."""
    until = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < until, "the query did not come so far"
        time.sleep(0.05)


def end_to_end(running: Running, connector: str) -> Measures:
    """p50 and p99 of the milliseconds from a row's making to its arrival behind the query."""

    def measure() -> tuple[float, float]:
        broker, seconds = running.kafka, max(3.0, _LATENCY_S * min(1.0, running.scale * 4))
        with (
            topic(broker, PARTITIONS) as source,
            topic(broker, PARTITIONS) as sink,
            tempfile.TemporaryDirectory() as checkpoint,
            _query(running, broker, connector, source, sink, checkpoint) as query,
            _Observer(broker, sink) as observer,
        ):
            with feeding(broker, source) as sent:
                wait_for(lambda: bool(observer.seen), query)
                time.sleep(_LATENCY_WARM_UP_S)
                first_ns = time.time_ns()
                time.sleep(seconds)
            wait_for(lambda: observer.arrived[sent[-1]] == _ROWS_PER_TICK, query)
        counted = [each for each in sent if each >= first_ns]
        found = [(arrived - made) / 1e6 for made, arrived in observer.seen if made >= first_ns]
        assert len(found) == len(counted) * _ROWS_PER_TICK, (len(found), len(counted))
        return statistics.median(found), statistics.quantiles(found, n=100)[98]

    return measure


class _Observer:
    """Reads a topic in a thread. `seen` has (time in the value, time of arrival), nanoseconds;
    `arrived` counts the rows with a time in their value."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.seen: list[tuple[int, int]] = []
        self.arrived: Counter[int] = Counter()
        self._done = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": f"observer-{uuid.uuid4().hex}",
                "fetch.wait.max.ms": 100,
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([Place(name, number, 0) for number in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "_Observer":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._done.is_set():
            message = self._consumer.poll(0.1)
            value = None if message is None else message.value()
            if value is not None:
                made = int(value[:20])
                self.seen.append((made, time.time_ns()))
                self.arrived[made] += 1


@contextmanager
def _query(
    running: Running, broker: Broker, connector: str, source: str, sink: str, checkpoint: str
) -> Iterator[StreamingQuery]:
    """Copies one topic to another until the context ends."""
    stream = _stream(running, broker, connector, source).option("startingOffsets", "earliest")
    query = (
        stream.load()
        .select("key", "value")
        .writeStream.format(connector)
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", sink)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        yield query
    finally:
        query.stop()


def _stream(running: Running, broker: Broker, connector: str, name: str) -> DataStreamReader:
    stream = running.spark.readStream.format(connector).option("subscribe", name)
    if connector == THEIRS:
        stream = stream.options(**FETCH_OPTIONS)
    return stream.option("kafka.bootstrap.servers", broker.bootstrap_servers)


@contextmanager
def feeding(broker: Broker, name: str) -> Iterator[list[int]]:
    """ROWS_PER_S rows of 100 bytes, ten times a second, while the context lasts.

    A value begins with the time at which it was made, in nanoseconds; the list has all these times.
    """
    done = threading.Event()
    sent: list[int] = []

    def feed() -> None:
        keys = pa.array([b"%03d" % number for number in range(_ROWS_PER_TICK)], pa.binary())
        with cluster(broker) as client, Producer(client) as producer:
            while not done.wait(_TICK_S):
                now = time.time_ns()
                value = (b"%020d" % now).ljust(_VALUE_BYTES, b"x")
                rows = pa.RecordBatch.from_pydict(
                    {"key": keys, "value": pa.array([value] * _ROWS_PER_TICK, pa.binary())}
                )
                encoder = RecordEncoder(PARTITIONS)
                for partition, batch in (*encoder.encode(rows), *encoder.finish()):
                    producer.send(TopicPartition(name, partition), batch)
                producer.flush()
                sent.append(now)

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        yield sent
    finally:
        done.set()
        feeder.join()
