"""What responses say of errors."""

from kafka.errors import BrokerResponseError

from broker.cluster.error_codes import code_of

__all__ = ["code_of", "wire_error"]


def wire_error(error: BrokerResponseError | None) -> tuple[int, str | None]:
    """(error code, message or None); (0, None) for no error."""
    message = str(error.args[0]) if error is not None and error.args else None
    return code_of(error), message
