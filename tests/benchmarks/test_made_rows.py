"""The topics that benchmarks read hold what their rows say: else a benchmark is worthless."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.structs import TopicPartition

from benchmarks.made_rows import PARTITIONS, ROWS_PER_SLICE, Kind, MadeTopic, rows_of
from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.record.batch import read_header
from pyspark_kafkalog.record.compression import Codec, compress
from pyspark_kafkalog.source.options import batch_options
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.reading import read_range


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


def read(made: MadeTopic, columns: tuple[str, ...] = ("value",), **options: str) -> Iterator[Any]:
    """All rows, in Arrow batches."""
    given = {"kafka.bootstrap.servers": made.servers, "subscribe": made.name, **options}
    found = batch_options(given)
    with Cluster(found.client) as client:
        places = [TopicPartition(made.name, number) for number in range(made.kind.partitions)]
        for place, end in client.list_offsets(places, LATEST).items():
            wanted = OffsetRange(place.topic, place.partition, 0, end.offset)
            yield from read_range(client, found, columns, wanted)


def test_values_have_their_size_and_only_json_compresses() -> None:
    for kind, least, most in ((Kind(100), 0.95, 1.1), (Kind(100, is_json=True), 0.1, 0.6)):
        values = rows_of(kind).column("value").to_pylist()
        assert {len(value) for value in values} == {100}
        data = b"".join(values)
        assert least < memoryview(compress(Codec.ZSTD, data)).nbytes / len(data) < most
    assert json.loads(values[7])["order"]


def test_a_topic_is_made_when_its_name_is_asked_for_and_of_whole_slices(
    broker: EmbeddedBroker,
) -> None:
    asked = []

    def find_broker() -> EmbeddedBroker:
        asked.append(True)
        return broker

    made = MadeTopic(find_broker, 25_000)
    assert (made.count, made.title, made.size_bytes) == (20_000, "20 k x 100 B", 2_000_000)
    assert not asked
    batches = list(read(made, ("value", "partition")))
    assert sum(batch.num_rows for batch in batches) == made.count
    spread = Counter(number for batch in batches for number in batch.column(1).to_pylist())
    assert len(spread) == PARTITIONS
    assert min(spread.values()) > made.count // PARTITIONS * 0.9


def test_aborted_rows_are_left_out_by_read_committed_alone(broker: EmbeddedBroker) -> None:
    made = MadeTopic(lambda: broker, 3 * ROWS_PER_SLICE, Kind(in_transactions=True))
    rows = [
        sum(batch.num_rows for batch in read(made, ("value",), **{"kafka.isolation.level": level}))
        for level in ("read_committed", "read_uncommitted")
    ]
    assert rows == [made.count, 2 * made.count]


def test_headers_and_codecs_are_as_the_kind_says(broker: EmbeddedBroker) -> None:
    made = MadeTopic(lambda: broker, ROWS_PER_SLICE, Kind(has_headers=True, codec=Codec.LZ4))
    batches = list(read(made, ("headers",), includeHeaders="true"))
    assert sum(len(batch.column(0).values) for batch in batches) == 2 * made.count
    with Cluster(ClientConfig.from_options({"bootstrap.servers": made.servers})) as client:
        fetched = next(Fetcher(client, TopicPartition(made.name, 0), 0, 1).records())
    assert read_header(fetched.records).attributes & 7 == Codec.LZ4
