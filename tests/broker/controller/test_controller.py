"""Creating and deleting topics when the disk, the clock or the client get in the way."""

import asyncio
import itertools
import shutil
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from kafka.errors import (
    BrokerIdNotRegisteredError,
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    KafkaStorageError,
    NotControllerError,
    StaleBrokerEpochError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster import znodes
from broker.cluster.cache import MetadataCache
from broker.cluster.config_records import ConfigRecords
from broker.cluster.entity_configs import EntityConfigs
from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import BrokerNode, TopicMetadata, new_topic
from broker.cluster.records import MetadataRecords
from broker.config.broker import BrokerConfig
from broker.controller.controller import Controller
from broker.controller.leaders import ElectionRules
from broker.controller.local_channel import LocalChannel
from broker.log.clock import system_clock_ms
from broker.log.files import Files
from broker.log.manager import LogManager
from broker.log.partition_metadata import write_topic_id
from broker.replica.other_logs import OtherLogs
from broker.replica.purgatory import Purgatory
from broker.replica.state_changes import StateChanges
from tests.support.coordinators import ToldCoordinators
from tests.support.patience import eventually, turns
from tests.support.present import present
from tests.support.replicas import no_fetchers, replicas_alone

T = TypeVar("T")


class World:
    """A broker alone, from its start; `gate`, when set, is waited for before blocking work."""

    def __init__(self, directory: Path, rules: ElectionRules | None = None) -> None:
        self.store = LocalStore(directory)
        self.records = MetadataRecords(self.store)
        self.records.prepare()
        self.records.become_controller(1)
        self.records.register(BrokerNode(1, "host", 9092))
        self.configs = EntityConfigs(
            znodes.TOPIC_ENTITIES,
            ConfigRecords(self.store, tells_others=False),
            self.run_blocking,
            lambda name: self.replicas.topic_configured(name),
        )
        self.configs.load()
        config = BrokerConfig.from_properties({"log.dirs": str(directory)})
        self.logs = LogManager(config, self.configs.of)
        self.logs.open()
        self.metadata = MetadataCache("cluster", BrokerNode(1, "host", 9092))
        purgatory = Purgatory(lambda delay, callback: asyncio.TimerHandle)  # type: ignore[arg-type,return-value]
        self.replicas = replicas_alone(self.logs, purgatory)
        self.coordinators = ToldCoordinators()
        state_changes = StateChanges(
            1,
            self.metadata,
            self.configs,
            self.replicas,
            no_fetchers(),
            self.run_blocking,
            self.coordinators,
            OtherLogs(self.logs, self.records),
        )
        state_changes.registered(0)
        self.controller = Controller(
            1,
            self.records,
            lambda node: LocalChannel(state_changes.obey),
            self.run_blocking,
            rules or ElectionRules(),
        )
        self.gate: asyncio.Event | None = None

    async def run_blocking(self, function: Callable[[], T]) -> T:
        if self.gate is not None:
            await self.gate.wait()
        return function()

    async def create(
        self, name: str, partition_count: int = 1, configs: dict[str, str] | None = None
    ) -> TopicMetadata:
        return await self.controller.place_and_create_topic(name, partition_count, 1, configs or {})

    def close(self) -> None:
        self.logs.close()
        self.store.close()

    def stored_topics(self) -> list[TopicMetadata]:
        return self.records.cluster().topics


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def run(world: World, scenario: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Runs the coroutine after the controller has taken over."""

    async def started() -> None:
        await world.controller.start()
        await scenario()

    asyncio.run(started())


async def until_it_blocks() -> None:
    """Until a change that was just begun waits for the gate."""
    await turns(5)


def test_created_and_deleted(world: World) -> None:
    async def scenario() -> None:
        topic = await world.create("t", 2, {"retention.ms": "77"})
        assert world.metadata.topic("t") == topic
        for topic_partition in topic.topic_partitions():
            log = world.replicas.partition(topic_partition).log
            assert log.log_end_offset == 0
            assert log.config.retention_ms == 77
        await world.controller.delete_topic(topic)
        with pytest.raises(UnknownTopicOrPartitionError):
            world.replicas.partition(topic.topic_partitions()[0])

    run(world, scenario)
    assert world.coordinators.deleted == ["t"]
    assert world.metadata.topic("t") is None
    assert (world.stored_topics(), world.records.deleted_topics()) == ([], [])
    assert world.logs.all_logs() == {}


def test_a_topic_made_anew_is_not_deleted_for_the_one_before(world: World) -> None:
    async def scenario() -> None:
        before = await world.create("t")
        await world.controller.delete_topic(before)
        after = await world.create("t")
        with pytest.raises(UnknownTopicOrPartitionError):
            await world.controller.delete_topic(before)
        assert world.metadata.topic("t") == after

    run(world, scenario)


def test_a_topic_made_anew_has_its_own_configs(world: World) -> None:
    async def scenario() -> None:
        await world.controller.delete_topic(await world.create("t", 1, {"retention.ms": "77"}))
        topic = await world.create("t", 1, {"flush.ms": "5"})
        assert world.configs.of("t") == {"flush.ms": "5"}
        config = world.replicas.partition(topic.topic_partitions()[0]).log.config
        assert (config.retention_ms != 77, config.flush_ms) == (True, 5)

    run(world, scenario)


def test_producer_ids_are_given_to_brokers_that_are_there(world: World) -> None:
    async def scenario() -> None:
        epoch = world.records.brokers()[1].epoch
        allocate = world.controller.allocate_producer_ids
        assert await allocate(1, epoch) == range(1000)
        assert await allocate(1, epoch) == range(1000, 2000)
        with pytest.raises(StaleBrokerEpochError):
            await allocate(1, epoch - 1)
        with pytest.raises(BrokerIdNotRegisteredError):
            await allocate(2, epoch)
        await world.controller.resign()
        with pytest.raises(NotControllerError):
            await allocate(1, epoch)

    run(world, scenario)


def test_two_creations_at_once(world: World) -> None:
    async def scenario() -> None:
        world.gate = asyncio.Event()
        first = asyncio.ensure_future(world.create("t", 1))
        second = asyncio.ensure_future(world.create("t", 5))
        await until_it_blocks()
        world.gate.set()
        await first
        with pytest.raises(TopicAlreadyExistsError):
            await second

    run(world, scenario)
    assert len(present(world.metadata.topic("t")).partitions) == 1


def test_a_client_that_leaves_does_not_leave_half_a_topic(world: World) -> None:
    async def scenario() -> None:
        world.gate = asyncio.Event()
        request = asyncio.ensure_future(world.create("t"))
        await until_it_blocks()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        world.gate.set()
        await world.controller.stop()

    run(world, scenario)
    assert world.metadata.topic("t") is not None
    assert len(world.logs.all_logs()) == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KafkaStorageError("x")])
def test_no_space_for_logs_means_no_topic(
    world: World, monkeypatch: pytest.MonkeyPatch, error: OSError | KafkaStorageError
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    async def scenario() -> None:
        monkeypatch.setattr("broker.log.manager.write_topic_id", full)
        with pytest.raises(KafkaStorageError):
            await world.create("t")
        assert world.metadata.topic("t") is None
        assert (world.stored_topics(), world.records.deleted_topics()) == ([], [])
        monkeypatch.undo()
        topic = await world.create("t")
        assert world.metadata.topic("t") == topic

    run(world, scenario)


def test_a_topic_that_is_being_deleted_cannot_be_deleted_or_made(world: World) -> None:
    async def scenario() -> None:
        topic = await world.create("t")
        world.gate = asyncio.Event()
        deletion = asyncio.ensure_future(world.controller.delete_topic(topic))
        again = asyncio.ensure_future(world.controller.delete_topic(topic))
        made = asyncio.ensure_future(world.create("t"))
        await until_it_blocks()
        world.gate.set()
        await deletion
        with pytest.raises(UnknownTopicOrPartitionError):
            await again
        with pytest.raises(TopicAlreadyExistsError):
            await made
        await world.create("t")

    run(world, scenario)


def test_a_deletion_that_a_crash_interrupted_is_carried_out_at_the_next_start(
    tmp_path: Path,
) -> None:
    before = World(tmp_path)

    async def crash() -> None:
        topic = await before.create("t")
        before.records.mark_deleted(topic.name)

    run(before, crash)
    before.close()
    after = World(tmp_path)
    run(after, lambda: eventually(lambda: not after.records.deleted_topics()))
    assert after.stored_topics() == []
    assert after.logs.all_logs() == {}
    after.close()


def test_a_log_that_a_crash_left_unmade_is_made_at_the_next_start(tmp_path: Path) -> None:
    before = World(tmp_path)
    before.records.create_topic(new_topic("t", 2, 1), {"retention.ms": "77"})
    before.close()
    after = World(tmp_path)
    run(after, turns)
    log = after.replicas.partition(TopicPartition("t", 1)).log
    assert (log.log_end_offset, log.config.retention_ms) == (0, 77)
    after.close()


def test_each_start_begins_a_leader_epoch_where_no_other_replica_leads(tmp_path: Path) -> None:
    """What was lost in a crash, and written again, is told apart by the epoch."""
    epochs = []
    for start in range(3):
        world = World(tmp_path)

        async def scenario(is_first: bool = start == 0, world: World = world) -> None:
            if is_first:
                await world.create("t")
            epochs.append(world.replicas.partition(TopicPartition("t", 0)).leader_epoch)
            topic = world.metadata.topic("t")
            assert topic is not None
            assert topic.partitions[0].leader_epoch == epochs[-1]

        run(world, scenario)
        world.close()
    assert epochs == [0, 1, 2]


def test_copies_of_a_data_directory_go_on_in_epochs_of_their_own(tmp_path: Path) -> None:
    """Else other records at the same offsets, in the same epoch, would be taken for those that
    were written after a backup and are gone with what it replaced."""
    (tmp_path / "before").mkdir()
    before = World(tmp_path / "before")
    run(before, lambda: before.create("t", 20))
    before.close()
    epochs = []
    for copy in ("replaced", "copy"):
        shutil.copytree(tmp_path / "before", tmp_path / copy)
    clock = itertools.count(system_clock_ms(), 1000)
    for start in ("replaced", "copy", "copy"):
        world = World(tmp_path / start, ElectionRules(epoch_clock=clock.__next__))
        run(world, turns)
        topic = world.metadata.topic("t")
        assert topic is not None
        epochs += sorted({partition.leader_epoch for partition in topic.partitions})
        world.close()
    assert epochs[0] < epochs[1] < epochs[2]


def test_more_partitions(world: World) -> None:
    async def scenario() -> None:
        topic = await world.create("t", 2)
        kept = world.replicas.partition(topic.topic_partitions()[0])
        await world.controller.add_partitions("t", 5)
        grown = world.metadata.topic("t")
        assert (present(grown).topic_id, len(present(grown).partitions)) == (topic.topic_id, 5)
        for topic_partition in present(grown).topic_partitions():
            assert world.replicas.partition(topic_partition).log.log_end_offset == 0
        assert world.replicas.partition(topic.topic_partitions()[0]) is kept
        with pytest.raises(InvalidPartitionsError):
            await world.controller.add_partitions("t", 5)

    run(world, scenario)
    assert world.stored_topics() == [world.metadata.topic("t")]


def test_no_space_for_logs_means_no_partitions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(directory: Path, topic_id: UUID, files: Files) -> None:
        if directory.name == "t-2":
            raise OSError(28, "No space left on device")
        write_topic_id(directory, topic_id, files)

    async def scenario() -> None:
        topic = await world.create("t")
        monkeypatch.setattr("broker.log.manager.write_topic_id", full)
        with pytest.raises(KafkaStorageError):
            await world.controller.add_partitions("t", 4)
        assert world.metadata.topic("t") == topic
        assert world.stored_topics() == [topic]
        assert list(world.logs.all_logs()) == topic.topic_partitions()
        monkeypatch.undo()
        await world.controller.add_partitions("t", 4)
        assert len(world.logs.all_logs()) == 4

    run(world, scenario)


def test_partitions_are_taken_back_before_others_are_added(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a client whose turn comes while the first one's logs find no space."""

    def full(directory: Path, topic_id: UUID, files: Files) -> None:
        if directory.name == "t-2":
            monkeypatch.undo()
            raise OSError(28, "No space left on device")
        write_topic_id(directory, topic_id, files)

    async def scenario() -> None:
        await world.create("t")
        monkeypatch.setattr("broker.log.manager.write_topic_id", full)
        first = asyncio.ensure_future(world.controller.add_partitions("t", 3))
        second = asyncio.ensure_future(world.controller.add_partitions("t", 5))
        with pytest.raises(KafkaStorageError):
            await first
        await second

    run(world, scenario)
    assert len(present(world.metadata.topic("t")).partitions) == 5
    assert world.stored_topics() == world.metadata.topics()
    assert len(world.logs.all_logs()) == 5


def test_an_assignment_of_partitions_that_others_have_added_meanwhile_is_refused(
    world: World,
) -> None:
    async def scenario() -> None:
        await world.create("t")
        await world.controller.add_partitions("t", 2)
        with pytest.raises(InvalidReplicationAssignmentError):
            await world.controller.add_partitions("t", 3, [(1,), (1,)])

    run(world, scenario)
    assert len(present(world.metadata.topic("t")).partitions) == 2


def test_changes_of_one_topic_come_one_after_the_other(world: World) -> None:
    """None is lost, and none brings back what is deleted."""

    def setting(name: str) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
        return lambda configs: {**configs, name: "1000"}

    async def scenario() -> None:
        topic = await world.create("t")
        world.gate = asyncio.Event()
        changes = [
            asyncio.ensure_future(world.configs.set("t", setting("retention.ms"))),
            asyncio.ensure_future(world.controller.add_partitions("t", 2)),
            asyncio.ensure_future(world.configs.set("t", setting("segment.ms"))),
        ]
        await until_it_blocks()
        changes[0].cancel()  # its client leaves
        world.gate.set()
        await asyncio.gather(*changes[1:])
        assert world.configs.of("t") == {"retention.ms": "1000", "segment.ms": "1000"}
        assert len(present(world.metadata.topic("t")).partitions) == 2
        world.gate.clear()
        last = asyncio.ensure_future(world.configs.set("t", setting("flush.ms")))
        await until_it_blocks()
        deletion = asyncio.ensure_future(world.controller.delete_topic(topic))
        world.gate.set()
        await asyncio.gather(last, deletion)
        with pytest.raises(UnknownTopicOrPartitionError):
            await world.configs.set("t", setting("retention.ms"))

    run(world, scenario)
    assert world.stored_topics() == []
    assert world.logs.all_logs() == {}
