"""Transactions where every record is forced to disk before it is acknowledged, and a topic of
transactions that is deleted under them."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from kafka.protocol.admin import DeleteTopicsRequest, DeleteTopicsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from tests.broker.api.transaction_client import (
    TransactionClient,
    read,
    stable_offset,
    until_settled,
)
from tests.support.broker_child import BrokerChild, RawClient

TOPIC = "orders"
INVALID_PRODUCER_ID_MAPPING = 49
SMALL = {
    "num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], tuple[BrokerChild, RawClient]]]:
    """start(**properties) -> (broker, client); ends them."""
    started = []

    def begin(properties: dict[str, str]) -> tuple[BrokerChild, RawClient]:
        child = BrokerChild(tmp_path, SMALL | properties)
        client = RawClient(child.host, child.port)
        started.append((child, client))
        wanted = MetadataRequest.MetadataRequestTopic(name=TOPIC)
        request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=True)
        assert client.call(request, MetadataResponse, 9).topics[0].error_code == 0
        return child, client

    yield begin
    for child, client in started:
        client.socket.close()
        assert "level=error" not in child.stderr()
        child.close()


def delete(client: RawClient, topic: str) -> None:
    request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=60_000)
    (deleted,) = client.call(request, DeleteTopicsResponse, 4).responses
    assert deleted.error_code == 0


@pytest.mark.parametrize("is_version_2", [True, False])
def test_every_step_waits_for_the_disk(
    start: Callable[[dict[str, str]], tuple[BrokerChild, RawClient]], is_version_2: bool
) -> None:
    _, client = start({"log.flush.interval.messages": "1"})
    producer = TransactionClient(client, "id")
    producer.init()
    for turn in range(3):
        for partition in (0, 1):
            if not is_version_2:
                assert producer.add(TOPIC, partition) == 0
            version = 12 if is_version_2 else 9
            value = b"%d" % turn
            ask = partial(producer.produce, TOPIC, value, partition=partition, version=version)
            assert until_settled(ask).error_code == 0
        assert producer.end(turn != 1, version=5 if is_version_2 else 3).error_code == 0
    assert producer.state() == "CompleteCommit"
    for partition in (0, 1):
        assert read(client, TOPIC, partition) == [b"0", b"2"]
        assert stable_offset(client, TOPIC, partition) == 6


def test_transactions_whose_topic_is_deleted_hold_nobody_up(
    start: Callable[[dict[str, str]], tuple[BrokerChild, RawClient]],
) -> None:
    _, client = start({})
    producer = TransactionClient(client, "id")
    producer.init()
    assert producer.add(TOPIC, 0) == 0
    assert producer.produce(TOPIC).error_code == 0
    delete(client, "__transaction_state")
    assert stable_offset(client, TOPIC) == 2
    assert read(client, TOPIC) == []
    # The topic comes back empty, with the next who asks for a coordinator.
    producer.find_coordinator()
    assert producer.ask_end(True).error_code == INVALID_PRODUCER_ID_MAPPING
    assert producer.init().error_code == 0
    assert producer.add(TOPIC, 0) == 0
    assert producer.produce(TOPIC, b"again").error_code == 0
    assert producer.end(True).error_code == 0
    producer.state()
    assert read(client, TOPIC) == [b"again"]


def test_a_topic_that_is_deleted_under_a_transaction_holds_nobody_up(
    start: Callable[[dict[str, str]], tuple[BrokerChild, RawClient]],
) -> None:
    _, client = start({})
    producer = TransactionClient(client, "id")
    producer.init()
    assert producer.add(TOPIC, 0, 1) == 0
    assert producer.produce(TOPIC).error_code == 0
    delete(client, TOPIC)
    assert producer.end(True).error_code == 0
    assert producer.state() == "CompleteCommit"
    assert producer.init().error_code == 0
