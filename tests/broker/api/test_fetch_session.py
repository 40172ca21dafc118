"""Fetch sessions and topic ids over the wire, and the bounds of the cache that keeps them."""

import time
import uuid
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import FetchSessionIdNotFoundError
from kafka.protocol.admin import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.structs import TopicPartition

from broker.api import fetch_session
from broker.api.fetch_session import FetchSessionCache
from broker.replica.partition import Isolation, PartitionRead
from broker.replica.purgatory import Watcher
from pyspark_kafkalog.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ForgottenPartition,
)
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import BUSY_S
from tests.support.present import present
from tests.support.records import batch_of, values_of

LONG_MS = 20_000
SESSION_ID_NOT_FOUND, INVALID_SESSION_EPOCH, SESSION_TOPIC_ID_ERROR = 70, 71, 106
UNKNOWN_PARTITION, UNKNOWN_TOPIC_ID = 3, 100


def topic_id_of(client: RawClient, name: str) -> Any:
    wanted = MetadataRequest.MetadataRequestTopic(name=name)
    (topic,) = client.call(MetadataRequest(topics=[wanted]), MetadataResponse, 12).topics
    return topic.topic_id


class Consumer:
    """The client's half of a session."""

    def __init__(
        self, client: RawClient, name: str, version: int = 12, topic_id: uuid.UUID | None = None
    ) -> None:
        self.client, self.name, self.version = client, name, version
        self.topic_id = topic_id
        self.session_id, self.epoch = 0, 0
        if version > 12 and topic_id is None:
            self.topic_id = topic_id_of(client, name)

    def ask(self, partition: int = 0, offset: int = 0, max_bytes: int = 1 << 20) -> FetchPartition:
        name = self.name if self.version <= 12 else ""
        return FetchPartition(name, partition, offset, max_bytes, topic_id=self.topic_id)

    def request(
        self,
        asks: Sequence[FetchPartition],
        forget: Sequence[int] = (),
        max_wait_ms: int = 0,
        **fields: Any,
    ) -> FetchRequest:
        name = self.name if self.version <= 12 else ""
        return FetchRequest(
            self.version,
            max_wait_ms,
            1,
            list(asks),
            session_id=self.session_id,
            session_epoch=self.epoch,
            forgotten=[ForgottenPartition(name, index, self.topic_id) for index in forget],
            **fields,
        )

    def send(self, *asks: FetchPartition, **fields: Any) -> None:
        self.client.send_fetch(self.request(asks, **fields))

    def receive(self) -> FetchResponse:
        response = self.client.receive_fetched(self.version)
        if not response.error_code:
            self.session_id = response.session_id
            self.epoch += 1
        return response

    def __call__(self, *asks: FetchPartition, **fields: Any) -> FetchResponse:
        self.send(*asks, **fields)
        return self.receive()

    def partitions(self, *asks: FetchPartition, **fields: list[int] | int) -> list[Any]:
        response = self(*asks, **fields)
        assert response.error_code == 0
        return [found.partition for found in response.partitions]


@pytest.fixture(params=[7, 11, 12, 13, 17], ids=lambda version: f"v{version}")
def consumer(
    request: pytest.FixtureRequest, client: RawClient, create: Callable[..., str]
) -> Consumer:
    return Consumer(client, create(4), request.param)


def test_only_what_changed_is_answered(consumer: Consumer) -> None:
    client, name = consumer.client, consumer.name
    client.produce(name, 0, batch_of(2))
    first = consumer(*(consumer.ask(partition) for partition in range(4)))
    assert first.session_id > 0
    assert [found.partition for found in first.partitions] == [0, 1, 2, 3]
    assert len(values_of(first.partitions[0].records)) == 2
    assert consumer.partitions(consumer.ask(0, 2)) == []
    client.produce(name, 2, batch_of(3))
    changed = consumer()
    assert changed.session_id == first.session_id
    (found,) = changed.partitions
    assert (found.partition, found.high_watermark, found.topic_id) == (2, 3, consumer.topic_id)
    assert [offset for offset, _ in values_of(found.records)] == [0, 1, 2]
    # What was not read yet is answered again.
    assert consumer.partitions() == [2]
    assert consumer.partitions(consumer.ask(2, 3)) == []
    assert consumer.partitions() == []


def test_a_log_that_begins_later_is_told_once(consumer: Consumer) -> None:
    """A client resets what it holds of the records before."""
    client, name = consumer.client, consumer.name
    client.produce(name, 0, batch_of(5))
    consumer(*(consumer.ask(partition, 5 if not partition else 0) for partition in range(4)))
    assert consumer.partitions() == []
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    place = topic.DeleteRecordsPartition(partition_index=0, offset=3)
    request = DeleteRecordsRequest(topics=[topic(name=name, partitions=[place])], timeout_ms=5000)
    deleted = client.call(request, DeleteRecordsResponse, 2)
    assert deleted.topics[0].partitions[0].low_watermark == 3
    (found,) = consumer().partitions
    assert (found.partition, found.log_start_offset, found.records) == (0, 3, None)
    assert consumer.partitions() == []


def test_partitions_are_added_and_forgotten(consumer: Consumer) -> None:
    client, name = consumer.client, consumer.name
    for partition in range(4):
        client.produce(name, partition, batch_of(1))
    assert consumer.partitions(consumer.ask(0)) == [0]
    assert sorted(consumer.partitions(consumer.ask(1))) == [0, 1]
    assert consumer.partitions(consumer.ask(2), forget=[0]) == [1, 2]
    assert consumer.partitions(consumer.ask(1, 1), forget=[2]) == []
    assert consumer(forget=[1]).session_id == 0


def test_a_session_waits_for_any_of_its_partitions(
    connect: Callable[[], RawClient], consumer: Consumer
) -> None:
    assert consumer.partitions(*(consumer.ask(partition) for partition in range(4))) == [0, 1, 2, 3]
    consumer.send(max_wait_ms=LONG_MS)
    connect().produce(consumer.name, 3, batch_of(1))
    (found,) = consumer.receive().partitions
    assert found.partition == 3
    assert len(values_of(found.records)) == 1


def test_a_wait_of_a_session_ends_in_time(consumer: Consumer) -> None:
    consumer.partitions(consumer.ask())
    began = time.monotonic()
    assert consumer.partitions(max_wait_ms=300) == []
    assert 0.25 < time.monotonic() - began < 5 + BUSY_S


def test_a_wait_that_a_later_fetch_has_overtaken_tells_nothing(
    connect: Callable[[], RawClient], create: Callable[..., str], only_ours: None
) -> None:
    """Its client has gone on, and would take the answer for a later one."""
    early, late = Consumer(connect(), create()), None
    early(early.ask())
    early.send(max_wait_ms=LONG_MS)
    late = Consumer(connect(), early.name)
    late.session_id, late.epoch = early.session_id, early.epoch + 1
    assert late().error_code == 0
    overtaken = early.receive()
    assert (overtaken.error_code, overtaken.partitions) == (INVALID_SESSION_EPOCH, [])


def test_partitions_with_data_take_turns(consumer: Consumer) -> None:
    batch = batch_of([(None, b"x" * 5000)])
    for partition in range(3):
        consumer.client.produce(consumer.name, partition, batch)
    asks = [consumer.ask(partition) for partition in range(3)]
    seen = [
        [
            found.partition
            for found in consumer(*wanted, max_bytes=len(batch)).partitions
            if found.records
        ]
        for wanted in (asks, [], [], [], [])
    ]
    # The turns begin with the session's second answer.
    assert seen == [[0], [0], [1], [2], [0]]


def test_an_error_is_answered_until_it_is_gone(consumer: Consumer) -> None:
    assert consumer(consumer.ask(0, 5), consumer.ask(9)).session_id > 0
    for _ in range(2):
        codes = {found.partition: found.error_code for found in consumer().partitions}
        assert codes == {0: 1, 9: UNKNOWN_PARTITION}
    codes = {found.partition: found.error_code for found in consumer(consumer.ask(0)).partitions}
    assert codes == {0: 0, 9: UNKNOWN_PARTITION}
    assert consumer.partitions(forget=[9]) == []


def test_the_wrong_id_or_epoch(consumer: Consumer) -> None:
    consumer(consumer.ask())
    session_id, epoch = consumer.session_id, consumer.epoch
    for wrong in (epoch - 1, epoch + 1, 2**31 - 1):
        if wrong:
            consumer.epoch = wrong
            response = consumer()
            assert (response.error_code, response.session_id) == (INVALID_SESSION_EPOCH, 0)
    consumer.epoch = epoch
    consumer.session_id = session_id % (2**31 - 1) + 1
    assert consumer().error_code == SESSION_ID_NOT_FOUND
    consumer.session_id = session_id
    assert consumer().error_code == 0


def test_a_session_ends_with_its_last_fetch(consumer: Consumer) -> None:
    consumer(consumer.ask())
    session_id = consumer.session_id
    consumer.epoch = -1
    assert consumer(consumer.ask()).session_id == 0
    consumer.session_id, consumer.epoch = session_id, 1
    assert consumer().error_code == SESSION_ID_NOT_FOUND


def test_a_new_session_ends_the_old_one(consumer: Consumer) -> None:
    consumer(consumer.ask())
    old_id = consumer.session_id
    consumer.epoch = 0
    assert consumer(consumer.ask()).session_id not in (0, old_id)
    consumer.session_id, consumer.epoch = old_id, 1
    assert consumer().error_code == SESSION_ID_NOT_FOUND


def test_no_session_is_asked_for(consumer: Consumer) -> None:
    consumer.epoch = -1
    response = consumer(consumer.ask())
    assert (response.error_code, response.session_id) == (0, 0)


def test_names_and_ids_are_not_mixed_in_a_session(client: RawClient, topic: str) -> None:
    by_name = Consumer(client, topic, 12)
    by_name(by_name.ask())
    by_id = Consumer(client, topic, 13)
    by_id.session_id, by_id.epoch = by_name.session_id, by_name.epoch
    assert by_id(by_id.ask()).error_code == SESSION_TOPIC_ID_ERROR


@pytest.mark.parametrize("version", [13, 16, 18])
@pytest.mark.parametrize("epoch", [-1, 0])
def test_an_unknown_topic_id(client: RawClient, topic: str, version: int, epoch: int) -> None:
    client.produce(topic, 0, batch_of(1))
    stranger = Consumer(client, topic, version, topic_id=uuid.uuid4())
    known = Consumer(client, topic, version)
    stranger.epoch = epoch
    response = stranger(stranger.ask(), known.ask(), max_wait_ms=LONG_MS)
    codes = {found.topic_id: found.error_code for found in response.partitions}
    assert codes == {stranger.topic_id: UNKNOWN_TOPIC_ID, known.topic_id: 0}
    if epoch == 0:
        assert [found.error_code for found in stranger().partitions if found.error_code] == [100]


def test_a_deleted_topic_leaves_its_session_with_an_error(
    connect: Callable[[], RawClient], create: Callable[..., str]
) -> None:
    consumer = Consumer(connect(), create(), 13)
    consumer(consumer.ask())
    consumer.send(max_wait_ms=2000)
    request = DeleteTopicsRequest(topic_names=[consumer.name], timeout_ms=60_000)
    assert connect().call(request, DeleteTopicsResponse, 5).responses[0].error_code == 0
    found = consumer.receive().partitions or consumer(max_wait_ms=2000).partitions
    # The topic, or its partition: a client asks for new metadata with either.
    assert found[0].error_code in (UNKNOWN_PARTITION, UNKNOWN_TOPIC_ID)


def test_a_request_of_the_same_epoch_on_another_connection(
    connect: Callable[[], RawClient], topic: str
) -> None:
    first = Consumer(connect(), topic, 12)
    first(first.ask())
    second = Consumer(connect(), topic, 12)
    second.session_id, second.epoch = first.session_id, first.epoch
    first.send(max_wait_ms=300)
    # Both sent before either is answered; which of them comes first is the network's choice.
    second.send(max_wait_ms=300)
    assert {first.receive().error_code, second.receive().error_code} == {0, INVALID_SESSION_EPOCH}


@pytest.mark.parametrize("version", [12, 15, 16, 18])
def test_who_leads_is_told_to_clients_with_an_old_epoch(version: int, tmp_path: Path) -> None:
    with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
        wanted = MetadataRequest.MetadataRequestTopic(name="fenced")
        client.call(MetadataRequest(topics=[wanted]), MetadataResponse, 9)
        assert child.stop() == 0
    with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
        consumer = Consumer(client, "fenced", version)
        ask = consumer.ask()
        ask.current_leader_epoch = 0
        response = consumer(ask)
        (found,) = response.partitions
        assert found.error_code == 74
        if version < 16:
            assert (found.current_leader, list(response.node_endpoints)) == (None, [])
        else:
            assert found.current_leader is not None
            leader_id, leader_epoch = found.current_leader
            assert leader_id == 1
            assert leader_epoch > 0
            assert [node[:3] for node in response.node_endpoints] == [(1, child.host, child.port)]
        assert child.stop() == 0


def test_a_replicas_log_that_parts_from_ours(client: RawClient, topic: str) -> None:
    """What a follower is told: the largest epoch that both have, and where it ends (KIP-595)."""
    client.produce(topic, 0, batch_of(3))
    (topic_metadata,) = client.call(
        MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]),
        MetadataResponse,
        12,
    ).topics
    epoch = topic_metadata.partitions[0].leader_epoch
    consumer = Consumer(client, topic, 12)
    consumer.epoch = -1
    ask = consumer.ask(offset=3)
    ask.last_fetched_epoch = epoch
    (found,) = consumer(ask).partitions
    assert (found.error_code, found.diverging_epoch) == (0, None)
    consumer.epoch = -1
    ask.last_fetched_epoch = epoch + 5
    (found,) = consumer(ask).partitions
    assert (found.error_code, found.diverging_epoch) == (1, None)


NO_METADATA: Any = None
"""What the cache does not ask for here."""


class Watchers:
    """The part of the ReplicaManager that sessions use: who watches what."""

    def __init__(self) -> None:
        self.watching: set[tuple[TopicPartition, Any]] = set()

    def watch(self, topic_partition: TopicPartition, watcher: Watcher) -> None:
        self.watching.add((topic_partition, watcher))

    def unwatch(self, topic_partition: TopicPartition, watcher: Watcher) -> None:
        self.watching.discard((topic_partition, watcher))

    def wake(self, session: Hashable) -> None:
        pass

    def log_start_offset(self, topic_partition: TopicPartition) -> int:
        return 0


class TestCache:
    """What is kept, for how long, and how much of it at most."""

    MINUTE_MS = 60_000

    def cache(self, max_sessions: int = 3) -> FetchSessionCache:
        self.now_ms = 0.0
        self.replicas = Watchers()
        replicas: Any = self.replicas
        return FetchSessionCache(replicas, max_sessions, lambda: self.now_ms)

    def open(
        self, cache: FetchSessionCache, partition_count: int
    ) -> fetch_session.FetchSession | None:
        wanted = [FetchPartition("t", index, 0, 100) for index in range(partition_count)]
        reads = [PartitionRead(None, 0, 0, 0)] * partition_count
        return cache.open(wanted, reads, Isolation.HIGH_WATERMARK)

    def touch(self, cache: FetchSessionCache, session: fetch_session.FetchSession) -> None:
        assert cache.resume(session.session_id, session.epoch, False) is session
        assert cache.update(session, [], [], NO_METADATA)

    def test_a_young_session_keeps_its_place(self) -> None:
        cache = self.cache(2)
        kept = [self.open(cache, 1), self.open(cache, 1)]
        self.now_ms = 2 * self.MINUTE_MS
        assert self.open(cache, 100) is None
        assert set(cache) == set(kept)

    def test_a_stale_session_gives_way_to_any(self) -> None:
        cache = self.cache(2)
        stale, used = self.open(cache, 50), self.open(cache, 50)
        self.now_ms = 1.5 * self.MINUTE_MS
        self.touch(cache, present(used))
        self.now_ms = 2.1 * self.MINUTE_MS
        opened = self.open(cache, 1)
        assert set(cache) == {used, opened}
        assert {watcher.session for _, watcher in self.replicas.watching} == {used, opened}
        with pytest.raises(FetchSessionIdNotFoundError):
            cache.resume(present(stale).session_id, 1, False)

    def test_an_old_session_in_use_gives_way_to_a_larger_one(self) -> None:
        cache = self.cache(2)
        small, large = self.open(cache, 2), self.open(cache, 9)
        self.now_ms = 1.9 * self.MINUTE_MS
        self.touch(cache, present(small))
        self.touch(cache, present(large))
        self.now_ms = 2.1 * self.MINUTE_MS
        assert self.open(cache, 2) is None
        opened = self.open(cache, 3)
        assert set(cache) == {large, opened}

    def test_no_slots_no_sessions(self) -> None:
        assert self.open(self.cache(0), 1) is None

    def test_partitions_are_bounded_over_all_sessions(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetch_session, "MAX_PARTITIONS", 100)
        cache = self.cache(50)
        assert self.open(cache, 101) is None
        first, second = self.open(cache, 60), self.open(cache, 40)
        assert self.open(cache, 1) is None
        assert cache.partition_count == 100
        more = [FetchPartition("u", index, 0, 100) for index in range(10)]
        cache.resume(present(second).session_id, 1, False)
        with pytest.raises(FetchSessionIdNotFoundError):
            cache.update(present(second), more, [], NO_METADATA)
        assert set(cache) == {first}
        assert cache.partition_count == len(self.replicas.watching) == 60
        cache.remove(present(first).session_id)
        assert cache.partition_count == len(self.replicas.watching) == 0

    def test_epochs_go_on_after_the_largest(self) -> None:
        cache = self.cache()
        session = self.open(cache, 1)
        present(session).epoch = 2**31 - 1
        self.touch(cache, present(session))
        assert present(session).epoch == 1


class TestLimits:
    """A broker with few slots; sessions of one consumer each."""

    @pytest.fixture
    def small(self, tmp_path: Path) -> Iterator[BrokerChild]:
        properties = {"max.incremental.fetch.session.cache.slots": "2"}
        with BrokerChild(tmp_path, properties) as child:
            yield child
            assert "level=error" not in child.stderr()

    def test_who_comes_last_goes_on_without_a_session(self, small: BrokerChild) -> None:
        with RawClient(small.host, small.port) as client:
            wanted = MetadataRequest.MetadataRequestTopic(name="slots")
            client.call(MetadataRequest(topics=[wanted]), MetadataResponse, 9)
            consumers = [Consumer(client, "slots") for _ in range(3)]
            sessions = [consumer(consumer.ask()).session_id for consumer in consumers]
            assert [session > 0 for session in sessions] == [True, True, False]
            consumers[0].epoch = -1
            consumers[0](consumers[0].ask())
            consumers[2].epoch = 0
            assert consumers[2](consumers[2].ask()).session_id > 0
