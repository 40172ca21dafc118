"""The errors a user of the connector meets, all on one screen.

Every message says what to change. Wire errors that the connector does not explain better stay
kafka-python's own classes (`kafka.errors`), which carry Kafka's error code as `errno`.
Messages never hold a secret: options are named, their values only where they are not credentials.
"""


class KafkalogError(Exception):
    """Root of the connector's own errors."""


class InvalidOptionError(KafkalogError, ValueError):
    """An option is missing, malformed, or contradicts another."""


class BrokersUnreachableError(KafkalogError, ConnectionError):
    """No broker of `kafka.bootstrap.servers` answered within `kafka.request.timeout.ms`."""


class UnknownTopicError(KafkalogError, LookupError):
    """A named topic, or a partition of it, does not exist."""


class DataLossError(KafkalogError):
    """Offsets that were asked for are gone: deleted by retention, or the topic was recreated."""


class FetchTimeoutError(KafkalogError, TimeoutError):
    """A partition stopped answering below the offset that it is known to reach."""


class DeliveryError(KafkalogError):
    """Records could not be written: refused by the broker, or `delivery.timeout.ms` went by."""


class InvalidRowError(KafkalogError, ValueError):
    """A DataFrame to be written has no usable column, topic or type for a record."""


class LoadConflictError(KafkalogError):
    """Another load of the same name committed first; nothing of this one was published."""
