"""How a test lets time pass: until what must happen soon, as long as what must not would take, and
up to an instant at random.

No test does it otherwise (`tests/test_house.py`): to await an event is quicker and surer than a
time that was long enough once.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

BUSY_S = 10.0
"""What a machine with other work may add to a time limit. Less than any default timeout (30 s), so
that a limit which is not kept at all is noticed."""
EVENT_S = 60.0
"""How long an event may take that is certain to come."""

_Found = TypeVar("_Found")


# What must happen.


def wait_until(
    find: Callable[..., _Found],
    what: object | Callable[[], object],
    timeout_s: float = EVENT_S,
    pause_s: float = 0.01,
) -> _Found:
    """What `find`, called with nothing, finds when it is true for the first time; where it stays
    false, AssertionError with `what` was waited for, or with what that says in the end."""
    for _ in attempts(what, timeout_s, pause_s):
        if found := find():
            break
    return found


def wait_for(
    ask: Callable[[], _Found],
    is_wanted: Callable[[_Found], object],
    timeout_s: float = EVENT_S,
    pause_s: float = 0.02,
) -> _Found:
    """The first answer to `ask` that is wanted; where none is, AssertionError with the last one."""
    for _ in attempts(lambda: f"another answer than {answer}", timeout_s, pause_s):
        if is_wanted(answer := ask()):
            break
    return answer


def insist(
    act: Callable[[], _Found],
    *errors: type[BaseException],
    timeout_s: float = EVENT_S,
    pause_s: float = 0.05,
) -> _Found:
    """What `act` gives back when it does not raise one of `errors` any more; the last of them where
    it does so all the time."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return act()
        except errors:
            if time.monotonic() > deadline:
                raise
        time.sleep(pause_s)


def attempts(
    what: object | Callable[[], object], timeout_s: float = EVENT_S, pause_s: float = 0.0
) -> Iterator[None]:
    """The turns of a loop that asks or polls, and leaves when it has all it waits for; the
    AssertionError of `wait_until` where it does not."""
    deadline = time.monotonic() + timeout_s
    yield
    while time.monotonic() <= deadline:
        time.sleep(pause_s)
        yield
    raise AssertionError(f"not within {timeout_s} s: {what() if callable(what) else what}")


async def eventually(
    find: Callable[[], _Found], what: object = "", timeout_s: float = EVENT_S
) -> _Found:
    """As `wait_until`, on the event loop, whose other tasks go on meanwhile."""
    deadline = time.monotonic() + timeout_s
    while not (found := find()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.001)
    return found


async def turns(count: int = 1) -> None:
    """Of the event loop: what is ready has its turn in each."""
    for _ in range(count):
        await asyncio.sleep(0)


# What must not happen has no event of its own: as long as it would take, and some more.


def stays(holds: Callable[[], object], for_s: float) -> bool:
    """Whether `holds`, called with nothing, is true all that time."""
    until_s = time.monotonic() + for_s
    while is_so := bool(holds()):
        if time.monotonic() > until_s:
            break
        time.sleep(min(0.01, for_s))
    return is_so


async def stays_so(holds: Callable[[], object], for_s: float) -> bool:
    """As `stays`, on the event loop."""
    until_s = time.monotonic() + for_s
    while is_so := bool(holds()):
        if time.monotonic() > until_s:
            break
        await asyncio.sleep(min(0.001, for_s))
    return is_so


# What is done to others, or goes on, whatever happens.


def at_random(chance: random.Random, longest_s: float, shortest_s: float = 0.0) -> float:
    """Returns at some instant in so many seconds: after how many."""
    after_s = chance.uniform(shortest_s, longest_s)
    time.sleep(after_s)
    return after_s


def for_seconds(seconds: float) -> Iterator[None]:
    """The turns of a loop that goes on for so long."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        yield
