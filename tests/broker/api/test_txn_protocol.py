"""Transactions request by request, as clients of both transaction versions send them.

Run with KAFKALOG_TEST_BOOTSTRAP these tests ask Apache Kafka: it gives the same answers.
"""

import select
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kafka.protocol.admin import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from pyspark_kafkalog.protocol.fetch import (
    READ_COMMITTED,
    FetchPartition,
    FetchRequest,
)
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tests.broker.api.group_client import GroupClient
from tests.broker.api.transaction_client import (
    TransactionClient,
    describe_producers,
    list_transactions,
    read,
    stable_offset,
    until_settled,
    write_marker,
)
from tests.support.broker_child import RawClient
from tests.support.patience import BUSY_S
from tests.support.records import batch_of

UNKNOWN_TOPIC_OR_PARTITION = 3
TOPIC_AUTHORIZATION_FAILED = 29
INVALID_REQUEST = 42
OUT_OF_ORDER_SEQUENCE = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
TRANSACTION_COORDINATOR_FENCED = 52
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
OPERATION_NOT_ATTEMPTED = 55
PRODUCER_FENCED = 90
TRANSACTIONAL_ID_NOT_FOUND = 105
TRANSACTION_ABORTABLE = 120


@pytest.fixture
def transactional_id(topic_name: str) -> str:
    return f"id-of-{topic_name}"


@pytest.fixture
def producer(client: RawClient, transactional_id: str) -> TransactionClient:
    """A producer whose coordinator is there, before its first request."""
    producer = TransactionClient(client, transactional_id)
    producer.find_coordinator()
    return producer


@pytest.fixture
def another(
    connect: Callable[[], RawClient], transactional_id: str
) -> Callable[[], TransactionClient]:
    """another() -> a second producer with the same id."""
    return lambda: TransactionClient(connect(), transactional_id)


@pytest.fixture
def begun(producer: TransactionClient, topic: str) -> TransactionClient:
    """A producer of transaction version 1 with one record in its transaction."""
    producer.init()
    assert producer.add(topic) == 0
    assert producer.produce(topic, b"first").error_code == 0
    return producer


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_of_a_transactional_id(
    client: RawClient, producer: TransactionClient, bootstrap: str, version: int
) -> None:
    if version < 4:
        request = FindCoordinatorRequest(key_type=1, key="x")
        found = client.call(request, FindCoordinatorResponse, max(version, 1))
    else:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])
        (found,) = client.call(request, FindCoordinatorResponse, version).coordinators
    assert (found.error_code, f"{found.host}:{found.port}") == (0, bootstrap)


# InitProducerId.


@pytest.mark.parametrize("version", range(6))
def test_each_producer_gets_the_next_epoch(
    producer: TransactionClient, another: Callable[[], TransactionClient], version: int
) -> None:
    first = producer.init(version=version)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    second = another().init(version=version)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)


@pytest.mark.parametrize("version", range(6))
def test_what_no_producer_may_ask(producer: TransactionClient, version: int) -> None:
    def code(**options: Any) -> Any:
        answer = producer.ask_init(version=version, **options)
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        return answer.error_code

    assert code(transactional_id="") == INVALID_REQUEST
    assert code(timeout_ms=900_001) == INVALID_TRANSACTION_TIMEOUT
    assert code(timeout_ms=0) == INVALID_TRANSACTION_TIMEOUT
    if version >= 3:
        assert code(expected=(5, -1)) == INVALID_REQUEST
        assert code(expected=(-1, 0)) == INVALID_REQUEST


def test_a_producer_goes_on_after_an_error_unless_another_came(
    producer: TransactionClient, another: Callable[[], TransactionClient]
) -> None:
    first = producer.init()
    bumped = producer.init(expected=(first.producer_id, first.producer_epoch))
    assert (bumped.error_code, bumped.producer_id, bumped.producer_epoch) == (
        0,
        first.producer_id,
        1,
    )
    retried = producer.init(expected=(first.producer_id, first.producer_epoch))
    assert (retried.error_code, retried.producer_epoch) == (0, 1)
    another().init()
    for version, code in ((3, INVALID_PRODUCER_EPOCH), (4, PRODUCER_FENCED)):
        answer = producer.ask_init(expected=(first.producer_id, 1), version=version)
        assert answer.error_code == code
    wrong_id = producer.ask_init(expected=(first.producer_id + 1_000_000, 2))
    assert wrong_id.error_code == PRODUCER_FENCED


def test_who_names_an_old_id_is_given_a_place_when_nobody_has_it(
    producer: TransactionClient,
) -> None:
    answer = producer.init(expected=(123_456, 7))
    assert (answer.error_code, answer.producer_epoch) == (0, 0)


# Version 1: partitions are added, then written to.


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("end_version", range(5))
def test_a_transaction(
    client: RawClient, producer: TransactionClient, topic: str, is_commit: bool, end_version: int
) -> None:
    producer.init()
    for turn in range(2):
        assert producer.add(topic) == 0
        assert producer.produce(topic, b"%d" % turn).error_code == 0
        assert stable_offset(client, topic) == 2 * turn
        answer = producer.end(is_commit, version=end_version)
        assert answer.error_code == 0
        assert producer.state() == ("CompleteCommit" if is_commit else "CompleteAbort")
        assert stable_offset(client, topic) == 2 * turn + 2
        assert producer.end(is_commit, version=end_version).error_code == 0
        assert producer.end(not is_commit, version=end_version).error_code == INVALID_TXN_STATE
    assert read(client, topic) == ([b"0", b"1"] if is_commit else [])
    assert read(client, topic, committed=False) == [b"0", b"1"]


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_all_or_none(
    producer: TransactionClient, create: Callable[..., str], version: int
) -> None:
    topic = create(2)
    producer.init()
    assert producer.add(topic, 0, 1, version=version) == 0
    assert producer.add_partitions({topic: [0, 2]}, version=version) == {
        (topic, 0): OPERATION_NOT_ATTEMPTED,
        (topic, 2): UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert producer.add_partitions({topic: [0], "__transaction_state": [0]}, version=version) == {
        (topic, 0): OPERATION_NOT_ATTEMPTED,
        ("__transaction_state", 0): TOPIC_AUTHORIZATION_FAILED,
    }
    assert producer.describe().transaction_state == "Ongoing"


@pytest.mark.parametrize("version", range(6))
def test_who_may_add_partitions(producer: TransactionClient, topic: str, version: int) -> None:
    producer.init()
    producer_id, epoch = producer.producer_id, producer.epoch
    fenced = INVALID_PRODUCER_EPOCH if version < 2 else PRODUCER_FENCED
    assert producer.add(topic, version=version, producer=(producer_id, epoch + 1)) == fenced
    assert producer.add(topic, version=version, producer=(producer_id + 1_000_000, epoch)) == (
        INVALID_PRODUCER_ID_MAPPING
    )
    assert producer.add(topic, version=version, transactional_id="") == INVALID_REQUEST
    assert producer.add(topic, version=version, transactional_id="nobody's") == (
        INVALID_PRODUCER_ID_MAPPING
    )
    assert producer.add(topic, version=version) == 0


@pytest.mark.parametrize("version", [4, 5])
def test_partitions_are_verified_alone(
    producer: TransactionClient, create: Callable[..., str], version: int
) -> None:
    topic = create(2)
    producer.init()

    def verified(**options: Any) -> dict[tuple[str, int], int]:
        return producer.add_partitions(
            {topic: [0, 1]}, version=version, verify_only=True, **options
        )

    assert set(verified().values()) == {TRANSACTION_ABORTABLE}
    assert producer.add(topic, 0) == 0
    assert verified() == {(topic, 0): 0, (topic, 1): TRANSACTION_ABORTABLE}
    stale = (producer.producer_id, producer.epoch + 1)
    assert set(verified(producer=stale).values()) == {PRODUCER_FENCED}


@pytest.mark.parametrize("version", range(5))
def test_who_may_end(begun: TransactionClient, version: int) -> None:
    fenced = INVALID_PRODUCER_EPOCH if version < 2 else PRODUCER_FENCED
    for stale in (begun.epoch - 1, begun.epoch + 1):
        answer = begun.ask_end(True, version=version, producer=(begun.producer_id, stale))
        assert answer.error_code == fenced
    answer = begun.ask_end(True, version=version, producer=(begun.producer_id + 1_000_000, 0))
    assert answer.error_code == INVALID_PRODUCER_ID_MAPPING
    assert begun.end(True, version=version).error_code == 0


@pytest.mark.parametrize("version", range(5))
def test_what_has_not_begun_cannot_end(producer: TransactionClient, version: int) -> None:
    producer.init()
    for is_commit in (True, False):
        answer = producer.ask_end(is_commit, version=version)
        assert answer.error_code == INVALID_TXN_STATE


def test_a_new_producer_aborts_what_the_old_one_has_open(
    client: RawClient,
    begun: TransactionClient,
    another: Callable[[], TransactionClient],
    topic: str,
) -> None:
    new = another()
    assert new.ask_init().error_code == CONCURRENT_TRANSACTIONS
    new.init()
    assert (new.producer_id, new.epoch) == (begun.producer_id, 2)
    assert read(client, topic) == []
    assert stable_offset(client, topic) == 2
    assert begun.produce(topic).error_code == INVALID_PRODUCER_EPOCH
    assert begun.add(topic) == PRODUCER_FENCED
    assert begun.ask_end(True).error_code == PRODUCER_FENCED
    assert new.add(topic) == 0
    assert new.produce(topic, b"new").error_code == 0
    assert new.end(True).error_code == 0
    new.state()
    assert read(client, topic) == [b"new"]


# Produce.


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, INVALID_TXN_STATE), (10, INVALID_TXN_STATE), (11, TRANSACTION_ABORTABLE)],
)
def test_a_partition_must_have_been_added(
    begun: TransactionClient, topic: str, version: int, code: int
) -> None:
    """What has been added takes the batch; what has not, and what belongs to an ended one, not."""
    assert begun.produce(topic, version=version).error_code == 0
    assert begun.end(True).error_code == 0
    begun.state()
    late = begun.produce(topic, version=version)
    assert late.error_code == code
    assert begun.add(topic) == 0
    assert begun.produce(topic, version=version).error_code == 0
    begun.end(False)


def test_a_batch_of_a_transaction_that_was_not_begun(
    producer: TransactionClient, topic: str
) -> None:
    producer.init()
    assert producer.produce(topic, version=9).error_code == INVALID_TXN_STATE
    wrong_id = (producer.producer_id + 1_000_000, 0)
    assert producer.produce(topic, producer=wrong_id).error_code == INVALID_PRODUCER_ID_MAPPING
    assert producer.produce(topic, transactional_id="nobody's").error_code == (
        INVALID_PRODUCER_ID_MAPPING
    )
    assert producer.produce(topic, transactional_id=None).error_code == (
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )


def test_who_has_a_transaction_open_writes_nothing_outside_it(
    begun: TransactionClient, topic: str
) -> None:
    answer = begun.produce(topic, transactional=False)
    assert answer.error_code == INVALID_TXN_STATE


def test_records_outside_transactions_may_name_one(
    client: RawClient, producer: TransactionClient, topic: str
) -> None:
    producer.init()
    assert producer.produce(topic, b"plain", transactional=False).error_code == 0
    assert read(client, topic) == [b"plain"]


# Version 2: Produce begins the transaction, its end bumps the epoch.


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_of_version_2(
    client: RawClient, producer: TransactionClient, create: Callable[..., str], is_commit: bool
) -> None:
    topic = create(2)
    producer.init(version=5)
    producer_id = producer.producer_id
    for turn in range(3):
        value = b"%d" % turn
        for partition in (0, 1):
            ask = partial(producer.produce, topic, value, partition=partition, version=12)
            assert until_settled(ask).error_code == 0
        answer = producer.end(is_commit, version=5)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
            0,
            producer_id,
            turn + 1,
        )
    producer.state()
    for partition in (0, 1):
        expected = [b"0", b"1", b"2"] if is_commit else []
        assert read(client, topic, partition) == expected
        assert stable_offset(client, topic, partition) == 6


@pytest.mark.parametrize("version", [9, 12])
def test_a_request_with_batches_of_two_epochs_is_refused_whole(
    producer: TransactionClient, create: Callable[..., str], version: int, only_ours: None
) -> None:
    topic = create(2)
    producer.init()
    assert producer.add(topic, 0, 1) == 0
    batches = [
        batch_of([(None, b"x")], producer=(producer.producer_id, epoch, 0), transactional=True)
        for epoch in (producer.epoch, producer.epoch + 1)
    ]
    parts = [ProducePartition(topic, number, batch) for number, batch in enumerate(batches)]
    request = ProduceRequest(version, producer.transactional_id, -1, 5000, parts)
    body = b"".join(bytes(part) for part in encode_produce_request(request))
    producer.client.send_body(0, version, body)
    results = decode_produce_response(producer.client.receive_body(0, version), version).partitions
    assert [result.error_code for result in results] == [INVALID_PRODUCER_ID_MAPPING] * 2


def end_code(producer: TransactionClient, is_commit: bool, epoch: int) -> tuple[Any, Any]:
    ask = partial(producer.ask_end, is_commit, version=5, producer=(producer.producer_id, epoch))
    answer = until_settled(ask)
    return answer.error_code, answer.producer_epoch


def test_ends_of_version_2_are_told_from_their_retries_by_the_epoch(
    producer: TransactionClient, topic: str
) -> None:
    """Kafka's table of what Empty, CompleteAbort and CompleteCommit answer to an end."""
    producer.init(version=5)
    assert end_code(producer, True, 0) == (INVALID_TXN_STATE, -1)
    assert end_code(producer, False, -1) == (PRODUCER_FENCED, -1)
    assert end_code(producer, False, 0) == (0, 1)
    # Aborted: the retry is answered alike, another abort bumps the epoch again.
    assert end_code(producer, False, 0) == (0, 1)
    assert end_code(producer, True, 0) == (INVALID_TXN_STATE, -1)
    assert end_code(producer, True, 1) == (INVALID_TXN_STATE, -1)
    assert end_code(producer, False, 1) == (0, 2)
    producer.epoch = 2
    assert producer.add(topic, version=4) == 0
    assert end_code(producer, True, 1) == (PRODUCER_FENCED, -1)
    assert end_code(producer, True, 3) == (PRODUCER_FENCED, -1)
    assert end_code(producer, True, 2) == (0, 3)
    # Committed.
    assert end_code(producer, True, 2) == (0, 3)
    assert end_code(producer, False, 2) == (INVALID_TXN_STATE, -1)
    assert end_code(producer, True, 3) == (INVALID_TXN_STATE, -1)
    assert end_code(producer, False, 3) == (0, 4)
    assert end_code(producer, False, 2) == (PRODUCER_FENCED, -1)


def test_batches_of_version_2_come_in_the_epoch_of_their_transaction(
    client: RawClient, producer: TransactionClient, topic: str
) -> None:
    producer.init(version=5)
    old = (producer.producer_id, producer.epoch)
    assert producer.produce(topic, version=12, sequence=0).error_code == 0
    assert producer.end(True, version=5).error_code == 0
    producer.state()
    late = producer.produce(topic, version=12, producer=old, sequence=1)
    assert late.error_code == INVALID_PRODUCER_EPOCH
    assert producer.produce(topic, version=12, sequence=0).error_code == 0
    assert producer.end(False, version=5).error_code == 0
    producer.state()
    assert read(client, topic) == [b"value"]
    wrong_id = (producer.producer_id + 1_000_000, 0)
    code = producer.produce(topic, version=12, producer=wrong_id).error_code
    assert code == INVALID_PRODUCER_ID_MAPPING
    code = producer.produce(topic, version=12, transactional_id="nobody's").error_code
    assert code == INVALID_PRODUCER_ID_MAPPING


def test_a_producer_of_version_2_begins_a_partition_with_its_first_batch(
    client: RawClient, producer: TransactionClient, topic: str
) -> None:
    """Of batches in flight the first may be refused for a moment: the next must not overtake it."""
    producer.init()
    assert producer.produce(topic, version=12, sequence=1).error_code == OUT_OF_ORDER_SEQUENCE
    assert producer.produce(topic, b"0", version=12).error_code == 0
    assert producer.produce(topic, b"1", version=12).error_code == 0
    producer.end(True, version=5)
    producer.state()
    assert read(client, topic) == [b"0", b"1"]


def test_a_new_producer_fences_one_of_version_2(
    client: RawClient,
    producer: TransactionClient,
    another: Callable[[], TransactionClient],
    topic: str,
) -> None:
    producer.init(version=5)
    assert producer.produce(topic, version=12).error_code == 0
    new = another()
    assert new.ask_init(version=5).error_code == CONCURRENT_TRANSACTIONS
    new.init(version=5)
    assert new.epoch == 2
    assert stable_offset(client, topic) == 2
    assert producer.produce(topic, version=12).error_code == INVALID_PRODUCER_EPOCH
    assert end_code(producer, True, 0) == (PRODUCER_FENCED, -1)


def test_a_replay_of_what_was_sent_changes_nothing(
    client: RawClient, producer: TransactionClient, topic: str
) -> None:
    """Requests that were delayed on the way until after the transaction's end (Jepsen's finding
    in Bufstream 0.1.0, and the reason for KIP-890)."""
    for version in (9, 12):
        producer.init(version=5)
        before = (producer.producer_id, producer.epoch)
        sequence = producer.sequences.get((topic, 0), 0)
        if version < 12:
            assert producer.add(topic) == 0
        assert producer.produce(topic, version=version).error_code == 0
        end_version = 3 if version < 12 else 5
        assert producer.end(True, version=end_version).error_code == 0
        producer.state()
        end_offset = stable_offset(client, topic)
        for sent in (sequence, sequence + 1):
            replayed = producer.produce(topic, version=version, producer=before, sequence=sent)
            assert replayed.error_code in (INVALID_TXN_STATE, INVALID_PRODUCER_EPOCH)
        producer.ask_end(True, version=end_version, producer=before)
        producer.ask_end(False, version=end_version, producer=before)
        if version == 12:
            for add_version in (3, 5):
                assert producer.add(topic, version=add_version, producer=before) == PRODUCER_FENCED
        assert stable_offset(client, topic) == end_offset
        assert [each.current_txn_start_offset for each in describe_producers(client, topic)] == [-1]
    assert read(client, topic) == [b"value"] * 2


# What is in the way of others, and how it is found and ended.


def test_an_open_transaction_is_told_of(
    client: RawClient, begun: TransactionClient, topic: str
) -> None:
    state = begun.describe()
    assert (state.error_code, state.transaction_state) == (0, "Ongoing")
    assert (state.producer_id, state.producer_epoch) == (begun.producer_id, begun.epoch)
    assert state.transaction_timeout_ms == 60_000
    assert state.transaction_start_time_ms > 0
    assert [(each.topic, list(each.partitions)) for each in state.topics] == [(topic, [0])]
    (open_here,) = describe_producers(client, topic)
    assert open_here.producer_id == begun.producer_id
    assert open_here.current_txn_start_offset == 0
    assert open_here.coordinator_epoch == -1

    def listed(**filters: Any) -> list[Any]:
        answer = list_transactions(client, **filters)
        assert answer.error_code == 0
        return [
            each.transaction_state
            for each in answer.transaction_states
            if each.transactional_id == begun.transactional_id
        ]

    assert listed() == ["Ongoing"]
    assert listed(state_filters=["Ongoing", "Empty"]) == ["Ongoing"]
    assert listed(state_filters=["Empty"]) == []
    assert listed(producer_id_filters=[begun.producer_id]) == ["Ongoing"]
    assert listed(producer_id_filters=[begun.producer_id + 1]) == []
    assert listed(duration_filter=0) == ["Ongoing"]
    assert listed(duration_filter=3_600_000) == []
    name = begun.transactional_id
    assert listed(version=2, transactional_id_pattern=name[:-1] + ".") == ["Ongoing"]
    assert listed(version=2, transactional_id_pattern=name[:-1]) == []
    assert listed(version=2, transactional_id_pattern=None) == ["Ongoing"]
    broken = list_transactions(client, version=2, transactional_id_pattern="(")
    assert (broken.error_code, list(broken.transaction_states)) == (128, [])
    odd = list_transactions(client, state_filters=["Odd", "Empty"])
    assert list(odd.unknown_state_filters) == ["Odd"]
    begun.end(True)
    begun.state()
    state = begun.describe()
    assert (state.transaction_state, list(state.topics)) == ("CompleteCommit", [])


def test_an_id_that_is_named_often_is_told_of_once(
    client: RawClient, begun: TransactionClient, only_ours: None
) -> None:
    """An answer grows with what is stored, not with a request's repetitions."""
    name = begun.transactional_id
    request = DescribeTransactionsRequest(transactional_ids=[name, "nobody's", name, "nobody's"])
    states = client.call(request, DescribeTransactionsResponse, 0).transaction_states
    assert [state.transactional_id for state in states] == [name, "nobody's"]


def test_ids_that_nobody_has(client: RawClient, producer: TransactionClient) -> None:
    state = producer.describe()
    assert (state.error_code, state.transaction_state) == (TRANSACTIONAL_ID_NOT_FOUND, "")
    assert TransactionClient(client, "").describe().error_code == INVALID_REQUEST


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_is_ended_by_hand(
    client: RawClient, begun: TransactionClient, topic: str, version: int
) -> None:
    """As kafka-transactions ends a hanging one; its coordinator then finds nothing to do."""
    identity = (begun.producer_id, begun.epoch)

    def code(
        producer: tuple[int, int] = identity,
        coordinator_epoch: int = 0,
        place: tuple[str, int] = (topic, 0),
    ) -> int:
        codes = write_marker(
            client,
            {place[0]: [place[1]]},
            producer,
            False,
            version=version,
            coordinator_epoch=coordinator_epoch,
        )
        assert list(codes) == [place]
        return codes[place]

    assert code(place=(topic, 7)) == UNKNOWN_TOPIC_OR_PARTITION
    assert stable_offset(client, topic) == 0
    assert code(coordinator_epoch=-1) == 0
    assert stable_offset(client, topic) == 2
    assert read(client, topic) == []
    assert code(coordinator_epoch=5) == 0
    assert code(coordinator_epoch=4) == TRANSACTION_COORDINATOR_FENCED
    assert code(producer=(begun.producer_id, begun.epoch + 1), coordinator_epoch=5) == 0
    assert code(coordinator_epoch=5) == INVALID_PRODUCER_EPOCH


def test_a_marker_of_version_2_ends_no_transaction_of_its_own_epoch(
    client: RawClient, begun: TransactionClient, topic: str
) -> None:
    """KIP-1228: it belongs to the transaction before."""
    identity = (begun.producer_id, begun.epoch)
    options = {"version": 2, "transaction_version": 2}
    codes = write_marker(client, {topic: [0]}, identity, True, **options)
    assert codes == {(topic, 0): INVALID_PRODUCER_EPOCH}
    assert stable_offset(client, topic) == 0
    bumped = (begun.producer_id, begun.epoch + 1)
    for _ in range(2):
        codes = write_marker(client, {topic: [0]}, bumped, True, **options)
        assert codes == {(topic, 0): 0}
    assert stable_offset(client, topic) > 1
    assert read(client, topic) == [b"first"]


@pytest.mark.parametrize("version", range(5))
def test_offsets_are_added_to_a_transaction(
    producer: TransactionClient, group: GroupClient, version: int
) -> None:
    producer.init()
    assert producer.add_offsets(group.group_id, version=version) == 0
    (added,) = producer.describe().topics
    assert added.topic == "__consumer_offsets"
    assert len(added.partitions) == 1
    producer.epoch += 1
    fenced = INVALID_PRODUCER_EPOCH if version < 2 else PRODUCER_FENCED
    assert producer.add_offsets(group.group_id, version=version) == fenced
    producer.epoch -= 1
    assert producer.end(True).error_code == 0
    assert producer.state() == "CompleteCommit"


def test_several_transactions_are_added_to_at_once(
    connect: Callable[[], RawClient],
    producer: TransactionClient,
    create: Callable[..., str],
    topic_name: str,
) -> None:
    topic = create(2)
    producer.init()
    producer.add(topic, 0)
    assert producer.produce(topic, b"a").error_code == 0
    other = TransactionClient(connect(), f"other-of-{topic_name}")
    other.find_coordinator()
    other.init()
    assert other.add(topic, 0) == 0
    assert other.produce(topic, b"b").error_code == 0
    assert other.end(True).error_code == 0
    other.state()
    # The first one is still open: nothing behind it can be read.
    assert stable_offset(producer.client, topic) == 0
    assert read(producer.client, topic) == []
    assert producer.end(False).error_code == 0
    producer.state()
    assert read(producer.client, topic) == [b"b"]


# A consumer that waits.


def fetch_and_wait(
    client: RawClient, topic: str, *, min_bytes: int = 1, max_wait_ms: int = 30_000
) -> Callable[[], int]:
    """Sends a read_committed fetch that waits; calling what is returned receives its answer."""
    asks = [FetchPartition(topic, 0, 0, 1 << 20)]
    request = FetchRequest(11, max_wait_ms, min_bytes, asks, isolation_level=READ_COMMITTED)
    client.send_fetch(request)

    def receive() -> int:
        response = client.receive_fetched(11)
        return len(response.partitions[0].records or b"")

    return receive


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_end_of_a_transaction_wakes_who_waits_for_committed_records(
    connect: Callable[[], RawClient], begun: TransactionClient, topic: str, is_commit: bool
) -> None:
    began_s = time.monotonic()
    receive = fetch_and_wait(connect(), topic)
    assert begun.produce(topic, b"second").error_code == 0
    begun.end(is_commit)
    assert receive() > 0
    assert time.monotonic() - began_s < 5 + BUSY_S


def test_what_is_not_stable_wakes_nobody(
    connect: Callable[[], RawClient], begun: TransactionClient, topic: str
) -> None:
    receive = fetch_and_wait(connect(), topic, max_wait_ms=500)
    began_s = time.monotonic()
    for _ in range(3):
        assert begun.produce(topic).error_code == 0
    assert receive() == 0
    assert time.monotonic() - began_s > 0.3


def test_an_open_transaction_begins_no_earlier_than_the_log(
    client: RawClient, begun: TransactionClient, topic: str
) -> None:
    for _ in range(4):
        assert begun.produce(topic).error_code == 0
    wanted = DeleteRecordsRequest.DeleteRecordsTopic
    part = wanted.DeleteRecordsPartition(partition_index=0, offset=3)
    request = DeleteRecordsRequest(topics=[wanted(name=topic, partitions=[part])], timeout_ms=5000)
    (deleted,) = client.call(request, DeleteRecordsResponse, 2).topics
    assert deleted.partitions[0].low_watermark == 3
    asks = [FetchPartition(topic, 0, 3, 1 << 20)]
    request = FetchRequest(11, 0, 1, asks, isolation_level=READ_COMMITTED)
    (found,) = client.fetch(request).partitions
    # Who looks for the end, as a new group does, must find an offset that can be read.
    assert (found.error_code, found.log_start_offset, found.last_stable_offset) == (0, 3, 3)


def test_enough_must_become_stable(
    connect: Callable[[], RawClient], begun: TransactionClient, topic: str
) -> None:
    """Some 70 bytes of a record and 78 of its marker are not enough."""
    reader = connect()
    receive = fetch_and_wait(reader, topic, min_bytes=300)
    began_s = time.monotonic()
    begun.end(True)
    begun.state()
    assert not select.select([reader.socket], [], [], 0.3)[0]
    assert begun.add(topic) == 0
    assert begun.produce(topic, b"x" * 300).error_code == 0
    begun.end(True)
    assert receive() > 300
    assert time.monotonic() - began_s < 2.5 + BUSY_S
