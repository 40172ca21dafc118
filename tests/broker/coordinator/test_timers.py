"""Timers: one by key, moved without cost, cancelled for good."""

from broker.coordinator.timers import Timers
from tests.broker.coordinator.in_memory import FakeTime


def timers() -> tuple[FakeTime, Timers]:
    time = FakeTime()
    return time, Timers(time.call_later, time.clock_s)


def test_a_timer_runs_once_when_its_time_has_come() -> None:
    time, under_test = timers()
    runs = []
    under_test.schedule("a", 1000, lambda: runs.append(time.now_s))
    time.advance(0.9)
    assert "a" in under_test
    time.advance(10)
    assert runs == [1.0]
    assert "a" not in under_test


def test_a_timer_that_is_set_anew_runs_at_its_new_time_alone() -> None:
    time, under_test = timers()
    runs: list[object] = []
    under_test.schedule("a", 1000, lambda: runs.append("old"))
    time.advance(0.5)
    under_test.schedule("a", 1000, lambda: runs.append(time.now_s))
    under_test.schedule("a", 2000, lambda: runs.append(time.now_s))
    time.advance(10)
    assert runs == [2.5]


def test_a_timer_may_be_set_to_an_earlier_time() -> None:
    time, under_test = timers()
    runs: list[object] = []
    under_test.schedule("a", 9000, lambda: runs.append("old"))
    under_test.schedule("a", 1000, lambda: runs.append(time.now_s))
    time.advance(20)
    assert runs == [1.0]


def test_a_cancelled_timer_never_runs() -> None:
    time, under_test = timers()
    runs = []
    under_test.schedule("a", 1000, lambda: runs.append("a"))
    under_test.schedule("b", 1000, lambda: runs.append("b"))
    under_test.cancel("a")
    under_test.cancel("unknown")
    time.advance(10)
    assert runs == ["b"]


def test_a_timer_may_set_itself_again() -> None:
    time, under_test = timers()
    runs = []

    def again() -> None:
        runs.append(time.now_s)
        if len(runs) < 3:
            under_test.schedule("a", 1000, again)

    under_test.schedule("a", 1000, again)
    time.advance(10)
    assert runs == [1.0, 2.0, 3.0]
    assert len(under_test) == 0


def test_moving_a_timer_costs_no_operation_on_the_queue() -> None:
    time, under_test = timers()
    for _ in range(1000):
        under_test.schedule("a", 1000, lambda: None)
        time.advance(0.0001)
    assert len(time._queue) == 1
