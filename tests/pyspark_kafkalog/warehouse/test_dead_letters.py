"""Which topics a load reads whose dead letters go to a topic."""

import pickle

import pytest

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.options import batch_options
from pyspark_kafkalog.warehouse.dead_letters import BesideLetters

TOPICS = ("orders", "orders-dead-letters", "orders-eu", "letters")


class FakeCluster:
    def topics(self, names):
        return {name: [0, 1] for name in TOPICS if names is None or name in names}


def read(letters_to: str | None = None, **subscription: str) -> list[str]:
    options = batch_options({"kafka.bootstrap.servers": "nowhere:1", **subscription})
    beside = pickle.loads(pickle.dumps(BesideLetters(options.subscription, letters_to)))
    return sorted({tp.topic for tp in beside.partitions(FakeCluster())})


def test_a_pattern_leaves_the_topics_of_its_own_letters_out():
    """The first load makes them itself: the second one would find them."""
    assert read(subscribePattern="orders.*") == ["orders", "orders-eu"]
    assert read("letters", subscribePattern=".*") == ["orders", "orders-dead-letters", "orders-eu"]


def test_letters_of_other_loads_are_read():
    assert read(subscribePattern="-dead-letters$") == ["orders-dead-letters"]
    assert read("letters", subscribe="orders-dead-letters") == ["orders-dead-letters"]


@pytest.mark.parametrize(
    ("letters_to", "subscription"),
    [
        (None, {"subscribe": "orders,orders-dead-letters"}),
        ("letters", {"subscribe": "orders,letters"}),
        ("letters", {"assign": '{"letters":[0],"orders":[1]}'}),
    ],
)
def test_topics_that_are_named_and_take_letters_are_refused(letters_to, subscription):
    with pytest.raises(InvalidOptionError, match=r"letters would go to .*, which this load reads"):
        read(letters_to, **subscription)
