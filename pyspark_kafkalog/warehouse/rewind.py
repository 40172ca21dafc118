"""`pyspark_kafkalog.rewind`: a load name goes back to earlier offsets, and lands from there again.

What it had landed from there on is refused or deleted in the same commit of the target. Brokers
are asked where the place is not given in offsets, and whether the records of rows that are deleted
are still there. Runs on the driver, without Spark; beside loads, too: one of that name
which is at work ends in LoadConflictError.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.admin import topic_property
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import InvalidOptionError, TopicRecreatedError
from pyspark_kafkalog.source.offsets import (
    LATEST,
    Limit,
    OffsetLimit,
    Offsets,
    TimeLimit,
    describe,
    parse_start,
    report_data_loss,
    resolve,
    to_json,
)
from pyspark_kafkalog.source.options import SourceOptions, batch_options, parse_boolean
from pyspark_kafkalog.source.partitions import (
    OffsetRange,
    clamp_starts,
    locate,
    log_bounds,
    topic_ids_of,
)
from pyspark_kafkalog.warehouse.commit import Position, recreated_topics
from pyspark_kafkalog.warehouse.places import Place, with_places
from pyspark_kafkalog.warehouse.targets.rewound import Rewind, known_offsets
from pyspark_kafkalog.warehouse.targets.target import open_target

_WHAT_TO_READ = ("subscribe", "subscribepattern", "assign", "starting", "ending")
_POLICY = "cleanup.policy"
_NAME_THEM = "name them (kafka.bootstrap.servers in options, --bootstrap-servers)"
_NO_OPTIONS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class RewindResult:
    """What `rewind` did: the offsets that the next load lands again, of the partitions that went
    back, and how many rows of them were deleted."""

    name: str
    target: str
    ranges: tuple[OffsetRange, ...]
    deleted_rows: int


def rewind(
    target: str,
    name: str,
    to: Place,
    truncate_after: bool = False,
    options: Mapping[str, str] = _NO_OPTIONS,
) -> RewindResult:
    """Has the load `name` into `target`, both as for `load`, go on at an earlier place.

    `to` is written as `starting` of `load` is: offsets as JSON or a mapping, of partitions that the
    load has a place in (others stay where they are); `earliest`; a time; or counted back from the
    ends. All but offsets are of all of its partitions, of which none goes forward, and ask the
    brokers that `options` name (`kafka.bootstrap.servers`, security). With offsets these are asked,
    if there are any, whether the records are still there.

    Rows that the next load would land a second time are an error, with their number; with
    `truncate_after` they are deleted in the same commit. Parquet targets cannot do that, nor tables
    that are upserted, and these need not. Raises InvalidOptionError, WouldDoubleError, TargetError;
    TopicRecreatedError; DataLossError for records that are gone or, as rows are to be deleted, may
    be, as their topic is compacted. With the option failOnDataLoss false the load then goes back to
    the first that is there, and rows are deleted also where no brokers are named.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidOptionError("say which load to rewind by its name, for example nightly")
    limit = _parse(to)
    opened = open_target(target)
    # The target looks again, at the state that it changes.
    position = opened.position(name)
    known = known_offsets(position, name, str(opened))
    partitions = _partitions(limit, known, name)
    source = _source(options, partitions)
    if source is not None:
        places = _looked_up(source, limit, partitions, position, name)
        if truncate_after:
            _refuse_losses(source, {each: known[each] for each in places if each in known})
    else:
        places = _unasked(limit, partitions, known)
        if truncate_after and _is_strict(options):
            raise InvalidOptionError(
                "truncate_after deletes rows, and whether the records of these are still there, "
                f"brokers have to be asked: {_NAME_THEM}, or set failOnDataLoss to false (--option "
                "failOnDataLoss=false), for rows that may not come again"
            )
    is_exact = isinstance(limit, OffsetLimit) and limit.by_partition is not None
    done = opened.rewind(Rewind(name, places, is_exact, truncate_after))
    return RewindResult(name, str(opened), tuple(done.ranges), done.deleted_rows)


def _parse(to: Place) -> Limit:
    """Raises InvalidOptionError for what is no place, or none to go back to."""
    said = with_places({}, to, None, lambda: None)
    if "startingTimestamp" in said:
        return TimeLimit(
            "startingTimestamp", latest_if_none=True, everywhere_ms=int(said["startingTimestamp"])
        )
    limit = parse_start("startingOffsets", said["startingOffsets"])
    if isinstance(limit, OffsetLimit) and limit.mentions(LATEST):
        raise InvalidOptionError(
            "latest (-1) is no place to go back to: give offsets, a time, or earliest"
        )
    return limit


def _partitions(limit: Limit, known: Offsets, name: str) -> list[TopicPartition]:
    """Those that go back. Raises InvalidOptionError for such as the load has no place in."""
    named = limit.by_partition or {} if isinstance(limit, OffsetLimit) else {}
    topics = limit.by_topic if isinstance(limit, OffsetLimit) else {}
    strange = {f"{topic}-{partition}" for topic, partition in named.keys() - known.keys()}
    strange |= topics.keys() - {each.topic for each in known}
    if strange:
        raise InvalidOptionError(
            f"load {name!r} has no place in {', '.join(sorted(strange))}: it has one in "
            f"{describe(known)}"
        )
    return sorted(each for each in known if limit.names(each))


def _source(
    options: Mapping[str, str], partitions: Sequence[TopicPartition]
) -> SourceOptions | None:
    """Which brokers to ask of these partitions, and how; None where none are named. The options of
    the load will do: what they say to read has no meaning here."""
    given = {
        key: value for key, value in options.items() if not key.lower().startswith(_WHAT_TO_READ)
    }
    if "kafka.bootstrap.servers" not in map(str.lower, given):
        return None
    assigned: dict[str, list[int]] = {}
    for topic, partition in partitions:
        assigned.setdefault(topic, []).append(partition)
    return batch_options({**given, "assign": json.dumps(assigned)})


def _unasked(limit: Limit, partitions: Sequence[TopicPartition], known: Offsets) -> Offsets:
    """The offsets that were given. Raises InvalidOptionError for what brokers alone know."""
    if isinstance(limit, OffsetLimit) and len(limit.named_offsets()) == len(partitions):
        return limit.named_offsets()
    raise InvalidOptionError(
        f"which offsets that is, brokers have to be asked: {_NAME_THEM}, or give offsets, such as "
        f"{json.dumps(to_json(known))} where the load is now"
    )


def _is_strict(options: Mapping[str, str]) -> bool:
    given = {key.lower(): str(value) for key, value in options.items()}
    return parse_boolean(given, "failOnDataLoss", default=True)


def _refuse_losses(source: SourceOptions, now: Offsets) -> None:
    """Reports what of the records before these places would not be landed again, though their log
    begins early enough."""
    with Cluster(source.client, fails_fast=True) as cluster:
        policies = {each.topic: topic_property(cluster, each.topic, _POLICY) for each in now}
        bounds = log_bounds(cluster, list(now))
    for topic, policy in sorted(policies.items()):
        if policy == "delete":
            continue
        is_so = "is compacted" if policy else "may be compacted, which the brokers do not tell"
        report_data_loss(
            f"Topic {topic} {is_so}: records of rows that are to be deleted may be gone, and "
            "would not come again.",
            source.fail_on_data_loss,
        )
    for each, place in sorted(now.items()):
        if place > bounds.latest[each]:
            report_data_loss(
                f"Partition {describe([each])} ends at offset {bounds.latest[each]}, and its rows "
                f"are of records up to {place}, which would not come again.",
                source.fail_on_data_loss,
            )


def _looked_up(
    source: SourceOptions,
    limit: Limit,
    partitions: Sequence[TopicPartition],
    position: Position,
    name: str,
) -> Offsets:
    """Where to go back to; no place where that is beyond where the load is, unless the user gave
    that very offset."""
    known = position.without_deleted()
    with Cluster(source.client, fails_fast=True) as cluster:
        there = source.subscription.partitions(cluster)
        recreated = recreated_topics(known, topic_ids_of(cluster, there))
        if recreated:
            raise TopicRecreatedError(
                f"{', '.join(recreated)}: deleted and created again since the last commit of load "
                f"{name!r}, whose offsets mean other records now: there is no place to go back to. "
                f"To load what is there, start over: pyspark_kafkalog.forget(target, {name!r}) or "
                "kafkalog load --forget"
            )
        located = locate(cluster, limit, there)
        bounds = log_bounds(cluster, there)
    found = resolve("startingOffsets", located, there, bounds)
    given = limit.named_offsets() if isinstance(limit, OffsetLimit) else {}
    return {
        **{each: place for each, place in found.items() if place <= known.offsets.get(each, -1)},
        **clamp_starts(given, bounds, source.fail_on_data_loss),
    }
