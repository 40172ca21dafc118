"""Which topics of a load are gone; with a broker: tests/spark/test_load.py."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from kafka.errors import TopicAuthorizationFailedError
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.source.options import batch_options
from pyspark_kafkalog.warehouse import deleted_topics
from pyspark_kafkalog.warehouse.commit import (
    NO_IDS,
    Position,
)
from pyspark_kafkalog.warehouse.deleted_topics import partitions_now

KEPT, HIDDEN, OTHER = (TopicPartition(topic, 0) for topic in ("day-1", "day-2", "other"))


class Brokers:
    """Answer for all topics with `day-1`, and for others by name as they are told to."""

    def __init__(self, error: type[Exception] | None, topic_id: UUID | None = None) -> None:
        self._error = error
        self._topic_id = topic_id

    def topic_id(self, topic: str) -> UUID | None:
        return self._topic_id

    def topics(self, names: Sequence[str] | None) -> dict[str, list[int]]:
        if names is not None and self._error is not None:
            raise self._error(names[0])
        return {name: [0] for name in names or ["day-1"]}


def gone(error: type[Exception] | None) -> list[TopicPartition]:
    options = batch_options({"kafka.bootstrap.servers": "x:1", "subscribePattern": "^day-"})
    brokers: Any = Brokers(error)
    position = Position({KEPT: 1, HIDDEN: 2, OTHER: 3}, NO_IDS)
    found, missing = partitions_now(brokers, options, position)
    assert found == [KEPT]
    return missing


@pytest.fixture(autouse=True)
def asks_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_topics, "_RETRY_INTERVAL_S", 0)


def test_what_no_broker_knows_by_its_name_is_gone() -> None:
    assert gone(UnknownTopicError) == [HIDDEN]


def test_a_topic_that_is_left_out_of_all_and_known_by_its_name_is_not_gone() -> None:
    """One that has no leader for a moment: it would be new, and loaded again, when it is back."""
    assert gone(None) == []


@pytest.mark.parametrize(
    ("then", "now", "is_missed"),
    [(None, None, True), (1, None, True), (None, 1, True), (1, 1, False), (1, 2, False)],
)
@pytest.mark.parametrize("way", ["subscribe", "subscribePattern", "assign"])
def test_a_partition_that_its_topic_has_no_more_is_gone_unless_ids_tell_more(
    way: str, then: int | None, now: int | None, is_missed: bool
) -> None:
    """No topic loses partitions: of one id, some broker did not know them all."""
    brokers: Any = Brokers(None, UUID(int=now) if now else None)
    asked = '{"day-1":[0]}' if way == "assign" else "day-1"
    options = batch_options({"kafka.bootstrap.servers": "x:1", way: asked})
    lacks = TopicPartition("day-1", 1)
    position = Position({KEPT: 1, lacks: 2}, {"day-1": UUID(int=then)} if then else NO_IDS)
    wanted = [lacks] if is_missed and way != "assign" else []
    assert partitions_now(brokers, options, position) == ([KEPT], wanted)


def test_a_topic_that_may_not_be_seen_is_not_gone() -> None:
    with pytest.raises(TopicAuthorizationFailedError):
        gone(TopicAuthorizationFailedError)
