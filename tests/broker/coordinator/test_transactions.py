"""The transaction coordinator with a clock and logs of the test's own: time, failures, restarts.

What every request is answered is in tests/broker/api/test_txn_protocol.py.
"""

import contextlib
from collections.abc import Callable

import pytest
from kafka.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    KafkaStorageError,
    ProducerFencedError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster.control import LEADER_DURING_DELETE
from broker.cluster.metadata import CONSUMER_OFFSETS, new_topic
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_metadata import TransactionState
from tests.broker.coordinator.transactions_in_memory import TOPIC, Crashed, TransactionBroker
from tests.support.records import batch_of

ID = "mine"
PLACE, OTHER = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
DAY_S = 24 * 3600.0


@pytest.fixture
def broker() -> TransactionBroker:
    return TransactionBroker()


def begin(
    broker: TransactionBroker, *places: TopicPartition, timeout_ms: int = 60_000
) -> ProducerIdAndEpoch:
    """A producer with a record in each place."""
    producer = broker.coordinator.initialize(ID, timeout_ms)
    broker.coordinator.add_partitions(ID, producer, frozenset(places or (PLACE, OTHER)), 0)
    for place in places or (PLACE, OTHER):
        assert broker.produce(ID, producer, place, b"x", 0, version=9) == 0
    return producer


def state(broker: TransactionBroker) -> TransactionState:
    return broker.coordinator.transaction(ID).state


def test_a_transaction_that_lasts_too_long_is_aborted(broker: TransactionBroker) -> None:
    producer = begin(broker, timeout_ms=10_000)
    broker.time.advance(9.9)
    assert state(broker) is TransactionState.ONGOING
    broker.time.advance(0.2)
    assert state(broker) is TransactionState.COMPLETE_ABORT
    assert broker.stable_offset(PLACE) == 2
    assert broker.committed(PLACE) == []
    with pytest.raises(ProducerFencedError):
        broker.coordinator.end(ID, producer, 0, is_commit=True)
    assert broker.produce(ID, producer, PLACE, b"late", 1, version=9) == 47


@pytest.mark.parametrize("jump_s", [-DAY_S, -5, 5, DAY_S])
def test_a_clock_that_is_set_changes_no_transactions_time(
    broker: TransactionBroker, jump_s: float
) -> None:
    """Timers run by a clock that never jumps, times are written down by one that may."""
    begin(broker, timeout_ms=10_000)
    broker.coordinator._clock = lambda: broker.time.clock_ms() + int(jump_s * 1000)
    broker.time.advance(9.9)
    assert state(broker) is TransactionState.ONGOING
    broker.time.advance(0.2)
    assert state(broker) is TransactionState.COMPLETE_ABORT


def test_a_clock_that_was_set_back_before_a_restart_holds_nobody_back(
    broker: TransactionBroker,
) -> None:
    begin(broker, timeout_ms=10_000)
    broker.time.now_s -= DAY_S
    broker.restart()
    broker.time.advance(9.9)
    assert state(broker) is TransactionState.ONGOING
    broker.time.advance(0.2)
    assert state(broker) is TransactionState.COMPLETE_ABORT


def test_each_transaction_has_its_own_time(broker: TransactionBroker) -> None:
    producer = begin(broker, PLACE, timeout_ms=10_000)
    broker.time.advance(8)
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    broker.time.advance(1)
    broker.coordinator.add_partitions(ID, producer, frozenset((PLACE,)), 0)
    broker.time.advance(9)
    assert state(broker) is TransactionState.ONGOING
    broker.time.advance(1.1)
    assert state(broker) is TransactionState.COMPLETE_ABORT


def test_a_timeout_goes_on_after_a_restart(broker: TransactionBroker) -> None:
    begin(broker, timeout_ms=10_000)
    broker.time.advance(6)
    broker.restart()
    broker.time.advance(3.9)
    assert state(broker) is TransactionState.ONGOING
    broker.time.advance(0.2)
    assert state(broker) is TransactionState.COMPLETE_ABORT


def test_a_timeout_that_the_log_refuses_is_tried_again(broker: TransactionBroker) -> None:
    begin(broker, timeout_ms=1000)
    broker.state.error = CoordinatorNotAvailableError()
    broker.time.advance(5)
    assert state(broker) is TransactionState.ONGOING
    broker.state.error = None
    broker.time.advance(1)
    assert state(broker) is TransactionState.COMPLETE_ABORT


def test_what_the_log_refuses_has_not_happened(broker: TransactionBroker) -> None:
    producer = begin(broker)
    before = broker.coordinator.transaction(ID)
    broker.state.error = CoordinatorNotAvailableError()
    with pytest.raises(CoordinatorNotAvailableError):
        broker.coordinator.end(ID, producer, 0, is_commit=True)
    with pytest.raises(CoordinatorNotAvailableError):
        broker.coordinator.initialize(ID, 1000)
    with pytest.raises(CoordinatorNotAvailableError):
        broker.coordinator.initialize("new", 1000)
    assert broker.coordinator.transaction(ID) is before
    assert list(broker.coordinator.transactions()) == [ID]
    assert broker.stable_offset(PLACE) == 0
    broker.state.error = None
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    assert broker.committed(PLACE) == [b"x"]


def test_no_marker_is_written_before_the_decision_is_safe(broker: TransactionBroker) -> None:
    producer = begin(broker)
    broker.state.uncommitted = []
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    assert broker.stable_offset(PLACE) == 0
    with pytest.raises(ConcurrentTransactionsError):
        broker.coordinator.end(ID, producer, 0, is_commit=True)
    (run,) = broker.state.uncommitted
    run()
    assert broker.committed(PLACE) == [b"x"]
    assert state(broker) is TransactionState.COMPLETE_COMMIT


def test_a_disk_that_refuses_a_marker_is_tried_again(broker: TransactionBroker) -> None:
    producer = begin(broker)
    broker.replicas.refused, broker.replicas.error = {OTHER}, KafkaStorageError("full")
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    assert broker.stable_offset(PLACE) == 2
    assert broker.stable_offset(OTHER) == 0
    broker.time.advance(10)
    assert state(broker) is TransactionState.PREPARE_COMMIT
    with pytest.raises(ConcurrentTransactionsError):
        broker.coordinator.initialize(ID, 1000)
    broker.replicas.refused = set()
    broker.time.advance(1)
    assert state(broker) is TransactionState.COMPLETE_COMMIT
    assert broker.committed(OTHER) == [b"x"]


@pytest.mark.parametrize(
    "error", [UnknownTopicOrPartitionError(), TransactionCoordinatorFencedError()]
)
def test_a_partition_that_can_have_no_marker_holds_nobody_up(
    broker: TransactionBroker, error: UnknownTopicOrPartitionError
) -> None:
    """Its topic was deleted, or somebody ended the transaction by hand."""
    producer = begin(broker)
    broker.replicas.refused, broker.replicas.error = {PLACE}, error
    if isinstance(error, UnknownTopicOrPartitionError):
        broker.tell(broker.topics[TOPIC], LEADER_DURING_DELETE)
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    assert state(broker) is TransactionState.COMPLETE_COMMIT
    assert broker.committed(OTHER) == [b"x"]


def test_a_transaction_of_many_partitions_lets_others_have_their_turn() -> None:
    broker = TransactionBroker(100)
    producer = begin(broker, *broker.places(TOPIC))
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    assert state(broker) is TransactionState.PREPARE_COMMIT
    broker.time.advance(0)
    assert state(broker) is TransactionState.COMPLETE_COMMIT
    assert all(broker.committed(place) == [b"x"] for place in broker.places(TOPIC))


def test_the_completion_is_tried_again(broker: TransactionBroker) -> None:
    producer = begin(broker)
    broker.state.uncommitted = []
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    broker.state.error = CoordinatorNotAvailableError()
    broker.state.uncommitted[0]()
    assert state(broker) is TransactionState.PREPARE_COMMIT
    broker.state.error = None
    broker.time.advance(1)
    assert state(broker) is TransactionState.COMPLETE_COMMIT


def test_groups_are_told_and_waited_for(broker: TransactionBroker) -> None:
    broker.add_topic(new_topic(CONSUMER_OFFSETS, 1, 1))
    offsets = TopicPartition(CONSUMER_OFFSETS, 0)
    producer = broker.coordinator.initialize(ID, 60_000)
    broker.coordinator.add_partitions(ID, producer, frozenset((offsets,)), 0)
    broker.offsets.loading.add(0)
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    broker.time.advance(5)
    assert state(broker) is TransactionState.PREPARE_COMMIT
    assert broker.logs[offsets].log_end_offset == 0
    broker.offsets.loading.clear()
    broker.time.advance(1)
    assert broker.offsets.completed == [(producer.producer_id, (0,), True)]
    assert state(broker) is TransactionState.COMPLETE_COMMIT


def test_ids_are_forgotten_in_the_end(broker: TransactionBroker) -> None:
    producer = begin(broker)

    def expire() -> None:
        for _ in broker.coordinator.expire():
            pass

    broker.coordinator.initialize("idle", 1000)
    broker.time.advance(8 * DAY_S)
    begun = broker.coordinator.initialize("busy", 900_000)
    broker.coordinator.add_partitions("busy", begun, frozenset((OTHER,)), 0)
    expire()
    assert list(broker.coordinator.transactions()) == ["busy"]
    with pytest.raises(InvalidProducerIdMappingError):
        broker.coordinator.end(ID, producer, 0, is_commit=True)
    broker.restart()
    assert list(broker.coordinator.transactions()) == ["busy"]


def test_what_is_decided_and_not_done_is_not_forgotten() -> None:
    """A disk that has refused a marker for longer than ids are kept has it written in the end."""
    broker = TransactionBroker(properties={"transactional.id.expiration.ms": "60000"})
    producer = begin(broker)
    broker.replicas.refused, broker.replicas.error = {OTHER}, KafkaStorageError("full")
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    broker.time.advance(100)
    for _ in broker.coordinator.expire():
        pass
    broker.restart()
    assert state(broker) is TransactionState.COMPLETE_COMMIT
    assert broker.committed(OTHER) == [b"x"]


def test_who_coordinates_no_more_writes_no_end(broker: TransactionBroker) -> None:
    """A marker is refused, and then this broker resigns: another one may have read the log."""
    producer = begin(broker)
    broker.replicas.refused, broker.replicas.error = {OTHER}, KafkaStorageError("full")
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    written = len(broker.state.records)
    broker.coordinator.resign(0)
    broker.replicas.refused = set()
    broker.time.advance(10)
    assert broker.stable_offset(OTHER) == 0  # its next coordinator writes it
    assert len(broker.state.records) == written
    assert not broker.coordinator.transactions()


def test_who_coordinates_no_more_completes_nothing(
    broker: TransactionBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its markers waited for replicas, or for another broker, when it resigned."""
    written: list[Callable[[], None]] = []

    def write(places: object, end: object, done: Callable[[], None], is_wanted: object) -> None:
        written.append(done)

    monkeypatch.setattr(broker.markers, "write", write)
    producer = begin(broker)
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    said = list(broker.state.records)
    broker.coordinator.resign(0)
    (done,) = written
    done()
    broker.time.advance(10)
    assert broker.state.records == said
    assert not broker.coordinator.transactions()


def test_a_deleted_topic_of_transactions_leaves_none_open(broker: TransactionBroker) -> None:
    producer = begin(broker)
    broker.coordinator.topic_deleted()
    assert not broker.coordinator.transactions()
    for place in (PLACE, OTHER):
        assert broker.stable_offset(place) == broker.logs[place].log_end_offset == 2
        assert broker.committed(place) == []
    assert broker.produce(ID, producer, PLACE, b"late", 1, version=9) == 49
    broker.time.advance(100)


def test_who_was_in_a_transaction_when_its_topic_was_deleted_is_fenced(
    broker: TransactionBroker,
) -> None:
    """No coordinator knows it any more: the partitions have to."""
    producer = begin(broker)
    broker.coordinator.topic_deleted()
    late = memoryview(bytearray(batch_of([(b"k", b"late")], producer=(*producer, 1))))
    with pytest.raises(InvalidProducerEpochError):
        broker.logs[PLACE].append(late, 0)


def test_a_decision_that_was_not_safe_yet_is_carried_out_when_its_topic_is_deleted(
    broker: TransactionBroker,
) -> None:
    producer = begin(broker)
    broker.state.uncommitted = []
    broker.coordinator.end(ID, producer, 0, is_commit=True)
    broker.coordinator.topic_deleted()
    for place in (PLACE, OTHER):
        assert broker.committed(place) == [b"x"]


def test_ids_that_are_being_loaded(
    broker: TransactionBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(transactional_id: str) -> None:
        raise CoordinatorLoadInProgressError()

    producer = begin(broker, PLACE)
    monkeypatch.setattr(broker.state, "check_coordinates", check)
    with pytest.raises(CoordinatorLoadInProgressError):
        broker.coordinator.initialize("other", 1000)
    # A producer sends it again: Kafka's clients know no such error in answer to Produce.
    assert broker.produce("other", producer, OTHER, b"x", 0, version=9) == 19
    assert broker.produce("other", producer, OTHER, b"x", 0, version=12) == 19


def test_every_crash_of_a_commit_ends_it_wholly_or_not_at_all() -> None:
    for steps in range(5):
        broker = TransactionBroker()
        producer = begin(broker)
        broker.crash_after(steps)
        with contextlib.suppress(Crashed):
            broker.coordinator.end(ID, producer, 0, is_commit=True)
        broker.restart()
        seen = [broker.committed(place) for place in (PLACE, OTHER)]
        assert seen == ([[], []] if steps == 0 else [[b"x"], [b"x"]])
