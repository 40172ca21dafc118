"""A coordinator without a broker: its time is a number, its log a list. Quick, and repeatable."""

import heapq
import itertools
from collections.abc import Callable, Sequence

from kafka.errors import BrokerResponseError
from kafka.structs import TopicPartition

from broker.config import BrokerConfig
from broker.coordinator.group import CommitAsk, GroupCoordinator, JoinAsk, SyncAsk, new_commit
from broker.coordinator.group_metadata import JoinResult, MemberProtocol, SyncResult
from broker.coordinator.offsets import GroupReplay
from broker.coordinator.state_records import StateRecord
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
    """What has been appended; `error` refuses the next appends."""

    def __init__(self) -> None:
        self.records: list[StateRecord] = []
        self.appends: list[Sequence[StateRecord]] = []
        self.error: BrokerResponseError | None = None
        self.is_loading = False

    def check_coordinates(self, group_id: str) -> None:
        """Every group lives here."""

    def append(self, group_id: str, records: Sequence[StateRecord]) -> None:
        if self.error is not None:
            raise self.error
        self.appends.append(records)
        self.records += records


class Coordinated:
    """A coordinator, its time and its log; `restart` loses what is in memory alone."""

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        defaults = {"group.initial.rebalance.delay.ms": "0"}
        self.config = BrokerConfig.from_properties(defaults | (properties or {}))
        self.time = FakeTime()
        self.log = MemoryLog()
        self.timers = Timers(self.time.call_later, self.time.clock_s)
        self.groups = self._coordinator()

    def _coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.config, self.log, self.timers, self.time.clock_ms)

    def restart(self) -> None:
        """As after SIGKILL: answers that were waited for never come."""
        self.timers.cancel_all()
        self.groups = self._coordinator()
        replay = GroupReplay()
        replay.add(self.log.records)
        self.groups.take_over(replay.groups())

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
        now_ms = self.time.clock_ms()
        commits = [
            (place, new_commit(offset, -1, "", now_ms, retention_ms, None))
            for place, offset in offsets.items()
        ]
        ask = CommitAsk(GROUP, member_id, instance_id, generation, commits)
        assert self.groups.commit(ask) == [None] * len(offsets)

    def committed(self) -> dict[TopicPartition, int]:
        return {place: each.offset for place, each in self.groups.committed(GROUP).items()}

    def stable_member(self, **options: object) -> JoinResult:
        """A group of one."""
        answers = self.join(**options)  # type: ignore[arg-type]
        self.time.advance(0.001)
        joined = answers[0]
        assert joined.error is None
        synced = self.sync(joined.member_id, joined.generation, {joined.member_id: b"all"})
        assert synced[0].assignment == b"all"
        return joined
