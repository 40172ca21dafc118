"""Offsets as Spark's Kafka connector writes them, and what "earliest" and "latest" stand for.

Owns the forms of the options `assign`, `startingOffsets`, `endingOffsets` and those two by
timestamp, and of the offsets in a streaming checkpoint: `{"topic": {"0": 123}}`, where 123 is the
*next* offset to read.
Plain functions of their arguments: never talks to a broker, imports neither Spark nor Arrow.
"""

import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import DataLossError, InvalidOptionError

EARLIEST = -2
LATEST = -1
OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
TIMES_EXAMPLE = '{"topicA":{"0":1700000000000,"1":1700000000000}}'
ASSIGN_EXAMPLE = '{"topicA":[0,1],"topicB":[2,4]}'
RELATIVE_EXAMPLE = "-10 minutes or -1000 offsets"
_STARTED_AT = "__kafkalog-started-at "
"""What a key of a first batch's end begins with, see `with_start`. No topic has a blank."""
OF_LOGS = "__kafkalog-of-logs "
"""The same of what `log_identity.with_identity` has put into the end of a batch."""
LEFT_AT = "__kafkalog-left-at "
"""The same of where `log_identity.with_left` says that the query left partitions."""
_RELATIVE = re.compile(r"-\s*([0-9]{1,15})\s*([a-z]*)")
_UNITS_MS = MappingProxyType(
    {
        **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
        **dict.fromkeys(("s", "second", "seconds"), 1000),
        **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
        **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
        **dict.fromkeys(("d", "day", "days"), 86_400_000),
        **dict.fromkeys(("week", "weeks"), 7 * 86_400_000),
    }
)
_LARGEST_OFFSET = 2**63 - 1
_LARGEST_PARTITION = 2**31 - 1
_PARTITION = re.compile("0|[1-9][0-9]{0,9}")

Offsets: TypeAlias = dict[TopicPartition, int]
JsonOffsets: TypeAlias = dict[str, dict[str, int]]
"""Topics, their partitions, offsets: the form of Spark's own Kafka checkpoints."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetLimit:
    """Where a read begins or ends, before a broker was asked.

    `by_partition` holds an offset, EARLIEST or LATEST for each partition, and `by_topic` one of the
    two for all partitions of a topic; where `by_partition` is None, `everywhere` is for all.
    `ends` has what LATEST means where a broker was asked before. `note` says which logs the offsets
    are of, where whoever told them knew (`log_identity.with_identity`).
    """

    everywhere: int = LATEST
    by_partition: Mapping[TopicPartition, int] | None = None
    by_topic: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    note: str = ""

    def mentions(self, symbol: int) -> bool:
        """True if any partition is to begin or end at `symbol` (EARLIEST or LATEST)."""
        if self.by_partition is None:
            return self.everywhere == symbol
        return symbol in self.by_partition.values() or symbol in self.by_topic.values()

    def names(self, topic_partition: TopicPartition) -> bool:
        """Whether it says where `topic_partition` is to begin or end."""
        return (
            self.by_partition is None
            or topic_partition in self.by_partition
            or topic_partition.topic in self.by_topic
        )

    def of(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """An offset, EARLIEST or LATEST for each of `partitions`, all of which it names."""
        if self.by_partition is None:
            return dict.fromkeys(partitions, self.everywhere)
        named = self.by_partition
        return {
            each: named[each] if each in named else self.by_topic[each.topic] for each in partitions
        }

    def named_offsets(self) -> Offsets:
        """The partitions whose limit is a real offset, not EARLIEST or LATEST."""
        return {each: offset for each, offset in (self.by_partition or {}).items() if offset >= 0}


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Where a read begins or ends by time: at the first record that is as late, or later.

    `by_partition` holds ms since the epoch for each partition; where it is None, `everywhere_ms`
    is for all of them. A partition without such a record begins or ends at LATEST, or is an error
    unless `latest_if_none`. `option` is where the user said so.
    """

    option: str
    latest_if_none: bool
    everywhere_ms: int = 0
    by_partition: Mapping[TopicPartition, int] | None = None

    def mentions(self, symbol: int) -> bool:
        """True if a partition may turn out to begin or end at `symbol` (EARLIEST or LATEST)."""
        return symbol == LATEST and self.latest_if_none

    def names(self, topic_partition: TopicPartition) -> bool:
        """Whether it says where `topic_partition` is to begin or end."""
        return self.by_partition is None or topic_partition in self.by_partition

    def times(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The time of each of `partitions`, in ms.

        Raises InvalidOptionError if the option names other partitions.
        """
        if self.by_partition is None:
            return dict.fromkeys(partitions, self.everywhere_ms)
        check_named(self.option, self, partitions)
        return dict(self.by_partition)


@dataclass(frozen=True, slots=True)
class RelativeLimit:
    """Where a read begins, counted back: from each partition's end, or in time from now.

    Exactly one of the two is set. "Now" is when the read is planned, by this machine's clock.
    """

    offsets: int | None = None
    ms: int | None = None

    def mentions(self, symbol: int) -> bool:
        """True for LATEST: it means something else each time that it is asked for."""
        return symbol == LATEST

    def names(self, topic_partition: TopicPartition) -> bool:
        """Whether it says where `topic_partition` is to begin: always."""
        return True


Limit: TypeAlias = OffsetLimit | TimeLimit | RelativeLimit


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What the log holds now: the first offset of each partition, and the one after its last.
    `epochs` are the leader epochs in which the latter were told, as far as leaders say them."""

    earliest: Offsets
    latest: Offsets
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)


def parse_offset_limit(option: str, text: str) -> OffsetLimit:
    """`earliest`, `latest` (in any case) or JSON such as OFFSETS_EXAMPLE.

    In the JSON one of the two words may stand for all partitions of a topic.
    Raises InvalidOptionError naming `option`, what is wrong and an example.
    """
    symbol = _symbol(text)
    if symbol is not None:
        return OffsetLimit(everywhere=symbol)
    by_topic: dict[str, int] = {}
    by_partition = _by_partition(
        option, text, OFFSETS_EXAMPLE, EARLIEST, "neither an offset nor -2 or -1", by_topic
    )
    note = next((name for name in json.loads(text) if name.startswith(OF_LOGS)), "")
    return OffsetLimit(by_partition=by_partition, by_topic=by_topic, note=note)


def parse_start(option: str, text: str) -> OffsetLimit | RelativeLimit:
    """As `parse_offset_limit`, or a start such as RELATIVE_EXAMPLE; a bare number is of offsets."""
    found = _RELATIVE.fullmatch(text.strip().lower())
    if found is None:
        if _symbol(text) is None and not text.lstrip().startswith("{"):
            raise InvalidOptionError(
                f"Option {option} is malformed: expected earliest, latest, {RELATIVE_EXAMPLE}, or "
                f"JSON such as {OFFSETS_EXAMPLE}, got {_shown(text)}"
            )
        return parse_offset_limit(option, text)
    number, unit = int(found[1]), found[2]
    if not unit and -number in (EARLIEST, LATEST):
        word = "earliest" if -number == EARLIEST else "latest"
        raise InvalidOptionError(
            f"Option {option} is {text.strip()}, which means {word} in JSON and might mean "
            f"{number} offsets before the end here: write {word}, or -{number} offsets."
        )
    if unit in ("", "offset", "offsets"):
        return RelativeLimit(offsets=number)
    if unit not in _UNITS_MS:
        raise InvalidOptionError(
            f"Option {option} has the unit {unit!r}; expected offsets, ms, seconds, minutes, "
            f"hours, days or weeks, e.g. {RELATIVE_EXAMPLE}."
        )
    return RelativeLimit(ms=number * _UNITS_MS[unit])


def _symbol(text: str) -> int | None:
    return {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())


def parse_times(option: str, text: str) -> dict[TopicPartition, int]:
    """JSON such as TIMES_EXAMPLE, in ms since the epoch; raises InvalidOptionError."""
    return _by_partition(option, text, TIMES_EXAMPLE, 0, "which is not a time in milliseconds")


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """JSON such as ASSIGN_EXAMPLE, sorted and without repetitions; raises InvalidOptionError."""
    partitions: set[TopicPartition] = set()
    for topic, numbers in _json_object(option, text, ASSIGN_EXAMPLE).items():
        if not isinstance(numbers, list):
            raise _malformed(
                option, f"the partitions of topic {topic!r} are not a list", text, ASSIGN_EXAMPLE
            )
        for number in numbers:
            if not _is_integer(number) or not 0 <= number <= _LARGEST_PARTITION:
                problem = f"topic {topic!r} has {number!r}, which is not a partition number"
                raise _malformed(option, problem, text, ASSIGN_EXAMPLE)
            partitions.add(TopicPartition(topic, number))
    if not partitions:
        raise _malformed(option, "it names no partition", text, ASSIGN_EXAMPLE)
    return tuple(sorted(partitions))


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The checkpoint form. Sorted, because Spark compares offsets as text."""
    document: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        offset = offsets[TopicPartition(topic, partition)]
        document.setdefault(topic, {})[str(partition)] = offset
    return document


def from_json(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The inverse of `to_json`; the document comes from a checkpoint that we or Spark wrote."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in document.items()
        for partition, offset in partitions.items()
    }


def with_start(end: JsonOffsets, start: Offsets) -> JsonOffsets:
    """The end of a query's first batch, with where the query starts. A checkpoint has no place for
    that: it is the name of a topic without partitions, which Spark's own connector reads over, as
    `from_json` does."""
    return {**end, _STARTED_AT + json.dumps(to_json(start), separators=(",", ":")): {}}


def start_in(end: JsonOffsets) -> Offsets | None:
    """What `with_start` has put into the end of a batch; None of any but a first one."""
    for name in end:
        if name.startswith(_STARTED_AT):
            return from_json(json.loads(name.removeprefix(_STARTED_AT)))
    return None


def is_note(topic: str) -> bool:
    """Whether it is no topic, but a note: of `with_start`, `with_identity` or `with_left`."""
    return topic.startswith((_STARTED_AT, OF_LOGS, LEFT_AT))


def check_named(option: str, limit: Limit, partitions: Collection[TopicPartition]) -> None:
    """Raises InvalidOptionError unless `limit` names every one of `partitions`, and no other."""
    if isinstance(limit, RelativeLimit) or limit.by_partition is None:
        return
    option = limit.option if isinstance(limit, TimeLimit) else option
    by_topic = limit.by_topic if isinstance(limit, OffsetLimit) else {}
    missing = [each for each in partitions if not limit.names(each)]
    unknown = set(limit.by_partition) - set(partitions)
    unknown_topics = sorted(by_topic.keys() - {each.topic for each in partitions})
    if missing or unknown or unknown_topics:
        advice = "" if isinstance(limit, TimeLimit) else "; use -1 for latest, -2 for earliest"
        others = ", ".join([*unknown_topics, *([describe(unknown)] if unknown else [])]) or "none"
        raise InvalidOptionError(
            f"Option {option} must name every partition that is read, and no other{advice}. "
            f"Not named: {describe(missing)}. Named but not read: {others}."
        )


def resolve(
    option: str, limit: OffsetLimit, partitions: Collection[TopicPartition], bounds: LogBounds
) -> Offsets:
    """An offset for each of `partitions`: EARLIEST and LATEST looked up in `bounds`.

    Raises InvalidOptionError if the limit names other partitions than `partitions`, as Spark does:
    a forgotten partition would otherwise be read from a place that nobody chose.
    """
    check_named(option, limit, partitions)
    symbols = {EARLIEST: bounds.earliest, LATEST: {**bounds.latest, **limit.ends}}
    return {
        each: symbols[offset][each] if offset in symbols else offset
        for each, offset in limit.of(partitions).items()
    }


def report_data_loss(message: str, fail_on_data_loss: bool) -> None:
    """Raises DataLossError with `message`, or logs it when the user chose to go on."""
    if fail_on_data_loss:
        raise DataLossError(
            f"{message} Records may have been lost: deleted by retention, or the topic was "
            "deleted or recreated. To go on with what is there, set the option failOnDataLoss to "
            "false."
        )
    _log.warning("%s Going on without them, because failOnDataLoss is false.", message)


def describe(partitions: Iterable[TopicPartition]) -> str:
    """`orders-0, orders-1, ...` for messages, cut short when there are many."""
    names = [f"{topic}-{partition}" for topic, partition in sorted(partitions)]
    shown = ", ".join(names[:10]) or "none"
    return f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown


def _by_partition(
    option: str,
    text: str,
    example: str,
    least: int,
    expected: str,
    by_topic: dict[str, int] | None = None,
) -> dict[TopicPartition, int]:
    """A number of at least `least` for each partition that JSON such as `example` names.

    Topics with one of the words earliest and latest go to `by_topic` where that is given.
    """
    by_partition: dict[TopicPartition, int] = {}
    for topic, numbers in _json_object(option, text, example).items():
        symbol = _symbol(numbers) if isinstance(numbers, str) else None
        if by_topic is not None and symbol is not None:
            by_topic[topic] = symbol
            continue
        if not isinstance(numbers, dict):
            raise _malformed(
                option, f"the offsets of topic {topic!r} are not an object", text, example
            )
        for partition, number in numbers.items():
            which = f"partition {partition[:20]!r} of topic {topic!r}"
            # Written in one way only: 0 and 00 would be two entries for one partition.
            if not _PARTITION.fullmatch(partition) or int(partition) > _LARGEST_PARTITION:
                raise _malformed(option, f"{which} is not a partition number", text, example)
            if not _is_integer(number) or not least <= number <= _LARGEST_OFFSET:
                problem = f"{which} has {number!r}, {expected}"
                raise _malformed(option, problem, text, example)
            by_partition[TopicPartition(topic, int(partition))] = number
    if not (by_partition or by_topic):
        raise _malformed(option, "it names no partition", text, example)
    return by_partition


def _json_object(option: str, text: str, example: str) -> dict[str, Any]:
    """Parses `text`, refusing a name that comes twice: JSON would silently keep the last one."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise _malformed(option, f"{twice!r} comes twice", text, example)
        return document

    try:
        document = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno} column {error.colno}"
        problem = f"it is not valid JSON at {at} ({error.msg})"
        raise _malformed(option, problem, text, example) from None
    except RecursionError:
        raise _malformed(option, "it is nested too deep", text, example) from None
    if not isinstance(document, dict):
        raise _malformed(option, "it is not a JSON object", text, example)
    return document


def _malformed(
    option: str, problem: str, text: str, example: str = OFFSETS_EXAMPLE
) -> InvalidOptionError:
    words = "earliest, latest or " if example == OFFSETS_EXAMPLE else ""
    return InvalidOptionError(
        f"Option {option} is malformed: {problem}. Expected {words}e.g. {example}, "
        f"got {_shown(text)}"
    )


def _shown(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "..."


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
