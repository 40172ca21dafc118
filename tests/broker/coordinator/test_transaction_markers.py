"""Markers that go to the brokers that lead the partitions, and count when they are committed."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
from kafka.errors import (
    BrokerResponseError,
    InvalidProducerEpochError,
    KafkaConnectionError,
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    RequestTimedOutError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
    UnsupportedForMessageFormatError,
    UnsupportedVersionError,
)
from kafka.protocol.producer import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kafka.structs import TopicPartition

from broker.api import write_txn_markers
from broker.api.contexts import TransactionContext
from broker.api.request import Api
from broker.cluster.control import LEADER_DURING_DELETE, NO_LEADER
from broker.cluster.metadata import BrokerNode, new_topic
from broker.cluster.to_brokers import ToBrokers
from broker.coordinator.marker_messages import EndOfTransaction, marker_errors, markers_message
from broker.coordinator.state_records import ProducerIdAndEpoch
from pyspark_kafkalog.record.control import TransactionMarker
from tests.support.patience import eventually, stays_so
from tests.support.replicas import lead
from tests.support.replicated_broker import (
    OTHER,
    TOPIC,
    ReplicatedBroker,
    replicated_broker,
    settle,
)

HERE = TopicPartition(TOPIC, 0)
FAR = "far"
THERE = [TopicPartition(FAR, index) for index in range(3)]
_RESULT = WriteTxnMarkersResponse.WritableTxnMarkerResult
_TOPIC = _RESULT.WritableTxnMarkerTopicResult


def run(scenario: Callable[[ReplicatedBroker], Awaitable[None]], **properties: str) -> None:
    async def main() -> None:
        with replicated_broker(properties) as broker:
            far = new_topic(FAR, len(THERE), OTHER.node_id)
            broker.topics[FAR] = far
            broker.tell(far)
            await scenario(broker)

    asyncio.run(main())


def end_of(producer_id: int = 7, epoch: int = 0, is_commit: bool = True) -> EndOfTransaction:
    producer = ProducerIdAndEpoch(producer_id, epoch)
    return EndOfTransaction(producer, TransactionMarker(is_commit, 4), 0)


def write(
    broker: ReplicatedBroker,
    places: Sequence[TopicPartition],
    end: EndOfTransaction | None = None,
    **options: Callable[[], bool],
) -> list[int]:
    """A list that gets longer when all are written."""
    done = []
    broker.markers.write(places, end or end_of(), lambda: done.append(1), **options)
    return done


def lead_there(broker: ReplicatedBroker, leader: int, name: str = FAR) -> None:
    """Another broker leads all of the topic now."""
    topic = broker.topics[name]
    partitions = tuple(replace(each, leader=leader) for each in topic.partitions)
    broker.tell(replace(topic, partitions=partitions))


def asked(broker: ReplicatedBroker, number: int = -1) -> list[Any]:
    """(broker, producer id, partitions) of each marker of a request."""
    node_id, message, version = broker.brokers.asked[number]
    assert version == 1
    return [
        (
            node_id,
            marker.producer_id,
            [(topic.name, index) for topic in marker.topics for index in topic.partition_indexes],
        )
        for marker in message.markers
    ]


def answer(
    broker: ReplicatedBroker,
    error: BrokerResponseError | None = None,
    number: int = -1,
    only: Collection[int] | None = None,
) -> None:
    """To a request: the same for all of its partitions, or for those named."""
    _, message, _ = broker.brokers.asked[number]
    broker.brokers.answers[number].set_result(
        WriteTxnMarkersResponse(
            markers=[
                _RESULT(
                    producer_id=marker.producer_id,
                    topics=[
                        _TOPIC(
                            name=topic.name,
                            partitions=[
                                _TOPIC.WritableTxnMarkerPartitionResult(
                                    partition_index=index, error_code=error.errno if error else 0
                                )
                                for index in topic.partition_indexes
                                if only is None or index in only
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in message.markers
            ]
        )
    )


async def asked_again(broker: ReplicatedBroker, times: int) -> None:
    await eventually(lambda: len(broker.brokers.asked) == times)


def test_a_marker_counts_when_all_replicas_in_sync_have_it() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        done = write(broker, [HERE])
        assert broker.replicas.partition(HERE).log.log_end_offset == 1
        await settle()
        assert done == []
        broker.replicate(HERE)
        await settle()
        assert done == [1]

    run(scenario)


def test_a_marker_that_is_not_replicated_in_time_is_written_again() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        done = write(broker, [HERE])
        log = broker.replicas.partition(HERE).log
        await eventually(lambda: log.log_end_offset == 2)
        broker.replicate(HERE)
        await eventually(lambda: done == [1])

    run(scenario, **{"request.timeout.ms": "20"})


def be_in_sync(broker: ReplicatedBroker, *nodes: int) -> None:
    topic = broker.topics[TOPIC]
    epoch = broker.replicas.partition(HERE).partition_epoch + 1
    states = tuple(replace(state, isr=nodes, partition_epoch=epoch) for state in topic.partitions)
    lead(broker.replicas, replace(topic, partitions=states), make_logs=False)


def test_a_marker_waits_for_enough_replicas_in_sync() -> None:
    """As any record of acks=all: it would be in one copy, and committed by no rule."""

    async def scenario(broker: ReplicatedBroker) -> None:
        be_in_sync(broker, 1)
        done = write(broker, [HERE])
        refused = marker_errors(await broker.ask(*ask_for(HERE)))[7, HERE]
        assert isinstance(refused, NotEnoughReplicasError)
        log = broker.replicas.partition(HERE).log
        assert (done, log.log_end_offset) == ([], 0)
        be_in_sync(broker, 1, 2)
        await eventually(lambda: log.log_end_offset == 1)
        broker.replicate(HERE)
        await eventually(lambda: done == [1])

    run(scenario, **{"min.insync.replicas": "2"})


def test_the_leader_of_other_partitions_is_asked_once_for_all() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        done = write(broker, [*THERE, HERE])
        broker.replicate(HERE)
        await settle()
        assert asked(broker) == [(OTHER.node_id, 7, THERE)]
        _, message, _ = broker.brokers.asked[0]
        (marker,) = message.markers
        assert (marker.producer_epoch, marker.coordinator_epoch) == (0, 4)
        assert marker.transaction_result is True
        assert done == []
        answer(broker)
        await settle()
        assert done == [1]
        assert len(broker.brokers.asked) == 1

    run(scenario)


def test_a_broker_is_asked_one_thing_after_the_other() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        first = write(broker, THERE[:1])
        await settle()
        others = [write(broker, THERE[1:], end_of(number)) for number in (8, 9)]
        await settle()
        assert len(broker.brokers.asked) == 1
        answer(broker)
        await settle()
        assert first == [1]
        assert [marker[1] for marker in asked(broker)] == [8, 9]
        answer(broker)
        await settle()
        assert others == [[1], [1]]

    run(scenario)


def test_two_ends_of_one_producer_are_asked_for_apart() -> None:
    """An answer names the producer's id alone."""

    async def scenario(broker: ReplicatedBroker) -> None:
        write(broker, THERE[:1], end_of(5))
        await settle()
        ends = [write(broker, THERE[:1], end_of(7, epoch)) for epoch in (0, 1)]
        for number in (0, 1, 2):
            answer(broker, number=number)
            await settle()
        assert ends == [[1], [1]]
        epochs = [[each.producer_epoch for each in m.markers] for _, m, _ in broker.brokers.asked]
        assert epochs == [[0], [0], [1]]

    run(scenario)


@pytest.mark.parametrize(
    "error",
    [
        KafkaStorageError,
        NotEnoughReplicasError,
        NotLeaderForPartitionError,
        RequestTimedOutError,
        UnknownTopicOrPartitionError,
    ],
)
def test_what_passes_is_tried_again_where_the_leader_is_then(
    error: type[BrokerResponseError],
) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        done = write(broker, THERE)
        await settle()
        broker.metadata.brokers.append(BrokerNode(3, "third", 9092))
        lead_there(broker, 3)
        answer(broker, error())
        await asked_again(broker, 2)
        assert asked(broker) == [(3, 7, THERE)]
        assert done == []
        answer(broker)
        await settle()
        assert done == [1]

    run(scenario)


@pytest.mark.parametrize(
    "error",
    [
        InvalidProducerEpochError,
        TransactionCoordinatorFencedError,
        UnsupportedForMessageFormatError,
        UnsupportedVersionError,
    ],
)
def test_where_a_partition_can_have_no_marker_any_more_it_is_not_tried_again(
    error: type[BrokerResponseError],
) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        done = write(broker, THERE)
        await settle()
        answer(broker, error())
        await settle()
        assert done == [1]

    run(scenario)


def test_only_what_failed_is_asked_for_again() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        done = write(broker, THERE)
        await settle()
        answer(broker, only=[0, 2])  # and not a word of the other
        await asked_again(broker, 2)
        assert asked(broker) == [(OTHER.node_id, 7, THERE[1:2])]
        answer(broker)
        await settle()
        assert done == [1]

    run(scenario)


def test_who_is_not_reached_is_tried_again() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        done = write(broker, THERE)
        await settle()
        broker.brokers.answers[0].set_exception(KafkaConnectionError("gone"))
        await asked_again(broker, 2)
        answer(broker)
        await settle()
        assert done == [1]

    run(scenario)


def test_without_a_leader_it_waits_for_one() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        lead_there(broker, NO_LEADER)
        done = write(broker, THERE)
        assert await stays_so(lambda: (done, broker.brokers.asked) == ([], []), 0.15)
        lead_there(broker, OTHER.node_id)
        await asked_again(broker, 1)
        answer(broker)
        await settle()
        assert done == [1]

    run(scenario)


@pytest.mark.parametrize("is_at_once", [True, False])
def test_a_topic_that_is_gone_holds_nobody_up(is_at_once: bool) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        if is_at_once:
            lead_there(broker, LEADER_DURING_DELETE)
        done = write(broker, THERE)
        await settle()
        if not is_at_once:
            lead_there(broker, LEADER_DURING_DELETE)
            answer(broker, UnknownTopicOrPartitionError())
        await eventually(lambda: done == [1])

    run(scenario)


def test_what_this_broker_leads_it_writes_whatever_it_has_been_told() -> None:
    """A topic that is so new that only its leader has heard of it."""

    async def scenario(broker: ReplicatedBroker) -> None:
        lead_there(broker, LEADER_DURING_DELETE, TOPIC)
        done = write(broker, [HERE])
        broker.replicate(HERE)
        await settle()
        assert done == [1]
        assert broker.replicas.partition(HERE).log.log_end_offset == 1

    run(scenario)


def test_what_nobody_wants_any_more_is_not_sent() -> None:
    """Another broker coordinates the transaction."""

    async def scenario(broker: ReplicatedBroker) -> None:
        is_ours = True
        busy = write(broker, THERE[:1], end_of(5))
        await settle()
        done = write(broker, THERE, is_wanted=lambda: is_ours)
        refused = write(broker, THERE, end_of(8))
        is_ours = False
        answer(broker)
        await settle()
        assert [marker[1] for marker in asked(broker)] == [8]
        answer(broker)
        await settle()
        assert (busy, done, refused) == ([1], [], [1])

    run(scenario)


def test_more_markers_than_fit_one_request_go_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.coordinator.transaction_markers._MARKERS_A_REQUEST", 2)

    async def scenario(broker: ReplicatedBroker) -> None:
        done = write(broker, THERE)
        for number in range(2):
            await settle()
            answer(broker, number=number)
        await settle()
        assert done == [1]
        assert [asked(broker, number)[0][2] for number in (0, 1)] == [THERE[:2], THERE[2:]]

    run(scenario)


def test_the_message_is_kafkas() -> None:
    ends = [(end_of(), [*THERE, HERE]), (end_of(8, 3, is_commit=False), THERE[:1])]
    message = markers_message(ends)
    read = WriteTxnMarkersRequest.decode(message.encode(version=1), version=1)
    first, second = read.markers
    assert [(topic.name, topic.partition_indexes) for topic in first.topics] == [
        (FAR, [0, 1, 2]),
        (TOPIC, [0]),
    ]
    told = (second.producer_id, second.producer_epoch, second.transaction_result)
    assert told == (8, 3, False)


def test_an_answer_without_anything_says_nothing() -> None:
    assert marker_errors(WriteTxnMarkersResponse(markers=[])) == {}


# The other side.


def ask_for(*places: TopicPartition) -> tuple[Api[TransactionContext], Any, int]:
    return write_txn_markers.API, markers_message([(end_of(), places)]), 1


def test_markers_are_answered_when_they_are_committed() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        unknown = TopicPartition("nowhere", 0)
        task = await broker.begin(*ask_for(HERE, unknown))
        assert not task.done()
        broker.replicate(HERE)
        await settle()
        errors = marker_errors(task.result())
        assert errors[7, HERE] is None
        assert isinstance(errors[7, unknown], UnknownTopicOrPartitionError)

    run(scenario)


def test_markers_that_are_not_committed_in_time_are_to_be_asked_for_again() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        answered = await broker.ask(*ask_for(HERE))
        assert isinstance(marker_errors(answered)[7, HERE], RequestTimedOutError)

    run(scenario, **{"request.timeout.ms": "20"})


# Connections.


class Connected:
    """A connection that says what it was asked; `others` are those made so far."""

    def __init__(self, node: BrokerNode, others: list[Any]) -> None:
        self.node = node
        self.is_closed = False
        others.append(self)

    async def request(
        self, message: object, version: int, response_class: object
    ) -> tuple[BrokerNode, object, int, object]:
        return self.node, message, version, response_class

    def close(self) -> None:
        self.is_closed = True


def test_each_broker_has_a_connection_to_its_newest_address() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        made: list[Connected] = []
        brokers = ToBrokers(broker.metadata, lambda node: Connected(node, made))
        for _ in range(2):
            assert await brokers.ask(2, "message", 1, dict) == (OTHER, "message", 1, dict)
        assert len(made) == 1
        moved = BrokerNode(2, "elsewhere", 9092)
        broker.metadata.brokers[1] = moved
        assert (await brokers.ask(2, "message", 1, dict))[0] == moved
        assert [each.is_closed for each in made] == [True, False]
        broker.metadata.brokers.pop()
        with pytest.raises(KafkaConnectionError):
            await brokers.ask(2, "message", 1, dict)
        assert made[1].is_closed

    run(scenario)


def test_nobody_is_asked_after_the_end() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        made: list[Connected] = []
        brokers = ToBrokers(broker.metadata, lambda node: Connected(node, made))
        await brokers.ask(2, "message", 1, dict)
        brokers.close()
        assert made[0].is_closed
        with pytest.raises(KafkaConnectionError):
            await brokers.ask(2, "message", 1, dict)

    run(scenario)
