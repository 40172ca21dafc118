"""The one place where errors become Kafka's wire codes."""

from collections import Counter

from kafka.errors import BrokerResponseError, UnknownError

ANSWERED: Counter[int] = Counter()
"""How often this process has answered each error code."""


def wire_error(error: BrokerResponseError | None) -> tuple[int, str | None]:
    """(error code, message or None); (0, None) for no error."""
    if error is None:
        return 0, None
    message = str(error.args[0]) if error.args else None
    code = UnknownError.errno if error.errno is None else error.errno
    ANSWERED[code] += 1
    return code, message
