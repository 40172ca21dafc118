"""The errors a user of the connector meets, all on one screen, and what they say in a sentence.

Every message says what to change. Wire errors that the connector does not explain better stay
kafka-python's own classes (`kafka.errors`), which carry Kafka's error code as `errno`.
Messages never hold a secret: options are named, their values only where they are not credentials.
"""


class KafkalogError(Exception):
    """Root of the connector's own errors."""


class InvalidOptionError(KafkalogError, ValueError):
    """An option is missing, malformed, or contradicts another."""


class MissingExtraError(KafkalogError, ImportError):
    """A kind of load target or of value format needs libraries of an extra."""


class BrokersUnreachableError(KafkalogError, ConnectionError):
    """No broker of `kafka.bootstrap.servers`, or none that leads what is needed, served a request
    within `kafka.request.timeout.ms`."""


class AuthenticationError(KafkalogError):
    """A broker refused the credentials, or its TLS certificate cannot be trusted."""


class UnknownTopicError(KafkalogError, LookupError):
    """A named topic, or a partition of it, does not exist."""


class UnknownGroupError(KafkalogError, LookupError):
    """A named consumer group does not exist."""


class InvalidTopicNameError(KafkalogError, ValueError):
    """A topic has a name that no topic can have."""


class DataLossError(KafkalogError):
    """Offsets that were asked for are gone: deleted by retention, or the topic was recreated.

    `log_start_offset` and `log_end_offset` say what the partition holds instead, where the raiser
    knows; -1 otherwise.
    """

    log_start_offset: int = -1
    log_end_offset: int = -1


class TopicRecreatedError(DataLossError):
    """A topic was deleted and created again under its name: its offsets mean other records now."""


class LogTruncatedError(DataLossError):
    """A log lost its end, from `log_end_offset` on, while that was read, and others have its
    offsets: to read again is right, whatever failOnDataLoss says."""


class FetchTimeoutError(KafkalogError, TimeoutError):
    """A partition stopped answering below the offset that it is known to reach."""


class DeliveryError(KafkalogError):
    """Records could not be written: refused by the broker, or `delivery.timeout.ms` went by."""


class MessageTooLargeError(DeliveryError):
    """A batch exceeds `max.request.size` here or the topic's `max.message.bytes` there."""


class DeliveryTimeoutError(DeliveryError, TimeoutError):
    """A batch was not acknowledged within `delivery.timeout.ms`."""


class InvalidRowError(KafkalogError, ValueError):
    """A DataFrame to be written has no usable column, topic or type for a record."""


class BadRecordError(KafkalogError, ValueError):
    """A record's value could not be decoded, and the load was not told to go on."""


class TransactionError(KafkalogError):
    """A write with the option transactionalIdPrefix cannot go on."""


class PrefixInUseError(TransactionError):
    """Another query or write has the same transactionalIdPrefix, or replaced this one."""


class TransactionAbortedError(TransactionError):
    """The brokers aborted transactions of a write, which is to be run again."""


class PartlyCommittedError(TransactionError):
    """Some transactions of a write are committed, others not or not known, and the rows differ."""


class CommitUnfinishedError(TransactionError):
    """A write is decided, or may be, and the brokers went away before all of it was visible."""


class DecisionsLostError(TransactionError):
    """What a transactionalIdPrefix has committed is not known any more: its topic of decisions was
    deleted, created again or emptied."""


class CheckpointError(KafkalogError):
    """A file of a query's checkpoint is cut short, or its sources have changed, so that Spark would
    read records again, or leave some out."""


class LoadConflictError(KafkalogError):
    """Another load of the same name committed first; nothing of this one was published."""


class TargetError(KafkalogError):
    """The target of a load cannot be used: its path, its file system, or its commit files."""


class UnknownTargetError(TargetError, LookupError):
    """The target of a load is not there, and what was asked for makes none."""


class OtherModeError(TargetError):
    """A table is to be loaded in another mode, or by another key or order, than it was before."""


class WouldDoubleError(TargetError):
    """A load that goes back would land rows a second time: the target has `rows` of them."""

    rows: int = 0


class InvalidSchemaError(KafkalogError, ValueError):
    """A schema for decoding values is malformed, or cannot read what was written."""


class MalformedValueError(KafkalogError, ValueError):
    """A value is not what its schema says, and the mode is FAILFAST."""


class SchemaRegistryError(KafkalogError):
    """A schema registry did not answer, refused the credentials, or lacks a subject."""


class BrokerStartError(KafkalogError):
    """The embedded broker did not start; the message ends with what it said last."""


def counted(count: int, noun: str) -> str:
    """`1 record`, `1,200 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def sentence(error: Exception) -> str:
    """What an error says, without the class names that are for programs."""
    if isinstance(error, OSError) and not isinstance(error, KafkalogError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    if not error.args and getattr(error, "description", None):
        return f"The broker refused: {error.description}"  # type: ignore[attr-defined]
    return ", ".join(map(str, error.args)) or type(error).__name__
