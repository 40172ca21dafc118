"""Replicas whose leaders change fast, and which lose what they had not written to their disks: in
the end all have one log, with all that all of them had (KIP-101, KIP-279)."""

import asyncio
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from broker.cluster.metadata import PartitionMetadata
from broker.config.log import LogConfig
from broker.log.log import Log
from broker.replica.fetcher import ReplicaFetcher
from broker.replica.partition import Partition
from tests.broker.log.batches import batch
from tests.broker.log.memory_files import MemoryFiles
from tests.broker.replica.test_fetcher import FOLLOWER, OPTIONS, Leader, bytes_of
from tests.support.patience import eventually
from tests.support.records import values_of
from tests.support.replicas import host_alone

PLACE = TopicPartition("t", 0)
A, B, C = 1, 2, 3
NODES = (A, B, C)


class Replicas:
    """Of one partition, on three brokers; A leads it first."""

    def __init__(self) -> None:
        files = MemoryFiles()
        self.at: dict[int, Partition] = {}
        for node_id in NODES:
            folder = Path(f"/{node_id}/t-0")
            files.make_directory(folder.parent)
            files.make_directory(folder)
            log = Log(folder, LogConfig(), files=files)
            self.at[node_id] = Partition(PLACE, UUID(int=7), log, host_alone(node_id))
        self.appended = 0
        self.everywhere: list[tuple[int, bytes | None]] = []
        """What all had at once."""
        self.epoch = -1

    def elect(self, leader: int) -> None:
        self.leader, self.epoch = leader, self.epoch + 1
        state = PartitionMetadata(NODES, leader, self.epoch, (leader,), self.epoch)
        for node_id, partition in self.at.items():
            if node_id == leader:
                partition.lead(state)
            else:
                partition.follow(state)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.appended += 1
            self.at[self.leader].log.append(batch([b"%d" % self.appended]), self.epoch)

    def crash(self, node_id: int, lost: int) -> None:
        """Of its tail so many records go that others may not have."""
        log = self.at[node_id].log
        log.truncate_to(max(len(self.everywhere), log.log_end_offset - lost))
        self.at[node_id] = Partition(PLACE, UUID(int=7), log, host_alone(node_id))

    async def fetch(self, node_id: int, fetches: int) -> None:
        """So many times from the leader, two records at most each time."""
        if node_id != self.leader:
            connection, fetcher = self._fetching(node_id)
            await eventually(lambda: len(connection.asked) > fetches)
            await fetcher.close()
        self.check()

    def _fetching(self, node_id: int) -> tuple[Leader, ReplicaFetcher]:
        connection = Leader([SimpleNamespace(place=PLACE, leader=self.at[self.leader])])  # type: ignore[list-item]
        connection.most_bytes = 2 * len(batch())
        fetcher = ReplicaFetcher(FOLLOWER, lambda: 55, connection, OPTIONS, connection.replicas)
        fetcher.add(self.at[node_id])
        return connection, fetcher

    def check(self) -> None:
        """What all had stays, at its offsets."""
        logs = [values_of(bytes_of(partition.log)) for partition in self.at.values()]
        rows = takewhile(lambda row: len({*row}) == 1, zip(*logs, strict=False))
        alike = [record for record, *_ in rows]
        assert alike[: len(self.everywhere)] == self.everywhere
        self.everywhere = alike

    async def settle(self) -> None:
        self.append(1)
        fetchers = [self._fetching(node_id)[1] for node_id in NODES if node_id != self.leader]
        await eventually(
            lambda: len({bytes_of(partition.log) for partition in self.at.values()}) == 1,
            [values_of(bytes_of(partition.log)) for partition in self.at.values()],
        )
        for fetcher in fetchers:
            await fetcher.close()
        self.check()


async def play(history: Sequence[tuple[Any, ...]]) -> None:
    replicas = Replicas()
    replicas.elect(A)
    for step, *arguments in history:
        done = getattr(replicas, step)(*arguments)
        if done is not None:
            await done
    await replicas.settle()


nodes, few = st.sampled_from(NODES), st.integers(1, 4)
steps = st.one_of(
    st.tuples(st.just("append"), few),
    st.tuples(st.just("elect"), nodes),
    st.tuples(st.just("fetch"), nodes, few),
)
crashes = st.tuples(st.just("crash"), nodes, few).flatmap(
    lambda crash: nodes.map(lambda node_id: (crash, ("elect", node_id)))
)
histories = st.lists(st.one_of(steps.map(lambda step: (step,)), crashes), max_size=12).map(
    lambda parts: [step for part in parts for step in part]
)


@settings(max_examples=25)
@given(history=histories)
def test_all_logs_are_one_in_the_end(history: list[tuple[str, int] | tuple[str, int, int]]) -> None:
    asyncio.run(play(history))


@pytest.mark.parametrize(
    "history",
    [
        # A's tail is lost with its power; B, which has less, writes others at the same offsets.
        [
            *[("append", 2), ("fetch", B, 2), ("append", 2)],
            *[("crash", B, 1), ("elect", B), ("append", 3), ("elect", A), ("append", 1)],
        ],
        # Each led for a moment, and has records of an epoch of its own that nobody else has.
        [
            *[("append", 2), ("fetch", B, 2), ("fetch", C, 2), ("append", 1)],
            *[("elect", B), ("append", 2), ("elect", A), ("append", 2), ("elect", C)],
            *[("append", 4), ("elect", B), ("append", 1), ("elect", A)],
        ],
    ],
    ids=["KIP-101", "KIP-279"],
)
def test_leaders_that_change_faster_than_followers_fetch(
    history: list[tuple[str | int, ...]],
) -> None:
    asyncio.run(play(history))
