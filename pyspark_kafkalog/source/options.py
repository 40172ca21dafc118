"""The options of `format("kafkalog")`: names, defaults and rules of Spark's Kafka connector.

Owns the parsing of Spark's options (a case-insensitive mapping whose keys arrive in lower case)
into SourceOptions and SinkOptions, which travel pickled to the tasks. Messages name options, never
the values of `kafka.*` options, which may be secrets. Never talks to a broker.
"""

import difflib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from pyspark_kafkalog.client import properties as client_properties
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import POLL_TIMEOUT_MS
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.offsets import (
    EARLIEST,
    LATEST,
    Limit,
    OffsetLimit,
    TimeLimit,
    describe,
    parse_assignment,
    parse_offset_limit,
    parse_start,
    parse_times,
)
from pyspark_kafkalog.source.option_table import (
    ENGINE_OPTIONS,
    OPTIONS_WITHOUT_EFFECT,
    READ_OPTIONS,
    STREAM_OPTIONS,
    SUBSCRIPTION_OPTIONS,
    WRITE_OPTIONS,
    names,
)
from pyspark_kafkalog.source.partitions import (
    AssignPartitions,
    SubscribePattern,
    SubscribeTopics,
    Subscription,
)
from pyspark_kafkalog.source.splitting import Splitting
from pyspark_kafkalog.source.trigger_limits import DEFAULT_MAX_TRIGGER_DELAY_MS, TriggerLimits

_CLIENT_PREFIX = "kafka."
_BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"
_SUBSCRIPTIONS = names(SUBSCRIPTION_OPTIONS)
_SOURCE_OPTIONS = names(READ_OPTIONS)
_STREAM_OPTIONS = names(STREAM_OPTIONS)
_SINK_OPTIONS = names(WRITE_OPTIONS)
_ENGINE_OPTIONS = names(ENGINE_OPTIONS)
_NO_EFFECT = names(OPTIONS_WITHOUT_EFFECT)

_REFUSED_BY_SOURCE = MappingProxyType(
    {
        "kafka.auto.offset.reset": "Set the option startingOffsets to earliest or latest instead.",
        "kafka.key.deserializer": "Keys are read as binary; decode them with DataFrame operations.",
        "kafka.value.deserializer": (
            "Values are read as binary; decode them with DataFrame operations."
        ),
        "kafka.enable.auto.commit": "The source commits no offsets of a consumer group.",
        "kafka.interceptor.classes": "Interceptors are Java classes; remove the option.",
    }
)
_REFUSED_BY_SINK = MappingProxyType(
    {
        "kafka.key.serializer": "Keys are string or binary; encode them with DataFrame operations.",
        "kafka.value.serializer": (
            "Values are string or binary; encode them with DataFrame operations."
        ),
        "kafka.transactional.id": "Set the option transactionalIdPrefix instead.",
    }
)
# How the options of a table in Spark's catalog are given, by what is to be done with it.
_OF_A_TABLE = (
    " Spark hands the options that a table was created with to no Python data source: of a table t "
    "name them again, "
)
_READ_A_TABLE = "FROM t WITH (`kafka.bootstrap.servers` = '...', subscribe = '...')."
_STREAM_A_TABLE = (
    "FROM STREAM t WITH (`kafka.bootstrap.servers` = '...', subscribe = '...') or "
    'spark.readStream.options(...).table("t").'
)
_WRITE_A_TABLE = (
    "INSERT INTO t WITH (`kafka.bootstrap.servers` = '...', topic = '...') or "
    'df.writeTo("t").options(...).append().'
)
# What a topic may be named, of which the prefix is the beginning.
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,200}")

_SPARK_OFFSET_ATTEMPTS = 3
_SPARK_OFFSET_INTERVAL_MS = 1000
_LARGEST_INT = 2**31 - 1
_LARGEST_LONG = 2**63 - 1
# Spark's time strings, in ms; without a unit they are in ms.
_TIME_UNITS_MS = MappingProxyType(
    {
        "us": 1 / 1000,
        "ms": 1,
        "": 1,
        "s": 1000,
        "m": 60_000,
        "min": 60_000,
        "h": 3_600_000,
        "d": 86_400_000,
    }
)
_BYTES = re.compile(r"\+?([0-9]{1,18})([kmgt]?)(?:i?b)?")
_BYTE_UNITS = MappingProxyType({"": 0, "k": 10, "m": 20, "g": 30, "t": 40})
_TIME = re.compile(r"([0-9]{1,18})([a-z]*)")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetRetries:
    """How often, and how long apart, a stream asks for offsets that lack what it has seen before.

    What brokers refuse or do not answer is asked again by the client, for
    `kafka.request.timeout.ms`.
    """

    attempts: int = 25
    interval_ms: int = 200


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a read was asked for; `starting` and `ending` hold the defaults where not given.

    With `permissive` a record with a field that no row can hold has null there, and is an error
    otherwise.
    """

    client: ClientConfig
    subscription: Subscription
    starting: Limit
    ending: Limit
    fail_on_data_loss: bool
    include_headers: bool
    splitting: Splitting
    trigger_limits: TriggerLimits
    poll_timeout_ms: int
    offset_retries: OffsetRetries
    commit_group: str | None
    permissive: bool = False


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a write was asked for; `topic` overrides the column of that name.

    `transactional_id_prefix` makes it a transactional one; `checkpoint_location` is Spark's own.
    """

    client: ClientConfig
    topic: str | None
    transactional_id_prefix: str | None = None
    checkpoint_location: str | None = None


def check_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Checks all that batch and streaming reads have in common; raises InvalidOptionError.

    Used when only the schema is asked for: Spark does not say then which kind of read it will be.
    """
    values = _lowered(options)
    _refuse(values, _REFUSED_BY_SOURCE)
    return SourceOptions(
        client=client_config(values),
        subscription=_subscription(values),
        starting=_limit(values, "starting", EARLIEST, _starts_at_latest_if_none(values)),
        ending=_limit(values, "ending", LATEST, latest_if_none=True),
        fail_on_data_loss=parse_boolean(values, "failOnDataLoss", default=True),
        include_headers=parse_boolean(values, "includeHeaders", default=False),
        splitting=Splitting(
            min_partitions=_whole_number(values, "minPartitions", least=1, most=_LARGEST_INT),
            max_records=_whole_number(values, "maxRecordsPerPartition", least=1),
            max_ranges_per_task=_whole_number(values, "maxPartitionsPerTask", 1, _LARGEST_INT) or 1,
        ),
        trigger_limits=_trigger_limits(values),
        poll_timeout_ms=_whole_number(values, "kafkaConsumer.pollTimeoutMs", least=1)
        or POLL_TIMEOUT_MS,
        offset_retries=_offset_retries(values),
        commit_group=_group(values, "commitOffsetsToGroup"),
        permissive=_is_permissive(values),
    )


def batch_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.read`: startingOffsets defaults to earliest, endingOffsets to latest.

    Of several options that say where to start or end, a time for all partitions goes before times
    of each, and these before offsets, as in Spark.

    Raises InvalidOptionError; warns about options that nobody knows.
    """
    values = _lowered(options)
    _check_servers(values, _OF_A_TABLE + _READ_A_TABLE)
    parsed = check_source_options(options)
    _refuse_symbol("startingOffsets", parsed.starting, LATEST, "latest (-1)")
    _refuse_symbol("endingOffsets", parsed.ending, EARLIEST, "earliest (-2)")
    _check_times(parsed.starting, parsed.ending)
    for name in _STREAM_OPTIONS:
        if name.lower() in values:
            warn_once(f"Option {name} has no effect in a batch query.")
    warn_unknown(values, (*_SOURCE_OPTIONS, *_STREAM_OPTIONS))
    return parsed


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.readStream`: startingOffsets defaults to latest.

    Raises InvalidOptionError; warns about options that nobody knows.
    """
    values = _lowered(options)
    _check_servers(values, _OF_A_TABLE + _STREAM_A_TABLE)
    for name in ("endingOffsets", "endingOffsetsByTimestamp"):
        if name.lower() in values:
            raise InvalidOptionError(
                f"Option {name} is not valid in streaming queries; remove it. A query with "
                "trigger(availableNow=True) stops at the offsets that are the latest when it "
                "starts."
            )
    if "endingtimestamp" in values:
        warn_once("Option endingTimestamp has no effect in a streaming query.")
    parsed = check_source_options({"startingoffsets": "latest", **values})
    warn_unknown(values, (*_SOURCE_OPTIONS, *_STREAM_OPTIONS))
    return parsed


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of `df.write` and `df.writeStream`; raises InvalidOptionError."""
    values = _lowered(options)
    _check_servers(values, _OF_A_TABLE + _WRITE_A_TABLE)
    _refuse(values, _REFUSED_BY_SINK)
    topic = values.get("topic")
    if topic is not None and not topic.strip():
        raise InvalidOptionError("Option topic is empty; name a topic, or leave the option out.")
    warn_unknown(values, _SINK_OPTIONS)
    client = client_config(values)
    return SinkOptions(
        client=client,
        topic=topic.strip() if topic else None,
        transactional_id_prefix=_transactional_id_prefix(values, client),
        checkpoint_location=values.get("checkpointlocation"),
    )


def _transactional_id_prefix(values: Mapping[str, str], client: ClientConfig) -> str | None:
    prefix = values.get("transactionalidprefix")
    if prefix is None:
        return None
    if _PREFIX.fullmatch(prefix) is None:
        raise InvalidOptionError(
            f"Option transactionalIdPrefix is {prefix[:80]!r}. Give 1 to 200 of the characters a-z "
            "A-Z 0-9 . _ and -: transactional ids and a topic begin with it."
        )
    if not client.enable_idempotence:
        raise InvalidOptionError(
            "Option transactionalIdPrefix needs kafka.acks=all and kafka.enable.idempotence=true. "
            "Leave these two out."
        )
    return prefix


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean X?` for messages, or nothing."""
    lowered = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f" Did you mean {lowered[found[0]]}?" if found else ""


@lru_cache(maxsize=1024)
def warn_once(message: str) -> None:
    """Logs a warning, once in each process: Spark asks for a sink again in every micro-batch."""
    _log.warning("%s", message)


def warn_again() -> None:
    """Of what is wrong in another batch query, too: a process may plan all those of a session."""
    warn_once.cache_clear()


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def client_config(values: Mapping[str, str]) -> ClientConfig:
    """The options `kafka.*`, by names in lower case; raises InvalidOptionError."""
    _check_servers(values)
    return ClientConfig.from_options(
        {
            name.removeprefix(_CLIENT_PREFIX): value
            for name, value in values.items()
            if name.startswith(_CLIENT_PREFIX)
        }
    )


def _check_servers(values: Mapping[str, str], advice: str = "") -> None:
    if not values.get(_BOOTSTRAP_SERVERS, "").strip():
        raise InvalidOptionError(
            f"Option {_BOOTSTRAP_SERVERS} must be set, for example to localhost:9092.{advice}"
        )


def _subscription(values: Mapping[str, str]) -> Subscription:
    given = [name for name in _SUBSCRIPTIONS if name.lower() in values]
    if len(given) != 1:
        found = f"got {', '.join(given)}" if given else "got none"
        raise InvalidOptionError(
            f"Exactly one of the options {', '.join(_SUBSCRIPTIONS)} must be set; {found}."
            + ("" if given else _what_was_meant(values))
        )
    option = given[0]
    text = values[option.lower()]
    if option == "assign":
        return AssignPartitions(parse_assignment(option, text))
    if option == "subscribePattern":
        return SubscribePattern(_pattern(text))
    names = sorted({name.strip() for name in text.split(",")} - {""})
    if not names:
        raise InvalidOptionError("Option subscribe names no topic; expected e.g. orders,payments.")
    return SubscribeTopics(tuple(names))


def _what_was_meant(values: Mapping[str, str]) -> str:
    """Of options that name nothing to read."""
    if "topic" in values:
        return " Option topic is for writing: to read a topic, give subscribe."
    hints = (
        f" There is {name}.{hint}" for name in values if (hint := nearest(name, _SUBSCRIPTIONS))
    )
    return next(hints, "")


def _pattern(text: str) -> str:
    text = text.strip()
    if not text:
        raise InvalidOptionError("Option subscribePattern is empty; expected e.g. orders-.*")
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOptionError(
            f"Option subscribePattern is not a valid regular expression: {error}; got {text}"
        ) from None
    return text


def parse_boolean(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise InvalidOptionError(f"Option {name} must be true or false, got {text!r}.")
    return text.strip().lower() == "true"


def _limit(values: Mapping[str, str], which: str, default: int, latest_if_none: bool) -> Limit:
    """Where to start or end, by the first of Spark's three options that is given."""
    option = f"{which}Timestamp"
    time_ms = _whole_number(values, option, least=0)
    if time_ms is not None:
        return TimeLimit(option, latest_if_none, everywhere_ms=time_ms)
    option = f"{which}OffsetsByTimestamp"
    text = values.get(option.lower())
    if text is not None:
        return TimeLimit(option, latest_if_none, by_partition=parse_times(option, text))
    option = f"{which}Offsets"
    text = values.get(option.lower())
    if text is None:
        return OffsetLimit(everywhere=default)
    parse = parse_start if which == "starting" else parse_offset_limit
    return parse(option, text)


def _starts_at_latest_if_none(values: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    text = values.get(name.lower(), "error")
    if text.strip().lower() not in ("error", "latest"):
        raise InvalidOptionError(f"Option {name} must be error or latest, got {text[:80]!r}.")
    return text.strip().lower() == "latest"


def _is_permissive(values: Mapping[str, str]) -> bool:
    text = values.get("mode", "FAILFAST")
    if text.strip().upper() not in ("FAILFAST", "PERMISSIVE"):
        raise InvalidOptionError(f"Option mode must be FAILFAST or PERMISSIVE, got {text[:80]!r}.")
    return text.strip().upper() == "PERMISSIVE"


def _check_times(starting: Limit, ending: Limit) -> None:
    if not (isinstance(starting, TimeLimit) and isinstance(ending, TimeLimit)):
        return
    begins, ends = starting.by_partition or {}, ending.by_partition or {}
    for topic_partition in sorted(begins.keys() & ends.keys()):
        if begins[topic_partition] > ends[topic_partition]:
            raise InvalidOptionError(
                f"Option {starting.option} has {begins[topic_partition]} for "
                f"{describe([topic_partition])}, which is later than the "
                f"{ends[topic_partition]} of {ending.option}."
            )


def _whole_number(
    values: Mapping[str, str], name: str, least: int, most: int = _LARGEST_LONG
) -> int | None:
    text = values.get(name.lower())
    if text is None:
        return None
    digits = text.strip().removeprefix("+")
    # int() would take underscores, and digits of other scripts.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(most))):
        raise _no_whole_number(name, least, most, text)
    if not least <= int(digits) <= most:
        raise _no_whole_number(name, least, most, text)
    return int(digits)


def _no_whole_number(name: str, least: int, most: int, text: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"Option {name} must be a whole number from {least} to {most}, got {text[:80]!r}."
    )


def _milliseconds(values: Mapping[str, str], name: str, default_ms: int) -> int:
    """One of Spark's time strings, such as 90s or 15m."""
    text = values.get(name.lower())
    if text is None:
        return default_ms
    found = _TIME.fullmatch(text.strip().lower())
    if found is None or found[2] not in _TIME_UNITS_MS:
        raise InvalidOptionError(
            f"Option {name} must be a whole number with one of the units us, ms, s, m, min, h, d, "
            f"for example 15m; got {text[:80]!r}."
        )
    return int(int(found[1]) * _TIME_UNITS_MS[found[2]])


def _bytes(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name.lower())
    return None if text is None else parse_bytes(name, text)


def parse_bytes(name: str, text: str) -> int:
    """One of Spark's byte strings, such as 1048576, 512k or 10m (or 10MiB); at least 1.

    Raises InvalidOptionError naming the option `name`.
    """
    found = _BYTES.fullmatch(text.strip().lower())
    number = int(found[1]) << _BYTE_UNITS[found[2] or ""] if found else 0
    if not 0 < number <= _LARGEST_LONG:
        raise InvalidOptionError(
            f"Option {name} must be a number of bytes, with one of the units k, m, g, t if you "
            f"like, for example 64m; got {text[:80]!r}."
        )
    return number


def _group(values: Mapping[str, str], name: str) -> str | None:
    text = values.get(name.lower())
    if text is not None and not text.strip():
        raise InvalidOptionError(f"Option {name} is empty; name a consumer group, or leave it out.")
    return None if text is None else text.strip()


def _trigger_limits(values: Mapping[str, str]) -> TriggerLimits:
    limits = TriggerLimits(
        max_offsets=_whole_number(values, "maxOffsetsPerTrigger", least=1),
        max_bytes=_bytes(values, "maxBytesPerTrigger"),
        min_offsets=_whole_number(values, "minOffsetsPerTrigger", least=0),
        max_delay_ms=_milliseconds(values, "maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
    )
    least, most = limits.min_offsets, limits.max_offsets
    if least is not None and most is not None and least > most:
        raise InvalidOptionError(
            f"Option minOffsetsPerTrigger is {least}, which is more than the {most} of "
            "maxOffsetsPerTrigger."
        )
    return limits


def _offset_retries(values: Mapping[str, str]) -> OffsetRetries:
    """Ours where nothing is said; where one of the two is, Spark's default for the other."""
    attempts = _whole_number(values, "fetchOffset.numRetries", 0, _LARGEST_INT)
    interval_ms = _whole_number(values, "fetchOffset.retryIntervalMs", 0, _LARGEST_INT)
    if attempts is None and interval_ms is None:
        return OffsetRetries()
    return OffsetRetries(
        # In Spark it is the first attempt that counts as one, too.
        attempts=max(1, _SPARK_OFFSET_ATTEMPTS if attempts is None else attempts),
        interval_ms=_SPARK_OFFSET_INTERVAL_MS if interval_ms is None else interval_ms,
    )


def _refuse_symbol(option: str, limit: Limit, symbol: int, words: str) -> None:
    if isinstance(limit, OffsetLimit) and limit.mentions(symbol):
        named = limit.by_partition or {}
        topics = [topic for topic, offset in limit.by_topic.items() if offset == symbol]
        topic_partitions = [each for each, offset in named.items() if offset == symbol]
        where = ", ".join([*topics, *([describe(topic_partitions)] if topic_partitions else [])])
        of = f" for {where}" if where else ""
        raise InvalidOptionError(
            f"Option {option} cannot be {words}{of} in a batch query; name an offset."
        )


def _refuse(values: Mapping[str, str], refused: Mapping[str, str]) -> None:
    for name, advice in refused.items():
        if name in values:
            raise InvalidOptionError(f"Option {name} is not supported. {advice}")


def warn_unknown(values: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name in _NO_EFFECT:
        if name.lower() in values:
            warn_once(
                f"Option {name} has no effect: kafkalog reads without a consumer group. To show "
                "lag tools where a stream is, set the option commitOffsetsToGroup."
            )
    properties = [
        name.removeprefix(_CLIENT_PREFIX) for name in values if name.startswith(_CLIENT_PREFIX)
    ]
    for name in sorted(client_properties.SECURITY_WITHOUT_EFFECT.intersection(properties)):
        # Kafka's own classes do what is done here.
        if not values[_CLIENT_PREFIX + name].startswith("org.apache.kafka."):
            warn_once(
                f"Option {_CLIENT_PREFIX}{name} has no effect: classes of a JVM are not loaded, "
                "and OpenSSL's configuration chooses ciphers and providers."
            )
    for name, near in client_properties.unknown(properties).items():
        hint = f" Did you mean {_CLIENT_PREFIX}{near}?" if near else ""
        warn_once(f"Option {_CLIENT_PREFIX}{name} is unknown and ignored.{hint}")
    expected = {name.lower() for name in (*known, *_ENGINE_OPTIONS, *_NO_EFFECT)}
    for name in values:
        if name not in expected and not name.startswith(_CLIENT_PREFIX):
            hint = nearest(name, (*known, _BOOTSTRAP_SERVERS))
            warn_once(f"Option {name} is unknown and ignored.{hint}")
