"""What a client library tells its user of a batch in which the broker refuses some records.

With KAFKALOG_TEST_BOOTSTRAP the broker is Apache Kafka, and the same must hold.
"""

import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from confluent_kafka.cimpl import Message

from tests.support.broker_child import broker_under_test

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with broker_under_test(tmp_path_factory.mktemp("broker")) as address:
        yield address


def test_librdkafka_tells_the_guilty_from_the_others(bootstrap: str) -> None:
    """As librdkafka's own test 0011 has it: ten of a hundred records have no key."""
    topic = f"compacted-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"cleanup.policy": "compact"}
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        future.result(30)
    # One batch of all of them, which goes when it is flushed, however slow this machine is.
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 60_000})
    found: dict[str, int] = {}
    reasons: Counter[int] = Counter()

    def delivered(error: KafkaError | None, message: "Message[bytes, bytes]") -> None:
        key = message.key()
        assert error is not None
        reasons[error.code()] += 1
        found["keyless" if key is None else key.decode()] = error.code()

    for number in range(100):
        key = None if number % 10 == 0 else f"key-{number}"
        producer.produce(topic, b"value", key, callback=delivered, partition=0)
    assert producer.flush(60) == 0
    assert reasons == {KafkaError.INVALID_RECORD: 10, KafkaError._INVALID_DIFFERENT_RECORD: 90}
    assert found["keyless"] == KafkaError.INVALID_RECORD
