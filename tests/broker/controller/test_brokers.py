"""Brokers that come, go, stop and are started anew: what becomes of their partitions, and who is
told."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import (
    BrokerNotAvailableError,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    KafkaStorageError,
    NotControllerError,
    StaleBrokerEpochError,
    StaleControllerEpochError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster import znodes
from broker.cluster.control import (
    NO_LEADER,
    AlterPartition,
    IsrChange,
    LeaderAndIsr,
    StopReplica,
    UpdateMetadata,
)
from broker.cluster.metadata import BrokerNode, TopicMetadata
from broker.cluster.store import ANY_VERSION, Create, Delete, Set
from broker.controller import controller
from tests.broker.controller.scripted import P0, P1, ScriptedCluster
from tests.support.patience import EVENT_S, eventually, turns

EVERYBODY = set(range(1, 6))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ScriptedCluster]:
    made = ScriptedCluster(tmp_path)
    yield made
    made.store.close()


def told_clients(cluster: ScriptedCluster) -> dict[int, tuple[set[Any], Any]]:
    """What each broker was told last to tell its clients: who is there, and who leads P0."""
    found: dict[int, tuple[Any, Any]] = {}
    for node_id, request in cluster.told:
        if isinstance(request, UpdateMetadata):
            there, leader = found.get(node_id, (None, None))
            there = {broker.node_id for broker in request.brokers}
            if P0 in request.partitions:
                leader = request.partitions[P0].leader, request.partitions[P0].isr
            found[node_id] = there, leader
    return found


def test_all_brokers_are_told_who_is_there_and_who_leads(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        await cluster.lose(1)
        there = EVERYBODY - {1}
        assert told_clients(cluster) == dict.fromkeys(there, (there, (2, (2,))))
        await cluster.lose(5)  # which keeps nothing
        there = EVERYBODY - {1, 5}
        assert told_clients(cluster)[3] == (there, (2, (2,)))
        cluster.told.clear()
        await cluster.find(1)
        there = EVERYBODY - {5}
        assert {node_id: who for node_id, (who, _) in told_clients(cluster).items()} == (
            dict.fromkeys(there, there)
        )
        assert told_clients(cluster)[1] == (there, (2, (2,)))
        assert cluster.followed().keys() == {1}
        await cluster.lose(2)
        assert told_clients(cluster)[4] == (there - {2}, (NO_LEADER, (2,)))

    asyncio.run(scenario())


def test_topics_and_partitions_are_made_while_a_replica_is_away(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.controller.start()
        await cluster.lose(2)
        await cluster.controller.create_topic("t", [(2, 1), (1, 2)], {})
        for place in (P0, P1):
            state = cluster.state(place)
            assert (state.leader, state.isr, state.leader_epoch) == (1, (1,), 0)
        await cluster.controller.add_partitions("t", 4, [(2, 3), (2,)])
        third, fourth = cluster.records.cluster().topics[0].partitions[2:]
        assert (third.leader, third.isr) == (3, (3,))
        assert (fourth.leader, fourth.isr) == (NO_LEADER, (2,))
        assert cluster.followed(P0).keys() == {1}
        await cluster.find(2)
        assert cluster.followed(P0)[2] == (cluster.state(P0), False)
        assert cluster.records.cluster().topics[0].partitions[3].leader == 2
        await cluster.in_sync(1, 2)

    asyncio.run(scenario())


def test_a_broker_that_never_answers_keeps_no_others_from_leading(cluster: ScriptedCluster) -> None:
    """It was killed when partitions were added to a topic of its: they are there without it."""

    async def scenario() -> None:
        await cluster.start()
        cluster.silent = {1}
        adding = asyncio.ensure_future(cluster.controller.add_partitions("t", 3, [(1, 2)]))
        await eventually(lambda: len(cluster.records.cluster().topics[0].partitions) == 3)
        await asyncio.wait_for(cluster.lose(1), EVENT_S)
        await asyncio.wait_for(adding, EVENT_S)
        for place in (P0, P1, TopicPartition("t", 2)):
            assert cluster.state(place).leader == 2

    asyncio.run(scenario())


def test_partitions_are_added_while_a_broker_holds_up_those_of_another_topic(
    cluster: ScriptedCluster,
) -> None:
    """It is there, and does not answer: its connection with the controller is cut, say."""

    async def scenario() -> None:
        await cluster.start()
        await cluster.controller.create_topic("other", [(3,)], {})
        cluster.silent = {1}
        adding = asyncio.ensure_future(cluster.controller.add_partitions("t", 3, [(1, 2)]))
        await eventually(lambda: cluster.unanswered)
        cluster.silent = set()
        await asyncio.wait_for(cluster.controller.add_partitions("other", 2, [(4,)]), EVENT_S)
        assert not adding.done()
        await cluster.lose(1)
        await asyncio.wait_for(adding, EVENT_S)

    asyncio.run(scenario())


def test_a_broker_that_is_started_anew_between_two_looks_has_been_gone(
    cluster: ScriptedCluster,
) -> None:
    """It has lost what it had not written to its disk; it is told as one that knows nothing."""

    async def scenario() -> None:
        await cluster.start()
        before = cluster.records.brokers()[1].epoch
        cluster.store.commit([Delete(znodes.broker(1), ANY_VERSION)])
        cluster.records.register(BrokerNode(1, "elsewhere", 9999))
        await cluster.controller.brokers_changed()
        after = cluster.records.brokers()[1].epoch
        assert after > before
        state = cluster.state()
        assert (state.leader, state.leader_epoch, state.isr) == (2, 1, (2,))
        first = [request for node_id, request in cluster.told if node_id == 1]
        assert [type(request) for request in first] == [
            UpdateMetadata,
            LeaderAndIsr,
            UpdateMetadata,
        ]
        assert {request.stamp.broker_epoch for request in first} == {after}
        assert first[0].partitions == first[1].partitions == {P0: state, P1: cluster.state(P1)}
        assert isinstance(first[0], UpdateMetadata)
        assert BrokerNode(1, "elsewhere", 9999) in first[0].brokers
        # What it asked for in its life before is refused.
        with pytest.raises(StaleBrokerEpochError):
            await cluster.controller.shut_down(1, before)
        with pytest.raises(StaleBrokerEpochError):
            await cluster.controller.alter_partitions(AlterPartition(1, before, []))
        cluster.told.clear()
        await cluster.controller.brokers_changed()  # nothing is new
        assert cluster.told == []

    asyncio.run(scenario())


def test_the_only_replica_that_is_started_anew_leads_again_in_a_new_epoch(
    cluster: ScriptedCluster,
) -> None:
    async def scenario() -> None:
        await cluster.start((1,))
        cluster.store.commit([Delete(znodes.broker(1), ANY_VERSION)])
        cluster.records.register(BrokerNode(1, "host", 9091))
        await cluster.controller.brokers_changed()
        state = cluster.state()
        assert (state.leader, state.isr) == (1, (1,))
        assert state.leader_epoch > 0
        assert cluster.followed() == {1: (state, False)}

    asyncio.run(scenario())


def test_a_follower_that_was_started_anew_before_a_controller_took_over_has_been_gone(
    cluster: ScriptedCluster,
) -> None:
    """It may have lost what it had, and is in sync when it has that again."""

    async def scenario() -> None:
        await cluster.start((1, 2, 3))
        cluster.store.commit([Delete(znodes.broker(2), ANY_VERSION)])
        cluster.records.register(BrokerNode(2, "host", 9092))
        await cluster.fail_over()
        state = cluster.state()
        assert (state.leader, state.leader_epoch, state.isr) == (1, 1, (1, 3))
        await cluster.in_sync(1, 3, 2)
        await cluster.fail_over()
        assert cluster.state().isr == (1, 3, 2)

    asyncio.run(scenario())


async def shut_down(cluster: ScriptedCluster, node_id: int) -> list[TopicPartition]:
    epoch = cluster.records.brokers()[node_id].epoch
    return await cluster.controller.shut_down(node_id, epoch)


def test_others_lead_before_a_broker_stops(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start((1, 2, 3))
        assert await shut_down(cluster, 1) == []
        state = cluster.state()
        assert (state.leader, state.leader_epoch, state.isr) == (2, 1, (2, 3))
        assert cluster.followed().keys() == {2, 3}
        stopped = [
            (node_id, set(request.partitions))
            for node_id, request in cluster.told
            if isinstance(request, StopReplica)
        ]
        assert stopped == [(1, {P0, P1})]
        assert cluster.deleted() == []
        assert told_clients(cluster) == dict.fromkeys(EVERYBODY, (EVERYBODY, (2, (2, 3))))
        # Where it only followed it is in sync no more.
        assert await shut_down(cluster, 3) == []
        state = cluster.state()
        assert (state.leader, state.leader_epoch, state.isr) == (2, 2, (2,))

    asyncio.run(scenario())


def test_who_is_about_to_stop_is_taken_into_no_isr(cluster: ScriptedCluster) -> None:
    """It fetches a last time, say, after it has been taken out."""

    async def scenario() -> None:
        await cluster.start((1, 2))
        await shut_down(cluster, 2)
        state, (topic,) = cluster.state(), cluster.records.cluster().topics
        change = IsrChange(topic.topic_id, 0, state.leader_epoch, (1, 2), state.partition_epoch)
        epoch = cluster.records.brokers()[1].epoch
        asked = AlterPartition(1, epoch, [change])
        (answer,) = await cluster.controller.alter_partitions(asked)
        assert isinstance(answer, IneligibleReplicaError)
        assert cluster.state() == state
        # Started again it may be in sync.
        await cluster.lose(2)
        await cluster.find(2)
        (answer,) = await cluster.controller.alter_partitions(asked)
        assert answer == replace(state, isr=(1, 2), partition_epoch=state.partition_epoch + 1)
        # The answer was lost, and it is asked again: nothing is written.
        assert await cluster.controller.alter_partitions(asked) == [answer]
        assert cluster.state() == answer

    asyncio.run(scenario())


def test_a_leader_that_is_behind_is_told_what_there_is(cluster: ScriptedCluster) -> None:
    """The answer to its change was lost, say, and it knows of no other: it waits to be told."""

    async def scenario() -> None:
        await cluster.start((1, 2, 3))
        before, (topic,) = cluster.state(), cluster.records.cluster().topics
        await cluster.in_sync(1, 2)
        epoch = cluster.records.brokers()[1].epoch
        for leader_epoch, error in [(0, InvalidUpdateVersionError), (-1, FencedLeaderEpochError)]:
            cluster.told.clear()
            change = IsrChange(topic.topic_id, 0, leader_epoch, (1, 3), before.partition_epoch)
            (answer,) = await cluster.controller.alter_partitions(
                AlterPartition(1, epoch, [change])
            )
            assert isinstance(answer, error)
            assert cluster.followed() == {1: (cluster.state(), False)}

    asyncio.run(scenario())


def test_a_leader_is_told_of_a_state_that_somebody_else_has_written(
    cluster: ScriptedCluster,
) -> None:
    """An operator, say, into the partition's node."""

    async def scenario() -> None:
        await cluster.start((1, 2, 3))
        before, (topic,) = cluster.state(), cluster.records.cluster().topics
        theirs = znodes.dump_partition_state(
            replace(before, isr=(1, 3)), cluster.records.controller_epoch
        )
        cluster.store.commit([Set(znodes.partition_state("t", 0), theirs, ANY_VERSION)])
        epoch = cluster.records.brokers()[1].epoch
        change = IsrChange(topic.topic_id, 0, 0, (1, 2), before.partition_epoch)
        (answer,) = await cluster.controller.alter_partitions(AlterPartition(1, epoch, [change]))
        assert isinstance(answer, InvalidUpdateVersionError)
        assert cluster.state().isr == (1, 3)
        assert cluster.followed() == {1: (cluster.state(), False)}

    asyncio.run(scenario())


def test_the_last_in_sync_leads_on_and_is_said_to_remain(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start((1, 2))
        await cluster.in_sync(1, place=P1)
        assert await shut_down(cluster, 1) == [P1]
        assert (cluster.state(P0).leader, cluster.state(P1).leader) == (2, 1)
        await cluster.controller.create_topic("alone", [(2,)], {})
        before = cluster.records.cluster().topics
        # Nobody is left: the partition that it keeps alone is not waited for.
        assert await shut_down(cluster, 2) == [P0]
        assert cluster.records.cluster().topics == before

    asyncio.run(scenario())


def test_all_in_sync_stop_at_once(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start((1, 2, 3))
        remaining = await asyncio.gather(*(shut_down(cluster, node_id) for node_id in (1, 2, 3)))
        assert remaining == [[], [], [P0, P1]]
        state = cluster.state()
        assert (state.leader, state.isr) == (3, (3,))
        for node_id in (1, 2, 3):
            await cluster.lose(node_id)
        assert (cluster.state().leader, cluster.state().isr) == (NO_LEADER, (3,))
        await cluster.find(1)
        assert cluster.state().leader == NO_LEADER
        await cluster.find(3)
        assert cluster.state().leader == 3

    asyncio.run(scenario())


def test_who_may_not_ask_to_stop(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        epoch = cluster.records.brokers()[1].epoch
        with pytest.raises(StaleBrokerEpochError):
            await cluster.controller.shut_down(1, epoch - 1)
        with pytest.raises(BrokerNotAvailableError):
            await cluster.controller.shut_down(9, epoch)
        assert cluster.state().leader == 1
        assert cluster.told == []

    asyncio.run(scenario())


async def deletion_that_waits(
    cluster: ScriptedCluster,
) -> tuple[TopicMetadata, "asyncio.Future[None]"]:
    """Of the topic that there is: broker 2 has been asked to delete its logs, and is silent."""
    await cluster.start()
    (topic,) = cluster.records.cluster().topics
    cluster.silent = {2}
    deleting = asyncio.ensure_future(cluster.controller.delete_topic(topic))
    await eventually(lambda: cluster.deleted() == [1, 2])
    return topic, deleting


def test_a_client_is_told_of_another_controller_that_goes_on_with_its_deletion(
    cluster: ScriptedCluster,
) -> None:
    """Brokers refuse a controller of the past by an error that means nothing to clients."""

    async def scenario() -> None:
        _, deleting = await deletion_that_waits(cluster)
        cluster.leave_unanswered(StaleControllerEpochError())
        with pytest.raises(NotControllerError):
            await deleting

    asyncio.run(scenario())


def test_so_is_one_whose_new_partitions_another_controller_tells_of(
    cluster: ScriptedCluster,
) -> None:
    """Also where a broker is away, so that the partitions stay."""

    async def scenario() -> None:
        await cluster.start()
        cluster.silent = {3, 4}
        growing = asyncio.ensure_future(cluster.controller.add_partitions("t", 4, [[3], [4]]))
        await eventually(lambda: len(cluster.unanswered) == 4)
        asked = [node_id for node_id, _ in cluster.told if node_id in cluster.silent][-4:]
        for node_id, answer in zip(asked, cluster.unanswered, strict=True):
            is_away = node_id == 4
            answer.set_exception(
                BrokerNotAvailableError() if is_away else StaleControllerEpochError()
            )
        with pytest.raises(NotControllerError):
            await growing

    asyncio.run(scenario())


def test_a_topic_is_deleted_from_a_broker_that_was_started_anew_a_moment_ago(
    cluster: ScriptedCluster,
) -> None:
    """What was meant for it as it was before it refuses; its client needs not know."""

    async def scenario() -> None:
        _, deleting = await deletion_that_waits(cluster)
        cluster.leave_unanswered(StaleBrokerEpochError())
        cluster.silent = set()
        await deleting
        assert cluster.records.deleted_topics() == ["t"]
        cluster.store.commit([Delete(znodes.broker(2), ANY_VERSION)])
        await cluster.find(2)
        await cluster.controller.finish_changes()
        assert cluster.records.deleted_topics() == cluster.records.topic_names() == []
        assert cluster.deleted() == [1, 2, 1, 2]

    asyncio.run(scenario())


def test_a_topic_is_gone_when_brokers_that_keep_nothing_of_it_have_heard(
    cluster: ScriptedCluster,
) -> None:
    """The next controller does not know of it, and has nothing to tell them."""

    async def scenario() -> None:
        await cluster.start()
        (topic,) = cluster.records.cluster().topics
        cluster.silent = {3, 4}
        deleting = asyncio.ensure_future(cluster.controller.delete_topic(topic))
        await eventually(lambda: cluster.deleted() == [1, 2])
        await turns(20)
        assert not deleting.done()
        await cluster.lose(3)
        cluster.answer_all()
        await deleting
        assert cluster.records.topic_names() == []

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [StaleBrokerEpochError, BrokerNotAvailableError])
def test_what_brokers_that_are_just_gone_are_to_keep_is_made_all_the_same(
    cluster: ScriptedCluster, error: type[Exception]
) -> None:
    """Nobody knows of a log that could not be made: they hear of it when they are back."""

    async def scenario() -> None:
        await cluster.controller.start()
        cluster.silent = {1, 2}
        creating = asyncio.ensure_future(cluster.controller.create_topic("t", [(1, 2)], {}))
        await eventually(lambda: cluster.followed().keys() == {1, 2})
        cluster.leave_unanswered(error())
        await asyncio.wait_for(creating, EVENT_S)
        adding = asyncio.ensure_future(cluster.controller.add_partitions("t", 2, [(2, 1)]))
        await eventually(lambda: cluster.followed(P1).keys() == {1, 2})
        cluster.leave_unanswered(error())
        await asyncio.wait_for(adding, EVENT_S)
        cluster.silent = set()
        assert cluster.deleted() == []
        cluster.told.clear()
        await cluster.lose(1)
        await cluster.find(1)
        for place in (P0, P1):
            assert cluster.state(place).leader == 2
            assert cluster.followed(place)[1] == (cluster.state(place), False)

    asyncio.run(scenario())


def test_partitions_stay_where_a_broker_that_may_have_their_logs_is_just_gone(
    cluster: ScriptedCluster,
) -> None:
    """Else it would come back with the log of a partition, and of an epoch, that are made again."""

    async def scenario() -> None:
        await cluster.start()
        third = TopicPartition("t", 2)
        cluster.failed, cluster.silent = {3: {third}}, {1, 2}
        adding = asyncio.ensure_future(cluster.controller.add_partitions("t", 4, [(3,), (1, 2)]))
        await eventually(lambda: cluster.followed(TopicPartition("t", 3)).keys() == {1, 2})
        cluster.leave_unanswered(BrokerNotAvailableError())
        with pytest.raises(KafkaStorageError):
            await asyncio.wait_for(adding, EVENT_S)
        assert len(cluster.records.cluster().topics[0].partitions) == 4
        assert cluster.deleted(third) == []

    asyncio.run(scenario())


def test_logs_of_another_topic_are_not_given_up_for_one_that_they_stand_in_the_way_of(
    cluster: ScriptedCluster,
) -> None:
    """Which nobody can make then, nor its partitions."""
    cluster.failure = InconsistentTopicIdError
    grown = TopicPartition("t", 2)

    async def scenario() -> None:
        await cluster.start((1, 2))
        cluster.failed = {1: {P0, grown}, 2: {P0, P1, grown}, 3: {P0}}
        with pytest.raises(InconsistentTopicIdError):
            await cluster.controller.add_partitions("t", 3, [(1, 2)])
        assert cluster.deleted(grown) == []
        await cluster.controller.delete_topic(cluster.controller.topic("t"))
        assert cluster.deleted() == [1, 2]  # it is what a deletion is for
        cluster.told.clear()
        with pytest.raises(InconsistentTopicIdError):
            await cluster.controller.create_topic("t", [(2, 3), (1, 2)], {})
        assert cluster.records.cluster().topics == []
        assert (cluster.deleted(), cluster.deleted(P1)) == ([], [1])
        await cluster.controller.create_topic("t", [(4, 3), (1, 2)], {})

    asyncio.run(scenario())


def test_a_topic_that_is_made_anew_outlives_a_second_deletion_of_the_one_before(
    cluster: ScriptedCluster,
) -> None:
    """Brokers came while the first was under way, so that it was begun again."""

    async def scenario() -> None:
        topic, deleting = await deletion_that_waits(cluster)
        first, cluster.unanswered = cluster.unanswered, []
        await cluster.lose(5)
        await cluster.find(5)
        await eventually(lambda: len(cluster.deleted()) > 2)
        for answer in first:
            answer.set_result({})
        await deleting
        cluster.silent = set()
        await cluster.controller.create_topic("t", [(1, 2)], {})
        for answer in cluster.unanswered:
            answer.set_result({})
        await cluster.controller.finish_changes()
        assert cluster.records.topic_names() == ["t"]
        assert cluster.controller.topic("t").topic_id != topic.topic_id

    asyncio.run(scenario())


def test_a_second_deletion_that_comes_late_deletes_no_topic_that_is_made_anew(
    cluster: ScriptedCluster,
) -> None:
    async def scenario() -> None:
        _, deleting = await deletion_that_waits(cluster)
        cluster.slow = asyncio.Event()
        cluster.store.commit([Delete(znodes.broker(5), ANY_VERSION)])
        looking = asyncio.ensure_future(cluster.controller.brokers_changed())
        await turns()  # it has its turn
        for answer in cluster.unanswered:
            answer.set_result({})
        await turns()
        creating = asyncio.ensure_future(cluster.controller.create_topic("t", [(1, 2)], {}))
        await turns()
        cluster.silent = set()
        cluster.slow.set()
        await asyncio.gather(looking, deleting, creating)
        await cluster.controller.finish_changes()
        assert cluster.deleted() == [1, 2]
        assert cluster.records.topic_names() == ["t"]

    asyncio.run(scenario())


def test_a_deletion_goes_on_when_nothing_of_others_is_left_below_the_topic(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_AGAIN_S", 0.01)

    async def scenario() -> None:
        await cluster.start()
        (topic,) = cluster.records.cluster().topics
        strange = f"{znodes.partition('t', 0)}/strange"
        cluster.store.commit([Create(strange)])
        with pytest.raises(KafkaStorageError):
            await cluster.controller.delete_topic(topic)
        assert cluster.controller.is_active
        cluster.store.commit([Delete(strange, ANY_VERSION)])
        await eventually(lambda: cluster.records.topic_names() == [])
        assert cluster.records.deleted_topics() == []

    asyncio.run(scenario())


def test_an_isr_that_its_leader_asked_for_counts_when_the_leader_is_gone(
    cluster: ScriptedCluster,
) -> None:
    """Its connection was closed before the store had answered."""

    async def scenario() -> None:
        await cluster.start((1, 2, 3))
        await leave(cluster, cluster.in_sync(1, 3), lambda: cluster.state().isr == (1, 3))
        await cluster.lose(1)
        assert (cluster.state().leader, cluster.state().isr) == (3, (3,))

    asyncio.run(scenario())


def test_what_a_broker_that_stops_has_led_is_led_by_others_when_it_does_not_wait(
    cluster: ScriptedCluster,
) -> None:
    async def scenario() -> None:
        await cluster.start()
        shutting_down = cluster.controller.shut_down(1, cluster.records.brokers()[1].epoch)
        await leave(cluster, shutting_down, lambda: cluster.state().leader == 2)
        await eventually(lambda: cluster.followed().keys() == {2})
        assert cluster.followed()[2] == (cluster.state(), False)

    asyncio.run(scenario())


async def leave(
    cluster: ScriptedCluster,
    asking: Coroutine[Any, Any, None] | Coroutine[Any, Any, list[TopicPartition]],
    is_done: Callable[[], bool],
) -> None:
    """Asks by a connection that is closed when the store has done it, and not answered yet."""
    cluster.slow = asyncio.Event()
    asked = asyncio.ensure_future(asking)
    await eventually(is_done)
    asked.cancel()
    await asyncio.wait([asked])
    cluster.slow.set()
    await cluster.controller.finish_changes()


def test_a_topic_with_added_partitions_is_deleted_when_all_that_keep_it_are_back(
    cluster: ScriptedCluster,
) -> None:
    """Until then it is given no more of them, and nobody leads it."""

    async def scenario() -> None:
        await cluster.start()
        await cluster.controller.add_partitions("t", 3, [(3, 4)])
        await cluster.lose(4)
        (topic,) = cluster.records.cluster().topics
        await cluster.controller.delete_topic(topic)
        assert cluster.records.deleted_topics() == ["t"]
        with pytest.raises(UnknownTopicOrPartitionError):
            await cluster.controller.add_partitions("t", 4)
        cluster.told.clear()
        await cluster.lose(2)
        assert not any(isinstance(request, LeaderAndIsr) for _, request in cluster.told)
        await cluster.find(4)
        await cluster.controller.finish_changes()
        assert cluster.records.deleted_topics() == ["t"]
        await cluster.find(2)
        await cluster.controller.finish_changes()
        assert cluster.records.deleted_topics() == cluster.records.topic_names() == []
        assert set(cluster.deleted(P0)) == {1, 2}
        await cluster.controller.create_topic("t", [(1, 2)], {})
        assert cluster.state().leader == 1

    asyncio.run(scenario())


def test_the_next_controller_deletes_a_topic_when_all_that_keep_it_are_back(
    cluster: ScriptedCluster,
) -> None:
    async def scenario() -> None:
        await cluster.start()
        await cluster.lose(2)
        (topic,) = cluster.records.cluster().topics
        await cluster.controller.delete_topic(topic)
        cluster.told.clear()
        await cluster.fail_over()
        await cluster.controller.finish_changes()
        assert cluster.records.deleted_topics() == cluster.records.topic_names() == ["t"]
        with pytest.raises(UnknownTopicOrPartitionError):
            await cluster.controller.add_partitions("t", 4)
        assert not any(isinstance(request, LeaderAndIsr) for _, request in cluster.told)
        await cluster.find(2)
        await cluster.controller.finish_changes()
        assert cluster.records.deleted_topics() == cluster.records.topic_names() == []
        assert set(cluster.deleted(P0)) == {1, 2}
        assert set(cluster.deleted(P1)) == {1, 2}

    asyncio.run(scenario())
