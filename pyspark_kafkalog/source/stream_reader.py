"""Streaming reads: offsets in the form of Spark's own Kafka checkpoints, records as in batch reads.

One KafkalogStreamReader lives in a driver process of its own as long as the query, where it answers
what to read next over a connection that it keeps; a second one, made from the same options, travels
pickled to the tasks and only ever gets `read()` called. So what `read()` needs is in the
InputPartition. The offsets of a query live in its checkpoint; with `commitOffsetsToGroup` a
consumer group is told of them as well, for tools that show lag.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from kafka.structs import TopicPartition
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.sizes import sample_sizes
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    DataLossError,
    InvalidOptionError,
    TopicRecreatedError,
    UnknownTopicError,
)
from pyspark_kafkalog.source.group_progress import GroupProgress
from pyspark_kafkalog.source.log_identity import (
    CutLogs,
    LogIdentity,
    identity_in,
    is_back,
    left_in,
    left_with,
    with_identity,
    with_left,
)
from pyspark_kafkalog.source.offsets import (
    EARLIEST,
    LATEST,
    JsonOffsets,
    Limit,
    LogBounds,
    OffsetLimit,
    Offsets,
    RelativeLimit,
    TimeLimit,
    check_named,
    describe,
    from_json,
    report_data_loss,
    resolve,
    start_in,
    to_json,
    with_start,
)
from pyspark_kafkalog.source.options import SourceOptions
from pyspark_kafkalog.source.partitions import (
    AssignPartitions,
    OffsetRange,
    beyond_open_transactions,
    clamp_starts,
    locate,
    log_bounds,
    log_ends,
    offsets_at,
    ranges_between,
    read_tasks,
    topic_ids_of,
)
from pyspark_kafkalog.source.plain_errors import PlainErrors
from pyspark_kafkalog.source.reading import read_task
from pyspark_kafkalog.source.second_look import look_twice
from pyspark_kafkalog.source.splitting import plan_tasks
from pyspark_kafkalog.source.trigger_limits import (
    OffsetSizes,
    TriggerDelay,
    limit_untils,
    limit_untils_by_bytes,
)

Epochs: TypeAlias = Mapping[TopicPartition, int]

_NO_LIMIT = 2**63 - 1


class KafkalogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver and reads them in the tasks.

    Partitions that appear while a query runs are read from their beginning. `failOnDataLoss`
    decides what happens when offsets or partitions of the query are gone.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._cluster: Cluster | None = None
        self._initial: Offsets | None = None
        self._starts_at_latest = False
        self._starts_by_log: set[TopicPartition] = set()
        """The partitions that start where their log says, of which retention has taken some."""
        self._initial_epochs: Epochs = {}
        self._has_planned = False
        self._incomplete: InvalidOptionError | None = None
        self._topic_ids: dict[str, UUID] = {}
        self._recreated: dict[str, UUID] = {}
        """Topics that are others by now, with their ids of now."""
        self._read_anew: set[TopicPartition] = set()
        self._cut_logs = CutLogs()
        self._goes_on_at: Offsets = {}
        """Where the partitions go on whose logs were cut off, or that are back, before what the
        checkpoint says."""
        self._given_up: Offsets = {}
        """Where the batch that was planned last began in the partitions that it gave up."""
        self._available_now: LogBounds | None = None
        limits = options.trigger_limits
        self._delay = TriggerDelay(limits.min_offsets or 0, limits.max_delay_ms)
        self._sizes = OffsetSizes()
        group = options.commit_group
        self._group_progress = None if group is None else GroupProgress(group)
        self._latest: Offsets | None = None

    @PlainErrors()
    def initialOffset(self) -> JsonOffsets:
        """Where a new query starts. Spark asks more than once and must hear the same each time."""
        if self._initial is None:
            partitions = self._assigned()
            try:
                check_named("startingOffsets", self._options.starting, partitions)
            except InvalidOptionError as error:
                # It may be a first batch that is replayed, and partitions were added since then.
                self._incomplete = error
                partitions = [each for each in partitions if self._options.starting.names(each)]
            starting = locate(self._connected(), self._options.starting, partitions)
            is_relative = isinstance(self._options.starting, RelativeLimit)
            self._starts_at_latest = is_relative or starting.mentions(LATEST)
            look = partial(self._first_starts, partitions, starting)
            self._initial, bounds = look_twice(
                self._connected(), look, self._options.fail_on_data_loss
            )
            self._initial_epochs = bounds.epochs
            self._starts_by_log = {
                each
                for each in partitions
                if bounds.earliest[each] > 0 and _is_found(self._options.starting, each)
            }
        return to_json(self._initial)

    def _first_starts(
        self, partitions: list[TopicPartition], starting: OffsetLimit, fail_on_data_loss: bool
    ) -> tuple[Offsets, LogBounds]:
        bounds = log_bounds(self._connected(), partitions)
        starts = resolve("startingOffsets", starting, partitions, bounds)
        bounds = beyond_open_transactions(self._connected(), starts, bounds)
        return clamp_starts(starts, bounds, fail_on_data_loss), bounds

    @PlainErrors()
    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = self._latest_ends({}, {})

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark hands back to `latestOffset` unless its trigger is Once: that has no limits.

        Spark for Python has no limit that is both a least and a most, nor one with a delay, so
        that this only says whether there is any; `latestOffset` looks at the options.
        """
        limits = self._options.trigger_limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadMaxRows(_NO_LIMIT)

    @PlainErrors()
    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:
        """Up to where the next micro-batch may read.

        The end of a query's first batch says where the query starts, too. Killed in that batch it
        asks again, and a later "latest" would skip what arrived in between, a later "earliest", or
        record of a time, what retention took, another option all of the batch. Spark's own
        connector, which may run the batch instead, reads over that; so the batch is left empty
        where it starts at `latest`, or somewhere in a log that does not begin at 0, in any
        partition. Trigger.Once has no second batch, and begins with what is there.
        """
        begins = known = from_json(start)
        if self._incomplete is not None and known == self._initial:
            raise self._incomplete
        is_first, self._has_planned = not self._has_planned, True
        is_once = isinstance(limit, ReadAllAvailable)
        is_new = is_first and known == self._initial and start_in(start) is None
        if is_new and self._start_may_move(is_once):
            found = with_identity(start, self._identity_of(known, self._initial_epochs))
            return with_start(found, known)
        planned, left = self._believe(identity_in(start)), left_in(start)
        again = {each: at for each, at in self._given_up.items() if each in known}
        known = known | again
        known = {each: offset for each, offset in known.items() if each not in self._read_anew}
        bounds = self._bounds_beyond(known, planned.epochs)
        left = self._as_now(left)
        if back := {each: at for each, at in left.begins.items() if each in bounds.latest}:
            known, planned = known | back, planned | LogIdentity(epochs=left.of(back).epochs)
            bounds = self._bounds_beyond(known, planned.epochs)
        if self._recreated:
            known = self._without_recreated(known)
        known = self._without_cut(known, planned.epochs, bounds.epochs)
        moved = {each: known[each] for each in (*back, *again) if each in known}
        self._goes_on_at = moved | self._goes_on_at
        self._latest = latest = bounds.latest
        if self._group_progress is not None and not is_new:
            # Spark asks on when the batch that ends at `start` is complete: also after the last one
            # of AvailableNow, of which commit() is never told.
            logs = self._identity_of(known, planned.epochs)
            self._group_progress.completed(self._connected(), known, logs)
        if self._options.fail_on_data_loss:
            # Here and not when the batch is planned: then its end would be in the checkpoint, and
            # the query would fail for ever, even if what is missing comes back.
            self._refuse_lost(known, latest)
        end: Offsets | None = latest
        if self._options.trigger_limits and not is_once:
            end = self._within_limits(known, latest)
        found = start
        if end is not None:
            gone = {each: at for each, at in known.items() if each not in latest}
            left = left_with(left, self._identity_of(gone, planned.epochs, gone))
            found = self._end_of_batch(start, end, bounds.epochs, left)
        return with_start(found, begins) if is_new else found

    def reportLatestOffset(self) -> JsonOffsets | None:
        """Where the topics ended when the last micro-batch was planned: `latestOffset` of progress
        events, from which lag can be told."""
        return None if self._latest is None else to_json(self._latest)

    @PlainErrors()
    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        """What lies between `start` and `end`: of each partition in one piece, or more if asked.

        Spark asks once for each place that the source has in the query's plan, so that all is in
        the two: a union of two filters of one DataFrame asks twice.
        """
        starts, ends = from_json(start), from_json(end)
        before, planned = identity_in(start), self._believe(identity_in(end))
        self._read_anew, self._goes_on_at = set(), {}
        if self._initial is not None and not self._has_planned:
            # Asked for a batch before planning one, with an initial offset: a query was stopped in
            # its first batch and replays it. Its end is in the checkpoint; its start was asked for
            # again.
            self._incomplete = None
            started = start_in(end)
            starts = self._starts_of_sparks(starts, ends) if started is None else started
        else:
            self._check_gone(starts.keys() - ends.keys())
        starts |= planned.begins
        if not self._has_planned:
            # They may be another source's, whose rows go another way through the query.
            self._check_gone(ends.keys() - self._covered(ends))
        if not self._options.fail_on_data_loss:
            gone = self._gone(starts, ends)
            self._given_up = {each: starts.get(each, 0) for each in gone}
            ends = {each: until for each, until in ends.items() if each not in gone}
        if not self._has_planned:
            starts, ends = self._as_logs_are(starts, ends, before.epochs, planned.epochs)
        tasks = plan_tasks(self._ranges(starts, ends), self._options.splitting)
        # Where a log is cut off meanwhile, who may lose data reads as far as that: the next batch
        # goes on from there.
        found = read_tasks(tasks, self._topic_ids, planned.epochs)
        return [InputPartition(task) for task in found]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with PlainErrors():
            yield from read_task(self._options, self._columns, partition.value)

    def commit(self, end: JsonOffsets) -> None:
        """Nothing to do: Spark's checkpoint holds the offsets, and `latestOffset` hears of them."""

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def __getstate__(self) -> dict[str, Any]:
        # The connection stays behind: the copy that travels opens its own.
        return {**self.__dict__, "_cluster": None}

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.client)
        return self._cluster

    def _assigned(self, missing_ok: bool = False) -> list[TopicPartition]:
        partitions = self._options.subscription.partitions(
            self._connected(), missing_ok or not self._options.fail_on_data_loss
        )
        for topic in {each.topic for each in partitions}:
            topic_id = self._connected().topic_id(topic)
            if topic_id is not None and self._topic_ids.setdefault(topic, topic_id) != topic_id:
                self._recreated[topic] = topic_id
        return partitions

    def _without_recreated(self, known: Offsets) -> Offsets:
        """`known` without the topics that are others now, or TopicRecreatedError.

        They are read from their beginning where that may be.
        """
        topics = sorted(self._recreated)
        what = f"{', '.join(topics)}: deleted and created again since the query read them last."
        if self._options.fail_on_data_loss:
            raise TopicRecreatedError(
                f"{what} The offsets of the checkpoint mean other records now. To read what is "
                "there from the beginning, start the query with a new checkpoint, or set the "
                "option failOnDataLoss to false."
            )
        report_data_loss(what, fail_on_data_loss=False)
        self._topic_ids |= self._recreated
        self._recreated = {}
        self._read_anew |= {each for each in known if each.topic in topics}
        # It was found in a call that Spark had to wait after, for enough records.
        self._goes_on_at = {
            each: at for each, at in self._goes_on_at.items() if each.topic not in topics
        }
        return {each: offset for each, offset in known.items() if each.topic not in topics}

    def _believe(self, planned: LogIdentity) -> LogIdentity:
        """`planned`, whose topics are those that a query reads, whatever this process has heard of
        before it saw the checkpoint."""
        anew = {each.topic for each in self._read_anew}
        for topic, topic_id in planned.topic_ids.items():
            now = self._topic_ids.get(topic, topic_id)
            if now != topic_id and topic not in anew:
                self._recreated.setdefault(topic, now)
            if topic not in anew:
                self._topic_ids[topic] = topic_id
        return planned

    def _as_now(self, left: LogIdentity) -> LogIdentity:
        """What the query has `left`, without the topics that are known to be others by now."""
        now = {**self._topic_ids, **self._recreated}
        others = left.others(LogIdentity(now))
        return left.of({each: at for each, at in left.begins.items() if each.topic not in others})

    def _end_of_batch(
        self, start: JsonOffsets, end: Offsets, epochs: Epochs, left: LogIdentity
    ) -> JsonOffsets:
        """`end`, as it is to be in the checkpoint, with what the query has `left` by then; `start`
        where nothing is new: Spark compares offsets as text. Other logs than those of `start` may
        end where these did."""
        if end == from_json(start) and not (self._read_anew or self._goes_on_at):
            return start
        begins = dict.fromkeys(self._read_anew, 0) | self._goes_on_at
        logs = self._identity_of(end, epochs, begins)
        still = {each: at for each, at in left.begins.items() if each not in end}
        return with_left(with_identity(to_json(end), logs), left.of(still))

    def _identity_of(
        self, offsets: Offsets, epochs: Epochs, begins: Offsets | None = None
    ) -> LogIdentity:
        return LogIdentity(self._topic_ids, epochs, begins or {}).of(offsets)

    def _without_cut(self, known: Offsets, then: Epochs, now: Epochs) -> Offsets:
        """`known`, of logs that were cut off since the epochs `then` as far as that, or
        DataLossError."""
        fail = self._options.fail_on_data_loss
        known = known | {each: at for each, at in self._goes_on_at.items() if each in known}
        for each, epoch in sorted(is_back(then, now).items()):
            if known.get(each) and each not in self._goes_on_at:
                report_data_loss(
                    f"Partition {describe([each])} has a leader of epoch {epoch}, earlier than the "
                    f"epoch {then[each]} in which the query came to offset {known[each]}: its "
                    "broker was restored from an earlier state (or the topic was created again), "
                    "and others may be at the offsets of records that it lost.",
                    fail,
                )
                self._goes_on_at[each] = known[each]
        cut = self._cut_logs.find(self._connected(), known, then, now)
        for each, offset in sorted(cut.items()):
            report_data_loss(
                f"Partition {describe([each])} lost records before offset {known[each]}, which the "
                f"query has read: its log was cut off at offset {offset} (an election of a replica "
                "that was not in sync, a power loss, a broker that was restored), and others are "
                "written from there on.",
                fail,
            )
        self._goes_on_at |= cut
        return known | cut

    def _as_logs_are(
        self, starts: Offsets, ends: Offsets, before: Epochs, planned: Epochs
    ) -> tuple[Offsets, Offsets]:
        """Where a micro-batch begins and ends that another process planned in the epochs `planned`,
        as far as its logs still hold it. The next one goes on where they were cut off."""
        found = self._assigned(missing_ok=True)
        there = {each for each in found if each.topic not in self._recreated}
        known = {each: start for each, start in starts.items() if each in there}
        starts = starts | self._without_cut(known, before, planned)
        self._goes_on_at = {}
        unread = {each: end for each, end in ends.items() if starts.get(each) != end}
        asked = {each: end for each, end in unread.items() if each in there}
        cut = self._cut_logs.find(self._connected(), asked, planned)
        for each, offset in sorted(cut.items()):
            report_data_loss(
                f"Partition {describe([each])} was cut off at offset {offset}, and a micro-batch "
                f"that ends at offset {ends[each]} is to be run again: others are written there "
                "now.",
                self._options.fail_on_data_loss,
            )
        return starts, ends | {each: max(at, starts.get(each, 0)) for each, at in cut.items()}

    def _looks(self, topics: Set[str]) -> Iterator[int]:
        """How many more times to look, before each of them, while something is missing of
        `topics`: from the second time on all brokers are asked who leads."""
        retries = self._options.offset_retries
        for left in reversed(range(max(retries.attempts, 2))):
            yield left
            if left:
                time.sleep(retries.interval_ms / 1000)
                self._connected().ask_all(topics)

    def _gone(self, starts: Offsets, ends: Offsets) -> set[TopicPartition]:
        """The partitions in which there is something to read, and which do not exist.

        Those that the query does not subscribe to any more are no such: what was planned of them
        may be in the sink, so that they would be read again later, or not, and then never. Where
        it subscribes to none, they may be another source's: raises DataLossError.
        """
        unread = {each for each, until in ends.items() if starts.get(each) != until}
        there = self._there(unread)
        if not self._covered(ends):
            self._refuse_all_left_out(unread & there)
        gone = unread - there
        self._check_gone(gone)
        return gone

    def _refuse_all_left_out(self, there: Set[TopicPartition]) -> None:
        """Raises DataLossError unless all of a micro-batch that is still `there` is of topics that
        were created again."""
        now = LogIdentity(topic_ids_of(self._connected(), there))
        others = LogIdentity(self._topic_ids).others(now)
        if still := {each for each in there if each.topic not in others}:
            raise DataLossError(
                "The query was stopped in a micro-batch, which is to run again, of "
                f"{describe(still)}, and subscribes to none of its partitions any more. Subscribe "
                "to these as well until it is complete; where sources have changed places, change "
                "them back."
            )

    def _covered(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those that the query subscribes to."""
        return {each for each in partitions if self._options.subscription.covers(each)}

    def _there(self, wanted: Set[TopicPartition]) -> set[TopicPartition]:
        """The partitions that exist of those that are `wanted` or subscribed to, asked for again
        while some are missing that are wanted."""
        left_out = AssignPartitions(tuple(wanted - self._covered(wanted)))
        found: set[TopicPartition] = set()
        for _ in self._looks({each.topic for each in wanted}):
            found = set(self._assigned(missing_ok=True))
            found.update(left_out.partitions(self._connected(), missing_ok=True))
            if wanted <= found:
                break
        return found

    def _latest_ends(self, known: Offsets, then: Epochs) -> LogBounds:
        """The end of each partition, asked for again while it lacks what `known` holds.

        A leader that was replaced may answer with less than there is, a broker that has just
        started without its topics, and all may be out of reach for longer than a request may take.
        A partition that was left out in one batch would be new in the next one, and read again
        from its beginning.
        """
        for left in self._looks({each.topic for each in known}):
            try:
                bounds = log_ends(self._connected(), self._assigned())
                bounds = beyond_open_transactions(self._connected(), known, bounds)
                if self._recreated or not self._is_behind(bounds, known, then):
                    break
            except (UnknownTopicError, BrokersUnreachableError):
                if not (known and left):
                    raise
        return bounds

    def _bounds_beyond(self, known: Offsets, then: Epochs) -> LogBounds:
        """What is available now, or is there where the query may go on, or where that lacks what
        `known` holds: an initial "latest" may have been asked for after the end was fixed."""
        bounds = self._available_now
        if bounds is not None and not self._options.fail_on_data_loss:
            # What is out of sight by now is left where the query is, and not read as far as its
            # end was, without a record.
            there = self._there(bounds.latest.keys())
            latest = {each: at for each, at in bounds.latest.items() if each in there}
            known = {each: at for each, at in known.items() if each in there}
            bounds = None if self._recreated else replace(bounds, latest=latest)
        if bounds is None or self._is_behind(bounds, known, then):
            bounds = self._latest_ends(known, then)
        if self._available_now is not None:
            self._available_now = bounds
        return bounds

    def _is_behind(self, bounds: LogBounds, known: Offsets, then: Epochs) -> bool:
        """Whether a log lacks what `known` holds, or is led in an earlier epoch than `then`."""
        back = is_back(then, bounds.epochs).keys() - self._goes_on_at.keys()
        return bool(_lost(known, bounds.latest) or back & known.keys())

    def _within_limits(self, known: Offsets, latest: Offsets) -> Offsets | None:
        """`latest`, or as much of it as one micro-batch may take; None where it is to wait.

        What is available now is no more than that however long it waits, and a query that must
        end with it cannot wait for more.
        """
        new = sorted(latest.keys() - known.keys())
        starts = known | offsets_at(self._connected(), new, EARLIEST)
        # What a batch gave up is to be noted at once: no other process knows of it.
        may_wait = self._available_now is None and not self._given_up
        if may_wait and self._delay.waits(starts, latest):
            return None
        limits = self._options.trigger_limits
        if limits.max_bytes is not None:
            latest = self._within_bytes(limits.max_bytes, starts, latest)
        if limits.max_offsets is not None:
            latest = limit_untils(limits.max_offsets, starts, latest)
        return latest

    def _within_bytes(self, max_bytes: int, starts: Offsets, latest: Offsets) -> Offsets:
        backlog = [each for each, until in latest.items() if until > starts[each]]
        if not backlog:
            return latest
        asked = {each: starts[each] for each in self._sizes.oldest_first(backlog)}
        self._sizes.update(sample_sizes(self._connected(), asked))
        return limit_untils_by_bytes(max_bytes, starts, latest, self._sizes.of(backlog))

    def _ranges(self, starts: Offsets, ends: Offsets) -> list[OffsetRange]:
        wanted = [each for each, until in ends.items() if starts.get(each) != until]
        earliest = self._earliest_offsets(wanted)
        resolved = {each: self._start_of(each, starts, ends[each], earliest) for each in earliest}
        bounds = LogBounds(earliest=earliest, latest=ends)
        clamped = clamp_starts(resolved, bounds, self._options.fail_on_data_loss)
        return ranges_between(clamped, {each: ends[each] for each in clamped})

    def _start_may_move(self, is_once: bool) -> bool:
        """Whether the first batch is to record where the query starts, and no more."""
        if self._starts_at_latest:
            self._delay.begin()
        return self._starts_at_latest or (bool(self._starts_by_log) and not is_once)

    def _starts_of_sparks(self, starts: Offsets, ends: Offsets) -> Offsets:
        """Where a first batch began that Spark's own connector planned, which ends at `ends`, and
        would start at `starts`."""
        # Where a "latest" was is not known any more. What it means now lies beyond the batch's end,
        # and the batch was empty, or nearly so.
        starts = {each: min(start, ends.get(each, start)) for each, start in starts.items()}
        # Nobody knows whether a log began at 0 then.
        return starts | dict.fromkeys(self._starts_by_log, 0)

    def _start_of(
        self, topic_partition: TopicPartition, starts: Offsets, until: int, earliest: Offsets
    ) -> int:
        """Where to read a partition from: its start, or the beginning if it is new to the query."""
        fail = self._options.fail_on_data_loss
        if topic_partition not in starts:
            if earliest[topic_partition] > 0:
                report_data_loss(
                    f"New partition {describe([topic_partition])} begins at offset "
                    f"{earliest[topic_partition]}, not 0.",
                    fail,
                )
            return min(earliest[topic_partition], until)
        if starts[topic_partition] > until:
            self._report_went_back(topic_partition, starts[topic_partition], until)
        return min(starts[topic_partition], until)

    def _earliest_offsets(self, partitions: list[TopicPartition]) -> Offsets:
        """The beginning of each of `partitions`; those that do not exist are reported."""
        try:
            return offsets_at(self._connected(), partitions, EARLIEST)
        except UnknownTopicError:
            # A topic that was created again may have fewer than the checkpoint's plan.
            self._check_gone(set(partitions) - set(self._assigned()))
            raise

    def _check_gone(self, partitions: set[TopicPartition]) -> None:
        fail = self._options.fail_on_data_loss
        if left_out := partitions - self._covered(partitions):
            what = (
                "The checkpoint has partitions that the query does not subscribe to any more: "
                f"{describe(left_out)}. If it does later, it goes on in them where it was."
            )
            if fail:
                raise DataLossError(
                    f"{what} Subscribe to them, or set the option failOnDataLoss to false to go on "
                    "without them."
                )
            report_data_loss(what, fail)
        if gone := partitions - left_out:
            report_data_loss(f"Partitions are gone: {describe(gone)}.", fail)

    def _refuse_lost(self, known: Offsets, latest: Offsets) -> None:
        """Raises DataLossError where `latest` lacks what `known` holds."""
        self._check_gone(known.keys() - latest.keys())
        for each in sorted(_lost(known, latest)):
            self._report_went_back(each, known[each], latest[each])

    def _report_went_back(
        self, topic_partition: TopicPartition, offset: int, end_offset: int
    ) -> None:
        report_data_loss(
            f"Partition {describe([topic_partition])} went back from offset {offset} to "
            f"{end_offset}.",
            self._options.fail_on_data_loss,
        )


def _is_found(limit: Limit, topic_partition: TopicPartition) -> bool:
    """Whether a partition begins by what its log holds when it is asked: an earliest offset, or the
    first record of a time; of latest ones, and those counted back, see `_starts_at_latest`."""
    if isinstance(limit, OffsetLimit):
        return limit.of([topic_partition])[topic_partition] == EARLIEST
    return isinstance(limit, TimeLimit)


def _lost(known: Offsets, latest: Offsets) -> set[TopicPartition]:
    """The partitions of `known` that `latest` leaves out, or ends before."""
    return {each for each, offset in known.items() if latest.get(each, -1) < offset}
