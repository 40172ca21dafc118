"""A point in time that parts never move."""

import time

import pytest

from pyspark_kafkalog.client.deadline import Deadline


def test_what_is_left_falls_to_zero_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    deadline = Deadline(1500)
    assert (deadline.remaining_s, deadline.remaining_ms, deadline.expired) == (1.5, 1500, False)
    now[0] += 1.4
    assert (deadline.remaining_ms, deadline.expired) == (99, False)
    assert repr(deadline) == "Deadline(99 of 1500 ms left)"
    now[0] += 0.2
    assert (deadline.remaining_s, deadline.remaining_ms, deadline.expired) == (0, 0, True)


def test_a_part_is_shorter_but_never_longer_than_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    deadline = Deadline(1000)
    assert deadline.part(300).remaining_ms == 300
    now[0] = 0.9
    assert deadline.part(300).remaining_ms in (99, 100)
    now[0] = 2.0
    assert deadline.part(300).expired


def test_a_pause_ends_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    Deadline(1000).pause(0.25)
    Deadline(100).pause(0.25)
    assert slept == [0.25, 0.1]
