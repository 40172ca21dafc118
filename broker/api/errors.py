"""The one place where errors become Kafka's wire codes."""

from kafka.errors import BrokerResponseError, UnknownError


def wire_error(error: BrokerResponseError | None) -> tuple[int, str | None]:
    """(error code, message or None); (0, None) for no error."""
    if error is None:
        return 0, None
    message = str(error.args[0]) if error.args else None
    return UnknownError.errno if error.errno is None else error.errno, message
