"""Judges a history: what no correct broker and correct clients could have let happen.

`check` looks at everything that can be said of any run; `check_copy` says further whether one topic
is the exact copy of another. Both are pure and know nothing of processes, brokers or how many
there are. The anomalies are in the main those of Jepsen's checker for Kafka (jepsen.tests.kafka);
what Kafka allows is none: gaps between offsets, transactions whose records lie between those of
others, and any record or none of an operation whose outcome is unknown.

A history must keep to these rules, or it proves nothing:
- a value names one thing that should be in its topic once. A client sends a value again only in a
  transaction, after one that ended otherwise;
- everyone who writes to a topic with recorded sends is recorded;
- "failed" is said only of what cannot take effect any more.
What was acknowledged and nobody read up to is told as UNREAD, so that a run which looked at nothing
does not pass.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from tests.crash.history import FAILED, OK, UNKNOWN, Operation

LOST = "lost"
DUPLICATE = "duplicate"
REORDERED = "reordered"
ABORTED_READ = "aborted read"
UNCOMMITTED_READ = "uncommitted read"
TORN = "torn transaction"
PHANTOM = "phantom"
INCONSISTENT_OFFSET = "inconsistent offset"
BACKWARD_POLL = "poll goes backwards"
SKIPPING_POLL = "poll skips"
BACKWARD_COMMIT = "committed offset goes backwards"
PHANTOM_COMMIT = "committed offset of nobody"
UNREAD = "unread"

READ_COMMITTED = "read_committed"

Place = tuple[str, int, int]  # topic, partition's index, offset


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(eq=False, slots=True)
class Transaction:
    """What a client did between a begin and its commit or abort."""

    name: str
    outcome: str = UNKNOWN  # OK is committed, FAILED aborted
    commit_began_ns: int | None = None
    ended_ns: int | None = None
    sends: list["Send"] = field(default_factory=list)


@dataclass(frozen=True, eq=False, slots=True)
class Send:
    operation: Operation
    transaction: Transaction | None

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def topic(self) -> Any:
        return self.operation.fields["topic"]

    @property
    def value(self) -> Any:
        return self.operation.fields["value"]

    @property
    def place(self) -> Place | None:
        """Where its acknowledgement says that it is."""
        fields = self.operation.fields
        if self.operation.outcome != OK or fields.get("offset") is None:
            return None
        return (fields["topic"], fields["index"], fields["offset"])

    @property
    def outcome(self) -> str:
        """OK once it must be seen by everyone, FAILED if it must not be seen (read committed)."""
        if self.transaction is None or self.operation.outcome == FAILED:
            return self.operation.outcome
        return self.transaction.outcome

    @property
    def visible_ns(self) -> int | None:
        """Since when it must be seen, as its outcome is OK."""
        owner = self.operation if self.transaction is None else self.transaction
        return owner.ended_ns

    def __str__(self) -> str:
        return f"{self.value!r} to {self.topic} sent by {self.name}"


@dataclass(frozen=True, eq=False, slots=True)
class Read:
    """One record of one poll."""

    operation: Operation
    committed: bool  # by a read_committed consumer
    place: Place
    key: str | None
    value: str | None
    send: str | None

    def __str__(self) -> str:
        topic, index, offset = self.place
        return f"{self.value!r} at {topic}-{index}@{offset} read by {self.operation.name}"


@dataclass(frozen=True, eq=False, slots=True)
class CompleteRead:
    """A topic read from its first offset to its end, begun at `began_ns`."""

    topic: str
    began_ns: int
    committed: bool
    reads: list[Read]


class Evidence:
    """The history in the forms that the checks ask for."""

    def __init__(self, history: Sequence[Operation]) -> None:
        self.clients: defaultdict[str, list[Operation]] = defaultdict(list)
        for operation in sorted(history, key=lambda each: each.number):
            self.clients[operation.client].append(operation)
        self.committed_readers: set[str] = {
            each.client
            for each in history
            if each.kind == "consumer" and each.fields["isolation"] == READ_COMMITTED
        }
        self.sends: list[Send] = []
        self.transactions: list[Transaction] = []
        self.commits: list[tuple[Operation, Transaction | None]] = []
        self.reads: list[Read] = []
        self.complete: list[CompleteRead] = []
        for operations in self.clients.values():
            self._collect_writes(operations)
            self._collect_reads(operations)
        self._sends_by_name = {send.name: send for send in self.sends}
        self._sends_by_value = grouped(self.sends, lambda send: (send.topic, send.value))
        self._sends_by_place = grouped(
            (send for send in self.sends if send.place), lambda send: send.place
        )
        self.topics_sent_to = {send.topic for send in self.sends}
        self.senders = {id(read): self._senders(read) for read in self.reads}

    def _collect_writes(self, operations: list[Operation]) -> None:
        current: Transaction | None = None
        for operation in operations:
            if operation.kind == "begin":
                current = Transaction(operation.name)
                self.transactions.append(current)
            elif operation.kind in ("commit", "abort") and current is not None:
                if operation.kind == "commit" and current.commit_began_ns is None:
                    current.commit_began_ns = operation.began_ns
                if operation.outcome == OK:
                    current.outcome = OK if operation.kind == "commit" else FAILED
                    current.ended_ns = operation.ended_ns
                    current = None
            elif operation.kind == "send":
                send = Send(operation, current)
                self.sends.append(send)
                if current is not None:
                    current.sends.append(send)
            elif operation.kind == "commit_offsets":
                owner = current if operation.fields.get("transactional") else None
                self.commits.append((operation, owner))

    def _collect_reads(self, operations: list[Operation]) -> None:
        whole = [each for each in operations if each.kind == "read_to_end" and each.outcome == OK]
        found: dict[int, list[Read]] = {each.number: [] for each in whole}
        for operation in operations:
            committed = operation.client in self.committed_readers
            for record in operation.fields.get("records", ()):
                topic, index, offset, key, value, send = record
                read = Read(operation, committed, (topic, index, offset), key, value, send)
                self.reads.append(read)
                for each in whole:
                    is_within = each.began_ns <= operation.began_ns <= (each.ended_ns or 0)
                    if is_within and each.fields["topic"] == topic:
                        found[each.number].append(read)
        self.complete += [
            CompleteRead(
                each.fields["topic"],
                each.began_ns,
                each.client in self.committed_readers,
                found[each.number],
            )
            for each in whole
        ]

    def _senders(self, read: Read) -> list[Send]:
        """The sends that `read` may come from, as exactly as the history tells."""
        if read.send is not None:
            named = self._sends_by_name.get(read.send)
            return [] if named is None or named.value != read.value else [named]
        same = self._sends_by_value.get((read.place[0], read.value), [])
        there = [each for each in self._sends_by_place.get(read.place, []) if each in same]
        return there or [each for each in same if each.place is None] or same

    def last_complete(self, topic: str) -> CompleteRead | None:
        reads = [each for each in self.complete if each.topic == topic]
        return max(reads, key=lambda each: each.began_ns, default=None)


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: defaultdict[Any, list[Any]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def check(history: Sequence[Operation]) -> list[Anomaly]:
    """All anomalies of the history, by kind; none of a run in order."""
    evidence = Evidence(history)
    return [
        *lost_records(evidence),
        *unread_records(evidence),
        *duplicates(evidence),
        *reorderings(evidence),
        *forbidden_reads(evidence),
        *torn_transactions(evidence),
        *inconsistent_offsets(evidence),
        *poll_faults(evidence),
        *commit_faults(evidence),
    ]


def lost_records(evidence: Evidence) -> Iterator[Anomaly]:
    """What was acknowledged, or read before, is missing in a later complete read."""
    reads_of = grouped((read for read in evidence.reads if read.committed), topic_of)
    sends_of = grouped(evidence.sends, lambda send: send.topic)
    for whole in evidence.complete:
        names = {read.send for read in whole.reads} - {None}
        places = {read.place for read in whole.reads}
        values = {read.value for read in whole.reads}
        for send in sends_of.get(whole.topic, ()):
            if not was_visible(send, whole.began_ns) or send.name in names:
                continue
            is_there = send.place in places if send.place else send.value in values
            if not is_there:
                yield Anomaly(LOST, f"{send}, acknowledged")
        for read in reads_of.get(whole.topic, ()):
            ended_ns = read.operation.ended_ns
            is_before = ended_ns is not None and ended_ns < whole.began_ns
            if is_before and read.place not in places:
                yield Anomaly(LOST, f"{read}")


def topic_of(read: Read) -> str:
    return read.place[0]


def was_visible(send: Send, at_ns: int) -> bool:
    return send.outcome == OK and send.visible_ns is not None and send.visible_ns < at_ns


def unread_records(evidence: Evidence) -> Iterator[Anomaly]:
    """Acknowledged, neither read nor covered by a complete read: nothing can be said of it."""
    last = {topic: evidence.last_complete(topic) for topic in evidence.topics_sent_to}
    seen = {send.name for senders in evidence.senders.values() for send in senders}
    unread: defaultdict[str, list[Send]] = defaultdict(list)
    for send in evidence.sends:
        whole = last[send.topic]
        is_covered = whole is not None and was_visible(send, whole.began_ns)
        if send.outcome == OK and not is_covered and send.name not in seen:
            unread[send.topic].append(send)
    for topic, sends in unread.items():
        yield Anomaly(UNREAD, f"{len(sends)} records of {topic}, the first {sends[0]}")


def duplicates(evidence: Evidence) -> Iterator[Anomaly]:
    """One value at two places for committed readers, or one send at two places for anybody."""
    places: defaultdict[tuple[str, str | None], set[Place]] = defaultdict(set)
    for read in evidence.reads:
        if read.committed and read.value is not None:
            places[read.place[0], read.value].add(read.place)
        senders = evidence.senders[id(read)]
        if not read.committed and len(senders) == 1:
            places[read.place[0], f"{read.value} of {senders[0].name}"].add(read.place)
    for (topic, value), found in places.items():
        if len(found) > 1:
            where = ", ".join(f"{index}@{offset}" for _, index, offset in sorted(found))
            yield Anomaly(DUPLICATE, f"{value!r} in {topic} at {where}")


def reorderings(evidence: Evidence) -> Iterator[Anomaly]:
    """What one client sent later with the same key lies before."""
    place_of = {send.name: send.place for send in evidence.sends if send.place}
    for read in evidence.reads:
        senders = evidence.senders[id(read)]
        if len(senders) == 1:
            place_of.setdefault(senders[0].name, read.place)
    latest: dict[tuple[str, str, int, str | None], tuple[int, Send]] = {}
    for send in evidence.sends:  # those of one client in their order
        place = place_of.get(send.name)
        if place is None:
            continue
        topic, index, offset = place
        group = (send.operation.client, topic, index, send.operation.fields["key"])
        before = latest.get(group)
        if before is not None and offset < before[0]:
            yield Anomaly(REORDERED, f"{send} at {index}@{offset}, after {before[1]}@{before[0]}")
        latest[group] = (offset, send)


def forbidden_reads(evidence: Evidence) -> Iterator[Anomaly]:
    """Reads of what was aborted, had failed, was not yet to be committed, or was never sent."""
    for read in evidence.reads:
        if read.place[0] not in evidence.topics_sent_to:
            continue
        senders = evidence.senders[id(read)]
        verdicts = [verdict(read, send) for send in senders]
        if not senders:
            yield Anomaly(PHANTOM, str(read))
        elif None not in verdicts:
            yield Anomaly(verdicts[0] or "", f"{read}, {senders[0]}")


def verdict(read: Read, send: Send) -> str | None:
    """Why `read` cannot come from `send`; None if it may."""
    if send.operation.outcome == FAILED:
        return ABORTED_READ
    transaction = send.transaction
    if transaction is None or not read.committed:
        return None
    if transaction.outcome == FAILED:
        return ABORTED_READ
    polled_ns, commit_ns = read.operation.ended_ns, transaction.commit_began_ns
    is_early = commit_ns is None or (polled_ns is not None and polled_ns < commit_ns)
    return UNCOMMITTED_READ if is_early else None


def torn_transactions(evidence: Evidence) -> Iterator[Anomaly]:
    """Of a transaction with unknown outcome, some records are visible and others are not."""
    wholes = [evidence.last_complete(topic) for topic in evidence.topics_sent_to]
    committed = [whole for whole in wholes if whole is not None and whole.committed]
    topics = {whole.topic for whole in committed}
    senders = [evidence.senders[id(read)] for whole in committed for read in whole.reads]
    seen = {found[0].name for found in senders if len(found) == 1}
    for transaction in evidence.transactions:
        if transaction.outcome != UNKNOWN or transaction.commit_began_ns is None:
            continue
        sends = [send for send in transaction.sends if send.topic in topics]
        visible = [send for send in sends if send.name in seen]
        hidden = [
            send for send in sends if send.name not in seen and send.operation.outcome != FAILED
        ]
        if visible and hidden:
            counts = f"{len(visible)} of {len(sends)} records visible"
            yield Anomaly(TORN, f"{transaction.name}: {counts}, not {hidden[0]}")


def inconsistent_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    """Two records at one offset, by what was read or acknowledged."""
    found: defaultdict[Place, set[tuple[str | None, str | None]]] = defaultdict(set)
    for read in evidence.reads:
        found[read.place].add((read.key, read.value))
    for send in evidence.sends:
        if send.place is not None:
            found[send.place].add((send.operation.fields["key"], send.value))
    for (topic, index, offset), records in found.items():
        if len(records) > 1:
            told = sorted(map(str, records))
            yield Anomaly(INCONSISTENT_OFFSET, f"{topic}-{index}@{offset}: {', '.join(told)}")


def poll_faults(evidence: Evidence) -> Iterator[Anomaly]:
    """Within one assignment, a poll goes back, or passes a record that it should have returned."""
    committed, all_of_them = known_offsets(evidence)
    for client, operations in evidence.clients.items():
        offsets = committed if client in evidence.committed_readers else all_of_them
        last: dict[tuple[str, int], int] = {}
        for operation in operations:
            if operation.kind == "assign":
                last.clear()
            for topic, index, position in operation.fields.get("positions", ()):
                if position is not None:
                    last[topic, index] = position - 1
            for topic, index, offset, *_ in operation.fields.get("records", ()):
                before = last.get((topic, index))
                last[topic, index] = offset
                if before is not None:
                    where = f"{operation.name} read {topic}-{index}@{offset} after @{before}"
                    yield from step_faults(where, before, offset, offsets.get((topic, index), []))


def step_faults(where: str, before: int, offset: int, known: list[int]) -> Iterator[Anomaly]:
    """What is wrong with a step from one offset to another, where `known` offsets have records."""
    following = bisect_right(known, before)
    if offset <= before:
        yield Anomaly(BACKWARD_POLL, where)
    elif following < len(known) and known[following] < offset:
        yield Anomaly(SKIPPING_POLL, f"{where}, though there is @{known[following]}")


OffsetsByPartition = dict[tuple[str, int], list[int]]


def known_offsets(evidence: Evidence) -> tuple[OffsetsByPartition, OffsetsByPartition]:
    """The offsets of records that a read_committed consumer must see, and any other one."""
    committed = {read.place for read in evidence.reads if read.committed}
    committed |= {send.place for send in evidence.sends if send.place and send.outcome == OK}
    others = {read.place for read in evidence.reads}
    others |= {send.place for send in evidence.sends if send.place}
    return by_partition(committed), by_partition(others | committed)


def by_partition(places: Iterable[Place]) -> OffsetsByPartition:
    offsets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for topic, index, offset in sorted(places):
        offsets[topic, index].append(offset)
    return dict(offsets)


def commit_faults(evidence: Evidence) -> Iterator[Anomaly]:
    """A group's offset that goes back, was lost, or was never committed."""
    done: defaultdict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    possible: defaultdict[tuple[str, str, int], set[int]] = defaultdict(set)
    told: list[tuple[str, int, tuple[str, str, int], int | None]] = []
    for operation, owner in evidence.commits:
        outcome = operation.outcome if owner is None else owner.outcome
        ended_ns = operation.ended_ns if owner is None else owner.ended_ns
        if FAILED in (outcome, operation.outcome):
            continue
        for topic, index, offset in operation.fields["offsets"]:
            key = (operation.fields["group"], topic, index)
            possible[key].add(offset)
            if outcome == OK and ended_ns is not None:
                done[key].append((ended_ns, offset))
                told.append((operation.name, operation.began_ns, key, offset))
    for operations in evidence.clients.values():
        for operation in operations:
            if operation.kind == "fetch_offsets" and operation.outcome == OK:
                for topic, index, offset in operation.fields["offsets"]:
                    key = (operation.fields["group"], topic, index)
                    told.append((operation.name, operation.began_ns, key, offset))
                    if offset is not None and offset not in possible[key]:
                        yield Anomaly(PHANTOM_COMMIT, f"{operation.name}: {key} is {offset}")
    yield from backward_commits(done, told)


def backward_commits(
    done: dict[tuple[str, str, int], list[tuple[int, int]]],
    told: list[tuple[str, int, tuple[str, str, int], int | None]],
) -> Iterator[Anomaly]:
    """`told`, what was committed or fetched since a time, against what was `done` before it."""
    highest: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for key, commits in done.items():
        commits.sort()
        most = accumulate((offset for _, offset in commits), max)
        highest[key] = [
            (ended_ns, offset) for (ended_ns, _), offset in zip(commits, most, strict=True)
        ]
    for name, began_ns, key, told_offset in told:
        commits = highest.get(key, [])
        earlier = bisect_right(commits, (began_ns, -1)) - 1
        if earlier >= 0 and (told_offset is None or told_offset < commits[earlier][1]):
            before = commits[earlier][1]
            yield Anomaly(BACKWARD_COMMIT, f"{name}: {key} is {told_offset}, was {before}")


def check_copy(history: Sequence[Operation], source: str, target: str) -> list[Anomaly]:
    """What is missing for `target` to hold the values of `source`, each once, each key in order.

    Both as by their last complete reads, which must be of read_committed consumers.
    """
    evidence = Evidence(history)
    wholes = [evidence.last_complete(topic) for topic in (source, target)]
    if None in wholes or not all(whole.committed for whole in wholes if whole):
        return [Anomaly(UNREAD, f"{source} or {target}: no complete read_committed read")]
    wanted, found = (values_by_key(whole.reads) for whole in wholes if whole)
    return [
        anomaly
        for key in wanted.keys() | found.keys()
        for anomaly in copy_faults(key, wanted.get(key, []), found.get(key, []))
    ]


def values_by_key(reads: list[Read]) -> dict[str | None, list[str | None]]:
    """The values of each key, which is in one partition, in their order."""
    ordered = sorted(
        {(read.place, read.key, read.value) for read in reads}, key=lambda each: each[0]
    )
    by_key: defaultdict[str | None, list[str | None]] = defaultdict(list)
    for _, key, value in ordered:
        by_key[key].append(value)
    return dict(by_key)


def copy_faults(
    key: str | None, wanted: list[str | None], found: list[str | None]
) -> Iterator[Anomaly]:
    unexpected = set(found) - set(wanted)
    missing = set(wanted) - set(found)
    first: list[str | None] = list(dict.fromkeys(found))
    if len(first) < len(found):
        twice = [value for value in first if found.count(value) > 1]
        yield Anomaly(DUPLICATE, f"key {key!r}: {len(twice)} values copied twice, {twice[0]!r}")
    if missing:
        yield Anomaly(
            LOST, f"key {key!r}: {len(missing)} values not copied, {min(missing, key=str)!r}"
        )
    if unexpected:
        yield Anomaly(PHANTOM, f"key {key!r}: {len(unexpected)} values of no source")
    common = [value for value in wanted if value not in missing]
    if [value for value in first if value not in unexpected] != common:
        yield Anomaly(REORDERED, f"key {key!r}: copied in another order")
