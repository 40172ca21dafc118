"""The checker is checked: every planted fault is found as what it is, a run in order gives none.

First by histories written by hand, one for each anomaly beside what is allowed; then by runs of a
small model of a broker with transactions, in whose histories hypothesis plants faults.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.crash import checker
from tests.crash.checker import check, check_copy
from tests.crash.history import FAILED, OK, UNKNOWN, HistoryWriter, history_of, read_history

TOPIC = "orders"


class Story:
    """A history by hand: each call is one client's next operation, one tick later."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._now_ns = 0
        self._last: dict[str, int] = {}

    def begin(self, client: str, kind: str, **fields: Any) -> tuple[str, int]:
        number = self._last[client] = self._last.get(client, 0) + 1
        self._append(client, number, "begin", kind=kind, **fields)
        return client, number

    def end(self, begun: tuple[str, int], outcome: str = OK, **fields: Any) -> None:
        self._append(*begun, outcome, **fields)

    def do(self, client: str, kind: str, outcome: str = OK, **fields: Any) -> None:
        self.end(self.begin(client, kind, **fields), outcome)

    def send(
        self, client: str, value: str, offset: int | None, key: str = "k", outcome: str = OK
    ) -> str:
        """A send to partition 0 that ended with `offset`; its name."""
        begun = self.begin(client, "send", topic=TOPIC, index=0, key=key, value=value)
        self.end(begun, outcome, offset=offset)
        return f"{begun[0]}:{begun[1]}"

    def poll(self, client: str, *records: tuple[int, str], send: str | None = None) -> None:
        rows = [[TOPIC, 0, offset, "k", value, send] for offset, value in records]
        self.do(client, "poll", records=rows)

    def consumer(self, client: str, isolation: str = "read_committed") -> None:
        self.do(client, "consumer", group="g", isolation=isolation)
        self.do(client, "assign", positions=[[TOPIC, 0, 0]])

    def read_all(self, *records: tuple[int, str], client: str = "reader") -> None:
        self.consumer(client)
        whole = self.begin(client, "read_to_end", topic=TOPIC)
        self.poll(client, *records)
        self.end(whole)

    def commit_offset(self, client: str, offset: int, **fields: Any) -> None:
        offsets = [[TOPIC, 0, offset]]
        self.do(client, "commit_offsets", group="g", offsets=offsets, **fields)

    def fetch_offset(self, client: str, offset: int | None) -> None:
        self.do(client, "fetch_offsets", group="g", offsets=[[TOPIC, 0, offset]])

    def found(self) -> list[str]:
        return sorted({anomaly.kind for anomaly in check(history_of(self.lines))})

    def _append(self, client: str, number: int, event: str, **fields: Any) -> None:
        self._now_ns += 1
        head = {"client": client, "operation": number, "event": event, "time_ns": self._now_ns}
        self.lines.append(head | fields)


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_run_in_order(story: Story) -> None:
    story.send("p", "a", 0)
    story.send("p", "b", 1)
    story.consumer("live")
    story.poll("live", (0, "a"))
    story.commit_offset("live", 1)
    story.fetch_offset("live", 1)
    story.poll("live", (1, "b"))
    story.commit_offset("live", 2)
    story.read_all((0, "a"), (1, "b"))
    assert story.found() == []


def test_what_is_unknown_may_be_there_or_not(story: Story) -> None:
    story.send("p", "a", None, outcome=UNKNOWN)
    story.begin("p", "send", topic=TOPIC, index=0, key="k", value="b")
    story.read_all((0, "b"))
    assert story.found() == []


def test_gaps_between_offsets_are_allowed(story: Story) -> None:
    story.do("p", "begin")
    story.send("p", "a", 0)
    story.do("p", "abort")
    story.do("p", "begin")
    story.send("p", "a", 2)
    story.do("p", "commit")
    story.read_all((2, "a"))
    assert story.found() == []


def test_an_acknowledged_record_that_is_not_there(story: Story) -> None:
    story.send("p", "a", 0)
    story.send("p", "b", 1)
    story.read_all((0, "a"))
    assert story.found() == [checker.LOST]


def test_a_committed_record_that_is_not_there(story: Story) -> None:
    story.do("p", "begin")
    story.send("p", "a", None)
    story.do("p", "commit")
    story.read_all()
    assert story.found() == [checker.LOST]


def test_a_record_that_was_read_and_is_gone(story: Story) -> None:
    story.send("p", "a", None, outcome=UNKNOWN)
    story.consumer("live")
    story.poll("live", (0, "a"))
    story.read_all()
    assert story.found() == [checker.LOST]


def test_nobody_looked(story: Story) -> None:
    story.send("p", "a", 0)
    assert story.found() == [checker.UNREAD]


def test_it_was_sent_after_the_last_complete_read(story: Story) -> None:
    story.send("p", "a", 0)
    story.read_all((0, "a"))
    story.send("p", "b", 1)
    assert story.found() == [checker.UNREAD]


def test_one_value_twice(story: Story) -> None:
    story.send("p", "a", 0)
    story.read_all((0, "a"), (1, "a"))
    assert story.found() == [checker.DUPLICATE]


def test_one_send_twice_for_a_reader_of_everything(story: Story) -> None:
    name = story.send("p", "a", 0)
    story.consumer("live", "read_uncommitted")
    story.poll("live", (0, "a"), (1, "a"), send=name)
    story.read_all((0, "a"))
    assert story.found() == [checker.DUPLICATE]


def test_an_aborted_value_and_its_repetition_are_no_duplicate(story: Story) -> None:
    story.do("p", "begin")
    story.send("p", "a", 0)
    story.do("p", "abort")
    story.do("p", "begin")
    story.send("p", "a", 2)
    story.do("p", "commit")
    story.consumer("live", "read_uncommitted")
    story.poll("live", (0, "a"), (2, "a"))
    story.read_all((2, "a"))
    assert story.found() == []


@pytest.mark.parametrize("offset", [1, None])
def test_sent_later_lies_before(story: Story, offset: int | None) -> None:
    story.send("p", "a", offset)
    story.send("p", "b", 0 if offset else None)
    story.read_all((0, "b"), (1, "a"))
    assert story.found() == [checker.REORDERED]


def test_keys_are_not_ordered_among_each_other(story: Story) -> None:
    story.send("p", "a", 1, key="x")
    story.send("p", "b", 0, key="y")
    story.consumer("reader")
    whole = story.begin("reader", "read_to_end", topic=TOPIC)
    rows = [[TOPIC, 0, 0, "y", "b", None], [TOPIC, 0, 1, "x", "a", None]]
    story.do("reader", "poll", records=rows)
    story.end(whole)
    assert story.found() == []


def test_an_aborted_record_is_read(story: Story) -> None:
    story.do("p", "begin")
    story.send("p", "a", 0)
    story.do("p", "abort")
    story.read_all((0, "a"))
    assert story.found() == [checker.ABORTED_READ]


def test_a_refused_record_is_read(story: Story) -> None:
    story.send("p", "a", None, outcome=FAILED)
    story.read_all((0, "a"))
    assert story.found() == [checker.ABORTED_READ]


def test_the_record_of_an_aborted_attempt_instead_of_the_committed_one(story: Story) -> None:
    story.do("p", "begin")
    story.send("p", "a", 0)
    story.do("p", "abort")
    story.do("p", "begin")
    story.send("p", "a", 2)
    story.do("p", "commit")
    story.read_all((0, "a"))
    assert story.found() == [checker.ABORTED_READ, checker.LOST]


def test_a_record_is_read_before_its_commit(story: Story) -> None:
    story.do("p", "begin")
    story.send("p", "a", 0)
    story.consumer("live")
    story.poll("live", (0, "a"))
    story.do("p", "commit")
    story.read_all((0, "a"))
    assert story.found() == [checker.UNCOMMITTED_READ]


def test_a_record_is_read_whose_client_died_before_its_commit(story: Story) -> None:
    story.do("p", "begin")
    story.send("p", "a", 0)
    story.read_all((0, "a"))
    assert story.found() == [checker.UNCOMMITTED_READ]


def test_read_uncommitted_may_read_what_is_not_committed(story: Story) -> None:
    story.do("p", "begin")
    story.send("p", "a", 0)
    story.consumer("live", "read_uncommitted")
    story.poll("live", (0, "a"))
    story.do("p", "abort")
    story.read_all()
    assert story.found() == []


@pytest.mark.parametrize(("visible", "expected"), [([], []), ([0], [checker.TORN]), ([0, 1], [])])
def test_half_of_a_transaction_with_unknown_outcome(
    story: Story, visible: list[int], expected: list[str]
) -> None:
    story.do("p", "begin")
    story.send("p", "a", 0)
    story.send("p", "b", 1)
    story.begin("p", "commit")
    story.read_all(*[(offset, "ab"[offset]) for offset in visible])
    assert story.found() == expected


def test_two_records_at_one_offset(story: Story) -> None:
    story.send("p", "a", None, outcome=UNKNOWN)
    story.send("p", "b", None, outcome=UNKNOWN)
    story.consumer("live")
    story.poll("live", (0, "a"))
    story.read_all((0, "b"))
    # That b took the place of a is told as the one thing it is.
    assert story.found() == [checker.INCONSISTENT_OFFSET]


def test_two_acknowledgements_of_one_offset(story: Story) -> None:
    story.send("p", "a", 0)
    story.send("q", "b", 0)
    story.read_all((0, "b"))
    assert checker.INCONSISTENT_OFFSET in story.found()


def test_a_value_that_nobody_sent(story: Story) -> None:
    story.send("p", "a", 0)
    story.read_all((0, "a"), (1, "x"))
    assert story.found() == [checker.PHANTOM]


def test_a_poll_goes_back(story: Story) -> None:
    story.send("p", "a", 0)
    story.send("p", "b", 1)
    story.consumer("live")
    story.poll("live", (0, "a"), (1, "b"))
    story.poll("live", (0, "a"))
    story.read_all((0, "a"), (1, "b"))
    assert story.found() == [checker.BACKWARD_POLL]


def test_a_seek_or_a_new_assignment_may_go_back(story: Story) -> None:
    story.send("p", "a", 0)
    story.consumer("live")
    story.poll("live", (0, "a"))
    story.do("live", "seek", positions=[[TOPIC, 0, 0]])
    story.poll("live", (0, "a"))
    story.do("live", "assign", positions=[[TOPIC, 0, None]])
    story.poll("live", (0, "a"))
    story.read_all((0, "a"))
    assert story.found() == []


@pytest.mark.parametrize("first", [[(0, "a")], []])
def test_a_poll_skips(story: Story, first: list[tuple[int, str]]) -> None:
    story.send("p", "a", 0)
    story.send("p", "b", 1)
    story.send("p", "c", 2)
    story.consumer("live")
    story.poll("live", *first)
    story.poll("live", (2, "c"))
    story.read_all((0, "a"), (1, "b"), (2, "c"))
    assert story.found() == [checker.SKIPPING_POLL]


def test_a_committed_offset_is_lost(story: Story) -> None:
    story.commit_offset("c", 5)
    story.fetch_offset("d", None)
    assert story.found() == [checker.BACKWARD_COMMIT]


def test_a_committed_offset_goes_back(story: Story) -> None:
    story.commit_offset("c", 5)
    story.commit_offset("d", 3)
    assert story.found() == [checker.BACKWARD_COMMIT]


def test_offsets_of_an_aborted_transaction(story: Story) -> None:
    story.do("c", "begin")
    story.commit_offset("c", 5, transactional=True)
    story.do("c", "abort")
    story.fetch_offset("d", 5)
    assert story.found() == [checker.PHANTOM_COMMIT]


def test_offsets_of_a_committed_transaction(story: Story) -> None:
    story.do("c", "begin")
    story.commit_offset("c", 5, transactional=True)
    story.do("c", "commit")
    story.fetch_offset("d", 5)
    assert story.found() == []
    story.fetch_offset("d", 3)
    assert story.found() == [checker.BACKWARD_COMMIT, checker.PHANTOM_COMMIT]


class TestCopy:
    """The target topic against its source."""

    def found(self, source: list[tuple[str, str]], target: list[tuple[str, str]]) -> list[str]:
        story = Story()
        for topic, records in (("in", source), ("out", target)):
            story.do(topic, "consumer", group="g", isolation="read_committed")
            whole = story.begin(topic, "read_to_end", topic=topic)
            rows = [[topic, 0, offset, *record, None] for offset, record in enumerate(records)]
            story.do(topic, "poll", records=rows)
            story.end(whole)
        return sorted(each.kind for each in check_copy(history_of(story.lines), "in", "out"))

    SOURCE = (("x", "1"), ("y", "2"), ("x", "3"))

    def test_exact(self) -> None:
        assert self.found([*self.SOURCE], [*self.SOURCE]) == []
        assert self.found([*self.SOURCE], [("y", "2"), ("x", "1"), ("x", "3")]) == []

    def test_faults(self) -> None:
        source = [*self.SOURCE]
        assert self.found(source, source[:2]) == [checker.LOST]
        assert self.found(source, [*source, ("x", "3")]) == [checker.DUPLICATE]
        assert self.found(source, [*source, ("x", "4")]) == [checker.PHANTOM]
        assert self.found(source, source[::-1]) == [checker.REORDERED]
        assert self.found(source, []) == [checker.LOST, checker.LOST]

    def test_nobody_looked(self) -> None:
        assert [each.kind for each in check_copy([], "in", "out")] == [checker.UNREAD]


def test_what_was_begun_is_in_the_file_before_it_is_done(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, "p.1")
    first = writer.begin("send", topic=TOPIC, index=None, key="k", value="a")
    writer.begin("send", topic=TOPIC, index=None, key="k", value="b")
    writer.end(first, OK, index=2, offset=7)
    writer.done("poll", records=[])
    # No close: so it would be after a SIGKILL.
    one, two, poll = read_history(tmp_path)
    assert (one.outcome, one.fields["offset"], one.fields["index"]) == (OK, 7, 2)
    assert (two.name, two.outcome, two.ended_ns) == ("p.1:2", UNKNOWN, None)
    assert poll.kind == "poll"
    writer.close()
    with pytest.raises(FileExistsError):
        HistoryWriter(tmp_path, "p.1")


# A model of a broker, which runs in order.


class Model:
    """Transactional producers and readers of one topic, as `draw` lets them act; its history."""

    PARTITIONS = 2

    def __init__(self, draw: Any) -> None:
        self.story = Story()
        self._draw = draw
        # By partition: offset, value, name of the send, transaction. Markers only take offsets.
        self._logs: list[list[tuple[int, str, str, dict[str, Any]]]] = [[], []]
        self._ends = [0, 0]
        self._positions: dict[tuple[str, int], int] = {}
        self._value = 0

    def run(self, steps: int) -> list[dict[str, Any]]:
        for reader in ("live", "raw"):
            isolation = "read_committed" if reader == "live" else "read_uncommitted"
            self.story.do(reader, "consumer", group="g", isolation=isolation)
            positions = [[TOPIC, index, 0] for index in range(self.PARTITIONS)]
            self.story.do(reader, "assign", positions=positions)
        open_transactions: dict[str, dict[str, Any]] = {}
        for step in range(steps):
            action = self._draw(st.sampled_from(["p", "q", "p", "q", "live", "raw"]))
            if action in ("live", "raw"):
                self._poll(action)
            else:
                self._act(action, step, open_transactions)
        for transaction in open_transactions.values():
            self._decide(transaction, False)
        for reader in ("live", "raw"):
            self._poll(reader)
        self.story.do("reader", "consumer", group="g", isolation="read_committed")
        whole = self.story.begin("reader", "read_to_end", topic=TOPIC)
        self._poll("reader")
        self.story.end(whole)
        return self.story.lines

    def _act(self, producer: str, step: int, open_transactions: dict[str, dict[str, Any]]) -> None:
        """One step of a producer: a send, or the end of its transaction in one of many ways."""
        transaction = open_transactions.get(producer)
        if transaction is None:
            client = f"{producer}.{step}"
            transaction = {"client": client, "partitions": set(), "outcome": None}
            open_transactions[producer] = transaction
            self.story.do(client, "begin")
        client = transaction["client"]
        how = self._draw(st.sampled_from(["send"] * 4 + ["commit", "abort", "die", "commit, die"]))
        if how == "send":
            self._send(client, transaction)
            return
        del open_transactions[producer]
        if how == "commit, die":
            self.story.begin(client, "commit")
            self._decide(transaction, self._draw(st.booleans()))
        elif how == "die":
            self._decide(transaction, False)
        else:
            begun = self.story.begin(client, how)
            self._decide(transaction, how == "commit")
            self.story.end(begun)

    def _send(self, client: str, transaction: dict[str, Any]) -> None:
        index = self._draw(st.integers(0, self.PARTITIONS - 1))
        value = str(self._value)
        self._value += 1
        begun = self.story.begin(client, "send", topic=TOPIC, index=index, key="k", value=value)
        offset = self._ends[index]
        self._ends[index] += 1
        name = f"{begun[0]}:{begun[1]}"
        self._logs[index].append((offset, value, name, transaction))
        transaction["partitions"].add(index)
        if self._draw(st.booleans()):
            self.story.end(begun, OK, offset=offset)

    def _decide(self, transaction: dict[str, Any], is_committed: bool) -> None:
        transaction["outcome"] = is_committed
        for index in transaction["partitions"]:
            self._ends[index] += 1

    def _poll(self, reader: str) -> None:
        rows: list[list[Any]] = []
        for index, log in enumerate(self._logs):
            for offset, value, name, transaction in log:
                if offset < self._positions.get((reader, index), 0):
                    continue
                if reader != "raw" and transaction["outcome"] is None:
                    break
                self._positions[reader, index] = offset + 1
                if reader == "raw" or transaction["outcome"]:
                    rows.append([TOPIC, index, offset, "k", value, name])
        self.story.do(reader, "poll", records=rows)


@st.composite
def runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    return Model(draw).run(draw(st.integers(1, 40)))


def kinds(lines: list[dict[str, Any]]) -> set[str]:
    return {anomaly.kind for anomaly in check(history_of(lines))}


def polls_of(lines: list[dict[str, Any]], client: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["client"] == client and line.get("records")]


@given(runs())
def test_a_run_of_the_model_is_in_order(lines: Any) -> None:
    assert kinds(lines) == set()
    # Who reads the history sees the same after it was in a file.
    assert kinds(json.loads(json.dumps(lines))) == set()


@given(runs(), st.data())
def test_a_record_taken_away_from_the_end(lines: Any, data: st.DataObject) -> None:
    polls = polls_of(lines, "reader")
    assume(polls)
    poll = polls[0]
    del poll["records"][data.draw(st.integers(0, len(poll["records"]) - 1))]
    # Lost, as it was acknowledged or read before; torn, if neither is known of its transaction.
    single = {checker.LOST, checker.TORN, checker.SKIPPING_POLL}
    found = kinds(lines)
    assert found <= single
    read_before = {(row[1], row[2]) for line in polls_of(lines, "live") for row in line["records"]}
    left = {(row[1], row[2]) for row in poll["records"]}
    if read_before - left:
        assert checker.LOST in found


@given(runs(), st.data())
def test_a_record_doubled(lines: Any, data: st.DataObject) -> None:
    polls = polls_of(lines, "reader")
    assume(polls)
    poll = polls[0]
    row = list(data.draw(st.sampled_from(poll["records"])))
    row[2] = 1_000_000
    poll["records"].append(row)
    assert checker.DUPLICATE in kinds(lines)


@given(runs(), st.data())
def test_a_record_replaced(lines: Any, data: st.DataObject) -> None:
    polls = [line for client in ("live", "raw") for line in polls_of(lines, client)]
    assume(polls)
    data.draw(st.sampled_from(data.draw(st.sampled_from(polls))["records"]))[4] = "another"
    assert checker.PHANTOM in kinds(lines)


@given(runs(), st.data())
def test_a_poll_repeated(lines: Any, data: st.DataObject) -> None:
    polls = polls_of(lines, data.draw(st.sampled_from(["live", "raw"])))
    assume(polls)
    poll = data.draw(st.sampled_from(polls))
    poll["records"].extend(poll["records"][:1] * 2)
    assert checker.BACKWARD_POLL in kinds(lines)


@given(runs(), st.data())
def test_a_record_left_out_by_a_poll(lines: Any, data: st.DataObject) -> None:
    known = Counter(
        (row[1], row[2])
        for reader in ("live", "reader")
        for poll in polls_of(lines, reader)
        for row in poll["records"]
    )
    left_out = []
    # What is known without the poll that will not have it, and lies before another of that reader.
    for reader, least in (("live", 2), ("raw", 1)):
        rows = [(line, row) for line in polls_of(lines, reader) for row in line["records"]]
        for index in (0, 1):
            mine = [each for each in rows if each[1][1] == index]
            left_out += [each for each in mine[:-1] if known[each[1][1], each[1][2]] >= least]
    assume(left_out)
    line, row = data.draw(st.sampled_from(left_out))
    line["records"].remove(row)
    assert checker.SKIPPING_POLL in kinds(lines)


@given(runs())
def test_raw_reads_told_as_committed_ones(lines: Any) -> None:
    """A read_uncommitted consumer that says read_committed is found once it makes a difference."""
    raw = {(row[1], row[2]) for line in polls_of(lines, "raw") for row in line["records"]}
    committed = {(row[1], row[2]) for line in polls_of(lines, "reader") for row in line["records"]}
    for line in lines:
        if line["client"] == "raw" and line.get("isolation"):
            line["isolation"] = "read_committed"
    if raw - committed:
        assert kinds(lines) & {checker.ABORTED_READ, checker.UNCOMMITTED_READ, checker.LOST}
