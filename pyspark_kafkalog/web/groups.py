"""Groups for the page: each asked for at its coordinator, lag told by the ends of partitions."""

from collections.abc import Sequence
from dataclasses import dataclass

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import LATEST, BrokerAddress, Cluster
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.group import committed_offsets
from pyspark_kafkalog.client.groups import (
    GroupDescription,
    GroupMember,
    ListedGroup,
    describe_group,
    list_groups_of,
)
from pyspark_kafkalog.errors import UnknownGroupError, sentence
from pyspark_kafkalog.web.brokers import ERRORS, Brokers, Question, Seen
from pyspark_kafkalog.web.figures import offsets


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Where a group is in a partition; None of what nobody said."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    is_gone: bool
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else self.end - self.committed


@dataclass(frozen=True, slots=True)
class Group:
    """A group; `described` is None where it could not be asked for, as `why` says."""

    listed: ListedGroup
    described: GroupDescription | None
    rows: Sequence[PartitionLag]
    why: str = ""

    @property
    def topics(self) -> list[str]:
        return sorted({row.topic for row in self.rows})

    @property
    def lag(self) -> int | None:
        lags = [row.lag for row in self.rows if row.lag is not None]
        return sum(lags) if lags else None


Found = tuple[GroupDescription | None, dict[TopicPartition, int], str]


def listed(brokers: Brokers, seen: Seen) -> tuple[dict[str, tuple[int, ListedGroup]], list[str]]:
    """All groups by name, each with its coordinator's id; and a sentence for each broker that does
    not say its own."""
    addresses = {each.broker_id: each for each in seen.overview.brokers}

    def ask(cluster: Cluster, broker: BrokerAddress) -> list[ListedGroup]:
        return list_groups_of(cluster, (broker.host, broker.port))

    found, missing = brokers.each(addresses, dict.fromkeys(addresses, ask))
    return {
        group.name: (broker_id, group) for broker_id in sorted(found) for group in found[broker_id]
    }, missing


def describe(
    brokers: Brokers, seen: Seen, wanted: Sequence[tuple[int, ListedGroup]]
) -> tuple[list[Group], list[str]]:
    """Members, offsets and lag of `wanted`, in their order."""
    by_broker: dict[int, list[ListedGroup]] = {}
    for broker_id, group in wanted:
        by_broker.setdefault(broker_id, []).append(group)
    addresses = {each.broker_id: each for each in seen.overview.brokers}
    questions = {broker_id: _describing(groups) for broker_id, groups in by_broker.items()}
    answers, missing = brokers.each(addresses, questions)
    told = {name: found for answer in answers.values() for name, found in answer.items()}
    partitions = {each for _, committed, _ in told.values() for each in committed}
    partitions |= {
        each
        for described, _, _ in told.values()
        for member in (described.members if described else ())
        for each in member.partitions
    }
    ends, silent = offsets(brokers, seen, partitions, LATEST)
    missing += [each for each in silent if each not in missing]
    groups = [
        Group(group, None, ())
        if group.name not in told
        else _group(group, told[group.name], ends, seen)
        for _, group in wanted
    ]
    return groups, missing


def _describing(groups: Sequence[ListedGroup]) -> Question[dict[str, Found]]:
    def ask(cluster: Cluster, _: BrokerAddress) -> dict[str, Found]:
        """As many as there is time for; what one group refuses is not the others' fault."""
        deadline = Deadline(cluster.config.request_timeout_ms / 2)
        found: dict[str, Found] = {}
        for group in groups:
            if deadline.expired:
                break
            try:
                described = describe_group(cluster, group.name)
                found[group.name] = described, committed_offsets(cluster, group.name), ""
            except UnknownGroupError:  # of a kind that commits no offsets, or gone meanwhile
                found[group.name] = None, {}, ""
            except ConnectionError:
                raise
            except ERRORS as error:
                found[group.name] = None, {}, sentence(error)
        return found

    return ask


def _group(listed: ListedGroup, told: Found, ends: dict[TopicPartition, int], seen: Seen) -> Group:
    described, committed, why = told
    owners = {
        each: member
        for member in (described.members if described else ())
        for each in member.partitions
    }
    counts = {name: len(partitions) for name, partitions in seen.overview.topics.items()}
    rows = [
        PartitionLag(
            each.topic,
            each.partition,
            committed.get(each),
            ends.get(each),
            each.partition >= counts.get(each.topic, 0),
            owners.get(each),
        )
        for each in sorted({*committed, *owners})
    ]
    return Group(listed, described, rows, why)
