"""Expressions that groups subscribe by: checked, and resolved into topic names (KIP-848).

They are RE2's, as in Apache Kafka (RE2/J): matching takes time linear in pattern and name, and
there are no back references or look-arounds. An expression has to match a whole name. Bounded: the
memory of a compiled expression, and so its size, and the time for all names; a hostile one is
refused, or matches nothing. RE2 is loaded by the first group that has an expression. Pure
functions: `check_regex` is quick, `resolve` blocks for as long as there are names and runs in a
thread of its own kind.
"""

import functools
import logging
import time
from collections.abc import Collection, Iterable
from typing import Any

from kafka.errors import BrokerResponseError

_log = logging.getLogger(__name__)

# RE2 gives two thirds of it to the compiled expression: some 2,700 steps of its machine, of which
# the worst take 10 ms for the longest name. Who lists a hundred names stays below.
_MOST_BYTES = 64 * 1024
# Ten thousand names take an expression that anybody means some 50 ms.
_LONGEST_RESOLVING_S = 2.0
_LONGEST_REGEX = 4096
_REMEMBERED = 128


class InvalidRegularExpressionError(BrokerResponseError):  # type: ignore[misc]
    """The expression cannot be compiled, or is too large."""

    errno = 128
    message = "INVALID_REGULAR_EXPRESSION"
    description = "The regular expression is not valid."


def check_regex(regex: str) -> None:
    """Raises InvalidRegularExpressionError."""
    _compiled(regex)


def resolve(regexes: Iterable[str], names: Collection[str]) -> dict[str, frozenset[str]]:
    """The names that each expression matches. One that is not valid, or too slow, matches none."""
    return {regex: _matched(regex, names) for regex in regexes}


def _matched(regex: str, names: Collection[str]) -> frozenset[str]:
    try:
        pattern = _compiled(regex)
    except InvalidRegularExpressionError:  # of another broker, which allowed more
        return frozenset()
    until_s = time.monotonic() + _LONGEST_RESOLVING_S
    found = set()
    for name in names:
        if pattern.fullmatch(name) is not None:
            found.add(name)
        if time.monotonic() > until_s:
            _log.warning("topic_regex.too_slow regex=%r", regex)
            return frozenset()
    return frozenset(found)


@functools.lru_cache(_REMEMBERED)
def _compiled(regex: str) -> Any:
    try:
        import re2  # memory that most brokers never need
    except ImportError:
        raise InvalidRegularExpressionError("google-re2 is not installed here") from None
    if len(regex) > _LONGEST_REGEX:
        raise InvalidRegularExpressionError(
            f"SubscribedTopicRegex is longer than {_LONGEST_REGEX} characters"
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_BYTES
    options.never_capture = True
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpressionError(
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {text}"
        ) from None
