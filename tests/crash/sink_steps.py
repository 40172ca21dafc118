"""What Spark does with a transactional sink, step by step, each in a process that may die.

A plan, tasks and a commit of one micro-batch get from each other what Spark carries, pickled: the
writer and the messages of tasks. One that something is to happen to (`step_faults`) runs in a
process of its own.
"""

import itertools
import json
import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from kafka import structs
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.source.options import SinkOptions, sink_options
from pyspark_kafkalog.source.stream_writer import KafkalogStreamWriter
from pyspark_kafkalog.source.writer import KafkalogWriter
from tests.crash.step_faults import StepFault
from tests.support.patience import wait_until

SCHEMA = StructType([StructField("value", BinaryType())])
STEP_TIMEOUT_S = 90

# Makes pyarrow import pandas where there is one, once and not in each process.
pa.array([b""])
_processes = get_context("forkserver")
_processes.set_forkserver_preload(["tests.crash.sink_steps"])


class StepError(Exception):
    """A step raised: `str()` is the class and the sentence."""


class StepKilled(Exception):
    """A step was killed."""


def _child(pipe: Any, fault: StepFault | None, step: str, arguments: tuple[Any, ...]) -> None:
    try:
        if fault is not None:
            fault.arm()
        pipe.send((True, globals()[step](*arguments)))
    except Exception as error:
        pipe.send((False, f"{type(error).__name__}: {error}"))


def _run(fault: StepFault | None, step: str, *arguments: Any) -> Any:
    """Runs one step, in a process of its own where something is to happen to it; raises StepError,
    StepKilled."""
    if fault is None:
        return _run_here(step, *pickle.loads(pickle.dumps(arguments)))
    return Step(fault, step, *arguments).result()


def _run_here(step: str, *arguments: Any) -> Any:
    try:
        return pickle.loads(pickle.dumps(globals()[step](*arguments)))
    except KafkalogError as error:
        raise StepError(f"{type(error).__name__}: {error}") from error


class Step:
    """One step in a process of its own, which `result` waits for."""

    def __init__(self, fault: StepFault | None, step: str, *arguments: Any) -> None:
        self._pipe, theirs = _processes.Pipe()
        arguments = pickle.loads(pickle.dumps(arguments))
        self.process = _processes.Process(target=_child, args=(theirs, fault, step, arguments))
        self.process.start()
        theirs.close()

    def stands_still(self) -> bool:
        """Whether it has stopped itself; waits until that is so, or it has ended."""

        def is_stopped_or_over() -> bool:
            return self._is_stopped() or self._pipe.poll()

        wait_until(is_stopped_or_over, "the stop of a step, or its end", pause_s=0.002)
        return self._is_stopped()

    def _is_stopped(self) -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{self.process.pid}/stat").read_text()
            return status.rpartition(")")[2].split()[0] == "T"
        return False

    def go_on(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def result(self) -> Any:
        try:
            if not self._pipe.poll(STEP_TIMEOUT_S):
                self.process.kill()
                raise TimeoutError("A step does not end.")
            is_well, answer = self._pipe.recv()
        except EOFError:
            raise StepKilled from None
        finally:
            self.process.join()
            self._pipe.close()
        if not is_well:
            raise StepError(answer)
        return answer


def plan(options: SinkOptions, is_stream: bool) -> bytes:
    writer = (KafkalogStreamWriter if is_stream else KafkalogWriter)(options, SCHEMA)
    return bytes(cloudpickle.dumps(writer))  # type: ignore[no-untyped-call]


def task(writer: bytes, query: str, partition: int, attempt: int, rows: Sequence[bytes]) -> Any:
    half = len(rows) // 2
    halves = map(batch_of, (rows[:half], rows[half:]))
    return task_of_batches(writer, query, partition, attempt, halves)


def batch_of(rows: Sequence[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(rows, pa.binary())], ["value"])


def thousands(rows: Iterator[bytes]) -> Iterator[pa.RecordBatch]:
    while some := list(itertools.islice(rows, 1000)):
        yield batch_of(some)


def task_of_batches(
    writer: bytes, query: str, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]
) -> Any:
    context = TaskContext._getOrCreate()
    context._partitionId, context._attemptNumber = partition, attempt
    context._localProperties = {"sql.streaming.queryId": query}
    try:
        return pickle.loads(writer).write(batches)
    finally:
        # Where steps are not made in a process of their own, a SparkContext may come after them.
        TaskContext._setTaskContext(None)


def end(
    options: SinkOptions,
    messages: Sequence[Any],
    batch: int | None,
    commit: bool,
    pickled: bytes | None,
) -> None:
    """Of a batch query Spark has the writer that was planned do it, of a stream a new one."""
    if batch is None:
        writer = KafkalogWriter(options, SCHEMA) if pickled is None else pickle.loads(pickled)
        (writer.commit if commit else writer.abort)(list(messages))
    else:
        stream = KafkalogStreamWriter(options, SCHEMA)
        (stream.commit if commit else stream.abort)(list(messages), batch)


@dataclass
class Sink:
    """One query's sink; `batch` None in its methods is a batch query."""

    servers: str
    topic: str
    prefix: str
    query: str = "query-1"
    more: dict[str, str] = field(default_factory=dict)

    @property
    def options(self) -> SinkOptions:
        given = {
            "kafka.bootstrap.servers": self.servers,
            "topic": self.topic,
            "transactionalIdPrefix": self.prefix,
            **self.more,
        }
        return sink_options(given)

    def plan(self, fault: StepFault | None = None, is_stream: bool = True) -> bytes:
        writer: bytes = _run(fault, "plan", self.options, is_stream)
        return writer

    def write(
        self,
        writer: bytes,
        *tasks: Iterable[bytes],
        attempt: int = 0,
        fault: StepFault | None = None,
    ) -> list[Any]:
        """The messages of tasks 0, 1, ... that each write some rows; what happens to the first."""
        return [
            _run(
                None if partition else fault,
                *("task", writer, self.query, partition, attempt, list(rows)),
            )
            for partition, rows in enumerate(tasks)
        ]

    def write_slowly(self, writer: bytes, rows: Iterator[bytes]) -> Any:
        """The message of task 0, which is given its rows one thousand at a time."""
        return _run_here("task_of_batches", writer, self.query, 0, 0, thousands(rows))

    def commit(
        self, messages: Sequence[Any], batch: int | None, fault: StepFault | None = None
    ) -> None:
        _run(fault, "end", self.options, messages, batch, True, None)

    def abort(
        self,
        messages: Sequence[Any],
        batch: int | None,
        writer: bytes | None = None,
        fault: StepFault | None = None,
    ) -> None:
        _run(fault, "end", self.options, messages, batch, False, writer)

    def run(self, batch: int | None, *tasks: Iterable[bytes]) -> None:
        """A micro-batch, or a batch query, from plan to commit."""
        self.commit(self.write(self.plan(is_stream=batch is not None), *tasks), batch)


def plan_micro_batch(checkpoint: Path, batch: int, query: str = "query-1", end: str = "{}") -> None:
    """Writes what Spark notes down before a micro-batch runs, unless it is there; its only source
    ends at `end`."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": query}))
    plan = checkpoint / "offsets" / str(batch)
    if not plan.exists():
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 1_000_000}
        written = checkpoint / f".{batch}.tmp"
        written.write_text(f"v1\n{json.dumps(metadata)}\n{end}\n")
        written.replace(plan)


def visible(servers: str, topic: str) -> Counter[bytes]:
    """What a read_committed consumer sees of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found: Counter[bytes] = Counter()
        ended: set[int | None] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(30)
            assert message is not None, "read_committed reads no further"
            error = message.error()
            if error is None:
                found[message.value() or b""] += 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
        return found
    finally:
        consumer.close()


def has_open_transactions(servers: str, topic: str) -> bool:
    """Whether a transaction holds read_committed readers back, in any partition."""
    ends = []
    for level in ("read_committed", "read_uncommitted"):
        options = {"bootstrap.servers": servers, "isolation.level": level}
        with Cluster(ClientConfig.from_options(options)) as cluster:
            topic_partitions = [
                structs.TopicPartition(topic, p) for p in cluster.topics([topic])[topic]
            ]
            found = cluster.list_offsets(topic_partitions, LATEST)
            ends.append({each: where.offset for each, where in found.items()})
    return ends[0] != ends[1]
