"""Metadata and offsets of a cluster: against our broker, and against scripted faults."""

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka.errors import (
    KafkaProtocolError,
    LeaderNotAvailableError,
    TopicAuthorizationFailedError,
    UnknownError,
)
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataResponse
from kafka.structs import TopicPartition

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client import cluster as cluster_module
from pyspark_kafkalog.client.cluster import EARLIEST, LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.group import commit_offsets
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    InvalidTopicNameError,
    UnknownTopicError,
)
from tests.pyspark_kafkalog.client.conftest import batches_of, write
from tests.pyspark_kafkalog.client.scripted import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    SILENCE,
    RawPeer,
    Request,
    ScriptedBroker,
    wait_for_close,
)
from tests.support.patience import BUSY_S
from tests.support.ports import closed_port

T0 = TopicPartition("t", 0)


def servers(*names: str, **properties: str) -> ClientConfig:
    given = {name.replace("_", "."): value for name, value in properties.items()}
    return ClientConfig.from_options({"bootstrap.servers": ",".join(names), **given})


def offsets_answer(request: Request, offset: int = 7, error_code: int = 0) -> bytes:
    asked = ListOffsetsRequest.decode(request.body, version=request.version)
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    return bytes(
        ListOffsetsResponse(
            topics=[
                topic(
                    name=t.name,
                    partitions=[
                        topic.ListOffsetsPartitionResponse(
                            partition_index=p.partition_index,
                            error_code=error_code,
                            timestamp=-1,
                            offset=offset,
                            leader_epoch=0,
                        )
                        for p in t.partitions
                    ],
                )
                for t in asked.topics
            ]
        ).encode(version=request.version)
    )


def topic_error(error_code: int) -> Any:
    def answer(request: Request) -> bytes:
        topic = MetadataResponse.MetadataResponseTopic
        return bytes(
            MetadataResponse(
                brokers=[
                    MetadataResponse.MetadataResponseBroker(
                        node_id=1, host="127.0.0.1", port=1, rack=None
                    )
                ],
                cluster_id="x",
                controller_id=1,
                topics=[topic(error_code=error_code, name="t", is_internal=False, partitions=[])],
            ).encode(version=request.version)
        )

    return answer


def test_topics_by_name_and_all(cluster: Cluster, new_topic: Callable[..., str]) -> None:
    one, three = new_topic(1), new_topic(3)
    assert cluster.topics([three, one]) == {one: [0], three: [0, 1, 2]}
    everything = cluster.topics()
    assert everything[one] == [0]
    assert everything[three] == [0, 1, 2]
    assert cluster.topics([]) == {}


def test_an_unknown_topic_is_named_and_not_created(cluster: Cluster) -> None:
    with pytest.raises(UnknownTopicError, match="Topic no-such does not exist"):
        cluster.topics(["no-such"])
    assert "no-such" not in cluster.topics()


def test_a_name_that_no_topic_can_have_is_said_to_be_one(cluster: Cluster) -> None:
    with pytest.raises(InvalidTopicNameError, match="'a b/c' cannot be the name of a topic"):
        cluster.topics(["a b/c"], create=True)


def test_a_topic_is_created_when_that_is_asked_for(cluster: Cluster) -> None:
    assert cluster.topics(["made-by-asking"], create=True) == {"made-by-asking": [0]}
    assert "made-by-asking" in cluster.topics()


def test_an_unknown_partition_is_named(cluster: Cluster, new_topic: Callable[..., str]) -> None:
    topic_partition = TopicPartition(new_topic(2), 5)
    with pytest.raises(UnknownTopicError, match="has no partition 5, only 2 partitions"):
        cluster.leader(topic_partition)
    with pytest.raises(UnknownTopicError):
        cluster.list_offsets([topic_partition], LATEST)


def test_offsets_at_both_ends(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    topic_partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    write(config(), topic_partitions[1], [b"a", b"b", b"c"])
    assert {
        each: at.offset for each, at in cluster.list_offsets(topic_partitions, EARLIEST).items()
    } == {
        topic_partitions[0]: 0,
        topic_partitions[1]: 0,
    }
    latest = cluster.list_offsets(topic_partitions, LATEST)
    assert [latest[each].offset for each in topic_partitions] == [0, 3]
    assert cluster.list_offsets([], LATEST) == {}


def test_offsets_by_time_leave_out_partitions_that_have_no_later_record(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    topic_partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with Producer(config()) as producer:
        for batch in batches_of([b"a", b"b", b"c"], timestamps_ms=[1000, 2000, 3000]):
            producer.send(topic_partitions[0], batch)
    found = cluster.list_offsets(topic_partitions, 1500)
    assert list(found) == [topic_partitions[0]]
    assert (found[topic_partitions[0]].offset, found[topic_partitions[0]].timestamp) == (1, 2000)
    assert cluster.list_offsets(topic_partitions, 3001) == {}


def test_no_broker_at_all_is_an_error_in_time_that_names_the_option() -> None:
    config = servers(
        f"127.0.0.1:{closed_port()}", f"127.0.0.1:{closed_port()}", request_timeout_ms="300"
    )
    began = time.monotonic()
    with Cluster(config) as cluster, pytest.raises(BrokersUnreachableError) as raised:
        cluster.topics()
    assert 0.25 < time.monotonic() - began < 1 + BUSY_S
    assert f"kafka.bootstrap.servers={config.servers}" in str(raised.value)
    assert "kafka.request.timeout.ms=300" in str(raised.value)
    assert "refused" in str(raised.value)


def test_brokers_that_all_refuse_are_given_up_soon_where_somebody_waits() -> None:
    config = servers(f"127.0.0.1:{closed_port()}", f"127.0.0.1:{closed_port()}")
    began = time.monotonic()
    with (
        Cluster(config, fails_fast=True) as cluster,
        pytest.raises(BrokersUnreachableError, match=r"No broker runs at .*Connection refused"),
    ):
        cluster.topics()
    assert 1 < time.monotonic() - began < 10 + BUSY_S


def test_a_broker_that_was_there_may_restart_also_where_somebody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "_REFUSED_FOR_MS", 50)
    broker = ScriptedBroker()
    with Cluster(broker.config(request_timeout_ms="600"), fails_fast=True) as cluster:
        with broker:
            cluster.topics()
        began = time.monotonic()
        with pytest.raises(BrokersUnreachableError, match=r"kafka\.request\.timeout\.ms=600"):
            cluster.topics()
        assert time.monotonic() - began > 0.5


def test_a_silent_broker_beside_one_that_refuses_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "_REFUSED_FOR_MS", 50)
    with RawPeer(wait_for_close) as silent:
        names = (f"127.0.0.1:{closed_port()}", silent.bootstrap_servers)
        config = servers(*names, request_timeout_ms="400")
        began = time.monotonic()
        with Cluster(config, fails_fast=True) as cluster, pytest.raises(BrokersUnreachableError):
            cluster.topics()
        assert time.monotonic() - began > 0.3


@pytest.mark.parametrize(
    "call",
    [
        Cluster.topics,
        Cluster.controller,
        Cluster.any_broker,
        lambda cluster: cluster.leader(T0),
        lambda cluster: cluster.list_offsets([T0], LATEST),
    ],
)
def test_silent_brokers_are_given_up_in_time_overall(call: Callable[..., Any]) -> None:
    with RawPeer(wait_for_close) as one, RawPeer(wait_for_close) as two:
        config = servers(one.bootstrap_servers, two.bootstrap_servers, request_timeout_ms="300")
        began = time.monotonic()
        with Cluster(config) as cluster, pytest.raises(BrokersUnreachableError):
            call(cluster)
        assert time.monotonic() - began < 1 + BUSY_S


def test_a_broker_that_greets_but_never_answers_is_given_up_in_time() -> None:
    with ScriptedBroker({METADATA: lambda request: SILENCE}) as broker:
        began = time.monotonic()
        config = broker.config(request_timeout_ms="300")
        with Cluster(config) as cluster, pytest.raises(BrokersUnreachableError):
            cluster.topics()
        assert time.monotonic() - began < 1 + BUSY_S


def test_bootstrap_servers_are_tried_in_turn() -> None:
    with ScriptedBroker() as broker, RawPeer(wait_for_close) as silent:
        config = servers(
            "broker..example:9092",
            f"127.0.0.1:{closed_port()}",
            silent.bootstrap_servers,
            broker.bootstrap_servers,
            request_timeout_ms="1500",
        )
        with Cluster(config) as cluster:
            assert cluster.topics(["t"]) == {"t": [0]}


def test_an_http_server_is_an_error_at_once() -> None:
    def http(sock: socket.socket) -> None:
        sock.recv(1 << 16)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with RawPeer(http) as peer:
        began = time.monotonic()
        with (
            Cluster(servers(peer.bootstrap_servers)) as cluster,
            pytest.raises(BrokersUnreachableError, match="but an HTTP server"),
        ):
            cluster.topics()
        assert time.monotonic() - began < 2 + BUSY_S


def test_an_advertised_address_that_leads_nowhere_is_named() -> None:
    with ScriptedBroker() as broker:
        broker.advertised = ("127.0.0.1", closed_port())
        with Cluster(broker.config(request_timeout_ms="300")) as cluster:
            says = f"broker 1 advertises itself as 127.0.0.1:{broker.advertised[1]}, but"
            with pytest.raises(BrokersUnreachableError, match=says):
                cluster.leader(T0)


def test_offsets_follow_a_leader_that_moves() -> None:
    with ScriptedBroker() as one, ScriptedBroker(node_id=2) as two:
        one.brokers = two.brokers = {1: one, 2: two}

        def not_leader(request: Request) -> bytes:
            one.leader = two.leader = 2
            return offsets_answer(request, error_code=6)

        one.handlers[LIST_OFFSETS] = not_leader
        two.handlers[LIST_OFFSETS] = offsets_answer
        with Cluster(one.config()) as cluster:
            assert cluster.list_offsets([T0], LATEST)[T0].offset == 7
        assert len(one.asked(LIST_OFFSETS)) == 1


def test_who_knows_the_newest_elections_is_believed() -> None:
    """Also where it is not among the bootstrap servers, and for longer than the metadata is."""
    with ScriptedBroker() as old, ScriptedBroker(node_id=2) as new:
        old.brokers = new.brokers = {1: old, 2: new}
        new.leader, new.leader_epoch = 2, 1
        new.handlers[LIST_OFFSETS] = offsets_answer
        old.handlers[LIST_OFFSETS] = lambda request: offsets_answer(request, 3)
        with Cluster(old.config()) as cluster:
            assert cluster.list_offsets([T0], LATEST)[T0].offset == 3
            for again in range(3):
                if again:
                    cluster.distrust()
                else:
                    cluster.ask_all()
                assert cluster.list_offsets([T0], LATEST)[T0].offset == 7
            old.leader_epoch = 2
            cluster.ask_all()
            assert cluster.list_offsets([T0], LATEST)[T0].offset == 3


def test_a_leader_that_went_away_is_waited_for() -> None:
    with ScriptedBroker({LIST_OFFSETS: offsets_answer}) as broker:
        broker.leader = -1
        known = broker.handlers[METADATA]

        def elect(request: Request) -> bytes:
            if len(broker.asked(METADATA)) > 2:
                broker.leader = 1
            return bytes(known(request))

        broker.handlers[METADATA] = elect
        with Cluster(broker.config()) as cluster:
            assert cluster.list_offsets([T0], LATEST)[T0].offset == 7


def test_offsets_that_a_broker_fails_to_find_are_asked_for_again() -> None:
    """As where its remote storage fails: Kafka answers UNKNOWN_SERVER_ERROR."""

    def ends(request: Request) -> bytes:
        return offsets_answer(request, error_code=-1 if len(broker.asked(LIST_OFFSETS)) < 3 else 0)

    with ScriptedBroker({LIST_OFFSETS: ends}) as broker, Cluster(broker.config()) as cluster:
        assert cluster.list_offsets([T0], 1000)[T0].offset == 7


def test_offsets_that_a_broker_never_finds_are_an_error_that_says_where_to_look() -> None:
    handlers = {LIST_OFFSETS: lambda request: offsets_answer(request, error_code=-1)}
    with (
        ScriptedBroker(handlers) as broker,
        Cluster(broker.config(request_timeout_ms="200")) as cluster,
        pytest.raises(UnknownError, match=r"offsets of t-0: .* the broker's log says why"),
    ):
        cluster.list_offsets([T0], 1000)


def test_an_answer_that_leaves_a_partition_out_is_a_typed_error() -> None:
    def nothing(request: Request) -> bytes:
        return bytes(ListOffsetsResponse(topics=[]).encode(version=request.version))

    with (
        ScriptedBroker({LIST_OFFSETS: nothing}) as broker,
        Cluster(broker.config()) as cluster,
        pytest.raises(KafkaProtocolError, match="left t-0 out"),
    ):
        cluster.list_offsets([T0], LATEST)


@pytest.mark.parametrize(
    "ask",
    [
        lambda cluster: cluster.topics(["s", "t"]),
        lambda cluster: cluster.describe(["t"]),
        lambda cluster: cluster.refresh(["t"]),
        lambda cluster: cluster.leader(T0),
        lambda cluster: cluster.list_offsets([T0], LATEST),
    ],
)
def test_metadata_that_leaves_a_topic_out_is_a_typed_error(ask: Callable[[Any], Any]) -> None:
    with (
        ScriptedBroker(topics={"s": 1}) as broker,
        Cluster(broker.config()) as cluster,
        pytest.raises(KafkaProtocolError, match="left topic t out of its metadata"),
    ):
        ask(cluster)


@pytest.mark.parametrize("symbol", [EARLIEST, LATEST])
def test_an_end_that_a_leader_does_not_know_yet_is_asked_for_again(symbol: int) -> None:
    def learns(request: Request) -> bytes:
        return offsets_answer(request, -1 if len(broker.asked(LIST_OFFSETS)) < 3 else 7)

    with ScriptedBroker({LIST_OFFSETS: learns}) as broker, Cluster(broker.config()) as cluster:
        assert cluster.list_offsets([T0], symbol)[T0].offset == 7
        assert cluster.list_offsets([T0], 1_700_000_000_000)[T0].offset == 7


def test_an_end_that_a_leader_never_knows_is_a_typed_error() -> None:
    with (
        ScriptedBroker({LIST_OFFSETS: lambda request: offsets_answer(request, -1)}) as broker,
        Cluster(broker.config(request_timeout_ms="200")) as cluster,
    ):
        assert cluster.list_offsets([T0], 1_700_000_000_000) == {}
        with pytest.raises(
            BrokersUnreachableError, match="OffsetNotAvailableError, offsets of t-0"
        ):
            cluster.list_offsets([T0], EARLIEST)


@pytest.mark.parametrize("names", [["t"], None], ids=["a name", "all"])
def test_a_broker_that_knows_no_brokers_yet_is_asked_again(names: list[str] | None) -> None:
    """It has just started, and knows of no topics: that is not to say that there are none."""

    def learns(request: Request) -> bytes:
        if len(broker.asked(METADATA)) >= 3:
            return broker.metadata(request)
        topics, brokers = broker.topics, broker.brokers
        broker.topics, broker.brokers = {}, {}
        try:
            return broker.metadata(request)
        finally:
            broker.topics, broker.brokers = topics, brokers

    with ScriptedBroker({METADATA: learns}) as broker, Cluster(broker.config()) as cluster:
        assert cluster.topics(names) == {"t": [0]}


def test_a_partition_that_nobody_leads_is_a_typed_error() -> None:
    with (
        ScriptedBroker() as broker,
        Cluster(broker.config(request_timeout_ms="200")) as cluster,
    ):
        broker.leader = -1
        for ask in (cluster.leader, lambda each: cluster.list_offsets([each], LATEST)):
            with pytest.raises(
                BrokersUnreachableError, match=r"LeaderNotAvailableError, t-0 has no leader now"
            ):
                ask(T0)


def test_a_look_up_that_runs_out_of_time_leaves_what_is_in_flight_to_others() -> None:
    """As a producer's, near the end of delivery.timeout.ms: its batches are under way there."""
    fetches: list[Request] = []

    def hear(request: Request) -> object:
        fetches.append(request)
        return SILENCE

    handlers = {FETCH: hear}
    with ScriptedBroker(handlers) as broker, Cluster(broker.config()) as cluster:
        connection = cluster.leader(T0)
        sent = connection.send(FETCH, 4, [b""])
        broker.handlers[METADATA] = lambda request: SILENCE
        cluster.forget(T0)
        with pytest.raises(BrokersUnreachableError):
            cluster.leader(T0, Deadline(100))
        fetches[0].socket.sendall(fetches[0].frame(b"stored"))
        assert bytes(connection.receive(sent)) == b"stored"


def test_the_id_of_a_topic_is_the_one_last_heard_of(
    cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    assert cluster.topic_id("never-asked") is None
    cluster.topics([topic])
    first = cluster.topic_id(topic)
    assert first is not None
    admin.delete_topics(cluster, [topic])
    admin.create_topic(cluster, topic, 1, 1)
    cluster.topics([topic])
    assert cluster.topic_id(topic) not in (None, first)


def test_a_topic_that_brokers_do_not_create_is_unknown_however_short_the_time_is() -> None:
    """They may deny one for longer that they are creating: here the call ends before."""
    with (
        ScriptedBroker({METADATA: topic_error(3)}) as broker,
        Cluster(broker.config(request_timeout_ms="300")) as cluster,
        pytest.raises(UnknownTopicError, match="Topic t does not exist in the cluster"),
    ):
        cluster.topics(["t"], create=True)


def test_an_error_that_does_not_pass_is_raised_at_once() -> None:
    with ScriptedBroker({METADATA: topic_error(29)}) as broker, Cluster(broker.config()) as cluster:
        with pytest.raises(TopicAuthorizationFailedError, match="topic t"):
            cluster.topics(["t"])
        assert len(broker.requests) == 1


def test_leaders_that_are_not_known_in_time_are_a_typed_error() -> None:
    with (
        ScriptedBroker({LIST_OFFSETS: lambda r: offsets_answer(r, error_code=6)}) as broker,
        Cluster(broker.config(request_timeout_ms="200")) as cluster,
        pytest.raises(BrokersUnreachableError, match=r"NotLeader.*, offsets of t-0"),
    ):
        cluster.list_offsets([T0], LATEST)


def test_read_committed_asks_for_the_last_stable_offset() -> None:
    levels = []

    def note(request: Request) -> bytes:
        asked = ListOffsetsRequest.decode(request.body, version=request.version)
        levels.append(asked.isolation_level)
        return offsets_answer(request)

    with ScriptedBroker({LIST_OFFSETS: note}) as broker:
        for level in ("read_uncommitted", "read_committed"):
            with Cluster(broker.config(isolation_level=level)) as cluster:
                cluster.list_offsets([T0], LATEST)
    assert levels == [0, 1]


def test_metadata_is_asked_again_when_it_is_old() -> None:
    with ScriptedBroker() as broker:
        with Cluster(broker.config(metadata_max_age_ms="0")) as cluster:
            cluster.leader(T0)
            cluster.leader(T0)
            assert len(broker.asked(METADATA)) == 2
        with Cluster(broker.config()) as cluster:
            cluster.leader(T0)
            cluster.leader(T0)
            assert len(broker.asked(METADATA)) == 3


def test_a_closed_connection_is_opened_again() -> None:
    with ScriptedBroker() as broker, Cluster(broker.config()) as cluster:
        cluster.topics()
        cluster.close()
        cluster.topics()
        assert broker.connections == 2


def test_the_brokers_own_topics_are_not_among_all(
    cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    name = new_topic()
    commit_offsets(cluster, "makes-the-topic-of-offsets", {TopicPartition(name, 0): 0})
    assert cluster.topics(["__consumer_offsets"])
    found = cluster.topics()
    assert name in found
    assert not [each for each in found if each.startswith("__")]


def test_whoever_goes_on_hears_that_a_connection_was_lost() -> None:
    with ScriptedBroker() as broker, Cluster(broker.config()) as cluster:
        cluster.any_broker()
        assert cluster.resume(60)
        cluster.any_broker().close()
        assert not cluster.resume(60)
        assert cluster.resume(60)


def test_pauses_between_attempts_stay_short() -> None:
    """Twelve that double would be longer than the request may take."""
    attempts = []

    def fail(deadline: Deadline) -> str:
        attempts.append(deadline)
        if len(attempts) <= 12:
            raise LeaderNotAvailableError
        return "there"

    with ScriptedBroker() as broker:
        config = broker.config(retry_backoff_max_ms="10")
        with Cluster(config) as cluster:
            assert cluster.retrying(fail, Deadline(5000)) == "there"


def test_offsets_of_many_partitions_take_no_square_of_them() -> None:
    def cpu_s(count: int) -> float:
        def end_of_each(request: Request) -> bytes:
            asked = ListOffsetsRequest.decode(bytes(request.body), version=request.version)
            of_topic = ListOffsetsResponse.ListOffsetsTopicResponse
            partition = of_topic.ListOffsetsPartitionResponse
            parts = [
                partition(
                    partition_index=each.partition_index,
                    error_code=0,
                    timestamp=-1,
                    offset=7,
                    leader_epoch=0,
                )
                for each in asked.topics[0].partitions
            ]
            topics = [of_topic(name="t", partitions=parts)]
            answer = ListOffsetsResponse(throttle_time_ms=0, topics=topics)
            return bytes(answer.encode(version=request.version))

        with (
            ScriptedBroker({LIST_OFFSETS: end_of_each}, {"t": count}) as broker,
            Cluster(broker.config(request_timeout_ms="60000")) as cluster,
        ):
            wanted = [TopicPartition("t", number) for number in range(count)]
            cluster.topics(["t"])
            began_s = time.process_time()
            assert len(cluster.list_offsets(wanted, LATEST)) == count
            return time.process_time() - began_s

    # 5 times as much for 5 times as many; it was 20.
    assert cpu_s(15_000) < 12 * cpu_s(3_000)
