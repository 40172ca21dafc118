"""State that a broker takes over, and gives up, with the partitions that hold it."""

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CorruptRecordError,
    NotCoordinatorError,
)
from kafka.structs import TopicPartition

from broker.cluster.cache import MetadataCache
from broker.cluster.control import Stamp, UpdateMetadata
from broker.cluster.metadata import BrokerNode, TopicMetadata, new_topic
from broker.config.broker import BrokerConfig
from broker.coordinator.state_loader import StateLoader
from broker.coordinator.state_topic import StateTopic, StateTopicKind
from broker.log.log import Log
from broker.log.manager import LogManager
from broker.replica.purgatory import Purgatory
from tests.support.patience import EVENT_S, eventually, turns
from tests.support.records import batch_of
from tests.support.replicas import lead, replicas_alone

NAME = "state"
ME = BrokerNode(1, "host", 9092)


class Told:
    """A coordinator that writes down what it is told; its state is a log's end."""

    def __init__(self) -> None:
        self.states: list[int] = []
        self.resigned: list[int] = []

    def take_over(self, state: int) -> None:
        self.states.append(state)

    def resign(self, partition: int) -> None:
        self.resigned.append(partition)


class World:
    """Two partitions of a state topic that this broker leads; the second has three records."""

    def __init__(self, directory: Path) -> None:
        config = BrokerConfig.from_properties({"log.dirs": str(directory)})
        self.logs = LogManager(config)
        self.logs.open()
        self.replicas = replicas_alone(self.logs, Purgatory(lambda delay_s, run: SimpleNamespace()))
        self.topic = new_topic(NAME, 2, 1)
        lead(self.replicas, self.topic)
        partition = self.replicas.partition(TopicPartition(NAME, 1))
        self.replicas.append(partition, memoryview(bytearray(batch_of(3))), -1)
        self.metadata = MetadataCache("cluster", ME)
        self.know(self.topic)
        self.error: Exception | None = None
        self.on_read: Callable[[Log], int] | None = None
        kind = StateTopicKind(NAME, 2, 1, {}, self.read, NotCoordinatorError, 1000)
        self.state = StateTopic(kind, self.metadata, self.create, self.replicas, lambda: 0)
        self.told = Told()
        self.loader = StateLoader(self.state, self.replicas, self.told, again_s=0.01)
        self.keys = {self.state.partition_of(key): key for key in "abcdefgh"}

    def know(self, topic: TopicMetadata) -> None:
        states = dict(zip(topic.topic_partitions(), topic.partitions, strict=True))
        ids = {NAME: topic.topic_id}
        self.metadata.update(UpdateMetadata(Stamp(1, 1, 1), [ME], states, ids))

    async def create(self, *_: object) -> None:
        raise AssertionError("it is there")

    def read(self, log: Log) -> int:
        if self.error is not None and self.on_read is None:
            raise self.error
        return log.log_end_offset if self.on_read is None else self.on_read(log)

    def check(self, partition: int) -> None:
        self.state.check_coordinates(self.keys[partition])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.logs.close()


def test_an_empty_partition_is_served_at_once_and_another_once_it_is_read(world: World) -> None:
    async def scenario() -> None:
        with pytest.raises(NotCoordinatorError):
            world.check(0)
        world.loader.lead(0, 4)
        world.check(0)
        world.loader.lead(1, 5)
        with pytest.raises(CoordinatorLoadInProgressError):
            world.check(1)
        assert world.state.is_loading(1)
        assert not world.state.is_loading(0)
        await eventually(lambda: not world.state.is_loading_any)
        world.check(1)
        assert world.told.states == [3]
        assert world.state.leader_epoch(world.keys[1]) == 5

    asyncio.run(scenario())


def test_a_new_epoch_of_the_same_leader_reads_nothing_again(world: World) -> None:
    async def scenario() -> None:
        world.loader.lead(1, 5)
        await eventually(lambda: not world.state.is_loading_any)
        world.loader.lead(1, 6)
        world.check(1)
        assert world.state.leader_epoch(world.keys[1]) == 6
        # One is read after the other: what is read after it was asked for later.
        partition = world.replicas.partition(TopicPartition(NAME, 0))
        world.replicas.append(partition, memoryview(bytearray(batch_of(2))), -1)
        world.loader.lead(0, 6)
        await eventually(lambda: not world.state.is_loading_any)

    asyncio.run(scenario())
    assert world.told.states == [3, 2]


def test_what_is_led_no_more_while_it_is_read_is_for_nobody(world: World) -> None:
    async def scenario() -> None:
        world.loader.lead(1, 5)
        await turns()
        world.loader.resign(1)
        with pytest.raises(NotCoordinatorError):
            world.check(1)
        world.loader.lead(1, 6)
        await eventually(lambda: not world.state.is_loading_any)
        world.check(1)

    asyncio.run(scenario())
    assert (world.told.states, world.told.resigned) == ([3], [1])


def test_what_is_led_again_and_no_more_while_it_is_read_is_for_nobody_either(world: World) -> None:
    """The read that was broken off first is over before the second one is."""
    reading, gate = threading.Event(), threading.Event()

    def read(log: Log) -> int:
        reading.set()
        assert gate.wait(EVENT_S)
        return int(log.log_end_offset)

    async def scenario() -> None:
        world.on_read = read
        world.loader.lead(1, 5)
        await eventually(reading.is_set)
        world.loader.resign(1)
        reading.clear()
        world.loader.lead(1, 6)
        await eventually(reading.is_set)
        world.loader.resign(1)
        gate.set()
        # What is asked for later is read later.
        partition = world.replicas.partition(TopicPartition(NAME, 0))
        world.replicas.append(partition, memoryview(bytearray(batch_of(2))), -1)
        world.loader.lead(0, 6)
        await eventually(lambda: not world.state.is_loading_any)

    asyncio.run(scenario())
    assert world.told.states == [2]


@pytest.mark.parametrize(
    "error",
    [CorruptRecordError("bad"), OSError(errno.EMFILE, "Too many open files"), ValueError("a bug")],
)
def test_a_partition_that_cannot_be_read_is_not_served_until_it_can(
    world: World, error: Exception
) -> None:
    failed = 0

    def read(log: Log) -> int:
        nonlocal failed
        failed += world.error is not None
        if world.error is not None:
            raise world.error
        return int(log.log_end_offset)

    async def scenario() -> None:
        world.on_read, world.error = read, error
        world.loader.lead(1, 5)
        await eventually(lambda: not world.state.is_loading_any)
        with pytest.raises(NotCoordinatorError):
            world.check(1)
        await eventually(lambda: failed > 1)
        assert world.told.states == []
        world.error = None
        await eventually(lambda: world.told.states)
        world.check(1)
        assert world.state.leader_epoch(world.keys[1]) == 5

    asyncio.run(scenario())
    assert world.told.states == [3]


def test_what_could_not_be_read_is_left_alone_when_others_lead_it(world: World) -> None:
    async def scenario() -> None:
        world.error = OSError(errno.EMFILE, "Too many open files")
        world.loader.lead(1, 5)
        await eventually(lambda: not world.state.is_loading_any)
        world.error = None
        world.loader.resign(1)
        await turns(2)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        world.loader.lead(1, 6)
        await eventually(lambda: world.told.states)
        assert world.state.leader_epoch(world.keys[1]) == 6

    asyncio.run(scenario())
    assert world.told.states == [3]


def test_what_could_not_be_read_is_read_once_when_it_is_led_anew(world: World) -> None:
    """The other attempt, in the epoch before, would have begun while it is read."""
    gate = threading.Event()

    def read(log: Log) -> int:
        assert gate.wait(EVENT_S)
        return int(log.log_end_offset)

    async def scenario() -> None:
        world.error = OSError(errno.EMFILE, "Too many open files")
        world.loader.lead(1, 5)
        await eventually(lambda: not world.state.is_loading_any)
        world.on_read = read
        world.loader.lead(1, 6)
        await turns(2)
        assert len(asyncio.all_tasks()) == 2  # this one, and what reads
        gate.set()
        await eventually(lambda: world.told.states)
        world.check(1)
        assert world.state.leader_epoch(world.keys[1]) == 6

    asyncio.run(scenario())
    assert world.told.states == [3]


def test_all_is_given_up_at_the_end(world: World) -> None:
    async def scenario() -> None:
        world.loader.lead(0, 1)
        world.loader.lead(1, 1)
        await eventually(lambda: not world.state.is_loading_any)
        world.loader.close()
        for partition in (0, 1):
            with pytest.raises(NotCoordinatorError):
                world.check(partition)

    asyncio.run(scenario())
    assert world.told.resigned == [0, 1]


def test_what_could_not_be_read_is_given_up_at_the_end_too(world: World) -> None:
    async def scenario() -> None:
        world.error = CorruptRecordError("bad")
        world.loader.lead(1, 1)
        await eventually(lambda: not world.state.is_loading_any)
        world.loader.close()
        await turns(2)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_partitions_that_are_added_leave_keys_where_they_are(world: World) -> None:
    before = {key: world.state.partition_of(key) for key in "abcdefgh"}
    more = new_topic(NAME, 5, 1).partitions
    world.know(TopicMetadata(NAME, world.topic.topic_id, more))
    assert {key: world.state.partition_of(key) for key in "abcdefgh"} == before
    world.know(new_topic(NAME, 5, 1))  # another topic of the same name
    assert {key: world.state.partition_of(key) for key in "abcdefgh"} != before
