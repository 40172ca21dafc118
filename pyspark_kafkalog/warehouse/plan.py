"""What a load is going to do: from the target's last commit up to what the log holds now.

The target says where the name goes on, the brokers where the partitions begin and end: that is a
list of offset ranges, bounded by bytes (portions.py). What is lost or would be left out is an error
here, before anything lands. Also owns LoadPlan, which a dry run gives back.

Runs on the driver, without Spark. Writes nothing.
"""

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import DataLossError, InvalidOptionError, TargetError, counted
from pyspark_kafkalog.source.offsets import (
    LATEST,
    Limit,
    LogBounds,
    OffsetLimit,
    Offsets,
    RelativeLimit,
    describe,
    resolve,
    to_json,
)
from pyspark_kafkalog.source.options import SourceOptions
from pyspark_kafkalog.source.partitions import (
    OffsetRange,
    beyond_open_transactions,
    clamp_starts,
    locate,
    log_bounds,
    topic_ids_of,
)
from pyspark_kafkalog.source.second_look import look_twice
from pyspark_kafkalog.warehouse.caught_up import LogEnds
from pyspark_kafkalog.warehouse.commit import (
    OTHER_NAME,
    Epochs,
    Position,
    TopicIds,
    deleted,
    now_ms,
    recreated_topics,
    without_recreated,
)
from pyspark_kafkalog.warehouse.deleted_topics import partitions_now, places_of_gone
from pyspark_kafkalog.warehouse.options import LoadOptions
from pyspark_kafkalog.warehouse.portions import bytes_of, pieces_of, tasks_of, within_bytes
from pyspark_kafkalog.warehouse.progress import describe_bytes
from pyspark_kafkalog.warehouse.targets.target import Target, open_target
from pyspark_kafkalog.warehouse.truncation import truncated

_MOST_SHOWN = 100
_OTHER_TABLE = "load it into another table"
"""Instead of OTHER_NAME where rows are upserted: two loads of one table would overwrite newer rows
by older ones, so that the second is refused."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class LoadPlan:
    """What a load would do now; nothing of it is done.

    `ranges` are the offsets of each partition, `bytes` about how many bytes of the log these are
    (empty where the brokers did not tell). They would be landed by `tasks` Spark tasks, and
    published in about `commits` commits.
    """

    name: str
    target: str
    ranges: tuple[OffsetRange, ...]
    bytes: Mapping[TopicPartition, int]
    tasks: int
    commits: int

    @property
    def offset_count(self) -> int:
        """Offsets, not records: compaction and transaction markers leave gaps."""
        return sum(piece.offset_count for piece in self.ranges)

    def __repr__(self) -> str:
        if not self.ranges:
            return f"<LoadPlan {self.name!r} to {self.target}: nothing new>"
        partitions = sorted({piece.topic_partition for piece in self.ranges})
        shown = set(partitions[:_MOST_SHOWN])
        lines = [
            f"<LoadPlan {self.name!r} to {self.target}: "
            f"{counted(self.offset_count, 'offset')} of {counted(len(partitions), 'partition')}"
            f"{self._about(sum(self.bytes.values()))}, "
            f"tasks: {self.tasks}, commits: {self.commits}"
        ]
        for piece in self.ranges:
            if piece.topic_partition not in shown:
                continue
            size = ""
            # Beside a range of no offsets there may be another one of the partition.
            if piece.offset_count:
                size = self._about(self.bytes.get(piece.topic_partition, 0))
            lines.append(
                f"  {piece.topic}-{piece.partition}: from {piece.start_offset} until "
                f"{piece.until_offset}, {piece.offset_count:,} offsets{size}"
            )
        if len(partitions) > _MOST_SHOWN:
            lines.append(f"  and {len(partitions) - _MOST_SHOWN} more partitions")
        return "\n".join(lines) + ">"

    def _about(self, size_bytes: int) -> str:
        return f", about {describe_bytes(size_bytes)} of the log" if self.bytes else ""


@dataclass(frozen=True, slots=True)
class Work:
    """What was found out before anything is landed: what to do, and from which state of the target.

    `topic_ids` are those of the topics, where brokers say them, `epochs` those of the partitions'
    leaders, and `ends` is where these ended.
    """

    target: Target
    position: Position
    ranges: tuple[OffsetRange, ...]
    topic_ids: TopicIds
    epochs: Epochs
    ends: LogEnds


def plan_load(wanted: LoadOptions) -> LoadPlan:
    """What `load` would do, without Spark. Changes nothing, neither in the target nor elsewhere.

    Raises what `load` does.
    """
    work = find_work(wanted, read_only=True)
    with Cluster(wanted.source.client, fails_fast=True) as cluster:
        sizes = bytes_of(cluster, work.ranges)
    pieces = pieces_of(work.ranges)
    commits = 1 if work.ranges else 0
    if wanted.chunk_bytes is not None and commits:
        # Each takes an offset of every partition at least.
        most = max(piece.offset_count for piece in work.ranges)
        commits = max(1, min(most, -(-sum(sizes.values()) // wanted.chunk_bytes)))
    tasks = len(tasks_of(pieces))
    return LoadPlan(wanted.name, str(work.target), work.ranges, sizes, tasks, commits)


def has_work(wanted: LoadOptions) -> bool:
    """Whether `load` would commit anything, without Spark. Finishes, as `load` does, what a load
    that was killed has published. Raises what `load` does."""
    return bool(find_work(replace(wanted, max_bytes=None)).ranges)


def find_work(wanted: LoadOptions, read_only: bool = False) -> Work:
    """Asks the target where the load goes on and the brokers what there is, and plans the rest.

    Unless `read_only`, finishes what a killed loader had published. Raises what `load` does.
    """
    target = open_target(wanted.target)
    position = target.position(wanted.name, read_only)
    _refuse_others(target, position, wanted)
    with Cluster(wanted.source.client, fails_fast=True) as cluster:

        def find(fails: bool) -> Work:
            source = replace(wanted.source, fail_on_data_loss=fails)
            return _find(cluster, replace(wanted, source=source), target, position)

        topics = {each.topic for each in position.offsets}
        return look_twice(cluster, find, wanted.source.fail_on_data_loss, topics)


def _find(cluster: Cluster, wanted: LoadOptions, target: Target, position: Position) -> Work:
    name, source = wanted.name, wanted.source
    asked_ms = now_ms()
    partitions, gone = partitions_now(cluster, source, position.without_deleted())
    topic_ids = topic_ids_of(cluster, partitions)
    read = {each.topic for each in partitions}
    other_load = OTHER_NAME if wanted.upsert is None else _OTHER_TABLE
    position.check_back(read - topic_ids.keys(), name, f"brokers say none; {other_load}")
    known = position.without_deleted(topic_ids)
    meant = without_recreated(
        known, topic_ids, name, source.fail_on_data_loss, other_load=other_load
    )
    if wanted.has_start and meant:
        check_passed(cluster, source, partitions, meant, name, other_load)
    recreated = recreated_topics(known, topic_ids)
    back = {t for t, one in known.topic_ids.items() if position.topic_ids[t] != one}
    last = Position(meant, topic_ids, known.epochs, known.marks)
    ranges, bounds = plan_ranges(
        cluster, source, partitions, last, name, recreated, back, other_load
    )
    ends = LogEnds(asked_ms, bounds.latest)
    if wanted.upsert is not None:
        ranges = sorted([*ranges, *_quiet(known, ranges, ends)])
    if wanted.max_bytes is not None:
        ranges = within_bytes(cluster, ranges, wanted.max_bytes)
    without = places_of_gone(gone, known, read, name, source.fail_on_data_loss, other_load)
    ranges = sorted([*ranges, *without])
    planned = {piece.topic for piece in ranges}
    ids = {topic: one for topic, one in topic_ids.items() if topic in planned}
    marked = {piece.topic for piece in without} - read
    ids |= {topic: deleted(known.topic_ids[topic]) for topic in marked}
    return Work(target, position, tuple(ranges), ids, bounds.epochs, ends)


def _quiet(
    position: Position, ranges: Sequence[OffsetRange], ends: LogEnds
) -> Iterator[OffsetRange]:
    """Ranges of no offsets, of partitions that have nothing new, where a commit has to say that
    this is so: a load of a quiet topic would else be taken for one that lags."""
    moved = {piece.topic_partition for piece in ranges}
    for each, known in position.caught_up.items():
        place = position.offsets.get(each)
        is_quiet = each not in moved and place is not None and ends.ends.get(each) == place
        if is_quiet and known.is_stale(ends.at_ms):
            yield OffsetRange.of(each, place or 0, place or 0)


def _refuse_others(target: Target, position: Position, wanted: LoadOptions) -> None:
    """Raises InvalidOptionError where the table of a topic's own has rows of another one."""
    if wanted.own_topic is None:
        return
    known = {wanted.name: position}
    if not position.offsets:
        # The first load of this name: others may have come here under names of their own.
        for name in target.names():
            with suppress(TargetError):
                known[name] = target.position(name, read_only=True)
    for name, at in known.items():
        others = {each.topic for each in at.without_deleted().offsets} - {wanted.own_topic}
        if others:
            raise InvalidOptionError(
                f"topic {wanted.own_topic} would land in {target}, where load {name!r} has topic "
                f"{min(others)} already: load it by itself, into a target of another name"
            )


def plan_ranges(
    cluster: Cluster,
    options: SourceOptions,
    partitions: list[TopicPartition],
    position: Position,
    name: str,
    recreated: Collection[str] = (),
    back: Collection[str] = (),
    other_load: str = OTHER_NAME,
) -> tuple[list[OffsetRange], LogBounds]:
    """What a load that goes on at `position` has to do: one range for each of the `partitions` that
    it is to read and that are new to it or have something new, sorted; and what brokers said of
    their logs.

    A topic that is new begins at startingOffsets, a partition that is new in a topic which the last
    commit knows at 0, or at the offset that startingOffsets gives for it. A range of no offsets
    records the place of an empty partition, or one that lost data moved (failOnDataLoss=false), or
    that its topic is a `recreated` one, or `back` after a load that was told to go on without it:
    otherwise the next load would not know what came, and went, in between, and would refuse once
    more what was given up. One goes before the range of a partition without a place that does not
    begin where it should: what lies between is given up.
    """
    last = position.offsets
    ending = locate(cluster, options.ending, partitions)
    loaded = {each.topic for each in last}
    first = [each for each in partitions if each.topic not in loaded]
    starting = options.starting if not last else _only(options.starting, first)
    first = [each for each in first if not last or starting.names(each)]
    begins = locate(cluster, starting, first)
    bounds = log_bounds(cluster, partitions)
    untils = resolve("endingOffsets", ending, partitions, bounds)
    chosen = resolve("startingOffsets", begins, first, bounds)
    added = [each for each in partitions if each.topic in loaded and each not in last]
    told = _named_offsets(options.starting, added)
    wanted = {each: last.get(each, chosen.get(each, bounds.earliest[each])) for each in partitions}
    cut = truncated(cluster, position, bounds, name, options.fail_on_data_loss)
    wanted |= dict.fromkeys(added, 0) | told | cut
    new = [each for each in added if each not in told]
    _check_added(new, bounds, options.fail_on_data_loss, name)
    bounds = beyond_open_transactions(cluster, wanted, bounds)
    try:
        starts = clamp_starts(wanted, bounds, options.fail_on_data_loss)
    except DataLossError as error:
        raise DataLossError(
            f"{error} This is where the last commit of load {name!r} ended. For a topic that was "
            f"recreated, {other_load}: that begins at startingOffsets."
            if last
            else str(error)
        ) from error
    given_up = [
        OffsetRange.of(each, wanted[each], wanted[each])
        for each in partitions
        if each not in last and each.topic not in recreated and starts[each] > wanted[each]
    ]
    ranges = (
        OffsetRange.of(
            each,
            starts[each],
            max(starts[each], min(untils[each], bounds.latest[each])),
        )
        for each in partitions
    )
    wholes = [
        whole
        for whole in ranges
        if whole.offset_count
        or starts[whole.topic_partition] != wanted[whole.topic_partition]
        or whole.topic_partition not in last
        or whole.topic in recreated
        or whole.topic in back
        or whole.topic_partition in cut
    ]
    return sorted([*given_up, *wholes]), bounds


def _named_offsets(starting: Limit, partitions: Sequence[TopicPartition]) -> Offsets:
    """The offsets that the user gives for some of these very partitions."""
    if not isinstance(starting, OffsetLimit):
        return {}
    return {each: n for each, n in starting.named_offsets().items() if each in partitions}


def _check_added(
    added: Sequence[TopicPartition], bounds: LogBounds, fail_on_data_loss: bool, name: str
) -> None:
    late = {each: bounds.earliest[each] for each in added if bounds.earliest[each] > 0}
    if late and fail_on_data_loss:
        first = min(late)
        raise DataLossError(
            f"Load {name!r} has commits of the topic and sees these partitions for the first time, "
            f"which do not begin at offset 0: {describe(late)}, {describe([first])} at "
            f"{late[first]}. Retention may have taken records before they were loaded. If nothing "
            "was lost (the name was made by an earlier release, which kept no place of an empty "
            "partition, or other partitions were assigned), name them in the option "
            f"startingOffsets: '{json.dumps(to_json(late))}', with the other partitions of the "
            "load, whose offsets have no effect. To load what is there, and record the rest as "
            "given up, set the option failOnDataLoss to false."
        )


def check_passed(
    cluster: Cluster,
    options: SourceOptions,
    partitions: Sequence[TopicPartition],
    last: Offsets,
    name: str,
    other_load: str = OTHER_NAME,
) -> None:
    """Raises InvalidOptionError if a load of `name`, which has commits, is told to start beyond
    them: it would leave records out. Otherwise the start has no effect, as it says each time that
    a schedule comes round."""
    partitions = [each for each in partitions if each in last]
    if not partitions:
        return
    starting = _only(options.starting, partitions)
    if not isinstance(starting, RelativeLimit):
        partitions = [each for each in partitions if starting.names(each)]
        begins = locate(cluster, starting, partitions).of(partitions)
        beyond = [
            each for each in partitions if begins[each] != LATEST and begins[each] > last[each]
        ]
        if beyond:
            raise InvalidOptionError(
                f"Load {name!r} has commits and goes on at offset {last[beyond[0]]} of "
                f"{describe(beyond[:1])}, and is told to start at offset {begins[beyond[0]]}: the "
                f"records between would be left out. Leave the start out, or {other_load}."
            )
    _log.info(
        "Load %r has commits: it goes on where the last one ended. Where to start counts for "
        "the first load of a topic only.",
        name,
    )


def _only(limit: Limit, partitions: Sequence[TopicPartition]) -> Limit:
    """`limit` without what it says of other partitions than `partitions`."""
    if isinstance(limit, RelativeLimit) or limit.by_partition is None:
        return limit
    named = {each: limit.by_partition[each] for each in partitions if each in limit.by_partition}
    if not isinstance(limit, OffsetLimit):
        return replace(limit, by_partition=named)
    topics = {each.topic for each in partitions}
    by_topic = {topic: symbol for topic, symbol in limit.by_topic.items() if topic in topics}
    return replace(limit, by_partition=named, by_topic=by_topic)
