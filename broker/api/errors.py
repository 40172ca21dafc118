"""The one place where errors become Kafka's wire codes."""

from kafka.errors import BrokerResponseError, UnknownError


def code_of(error: BrokerResponseError | None) -> int:
    """0 for no error."""
    if error is None:
        return 0
    return UnknownError.errno if error.errno is None else int(error.errno)


def wire_error(error: BrokerResponseError | None) -> tuple[int, str | None]:
    """(error code, message or None); (0, None) for no error."""
    message = str(error.args[0]) if error is not None and error.args else None
    return code_of(error), message
