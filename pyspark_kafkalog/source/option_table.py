"""The options of `format("kafkalog")`: what each is called, what it defaults to, what it does.

The one list of them: `options.py` knows an option by it, and the documentation's tables are made of
it. Texts are Markdown. Names and defaults are Spark's connector's, but where an option is not.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """`default` is what the user would write, or says in words what happens; empty means none."""

    name: str
    default: str
    meaning: str
    is_sparks: bool = True


def names(*tables: Iterable[Option]) -> tuple[str, ...]:
    return tuple(option.name for table in tables for option in table)


def _ours(name: str, default: str, meaning: str) -> Option:
    return Option(name, default, meaning, is_sparks=False)


SUBSCRIPTION_OPTIONS = (
    Option("subscribe", "", "Topics by name: `a,b`. Exactly one of the first three must be set."),
    Option("subscribePattern", "", "Topics in whose name a regular expression is found: `^web-`."),
    Option("assign", "", 'Partitions, as JSON: `{"a": [0, 1]}`.'),
)

READ_OPTIONS = (
    *SUBSCRIPTION_OPTIONS,
    Option(
        "startingOffsets",
        "`earliest` of a batch, `latest` of a stream",
        "Where to begin: `earliest`, `latest` (streams), offsets as JSON "
        '(`{"a": {"0": 23}, "b": "earliest"}`), or beyond Spark\'s counted back: `-1000`, '
        "`-10 minutes`. Of a stream it counts without a checkpoint alone.",
    ),
    Option(
        "startingTimestamp",
        "",
        "A time in ms for all partitions to begin at; goes before the next two and "
        "`startingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "",
        "Times of partitions to begin at, as JSON; goes before `startingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "`error`",
        "Of a partition that has no record as late as that time: `error`, or `latest`: begin at "
        "its end.",
    ),
    Option("endingOffsets", "`latest`", "Where a batch ends: `latest`, or offsets as JSON."),
    Option(
        "endingTimestamp",
        "",
        "A time in ms for all partitions of a batch to end at; goes before the next and "
        "`endingOffsets`.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        "",
        "Times of partitions to end at, as JSON; goes before `endingOffsets`.",
    ),
    Option(
        "failOnDataLoss",
        "`true`",
        "Offsets that were gone before they were read are a `DataLossError`; with `false` a "
        "warning.",
    ),
    Option("includeHeaders", "`false`", "`true` adds the column `headers`."),
    Option("minPartitions", "", "Split topic partitions into at least so many Spark tasks."),
    Option("maxRecordsPerPartition", "", "The most offsets of one Spark task."),
    _ours("maxPartitionsPerTask", "`1`", "Let so many small partitions share one Spark task."),
    _ours(
        "mode",
        "`FAILFAST`",
        "Of a record whose timestamp is earlier or later than any time, or that has a header "
        "without a key: `FAILFAST` fails a read of that column; `PERMISSIVE` makes the field null.",
    ),
    Option("kafkaConsumer.pollTimeoutMs", "`120000`", "How long a partition may make no progress."),
)

STREAM_OPTIONS = (
    Option("maxOffsetsPerTrigger", "", "The most of a micro-batch, in offsets."),
    _ours(
        "maxBytesPerTrigger",
        "",
        "The most of a micro-batch in bytes of the log, compressed where they are: `64m`. An "
        "estimate.",
    ),
    Option("minOffsetsPerTrigger", "", "A micro-batch waits for so many offsets."),
    Option("maxTriggerDelay", "`15m`", "It waits no longer than so."),
    Option(
        "fetchOffset.numRetries",
        "`25`; `3` where the next is set",
        "How often a stream asks for offsets that lack what it has seen before.",
    ),
    Option(
        "fetchOffset.retryIntervalMs",
        "`200`; `1000` where the one before is set",
        "How far apart.",
    ),
    _ours("commitOffsetsToGroup", "", "A consumer group that is told where the stream is."),
)

WRITE_OPTIONS = (
    Option("topic", "", "Where all rows go; without it the column `topic` says so."),
    _ours(
        "transactionalIdPrefix",
        "",
        "Write exactly once, by transactions whose ids begin so. A prefix for each query.",
    ),
)

ENGINE_OPTIONS = (
    Option(
        "checkpointLocation",
        "",
        "Spark's own. With `transactionalIdPrefix` set it as an option of the write: a micro-batch "
        "that runs again is known by what is in it.",
    ),
    Option("queryName", "", "Spark's own."),
)
"""Spark hands its own options of a write to the sink as well."""

OPTIONS_WITHOUT_EFFECT = (
    Option("groupIdPrefix", "", "Is taken and has no effect: no consumer group reads."),
    Option("kafka.group.id", "", "Is taken and has no effect: no consumer group reads."),
)
