"""Which offsets a micro-batch reads, as Spark's checkpoint has it before the batch runs, and which
rows fit. checkpoint.py knows the files; sources that are no topics are passed over.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import InvalidRowError, TopicRecreatedError
from pyspark_kafkalog.source.checkpoint import batch_plan, refuse_jumps
from pyspark_kafkalog.source.log_identity import LogIdentity
from pyspark_kafkalog.source.offsets import Offsets, describe
from pyspark_kafkalog.warehouse.sink.row_places import Spans


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Where a micro-batch begins, and ends, of each partition of a topic that its query reads.

    In the first batch of a query `starts` is empty, as that is not written down; in a later one
    `begun` are the partitions of sources that are new, and have not noted it. `unequal` are those
    that two sources read in different portions. `logs` tells which logs the offsets are of, as far
    as the read has noted it.
    """

    starts: Offsets = field(default_factory=dict)
    untils: Offsets = field(default_factory=dict)
    unequal: frozenset[TopicPartition] = frozenset()
    begun: frozenset[TopicPartition] = frozenset()
    is_first: bool = True
    logs: LogIdentity = field(default_factory=LogIdentity)

    def start_of(self, topic_partition: TopicPartition) -> int | None:
        """Where it begins to read a partition; None where that is not known."""
        if self.is_first or topic_partition in self.begun:
            return None
        return self.starts.get(topic_partition, 0)

    def without_recreated(self, topic_ids: Mapping[str, UUID], seen: Spans) -> "MicroBatch":
        """What it reads of topics that are, by their ids of now, those that it was planned for.

        Of one that was created again in between a read that may lose data gives nothing, and
        begins anew in the next batch: its offsets here would be taken for those of the new topic.
        Raises TopicRecreatedError where there are rows of it all the same. Nor does it give
        anything of one that is out of sight, which it reads when that is back.
        """
        others = self.logs.others(LogIdentity(topic_ids))
        came = {each.topic for each in seen}
        if read := came & others:
            raise TopicRecreatedError(
                f"{', '.join(sorted(read))}: deleted and created again while a micro-batch was "
                "read. Nothing of it was committed: start the query again."
            )
        if topic_ids:
            others |= self.logs.topic_ids.keys() - topic_ids.keys() - came
        return replace(
            self,
            starts={each: at for each, at in self.starts.items() if each.topic not in others},
            untils={each: at for each, at in self.untils.items() if each.topic not in others},
        )

    def check(self, seen: Spans) -> None:
        """Raises InvalidRowError for rows of other offsets than the batch reads.

        Such rows were held back (by a join, or by state of a program's own) or do not come from a
        topic. A later batch would have some more of the same offsets, which nobody could tell from
        rows that are in the target already.
        """
        for topic_partition, span in sorted(seen.items()):
            if topic_partition not in self.untils:
                raise InvalidRowError(
                    f"There are rows of {describe([topic_partition])}, which no source of this "
                    "query reads: kafkalog_load takes rows of topics, read by kafkalog in the "
                    "same query."
                )
            if topic_partition in self.unequal:
                raise InvalidRowError(
                    f"Two sources of this query read {describe([topic_partition])}, and not the "
                    "same offsets in this micro-batch: read it once, and use that DataFrame twice."
                )
            start, until = self.starts.get(topic_partition, 0), self.untils[topic_partition]
            if not start <= span.first <= span.last < until:
                raise InvalidRowError(
                    f"There are rows of offsets {span.first} to {span.last} of "
                    f"{describe([topic_partition])} in a micro-batch that reads {start} to "
                    f"{until - 1}: an operator that holds rows back, such as a join of streams, "
                    "cannot be loaded by offsets. Load its inputs, and join what was loaded."
                )


def micro_batch(checkpoint: str, batch: int, is_needed: bool = True) -> MicroBatch | None:
    """What batch number `batch` reads; None where the checkpoint cannot be read from here. Unless
    that `is_needed`, a file system that could not be reached is not asked again for a while.

    Raises CheckpointError where a source that is new skips records, or reads some again: they would
    be left out as loaded ones, and are not there if Spark ran their micro-batch without the source
    that they were of."""
    try:
        plan = batch_plan(checkpoint, batch, may_rest=not is_needed)
    except (OSError, ValueError):
        return None
    refuse_jumps(f"{checkpoint}/offsets/{batch}", plan.jumps)
    unequal: set[TopicPartition] = set()
    starts, untils = _of_all(plan.starts, unequal), _of_all(plan.ends, unequal)
    begun = {
        each
        for start, end in zip(plan.starts, plan.ends, strict=False)
        if start is None
        for each in end or ()
    } - starts.keys()
    return MicroBatch(starts, untils, frozenset(unequal), frozenset(begun), batch == 0, plan.logs)


def _of_all(sources: Iterable[Offsets | None], unequal: set[TopicPartition]) -> Offsets:
    """The offsets of all sources; adds to `unequal` the partitions that two have other ones of."""
    found: Offsets = {}
    for offsets in sources:
        for topic_partition, offset in (offsets or {}).items():
            if found.setdefault(topic_partition, offset) != offset:
                unequal.add(topic_partition)
    return found
