"""How long a test waits for what must happen soon."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

BUSY_S = 10.0
"""What a machine with other work may add to a time limit. Less than any default timeout (30 s), so
that a limit which is not kept at all is noticed."""
EVENT_S = 60.0
"""How long an event may take that is certain to come."""

_Found = TypeVar("_Found")


def wait_until(
    find: Callable[..., _Found],
    what: object | Callable[[], object],
    timeout_s: float = EVENT_S,
    pause_s: float = 0.01,
) -> _Found:
    """What `find`, called with nothing, finds when it is true for the first time; where it stays
    false, AssertionError with `what` was waited for, or with what that says in the end."""
    deadline = time.monotonic() + timeout_s
    while not (found := find()):
        if time.monotonic() > deadline:
            said = what() if callable(what) else what
            raise AssertionError(f"not within {timeout_s} s: {said}")
        time.sleep(pause_s)
    return found


async def eventually(
    find: Callable[[], _Found], what: object = "", timeout_s: float = EVENT_S
) -> _Found:
    """As `wait_until`, on the event loop, whose other tasks go on meanwhile."""
    deadline = time.monotonic() + timeout_s
    while not (found := find()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.001)
    return found
