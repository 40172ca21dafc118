"""One embedded broker for the client's tests, and topics of their own for each."""

from collections.abc import Callable, Iterator
from itertools import count

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker

_topic_numbers = count()


@pytest.fixture(autouse=True)
def _denials_are_believed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that does not exist would otherwise take seconds to be refused, in each test.

    Of one test only: those of other folders run in the same process, and rely on the patience.
    """
    monkeypatch.setattr("pyspark_kafkalog.client.cluster._STALE_METADATA_MS", 300)


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def config(broker: EmbeddedBroker) -> Callable[..., ClientConfig]:
    """Makes a client's config for the broker; property names with `_` for `.`."""

    def make(**properties: str) -> ClientConfig:
        given = {name.replace("_", "."): value for name, value in properties.items()}
        return ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers, **given})

    return make


@pytest.fixture
def cluster(config: Callable[..., ClientConfig]) -> Iterator[Cluster]:
    with Cluster(config()) as connected:
        yield connected


@pytest.fixture
def new_topic(cluster: Cluster) -> Callable[..., str]:
    """Creates a topic and returns its name."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"topic-{next(_topic_numbers)}"
        given = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topic(cluster, name, partitions, 1, given)
        return name

    return create


def batches_of(
    values: list[bytes], batch_bytes: int = 1_000_000, timestamps_ms: list[int] | None = None
) -> list[bytearray]:
    """Unsealed record batches of these values, for one partition."""
    columns = {"value": pa.array(values, pa.binary())}
    if timestamps_ms is not None:
        micros = [timestamp * 1000 for timestamp in timestamps_ms]
        columns["timestamp"] = pa.array(micros, pa.timestamp("us", tz="UTC"))
    encoder = RecordEncoder(1, max_batch_bytes=batch_bytes)
    encoded = [batch for _, batch in encoder.encode(pa.record_batch(columns))]
    return encoded + [batch for _, batch in encoder.finish()]


def write(
    config: ClientConfig,
    topic_partition: TopicPartition,
    values: list[bytes],
    batch_bytes: int = 1_000_000,
) -> int:
    """Produces the values; returns the number of batches."""
    with Producer(config) as producer:
        batches = batches_of(values, batch_bytes)
        for batch in batches:
            producer.send(topic_partition, batch)
    return len(batches)
