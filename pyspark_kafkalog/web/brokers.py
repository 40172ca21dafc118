"""What the page asks of a cluster: each broker by itself, in a thread of its own, by a deadline.

A broker that hangs costs what it alone knows, and a sentence: the others are asked meanwhile, and
for _QUIET_MS nobody waits for it again. One question at a time to each. What every broker knows,
the overview, any of them is asked for, once for all who want it at the same time. Any thread.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as UnansweredError
from dataclasses import dataclass, replace
from threading import Lock
from typing import TypeVar
from uuid import UUID

from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

from pyspark_kafkalog.client.cluster import BrokerAddress, Cluster, ClusterOverview
from pyspark_kafkalog.client.config import ClientConfig, address
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.errors import BrokersUnreachableError, KafkalogError, sentence

ERRORS = (KafkaError, KafkalogError, OSError)
"""What a question may end with that is a sentence for people."""

_QUIET_MS = 10_000
_FRESH_MS = 1_000
_MORE_MS = 500
"""What a question may take besides its deadline."""
_MOST_THREADS = 32
_SILENT = (BrokersUnreachableError, KafkaConnectionError, KafkaTimeoutError)

T = TypeVar("T")
Question = Callable[[Cluster, BrokerAddress], T]


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster as a broker told it; `trouble` says why it was not told anew, if it was not."""

    overview: ClusterOverview
    topic_ids: Mapping[str, UUID | None]
    trouble: str = ""


class Brokers:
    """The brokers of the cluster that `config` names."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._any = _Asked(config)
        self._each: dict[BrokerAddress, _Asked] = {}
        self._lock = Lock()
        self._seen: tuple[Seen, Deadline] | None = None
        self._threads = ThreadPoolExecutor(_MOST_THREADS, "asks-broker")

    def close(self) -> None:
        """Asks no more, and closes the connections on which nobody waits for an answer."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for asked in (self._any, *self._each.values()):
            asked.close()

    def seen(self, topic: str | None = None) -> Seen:
        """The cluster now, or a moment ago if `topic` was there; where no broker answers, as it was
        last seen. Raises ERRORS where it never was."""
        known = self._seen_lately(topic)
        if known is not None:
            return known
        try:
            return self._any.ask(lambda one: self._look(one, topic), self.config.request_timeout_ms)
        except ERRORS as error:
            if self._seen is None:
                raise
            return replace(self._seen[0], trouble=sentence(error))

    def _look(self, cluster: Cluster, topic: str | None) -> Seen:
        known = self._seen_lately(topic)  # somebody else may have asked while we waited
        if known is not None:
            return known
        overview = cluster.overview()
        seen = Seen(overview, {name: cluster.topic_id(name) for name in overview.topics})
        self._seen = seen, Deadline(_FRESH_MS)
        return seen

    def _seen_lately(self, topic: str | None) -> Seen | None:
        known = self._seen
        if known is None or known[1].expired:
            return None
        return known[0] if topic is None or topic in known[0].overview.topics else None

    def each(
        self, brokers: Mapping[int, BrokerAddress], questions: Mapping[int, Question[T]]
    ) -> tuple[dict[int, T], list[str]]:
        """The answers by broker's id, and a sentence for each broker that gave none."""
        deadline = Deadline(self.config.request_timeout_ms + _MORE_MS)
        found: dict[int, T] = {}
        missing = []
        asked = {}
        for broker_id in sorted(questions):
            if broker_id in brokers:
                ask = self._broker(brokers[broker_id]).ask
                question = _of(questions[broker_id], brokers[broker_id])
                asked[broker_id] = self._threads.submit(ask, question, deadline.remaining_ms)
        for broker_id, answer in asked.items():
            try:
                found[broker_id] = answer.result(deadline.remaining_s)
            except (UnansweredError, *_SILENT):
                answer.cancel()
                name = _name(brokers[broker_id])
                missing.append(f"{name} does not answer: what it alone knows is left out.")
            except ERRORS as error:
                missing.append(f"{_name(brokers[broker_id])}: {sentence(error)}")
        return found, missing

    def _broker(self, broker: BrokerAddress) -> "_Asked":
        with self._lock:
            if broker not in self._each:
                alone = replace(self.config, bootstrap_servers=((broker.host, broker.port),))
                for gone in [old for old in self._each if old.broker_id == broker.broker_id]:
                    self._each.pop(gone).close()
                self._each[broker] = _Asked(alone)
            return self._each[broker]


class _Asked:
    """A client for one question at a time, which after a silence is left alone for a while."""

    def __init__(self, config: ClientConfig) -> None:
        self._cluster = Cluster(config, fails_fast=True)
        self._lock = Lock()
        self._quiet = Deadline(0)
        self._why = ""

    def ask(self, question: Callable[[Cluster], T], wait_ms: float) -> T:
        """Raises ERRORS; BrokersUnreachableError also without asking."""
        self._refuse_if_quiet()
        if not self._lock.acquire(timeout=wait_ms / 1000):
            raise BrokersUnreachableError("It has not answered the question before this one yet.")
        try:
            self._refuse_if_quiet()
            return question(self._cluster)
        except _SILENT as error:
            self._why, self._quiet = sentence(error), Deadline(_QUIET_MS)
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        if self._lock.acquire(blocking=False):
            self._cluster.close()
            self._lock.release()

    def _refuse_if_quiet(self) -> None:
        if not self._quiet.expired:
            raise BrokersUnreachableError(self._why)


def _of(question: Question[T], broker: BrokerAddress) -> Callable[[Cluster], T]:
    return lambda cluster: question(cluster, broker)


def _name(broker: BrokerAddress) -> str:
    return f"Broker {broker.broker_id} at {address(broker.host, broker.port)}"
