"""`pyspark_kafkalog.load_status`: where the loads of a target are, from the target alone.

What a monitor asks for: the last commit of each load name, its time, where it goes on, and which
offsets were given up. How far that is behind, the brokers know: `progress_beside` compares. Runs on
the driver, without Spark and without a broker; changes nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from uuid import UUID

from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import CommitRecord, Position
from pyspark_kafkalog.warehouse.targets.target import open_target
from pyspark_kafkalog.warehouse.topic_places import name_of, targets_of


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """One load name of a target.

    `position` is where it goes on. `last` is its last commit, None where the target's history does
    not reach back to it; `gaps` are the offsets that were given up, in the last commit or in all
    that the history tells of.
    """

    name: str
    target: str
    position: Position
    last: CommitRecord | None
    gaps: tuple[OffsetRange, ...]


def load_status(target: str, name: str | None = None, all_gaps: bool = False) -> list[LoadStatus]:
    """Where the load `name` into `target`, both as for `load`, is; or all loads of it, by name.

    None at all where no load has committed to the target. `all_gaps` reads the target's whole
    history. Raises InvalidOptionError, also for a `name` that has no commit; TargetError.
    """
    opened = open_target(target)
    names = opened.names()
    if name is not None:
        if name not in names:
            known = f" It knows {', '.join(names)}." if names else ""
            raise InvalidOptionError(f"{opened} has no commit of load {name!r}.{known}")
        names = [name]
    commits: dict[str, list[CommitRecord]] = {each: [] for each in names}
    for commit in opened.history() if names else ():
        if commit.name in commits and (all_gaps or not commits[commit.name]):
            commits[commit.name].append(commit)
        if not all_gaps and all(commits.values()):
            break
    return [
        LoadStatus(
            each,
            str(opened),
            opened.position(each, read_only=True).without_deleted(),
            next(iter(found), None),
            tuple(chain.from_iterable(commit.gaps for commit in found)),
        )
        for each, found in commits.items()
    ]


def load_status_of_topics(
    target: str, topics: Iterable[str], name: str | None = None, all_gaps: bool = False
) -> Iterator[LoadStatus | Exception]:
    """The same for each of `topics` where `target` says {topic}: what has committed, and what it
    was that kept a topic's from being read, as nobody else's is to be missed for it."""
    for topic, place in targets_of(target, topics).items():
        wanted = None if name is None else name_of(name, topic)
        try:
            found = load_status(place, all_gaps=all_gaps)
        except Exception as error:  # of whichever library
            yield error
            continue
        yield from (each for each in found if wanted in (None, each.name))


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Where a load goes on in a partition, beside where that ends; None where nobody said.

    `state` is ok; gone, or recreated, of topics that are not the load's any more; or unknown, where
    brokers were not asked, or did not answer.
    """

    topic: str
    partition: int
    next: int | None
    end: int | None = None
    lag: int | None = None
    state: str = "unknown"


def progress_beside(
    position: Position,
    there: Collection[TopicPartition],
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, UUID | None],
) -> list[PartitionProgress]:
    """Each partition of the load's topics, sorted. `there` are those that the cluster has now;
    ones that the load has not seen yet count from `begins`, which is for them alone."""
    rows = []
    for each in sorted({*position.offsets, *there}):
        topic, partition = each
        start = position.offsets.get(each)
        known, now = position.topic_ids.get(topic), topic_ids.get(topic)
        if each not in there:
            row = PartitionProgress(topic, partition, start, state="gone")
        elif each not in ends:
            row = PartitionProgress(topic, partition, start)
        elif known is not None and now is not None and known != now:
            row = PartitionProgress(topic, partition, start, ends[each], state="recreated")
        else:
            first = begins.get(each) if start is None else start
            lag = None if first is None else ends[each] - first
            row = PartitionProgress(topic, partition, start, ends[each], lag, "ok")
        rows.append(row)
    return rows
