"""Which errors of a load may pass by themselves, and which stay until something is changed."""

from pyspark_kafkalog.errors import (
    BadRecordError,
    DataLossError,
    InvalidOptionError,
    InvalidRowError,
    InvalidSchemaError,
    InvalidTopicNameError,
    LogTruncatedError,
    MalformedValueError,
    MessageTooLargeError,
    MissingExtraError,
    OtherModeError,
)
from pyspark_kafkalog.warehouse.service.agenda import Ended

_STAY = (
    BadRecordError,
    DataLossError,
    InvalidOptionError,
    InvalidRowError,
    InvalidSchemaError,
    InvalidTopicNameError,
    MalformedValueError,
    MessageTooLargeError,
    MissingExtraError,
    OtherModeError,
)


def how_ended(error: Exception) -> Ended:
    """All that is not known to stay may pass: brokers and databases that are away, a registry, a
    full disk, another load of the name that was first, a topic that is not there yet."""
    if isinstance(error, _STAY) and not isinstance(error, LogTruncatedError):
        return Ended.WILL_STAY
    return Ended.MAY_PASS
