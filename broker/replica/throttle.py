"""How fast logs are copied to replicas that are not in sync yet: what `--throttle` of
kafka-reassign-partitions sets.

Owns: how many bytes of throttled partitions went by in the last seconds, as a leader and as a
follower. As Apache Kafka's ReplicationQuotaManager: what goes by is counted first, and nothing more
is sent, or asked for, while the mean of the window is above the limit. Which partitions are
throttled is their topic's to say, by partition and broker. Called by: the event loop's thread; any
thread may `configure`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.config.broker import BrokerConfig

_EVERY: Final = "*"


@dataclass(slots=True)
class _Sample:
    """What went by since it began; when that last was."""

    began_ms: int
    last_ms: int = 0
    size_bytes: int = 0


class Throttle:
    """One direction of copying."""

    def __init__(self, now_ms: Callable[[], int], samples: int, sample_ms: int) -> None:
        """Of the last `samples` times `sample_ms`."""
        self._now_ms = now_ms
        self._sample_ms = sample_ms
        self._window_ms = samples * sample_ms
        self._samples: deque[_Sample] = deque()
        self.bytes_per_s: int | None = None
        """None: as fast as it goes."""

    def record(self, size_bytes: int) -> None:
        """So many bytes went by."""
        now_ms = self._now_ms()
        if not self._samples or now_ms - self._samples[-1].began_ms >= self._sample_ms:
            self._samples.append(_Sample(now_ms))
        newest = self._samples[-1]
        newest.last_ms = now_ms
        newest.size_bytes += size_bytes

    @property
    def is_exceeded(self) -> bool:
        """Whether more than the limit went by."""
        if self.bytes_per_s is None:
            return False
        now_ms, samples = self._now_ms(), self._samples
        while samples and now_ms - samples[0].last_ms >= self._window_ms:
            samples.popleft()
        if not samples:
            return False
        window_ms = max(now_ms - samples[0].began_ms, self._sample_ms)
        return sum(each.size_bytes for each in samples) * 1000 > self.bytes_per_s * window_ms


class Throttles:
    """Of what this broker sends, and of what it fetches."""

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        samples = config.replication_quota_window_num
        sample_ms = 1000 * config.replication_quota_window_size_seconds
        self.leader = Throttle(now_ms, samples, sample_ms)
        self.follower = Throttle(now_ms, samples, sample_ms)
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """The limits may have changed."""
        self.leader.bytes_per_s = config.leader_replication_throttled_rate
        self.follower.bytes_per_s = config.follower_replication_throttled_rate


def is_listed(replicas: Sequence[str], partition: int, node_id: int) -> bool:
    """Whether a topic's list of throttled replicas has this broker's."""
    if not replicas:
        return False
    return _EVERY in replicas or f"{partition}:{node_id}" in replicas
