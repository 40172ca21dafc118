"""Which topics a load reads whose dead letters go to a topic, and what that topic takes."""

import os
import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafkalog.arrow.schema import COLUMN_TYPES, row_schema
from pyspark_kafkalog.client.admin import create_topic, topic_property
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.options import batch_options
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.reading import read_range
from pyspark_kafkalog.warehouse.rows.dead_letters import BesideLetters, DeadLetters, make_topics

TOPICS = ("orders", "orders-dead-letters", "orders-eu", "deleted-dead-letters", "letters")


class FakeCluster:
    def topics(self, names: Iterable[str]) -> dict[Any, Any]:
        return {name: [0, 1] for name in TOPICS if names is None or name in names}


def read(letters_to: str | None = None, **subscription: str) -> list[str]:
    options = batch_options({"kafka.bootstrap.servers": "nowhere:1", **subscription})
    beside = pickle.loads(pickle.dumps(BesideLetters(options.subscription, letters_to)))
    return sorted({each.topic for each in beside.partitions(FakeCluster())})


def test_a_pattern_leaves_the_topics_of_its_own_letters_out() -> None:
    """The first load makes them itself: the second one would find them."""
    assert read(subscribePattern="orders.*") == ["orders", "orders-eu"]
    beside_own = [topic for topic in sorted(TOPICS) if topic != "letters"]
    assert read("letters", subscribePattern=".*") == beside_own


def test_a_pattern_leaves_out_the_letters_of_a_topic_that_was_deleted() -> None:
    assert read(subscribePattern=".*") == ["letters", "orders", "orders-eu"]
    assert read(subscribePattern="^deleted|^orders") == ["orders", "orders-eu"]


def test_letters_of_other_loads_are_read() -> None:
    every = ["deleted-dead-letters", "orders-dead-letters"]
    assert read(subscribePattern="-dead-letters$") == every
    assert read("letters", subscribe="orders-dead-letters") == ["orders-dead-letters"]


@pytest.mark.parametrize(
    ("letters_to", "subscription"),
    [
        (None, {"subscribe": "orders,orders-dead-letters"}),
        ("letters", {"subscribe": "orders,letters"}),
        ("letters", {"assign": '{"letters":[0],"orders":[1]}'}),
    ],
)
def test_topics_that_are_named_and_take_letters_are_refused(
    letters_to: str | None, subscription: dict[str, str]
) -> None:
    with pytest.raises(InvalidOptionError, match=r"letters would go to .*, which this load reads"):
        read(letters_to, **subscription)


@pytest.mark.parametrize("letters_to", [None, "letters"])
def test_a_record_as_large_as_its_topic_takes_becomes_a_letter(letters_to: str | None) -> None:
    """Otherwise no load would ever get past it."""
    columns = tuple(COLUMN_TYPES)
    with EmbeddedBroker() as broker:
        config = ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers})
        with Cluster(config) as cluster:
            create_topic(cluster, "small")
            create_topic(cluster, "orders", configs={"max.message.bytes": str(4 << 20)})
            make_topics(cluster, ["orders", "small"], letters_to)
            value = os.urandom(4 << 20)
            row = dict.fromkeys(columns) | {"value": value, "topic": "orders"}
            row |= {"partition": 0, "offset": 5, "timestamp": 0, "timestampType": 0}
            records = pa.RecordBatch.from_pylist([row], row_schema(columns))
            with DeadLetters(config, letters_to) as letters:
                letters.send(records, ["a reason"])
        name = letters_to or "orders-dead-letters"
        options = batch_options(
            {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": name}
        )
        with Cluster(config) as cluster:
            found = read_range(cluster, options, ("value", "headers"), OffsetRange(name, 0, 0, 1))
            ((letter,),) = [batch.to_pylist() for batch in found if batch.num_rows]
    assert letter["value"] == value
    assert letter["headers"][-1] == {"key": "kafkalog.reason", "value": b"a reason"}


def test_letters_are_not_compacted_away() -> None:
    """Of letters with one key a compacted topic keeps the last, and none without a key."""
    with EmbeddedBroker(config={"log.cleanup.policy": "compact"}) as broker:
        config = ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers})
        with Cluster(config) as cluster:
            create_topic(cluster, "orders")
            make_topics(cluster, ["orders"], None)
            assert topic_property(cluster, "orders-dead-letters", "cleanup.policy") == "delete"
            make_topics(cluster, ["orders"], None)
            create_topic(cluster, "letters", configs={"cleanup.policy": "compact,delete"})
            refusal = r"letters, which is compacted: .* cleanup\.policy to delete"
            with pytest.raises(InvalidOptionError, match=refusal):
                make_topics(cluster, ["orders"], "letters")


def test_a_topic_that_cannot_be_made_is_told_with_what_to_change() -> None:
    longest = "x" * 249
    with EmbeddedBroker() as broker:
        config = ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers})
        with Cluster(config) as cluster:
            create_topic(cluster, longest)
            with pytest.raises(InvalidOptionError, match=r"cannot be made.*dead_letter_topic"):
                make_topics(cluster, [longest], None)
