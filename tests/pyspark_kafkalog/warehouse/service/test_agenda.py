"""Which load is next, for a week of simulated time: the clock goes from one event to the next."""

import heapq
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.service.agenda import Agenda, Ended, Retry
from pyspark_kafkalog.warehouse.service.schedule import (
    Cron,
    Every,
    Moment,
    Schedule,
    cron,
    duration_s,
    every,
)

WEEK_S = 7 * 86400.0
BEGIN = datetime(2026, 3, 25, tzinfo=timezone.utc)
"""Berlin's clocks go forward four days later."""
BERLIN = ZoneInfo("Europe/Berlin")
TURN_S = 3600.0


@dataclass
class Run:
    key: Hashable
    began_s: float
    ended_s: float


@dataclass
class Week:
    """A service of loads that take as long as they are told, and end as they are told."""

    loads: Mapping[Hashable, tuple[Schedule, Retry]]
    most_at_once: int
    random: Random
    longest_s: float = 60.0
    failing: float = 0.0
    staying: float = 0.0
    now_s: float = 0.0
    wall_ahead_s: float = 0.0
    runs: list[Run] = field(default_factory=list)
    waited_s: float = 0.0

    def __post_init__(self) -> None:
        self.agenda = Agenda(self.most_at_once, self.random)
        self.agenda.take(self.loads, self.moment)
        self.at_work: list[tuple[float, int, Hashable]] = []

    @property
    def moment(self) -> Moment:
        wall = BEGIN + timedelta(seconds=self.now_s + self.wall_ahead_s)
        return Moment(self.now_s, wall)

    def go_on(self, until_s: float) -> None:
        while self.now_s < until_s:
            for key in self.agenda.begin(self.moment):
                takes_s = self.random.uniform(0, self.longest_s)
                self.runs.append(Run(key, self.now_s, self.now_s + takes_s))
                heapq.heappush(self.at_work, (self.now_s + takes_s, len(self.runs), key))
            next_s = self.now_s + self.agenda.wait_s(self.moment, TURN_S)
            if self.at_work and self.at_work[0][0] <= next_s:
                self.now_s, _, key = heapq.heappop(self.at_work)
                self.agenda.end(key, self.outcome(), self.moment)
            else:
                self.now_s = max(next_s, self.now_s + 1e-6)

    def outcome(self) -> Ended:
        chance = self.random.random()
        if chance < self.staying:
            return Ended.WILL_STAY
        return Ended.MAY_PASS if chance < self.staying + self.failing else Ended.WELL

    def of(self, key: Hashable) -> list[Run]:
        return [run for run in self.runs if run.key == key]


schedules = st.one_of(
    st.builds(Every, st.floats(600, 40_000)),
    st.builds(
        Cron,
        st.sampled_from(["0 3 * * *", "30 2 * * *", "*/30 * * * *", "0 */6 * * 1-5"]),
        st.sampled_from([timezone.utc, BERLIN]),
    ),
)


@settings(max_examples=15)
@given(
    st.lists(schedules, min_size=1, max_size=12),
    st.integers(1, 4),
    st.floats(1, 3000),
    st.floats(0, 0.5),
    st.integers(0, 2**32),
)
def test_a_week_of_many_loads(
    kinds: list[Schedule], most: int, longest_s: float, failing: float, seed: int
) -> None:
    loads: dict[Hashable, tuple[Schedule, Retry]] = {n: (s, Retry()) for n, s in enumerate(kinds)}
    week = Week(loads, most, Random(seed), longest_s, failing)
    week.go_on(WEEK_S)
    by_time = sorted([(run.began_s, 1) for run in week.runs] + [(r.ended_s, -1) for r in week.runs])
    at_work = 0
    for _, change in sorted(by_time):
        at_work += change
        assert at_work <= most
    for key, (schedule, retry) in loads.items():
        runs = week.of(key)
        for one, other in pairwise(runs):
            assert other.began_s >= one.ended_s, "two of one load at once"
        # Each other load goes first at most once, so that is how long one may wait.
        rounds_s = (len(kinds) + 1) * longest_s + retry.most_s
        period_s = schedule.seconds if isinstance(schedule, Every) else 3.1 * 86400
        begins = [0.0, *(run.began_s for run in runs), WEEK_S]
        gaps_s = [b - a for a, b in pairwise(begins)]
        assert max(gaps_s) <= period_s + rounds_s + longest_s, "a load that starves"


def test_no_more_are_at_work_than_may_be_and_who_waited_longest_is_next() -> None:
    schedule = (Every(60), Retry())
    loads: dict[Hashable, tuple[Schedule, Retry]] = dict.fromkeys("abc", schedule)
    week = Week(loads, 2, Random(1))
    assert week.agenda.begin(week.moment) == ["a", "b"]
    assert week.agenda.begin(week.moment) == []
    assert week.agenda.wait_s(week.moment, TURN_S) == TURN_S
    week.now_s = 500
    week.agenda.take({**loads, "d": schedule}, week.moment)
    week.now_s = 1000
    # It has been due since 60, by its schedule, and waits only from now on.
    week.agenda.end("a", Ended.WELL, week.moment)
    assert week.agenda.begin(week.moment) == ["c"]
    week.agenda.end("b", Ended.WELL, week.moment)
    assert week.agenda.begin(week.moment) == ["d"]
    week.now_s = 1001
    week.agenda.end("c", Ended.WELL, week.moment)
    assert week.agenda.begin(week.moment) == ["a"]


def test_what_passes_while_a_load_is_at_work_is_one_run() -> None:
    week = Week({"a": (Every(60), Retry()), "b": (Cron("* * * * *"), Retry())}, 2, Random(1))
    for key in sorted(map(str, week.agenda.begin(week.moment))):
        assert key == "a"
    week.now_s = 60
    assert week.agenda.begin(week.moment) == ["b"]
    week.now_s = 3600.5
    for key in ("a", "b"):
        week.agenda.end(key, Ended.WELL, week.moment)
    assert week.agenda.begin(week.moment) == ["a"]
    week.agenda.end("a", Ended.WELL, week.moment)
    assert week.agenda.wait_s(week.moment, TURN_S) == pytest.approx(59.5)
    week.now_s = 3660
    assert week.agenda.begin(week.moment) == ["b"]


@pytest.mark.parametrize(
    ("line", "times"),
    [
        # Clocks go forward from 2 to 3 on the 29th.
        ("30 2 * * *", ["28 01:30", "29 01:00", "30 00:30"]),
        ("0 3 * * *", ["28 02:00", "29 01:00", "30 01:00"]),
        ("0 12 * * *", ["28 11:00", "29 10:00", "30 10:00"]),
    ],
)
def test_summer_time_leaves_no_run_out(line: str, times: list[str]) -> None:
    week = Week({"a": (Cron(line, BERLIN), Retry())}, 1, Random(1), longest_s=1)
    week.go_on(WEEK_S)
    found = [BEGIN + timedelta(seconds=run.began_s) for run in week.runs]
    assert [each.strftime("%d %H:%M") for each in found if 28 <= each.day <= 30] == times


def test_what_clocks_have_twice_is_run_once() -> None:
    # Clocks go back from 3 to 2 on October 25.
    schedule = Cron("30 2 * * *", BERLIN)
    now = Moment(0, datetime(2026, 10, 24, 22, tzinfo=timezone.utc))
    first = schedule.after(now, now)
    assert first.wall is not None
    second = schedule.after(now, Moment(0, first.wall))
    assert second.wall is not None
    assert second.wall - first.wall > timedelta(hours=20)


def test_a_wall_clock_that_is_set_harms_no_interval_and_no_cron_line() -> None:
    loads: dict[Hashable, tuple[Schedule, Retry]] = {
        "often": (Every(600), Retry()),
        "daily": (Cron("0 3 * * *"), Retry()),
    }
    week = Week(loads, 2, Random(1), longest_s=1)
    week.go_on(86400 * 1.5)
    week.wall_ahead_s = 86400 * 30
    week.go_on(86400 * 2.5)
    assert len(week.of("daily")) == 4  # at once after the jump, too
    week.wall_ahead_s = 0
    week.go_on(86400 * 2.6)
    assert max(b.began_s - a.began_s for a, b in pairwise(week.of("often"))) < 602
    # Not a month later, when the clock shows again what it had shown.
    week.go_on(86400 * 4.5)
    assert len(week.of("daily")) == 6
    week.wall_ahead_s = -3600
    week.go_on(86400 * 5.5)
    assert len(week.of("daily")) == 7


def test_failures_are_tried_again_after_longer_and_longer_and_by_chance() -> None:
    retry = Retry(first_s=1, most_s=300)
    random = Random(7)
    waits = [[retry.wait_s(failures, random) for _ in range(500)] for failures in range(1, 100)]
    assert all(max(each) <= min(300, 2.0**n) for n, each in enumerate(waits))
    assert max(waits[-1]) > 250
    assert min(waits[-1]) < 50, "loads that failed together would come back together"
    week = Week({"a": (Every(3600), retry)}, 1, random)
    for _ in range(3):
        assert week.agenda.begin(week.moment) == ["a"]
        wait_s = week.agenda.end("a", Ended.MAY_PASS, week.moment)
        assert wait_s is not None
        week.now_s += wait_s
    assert week.agenda.begin(week.moment) == ["a"]
    assert week.agenda.end("a", Ended.WELL, week.moment) is None
    assert week.agenda.wait_s(week.moment, 10_000) == pytest.approx(3600)


def test_what_will_stay_is_held_until_the_loads_are_read_anew() -> None:
    loads: dict[Hashable, tuple[Schedule, Retry]] = {"a": (Every(60), Retry())}
    week = Week(loads, 1, Random(1))
    week.agenda.begin(week.moment)
    week.agenda.end("a", Ended.WILL_STAY, week.moment)
    assert week.agenda.held() == ["a"]
    week.go_on(WEEK_S)
    assert not week.runs
    week.agenda.take(loads, week.moment)
    assert week.agenda.begin(week.moment) == ["a"]
    # Read anew while it fails once more: what it fails by may be mended.
    week.agenda.take(loads, week.moment)
    week.agenda.end("a", Ended.WILL_STAY, week.moment)
    assert week.agenda.held() == []


def test_loads_that_are_gone_end_first_and_never_run_beside_themselves() -> None:
    loads: dict[Hashable, tuple[Schedule, Retry]] = {"a": (Every(60), Retry())}
    week = Week(loads, 2, Random(1))
    assert week.agenda.begin(week.moment) == ["a"]
    week.agenda.take({}, week.moment)
    assert week.agenda.at_work() == ["a"]
    week.agenda.take(loads, week.moment)
    assert week.agenda.begin(week.moment) == []
    week.agenda.take({}, week.moment)
    week.agenda.end("a", Ended.WELL, week.moment)
    assert week.agenda.at_work() == []
    week.go_on(3600)
    assert not week.runs


@pytest.mark.parametrize(
    ("text", "seconds"), [("5 minutes", 300), ("90s", 90), ("1 h 30 m", 5400), ("1.5 h", 5400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "minutes", "5 parsecs", "-5 minutes", "0 s", "9999 d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError):
        every(text)


@pytest.mark.parametrize("line", ["", "* * *", "61 * * * *", "0 0 30 2 *", "@yearly x"])
def test_what_is_no_cron_line_is_refused(line: str) -> None:
    with pytest.raises(InvalidOptionError, match="no cron line"):
        cron(line, timezone.utc)
