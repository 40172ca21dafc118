"""What a broker does when a controller tells it to."""

import asyncio
from dataclasses import replace

import pytest
from kafka.errors import (
    NotLeaderForPartitionError,
    StaleBrokerEpochError,
    StaleControllerEpochError,
    UnknownTopicOrPartitionError,
)

from broker.cluster import znodes
from broker.cluster.cache import MetadataCache
from broker.cluster.config_records import ConfigRecords
from broker.cluster.control import (
    LeaderAndIsr,
    Stamp,
    StoppedReplica,
    StopReplica,
    UpdateMetadata,
)
from broker.cluster.entity_configs import EntityConfigs
from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import CONSUMER_OFFSETS, BrokerNode, new_topic
from broker.cluster.records import MetadataRecords
from broker.config.broker import BrokerConfig
from broker.log.manager import LogManager
from broker.replica.purgatory import Purgatory
from broker.replica.state_changes import StateChanges
from tests.support.coordinators import ToldCoordinators
from tests.support.replicas import no_fetchers, replicas_alone

ME = BrokerNode(1, "host", 9092)
TOPIC = new_topic("t", 2, 1)
PLACES = TOPIC.topic_partitions()


async def at_once(function):
    return function()


class Broker:
    """Its replicas and its metadata, and what it is told."""

    def __init__(self, directory) -> None:
        self.store = LocalStore(directory)
        records = MetadataRecords(self.store)
        records.prepare()
        records.become_controller(1)
        records.create_topic(TOPIC, {})
        configs = EntityConfigs(
            znodes.TOPIC_ENTITIES, ConfigRecords(self.store, tells_others=False), at_once
        )
        config = BrokerConfig.from_properties({"log.dirs": str(directory)})
        self.logs = LogManager(config, configs.of)
        self.logs.open()
        self.metadata = MetadataCache("cluster", ME)
        self.replicas = replicas_alone(
            self.logs,
            Purgatory(lambda delay, run: asyncio.TimerHandle),  # type: ignore[arg-type,return-value]
        )
        self.coordinators = ToldCoordinators()
        self._changes = StateChanges(
            1, self.metadata, configs, self.replicas, no_fetchers(), at_once, self.coordinators
        )
        self.registered = self._changes.registered

    def obey(self, request):
        return asyncio.run(self.obeys(request))

    async def obeys(self, request):
        return await self._changes.obey(request)

    def lead(self, epoch, partitions=None):
        states = partitions or dict(zip(PLACES, TOPIC.partitions, strict=True))
        ids = {TOPIC.name: TOPIC.topic_id}
        stamp = Stamp(1, epoch, 1)
        return self.obey(LeaderAndIsr(stamp, states, ids, frozenset(states), [ME]))


@pytest.fixture
def broker(tmp_path):
    made = Broker(tmp_path)
    made.registered(1)
    yield made
    made.logs.close()
    made.store.close()


def test_partitions_are_served_by_their_leader_alone(broker):
    states = dict(zip(PLACES, TOPIC.partitions, strict=True))
    states[PLACES[1]] = replace(states[PLACES[1]], leader=2, replicas=(2, 1))
    assert broker.lead(5, states) == {}
    assert broker.replicas.partition(PLACES[0]).leader_epoch == 0
    with pytest.raises(NotLeaderForPartitionError):
        broker.replicas.partition(PLACES[1])
    assert set(broker.logs.all_logs()) == set(PLACES)


def test_a_controller_of_the_past_is_not_obeyed(broker):
    broker.lead(5)
    stopped = dict.fromkeys(PLACES, StoppedReplica(0, delete=True))
    for request in (
        StopReplica(Stamp(2, 4, 1), stopped),
        UpdateMetadata(Stamp(2, 4, 1), [ME], {}, {}),
    ):
        with pytest.raises(StaleControllerEpochError):
            broker.obey(request)
    assert set(broker.logs.all_logs()) == set(PLACES)
    assert broker.metadata.brokers == []


def test_what_is_older_than_what_is_known_of_a_partition_is_passed_over(broker):
    newer = replace(TOPIC.partitions[0], leader_epoch=3, partition_epoch=7)
    assert broker.lead(5, {PLACES[0]: newer}) == {}
    older = replace(newer, leader_epoch=2, partition_epoch=6, leader=2)
    broker.lead(5, {PLACES[0]: older})
    partition = broker.replicas.partition(PLACES[0])
    assert (partition.leader_epoch, partition.partition_epoch) == (3, 7)


def test_what_was_meant_for_the_broker_before_is_not_obeyed(tmp_path):
    """A controller that has not seen the one before go tells of changes at this one's address, as
    soon as it listens there: they are not all that there is."""
    broker = Broker(tmp_path)
    state, ids = {PLACES[1]: TOPIC.partitions[1]}, {TOPIC.name: TOPIC.topic_id}

    async def restarts():
        stale = asyncio.create_task(broker.obeys(UpdateMetadata(Stamp(1, 5, 7), [ME], state, ids)))
        await asyncio.sleep(0)
        assert not stale.done()
        broker.registered(8)
        with pytest.raises(StaleBrokerEpochError):
            await stale
        assert broker.metadata.topics() == []
        await broker.obeys(UpdateMetadata(Stamp(1, 5, 8), [ME], {}, {}))
        assert broker.metadata.brokers == [ME]

    asyncio.run(restarts())
    broker.logs.close()
    broker.store.close()


def test_a_replica_that_stops_keeps_its_log_unless_that_goes_too(broker):
    broker.lead(5)
    stop = StopReplica(Stamp(1, 5, 1), {PLACES[0]: StoppedReplica(0, delete=False)})
    assert broker.obey(stop) == {}
    with pytest.raises(UnknownTopicOrPartitionError):
        broker.replicas.partition(PLACES[0])
    assert set(broker.logs.all_logs()) == set(PLACES)
    assert broker.obey(replace(stop, partitions={PLACES[0]: StoppedReplica(0, delete=True)})) == {}
    assert set(broker.logs.all_logs()) == {PLACES[1]}


def test_coordinators_hear_of_their_partitions_once_all_are_known(broker):
    """By how many there are a coordinator knows which keys it has."""
    offsets = new_topic(CONSUMER_OFFSETS, 1, 1)
    (place,) = offsets.topic_partitions()
    states, ids = {place: offsets.partitions[0]}, {CONSUMER_OFFSETS: offsets.topic_id}
    stamp = Stamp(1, 5, 1)
    broker.obey(LeaderAndIsr(stamp, states, ids, frozenset(), [ME]))
    assert broker.coordinators.led == []
    broker.obey(UpdateMetadata(stamp, [ME], states, ids))
    assert broker.coordinators.led == [(place, 0)]
    broker.obey(UpdateMetadata(stamp, [ME], states, ids))
    assert broker.coordinators.led == [(place, 0)]
    broker.obey(StopReplica(stamp, {place: StoppedReplica(0, delete=False)}))
    assert broker.coordinators.resigned == [place]
    broker.lead(5)  # an ordinary topic is none of theirs
    broker.obey(UpdateMetadata(stamp, [ME], {}, {}))
    assert len(broker.coordinators.led) == 1
