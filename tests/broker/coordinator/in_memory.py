"""A coordinator without a broker: its time is a number, its log a list. Quick, and repeatable."""

import heapq
import itertools
from collections.abc import Callable, Sequence

from kafka.errors import BrokerResponseError
from kafka.structs import TopicPartition

from broker.config.broker import BrokerConfig
from broker.coordinator.group import CommitAsk, GroupCoordinator, JoinAsk, SyncAsk, new_commit
from broker.coordinator.group_metadata import JoinResult, MemberProtocol, SyncResult
from broker.coordinator.offset_records import CommittedOffset
from broker.coordinator.offsets import GroupReplay, Groups
from broker.coordinator.state_records import ProducerIdAndEpoch, StateRecord
from broker.coordinator.timers import Timers

START_MS = 1_700_000_000_000
GROUP = "group"


class FakeTime:
    """Time that passes when it is told to, and what is to happen then."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._numbers = itertools.count()
        self._queue: list[tuple[float, int, FakeTimer]] = []

    def call_later(self, delay_s: float, run: Callable[[], None]) -> "FakeTimer":
        timer = FakeTimer(run)
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._numbers), timer))
        return timer

    def clock_s(self) -> float:
        return self.now_s

    def clock_ms(self) -> int:
        return START_MS + int(self.now_s * 1000)

    def advance(self, seconds: float) -> None:
        """Runs what is due on the way, in its order."""
        end_s = self.now_s + seconds
        while self._queue and self._queue[0][0] <= end_s:
            due_s, _, timer = heapq.heappop(self._queue)
            self.now_s = max(self.now_s, due_s)
            if not timer.cancelled:
                timer.run()
        self.now_s = end_s


class FakeTimer:
    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class MemoryLog:
    """What has been appended, a batch at each offset; `error` refuses the next appends."""

    def __init__(self) -> None:
        self._written: list[Callable[[GroupReplay], None]] = []
        self.appends: list[Sequence[StateRecord]] = []
        self.error: BrokerResponseError | None = None
        self.is_loading_any = False

    def check_coordinates(self, group_id: str) -> None:
        """Every group lives here."""

    def partition_of(self, group_id: str) -> int:
        """Every group lives in the same."""
        return 0

    def is_loading(self, partition: int) -> bool:
        """All at once."""
        return self.is_loading_any

    def append(
        self,
        group_id: str,
        records: Sequence[StateRecord],
        producer: ProducerIdAndEpoch | None = None,
    ) -> int:
        if self.error is not None:
            raise self.error
        self.appends.append(records)
        offset = len(self._written)
        producer_id = None if producer is None else producer.producer_id
        self._written.append(lambda replay: replay.add(records, offset, producer_id))
        return offset

    def end_transaction(self, producer: ProducerIdAndEpoch, *, is_commit: bool) -> None:
        """Its marker."""
        self._written.append(
            lambda replay: replay.complete_transaction(producer.producer_id, is_commit=is_commit)
        )

    def read(self) -> Groups:
        replay = GroupReplay()
        for write in self._written:
            write(replay)
        return replay.groups()


class Coordinated:
    """A coordinator, its time and its log; `restart` loses what is in memory alone."""

    def __init__(
        self, properties: dict[str, str] | None = None, log: MemoryLog | None = None
    ) -> None:
        defaults = {"group.initial.rebalance.delay.ms": "0"}
        self.config = BrokerConfig.from_properties(defaults | (properties or {}))
        self.time = FakeTime()
        self.log = MemoryLog() if log is None else log
        self.timers = Timers(self.time.call_later, self.time.clock_s)
        self.groups = self._coordinator()

    def _coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.config, self.log, self.timers, self.time.clock_ms)

    def restart(self) -> None:
        """As after SIGKILL: answers that were waited for never come."""
        self.timers.cancel_all()
        self.groups = self._coordinator()
        self.groups.take_over(self.log.read())

    def join(
        self,
        member_id: str = "",
        instance_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b""),),
        *,
        protocol_type: str = "consumer",
        needs_id: bool = False,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 20_000,
    ) -> list[JoinResult]:
        """The list that the answer will be put into."""
        answers: list[JoinResult] = []
        ask = JoinAsk(
            group_id=GROUP,
            member_id=member_id,
            instance_id=instance_id,
            client_id="client",
            client_host="/127.0.0.1",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=protocol_type,
            protocols=tuple(MemberProtocol(*protocol) for protocol in protocols),
            requires_known_member_id=needs_id,
        )
        self.groups.join(ask, answers.append)
        return answers

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        instance_id: str | None = None,
    ) -> list[SyncResult]:
        answers: list[SyncResult] = []
        ask = SyncAsk(GROUP, generation, member_id, instance_id, None, None, assignments or {})
        self.groups.sync(ask, answers.append)
        return answers

    def commit(
        self,
        offsets: dict[TopicPartition, int],
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        retention_ms: int = -1,
    ) -> None:
        commits = self._commits(offsets, retention_ms)
        ask = CommitAsk(GROUP, member_id, instance_id, generation, commits)
        assert self.groups.commit(ask) == [None] * len(offsets)

    def commit_in_transaction(
        self,
        producer: ProducerIdAndEpoch,
        offsets: dict[TopicPartition, int],
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        group_id: str = GROUP,
    ) -> None:
        ask = CommitAsk(group_id, member_id, instance_id, generation, self._commits(offsets))
        assert self.groups.commit_transactional(ask, producer) == [None] * len(offsets)

    def end_transaction(self, producer: ProducerIdAndEpoch, *, is_commit: bool) -> None:
        """As its coordinator does it: the marker, then the word to the groups."""
        self.log.end_transaction(producer, is_commit=is_commit)
        self.groups.complete_transaction(producer.producer_id, [0], is_commit=is_commit)

    def _commits(
        self, offsets: dict[TopicPartition, int], retention_ms: int = -1
    ) -> list[tuple[TopicPartition, CommittedOffset]]:
        now_ms = self.time.clock_ms()
        return [
            (place, new_commit(offset, -1, "", now_ms, retention_ms, None))
            for place, offset in offsets.items()
        ]

    def committed(self, group_id: str = GROUP) -> dict[TopicPartition, int]:
        return {place: each.offset for place, each in self.groups.committed(group_id).items()}

    def stable_member(self, **options: object) -> JoinResult:
        """A group of one."""
        answers = self.join(**options)  # type: ignore[arg-type]
        self.time.advance(0.001)
        joined = answers[0]
        assert joined.error is None
        synced = self.sync(joined.member_id, joined.generation, {joined.member_id: b"all"})
        assert synced[0].assignment == b"all"
        return joined
