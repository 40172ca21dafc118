"""Producers, zombies, timeouts and crashes against what transactions promise.

Producers of both transaction versions share transactional ids; whoever was replaced goes on as a
zombie. The broker is killed before any step that changes a disk. In the end a read_committed reader
finds each transaction wholly or not at all: wholly if its commit was acknowledged, not at all if
its abort was, or its commit was refused for ever; and every log is readable to its end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from kafka.errors import BrokerResponseError
from kafka.structs import TopicPartition

from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_metadata import EPOCH_BUMP_VERSION
from tests.broker.coordinator.transactions_in_memory import TOPIC, Crashed, TransactionBroker

IDS = ("one", "two")
PARTITIONS = 3
TIMEOUT_MS = 60_000
PLACES = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]


@dataclass(eq=False)
class Attempt:
    """One transaction as its producer sees it."""

    acknowledged: set[bytes] = field(default_factory=set)
    uncertain: set[bytes] = field(default_factory=set)
    outcome: str = "open"


@dataclass(eq=False)
class Instance:
    """A producer; it believes that it is the only one with its id."""

    transactional_id: str
    is_version_2: bool
    identity: ProducerIdAndEpoch
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    added: set[TopicPartition] = field(default_factory=set)
    attempt: Attempt = field(default_factory=Attempt)
    failed: bool = False

    @property
    def client_version(self) -> int:
        return EPOCH_BUMP_VERSION if self.is_version_2 else 0


instances = st.integers(0, 11)


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.broker = TransactionBroker(PARTITIONS)
        self.producers: list[Instance] = []
        self.attempts: list[Attempt] = []
        self.values = 0

    # What may be killed: the answer is lost, the broker comes back.

    def ask(
        self, call: Callable[[], ProducerIdAndEpoch | int | None]
    ) -> tuple[ProducerIdAndEpoch | int | None, BrokerResponseError | Crashed | None]:
        """(answer, None), (None, error), or (None, Crashed)."""
        try:
            return call(), None
        except BrokerResponseError as error:
            return None, error
        except Crashed as crash:
            self.broker.restart()
            return None, crash

    @rule(
        transactional_id=st.sampled_from(IDS), is_version_2=st.booleans(), tries=st.integers(1, 3)
    )
    def start(self, transactional_id: str, is_version_2: bool, tries: int) -> None:
        for _ in range(tries):
            identity, _ = self.ask(
                lambda: self.broker.coordinator.initialize(transactional_id, TIMEOUT_MS)
            )
            if identity is not None:
                assert isinstance(identity, ProducerIdAndEpoch)
                producer = Instance(transactional_id, is_version_2, identity)
                self.producers.append(producer)
                self.attempts.append(producer.attempt)
                return

    @precondition(lambda self: self.producers)
    @rule(index=instances, partition=st.integers(0, PARTITIONS - 1))
    def send(self, index: int, partition: int) -> None:
        producer = self.producers[index % len(self.producers)]
        place = PLACES[partition]
        if producer.failed or producer.attempt.outcome != "open":
            return  # No producer sends while it does not know how its transaction has ended.
        if not producer.is_version_2 and place not in producer.added:
            _, error = self.ask(
                lambda: self.broker.coordinator.add_partitions(
                    producer.transactional_id, producer.identity, frozenset((place,)), 0
                )
            )
            if error is not None:
                return
            producer.added.add(place)
        self.values += 1
        value = b"%d" % self.values
        code, error = self.ask(
            lambda: self.broker.produce(
                producer.transactional_id,
                producer.identity,
                place,
                value,
                producer.sequences.get(place, 0),
                version=12 if producer.is_version_2 else 9,
            )
        )
        if code == 0:
            producer.sequences[place] = producer.sequences.get(place, 0) + 1
            producer.attempt.acknowledged.add(value)
        elif error is not None:
            # Not known whether it is there: a producer would send it again, or give up.
            producer.attempt.uncertain.add(value)
            producer.failed = True
        else:
            producer.failed = True

    @precondition(lambda self: self.producers)
    @rule(index=instances, is_commit=st.booleans())
    def end(self, index: int, is_commit: bool) -> None:
        producer = self.producers[index % len(self.producers)]
        attempt = producer.attempt
        if attempt.outcome == "unknown":
            return
        if attempt.outcome == "tries to commit":
            is_commit = True
        elif attempt.outcome == "tries to abort" or producer.failed:
            is_commit = False
        answer, error = self.ask(
            lambda: self.broker.coordinator.end(
                producer.transactional_id,
                producer.identity,
                producer.client_version,
                is_commit=is_commit,
            )
        )
        if isinstance(error, Crashed) or getattr(error, "retriable", False):
            attempt.outcome = "tries to commit" if is_commit else "tries to abort"
        elif error is not None:
            # Refused for good: fenced, timed out, or nothing to end. What an earlier try of a
            # commit has done is not known.
            if attempt.outcome == "tries to commit":
                attempt.outcome = "unknown"
            else:
                attempt.outcome = "aborted"
            producer.failed = True
        else:
            attempt.outcome = "committed" if is_commit else "aborted"
            assert isinstance(answer, ProducerIdAndEpoch)
            self.go_on(producer, answer)

    def go_on(self, producer: Instance, identity: ProducerIdAndEpoch) -> None:
        if producer.is_version_2:
            producer.identity = identity
            producer.sequences.clear()
        elif producer.failed:
            return  # its sequence numbers are not known
        producer.failed = False
        producer.added.clear()
        producer.attempt = Attempt()
        self.attempts.append(producer.attempt)

    @rule(steps=st.integers(0, 6))
    def will_crash(self, steps: int) -> None:
        self.broker.crash_after(steps)

    @rule()
    def crash(self) -> None:
        self.broker.restart()

    @rule(seconds=st.sampled_from([0.1, 10.0, 61.0]))
    def wait(self, seconds: float) -> None:
        try:
            self.broker.time.advance(seconds)
        except Crashed:
            self.broker.restart()

    @rule()
    def check(self) -> None:
        """At any time: nothing of an open or aborted transaction is read.

        What was committed may lie behind the first open transaction of its partition: it is looked
        for in the end.
        """
        seen = {value for place in PLACES for value in self.broker.committed(place)}
        for attempt in self.attempts:
            if attempt.outcome in ("open", "aborted"):
                assert not seen & (attempt.acknowledged | attempt.uncertain), attempt

    def teardown(self) -> None:
        self.broker.restart()
        for _ in range(3):
            self.broker.time.advance(TIMEOUT_MS / 1000 + 1)
        for place in PLACES:
            assert self.broker.stable_offset(place) == self.broker.logs[place].log_end_offset
        read = [value for place in PLACES for value in self.broker.committed(place)]
        seen = set(read)
        assert len(seen) == len(read)
        for attempt in self.attempts:
            everything = attempt.acknowledged | attempt.uncertain
            found = seen & everything
            assert not found or attempt.acknowledged <= found, attempt
            if attempt.outcome == "committed":
                assert attempt.acknowledged <= found, attempt
            if attempt.outcome in ("open", "aborted", "tries to abort"):
                assert not found, attempt
        for transaction in self.broker.coordinator.transactions().values():
            assert not transaction.is_ongoing
            assert not transaction.is_prepared


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(stateful_step_count=60)
