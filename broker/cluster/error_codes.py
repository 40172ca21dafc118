"""The one place where errors become Kafka's wire codes."""

from kafka.errors import BrokerResponseError, UnknownError


def code_of(error: BrokerResponseError | None) -> int:
    """0 for no error."""
    if error is None:
        return 0
    return UnknownError.errno if error.errno is None else int(error.errno)
