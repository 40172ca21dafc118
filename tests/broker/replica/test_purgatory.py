"""What waits: each is told once, for the first reason that comes."""

from collections.abc import Callable

import pytest
from kafka.structs import TopicPartition

from broker.replica.delayed import DelayedFetch
from broker.replica.partition import Isolation
from broker.replica.purgatory import Purgatory

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Clock:
    """Timers that fire when the test says so."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "Timer":
        self.timers.append(Timer(delay_s, callback))
        return self.timers[-1]

    def fire(self) -> None:
        for timer in self.timers:
            if not timer.cancelled:
                timer.callback()


class Timer:
    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def purgatory(clock: Clock) -> Purgatory:
    return Purgatory(clock.call_later)


def wait(
    purgatory: Purgatory, *partitions: TopicPartition, missing_bytes: int = 100
) -> tuple[DelayedFetch, list[int]]:
    ran: list[int] = []
    fetch = DelayedFetch(partitions, missing_bytes, Isolation.HIGH_WATERMARK)
    purgatory.wait(fetch, 5000, lambda: ran.append(1))
    return fetch, ran


def test_enough_bytes_of_several_partitions(purgatory: Purgatory, clock: Clock) -> None:
    _, ran = wait(purgatory, A, B)
    purgatory.became_visible(A, 60, 60)
    purgatory.became_visible(TopicPartition("other", 0), 1000, 1000)
    assert ran == []
    purgatory.became_visible(B, 40, 40)
    assert ran == [1]
    assert clock.timers[0].cancelled
    purgatory.became_visible(A, 1000, 1000)
    assert ran == [1]
    assert purgatory.count(DelayedFetch) == 0


def test_time_is_up(purgatory: Purgatory, clock: Clock) -> None:
    _, ran = wait(purgatory, A, B)
    assert clock.timers[0].delay_s == 5
    clock.fire()
    assert ran == [1]
    assert purgatory.count(DelayedFetch) == 0


def test_woken_for_another_reason(purgatory: Purgatory) -> None:
    _, ran_a = wait(purgatory, A)
    _, ran_b = wait(purgatory, B)
    purgatory.wake(A)
    assert (ran_a, ran_b) == ([1], [])
    assert purgatory.count(DelayedFetch) == 1


def test_cancelled(purgatory: Purgatory, clock: Clock) -> None:
    fetch, ran = wait(purgatory, A, B)
    fetch.cancel()
    fetch.cancel()
    purgatory.became_visible(A, 1000, 1000)
    clock.fire()
    assert ran == []
    assert purgatory.count(DelayedFetch) == 0


def test_one_that_waits_again_when_run(purgatory: Purgatory) -> None:
    """A fetch that is woken may lead to the next one on the same partition at once."""
    rounds: list[int] = []

    def again() -> None:
        rounds.append(1)
        if len(rounds) < 3:
            purgatory.wait(DelayedFetch([A], 10, Isolation.HIGH_WATERMARK), 5000, again)

    purgatory.wait(DelayedFetch([A], 10, Isolation.HIGH_WATERMARK), 5000, again)
    for expected in (1, 2, 3):
        purgatory.became_visible(A, 10, 10)
        assert len(rounds) == expected
    assert purgatory.count(DelayedFetch) == 0


def test_fetches_of_many_partitions_leave_room_when_they_go(purgatory: Purgatory) -> None:
    partitions = [TopicPartition("t", number) for number in range(1000)]
    while not purgatory.is_full:
        wait(purgatory, *partitions)
    for partition in partitions[:1]:
        purgatory.wake(partition)
    assert purgatory.count(DelayedFetch) == 0
    for _ in range(2000):
        fetch, _ = wait(purgatory, *partitions[:10])
        fetch.cancel()
    assert not purgatory.is_full
