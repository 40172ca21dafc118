"""What {topic} becomes: every topic has a place of its own, inside of the one that was named."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.topic_places import meeting, name_of, target_of

topics = st.text("abAB._-", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))


@given(st.lists(topics, unique=True, max_size=8))
def test_topics_have_places_of_their_own_or_are_told_of(names: list[str]) -> None:
    for target in ("delta:/lake/{topic}", "sql:sqlite:////d/{topic}.db#t", "sql:x://h/d#{topic}"):
        places = {topic: target_of(target, topic) for topic in names}
        shared = meeting(target, names)
        alone = [places[topic] for topic in names if topic not in shared]
        assert len(set(alone)) == len(alone)
        assert not set(alone) & {places[topic] for topic in shared}
        if "#{topic}" not in target:
            assert not shared


def test_tables_whose_names_differ_by_case_alone_are_one() -> None:
    assert meeting("sql:x://h/d#{topic}", ["a", "A", "b"]) == {"a": ["a", "A"], "A": ["a", "A"]}
    assert meeting("iceberg:n.{topic}?uri=x", ["a", "A"]).keys() == {"a", "A"}
    assert meeting("sql:sqlite:////d/{topic}.db#t", ["a", "A"]) == {}


@given(topics)
def test_no_topic_leads_out_of_a_directory(topic: str) -> None:
    path = target_of("parquet:/lake/{topic}", topic).removeprefix("parquet:")
    assert os.path.dirname(os.path.normpath(path)) == "/lake"


@given(topics)
def test_no_topic_parts_a_schema_from_a_table(topic: str) -> None:
    target = target_of("sql:postgresql://host/data#raw.{topic}", topic)
    assert target.rpartition("#")[2].count(".") == 1
    assert target_of("iceberg:lake.{topic}?uri=x", topic).partition("?")[0].count(".") == 1


@pytest.mark.parametrize("topic", ["..", ".", "a/b", "../a", "", 'a"b', "a#b", "a?b", "a" * 250])
def test_a_name_that_is_none_of_kafkas_is_refused(topic: str) -> None:
    with pytest.raises(InvalidOptionError, match="none of Kafka's"):
        target_of("parquet:/lake/{topic}", topic)


def test_a_name_says_the_topic_or_is_the_same_in_each_target() -> None:
    assert name_of("nightly", "orders.eu") == "nightly"
    assert name_of("nightly/{topic}", "orders.eu") == "nightly/orders.eu"
