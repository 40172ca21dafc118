"""Tombstones that compaction takes between two upserts."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

import pyspark_kafkalog
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.record.batch import batches
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.warehouse import caught_up
from pyspark_kafkalog.warehouse.caught_up import CaughtUp, LogEnds
from pyspark_kafkalog.warehouse.commit import NOWHERE
from pyspark_kafkalog.warehouse.holes import LONG_AGO_US, Holes
from tests.pyspark_kafkalog.warehouse.tables import SqliteTable
from tests.support.patience import wait_until

USERS = TopicPartition("users", 0)
SAID = r"was not up with users-0 at any time in the last 0\.0 hours, .* users, which is compacted"
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "1048576",
    "segment.ms": "1",
    "file.delete.delay.ms": "0",
}


def test_holes_are_told_with_the_time_before_them() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(300):
        start, until = 5, 5 + chance.randrange(1, 12)
        kept = [offset for offset in range(start, until) if chance.random() < 0.7]
        times = {offset: chance.choice([None, 1, 2, 3]) for offset in kept}
        holes = Holes(start)
        for batch in split(chance, kept):
            columns = {
                "offset": pa.array(batch, pa.int64()),
                "timestamp": pa.array([times[offset] for offset in batch], pa.timestamp("us")),
            }
            holes.pass_records(pa.RecordBatch.from_pydict(columns))
        holes.end(until)
        before = [
            times.get(offset - 1)
            for offset in range(start, until)
            if offset not in kept and (offset - 1 in kept or offset == start)
        ]
        expected = [LONG_AGO_US if time is None else time for time in before]
        assert holes.after_us == min(expected, default=None), (kept, times)


def split(chance: random.Random, offsets: list[int]) -> Iterator[list[int]]:
    while offsets:
        count = chance.randrange(1, len(offsets) + 1)
        yield offsets[:count]
        offsets = offsets[count:]


class Users:
    """A compacted topic, and an upsert of it."""

    def __init__(self, servers: str, directory: Path) -> None:
        self._config = ClientConfig.from_options({"bootstrap.servers": servers})
        self._options = {"kafka.bootstrap.servers": servers, "subscribe": "users"}
        self.table = SqliteTable(directory)

    def make(self, **configs: str) -> None:
        with Cluster(self._config) as cluster:
            admin.create_topic(cluster, "users", 1, 1, {**CONFIG, **configs})

    def add_partition(self) -> None:
        with Cluster(self._config) as cluster:
            admin.add_partitions(cluster, "users", 2)

    def send(self, key: bytes, value: bytes | None, partition: int = 0) -> None:
        encoder = RecordEncoder(1, Codec.NONE, max_batch_bytes=1000)
        columns = {"key": pa.array([key], pa.binary()), "value": pa.array([value], pa.binary())}
        with Producer(self._config, is_idempotent=False) as producer:
            rows = pa.RecordBatch.from_pydict(columns)
            for _, batch in [*encoder.encode(rows), *encoder.finish()]:
                producer.send(USERS._replace(partition=partition), batch)

    def wait_for_compaction(self, offset: int, partition: int = 0) -> None:
        """Until there is no record at `offset` any more."""

        def is_gone() -> bool:
            # A segment of its own, as the last one is not compacted.
            self.send(b"filler", b"", partition)
            with Cluster(self._config) as cluster:
                place = USERS._replace(partition=partition)
                fetched = list(Fetcher(cluster, place, offset, offset + 1).records())
                headers = [header for each in fetched for header in batches(each.records)]
            return all(header.base_offset > offset for header in headers)

        wait_until(is_gone, "compaction", pause_s=0.02)

    def load(self, fails: str = "true", **how: Any) -> list[bytes]:
        options = {**self._options, "failOnDataLoss": fails}
        pyspark_kafkalog.load(None, "n", self.table.name, options, mode="upsert", **how)
        return self.keys()

    def keys(self) -> list[bytes]:
        return sorted(key for (key,) in self.table.query("SELECT key FROM orders"))


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Users]:
    with EmbeddedBroker(config={"log.cleaner.backoff.ms": "20"}) as broker:
        yield Users(broker.bootstrap_servers, tmp_path)


@pytest.mark.slow
def test_an_upsert_that_comes_later_than_tombstones_are_kept_says_so(users: Users) -> None:
    users.make(**{"delete.retention.ms": "0"})
    users.send(b"a", b"1")
    users.send(b"b", b"1")
    assert users.load() == [b"a", b"b"]
    users.send(b"a", None)
    users.wait_for_compaction(2)
    for _ in range(2):
        with pytest.raises(DataLossError, match=SAID):
            users.load()
    assert users.load("false") == [b"a", b"b", b"filler"]
    # Nothing is missing of what comes from there on.
    users.send(b"a", None)
    assert users.load() == [b"b", b"filler"]


@pytest.mark.slow
def test_an_upsert_that_lags_says_so_however_often_it_commits(users: Users) -> None:
    users.make(**{"delete.retention.ms": "1500"})
    users.send(b"a", b"1")
    users.send(b"b", b"1")
    assert users.load() == [b"a", b"b"]
    for key in (b"c", b"d", b"e"):
        users.send(key, b"1")
    users.send(b"a", None)
    users.wait_for_compaction(5)
    # A commit of just now, which did not come to the end.
    assert users.load(until={"users": {0: 3}}) == [b"a", b"b", b"c"]
    with pytest.raises(DataLossError, match=SAID):
        users.load()
    # A later portion of one run, and whoever tries again.
    for _ in range(2):
        with pytest.raises(DataLossError, match=SAID):
            users.load(chunk_bytes=1)
    assert users.keys() == [b"a", b"b", b"c", b"d", b"e"]


def test_an_upsert_that_has_nothing_to_do_says_now_and_then_that_it_is_up(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    users.make()
    users.send(b"a", b"1")

    def since_ms() -> int:
        return users.table.open().position("n").caught_up[USERS].since_ms

    users.load()
    first_ms = since_ms()
    users.load()
    assert since_ms() == first_ms
    assert first_ms > time.time_ns() // 1_000_000 - 3_600_000
    monkeypatch.setattr(caught_up, "_STALE_MS", -1)
    users.load()
    assert since_ms() > first_ms
    users.send(b"b", b"1")
    users.send(b"c", b"1")
    # Not up any more: what it was up with before counts.
    last_ms = since_ms()
    users.load(until={"users": {0: 2}})
    assert since_ms() == last_ms
    users.load()
    assert since_ms() > last_ms
    assert users.keys() == [b"a", b"b", b"c"]
    assert pyspark_kafkalog.forget(users.table.name, "n")
    assert users.table.open().position("n") == NOWHERE


def test_a_load_that_is_never_up_relies_on_where_the_log_ended_before() -> None:
    known = LogEnds(1_000, {USERS: 10}).caught_up({}, {USERS: 4})
    assert known == {USERS: CaughtUp(1_000, 10, 1_000)}
    known = LogEnds(2_000, {USERS: 20}).caught_up(known, {USERS: 9})
    assert known == {USERS: CaughtUp(1_000, 10, 1_000)}
    known = LogEnds(3_000, {USERS: 30}).caught_up(known, {USERS: 11})
    assert known == {USERS: CaughtUp(1_000, 30, 3_000)}
    known = LogEnds(4_000, {USERS: 40}).caught_up(known, {USERS: 39})
    assert known == {USERS: CaughtUp(3_000, 40, 4_000)}
    known = LogEnds(5_000, {USERS: 41}).caught_up(known, {USERS: 41})
    assert known == {USERS: CaughtUp(5_000, 41, 5_000)}


def test_of_a_partition_that_is_new_all_came_since_its_topic_was_read_last() -> None:
    """Whose keys may be those of rows from other partitions."""
    known = LogEnds(1_000, {USERS: 10}).caught_up({}, {USERS: 4})
    known = LogEnds(2_000, {USERS: 10}).caught_up(known, {USERS: 10})
    added, other = TopicPartition("users", 1), TopicPartition("orders", 0)
    ends = LogEnds(9_000, {USERS: 10, added: 5, other: 5})
    assert ends.caught_up(known, {added: 3, other: 3}) == {
        added: CaughtUp(2_000, 5, 9_000),
        other: CaughtUp(9_000, 5, 9_000),
    }


@pytest.mark.slow
def test_tombstones_of_a_partition_that_is_new_may_be_gone(users: Users) -> None:
    users.make(**{"delete.retention.ms": "1500"})
    users.send(b"a", b"1")
    assert users.load(order_by="timestamp") == [b"a"]
    users.add_partition()
    users.send(b"a", b"2", 1)
    users.send(b"a", None, 1)
    users.wait_for_compaction(1, 1)
    with pytest.raises(DataLossError, match=SAID.replace("users-0", "users-1")):
        users.load(order_by="timestamp")


@pytest.mark.slow
def test_an_upsert_in_time_takes_no_notice_of_compaction(users: Users) -> None:
    users.make()
    users.send(b"a", b"1")
    assert users.load() == [b"a"]
    users.send(b"b", b"1")
    users.send(b"b", b"2")
    users.wait_for_compaction(1)
    assert users.load() == [b"a", b"b", b"filler"]
