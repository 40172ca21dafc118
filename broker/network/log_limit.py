"""Log lines that peers can cause: a few of each kind in a while, the rest is counted.

Called by: the event loop's thread only.
"""

import logging
import time
from collections.abc import Callable

_LINES_PER_INTERVAL = 10
_INTERVAL_S = 60.0
_LONGEST_TEXT = 200


class LimitedLog:
    """`warning` and `exception` of a logger, at most 10 lines a minute for each event."""

    def __init__(self, logger: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now_s = now_s
        # By event: (end of its interval, lines in it).
        self._lines: dict[str, tuple[float, int]] = {}

    def warning(self, event: str, peer: object, reason: str) -> None:
        suppressed = self._suppressed_before(event)
        if suppressed is not None:
            self._logger.warning("%s peer=%s reason=%r%s", event, peer, _cut(reason), suppressed)

    def exception(self, event: str, peer: object) -> None:
        """With the traceback of the exception being handled."""
        suppressed = self._suppressed_before(event)
        if suppressed is not None:
            self._logger.exception("%s peer=%s%s", event, peer, suppressed)

    def _suppressed_before(self, event: str) -> str | None:
        """What the next line of `event` says of those left out; None when it is left out too."""
        now_s = self._now_s()
        end_s, lines = self._lines.get(event, (0.0, 0))
        suppressed = ""
        if now_s >= end_s:
            if lines > _LINES_PER_INTERVAL:
                suppressed = f" suppressed={lines - _LINES_PER_INTERVAL}"
            end_s, lines = now_s + _INTERVAL_S, 0
        self._lines[event] = (end_s, lines + 1)
        return suppressed if lines < _LINES_PER_INTERVAL else None


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."
