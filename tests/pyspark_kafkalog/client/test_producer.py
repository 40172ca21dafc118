"""Delivery: once, in order and in time, whatever a broker does between."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.producer import InitProducerIdResponse
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.decode import RecordDecoder
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.producer import Producer, ProducerNumbers
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    DeliveryError,
    DeliveryTimeoutError,
    MessageTooLargeError,
    UnknownTopicError,
)
from pyspark_kafkalog.protocol import produce
from pyspark_kafkalog.record.batch import BatchHeader, check_crc, read_header
from tests.pyspark_kafkalog.client.conftest import batches_of
from tests.pyspark_kafkalog.client.scripted import (
    CUT,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    SILENCE,
    Request,
    ScriptedBroker,
)
from tests.pyspark_kafkalog.client.test_cluster import topic_error
from tests.support.patience import BUSY_S, EVENT_S, stays, wait_until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OUT_OF_ORDER, DUPLICATE = 45, 46
# A leader says these when the batch is in its log, and replicas do not have it in time.
REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 7, 20


def one_batch(text: str) -> bytearray:
    (batch,) = batches_of([text.encode()])
    return batch


class LogBroker(ScriptedBroker):
    """Keeps logs by the rules of an idempotent producer (KIP-98), and fails as it is told.

    Before each Produce request `fault` is called with its number; it returns None, an error code
    for all of the request's partitions, or "before" / "after": the connection is cut before or
    after the batches are stored. `silence` answers nothing but stores.
    """

    def __init__(self, fault: Any = lambda number: None, partitions: int = 2) -> None:
        super().__init__(
            {PRODUCE: self.on_produce, INIT_PRODUCER_ID: self.init_producer_id}, {"t": partitions}
        )
        self.fault = fault
        self.logs: dict[TopicPartition, list[bytes]] = defaultdict(list)
        self.last_five: dict[TopicPartition, list[int]] = defaultdict(list)
        self.next_sequence: dict[TopicPartition, int] = {}
        self.lock = threading.Lock()
        self.batches_per_request: list[int] = []

    def init_producer_id(self, request: Request) -> bytes:
        response = InitProducerIdResponse(error_code=0, producer_id=4242, producer_epoch=3)
        return bytes(response.encode(version=request.version))

    def on_produce(self, request: Request) -> Any:
        asked = produce.decode_produce_request(request.body, request.version)
        with self.lock:
            self.batches_per_request.append(len(asked.partitions))
            fault = self.fault(len(self.batches_per_request) - 1)
            if fault == "before":
                return CUT
            results = [self.append(each, fault) for each in asked.partitions]
        if fault == "after":
            return CUT
        if fault == "silence" or asked.acks == 0:
            return SILENCE
        return produce.encode_produce_response(produce.ProduceResponse(results), request.version)

    def append(self, asked: produce.ProducePartition, fault: Any) -> produce.ProducedPartition:
        topic_partition = TopicPartition(asked.topic, asked.partition)
        assert asked.records is not None
        header = read_header(asked.records)
        check_crc(asked.records, header)
        is_stored_first = fault in (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        code = (
            fault
            if isinstance(fault, int) and not is_stored_first
            else self.judge(topic_partition, header)
        )
        if code == 0:
            self.logs[topic_partition].append(bytes(asked.records))
            code = fault if is_stored_first else 0
        return produce.ProducedPartition(topic_partition.topic, topic_partition.partition, code, 0)

    def judge(self, topic_partition: TopicPartition, header: BatchHeader) -> int:
        if header.producer_id < 0:
            return 0
        assert (header.producer_id, header.producer_epoch) == (4242, 3)
        if header.base_sequence in self.last_five[topic_partition]:
            return DUPLICATE
        # A producer that is not known may begin anywhere, by Kafka's rules.
        if header.base_sequence != self.next_sequence.get(topic_partition, header.base_sequence):
            return OUT_OF_ORDER
        self.next_sequence[topic_partition] = (header.base_sequence + header.record_count) % (
            1 << 31
        )
        self.last_five[topic_partition] = [*self.last_five[topic_partition], header.base_sequence][
            -5:
        ]
        return 0

    def texts(self, topic_partition: TopicPartition) -> list[str]:
        """What the partition holds, record by record."""
        found = []
        for batch in self.logs[topic_partition]:
            decoder = RecordDecoder(topic_partition.topic, topic_partition.partition, ["value"])
            rows = [*decoder.decode(memoryview(batch), 0, 1 << 40), *decoder.finish()]
            found += [value.decode() for each in rows for value in each.column(0).to_pylist()]
        return found


def write_numbers(broker: LogBroker, count: int, flush_every: int = 1 << 30, **config: str) -> None:
    with Producer(broker.config(**config)) as producer:
        for number in range(count):
            producer.send(TopicPartition("t", number % 2), one_batch(str(number)))
            if number % flush_every == flush_every - 1:
                producer.flush()


def numbers(count: int, partition: int) -> list[str]:
    return [str(number) for number in range(count) if number % 2 == partition]


def test_our_broker_holds_each_record_once_and_in_order(
    config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(4)
    topic_partitions = [TopicPartition(topic, partition) for partition in range(4)]
    with Cluster(config()) as cluster:
        with Producer(cluster) as producer:
            assert producer.partitions_for(topic) == [0, 1, 2, 3]
            for first in range(0, 20_000, 1000):
                values = [b"%d" % number for number in range(first, first + 1000)]
                for batch in batches_of(values, batch_bytes=3000):
                    producer.send(topic_partitions[first // 1000 % 4], batch)
        found: list[int] = []
        for topic_partition in topic_partitions:
            end = cluster.list_offsets([topic_partition], LATEST)[topic_partition].offset
            decoder = RecordDecoder(topic, topic_partition.partition, ["value"])
            values = []
            for each in Fetcher(cluster, topic_partition, 0, end).records():
                values += list(decoder.decode(each.records, each.start_offset, end))
            rows = pa.Table.from_batches([*values, *decoder.finish()])
            in_partition = [int(value) for value in rows.column(0).to_pylist()]
            assert in_partition == sorted(in_partition)
            found += in_partition
    assert sorted(found) == list(range(20_000))


def test_a_topic_is_created_by_the_first_write_if_brokers_do_that(
    config: Callable[..., ClientConfig],
) -> None:
    with Producer(config()) as producer:
        assert producer.partitions_for("created-by-writing") == [0]


def test_batches_carry_the_producer_and_their_place_in_the_partitions_sequence() -> None:
    with LogBroker() as broker:
        with Producer(broker.config()) as producer:
            for values in ([b"a", b"b", b"c"], [b"d"], [b"e", b"f"]):
                (batch,) = batches_of(values)
                producer.send(T0, batch)
            producer.send(T1, one_batch("g"))
        headers = [read_header(batch) for batch in broker.logs[T0]]
        assert [header.base_sequence for header in headers] == [0, 3, 4]
        assert read_header(broker.logs[T1][0]).base_sequence == 0


def test_sequences_begin_anew_after_the_last_of_31_bits() -> None:
    numbers = ProducerNumbers()
    numbers.identity = (4242, 3)
    numbers.next_sequences[T0] = (1 << 31) - 2
    with LogBroker() as broker:
        with Producer(broker.config(), numbers=numbers) as producer:
            for values in ([b"a", b"b", b"c"], [b"d"]):
                (batch,) = batches_of(values)
                producer.send(T0, batch)
        headers = [read_header(batch) for batch in broker.logs[T0]]
        assert [header.base_sequence for header in headers] == [(1 << 31) - 2, 1]
    assert numbers.next_sequences[T0] == 2


def test_one_request_carries_batches_of_several_partitions() -> None:
    with LogBroker(partitions=6) as broker:
        with Producer(broker.config()) as producer:
            for partition in range(6):
                producer.send(TopicPartition("t", partition), one_batch("x"))
            assert broker.batches_per_request == []
        assert broker.batches_per_request == [6]


def test_a_request_stays_within_max_request_size() -> None:
    size_bytes = len(one_batch("x" * 1000))
    with LogBroker(partitions=6) as broker:
        with Producer(broker.config(max_request_size=str(2 * size_bytes))) as producer:
            for partition in range(6):
                producer.send(TopicPartition("t", partition), one_batch("x" * 1000))
        assert broker.batches_per_request == [2, 2, 2]


def test_at_most_five_requests_are_under_way_and_memory_is_bounded() -> None:
    release = threading.Event()
    arrived = []

    class Slow(LogBroker):
        def on_produce(self, request: Request) -> Any:
            arrived.append(request)
            release.wait(EVENT_S)
            return super().on_produce(request)

    size_bytes = len(one_batch("0"))
    with Slow() as broker:
        config = broker.config(
            buffer_memory=str(7 * size_bytes), max_request_size=str(4 * size_bytes)
        )
        sent = []

        def run() -> None:
            with Producer(config) as producer:
                for number in range(40):
                    producer.send(T0, one_batch(str(number % 10)))
                    sent.append(number)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: len(sent) >= 7 and arrived, "seven requests")
        assert stays(lambda: len(sent) == 7, 0.05)
        release.set()
        thread.join(EVENT_S)
        assert broker.texts(T0) == [str(number % 10) for number in range(40)]


def test_five_requests_are_sent_ahead_of_their_answers() -> None:
    """The socket takes requests while the broker is busy; the sixth waits for an answer."""
    frames_seen = threading.Semaphore(0)
    release = threading.Event()

    class Slow(LogBroker):
        def on_produce(self, request: Request) -> Any:
            if self.batches_per_request:
                release.wait(EVENT_S)
            frames_seen.release()
            return super().on_produce(request)

    with Slow() as broker, Cluster(broker.config()) as cluster:
        producer = Producer(cluster)
        producer.send(T0, one_batch("0"))
        producer.flush()
        for number in range(1, 12):
            producer.send(T0, one_batch(str(number)))
        assert cluster.leader(T0).in_flight == 5
        release.set()
        producer.close()
        assert broker.texts(T0) == [str(number) for number in range(12)]


@pytest.mark.parametrize("error_code", [2, 3, 5, 6, 7, 13, 19, 20, 56])
def test_an_error_that_passes_is_retried_in_order(error_code: int) -> None:
    with LogBroker(lambda number: error_code if number in (1, 3) else None) as broker:
        write_numbers(broker, 30)
        assert broker.texts(T0) == numbers(30, 0)
        assert broker.texts(T1) == numbers(30, 1)


def test_what_follows_a_first_batch_that_was_refused_does_not_begin_the_sequence() -> None:
    """A topic that was just created has no leader yet, and has one an instant later."""
    with LogBroker(lambda number: 6 if number == 0 else None) as broker:
        with Producer(broker.config()) as producer:
            for number in range(10):
                producer.send(T0, one_batch(str(number)))
        assert broker.texts(T0) == [str(number) for number in range(10)]


def test_a_batch_whose_answer_was_lost_is_known_to_the_broker_until_it_is_sent_again() -> None:
    """Brokers know a producer's last five batches of a partition again, and none before them.

    The answers to batches 1 to 4 are lost. Then 2 and 3 are refused while 4 and new ones pass, and
    3 once more while five others do, if they may be sent beside it.
    """
    faults: dict[int, Any] = {1: "silence", 2: "silence", 3: "silence", 4: "after"}
    faults |= dict.fromkeys((6, 7, 12), 6)
    with LogBroker(faults.get) as broker:
        with Producer(broker.config()) as producer:
            for number in range(20):
                producer.send(T0, one_batch(str(number)))
        assert broker.texts(T0) == [str(number) for number in range(20)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_connection_neither_loses_nor_doubles(when: str) -> None:
    with LogBroker(lambda number: when if number in (2, 3, 9) else None) as broker:
        write_numbers(broker, 40)
        assert broker.texts(T0) == numbers(40, 0)
        assert broker.texts(T1) == numbers(40, 1)


def test_an_answer_that_never_comes_neither_loses_nor_doubles() -> None:
    with LogBroker(lambda number: "silence" if number == 1 else None) as broker:
        write_numbers(broker, 20, request_timeout_ms="150")
        assert broker.texts(T0) == numbers(20, 0)
        assert broker.texts(T1) == numbers(20, 1)


def test_a_last_answer_that_never_comes_is_not_waited_for() -> None:
    """Nothing follows it that could show that it is overdue."""
    with LogBroker(lambda number: "silence" if number == 0 else None) as broker:
        write_numbers(broker, 1, request_timeout_ms="150", delivery_timeout_ms="10000")
        assert broker.texts(T0) == ["0"]
        assert len(broker.batches_per_request) == 2


def test_what_an_answer_leaves_out_is_sent_again() -> None:
    class Forgetful(LogBroker):
        def on_produce(self, request: Request) -> Any:
            answer = super().on_produce(request)
            if len(self.batches_per_request) == 1:
                return produce.encode_produce_response(produce.ProduceResponse([]), request.version)
            return answer

    with Forgetful() as broker:
        write_numbers(broker, 4)
        assert broker.texts(T0) == numbers(4, 0)
        assert broker.texts(T1) == numbers(4, 1)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    rate=st.sampled_from([0.1, 0.3, 0.6]),
    flush_every=st.sampled_from([1, 3, 7, 1000]),
)
def test_any_series_of_faults_neither_loses_nor_doubles_nor_reorders(
    seed: int, rate: float, flush_every: int
) -> None:
    rng = random.Random(seed)
    kinds: list[Any] = [6, 7, 19, 20, "before", "after"]

    def fault(number: int) -> Any:
        return rng.choice(kinds) if number < 60 and rng.random() < rate else None

    with LogBroker(fault) as broker:
        write_numbers(broker, 40, flush_every, retry_backoff_ms="0", max_request_size="300")
        assert broker.texts(T0) == numbers(40, 0)
        assert broker.texts(T1) == numbers(40, 1)


def test_a_leader_that_moves_is_followed_in_order() -> None:
    with LogBroker() as one, LogBroker() as two:
        one.brokers = two.brokers = {1: one, 2: two}

        def resign(number: int) -> Any:
            if number < 2:
                return None
            if one.leader == 1:
                two.next_sequence.update(one.next_sequence)
                two.last_five.update(one.last_five)
                one.leader = two.leader = 2
            return 6

        one.fault = resign
        write_numbers(one, 40)
        for topic_partition in (T0, T1):
            assert one.texts(topic_partition) + two.texts(topic_partition) == numbers(
                40, topic_partition.partition
            )
        assert two.texts(T0)


def test_a_new_leader_gets_nothing_before_the_old_one_has_answered() -> None:
    release = threading.Event()

    class Slow(LogBroker):
        def on_produce(self, request: Request) -> Any:
            if self.logs:
                release.wait(EVENT_S)
            return super().on_produce(request)

    with ScriptedBroker(node_id=3) as other, Slow() as one, LogBroker() as two:
        two.logs, two.next_sequence, two.last_five = one.logs, one.next_sequence, one.last_five
        other.brokers = {1: one, 2: two, 3: other}
        other.handlers[INIT_PRODUCER_ID] = one.init_producer_id
        other.leader = 1
        with Producer(other.config(metadata_max_age_ms="0")) as producer:
            producer.send(T0, one_batch("0"))
            producer.flush()  # the first goes alone; the others follow each other
            for number in range(1, 10):
                producer.send(T0, one_batch(str(number)))
                if number == 3:
                    other.leader = 2
            assert one.connections == 1
            assert two.requests == []
            release.set()
        assert one.texts(T0) == [str(number) for number in range(10)]
        assert two.requests != []


def test_a_gap_that_no_retry_explains_is_refused_for_good() -> None:
    with LogBroker(lambda number: OUT_OF_ORDER) as broker:
        producer = Producer(broker.config())
        producer.send(T0, one_batch("x"))
        with pytest.raises(DeliveryError, match="OutOfOrderSequence"):
            producer.flush()
        with pytest.raises(DeliveryError):
            producer.send(T0, one_batch("y"))
        producer.close()
        assert len(broker.batches_per_request) == 1


@pytest.mark.parametrize("error_code", [29, 87, 90, 47, 59])
def test_an_error_that_does_not_pass_is_raised_and_closes_the_producer(error_code: int) -> None:
    with LogBroker(lambda number: error_code) as broker:
        producer = Producer(broker.config())
        producer.send(T0, one_batch("x"))
        with pytest.raises(DeliveryError, match="partition 0 of topic t") as raised:
            producer.flush()
        assert getattr(raised.value.__cause__, "errno", None) == error_code
        with pytest.raises(DeliveryError):
            producer.flush()
        producer.close()


def test_a_batch_too_large_for_the_client_names_the_option() -> None:
    with LogBroker() as broker, Producer(broker.config(max_request_size="100")) as producer:
        with pytest.raises(MessageTooLargeError, match=r"kafka\.max\.request\.size=100"):
            producer.send(T0, one_batch("x" * 100))
        assert broker.batches_per_request == []


def test_a_batch_too_large_for_the_topic_names_its_property(
    config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(1, max_message_bytes="500"), 0)
    producer = Producer(config())
    producer.send(topic_partition, one_batch("x" * 1000))
    with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes"):
        producer.flush()
    producer.close()


def test_what_is_no_batch_is_refused() -> None:
    with (
        LogBroker() as broker,
        Producer(broker.config()) as producer,
        pytest.raises(ValueError, match="are not one record batch"),
    ):
        producer.send(T0, one_batch("x") + one_batch("y"))


def test_delivery_is_given_up_in_time() -> None:
    with LogBroker(lambda number: 19) as broker:
        producer = Producer(broker.config(delivery_timeout_ms="200"))
        producer.send(T0, one_batch("x"))
        began = time.monotonic()
        says = r"kafka\.delivery\.timeout\.ms=200 .* NotEnoughReplicas"
        with pytest.raises(DeliveryTimeoutError, match=says):
            producer.flush()
        assert 0.15 < time.monotonic() - began < 1 + BUSY_S
        producer.close()


@pytest.mark.parametrize("fault", ["silence", "before"])
def test_delivery_to_a_broker_that_does_not_answer_is_given_up_in_time(fault: str) -> None:
    with LogBroker(lambda number: fault) as broker:
        producer = Producer(broker.config(delivery_timeout_ms="1500", request_timeout_ms="1000"))
        producer.send(T0, one_batch("x"))
        began = time.monotonic()
        with pytest.raises(DeliveryTimeoutError):
            producer.flush()
        assert time.monotonic() - began < 2.3 + BUSY_S
        producer.close()


def test_delivery_to_a_broker_that_went_away_is_given_up_in_time() -> None:
    broker = LogBroker()
    producer = Producer(broker.config(delivery_timeout_ms="1500", request_timeout_ms="1000"))
    with broker:
        producer.send(T0, one_batch("x"))
        producer.flush()
    producer.send(T0, one_batch("y"))
    began = time.monotonic()
    with pytest.raises(DeliveryTimeoutError, match="could be used within"):
        producer.flush()
    assert time.monotonic() - began < 2.3 + BUSY_S
    producer.close()


def test_a_producer_that_never_finds_a_broker_says_so_in_time() -> None:
    with LogBroker() as broker:
        config = broker.config(request_timeout_ms="150")
    with pytest.raises(BrokersUnreachableError):
        Producer(config).send(T0, one_batch("x"))


def test_a_time_without_calls_is_not_counted_against_what_was_never_sent() -> None:
    with LogBroker() as broker, Producer(broker.config(delivery_timeout_ms="1500")) as producer:
        producer.send(T0, one_batch("x"))
        time.sleep(1.6)  # The time itself is what is tested.
        producer.flush()
        assert broker.texts(T0) == ["x"]


def test_a_leader_that_comes_back_is_used_at_once_also_without_a_pause_between_attempts() -> None:
    with LogBroker() as broker:
        config = broker.config(
            retry_backoff_ms="0", request_timeout_ms="2000", delivery_timeout_ms="5000"
        )
        with Cluster(config) as cluster:
            producer = Producer(cluster)
            producer.send(T0, one_batch("x"))
            knows, began = broker.metadata, time.monotonic()

            def elect(request: Request) -> Any:
                is_elected = time.monotonic() - began > 0.3
                return knows(request) if is_elected else topic_error(5)(request)

            broker.handlers[METADATA] = elect
            producer.flush()
            assert time.monotonic() - began < 2 + BUSY_S


def test_retries_are_bounded_where_that_is_asked_for() -> None:
    with LogBroker(lambda number: 19) as broker:
        producer = Producer(broker.config(retries="2"))
        producer.send(T0, one_batch("x"))
        with pytest.raises(DeliveryError, match=r"failed 3 times; kafka\.retries=2"):
            producer.flush()
        producer.close()
        assert len(broker.batches_per_request) == 3


def test_without_acknowledgement_nothing_is_waited_for() -> None:
    with LogBroker() as broker:
        with Producer(broker.config(acks="0")) as producer:
            for number in range(10):
                producer.send(T0, one_batch(str(number)))
        wait_until(lambda: len(broker.texts(T0)) == 10, "ten records")
        assert broker.texts(T0) == [str(number) for number in range(10)]
        assert broker.asked(INIT_PRODUCER_ID) == []
        assert read_header(broker.logs[T0][0]).producer_id == -1


def test_a_topic_that_does_not_exist(config: Callable[..., ClientConfig]) -> None:
    with Cluster(config()) as cluster:
        producer = Producer(cluster)
        producer.send(TopicPartition("nowhere", 0), one_batch("x"))
        with pytest.raises(UnknownTopicError, match="Topic nowhere does not exist"):
            producer.flush()


def test_leaving_by_an_exception_sends_nothing_more() -> None:
    with LogBroker() as broker:

        def fail() -> None:
            with Producer(broker.config()) as producer:
                producer.send(T0, one_batch("x"))
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert broker.batches_per_request == []


def test_a_cluster_that_was_given_stays_open() -> None:
    with LogBroker() as broker, Cluster(broker.config()) as cluster:
        with Producer(cluster) as producer:
            producer.send(T0, one_batch("x"))
        assert not cluster.leader(T0).closed
        assert broker.connections == 1


def test_partitions_whose_leaders_are_gone_are_given_up_together() -> None:
    with LogBroker(partitions=100) as broker:
        config = broker.config(
            request_timeout_ms="1000", delivery_timeout_ms="3000", retry_backoff_ms="10"
        )
        producer = Producer(config)
        for number in range(100):
            producer.send(TopicPartition("t", number), one_batch("x"))
    began_s = time.monotonic()
    with pytest.raises(DeliveryTimeoutError):
        producer.flush()
    # 100 times request.timeout.ms would be 100 s.
    assert time.monotonic() - began_s < 6 + BUSY_S
