"""`pyspark_kafkalog.load_topics`: topics of a list or a pattern, each in a table of its own.

Each topic is a load of its own, with its own target, schema, offsets and commits; some are at work
at a time, in threads that share an engine's processes. What fails is one topic's: the others land.
A topic that is new to a pattern is found by the next call; one that was deleted is not missed, as
nothing remembers which topics there were.

Runs on the driver.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError
from pyspark_kafkalog.warehouse.engines.local import LocalEngine
from pyspark_kafkalog.warehouse.engines.spark import SparkEngine
from pyspark_kafkalog.warehouse.load import (
    Engine,
    LoadResult,
    Stop,
    never,
    run_load,
    session_zone,
)
from pyspark_kafkalog.warehouse.options import LoadArguments, LoadOptions, Zone, load_options
from pyspark_kafkalog.warehouse.topic_places import (
    TOPIC,
    meeting,
    name_of,
    names_topic,
    target_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Unpack

AT_ONCE = 4
"""How many topics are at work at a time: while one waits for its commit, others land."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """What became of one topic: its `result`, or the `error` that ended it."""

    topic: str
    result: LoadResult | None = None
    error: Exception | None = None


Told = Callable[[TopicLoad], None]
"""Called with each topic when it is done."""


def load_topics(
    spark: "SparkSession | None",
    name: str,
    target: str,
    options: Mapping[str, str],
    at_once: int = AT_ONCE,
    told: Told | None = None,
    **arguments: "Unpack[LoadArguments]",
) -> list[TopicLoad]:
    """Lands each topic in a target of its own, which `target` names by `{topic}`.

        load_topics(None, name="nightly", target="delta:/lake/{topic}",
                    options={"kafka.bootstrap.servers": "localhost:9092",
                             "subscribePattern": "^shop"})

    All else is as for `load`, and counts for each topic: `name` is that of each topic's load, and
    may say {topic}, too; `max_bytes` is the most that is taken of each; without a schema, a
    registry is asked for that of TOPIC-value. Offsets as JSON count for the topics that they name.

    `at_once` topics are at work at a time (with Spark one), in as many processes as this machine
    has processors; `told` is called with each one that is done, in one thread. Returns what became
    of each topic, by name. Raises InvalidOptionError, and BrokersUnreachableError before anything
    lands; what a topic raises later is in its TopicLoad.
    """
    each = EachTopic(name, target, options, arguments, lambda: session_zone(spark))
    if spark is not None:
        found = load_each(lambda one: SparkEngine(spark, one.query), each, 1, told)
    else:
        with LocalEngine(at_once=at_once) as engine:
            found = load_each(lambda _: engine, each, at_once, told)
    return sorted(found, key=lambda one: one.topic)


@dataclass(frozen=True, slots=True)
class EachTopic:
    """A load for each topic that there is; `target` says {topic}. Raises InvalidOptionError, as
    `load` does for what was asked of it."""

    name: str
    target: str
    options: Mapping[str, str]
    arguments: LoadArguments
    zone: Zone = lambda: None

    def __post_init__(self) -> None:
        if not names_topic(self.target):
            raise InvalidOptionError(
                "the target does not say {topic}, so that all topics would land in one table: "
                "write it where they are told apart, such as delta:/lake/{topic}"
            )
        self._all()

    def topics(self) -> list[str]:
        """Those that are named, whether they are there or not, or that the pattern finds now.
        Raises BrokersUnreachableError."""
        source = self._all().source
        with Cluster(source.client, fails_fast=True) as cluster:
            there = source.subscription.partitions(cluster, missing_ok=True)
        return sorted({each.topic for each in there} | set(self._named()))

    def of(self, topic: str) -> LoadOptions:
        """The load of one topic; raises InvalidOptionError."""
        options = dict(self.options)
        given = {name.lower(): name for name in self.options}
        options.pop(given.get("subscribepattern", ""), None)
        if "assign" in given:
            options[given["assign"]] = _of_topic(options[given["assign"]], topic)
        else:
            options[given.get("subscribe", "subscribe")] = topic
        for name in options:
            if name.lower().startswith(("starting", "ending")):
                options[name] = _of_topic(options[name], topic)
        arguments: dict[str, Any] = dict(self.arguments)
        for name in ("starting", "until"):
            if name in arguments:
                arguments[name] = _of_topic(arguments[name], topic)
        wanted = load_options(
            name_of(self.name, topic),
            target_of(self.target, topic),
            options,
            self.zone,
            **cast(LoadArguments, arguments),
        )
        return replace(wanted, own_topic=topic)

    def _all(self) -> LoadOptions:
        """All topics in one, of which nothing is asked but which they are."""
        same = ("starting", "until", "max_bytes", "chunk_bytes", "on_error", "dead_letter_topic")
        arguments = {name: value for name, value in self.arguments.items() if name in same}
        nowhere = self.target.replace(TOPIC, "")
        return load_options(
            self.name, nowhere, self.options, self.zone, **cast(LoadArguments, arguments)
        )

    def _named(self) -> Sequence[str]:
        given = {name.lower(): value for name, value in self.options.items()}
        if "assign" in given:
            return list(json.loads(given["assign"]))
        return [one.strip() for one in given.get("subscribe", "").split(",") if one.strip()]


EngineOf = Callable[[LoadOptions], Engine]
"""The engine that runs the tasks of a topic's load."""


def load_each(
    engine_of: EngineOf,
    each: EachTopic,
    at_once: int,
    told: Told | None = None,
    without: Collection[str] = (),
    stop: Stop = never,
) -> list[TopicLoad]:
    """Loads all topics but those `without`, and tells of each; ends early when told to `stop`.

    Raises BrokersUnreachableError before anything is landed.
    """
    topics = [topic for topic in each.topics() if topic not in without]
    done = []
    for one in _loaded(engine_of, each, topics, at_once, stop):
        done.append(one)
        if told is not None:
            told(one)
    return done


def _loaded(
    engine_of: EngineOf, each: EachTopic, topics: Sequence[str], at_once: int, stop: Stop
) -> Iterator[TopicLoad]:
    shared = _meeting(each.target, topics)
    is_over = False

    def load(topic: str) -> TopicLoad | None:
        if is_over or stop():
            return None
        try:
            if topic in shared:
                raise shared[topic]
            wanted = each.of(topic)
            return TopicLoad(topic, run_load(engine_of(wanted), wanted, stop=stop))
        except Exception as error:
            if not isinstance(error, KafkalogError | OSError):
                _log.warning("Topic %s failed.", topic, exc_info=True)
            return TopicLoad(topic, error=error)

    pool = ThreadPoolExecutor(at_once, "kafkalog-load")
    try:
        for future in as_completed([pool.submit(load, topic) for topic in topics]):
            one = future.result()
            if one is not None:
                yield one
    finally:
        # Ctrl-C, or an error of whoever is told; the topics at work fail when their workers end.
        is_over = True
        pool.shutdown(wait=False, cancel_futures=True)


def _meeting(target: str, topics: Sequence[str]) -> dict[str, InvalidOptionError]:
    usable = []
    refused = {}
    for topic in topics:
        try:
            target_of(target, topic)
            usable.append(topic)
        except InvalidOptionError as error:
            refused[topic] = error
    return refused | {
        topic: InvalidOptionError(
            f"topics {' and '.join(together)} would land in one table: load one of them by itself, "
            "into a target of another name"
        )
        for topic, together in meeting(target, usable).items()
    }


def _of_topic(place: Any, topic: str) -> Any:
    """What offsets of many topics say of one of them; all else, and offsets that do not name it,
    as it is."""
    named = place
    if isinstance(place, str) and place.lstrip().startswith("{"):
        try:
            named = json.loads(place)
        except ValueError:
            return place
    if not isinstance(named, Mapping) or topic not in named:
        return place
    one = {topic: named[topic]}
    return json.dumps(one) if isinstance(place, str) else one
