"""Topics full of equal records, for benchmarks that read them."""

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from kafka.structs import TopicPartition

from benchmarks.running import Broker, cluster
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.arrow.schema import HEADERS_TYPE
from pyspark_kafkalog.client.admin import create_topic
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.client.transaction import ProducerIdentity, Transactions
from pyspark_kafkalog.record.compression import Codec

ROWS_PER_SLICE = 10_000
HEADERS_PER_ROW = 2
PARTITIONS = 4
_TRANSACTIONS = 10
_TRANSACTION_TIMEOUT_MS = 60_000
_SPREAD = 0x9E3779B97F4A7C15
"""Makes numbers that follow each other look random (Knuth's multiplicative hashing)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What the records of a topic are like: random bytes unless they are texts of JSON.

    With `in_transactions` the rows come in ten transactions (fewer if there are fewer slices), and
    after each of them comes a slice of rows in a transaction that is aborted.
    """

    value_bytes: int = 100
    partitions: int = PARTITIONS
    codec: Codec = Codec.NONE
    is_json: bool = False
    has_headers: bool = False
    in_transactions: bool = False


class MadeTopic:
    """A topic of `count` records of a kind, filled when its name is first asked for, which is also
    when its broker is asked for."""

    def __init__(
        self, find_broker: Callable[[], Broker], count: int, kind: Kind | None = None
    ) -> None:
        self._find_broker = find_broker
        self.kind = kind or Kind()
        self.count = max(1, count // ROWS_PER_SLICE) * ROWS_PER_SLICE

    @property
    def broker(self) -> Broker:
        return self._find_broker()

    @property
    def servers(self) -> str:
        return self.broker.bootstrap_servers

    @property
    def size_bytes(self) -> int:
        """Of all values."""
        return self.count * self.kind.value_bytes

    @property
    def title(self) -> str:
        value_bytes = self.kind.value_bytes
        size = f"{value_bytes // 1000} kB" if value_bytes % 1000 == 0 else f"{value_bytes} B"
        if self.count < 1_000_000:
            return f"{self.count // 1000} k x {size}"
        return f"{self.count / 1e6:g} M x {size}"

    @cached_property
    def name(self) -> str:
        name = f"rows-{self.kind.value_bytes}-{uuid.uuid4().hex[:8]}"
        with cluster(self.broker) as client:
            create_topic(client, name, self.kind.partitions)
            fill(client, name, self.count, self.kind)
        return name


def rows_of(kind: Kind) -> pa.RecordBatch:
    """A slice of rows. Random bytes do not compress, JSON does."""
    columns = {
        "key": pa.array([b"%08d" % number for number in range(ROWS_PER_SLICE)], pa.binary()),
        "value": pa.array(_json(kind.value_bytes) if kind.is_json else _random(kind), pa.binary()),
    }
    if kind.has_headers:
        headers = [{"key": "trace", "value": b"%016x" % 7}, {"key": "source", "value": b"bench"}]
        columns["headers"] = pa.array([headers] * ROWS_PER_SLICE, HEADERS_TYPE)
    return pa.RecordBatch.from_pydict(columns)


def _random(kind: Kind) -> Iterator[bytes]:
    values = os.urandom(kind.value_bytes * ROWS_PER_SLICE)
    for number in range(ROWS_PER_SLICE):
        yield values[number * kind.value_bytes : (number + 1) * kind.value_bytes]


def _json(value_bytes: int) -> Iterator[bytes]:
    for number in range(ROWS_PER_SLICE):
        fields = (
            1_000_000 + number * 7919 % 999_983,
            number * 613 % 20_011,
            number * 37 % 2_003,
            number * _SPREAD % (1 << 64),
        )
        text = b'{"order": %d, "customer": "c-%05d", "amount": %d, "session": "%016x"}' % fields
        yield text.ljust(value_bytes)


def fill(client: Cluster, topic: str, count: int, kind: Kind) -> None:
    """Produces `count` records, whole slices of them, from two slices in turn."""
    slices = [rows_of(kind) for _ in range(2)]
    turns = range(count // ROWS_PER_SLICE)
    if not kind.in_transactions:
        with Producer(client) as producer:
            _send(producer, topic, kind, (slices[turn % 2] for turn in turns))
        return
    transactions = Transactions(client)
    each = -(-len(turns) // _TRANSACTIONS)
    for first in turns[::each]:
        _send_in_transaction(
            transactions,
            client,
            topic,
            kind,
            [slices[turn % 2] for turn in turns[first : first + each]],
            commit=True,
        )
        _send_in_transaction(transactions, client, topic, kind, slices[:1], commit=False)


def _send_in_transaction(
    transactions: Transactions,
    client: Cluster,
    topic: str,
    kind: Kind,
    slices: list[pa.RecordBatch],
    *,
    commit: bool,
) -> None:
    identity: ProducerIdentity = transactions.begin(topic, _TRANSACTION_TIMEOUT_MS)
    with Producer(client, (transactions, identity)) as producer:
        _send(producer, topic, kind, slices)
    transactions.end(identity, commit)


def _send(producer: Producer, topic: str, kind: Kind, slices: Iterable[pa.RecordBatch]) -> None:
    encoder = RecordEncoder(kind.partitions, kind.codec)
    for rows in slices:
        for partition, batch in encoder.encode(rows):
            producer.send(TopicPartition(topic, partition), batch)
    for partition, batch in encoder.finish():
        producer.send(TopicPartition(topic, partition), batch)
