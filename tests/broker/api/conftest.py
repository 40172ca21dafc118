"""One broker for all API tests; each test has its own topic and connection."""

import itertools
import os
import uuid
from collections.abc import Callable, Iterator

import pytest
from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from tests.broker.api.group_client import GroupClient
from tests.support.broker_child import RawClient, broker_under_test
from tests.support.patience import wait_until

Eventually = Callable[[Callable[..., object], object], None]

_NUMBERS = itertools.count()
_RUN = uuid.uuid4().hex[:8]


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # As Kafka's own quick start, and the reference broker of these tests.
    properties = {"group.initial.rebalance.delay.ms": "0"}
    with broker_under_test(tmp_path_factory.mktemp("broker"), properties) as address:
        yield address


@pytest.fixture
def connect(bootstrap: str) -> Iterator[Callable[[], RawClient]]:
    """connect() -> RawClient; all are closed at the end."""
    clients: list[RawClient] = []

    def open_client() -> RawClient:
        host, _, port = bootstrap.rpartition(":")
        clients.append(RawClient(host, int(port)))
        return clients[-1]

    yield open_client
    for client in clients:
        client.socket.close()


@pytest.fixture
def client(connect: Callable[[], RawClient]) -> RawClient:
    return connect()


@pytest.fixture
def topic_name() -> str:
    """A name that no other test, and no earlier run, has used."""
    return f"topic-{_RUN}-{next(_NUMBERS)}"


@pytest.fixture
def create(client: RawClient, topic_name: str) -> Callable[..., str]:
    """create(partitions=1, **configs) -> the name of a new topic."""

    def create_topic(partitions: int = 1, **configs: str) -> str:
        topic = CreateTopicsRequest.CreatableTopic(
            name=topic_name,
            num_partitions=partitions,
            replication_factor=1,
            assignments=[],
            configs=[
                CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=name, value=value)
                for name, value in configs.items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000, validate_only=False)
        response = client.call(request, CreateTopicsResponse, 7)
        assert response.topics[0].error_code == 0, response
        wait_until_served(client, topic_name)
        return topic_name

    return create_topic


def wait_until_served(client: RawClient, name: str) -> None:
    """This broker serves a topic when it answers; Apache Kafka some moments later."""
    wanted = MetadataRequest.MetadataRequestTopic(name=name)
    request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
    for _ in range(500 if "KAFKALOG_TEST_BOOTSTRAP" in os.environ else 1):
        (topic,) = client.call(request, MetadataResponse, 9).topics
        asks = [FetchPartition(name, part.partition_index, 0, 1) for part in topic.partitions]
        fetched = client.fetch(FetchRequest(11, 0, 1, asks)).partitions
        codes = [topic.error_code, *(part.error_code for part in fetched)]
        if not any(codes) and asks:
            return
    raise AssertionError(f"{name} is not served: {codes}")


@pytest.fixture
def topic(create: Callable[..., str]) -> str:
    return create()


@pytest.fixture
def group(client: RawClient, topic_name: str) -> GroupClient:
    """A GroupClient of a group that nobody has used, when its coordinator is there."""
    group = GroupClient(client, f"group-of-{topic_name}")
    group.find_coordinator()
    return group


@pytest.fixture
def another(connect: Callable[[], RawClient], group: GroupClient) -> Callable[[], GroupClient]:
    """another() -> a GroupClient of the same group on a connection of its own."""
    return lambda: GroupClient(connect(), group.group_id)


@pytest.fixture
def eventually() -> Eventually:
    """eventually(ask, expected): this broker has done what it has answered; Apache Kafka's other
    half hears of it some moments later."""

    def check(ask: Callable[..., object], expected: object) -> None:
        timeout_s = 20 if "KAFKALOG_TEST_BOOTSTRAP" in os.environ else 0
        wait_until(lambda: ask() == expected, lambda: f"{ask()} is not {expected}", timeout_s)

    return check


@pytest.fixture
def only_ours() -> None:
    """Skips a test whose answer is this broker's own when Apache Kafka is asked."""
    if "KAFKALOG_TEST_BOOTSTRAP" in os.environ:
        pytest.skip("Apache Kafka answers otherwise, on purpose")
