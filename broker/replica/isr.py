"""Which replicas of a partition are in sync, as its leader sees them.

Owns: how far each follower has fetched, the ISR as the controller has it, and the change of it that
the leader has asked for. No clock and no network: times are handed in, in milliseconds, and who
calls sends the change that is proposed. As Apache Kafka's Partition and Replica; KIP-497.
Called by: Partition, on the event loop's thread.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kafka.structs import TopicPartition

NO_OFFSET: Final = -1
_NEVER_MS: Final = -(1 << 62)


class Follower:
    """What a leader knows of one follower since its leader epoch began."""

    __slots__ = (
        "_caught_up_ms",
        "_fetched_ms",
        "_leader_end_offset",
        "end_offset",
        "log_start_offset",
    )

    def __init__(self, caught_up_ms: int) -> None:
        self.end_offset = NO_OFFSET
        """Where its log ends: it has fetched all below."""
        self.log_start_offset = NO_OFFSET
        self._caught_up_ms = caught_up_ms
        # Of its last fetch: when that was, and where the leader's log ended then.
        self._fetched_ms = 0
        self._leader_end_offset = NO_OFFSET

    def fetched(
        self, offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int
    ) -> None:
        """It asks for what comes from `offset` on."""
        if offset >= leader_end_offset:
            self._caught_up_ms = max(self._caught_up_ms, now_ms)
        elif offset >= self._leader_end_offset:
            self._caught_up_ms = max(self._caught_up_ms, self._fetched_ms)
        self.end_offset = offset
        self.log_start_offset = log_start_offset
        self._fetched_ms = now_ms
        self._leader_end_offset = leader_end_offset

    @property
    def progress(self) -> tuple[int, int]:
        """How far it is, and when it was last known to have all, to be compared."""
        return self.end_offset, self._caught_up_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """Whether it has all, or had all that there was not longer than `max_lag_ms` ago."""
        return self.end_offset == leader_end_offset or now_ms - self._caught_up_ms <= max_lag_ms


class ReplicaHost:
    """What all partitions of a broker share: which it is, and what it knows of the others."""

    def __init__(
        self,
        node_id: int,
        max_lag_ms: int,
        is_live: Callable[[int], bool],
        is_known: Callable[[TopicPartition], bool],
        now_ms: Callable[[], int],
        rack_of: Callable[[int], str | None] | None = None,
    ) -> None:
        """`max_lag_ms`: replica.lag.time.max.ms; `is_live`: whether a broker is there; `is_known`:
        whether a partition is, anywhere; `now_ms`: a clock that never goes back; `rack_of`: the
        rack of a broker that is there, None where consumers are to ask leaders, wherever they
        are."""
        self.node_id = node_id
        self.max_lag_ms = max_lag_ms
        self.is_live = is_live
        self.is_known = is_known
        self.now_ms = now_ms
        self.rack_of = rack_of


class InSyncReplicas:
    """Those of one partition that its broker leads."""

    __slots__ = ("_host", "_proposed", "committed", "followers")

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host
        self.committed: tuple[int, ...] = ()
        """As the controller has them, the leader among them."""
        self.followers: dict[int, Follower] = {}
        """Every other replica, in sync or not."""
        self._proposed: tuple[int, ...] | None = None

    @property
    def is_changing(self) -> bool:
        """Whether a change is asked for, and not answered: there is one at a time."""
        return self._proposed is not None

    def begin(
        self,
        replicas: Sequence[int],
        isr: tuple[int, ...],
        is_new_epoch: bool,
        is_known: bool = False,
    ) -> None:
        """The controller says who keeps the partition and who is in sync. In a new leader epoch
        nothing is known of any follower. Where it says again what `is_known`, what was asked for
        may be done any moment."""
        now_ms = self._host.now_ms()
        known = {} if is_new_epoch else self.followers
        self.followers = {
            node_id: known.get(node_id) or Follower(now_ms if node_id in isr else _NEVER_MS)
            for node_id in replicas
            if node_id != self._host.node_id
        }
        if not is_known:
            self.settle(isr)

    def clear(self) -> None:
        """The partition is led elsewhere."""
        self.followers = {}
        self._proposed = None

    def settle(self, isr: tuple[int, ...]) -> None:
        """The ISR is this, whatever was asked for."""
        self.committed = isr
        self._proposed = None

    def give_up(self) -> None:
        """What was asked for is not to be; it may be asked for again."""
        self._proposed = None

    def propose(self, isr: tuple[int, ...]) -> None:
        """A change is asked for."""
        self._proposed = isr

    def committed_end(self, end_offset: int) -> int:
        """Up to where all have the log that ends at `end_offset`: those in sync, those that may be
        so any moment, by a change that is asked for or as they have caught up."""
        host = self._host
        now_ms = host.now_ms()
        least = end_offset
        for node_id, follower in self.followers.items():
            if follower.end_offset < least and (
                self._may_be_in_sync(node_id)
                or (
                    follower.is_caught_up(end_offset, now_ms, host.max_lag_ms)
                    and host.is_live(node_id)
                )
            ):
                least = follower.end_offset
        return least

    def _may_be_in_sync(self, node_id: int) -> bool:
        return node_id in self.committed or (
            self._proposed is not None and node_id in self._proposed
        )

    def with_follower(
        self, node_id: int, high_watermark: int, epoch_start_offset: int
    ) -> tuple[int, ...] | None:
        """The ISR that `node_id` is to join: it is there, has all that is committed, and what the
        leader's epoch began with. None where it is in it, or may not yet."""
        follower = self.followers.get(node_id)
        if (
            follower is None
            or self.is_changing
            or node_id in self.committed
            or follower.end_offset < max(high_watermark, epoch_start_offset)
            or not self._host.is_live(node_id)
        ):
            return None
        return (*self.committed, node_id)

    def nearest(self, rack: str, offset: int) -> int | None:
        """The follower from which a consumer in that rack should fetch, at that offset: in sync, in
        the same rack, and of those who has most; None where that is the leader (KIP-392)."""
        rack_of = self._host.rack_of
        if rack_of is None or rack_of(self._host.node_id) == rack:
            return None
        fit = [
            (*follower.progress, node_id)
            for node_id, follower in self.followers.items()
            if node_id in self.committed
            and follower.log_start_offset <= offset <= follower.end_offset
            and rack_of(node_id) == rack
        ]
        return max(fit)[-1] if fit else None

    def without_laggards(self, end_offset: int) -> tuple[int, ...] | None:
        """The ISR without those that have not caught up for too long; None where all have."""
        if self.is_changing:
            return None
        host = self._host
        now_ms = host.now_ms()
        late = {
            node_id
            for node_id, follower in self.followers.items()
            if node_id in self.committed
            and not follower.is_caught_up(end_offset, now_ms, host.max_lag_ms)
        }
        return tuple(each for each in self.committed if each not in late) if late else None
