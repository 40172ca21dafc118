"""A client of transactions, against an embedded broker, and a scripted one for what that never
does."""

import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from kafka.errors import (
    IncompatibleBrokerVersion,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    KafkaError,
    TopicAuthorizationFailedError,
)
from kafka.protocol.admin import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer import (
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client import admin, transaction
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.client.transaction import (
    FENCED,
    ONGOING,
    ProducerIdentity,
    TransactionDescription,
    Transactions,
    _MarkerSearch,
    ended_by_commit,
)
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.record.batch import batches, mark_transactional, seal
from pyspark_kafkalog.record.control import TransactionMarker, encode_marker
from tests.pyspark_kafkalog.client.scripted import (
    CUT,
    INIT_PRODUCER_ID,
    SILENCE,
    VERSIONS,
    Request,
    ScriptedBroker,
)
from tests.support.patience import wait_for

TIMEOUT_MS = 60_000
WAIT_S = 30


@pytest.fixture
def transactions(cluster: Cluster) -> Transactions:
    return Transactions(cluster)


def keyed_batch(key: bytes, value: bytes) -> bytearray:
    columns = {"key": pa.array([key], pa.binary()), "value": pa.array([value], pa.binary())}
    encoder = RecordEncoder(1)
    list(encoder.encode(pa.record_batch(columns)))
    ((_, batch),) = encoder.finish()
    return batch


def write(
    cluster: Cluster,
    transactions: Transactions,
    producer: ProducerIdentity | None,
    topic_partition: TopicPartition,
    key: bytes = b"k",
) -> int:
    """Writes one record, in a transaction that is left open if there is one; its offset."""
    transaction = None if producer is None else (transactions, producer)
    with Producer(cluster, transaction) as writer:
        writer.send(topic_partition, keyed_batch(key, b"value"))
        writer.flush()
        assert writer.last_written is not None
        return writer.last_written[1]


# How a transaction has ended, from its marker.


@pytest.mark.parametrize("commit", [True, False])
def test_the_marker_says_how_a_transaction_has_ended(
    cluster: Cluster, transactions: Transactions, new_topic: Callable[..., str], commit: bool
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    others = transactions.begin(f"other-{topic_partition.topic}", TIMEOUT_MS)
    write(cluster, transactions, others, topic_partition)
    producer = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    first = write(cluster, transactions, producer, topic_partition)
    transactions.end(others, commit=not commit)
    transactions.end(producer, commit)
    later = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    second = write(cluster, transactions, later, topic_partition)
    transactions.end(later, commit=not commit)
    assert (
        ended_by_commit(cluster, producer, topic_partition, first, Deadline(TIMEOUT_MS)) is commit
    )
    assert (
        ended_by_commit(cluster, later, topic_partition, second, Deadline(TIMEOUT_MS)) is not commit
    )


def test_a_transaction_that_a_successor_fenced_was_aborted(
    cluster: Cluster, transactions: Transactions, new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    producer = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    offset = write(cluster, transactions, producer, topic_partition)
    successor = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    write(cluster, transactions, successor, topic_partition)
    transactions.end(successor, commit=True)
    assert (
        ended_by_commit(cluster, producer, topic_partition, offset, Deadline(TIMEOUT_MS)) is False
    )


def test_an_open_transaction_is_waited_for_and_then_not_known(
    cluster: Cluster, transactions: Transactions, new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    producer = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    offset = write(cluster, transactions, producer, topic_partition)
    started_s = time.monotonic()
    assert ended_by_commit(cluster, producer, topic_partition, offset, Deadline(300)) is None
    assert 0.2 < time.monotonic() - started_s < WAIT_S


def test_what_is_not_where_it_was_is_not_known(
    cluster: Cluster, transactions: Transactions, new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    producer = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    offset = write(cluster, transactions, producer, topic_partition)
    transactions.end(producer, commit=True)
    stranger = ProducerIdentity("stranger", producer.producer_id + 1000, 0)
    started_s = time.monotonic()
    for identity, place, at in [
        (producer, topic_partition, offset + 1000),
        (stranger, topic_partition, offset),
        (producer, TopicPartition(f"no-{topic_partition.topic}", 0), offset),
        (
            ProducerIdentity(topic_partition.topic, producer.producer_id, producer.epoch + 1),
            topic_partition,
            offset,
        ),
    ]:
        assert ended_by_commit(cluster, identity, place, at, Deadline(TIMEOUT_MS)) is None
    assert time.monotonic() - started_s < WAIT_S


@pytest.fixture(scope="module")
def compacting() -> Iterator[str]:
    properties = {"log.cleaner.backoff.ms": "20", "auto.create.topics.enable": "false"}
    with EmbeddedBroker(config=properties) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def compacted(compacting: str) -> Iterator[tuple[Cluster, Callable[..., None]]]:
    """A cluster with a topic `table-...`, and what compacts it until only `left` are there."""
    given = {"bootstrap.servers": compacting, "isolation.level": "read_uncommitted"}
    with Cluster(ClientConfig.from_options(given)) as cluster:

        def compact(
            topic_partition: TopicPartition, left: Callable[[list[tuple[int, int, bool]]], bool]
        ) -> None:

            def write_and_read() -> list[tuple[int, int, bool]]:
                # A segment of its own.
                write(cluster, Transactions(cluster), None, topic_partition, b"filler")
                until = cluster.list_offsets([topic_partition], LATEST)[topic_partition].offset
                return [
                    (header.producer_id, header.producer_epoch, header.is_control)
                    for fetched in Fetcher(cluster, topic_partition, 0, until).records()
                    for header in batches(fetched.records)
                ]

            wait_for(write_and_read, left, WAIT_S)

        yield cluster, compact


TABLE = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "1048576",
    "segment.ms": "1",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False, None])
def test_a_successors_marker_is_not_taken_for_one_that_was_compacted_away(
    compacted: tuple[Cluster, Callable[..., None]], first: bool, second: bool | None
) -> None:
    """Neither its commit nor its abort: by itself, or (None) by a fence, with the epoch after."""
    cluster, compact = compacted
    topic_partition = TopicPartition(f"table-{uuid.uuid4().hex[:8]}", 0)
    admin.create_topic(cluster, topic_partition.topic, 1, 1, TABLE)
    transactions = Transactions(cluster)
    producer = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    offset = write(cluster, transactions, producer, topic_partition)
    transactions.end(producer, commit=first)
    successor = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    write(cluster, transactions, successor, topic_partition)
    if second is None:
        transactions.begin(topic_partition.topic, TIMEOUT_MS)
    else:
        transactions.end(successor, commit=second)
    write(cluster, transactions, None, topic_partition)
    mine = (producer.producer_id, producer.epoch)
    compact(topic_partition, lambda left: not any(each[:2] == mine for each in left))
    assert ended_by_commit(cluster, producer, topic_partition, offset, Deadline(TIMEOUT_MS)) is None


def test_a_marker_that_outlives_its_batch_still_counts(
    compacted: tuple[Cluster, Callable[..., None]],
) -> None:
    cluster, compact = compacted
    topic_partition = TopicPartition(f"table-{uuid.uuid4().hex[:8]}", 0)
    admin.create_topic(
        cluster, topic_partition.topic, 1, 1, {**TABLE, "delete.retention.ms": "86400000"}
    )
    transactions = Transactions(cluster)
    producer = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    offset = write(cluster, transactions, producer, topic_partition)
    transactions.end(producer, commit=True)
    successor = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    write(cluster, transactions, successor, topic_partition)
    transactions.end(successor, commit=False)
    write(cluster, transactions, None, topic_partition)
    mine = (producer.producer_id, producer.epoch, False)
    compact(topic_partition, lambda left: mine not in left)
    assert ended_by_commit(cluster, producer, topic_partition, offset, Deadline(TIMEOUT_MS)) is True


DATA, COMMIT, ABORT = "data", "commit", "abort"


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        # (offset, producer id, epoch, what it is), of a transaction of (7, 3) with a batch at 5.
        ([(5, 7, 3, DATA), (6, 7, 3, COMMIT)], True),
        ([(5, 7, 3, DATA), (6, 7, 3, ABORT)], False),
        ([(5, 7, 3, DATA), (6, 7, 4, ABORT)], False),
        ([(5, 7, 3, DATA), (6, 8, 3, COMMIT), (7, 7, 4, ABORT)], False),
        ([(2, 7, 2, DATA), (3, 7, 2, COMMIT), (5, 7, 3, DATA), (6, 7, 3, ABORT)], False),
        ([(6, 7, 3, COMMIT)], True),
        ([(6, 7, 3, ABORT)], False),
        # Somebody else's: of a successor that wrote there, or nothing, or whose batch is gone.
        ([(6, 7, 4, ABORT)], None),
        ([(6, 7, 4, COMMIT), (7, 7, 3, COMMIT)], None),
        ([(6, 7, 4, DATA), (7, 7, 4, COMMIT)], None),
        ([(5, 7, 3, DATA), (6, 7, 4, COMMIT)], None),
        ([(5, 7, 3, DATA), (6, 7, 5, ABORT)], None),
        ([(5, 7, 3, DATA), (6, 7, 4, DATA), (7, 7, 4, ABORT)], None),
        ([(5, 8, 3, DATA), (6, 8, 3, COMMIT)], None),
        ([], None),
    ],
)
def test_only_a_marker_that_must_be_the_transactions_own_counts(
    left: list[tuple[int, int, int, str]], expected: bool | None
) -> None:
    """By the rules of Kafka's cleaner: no marker goes before the batches of its transaction."""
    log = bytearray()
    for offset, producer_id, epoch, what in left:
        if what == DATA:
            batch = keyed_batch(b"k", b"value")
            mark_transactional(batch)
            seal(batch, producer_id, epoch, 0)
        else:
            marker = TransactionMarker(what == COMMIT, 0)
            batch = encode_marker(marker, producer_id, epoch, 0)
        struct.pack_into(">q", batch, 0, offset)
        log += batch
    search = _MarkerSearch(ProducerIdentity("mine", 7, 3), 5)
    search.is_over(memoryview(log))
    assert search.is_committed is expected
    assert search.has_batch is ((5, 7, 3, DATA) in left)


# Beginning, adding and ending.


def test_a_new_epoch_fences_the_older_and_aborts_what_it_left_open(
    cluster: Cluster, transactions: Transactions, new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    old = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    write(cluster, transactions, old, topic_partition)
    assert transactions.describe([topic_partition.topic])[
        topic_partition.topic
    ] == TransactionDescription(old, ONGOING)
    assert transactions.ongoing(topic_partition.topic) == [topic_partition.topic]
    new = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    assert new.transactional_id == topic_partition.topic
    assert (new.producer_id, new.epoch > old.epoch) == (old.producer_id, True)
    assert transactions.ongoing(topic_partition.topic) == []
    for commit in (True, False):
        assert isinstance(transactions.end_all([old], commit)[old], FENCED)
    with pytest.raises(FENCED):
        transactions.add_partitions(old, [topic_partition])
    with pytest.raises(FENCED):
        transactions.begin(topic_partition.topic, TIMEOUT_MS, old)
    assert transactions.begin(topic_partition.topic, TIMEOUT_MS, new).epoch == new.epoch + 1


@pytest.mark.parametrize("theirs", ["empty", "ongoing", "committed"])
def test_a_new_id_is_not_begun_by_who_comes_too_late(
    transactions: Transactions, new_topic: Callable[..., str], theirs: str
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    name = topic_partition.topic
    first = transactions.begin_new(name, TIMEOUT_MS)
    assert (first.transactional_id, first.epoch) == (name, 0)
    if theirs != "empty":
        transactions.add_partitions(first, [topic_partition])
    if theirs == "committed":
        transactions.end(first, commit=True)
    before = transactions.describe([name])
    with pytest.raises(FENCED):
        transactions.begin_new(name, TIMEOUT_MS)
    assert transactions.describe([name]) == before
    transactions.add_partitions(first, [topic_partition])


@pytest.fixture(params=["at once", "in two steps"])
def way_to_fence(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As brokers since Kafka 4.0 have it, and older ones."""
    if request.param == "in two steps":
        monkeypatch.setattr(transaction, "_LEVEL_WHERE_AN_END_FENCES", 99)


@pytest.mark.usefixtures("way_to_fence")
@pytest.mark.parametrize("before", ["empty", "ongoing", "committed", "aborted"])
def test_who_is_fenced_by_its_epoch_writes_no_more(
    cluster: Cluster, transactions: Transactions, new_topic: Callable[..., str], before: str
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    old = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    if before != "empty":
        offset = write(cluster, transactions, old, topic_partition)
    if before in ("committed", "aborted"):
        transactions.end(old, commit=before == "committed")
    new = transactions.abort_and_fence(old, TIMEOUT_MS)
    assert (new.transactional_id, new.producer_id) == (old.transactional_id, old.producer_id)
    assert transactions.describe([topic_partition.topic])[topic_partition.topic].producer == new
    assert transactions.ongoing(topic_partition.topic) == []
    with pytest.raises(FENCED):
        transactions.add_partitions(old, [topic_partition])
    if before != "empty":
        is_committed = ended_by_commit(cluster, old, topic_partition, offset, Deadline(TIMEOUT_MS))
        assert is_committed is (before == "committed")


@pytest.mark.usefixtures("way_to_fence")
@pytest.mark.parametrize("theirs", ["empty", "ongoing", "committed"])
def test_who_was_replaced_fences_nobody(
    transactions: Transactions, new_topic: Callable[..., str], theirs: str
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    old = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    new = transactions.begin(topic_partition.topic, TIMEOUT_MS)
    if theirs != "empty":
        transactions.add_partitions(new, [topic_partition])
    if theirs == "committed":
        transactions.end(new, commit=True)
    before = transactions.describe([topic_partition.topic])
    with pytest.raises(FENCED):
        transactions.abort_and_fence(old, TIMEOUT_MS)
    assert transactions.describe([topic_partition.topic]) == before
    transactions.add_partitions(new, [topic_partition])


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_may_be_repeated_and_not_changed(
    cluster: Cluster, transactions: Transactions, new_topic: Callable[..., str], commit: bool
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    producers = [
        transactions.begin(f"{topic_partition.topic}-{number}", TIMEOUT_MS) for number in range(3)
    ]
    for producer in producers:
        write(cluster, transactions, producer, topic_partition)
    for some in (producers[:2], producers, [*producers, *producers], []):
        assert transactions.end_all(some, commit) == {}
    refused = transactions.end_all(producers, not commit)
    assert list(refused) == producers
    assert {type(error) for error in refused.values()} == {InvalidTxnStateError}
    with pytest.raises(InvalidTxnStateError):
        transactions.end(producers[0], not commit)


def test_many_end_at_once_and_those_that_are_refused_are_named(
    cluster: Cluster, transactions: Transactions, new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    producers = [
        transactions.begin(f"{topic_partition.topic}-{number}", TIMEOUT_MS) for number in range(70)
    ]
    some = {producers[3], producers[68]}
    for producer in producers:
        transactions.add_partitions(producer, [topic_partition])
        if producer in some:
            transactions.begin(producer.transactional_id, TIMEOUT_MS)
    assert transactions.end_all(producers, commit=True).keys() == some
    assert transactions.ongoing(f"{topic_partition.topic}-.*") == []


def test_what_is_described_is_what_coordinators_know(
    cluster: Cluster, transactions: Transactions, new_topic: Callable[..., str]
) -> None:
    name = new_topic()
    known = transactions.begin(name, TIMEOUT_MS)
    assert transactions.describe([f"no-{name}", name]).keys() == {name}
    assert transactions.describe([name])[name].producer == known
    assert transactions.describe([name])[name].state != ONGOING
    assert transactions.describe([]) == {}


def test_what_goes_on_is_listed_by_a_whole_name(
    cluster: Cluster, transactions: Transactions, new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    for suffix in ("", "-1", "-12"):
        producer = transactions.begin(topic_partition.topic + suffix, TIMEOUT_MS)
        transactions.add_partitions(producer, [topic_partition])
    assert transactions.ongoing(topic_partition.topic) == [topic_partition.topic]
    assert transactions.ongoing(f"{topic_partition.topic}-[0-9]") == [f"{topic_partition.topic}-1"]
    assert transactions.ongoing(f"{topic_partition.topic}.*") == [
        topic_partition.topic + each for each in ("", "-1", "-12")
    ]


def test_a_timeout_beyond_the_brokers_is_refused(transactions: Transactions) -> None:
    with pytest.raises(InvalidTransactionTimeoutError):
        transactions.begin("patient", 10**9)


# What a real broker cannot be made to show.


FIND_COORDINATOR, ADD_PARTITIONS, END_TXN, DESCRIBE, LIST = 10, 24, 26, 65, 66
NOT_ATTEMPTED, TOPIC_DENIED, NOT_COORDINATOR, CONCURRENT, LOADING = 55, 29, 16, 51, 14
MINE, THEIRS = ProducerIdentity("mine", 7, 3), ProducerIdentity("theirs", 8, 4)


@pytest.fixture(autouse=True)
def transactional_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Apache Kafka 3.9 offers, for the scripted broker."""
    for key, most in [
        (FIND_COORDINATOR, 5), (ADD_PARTITIONS, 5), (END_TXN, 4), (DESCRIBE, 0), (LIST, 1),
    ]:  # fmt: skip
        monkeypatch.setitem(VERSIONS, key, (0, most))


class Coordinator(ScriptedBroker):
    """The coordinator of all ids but those that `of` says; each API answers what it is told."""

    def __init__(self, answers: dict[int, list[Any]] | None = None, node_id: int = 1) -> None:
        handlers = {
            FIND_COORDINATOR: self.find,
            ADD_PARTITIONS: self.added,
            END_TXN: self.ended,
            DESCRIBE: self.described,
            LIST: self.listed,
            INIT_PRODUCER_ID: self.initialized,
        }
        super().__init__(handlers, {"t": 2}, node_id)
        self.of: dict[str, ScriptedBroker] = {}
        self.answers = answers or {}

    def next(self, request: Request) -> Any:
        left = self.answers.get(request.api_key, [])
        return left.pop(0) if left else 0

    def find(self, request: Request) -> Any:
        asked = FindCoordinatorRequest.decode(bytes(request.body), version=request.version)
        names = asked.coordinator_keys if request.version >= 4 else [asked.key]
        answer = self.next(request)
        found = [
            FindCoordinatorResponse.Coordinator(
                key=name,
                node_id=self.of.get(name, self).node_id,
                host="127.0.0.1",
                port=self.of.get(name, self).port,
                error_code=answer,
                error_message=None,
            )
            for name in names
        ]
        first = found[0]
        return bytes(
            FindCoordinatorResponse(
                throttle_time_ms=0,
                error_code=first.error_code,
                error_message=None,
                node_id=first.node_id,
                host=first.host,
                port=first.port,
                coordinators=found,
            ).encode(version=request.version)
        )

    def initialized(self, request: Request) -> Any:
        answer = self.next(request)
        response = InitProducerIdResponse(
            throttle_time_ms=0, error_code=answer, producer_id=7, producer_epoch=3
        )
        return (
            answer if answer in (CUT, SILENCE) else bytes(response.encode(version=request.version))
        )

    def added(self, request: Request) -> Any:
        codes = self.next(request) or [0, 0]
        topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        partition = topic.AddPartitionsToTxnPartitionResult
        results = [
            partition(partition_index=index, partition_error_code=code)
            for index, code in enumerate(codes)
        ]
        response = AddPartitionsToTxnResponse(
            throttle_time_ms=0,
            results_by_topic_v3_and_below=[topic(name="t", results_by_partition=results)],
        )
        return bytes(response.encode(version=request.version))

    def ended(self, request: Request) -> Any:
        answer = self.next(request)
        response = EndTxnResponse(throttle_time_ms=0, error_code=answer)
        return (
            answer if answer in (CUT, SILENCE) else bytes(response.encode(version=request.version))
        )

    def described(self, request: Request) -> Any:
        asked = DescribeTransactionsRequest.decode(bytes(request.body), version=request.version)
        answer = self.next(request)
        if answer in (CUT, SILENCE):
            return answer
        states = [
            DescribeTransactionsResponse.TransactionState(
                error_code=answer,
                transactional_id=name,
                transaction_state="Ongoing",
                transaction_timeout_ms=1,
                transaction_start_time_ms=0,
                producer_id=7,
                producer_epoch=3,
                topics=[],
            )
            for name in asked.transactional_ids
        ]
        response = DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=states)
        return bytes(response.encode(version=request.version))

    def listed(self, request: Request) -> Any:
        answer = self.next(request)
        if answer in (CUT, SILENCE):
            return answer
        names = [f"mine-{self.node_id}", f"mine-{self.node_id}-more"]
        response = ListTransactionsResponse(
            throttle_time_ms=0,
            error_code=answer,
            unknown_state_filters=[],
            transaction_states=[
                ListTransactionsResponse.TransactionState(
                    transactional_id=name, producer_id=7, transaction_state="Ongoing"
                )
                for name in names
            ],
        )
        return bytes(response.encode(version=request.version))


@contextmanager
def coordinated(broker: Coordinator, **properties: str) -> Iterator[Transactions]:
    with Cluster(broker.config(**properties)) as cluster:
        yield Transactions(cluster)


@pytest.mark.parametrize("codes", [[NOT_ATTEMPTED, TOPIC_DENIED], [TOPIC_DENIED, NOT_ATTEMPTED]])
def test_a_partition_that_is_refused_is_named_and_not_those_that_were_left_out_for_it(
    codes: list[int],
) -> None:
    with Coordinator({ADD_PARTITIONS: [codes]}) as broker, coordinated(broker) as transactions:
        place = f"mine, t-{codes.index(TOPIC_DENIED)}"
        with pytest.raises(TopicAuthorizationFailedError, match=place):
            transactions.add_partitions(MINE, [TopicPartition("t", 0), TopicPartition("t", 1)])


@pytest.mark.parametrize("passing", [NOT_COORDINATOR, LOADING, CONCURRENT, CUT])
def test_what_passes_is_waited_out(passing: object) -> None:
    """A coordinator that moved, or whose connection broke, is looked up again."""
    lookups = 2 if passing in (NOT_COORDINATOR, CUT) else 1
    with (
        Coordinator({INIT_PRODUCER_ID: [passing, passing], DESCRIBE: [0]}) as broker,
        coordinated(broker) as transactions,
    ):
        assert transactions.begin("mine", TIMEOUT_MS) == MINE
        assert len(broker.asked(INIT_PRODUCER_ID)) == 3
        assert len(broker.asked(FIND_COORDINATOR)) == 2 * lookups - 1


@pytest.mark.parametrize("passing", [NOT_COORDINATOR, LOADING, CONCURRENT, CUT])
def test_an_end_is_asked_for_until_it_is_answered(passing: object) -> None:
    with (
        Coordinator({END_TXN: [passing]}) as broker,
        coordinated(broker) as transactions,
    ):
        assert transactions.end_all([MINE, THEIRS], commit=True) == {}
        asked = [
            EndTxnRequest.decode(bytes(request.body), version=request.version)
            for request in broker.asked(END_TXN)
        ]
        assert {each.transactional_id for each in asked} == {"mine", "theirs"}
        assert all(each.committed for each in asked)
        assert [each.transactional_id for each in asked].count("mine") == 2
        assert len(broker.asked(FIND_COORDINATOR)) == (1 if passing == CONCURRENT else 2)
        # Who says so is not asked again where it may have moved.
        assert len(broker.asked(FIND_COORDINATOR)) == (1 if passing == CONCURRENT else 2)


@pytest.mark.parametrize("silent", [INIT_PRODUCER_ID, END_TXN, DESCRIBE, LIST])
def test_an_answer_that_is_lost_does_not_use_up_the_time_of_the_next_attempt(silent: int) -> None:
    with (
        Coordinator({silent: [SILENCE]}) as broker,
        Coordinator(node_id=2) as other,
        coordinated(broker, socket_connection_setup_timeout_ms="300") as transactions,
    ):
        broker.brokers = {1: broker, 2: other}
        assert transactions.begin("mine", TIMEOUT_MS) == MINE
        assert transactions.end_all([MINE], commit=True) == {}
        assert transactions.describe(["mine"]).keys() == {"mine"}
        names = transactions.ongoing("mine-[12]")
        assert names == ["mine-1", "mine-2"]


@pytest.mark.parametrize(
    ("level", "ends", "begins"), [(None, [4], 1), (0, [4], 1), (1, [4], 1), (2, [5], 0)]
)
def test_an_end_fences_where_the_cluster_has_finalized_that(
    monkeypatch: pytest.MonkeyPatch, level: int | None, ends: list[int], begins: int
) -> None:
    """Apache Kafka 4 offers version 5 in any case, and with an older transaction.version breaks."""
    monkeypatch.setitem(VERSIONS, END_TXN, (0, 5))
    with Coordinator() as broker, coordinated(broker) as transactions:
        if level is not None:
            broker.features = {"transaction.version": level}
        transactions.abort_and_fence(MINE, TIMEOUT_MS)
        assert [request.version for request in broker.asked(END_TXN)] == ends
        assert len(broker.asked(INIT_PRODUCER_ID)) == begins


@pytest.mark.parametrize("was_connected", [False, True])
@pytest.mark.parametrize("step", ["begin", "end_all", "describe"])
def test_a_coordinator_that_has_gone_is_looked_up_again(step: str, was_connected: bool) -> None:
    with Coordinator() as broker, coordinated(broker, request_timeout_ms="5000") as transactions:
        with Coordinator(node_id=2) as gone:
            broker.of = {"mine": gone}
            transactions.locate(["mine"])
            if was_connected:
                transactions.describe(["mine"])
        broker.of = {}
        if step == "begin":
            assert transactions.begin("mine", TIMEOUT_MS) == MINE
        elif step == "end_all":
            assert transactions.end_all([MINE], commit=True) == {}
        else:
            assert transactions.describe(["mine"]).keys() == {"mine"}


def test_very_many_ids_are_asked_for_in_portions(
    cluster: Cluster, transactions: Transactions
) -> None:
    ids = [f"{'p' * 200}-task-{number}-0" for number in range(2_600)]
    assert transactions.describe(
        [transactions.begin("p", 60_000).transactional_id, *ids]
    ).keys() == {"p"}


def test_an_end_that_is_never_answered_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Coordinator({END_TXN: [LOADING] * 1000}) as broker,
        coordinated(broker, request_timeout_ms="300") as transactions,
        pytest.raises(KafkaError),
    ):
        transactions.end(MINE, commit=True)


def test_ids_are_asked_of_their_own_coordinators() -> None:
    with Coordinator(node_id=2) as other, Coordinator() as broker:
        broker.brokers = {1: broker, 2: other}
        broker.of = {"theirs": other}
        with coordinated(broker) as transactions:
            assert transactions.end_all([MINE, THEIRS], commit=False) == {}
            assert transactions.describe(["mine", "theirs"]).keys() == {"mine", "theirs"}
            for each in (broker, other):
                assert len(each.asked(END_TXN)) == len(each.asked(DESCRIBE)) == 1
            assert len(broker.asked(FIND_COORDINATOR)) == 1
            assert not other.asked(FIND_COORDINATOR)
            assert transactions.ongoing("mine-[12]") == ["mine-1", "mine-2"]


def test_older_brokers_are_asked_for_one_coordinator_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(VERSIONS, FIND_COORDINATOR, (0, 3))
    with Coordinator() as broker, coordinated(broker) as transactions:
        transactions.locate(["mine", "theirs"])
        assert transactions.end_all([MINE, THEIRS], commit=False) == {}
        assert len(broker.asked(FIND_COORDINATOR)) == 2


@pytest.mark.parametrize("passing", [NOT_COORDINATOR, LOADING, CUT])
def test_a_description_is_asked_for_until_it_is_there(passing: object) -> None:
    with Coordinator({DESCRIBE: [passing]}) as broker, coordinated(broker) as transactions:
        assert transactions.describe(["mine"]) == {"mine": TransactionDescription(MINE, ONGOING)}
        lookups = 1 if passing == LOADING else 2
        assert len(broker.asked(FIND_COORDINATOR)) == lookups


def test_a_broker_that_does_not_list_its_transactions_is_left_out_with_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Coordinator(node_id=2) as other, Coordinator({LIST: [LOADING]}) as broker:
        broker.brokers = {1: broker, 2: other}
        with coordinated(broker) as transactions:
            other.answers = {LIST: [CUT]}  # a connection that was idle for too long, say
            assert transactions.ongoing("mine-[12]") == ["mine-1", "mine-2"]
            assert not caplog.text
            other.answers = {LIST: [CUT] * 10}
            assert transactions.ongoing("mine-[12]") == ["mine-1"]
            address = f"127.0.0.1:{other.port}"
            assert f"Transactions that {address} coordinates may stay open" in caplog.text
        monkeypatch.delitem(VERSIONS, LIST)
        with coordinated(broker) as transactions:
            assert transactions.ongoing("mine.*") == []


def test_a_lead_is_taken_back_only_where_brokers_compare_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Coordinator() as broker, coordinated(broker) as transactions:
        transactions.begin("mine", 1234, MINE)
        (asked,) = (
            InitProducerIdRequest.decode(bytes(request.body), version=request.version)
            for request in broker.asked(INIT_PRODUCER_ID)
        )
        assert (asked.transactional_id, asked.transaction_timeout_ms) == ("mine", 1234)
        assert (asked.producer_id, asked.producer_epoch) == (7, 3)
    monkeypatch.setitem(VERSIONS, INIT_PRODUCER_ID, (0, 2))
    with Coordinator() as broker, coordinated(broker) as transactions:
        transactions.begin("mine", 1234)
        with pytest.raises(IncompatibleBrokerVersion):
            transactions.begin("mine", 1234, MINE)
