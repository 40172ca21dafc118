"""What a leader asks its controller for: one request at a time, again where it was not done."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka.errors import (
    BrokerResponseError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    KafkaConnectionError,
    NotControllerError,
    StaleBrokerEpochError,
    UnknownTopicIdError,
)

from broker.cluster.control import AlterPartition, IsrChange
from broker.cluster.isr_messages import alter_partition_in, alter_partition_response
from broker.cluster.metadata import PartitionMetadata
from broker.cluster.to_brokers import ask_nobody
from broker.controller.to_controller import ToController
from tests.support.patience import stays_so, turns

EPOCH = 55


def change(index: int, topic: int = 1) -> IsrChange:
    return IsrChange(UUID(int=topic), index, 5, (1, 2), 7)


def granted(asked: IsrChange) -> PartitionMetadata:
    return PartitionMetadata((), 1, asked.leader_epoch, asked.isr, asked.partition_epoch + 1)


class Asking:
    """`outcome` says for each request what the controller answers: an error of the whole, or by
    the change."""

    def __init__(self) -> None:
        self.cache = SimpleNamespace(controller_id=1)
        self.asked: list[tuple[int, AlterPartition]] = []
        self.under_way = self.most = 0
        self.outcome: Callable[[int, IsrChange], PartitionMetadata] = lambda _, asked: granted(
            asked
        )
        self.to = ToController(1, lambda: EPOCH, self.cache, self._ask, ask_nobody)  # type: ignore[arg-type]

    async def _ask(self, node_id: int, message: Any, version: int, response_class: Any) -> Any:
        request = alter_partition_in(message)
        self.asked.append((node_id, request))
        number = len(self.asked)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await turns(10)
        self.under_way -= 1
        try:
            answers = [self._answer(number, each) for each in request.changes]
        except BrokerResponseError as error:
            answer = alter_partition_response(request, [], error)
        else:
            answer = alter_partition_response(request, answers)
        return response_class.decode(answer.encode(version=version), version=version)

    def _answer(self, number: int, asked: IsrChange) -> PartitionMetadata:
        return self.outcome(number, asked)


@pytest.fixture
def asking() -> Asking:
    return Asking()


def test_what_comes_meanwhile_goes_together_with_the_next_request(asking: Asking) -> None:
    async def scenario() -> None:
        first = asyncio.ensure_future(asking.to.alter_isr(change(0)))
        await turns(2)
        others = [change(2, topic=9), change(1), change(3, topic=9)]
        states = await asyncio.gather(first, *map(asking.to.alter_isr, others))
        assert states == [granted(each) for each in (change(0), *others)]
        assert asking.most == 1
        requests = [request for _, request in asking.asked]
        assert [len(request.changes) for request in requests] == [1, 3]
        assert {(each.broker_id, each.broker_epoch) for each in requests} == {(1, EPOCH)}

    asyncio.run(scenario())


NO_ANSWERS = (KafkaConnectionError, ValueError)


@pytest.mark.parametrize("error", [NotControllerError, StaleBrokerEpochError, *NO_ANSWERS])
@pytest.mark.parametrize("is_whole", [True, False])
def test_what_was_not_done_is_asked_of_who_is_controller_then(
    asking: Asking, error: NotControllerError | type[ValueError], is_whole: bool
) -> None:
    """Whether it says so of the whole request, or of one partition, or what is no answer."""

    def outcome(number: int, asked: IsrChange) -> Any:
        if number > 1 or (asked.partition == 1 and not is_whole):
            return granted(asked)
        asking.cache.controller_id = 3
        if is_whole or error in NO_ANSWERS:
            raise error()
        return error()

    asking.outcome = outcome

    async def scenario() -> None:
        changes = [change(0), change(1)]
        states = await asyncio.gather(*map(asking.to.alter_isr, changes))
        assert states == [granted(each) for each in changes]
        assert [node_id for node_id, _ in asking.asked] == [1, 3]
        again = asking.asked[1][1].changes
        only_one = not is_whole and error not in NO_ANSWERS
        assert again == (changes[:1] if only_one else changes)

    asyncio.run(scenario())


def test_what_is_refused_is_said_and_the_others_are_done(asking: Asking) -> None:
    refused = {0: IneligibleReplicaError, 2: UnknownTopicIdError}
    asking.outcome = lambda number, asked: refused.get(asked.partition, lambda: granted(asked))()

    async def scenario() -> None:
        found = await asyncio.gather(
            *(asking.to.alter_isr(change(index)) for index in range(3)), return_exceptions=True
        )
        assert [type(each) for each in found] == [
            IneligibleReplicaError,
            PartitionMetadata,
            UnknownTopicIdError,
        ]
        assert len(asking.asked) == 1

    asyncio.run(scenario())


def test_a_partition_that_is_asked_for_otherwise_meanwhile_is_in_a_request_once(
    asking: Asking,
) -> None:
    """Else the answer to the one would be taken for that to the other."""

    def outcome(number: int, asked: IsrChange) -> Any:
        if number == 1:
            raise NotControllerError()
        return granted(asked) if asked.isr == (1, 3) else IneligibleReplicaError()

    asking.outcome = outcome

    async def scenario() -> None:
        older = asyncio.ensure_future(asking.to.alter_isr(change(0)))
        other = asyncio.ensure_future(asking.to.alter_isr(change(1)))
        await turns(2)
        newer = replace(change(0), isr=(1, 3), leader_epoch=6)
        assert await asking.to.alter_isr(newer) == granted(newer)
        with pytest.raises(InvalidUpdateVersionError):
            await older
        with pytest.raises(IneligibleReplicaError):
            await other
        assert [request.changes for _, request in asking.asked[1:]] == [[change(1), newer]]

    asyncio.run(scenario())


def test_without_a_controller_it_waits_for_one(asking: Asking) -> None:
    asking.cache.controller_id = -1

    async def scenario() -> None:
        waiting = asyncio.ensure_future(asking.to.alter_isr(change(0)))
        assert await stays_so(lambda: not waiting.done() and asking.asked == [], 0.02)
        asking.cache.controller_id = 2
        assert await waiting == granted(change(0))

    asyncio.run(scenario())
