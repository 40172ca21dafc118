"""ISRs that a leader asks its controller for: what becomes of each answer, and of what the
controller says meanwhile."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

import pytest
from kafka.errors import (
    BrokerResponseError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    OperationNotAttemptedError,
    UnknownError,
    UnknownTopicIdError,
)
from kafka.structs import TopicPartition

from broker.cluster.control import IsrChange
from broker.cluster.metadata import PartitionMetadata
from broker.config.broker import BrokerConfig
from broker.log.manager import LogManager
from broker.replica.isr import ReplicaHost
from broker.replica.manager import FetchLimits, ReplicaManager
from broker.replica.partition import Isolation, Partition
from broker.replica.purgatory import Purgatory
from pyspark_kafkalog.protocol.fetch import FetchPartition
from tests.broker.log.batches import batch
from tests.broker.log.memory_files import MemoryFiles
from tests.support.patience import eventually, turns
from tests.support.replicas import no_throttles

PLACE, TOPIC_ID = TopicPartition("t", 0), UUID(int=7)
ME, A, B = 1, 2, 3
STATE = PartitionMetadata((ME, A, B), ME, 5, (ME, A), 7)
LAG_MS = 30_000


class Leader:
    """A broker that leads a partition of three replicas, two of them in sync, with four records;
    its controller's answers are the test's to give."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.asked: list[IsrChange] = []
        self.answers: list[asyncio.Future[PartitionMetadata]] = []
        self.logs = LogManager(
            BrokerConfig.from_properties({"log.dirs": "/data"}), files=MemoryFiles()
        )
        self.logs.open()
        host = ReplicaHost(ME, LAG_MS, lambda _: True, lambda _: True, lambda: self.now_ms)
        self.replicas = ReplicaManager(
            self.logs, Purgatory(self._call_later), host, self._alter_isr, no_throttles()
        )
        self.replicas.make_logs({PLACE: TOPIC_ID}, [PLACE])
        self.lead(STATE)
        for _ in range(4):
            self.replicas.append(self.partition, batch(), 1)

    def _call_later(self, delay_s: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, run)

    async def _alter_isr(self, change: IsrChange) -> PartitionMetadata:
        self.asked.append(change)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    @property
    def partition(self) -> Partition:
        kept = self.replicas.kept(PLACE)
        assert kept is not None
        return kept

    def lead(self, state: PartitionMetadata) -> None:
        self.replicas.lead(PLACE, TOPIC_ID, state)

    def fetched(self, node_id: int, offset: int) -> None:
        limits = FetchLimits(1 << 20, Isolation.LOG_END, follower_id=node_id)
        (read,) = self.replicas.fetch([FetchPartition("t", 0, offset, 1 << 20)], limits).reads
        assert not isinstance(read, BrokerResponseError), read

    async def answer(self, answer: PartitionMetadata | BrokerResponseError) -> None:
        """To what was asked for last."""
        if isinstance(answer, BrokerResponseError):
            self.answers[-1].set_exception(answer)
        else:
            self.answers[-1].set_result(answer)
        await settled()

    async def catch_up(self) -> None:
        """All that follow have all there is: the third asks to be in sync."""
        self.fetched(A, 4)
        self.fetched(B, 4)
        await settled()


async def settled() -> None:
    await turns(4)


@pytest.fixture
def leader() -> Iterator[Leader]:
    made = Leader()
    yield made
    made.logs.close()


GROWN = IsrChange(TOPIC_ID, 0, 5, (ME, A, B), 7)


def test_who_has_caught_up_is_in_sync_when_the_controller_says_so(leader: Leader) -> None:
    async def scenario() -> None:
        await leader.catch_up()
        assert leader.asked == [GROWN]
        leader.fetched(B, 4)  # as it does all the time
        await settled()
        assert leader.asked == [GROWN]
        assert leader.partition.isr == (ME, A)
        await leader.answer(replace(STATE, isr=(ME, A, B), partition_epoch=8))
        assert leader.partition.isr == (ME, A, B)  # type: ignore[comparison-overlap]
        assert leader.partition.partition_epoch == 8
        # The next change is of what is now.
        leader.now_ms += LAG_MS + 1
        leader.replicas.append(leader.partition, batch(), 1)
        leader.fetched(A, 5)
        leader.replicas.look_for_laggards()
        await settled()
        assert leader.asked[1:] == [IsrChange(TOPIC_ID, 0, 5, (ME, A), 8)]

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [IneligibleReplicaError, OperationNotAttemptedError])
def test_what_may_be_granted_later_is_asked_for_again(
    leader: Leader, error: type[Exception]
) -> None:
    """With the follower's next fetch; until then the old ISR counts."""

    async def scenario() -> None:
        await leader.catch_up()
        await leader.answer(error())
        assert leader.partition.isr == (ME, A)
        assert leader.asked == [GROWN]
        # It is waited for no more: it may be gone.
        leader.now_ms += LAG_MS + 1
        leader.replicas.append(leader.partition, batch(), 1)
        leader.fetched(A, 5)
        assert leader.partition.high_watermark == 5
        leader.fetched(B, 5)
        await settled()
        assert leader.asked == [GROWN, GROWN]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "error",
    [
        FencedLeaderEpochError,
        InvalidUpdateVersionError,
        NewLeaderElectedError,
        UnknownTopicIdError,
    ],
)
def test_where_the_controller_knows_more_its_word_is_waited_for(
    leader: Leader, error: type[Exception]
) -> None:
    """Until then nobody who may be in sync is left behind, and nothing else is asked for."""

    async def scenario() -> None:
        await leader.catch_up()
        await leader.answer(error())
        assert leader.partition.isr == (ME, A)
        leader.replicas.append(leader.partition, batch(), 1)
        leader.now_ms += 2 * LAG_MS
        leader.fetched(A, 5)
        assert leader.partition.high_watermark == 4
        leader.replicas.look_for_laggards()
        await settled()
        assert leader.asked == [GROWN]
        leader.lead(replace(STATE, isr=(ME, A), partition_epoch=9))
        assert leader.partition.high_watermark == 5
        leader.fetched(B, 5)
        await settled()
        assert leader.asked[1:] == [replace(GROWN, partition_epoch=9)]

    asyncio.run(scenario())


def test_what_is_said_again_leaves_what_was_asked_for(leader: Leader) -> None:
    """By a controller that takes over from itself: it may have done it, and will answer."""

    async def scenario() -> None:
        await leader.catch_up()
        leader.lead(STATE)
        leader.replicas.append(leader.partition, batch(), 1)
        leader.now_ms += 2 * LAG_MS
        leader.fetched(A, 5)
        assert leader.partition.high_watermark == 4
        leader.replicas.look_for_laggards()
        await settled()
        assert leader.asked == [GROWN]
        await leader.answer(replace(STATE, isr=(ME, A, B), partition_epoch=8))
        assert (leader.partition.isr, leader.partition.partition_epoch) == ((ME, A, B), 8)

    asyncio.run(scenario())


def test_an_error_that_says_nothing_of_the_partition_is_no_end(leader: Leader) -> None:
    """A controller's trouble with its store, say: nobody would tell the leader more, and who is to
    be in sync may be so by then, and be elected."""

    async def scenario() -> None:
        await leader.catch_up()
        await leader.answer(UnknownError())
        leader.now_ms += LAG_MS + 1
        leader.replicas.append(leader.partition, batch(), 1)
        leader.fetched(A, 5)
        assert leader.partition.high_watermark == 4
        await eventually(lambda: leader.asked == [GROWN, GROWN], leader.asked)
        await leader.answer(replace(STATE, isr=(ME, A, B), partition_epoch=8))
        assert (leader.partition.isr, leader.partition.high_watermark) == ((ME, A, B), 4)
        leader.fetched(B, 5)
        assert leader.partition.high_watermark == 5

    asyncio.run(scenario())


def test_it_is_not_asked_for_again_where_the_controller_has_said_more_meanwhile(
    leader: Leader,
) -> None:
    async def scenario() -> None:
        await leader.catch_up()
        await leader.answer(UnknownError())
        leader.lead(replace(STATE, isr=(ME, A, B), partition_epoch=8))
        await asyncio.gather(*leader.replicas._isr_changes)
        await settled()
        assert leader.asked == [GROWN]

    asyncio.run(scenario())


SAID = {
    "another ISR": replace(STATE, isr=(ME,), partition_epoch=8),
    "another epoch": replace(STATE, leader_epoch=6, partition_epoch=8),
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID.keys())
@pytest.mark.parametrize(
    "answer",
    [replace(STATE, isr=(ME, A, B), partition_epoch=8), IneligibleReplicaError()],
    ids=["granted", "refused"],
)
def test_what_the_controller_says_meanwhile_counts(
    leader: Leader, said: PartitionMetadata, answer: PartitionMetadata | IneligibleReplicaError
) -> None:
    """Its answer to what was asked for before that is an old one."""

    async def scenario() -> None:
        await leader.catch_up()
        leader.lead(said)
        leader.fetched(A, 4)
        leader.fetched(B, 4)
        await settled()
        # Who has caught up asks anew, of what is now.
        (again,) = leader.asked[1:]
        assert (again.leader_epoch, again.partition_epoch) == (said.leader_epoch, 8)
        leader.answers.pop()
        await leader.answer(answer)
        partition = leader.partition
        assert (partition.isr, partition.partition_epoch) == (said.isr, 8)
        assert partition.awaits(again)

    asyncio.run(scenario())


@pytest.mark.parametrize("goes", ["follows", "stops"])
def test_an_answer_that_comes_when_it_leads_no_more_changes_nothing(
    leader: Leader, goes: str
) -> None:
    async def scenario() -> None:
        await leader.catch_up()
        partition = leader.partition
        if goes == "follows":
            elsewhere = replace(STATE, leader=A, leader_epoch=6, partition_epoch=8)
            leader.replicas.follow(PLACE, TOPIC_ID, elsewhere)
        else:
            leader.replicas.stop(PLACE)
        before = partition.partition_epoch, partition.high_watermark
        await leader.answer(replace(STATE, isr=(ME, A, B), partition_epoch=9))
        assert (partition.partition_epoch, partition.high_watermark) == before
        assert not partition.has_followers

    asyncio.run(scenario())
