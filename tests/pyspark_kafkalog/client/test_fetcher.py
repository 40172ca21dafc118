"""Ranges of a partition: against our broker, and against scripted leaders, gaps and nonsense."""

import re
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kafka.errors import CorruptRecordError, KafkaError, TopicAuthorizationFailedError
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.structs import TopicPartition

from pyspark_kafkalog.client import admin, deadline
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import FetchedRecords, Fetcher
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    DataLossError,
    FetchTimeoutError,
    KafkalogError,
    TopicRecreatedError,
)
from pyspark_kafkalog.protocol import fetch
from pyspark_kafkalog.record.batch import batches, read_header, seal, stamp
from tests.pyspark_kafkalog.client.conftest import batches_of, write
from tests.pyspark_kafkalog.client.scripted import (
    CUT,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    SILENCE,
    VERSIONS,
    RawPeer,
    Request,
    ScriptedBroker,
    wait_for_close,
)
from tests.pyspark_kafkalog.client.test_cluster import offsets_answer, topic_error
from tests.support.patience import BUSY_S, EVENT_S, wait_until

T0 = TopicPartition("t", 0)


def stored(first_offset: int, count: int, value: bytes = b"v") -> bytes:
    """One record batch as it lies on a broker's disk."""
    (batch,) = batches_of([value] * count, batch_bytes=100_000_000)
    seal(batch)
    stamp(batch, read_header(batch), first_offset, 0)
    return bytes(batch)


def answer(
    request: Request,
    records: bytes = b"",
    error_code: int = 0,
    high_watermark: int = 1000,
    **fields: Any,
) -> bytes:
    """A Fetch answer about partition 0 of topic t."""
    found = fetch.FetchedPartition("t", 0, error_code, high_watermark, records or None, **fields)
    parts = fetch.encode_fetch_response(fetch.FetchResponse([found]), request.version)
    return b"".join(bytes(part) for part in parts)


def asked_offset(request: Request) -> int:
    return fetch.decode_fetch_request(request.body, request.version).partitions[0].fetch_offset


def log_of(*batches: bytes) -> Callable[[Request], bytes]:
    """Answers as a broker with these batches does: the first that reaches the offset."""

    def serve(request: Request) -> bytes:
        offset = asked_offset(request)
        for batch in batches:
            if read_header(batch).next_offset > offset:
                return answer(request, batch)
        return answer(request)

    return serve


def fetched(broker: ScriptedBroker, start: int, until: int, **properties: str) -> list[Any]:
    with Cluster(broker.config(**properties)) as cluster:
        return list(Fetcher(cluster, T0, start, until, poll_timeout_ms=60_000).records())


_GIVEN_UP = (FetchTimeoutError, DataLossError, BrokersUnreachableError)


def given_up(broker: ScriptedBroker, start: int = 0) -> KafkalogError:
    """By what a read of offsets up to 10 ends. A busy machine may give no answer at all within a
    short patience: then it is a longer one."""
    for poll_timeout_ms in (200, 2000, 20_000):
        began = time.monotonic()
        with Cluster(broker.config()) as cluster, pytest.raises(_GIVEN_UP) as raised:
            list(Fetcher(cluster, T0, start, 10, poll_timeout_ms=poll_timeout_ms).records())
        assert time.monotonic() - began < poll_timeout_ms / 1000 + 0.8 + BUSY_S
        is_unanswered = "no answer in time" in str(raised.value)
        if not (is_unanswered or isinstance(raised.value, BrokersUnreachableError)):
            break
    return raised.value


def why_nothing_came(broker: ScriptedBroker) -> str:
    error = given_up(broker)
    assert type(error) is FetchTimeoutError
    return str(error)


def spans(found: list[FetchedRecords]) -> list[tuple[int, int]]:
    return [(each.start_offset, each.next_offset) for each in found]


# Against our broker.


def test_a_whole_partition_comes_without_gap_and_in_order(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    values = [b"%06d" % number for number in range(20_000)]
    batch_count = write(config(), topic_partition, values, batch_bytes=5_000)
    with Cluster(config(max_partition_fetch_bytes="20000")) as own:
        found = list(Fetcher(own, topic_partition, 0, len(values)).records())
    assert len(found) > 5
    headers = [header for each in found for header in batches(each.records)]
    assert len(headers) == batch_count
    expected = 0
    for header in headers:
        assert header.base_offset == expected
        expected = header.next_offset
    assert expected == len(values)
    ends = [each.next_offset for each in found]
    assert [each.start_offset for each in found] == [0, *ends[:-1]]


def test_a_range_in_the_middle_stops_at_the_batch_that_holds_its_end(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    write(config(), topic_partition, [b"x" * 100] * 1000, batch_bytes=2_000)
    with Cluster(config(max_partition_fetch_bytes="4000")) as own:
        fetcher = Fetcher(own, topic_partition, 333, 666)
        found = list(fetcher.records())
    first = next(batches(found[0].records))
    assert first.base_offset <= 333 < first.next_offset
    assert found[0].start_offset == 333
    *_, last = batches(found[-1].records)
    assert last.next_offset >= 666
    assert found[-1].next_offset == last.next_offset == fetcher.position
    assert found[-2].next_offset < 666


def test_an_empty_range_asks_nothing(cluster: Cluster, new_topic: Callable[..., str]) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    assert list(Fetcher(cluster, topic_partition, 5, 5).records()) == []


def test_a_batch_larger_than_a_fetch_comes_whole(
    config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    write(config(), topic_partition, [b"x" * 500_000, b"y" * 500_000])
    with Cluster(config(max_partition_fetch_bytes="1000", fetch_max_bytes="1000")) as own:
        found = list(Fetcher(own, topic_partition, 0, 2).records())
    assert sum(len(each.records) for each in found) > 1_000_000
    assert found[-1].next_offset == 2


def test_an_offset_beyond_the_end_is_data_loss_that_says_what_there_is(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    write(config(), topic_partition, [b"x"] * 10)
    with pytest.raises(DataLossError, match="holds offsets 0 up to, not including, 10") as raised:
        list(Fetcher(cluster, topic_partition, 50, 60).records())
    assert (raised.value.log_start_offset, raised.value.log_end_offset) == (0, 10)


def test_a_topic_that_was_deleted_is_data_loss(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    write(config(), topic_partition, [b"x"] * 10)
    cluster.leader(topic_partition)
    admin.delete_topics(cluster, [topic_partition.topic])
    with pytest.raises(DataLossError, match="does not exist any more"):
        list(Fetcher(cluster, topic_partition, 0, 10).records())


def test_a_reader_that_stops_early_leaves_the_connection_usable(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    write(config(), topic_partition, [b"x" * 1000] * 3000, batch_bytes=10_000)
    with Cluster(config(max_partition_fetch_bytes="300000")) as own:
        reading = Fetcher(own, topic_partition, 0, 3000).records()
        next(reading)
        assert own.list_offsets([topic_partition], LATEST)[topic_partition].offset == 3000
        reading.close()
        assert own.list_offsets([topic_partition], LATEST)[topic_partition].offset == 3000
        assert own.leader(topic_partition).in_flight == 0


# Against scripted brokers.


def test_the_next_fetch_is_sent_before_the_answer_is_handed_out() -> None:
    second_asked = threading.Event()

    def serve(request: Request) -> bytes:
        if asked_offset(request):
            second_asked.set()
        return log_of(stored(0, 10), stored(10, 10))(request)

    with ScriptedBroker({FETCH: serve}) as broker, Cluster(broker.config()) as cluster:
        reading = Fetcher(cluster, T0, 0, 20).records()
        next(reading)
        assert second_asked.wait(EVENT_S)
        assert len(list(reading)) == 1
        assert len(broker.asked(FETCH)) == 2


class FarAway:
    """Answers with one batch of a log that has no end, each of them only when it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Semaphore(0)
        self.asked_bytes: list[int] = []

    def __call__(self, request: Request) -> bytes:
        asked = fetch.decode_fetch_request(request.body, request.version).partitions[0]
        self.asked_bytes.append(asked.max_bytes)
        assert self.may_answer.acquire(timeout=EVENT_S)
        return answer(request, stored(asked.fetch_offset, 10, bytes(100)), high_watermark=10**9)

    def read(self, turns: int, late_s: float, **properties: str) -> list[int]:
        """How much was asked for each time, by a reader that finds answers here, or not yet."""
        with (
            ScriptedBroker({FETCH: self}) as broker,
            Cluster(broker.config(**properties)) as cluster,
        ):
            reading = Fetcher(cluster, T0, 0, 10**9).records()
            self.may_answer.release()
            for _ in range(turns):
                next(reading)
                if late_s:
                    threading.Timer(late_s, self.may_answer.release).start()
                else:
                    self.may_answer.release()
                    leader = cluster.leader(T0)
                    wait_until(partial(leader.has_answer_to, -1, wait_s=1), "an answer")
            reading.close()
        return [asked_bytes >> 20 for asked_bytes in self.asked_bytes[:turns]]


def test_fetches_grow_while_the_network_takes_longer_than_their_reader() -> None:
    assert FarAway().read(4, late_s=0.05) == [4, 4, 8, 8]
    assert FarAway().read(4, late_s=0) == [4, 4, 4, 4]


def test_fetches_do_not_grow_beyond_what_is_set() -> None:
    set_to = {"max_partition_fetch_bytes": str(2 << 20)}
    assert FarAway().read(3, late_s=0.05, **set_to) == [2, 2, 2]
    most = {"fetch_max_bytes": str(6 << 20)}
    assert FarAway().read(4, late_s=0.05, **most) == [4, 4, 6, 6]


def test_two_answers_are_in_memory_however_long_the_partition_is(
    config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    write(config(), topic_partition, [bytes(1000)] * 12_000, batch_bytes=50_000)
    with Cluster(config(max_partition_fetch_bytes="600000")) as own:
        reading = Fetcher(own, topic_partition, 0, 12_000).records()
        next(reading)
        tracemalloc.start()
        try:
            answers = sum(1 for _ in reading)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert answers > 15
    assert peak_bytes < 2 * 600_000 + 200_000


def test_records_are_views_of_the_received_buffer() -> None:
    with ScriptedBroker({FETCH: log_of(stored(0, 10))}) as broker:
        (each,) = fetched(broker, 0, 10)
    assert next(batches(each.records)).next_offset == 10
    assert isinstance(each.records.obj, bytearray)
    assert len(each.records.obj) > len(each.records)


def test_a_cut_off_last_batch_is_left_for_the_next_fetch() -> None:
    whole, cut = stored(0, 10), stored(10, 10)

    def serve(request: Request) -> bytes:
        if asked_offset(request) == 0:
            return answer(request, whole + cut[:-5])
        return answer(request, cut)

    with ScriptedBroker({FETCH: serve}) as broker:
        found = fetched(broker, 0, 20)
    assert spans(found) == [(0, 10), (10, 20)]
    assert [bytes(each.records) for each in found] == [whole, cut]


def test_a_leader_that_moves_is_followed() -> None:
    with ScriptedBroker() as one, ScriptedBroker(node_id=2) as two:
        one.brokers = two.brokers = {1: one, 2: two}
        log = log_of(stored(0, 10), stored(10, 10), stored(20, 10))

        def resign(request: Request) -> Any:
            if asked_offset(request) < 10:
                return log(request)
            one.leader = two.leader = 2
            return answer(request, error_code=6)

        one.handlers[FETCH] = resign
        two.handlers[FETCH] = log
        assert spans(fetched(one, 0, 30)) == [(0, 10), (10, 20), (20, 30)]
        assert [asked_offset(request) for request in two.asked(FETCH)] == [10, 20]


@pytest.mark.parametrize("how_bytes", [0, 2, 30, 200])
def test_a_connection_that_breaks_goes_on_where_it_was(how_bytes: int) -> None:
    log = log_of(stored(0, 100), stored(100, 100), stored(200, 100))
    broken: list[bool] = []

    def serve(request: Request) -> Any:
        whole = log(request)
        if asked_offset(request) == 100 and not broken:
            broken.append(True)
            request.socket.sendall(request.frame(whole)[:how_bytes])
            return CUT
        return whole

    with ScriptedBroker({FETCH: serve}) as broker:
        assert spans(fetched(broker, 0, 300)) == [(0, 100), (100, 200), (200, 300)]
        assert broker.connections == 2


def test_a_broker_that_is_gone_for_good_is_unreachable_in_time() -> None:
    broker = ScriptedBroker({FETCH: log_of(stored(0, 10), stored(10, 10), stored(20, 10))})
    with Cluster(broker.config(request_timeout_ms="300")) as cluster:
        with broker:
            reading = Fetcher(cluster, T0, 0, 30, poll_timeout_ms=1000).records()
            assert next(reading).next_offset == 10
        began = time.monotonic()
        with pytest.raises((BrokersUnreachableError, FetchTimeoutError)):
            list(reading)
        assert 0.9 < time.monotonic() - began < 2 + BUSY_S


@pytest.mark.parametrize("error_code", [3, 5, 6, 9, 56, 74, 75, 78])
def test_an_error_that_passes_is_waited_out(error_code: int) -> None:
    asked = []

    def serve(request: Request) -> bytes:
        asked.append(request)
        if len(asked) < 3:
            return answer(request, error_code=error_code)
        return answer(request, stored(0, 10))

    with ScriptedBroker({FETCH: serve}) as broker:
        assert spans(fetched(broker, 0, 10)) == [(0, 10)]


def test_an_error_of_the_whole_answer_that_passes_is_waited_out() -> None:
    def serve(request: Request) -> bytes:
        if len(broker.asked(FETCH)) == 1:
            refused = fetch.FetchResponse([], error_code=56)
            return bytes(fetch.encode_fetch_response(refused, request.version)[0])
        return answer(request, stored(0, 10))

    with ScriptedBroker({FETCH: serve}) as broker:
        assert spans(fetched(broker, 0, 10)) == [(0, 10)]


def test_an_error_that_does_not_pass_is_raised_as_it_is() -> None:
    with ScriptedBroker({FETCH: lambda r: answer(r, error_code=29)}) as broker:
        with pytest.raises(TopicAuthorizationFailedError, match="t-0 at offset 4"):
            fetched(broker, 4, 10)
        assert len(broker.asked(FETCH)) == 1


def test_an_error_that_never_passes_times_out() -> None:
    with ScriptedBroker({FETCH: lambda r: answer(r, error_code=6)}) as broker:
        assert "NotLeader" in why_nothing_came(broker)


def test_a_partition_that_stays_below_the_range_has_lost_the_rest_of_it() -> None:
    """A topic that was recreated: its log is shorter than what a checkpoint says of it."""
    with ScriptedBroker({FETCH: lambda r: answer(r, high_watermark=7)}) as broker:
        began = time.monotonic()
        error = given_up(broker, start=7)
        assert time.monotonic() - began >= 0.2
        assert isinstance(error, DataLossError)
        assert re.search(r"Offsets 7 up to 10 .* ends at offset 7", str(error))
        assert error.log_end_offset == 7


def test_a_silent_leader_times_out() -> None:
    with ScriptedBroker({FETCH: lambda r: SILENCE}) as broker:
        began = time.monotonic()
        with (
            Cluster(broker.config(request_timeout_ms="100")) as cluster,
            pytest.raises(FetchTimeoutError, match="no answer in time"),
        ):
            list(Fetcher(cluster, T0, 0, 10, poll_timeout_ms=300).records())
        assert time.monotonic() - began < 1 + BUSY_S


def test_a_slow_reader_is_no_stuck_partition() -> None:
    log, asked = log_of(stored(0, 10), stored(10, 10)), []

    def serve(request: Request) -> bytes:
        asked.append(request)
        # What comes next waits for a leader: its time begins when the reader is back.
        return answer(request, error_code=6) if len(asked) == 2 else log(request)

    with ScriptedBroker({FETCH: serve}) as broker, Cluster(broker.config()) as cluster:
        reading = Fetcher(cluster, T0, 0, 20, poll_timeout_ms=2000).records()
        next(reading)
        time.sleep(2.1)  # The time itself is what is tested.
        assert len(list(reading)) == 1


def test_a_process_that_was_suspended_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than all timeouts, and longer than brokers keep an idle connection."""
    clock = SuspendedClock()
    monkeypatch.setattr(deadline, "time", clock)
    log = log_of(stored(0, 10))

    def serve(request: Request) -> Any:
        if not clock.slept_s:
            clock.slept_s = 3600.0
            return CUT
        return log(request)

    with ScriptedBroker({FETCH: serve}) as broker:
        assert spans(fetched(broker, 0, 10)) == [(0, 10)]


class SuspendedClock:
    """The monotonic clock of a process that was not run for `slept_s`."""

    slept_s = 0.0
    sleep = staticmethod(time.sleep)

    def monotonic(self) -> float:
        return time.monotonic() + self.slept_s


def test_a_planning_process_that_was_suspended_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SuspendedClock()
    monkeypatch.setattr(deadline, "time", clock)

    def ends(request: Request) -> Any:
        if not clock.slept_s:
            clock.slept_s = 3600.0
            return CUT
        return offsets_answer(request, 7)

    with ScriptedBroker({LIST_OFFSETS: ends}) as broker, Cluster(broker.config()) as cluster:
        assert cluster.list_offsets([T0], LATEST)[T0].offset == 7


def test_offsets_out_of_range_say_what_there_is() -> None:
    def ends(request: Request) -> bytes:
        return offsets_answer(request, 100 if len(broker.asked(LIST_OFFSETS)) % 2 else 200)

    with (
        ScriptedBroker({FETCH: lambda r: answer(r, error_code=1), LIST_OFFSETS: ends}) as broker,
        pytest.raises(DataLossError, match="100 up to, not including, 200") as raised,
    ):
        fetched(broker, 5, 10)
    assert "Offsets 5 up to 10 of partition 0 of topic t are gone" in str(raised.value)
    assert (raised.value.log_start_offset, raised.value.log_end_offset) == (100, 200)


def test_an_offset_that_a_former_leader_refuses_is_read_from_the_new_one() -> None:
    log = log_of(stored(0, 10), stored(10, 10))
    with ScriptedBroker() as one, ScriptedBroker(node_id=2) as two:
        one.brokers = two.brokers = {1: one, 2: two}

        def refuse(request: Request) -> Any:
            if asked_offset(request) < 10:
                return log(request)
            one.leader = two.leader = 2
            return answer(request, error_code=1)

        def ends(request: Request) -> bytes:
            earliest = not two.asked(LIST_OFFSETS)[1:]
            return offsets_answer(request, 0 if earliest else 20)

        def moved(request: Request) -> bytes:
            return offsets_answer(request, -1, error_code=6)

        one.handlers |= {FETCH: refuse, LIST_OFFSETS: moved}
        two.handlers |= {FETCH: log, LIST_OFFSETS: ends}
        assert spans(fetched(one, 0, 20)) == [(0, 10), (10, 20)]


@pytest.mark.parametrize("error_code", [1, 0], ids=["begins beyond its end", "ends beyond its end"])
def test_a_leader_that_was_replaced_and_has_not_heard_of_it_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, error_code: int
) -> None:
    """It has lost ZooKeeper, and answers as if it led still. Brokers that do not answer hinder
    nobody."""
    monkeypatch.setattr("pyspark_kafkalog.client.cluster._WORD_MS", 300)
    with ScriptedBroker() as old, ScriptedBroker(node_id=2) as new, RawPeer(wait_for_close) as mute:
        old.brokers = new.brokers = {1: old, 2: new}
        new.leader, new.leader_epoch = 2, 1
        old.handlers |= {
            FETCH: lambda r: answer(r, error_code=error_code, high_watermark=7),
            LIST_OFFSETS: offsets_answer,
        }
        new.handlers |= {
            FETCH: log_of(stored(8, 2)),
            LIST_OFFSETS: lambda r: offsets_answer(
                r, 8 if len(new.asked(LIST_OFFSETS)) % 2 else 10
            ),
        }
        servers = f"{old.bootstrap_servers},{mute.bootstrap_servers}"
        assert spans(fetched(old, 8, 10, bootstrap_servers=servers)) == [(8, 10)]


def test_the_broker_that_is_asked_for_its_ends_may_be_away_for_longer_than_a_call() -> None:
    """As where it restarts just when it has called the position out of range."""
    away = 3

    def serve(request: Request) -> bytes:
        if len(broker.asked(FETCH)) == 1:
            return answer(request, error_code=1)
        return answer(request, stored(10, 10))

    def ends(request: Request) -> Any:
        nonlocal away
        away -= 1
        return offsets_answer(request, 10) if away < 0 else SILENCE

    with ScriptedBroker({FETCH: serve, LIST_OFFSETS: ends}) as broker:
        found = fetched(broker, 10, 20, request_timeout_ms="200")
    assert spans(found) == [(10, 20)]


def test_a_partition_may_have_no_leader_for_longer_than_a_call() -> None:
    log = log_of(stored(0, 10))
    with ScriptedBroker({FETCH: log}) as broker:
        known = broker.metadata
        broker.leader = -1

        def elect(request: Request) -> bytes:
            if len(broker.asked(METADATA)) > 10:
                broker.leader = 1
            return known(request)

        broker.handlers[METADATA] = elect
        assert spans(fetched(broker, 0, 10, request_timeout_ms="100")) == [(0, 10)]


def test_a_topic_that_disappears_with_its_offsets_is_data_loss() -> None:
    def vanish(request: Request) -> bytes:
        broker.handlers[METADATA] = topic_error(3)
        return answer(request, error_code=1)

    with (
        ScriptedBroker({FETCH: vanish}) as broker,
        pytest.raises(DataLossError, match="does not exist any more"),
    ):
        fetched(broker, 5, 10)


def test_a_broker_that_cannot_say_what_went_wrong_is_asked_again() -> None:
    """UNKNOWN_SERVER_ERROR is what Kafka answers where its remote storage fails."""
    log = log_of(stored(0, 10), stored(10, 10))

    def serve(request: Request) -> bytes:
        if asked_offset(request) == 10 and len(broker.asked(FETCH)) < 5:
            return answer(request, error_code=-1)
        return log(request)

    with ScriptedBroker({FETCH: serve}) as broker:
        assert spans(fetched(broker, 0, 20)) == [(0, 10), (10, 20)]


def test_a_broker_that_never_says_what_is_wrong_is_an_error_that_says_where_to_look() -> None:
    with ScriptedBroker({FETCH: lambda r: answer(r, error_code=-1)}) as broker:
        assert "the broker's log says why" in why_nothing_came(broker)


def test_a_leader_that_does_not_know_its_end_yet_is_waited_for() -> None:
    """It was just elected: the position, which is the log's end, is out of range for it."""

    def serve(request: Request) -> bytes:
        if len(broker.asked(FETCH)) == 1:
            return answer(request, error_code=1)
        return answer(request, stored(10, 10))

    def ends(request: Request) -> bytes:
        return offsets_answer(request, 10)

    with ScriptedBroker({FETCH: serve, LIST_OFFSETS: ends}) as broker:
        assert spans(fetched(broker, 10, 20)) == [(10, 20)]


def test_pauses_between_attempts_stay_short() -> None:
    """Twelve that double would be longer than the patience."""
    log = log_of(stored(0, 10))

    def serve(request: Request) -> bytes:
        return answer(request, error_code=6) if len(broker.asked(FETCH)) <= 12 else log(request)

    with ScriptedBroker({FETCH: serve}) as broker:
        assert spans(fetched(broker, 0, 10, retry_backoff_max_ms="10")) == [(0, 10)]


def test_a_broker_that_denies_a_topic_for_a_moment_loses_no_records() -> None:
    """As one that has just started does: it answers Metadata before it has learnt its topics."""
    log = log_of(stored(0, 10), stored(10, 10))
    with ScriptedBroker() as broker:
        knows = broker.metadata

        def resign(request: Request) -> Any:
            if asked_offset(request) < 10:
                return log(request)
            broker.handlers[FETCH], broker.handlers[METADATA] = log, deny
            return answer(request, error_code=6)

        def deny(request: Request) -> bytes:
            broker.handlers[METADATA] = knows
            return bytes(topic_error(3)(request))

        broker.handlers[FETCH] = resign
        assert spans(fetched(broker, 0, 20)) == [(0, 10), (10, 20)]


def test_a_topic_that_disappears_is_data_loss() -> None:
    with (
        ScriptedBroker({FETCH: lambda r: answer(r, error_code=3)}) as broker,
        Cluster(broker.config()) as cluster,
    ):
        cluster.leader(T0)
        broker.handlers[METADATA] = topic_error(3)
        with pytest.raises(DataLossError, match="does not exist any more"):
            list(Fetcher(cluster, T0, 0, 10).records())


def sends_to(node: int) -> Callable[[Request], bytes]:
    """Answers as a leader does that has its readers read from a replica (KIP-392)."""
    return lambda request: answer(request, preferred_read_replica=node)


def test_a_leader_that_sends_its_readers_to_a_replica_is_obeyed() -> None:
    with ScriptedBroker() as one, ScriptedBroker(node_id=2) as two:
        one.brokers = two.brokers = {1: one, 2: two}
        one.handlers[FETCH] = sends_to(2)
        two.handlers[FETCH] = log_of(stored(0, 10), stored(10, 10), stored(20, 10))
        assert spans(fetched(one, 0, 30)) == [(0, 10), (10, 20), (20, 30)]
        assert len(one.asked(FETCH)) == 1


def test_where_a_replica_fails_the_leader_is_asked_again() -> None:
    with ScriptedBroker() as one, ScriptedBroker(node_id=2) as two:
        one.brokers = two.brokers = {1: one, 2: two}
        log = log_of(stored(0, 10), stored(10, 10))
        failures: list[Any] = [CUT, 6, 0, None]

        def lead(request: Request) -> bytes:
            return (sends_to(2) if failures else log)(request)

        def fail(request: Request) -> Any:
            failure = failures.pop(0)
            if failure is None:
                return sends_to(1)(request)
            return CUT if failure is CUT else answer(request, error_code=failure, high_watermark=0)

        one.handlers[FETCH], two.handlers[FETCH] = lead, fail
        assert spans(fetched(one, 0, 20)) == [(0, 10), (10, 20)]
        assert not failures


def test_a_replica_that_nobody_knows_ends_no_range() -> None:
    with ScriptedBroker({FETCH: sends_to(9)}) as broker:
        assert "broker 9, which is not known" in why_nothing_came(broker)


def test_a_replica_that_has_nothing_leaves_a_gap_as_a_leader_does() -> None:
    with ScriptedBroker() as one, ScriptedBroker(node_id=2) as two:
        one.brokers = two.brokers = {1: one, 2: two}
        one.handlers[FETCH] = sends_to(2)
        two.handlers[FETCH] = log_of(stored(0, 10))
        assert spans(fetched(one, 0, 30)) == [(0, 10)]


def test_a_gap_that_compaction_left_at_the_end_of_the_range_ends_it() -> None:
    with (
        ScriptedBroker({FETCH: log_of(stored(0, 10), stored(50, 10))}) as broker,
        Cluster(broker.config()) as cluster,
    ):
        fetcher = Fetcher(cluster, T0, 0, 30)
        assert spans(list(fetcher.records())) == [(0, 10), (10, 60)]
        assert fetcher.position == 60


def test_nothing_left_up_to_the_end_of_the_log_ends_the_range() -> None:
    log = log_of(stored(0, 10))
    with ScriptedBroker({FETCH: lambda r: log(r)}) as broker, Cluster(broker.config()) as cluster:
        fetcher = Fetcher(cluster, T0, 0, 1000)
        assert spans(list(fetcher.records())) == [(0, 10)]
        assert fetcher.position == 1000


@pytest.mark.parametrize("earliest_local", [20, 0])
def test_what_remote_storage_is_slow_to_give_is_no_gap(
    earliest_local: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker answers empty, and without an error, when its remote storage (KIP-405) takes longer
    than remote.fetch.max.wait.ms, or has given as much as its quota lets it."""
    monkeypatch.setitem(VERSIONS, LIST_OFFSETS, (0, 8))
    log = log_of(stored(0, 10), stored(10, 10))
    slow = 4

    def serve(request: Request) -> bytes:
        nonlocal slow
        if asked_offset(request) == 10 and slow:
            slow -= 1
            return answer(request)
        return log(request)

    def local(request: Request) -> bytes:
        asked = ListOffsetsRequest.decode(request.body, version=request.version)
        assert asked.topics[0].partitions[0].timestamp == -4
        return offsets_answer(request, earliest_local)

    with ScriptedBroker({FETCH: serve, LIST_OFFSETS: local}) as broker:
        found = spans(fetched(broker, 0, 20))
    assert found == ([(0, 10), (10, 20)] if earliest_local else [(0, 10)])


def test_remote_storage_that_gives_nothing_for_long_is_an_error_and_no_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(VERSIONS, LIST_OFFSETS, (0, 8))
    handlers = {FETCH: answer, LIST_OFFSETS: lambda request: offsets_answer(request, 20)}
    with ScriptedBroker(handlers) as broker:
        assert "remote storage" in why_nothing_came(broker)


def test_read_committed_waits_for_the_last_stable_offset() -> None:
    """An empty answer is no gap while an open transaction holds the records back."""
    stable = [10, 10, 10, 20]

    def serve(request: Request) -> bytes:
        lso = stable.pop(0) if len(stable) > 1 else stable[0]
        if asked_offset(request) < 10:
            return answer(request, stored(0, 10), last_stable_offset=lso)
        if lso == 10:
            return answer(request, high_watermark=20, last_stable_offset=lso)
        return answer(request, stored(10, 10), high_watermark=20, last_stable_offset=lso)

    with ScriptedBroker({FETCH: serve}) as broker:
        found = fetched(broker, 0, 20, isolation_level="read_committed")
    assert spans(found) == [(0, 10), (10, 20)]


def test_aborted_transactions_are_handed_on() -> None:
    def serve(request: Request) -> bytes:
        assert fetch.decode_fetch_request(request.body, request.version).isolation_level == 1
        return answer(request, stored(0, 10), last_stable_offset=10, aborted=[(7, 3), (8, 5)])

    with ScriptedBroker({FETCH: serve}) as broker:
        (each,) = fetched(broker, 0, 10, isolation_level="read_committed")
    assert each.aborted == [(7, 3), (8, 5)]


def test_a_batch_that_an_old_broker_cuts_off_is_asked_for_whole() -> None:
    batch = stored(0, 10, b"x" * 100_000)
    asked = []

    def serve(request: Request) -> bytes:
        ask = fetch.decode_fetch_request(request.body, request.version).partitions[0]
        asked.append(ask.max_bytes)
        return answer(request, batch[: ask.max_bytes])

    with ScriptedBroker({FETCH: serve}) as broker:
        found = fetched(broker, 0, 10, max_partition_fetch_bytes="5000")
    assert spans(found) == [(0, 10)]
    assert asked == [5000, len(batch)]


@pytest.mark.parametrize(
    "records",
    [
        b"\xff" * 100,
        struct.pack(">qi", 0, 2**31 - 1) + b"\0" * 100,
        struct.pack(">qi", 0, -5) + b"\0" * 100,
        stored(0, 10)[:-1],
        b"\0",
    ],
)
def test_nonsense_instead_of_records_is_an_error_and_no_endless_loop(records: bytes) -> None:
    with (
        ScriptedBroker({FETCH: lambda r: answer(r, records)}) as broker,
        pytest.raises(CorruptRecordError),
    ):
        fetched(broker, 0, 10)


def asked_from(offset: int, batch: bytes) -> bool:
    return read_header(batch).next_offset > offset


def damaged(batch: bytes, position: int, bits: int = 0x40) -> bytes:
    return batch[:position] + bytes([batch[position] ^ bits]) + batch[position + 1 :]


@pytest.mark.parametrize("position", [6, 9, 16, 18, 40, 70])
@pytest.mark.parametrize("start", [5, 10])
def test_records_that_come_damaged_once_are_asked_for_again(position: int, start: int) -> None:
    """Wherever it is: in the base offset, the length, the magic, the CRC, the rest of the batch."""
    log = [batch for batch in (stored(5, 5), stored(10, 10)) if asked_from(start, batch)]
    good = b"".join(log)

    def serve(request: Request) -> bytes:
        if len(broker.asked(FETCH)) == 1:
            return answer(request, damaged(good, len(good) - len(log[-1]) + position))
        return log_of(*log)(request)

    with ScriptedBroker({FETCH: serve}) as broker:
        found = fetched(broker, start, 20)
    assert b"".join(bytes(each.records) for each in found) == good


@pytest.mark.parametrize("position", [6, 70])
def test_a_long_read_may_meet_damage_many_times(position: int) -> None:
    """What counts is how often the same records come damaged, in their offsets or elsewhere."""
    log = [stored(first, 10) for first in range(0, 60, 10)]
    asked: list[int] = []

    def serve(request: Request) -> bytes:
        offset = asked_offset(request)
        asked.append(offset)
        batch = log[offset // 10]
        return answer(request, batch if asked.count(offset) > 1 else damaged(batch, position))

    with ScriptedBroker({FETCH: serve}) as broker:
        found = fetched(broker, 0, 60)
    assert b"".join(bytes(each.records) for each in found) == b"".join(log)


def test_records_that_are_damaged_on_disk_are_a_typed_error() -> None:
    wrong = damaged(stored(0, 10), 70)
    with (
        ScriptedBroker({FETCH: lambda r: answer(r, wrong)}) as broker,
        pytest.raises(CorruptRecordError, match="Fetch of t-0 at offset 0: a batch has the CRC"),
    ):
        fetched(broker, 0, 10)
    assert len(broker.asked(FETCH)) == 3
    assert broker.connections == 3


def test_an_answer_that_is_damaged_outside_of_its_records_is_asked_for_again() -> None:
    def garbled(request: Request) -> Any:
        if len(broker.asked(FETCH)) == 1:
            request.socket.sendall(request.frame(answer(request, stored(0, 10)))[:9])
            request.socket.sendall(b"\xff" * 200)
            return CUT
        return answer(request, stored(0, 10))

    def misnumbered(request: Request) -> Any:
        if len(broker.asked(FETCH)) == 1:
            request.correlation_id += 1
        return answer(request, stored(0, 10))

    for serve in (garbled, misnumbered):
        with ScriptedBroker({FETCH: serve}) as broker:
            assert spans(fetched(broker, 0, 10)) == [(0, 10)]


def test_a_range_that_begins_inside_of_a_batch_costs_no_fetch_more() -> None:
    log = stored(0, 10) + stored(10, 10)
    with ScriptedBroker({FETCH: lambda r: answer(r, log)}) as broker:
        assert spans(fetched(broker, 5, 20)) == [(5, 20)]
        assert len(broker.asked(FETCH)) == 1


@pytest.mark.parametrize("position", [6, 7])
def test_the_batch_that_a_range_begins_in_is_asked_for_again_when_it_is_misplaced(
    position: int,
) -> None:
    """Where no batch after it says where it belongs, it is asked for twice anyhow."""
    good = stored(100, 10)

    def serve(request: Request) -> bytes:
        first = len(broker.asked(FETCH)) == 1
        return answer(request, damaged(good, position, 0x04) if first else good)

    with ScriptedBroker({FETCH: serve}) as broker:
        (found,) = fetched(broker, 105, 110)
    assert bytes(found.records) == good


def test_gaps_are_confirmed_until_it_is_clear_that_there_are_some() -> None:
    log = [stored(first, 5) for first in range(10, 100, 10)]
    with ScriptedBroker({FETCH: log_of(*log)}) as broker:
        found = fetched(broker, 0, 95)
    assert b"".join(bytes(each.records) for each in found) == b"".join(log)
    offsets = [asked_offset(request) for request in broker.asked(FETCH)]
    assert offsets == [0, 0, 15, 15, *range(25, 95, 10)]


def test_offsets_that_differ_in_each_answer_are_an_error_and_no_endless_loop() -> None:
    def wander(request: Request) -> bytes:
        return answer(request, stored(10 + len(broker.asked(FETCH)), 5))

    with ScriptedBroker({FETCH: wander}) as broker, pytest.raises(CorruptRecordError):
        fetched(broker, 0, 95)


def test_records_that_retention_took_in_the_middle_of_a_read_are_no_gap() -> None:
    """The broker had them when it looked at the offset, and not when it read the segment."""
    late = stored(50, 10)
    with (
        ScriptedBroker({FETCH: lambda r: answer(r, late, log_start_offset=50)}) as broker,
        pytest.raises(DataLossError, match="begins at offset 50 now") as raised,
    ):
        fetched(broker, 10, 60)
    assert raised.value.log_start_offset == 50


def test_a_topic_that_was_created_again_is_not_mistaken_for_the_planned_one(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    write(config(), topic_partition, [b"old"] * 10)
    cluster.topics([topic_partition.topic])
    planned = cluster.topic_id(topic_partition.topic)
    admin.delete_topics(cluster, [topic_partition.topic])
    admin.create_topic(cluster, topic_partition.topic, 1, 1)
    write(config(), topic_partition, [b"new"] * 20)
    with (
        Cluster(config()) as own,
        pytest.raises(TopicRecreatedError, match="was deleted and created again"),
    ):
        list(Fetcher(own, topic_partition, 0, 10, topic_id=planned).records())


def test_a_topic_that_is_created_again_while_it_is_read(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    write(config(), topic_partition, [b"x" * 1000] * 3000, batch_bytes=10_000)
    with Cluster(config(max_partition_fetch_bytes="100000")) as own:
        reading = Fetcher(own, topic_partition, 0, 3000).records()
        next(reading)
        admin.delete_topics(cluster, [topic_partition.topic])
        admin.create_topic(cluster, topic_partition.topic, 1, 1)
        write(config(), topic_partition, [b"y" * 1000] * 3000, batch_bytes=10_000)
        found: list[bytes] = []
        with pytest.raises(TopicRecreatedError):
            found.extend(bytes(each.records) for each in reading)
        assert b"yyy" not in b"".join(found)


def test_old_batches_again_and_again_are_an_error_and_no_endless_loop() -> None:
    with (
        ScriptedBroker({FETCH: lambda r: answer(r, stored(0, 10))}) as broker,
        pytest.raises(CorruptRecordError, match="older batches only"),
    ):
        fetched(broker, 0, 20)


def test_an_answer_about_another_partition_is_no_progress() -> None:
    def other(request: Request) -> bytes:
        found = fetch.FetchedPartition("t", 1, 0, 10, stored(0, 10))
        response = fetch.FetchResponse([found])
        return b"".join(map(bytes, fetch.encode_fetch_response(response, request.version)))

    with ScriptedBroker({FETCH: other}) as broker:
        assert "left the partition out" in why_nothing_came(broker)


def test_an_answer_that_is_cut_within_its_fields_is_a_typed_error() -> None:
    with (
        ScriptedBroker({FETCH: lambda r: answer(r, stored(0, 10))[:20]}) as broker,
        pytest.raises(KafkaError),
    ):
        fetched(broker, 0, 10)


def test_what_is_asked_for_follows_what_the_range_needs() -> None:
    """A small range of a large log costs little; a large range asks for all that is allowed."""
    asked = []

    def serve(request: Request) -> bytes:
        ask = fetch.decode_fetch_request(request.body, request.version).partitions[0]
        asked.append(ask.max_bytes)
        return log_of(stored(0, 1000, b"x" * 1000), stored(1000, 99_000))(request)

    with ScriptedBroker({FETCH: serve}) as broker:
        fetched(broker, 0, 500)
        assert asked == [500 * 1024 * 5 // 4]
        asked.clear()
        fetched(broker, 0, 100_000)
        assert asked == [4 << 20, 4 << 20]


@pytest.mark.parametrize("version", [4, 6, 8, 10, 11, 12])
def test_every_version_that_a_broker_may_offer(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VERSIONS, FETCH, (0, version))
    with ScriptedBroker({FETCH: log_of(stored(0, 10))}) as broker:
        assert spans(fetched(broker, 0, 10)) == [(0, 10)]
        assert broker.asked(FETCH)[0].version == version
