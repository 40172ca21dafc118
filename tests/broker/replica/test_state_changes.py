"""What a broker does when a controller tells it to."""

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from kafka.errors import (
    BrokerResponseError,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    NotLeaderForPartitionError,
    StaleBrokerEpochError,
    StaleControllerEpochError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster import znodes
from broker.cluster.cache import MetadataCache
from broker.cluster.config_records import ConfigRecords
from broker.cluster.control import LeaderAndIsr, Stamp, StoppedReplica, StopReplica, UpdateMetadata
from broker.cluster.entity_configs import EntityConfigs
from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import CONSUMER_OFFSETS, BrokerNode, TopicMetadata, new_topic
from broker.cluster.records import MetadataRecords, TopicMade
from broker.cluster.store import StoreConnectionError
from broker.config.broker import BrokerConfig
from broker.log.manager import LogManager
from broker.replica.delayed import DelayedFetch
from broker.replica.other_logs import OtherLogs
from broker.replica.partition import Isolation
from broker.replica.purgatory import Purgatory
from broker.replica.state_changes import StateChanges
from tests.broker.log.batches import batch
from tests.support.coordinators import ToldCoordinators
from tests.support.patience import turns
from tests.support.replicas import no_fetchers, replicas_alone

_T = TypeVar("_T")

ME = BrokerNode(1, "host", 9092)
TOPIC = new_topic("t", 2, 1)
PLACES = TOPIC.topic_partitions()


async def at_once(function: Callable[[], _T]) -> _T:
    return function()


class Broker:
    """Its replicas and its metadata, and what it is told."""

    def __init__(self, directory: Path) -> None:
        self.store = LocalStore(directory)
        records = self.records = MetadataRecords(self.store)
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
            Purgatory(lambda delay, run: asyncio.get_running_loop().call_later(delay, run)),
        )
        self.coordinators = ToldCoordinators()
        self.configs, self.fetchers = configs, no_fetchers()
        self._changes = StateChanges(
            1,
            self.metadata,
            configs,
            self.replicas,
            self.fetchers,
            at_once,
            self.coordinators,
            OtherLogs(self.logs, records),
        )
        self.registered = self._changes.registered
        self.session_lost = self._changes.session_lost

    def obey(
        self, request: LeaderAndIsr | StopReplica | UpdateMetadata
    ) -> Mapping[TopicPartition, BrokerResponseError]:
        return asyncio.run(self.obeys(request))

    async def obeys(
        self, request: LeaderAndIsr | StopReplica | UpdateMetadata, connection: int = 0
    ) -> Mapping[TopicPartition, BrokerResponseError]:
        return await self._changes.obey(request, connection)

    def lead(
        self, epoch: int, partitions: dict[Any, Any] | None = None, broker_epoch: int = 1
    ) -> Mapping[TopicPartition, BrokerResponseError]:
        return self.obey(to_lead(epoch, partitions, broker_epoch))


def to_lead(
    epoch: int, partitions: dict[Any, Any] | None = None, broker_epoch: int = 1
) -> LeaderAndIsr:
    states = partitions or dict(zip(PLACES, TOPIC.partitions, strict=True))
    ids = {TOPIC.name: TOPIC.topic_id}
    stamp = Stamp(1, epoch, broker_epoch)
    return LeaderAndIsr(stamp, states, ids, frozenset(states), [ME])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    made.registered(1)
    yield made
    made.logs.close()
    made.store.close()


def test_partitions_are_served_by_their_leader_alone(broker: Broker) -> None:
    states = dict(zip(PLACES, TOPIC.partitions, strict=True))
    states[PLACES[1]] = replace(states[PLACES[1]], leader=2, replicas=(2, 1))
    assert broker.lead(5, states) == {}
    assert broker.replicas.partition(PLACES[0]).leader_epoch == 0
    with pytest.raises(NotLeaderForPartitionError):
        broker.replicas.partition(PLACES[1])
    assert set(broker.logs.all_logs()) == set(PLACES)


IDS = {TOPIC.name: TOPIC.topic_id}
STATES = dict(zip(PLACES, TOPIC.partitions, strict=True))
ELSEWHERE = {place: replace(state, leader=2, leader_epoch=9) for place, state in STATES.items()}
REQUESTS = {
    "LeaderAndIsr": lambda stamp: LeaderAndIsr(stamp, ELSEWHERE, IDS, frozenset(), [ME]),
    "StopReplica": lambda stamp: StopReplica(
        stamp, dict.fromkeys(PLACES, StoppedReplica(9, delete=True))
    ),
    "UpdateMetadata": lambda stamp: UpdateMetadata(stamp, [ME], {}, {}),
}


@pytest.mark.parametrize("request_at", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize(
    ("stamp", "error"),
    [(Stamp(2, 4, 1), StaleControllerEpochError), (Stamp(1, 5, 0), StaleBrokerEpochError)],
)
def test_a_controller_of_the_past_is_not_obeyed(
    broker: Broker,
    request_at: Callable[[Stamp], LeaderAndIsr | StopReplica | UpdateMetadata],
    stamp: Stamp,
    error: type[Exception],
) -> None:
    """Nor is what one of today says to this broker as it was before it registered anew."""
    broker.lead(5)
    with pytest.raises(error):
        broker.obey(request_at(stamp))
    assert set(broker.logs.all_logs()) == set(PLACES)
    assert broker.metadata.brokers == []
    assert [broker.replicas.partition(place).leader_epoch for place in PLACES] == [0, 0]
    broker.obey(request_at(Stamp(2, 6, 1)))
    with pytest.raises(StaleControllerEpochError):
        broker.lead(5)


def test_what_is_older_than_what_is_known_of_a_partition_is_passed_over(broker: Broker) -> None:
    newer = replace(TOPIC.partitions[0], leader_epoch=3, partition_epoch=7)
    assert broker.lead(5, {PLACES[0]: newer}) == {}
    older = replace(newer, leader_epoch=2, partition_epoch=8, leader=2)
    failures = broker.lead(5, {PLACES[0]: older, PLACES[1]: TOPIC.partitions[1]})
    assert {place: type(error) for place, error in failures.items()} == {
        PLACES[0]: StaleControllerEpochError
    }
    assert broker.replicas.partition(PLACES[1]).is_led
    # Of the same leader epoch: the ISR was another one then.
    assert broker.lead(5, {PLACES[0]: replace(newer, partition_epoch=6, isr=(1, 2))}) == {}
    partition = broker.replicas.partition(PLACES[0])
    assert (partition.leader_epoch, partition.partition_epoch) == (3, 7)
    assert partition.isr == newer.isr


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize(
    ("leader_epoch", "is_obeyed"),
    [(2, False), (3, True), (4, True), (-1, True), (-2, True)],
    ids=["older", "equal", "newer", "none", "of a deletion"],
)
def test_a_replica_stops_unless_it_was_meant_in_an_epoch_before(
    broker: Broker, leader_epoch: int, is_obeyed: bool, delete: bool
) -> None:
    place = PLACES[0]
    broker.lead(5, {place: replace(STATES[place], leader_epoch=3)})
    gone = TopicPartition("gone", 0)
    stopped = dict.fromkeys((place, gone), StoppedReplica(leader_epoch, delete))
    failures = broker.obey(StopReplica(Stamp(1, 5, 1), stopped))
    assert {each: type(error) for each, error in failures.items()} == (
        {} if is_obeyed else {place: FencedLeaderEpochError}
    )
    assert (broker.replicas.kept(place) is None) == is_obeyed
    assert broker.replicas.has_log(place) != (is_obeyed and delete)


ANEW = new_topic("t", 1, 1)


def to_lead_anew() -> LeaderAndIsr:
    """Of a topic of the same name."""
    return LeaderAndIsr(
        Stamp(1, 5, 1),
        {PLACES[0]: ANEW.partitions[0]},
        {"t": ANEW.topic_id},
        frozenset(PLACES),
        [ME],
    )


def is_of_another_topic(failures: Mapping[TopicPartition, BrokerResponseError]) -> bool:
    return [(each, type(error)) for each, error in failures.items()] == [
        (PLACES[0], InconsistentTopicIdError)
    ]


def test_a_topic_made_anew_gets_nothing_of_the_log_of_the_one_before(broker: Broker) -> None:
    """Whose deletion this broker has slept through; nor is that given up before it is told so. Who
    waits for its records goes on to do so."""
    place = PLACES[0]
    broker.lead(5, {place: replace(STATES[place], leader_epoch=7, partition_epoch=9)})
    before = broker.replicas.partition(place)
    before.log.append(batch(), 7)
    woken = []

    async def scenario() -> None:
        delayed = DelayedFetch([place], 1000, Isolation.HIGH_WATERMARK)
        broker.replicas.wait(delayed, 60_000, lambda: woken.append(place))
        assert is_of_another_topic(await broker.obeys(to_lead_anew()))
        assert woken == []
        assert broker.replicas.partition(place) is before
        stop = StopReplica(Stamp(1, 5, 1), {place: StoppedReplica(-2, delete=True)})
        assert await broker.obeys(stop) == {}

    asyncio.run(scenario())
    assert woken == [place]
    assert (before.is_led, before.has_followers) == (False, False)
    assert broker.obey(to_lead_anew()) == {}
    after = broker.replicas.partition(place)
    assert (after.topic_id, after.leader_epoch) == (ANEW.topic_id, 0)
    assert after.log.log_end_offset == after.high_watermark == 0
    assert broker.logs.topic_id(place) == ANEW.topic_id
    assert broker.obey(to_lead_anew()) == {}
    assert broker.replicas.partition(place) is after


def test_a_broker_that_was_started_anew_keeps_the_log_that_it_has(broker: Broker) -> None:
    """Whose topic it learns by it. Which of two topics is the older one it cannot know."""
    place = PLACES[0]
    broker.logs.create(place, TOPIC.topic_id).append(batch(), 7)
    for _ in range(2):
        assert is_of_another_topic(broker.obey(to_lead_anew()))
        assert broker.replicas.kept(place) is None
    assert broker.lead(5, {place: STATES[place]}) == {}
    assert broker.replicas.partition(place).log.log_end_offset == 1
    assert is_of_another_topic(broker.obey(to_lead_anew()))


def test_a_log_that_does_not_say_whose_it_is_is_the_first_topics_that_has_its_name(
    broker: Broker,
) -> None:
    place = PLACES[0]
    assert broker.logs.create(place, None).log_end_offset == 0
    assert broker.logs.topic_id(place) is None
    assert broker.obey(to_lead_anew()) == {}
    assert broker.logs.topic_id(place) == ANEW.topic_id
    broker.replicas.stop(place)
    assert is_of_another_topic(broker.lead(5, {place: STATES[place]}))


LATER_MS, BEFORE_MS = (int(time.time() * 1000) + sign * 86_400_000 for sign in (1, -1))


@pytest.mark.parametrize("is_served", [False, True])
@pytest.mark.parametrize(
    ("made_ms", "leader", "created", "makes_place"),
    [
        (LATER_MS, 1, True, True),
        (LATER_MS, 2, False, True),
        (LATER_MS, 1, False, False),
        (BEFORE_MS, 2, True, False),
    ],
    ids=["to lead a new one", "to follow", "to lead what others had", "of an older topic"],
)
def test_the_log_of_a_topic_that_was_deleted_makes_place(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    made_ms: int,
    leader: int,
    created: bool,
    makes_place: bool,
    is_served: bool,
) -> None:
    """As where its replica moved to others while this broker was down, and the topic was made anew
    since. The log stays, under another name."""
    place = PLACES[0]
    if is_served:
        broker.lead(5, {place: STATES[place]})
    else:
        broker.logs.create(place, TOPIC.topic_id)
    log = broker.logs.all_logs()[place]
    log.append(batch(), 7)
    monkeypatch.setattr(
        broker.records, "topic_made", lambda name: TopicMade(ANEW.topic_id, made_ms)
    )
    state = replace(ANEW.partitions[0], replicas=(1, 2), leader=leader)
    new = frozenset((place,) if created else ())
    asked = LeaderAndIsr(Stamp(1, 5, 1), {place: state}, {"t": ANEW.topic_id}, new, [])
    failures = broker.obey(asked)
    assert is_of_another_topic(failures) != makes_place
    assert (broker.logs.topic_id(place) == ANEW.topic_id) == makes_place
    assert log.log_end_offset == 1
    assert log.directory.is_dir()
    assert (re.fullmatch(r"t-0\.[0-9a-f]{32}-stray", log.directory.name) is None) != makes_place
    if makes_place:
        kept = broker.replicas.kept(place)
        assert kept is not None
        assert kept.is_led == (leader == 1)
        assert (kept.topic_id, kept.log.log_end_offset) == (ANEW.topic_id, 0)
        assert broker.obey(asked) == {}
        assert broker.replicas.kept(place) is kept


def test_the_log_of_another_topic_is_not_deleted_with_the_one_that_has_its_name(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever says so: StopReplica names no topic id."""
    log = broker.logs.create(PLACES[0], uuid4())
    log.append(batch(), 7)
    unknown = broker.logs.create(PLACES[1], None)
    going = dict.fromkeys(PLACES, StoppedReplica(-2, delete=True))
    assert broker.obey(StopReplica(Stamp(1, 5, 1), going)) == {}
    assert broker.logs.all_logs() == {}
    assert log.directory.name.endswith("-stray")
    assert log.directory.is_dir()
    assert unknown.directory.name.endswith("-delete")


def test_what_others_keep_is_served_no_more(broker: Broker) -> None:
    """A broker that keeps nothing any more hears nothing else when it is back."""
    broker.lead(5)
    moved, state = PLACES[0], replace(STATES[PLACES[0]], replicas=(2, 3), leader=2, leader_epoch=1)
    told = {moved: state, PLACES[1]: STATES[PLACES[1]]}
    broker.obey(UpdateMetadata(Stamp(1, 5, 1), [ME], told, {"t": uuid4()}))
    assert broker.replicas.kept(moved) is not None
    broker.obey(UpdateMetadata(Stamp(1, 5, 1), [ME], told, IDS))
    assert broker.replicas.kept(moved) is None
    assert broker.replicas.partition(PLACES[1]).is_led
    assert set(broker.logs.all_logs()) == set(PLACES)


@pytest.mark.parametrize("request_at", REQUESTS.values(), ids=REQUESTS.keys())
def test_what_a_controller_has_sent_again_by_another_connection_is_not_obeyed_late(
    broker: Broker, request_at: Callable[[Stamp], LeaderAndIsr | StopReplica | UpdateMetadata]
) -> None:
    """A network may keep what was sent by the one before: meanwhile there may be another topic of
    that name, with another log."""
    epoch = 5
    asyncio.run(broker.obeys(to_lead(epoch), 7))
    with pytest.raises(StaleControllerEpochError):
        asyncio.run(broker.obeys(request_at(Stamp(1, epoch, 1)), 6))
    assert set(broker.logs.all_logs()) == set(PLACES)
    assert broker.metadata.brokers == []
    assert all(broker.replicas.partition(place).is_led for place in PLACES)
    asyncio.run(broker.obeys(to_lead(epoch), 7))
    asyncio.run(broker.obeys(request_at(Stamp(1, epoch, 1)), 8))
    asyncio.run(broker.obeys(request_at(Stamp(2, epoch + 1, 1)), 3))  # the next controller's
    asyncio.run(broker.obeys(request_at(Stamp(2, epoch + 1, 1)), 3))


def test_what_was_meant_for_the_broker_before_is_not_obeyed(tmp_path: Path) -> None:
    """A controller that has not seen the one before go tells of changes at this one's address, as
    soon as it listens there: they are not all that there is."""
    broker = Broker(tmp_path)
    state, ids = {PLACES[1]: TOPIC.partitions[1]}, {TOPIC.name: TOPIC.topic_id}

    async def restarts() -> None:
        stale = asyncio.create_task(broker.obeys(UpdateMetadata(Stamp(1, 5, 7), [ME], state, ids)))
        await turns()
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


def test_a_broker_takes_records_when_it_is_told_what_it_leads_in_its_session(
    broker: Broker,
) -> None:
    """What is said to it as it was before may come at any time."""
    replicas = broker.replicas
    assert not replicas.takes_appends
    broker.lead(5)
    assert replicas.takes_appends
    broker.session_lost()
    assert not replicas.takes_appends
    broker.lead(5)
    assert not replicas.takes_appends
    broker.registered(2)
    assert not replicas.takes_appends
    broker.lead(5, broker_epoch=2)
    assert replicas.takes_appends
    broker.session_lost()
    broker.lead(5, broker_epoch=3)  # it has not heard yet that it is registered
    assert not replicas.takes_appends
    broker.registered(3)
    assert replicas.takes_appends
    broker.session_lost()
    broker.registered(1)  # with a ZooKeeper that came back from an older copy
    assert not replicas.takes_appends
    broker.lead(5, broker_epoch=1)
    assert replicas.takes_appends


def test_what_has_moved_while_a_broker_was_away_is_not_its_own_any_more(broker: Broker) -> None:
    """It was not reached when it was to stop; what it hears first is about all that is left."""
    broker.lead(5)
    broker.session_lost()
    broker.registered(2)
    for place in PLACES:
        broker.lead(5, {place: STATES[place]}, broker_epoch=2)
        assert broker.replicas.partition(PLACES[0]).is_led
        assert (broker.replicas.kept(PLACES[1]) is None) == (place == PLACES[0])
        assert set(broker.logs.all_logs()) == set(PLACES)


def test_what_was_deleted_while_a_broker_had_no_session_is_gone_for_its_clients(
    broker: Broker,
) -> None:
    """Nobody has said so to it, nor does afterwards. What is left out and there is not gone."""
    left_out, going, gone = others = [new_topic(name, 1, 1) for name in ("u", "v", "w")]
    for topic in others:
        broker.records.create_topic(topic, {})
    broker.obey(told_of(1, TOPIC, *others))
    broker.session_lost()
    broker.records.forget_topic(gone)
    broker.records.mark_deleted(going.name)
    broker.obey(told_of(1, TOPIC))  # by a controller that does not know yet
    assert broker.metadata.topics() == [TOPIC, *others]
    broker.registered(2)
    broker.obey(told_of(2))
    assert broker.metadata.topics() == [TOPIC, left_out]
    assert broker.metadata.topic_by_id(gone.topic_id) is None
    assert sorted(broker.coordinators.deleted) == [going.name, gone.name]


@pytest.mark.parametrize(("broker_epoch", "controller_epoch"), [(2, 5), (1, 6)])
def test_partitions_that_were_taken_back_unheard_are_gone_for_its_clients(
    broker: Broker, broker_epoch: int, controller_epoch: int
) -> None:
    """As a broker had no session, or the controller was lost before it said so."""
    grown = replace(TOPIC, partitions=TOPIC.partitions + new_topic("t", 2, 1).partitions)
    broker.obey(told_of(1, grown))
    assert broker.metadata.topics() == [grown]
    broker.obey(told_of(1, TOPIC))  # some of what there is
    assert broker.metadata.topics() == [grown]
    broker.registered(broker_epoch)
    broker.obey(told_of(broker_epoch, TOPIC, controller_epoch=controller_epoch))
    assert broker.metadata.topics() == [TOPIC]
    assert broker.coordinators.deleted == []


def told_of(broker_epoch: int, *topics: TopicMetadata, controller_epoch: int = 5) -> UpdateMetadata:
    partitions = {
        place: state
        for topic in topics
        for place, state in zip(topic.topic_partitions(), topic.partitions, strict=True)
    }
    ids = {topic.name: topic.topic_id for topic in topics}
    return UpdateMetadata(Stamp(1, controller_epoch, broker_epoch), [ME], partitions, ids)


def test_what_the_store_does_not_answer_leaves_everything_as_it_is(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else partitions that it was not about would be followed no more, and led as before."""
    followed = []

    async def remove(topic_partitions: Collection[TopicPartition]) -> None:
        followed.append(set(topic_partitions))

    def lost(name: str) -> None:
        raise StoreConnectionError("/")

    broker.lead(5, {PLACES[0]: TOPIC.partitions[0]})
    monkeypatch.setattr(broker.fetchers, "remove", remove)
    with monkeypatch.context() as patched:
        patched.setattr(broker.configs, "refresh", lost)
        with pytest.raises(StoreConnectionError):
            broker.lead(5)
        assert followed == []
        assert set(broker.logs.all_logs()) == {PLACES[0]}
    assert broker.lead(5) == {}
    assert followed == [set(PLACES)]


def test_a_replica_that_stops_keeps_its_log_unless_that_goes_too(broker: Broker) -> None:
    broker.lead(5)
    stop = StopReplica(Stamp(1, 5, 1), {PLACES[0]: StoppedReplica(0, delete=False)})
    assert broker.obey(stop) == {}
    with pytest.raises(UnknownTopicOrPartitionError):
        broker.replicas.partition(PLACES[0])
    assert set(broker.logs.all_logs()) == set(PLACES)
    assert broker.obey(replace(stop, partitions={PLACES[0]: StoppedReplica(0, delete=True)})) == {}
    assert set(broker.logs.all_logs()) == {PLACES[1]}


def test_coordinators_hear_of_their_partitions_once_all_are_known(broker: Broker) -> None:
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
