"""Option names, defaults, rules and messages."""

import pickle
from collections.abc import Callable, Mapping
from ssl import TLSVersion

import pytest
from kafka.structs import TopicPartition
from pyspark.sql.datasource import CaseInsensitiveDict

from pyspark_kafkalog.client.security import tls_context
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.offsets import EARLIEST, LATEST, OffsetLimit, RelativeLimit, TimeLimit
from pyspark_kafkalog.source.options import (
    OffsetRetries,
    SourceOptions,
    batch_options,
    check_source_options,
    sink_options,
    stream_options,
    warn_once,
)
from pyspark_kafkalog.source.partitions import AssignPartitions, SubscribePattern, SubscribeTopics
from pyspark_kafkalog.source.splitting import Splitting
from pyspark_kafkalog.source.trigger_limits import TriggerLimits

BROKERS = {"kafka.bootstrap.servers": "localhost:9092"}
READ = {**BROKERS, "subscribe": "orders"}


@pytest.fixture(autouse=True)
def nothing_warned_yet() -> None:
    warn_once.cache_clear()


def spark_options(**options: str) -> CaseInsensitiveDict:
    """Options as Spark hands them over: case-insensitive, with lower-cased keys."""
    return CaseInsensitiveDict({**READ, **options})


def test_the_defaults_of_a_batch_read() -> None:
    options = batch_options(spark_options())
    assert options.subscription == SubscribeTopics(("orders",))
    assert options.starting == OffsetLimit(everywhere=EARLIEST)
    assert options.ending == OffsetLimit(everywhere=LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.client.bootstrap_servers == (("localhost", 9092),)


def test_a_stream_starts_at_the_latest_offsets_by_default() -> None:
    assert stream_options(spark_options()).starting == OffsetLimit(everywhere=LATEST)
    earliest = stream_options(spark_options(startingOffsets="earliest"))
    assert earliest.starting == OffsetLimit(everywhere=EARLIEST)


def test_the_limits_of_a_stream_have_sparks_defaults() -> None:
    assert stream_options(spark_options()).trigger_limits == TriggerLimits(None, None, 900_000)
    given = {"maxOffsetsPerTrigger": " 100 ", "minOffsetsPerTrigger": "100"}
    limits = stream_options(spark_options(**given)).trigger_limits
    assert limits == TriggerLimits(100, 100, 900_000)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("2500us", 2),
        ("7", 7),
        ("20ms", 20),
        ("90S", 90_000),
        ("5m", 300_000),
        ("2min", 120_000),
        (" 1h", 3_600_000),
        ("1d", 86_400_000),
    ],
)
def test_delays_are_sparks_time_strings(text: str, expected_ms: int) -> None:
    options = stream_options(spark_options(maxTriggerDelay=text))
    assert options.trigger_limits.max_delay_ms == expected_ms


@pytest.mark.parametrize(
    "name",
    [
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "commitOffsetsToGroup",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
    ],
)
def test_the_limits_of_a_stream_have_no_effect_in_a_batch_read(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    batch_options(spark_options(**{name: "10"}))
    assert f"Option {name} has no effect in a batch query" in caplog.text
    caplog.clear()
    stream_options(spark_options(**{name: "10"}))
    assert not caplog.records


@pytest.mark.parametrize(
    ("given", "retries"),
    [
        ({}, OffsetRetries(25, 200)),
        ({"fetchOffset.numRetries": "7"}, OffsetRetries(7, 1000)),
        ({"fetchOffset.retryIntervalMs": "10"}, OffsetRetries(3, 10)),
        ({"fetchOffset.numRetries": "0", "fetchOffset.retryIntervalMs": "0"}, OffsetRetries(1, 0)),
    ],
)
def test_how_often_offsets_are_asked_for(given: dict[str, str], retries: OffsetRetries) -> None:
    assert stream_options(spark_options(**given)).offset_retries == retries


@pytest.mark.parametrize("parse", [batch_options, stream_options])
def test_ranges_are_split_where_asked_for(
    parse: Callable[[Mapping[str, str]], SourceOptions],
) -> None:
    assert parse(spark_options()).splitting == Splitting(None, None)
    given = {"minPartitions": "8", "maxRecordsPerPartition": "1000"}
    assert parse(spark_options(**given)).splitting == Splitting(8, 1000)


def test_values_are_read_as_spark_reads_them() -> None:
    given = spark_options(failOnDataLoss="FALSE", includeHeaders=" true ", subscribe=" a ,b,,a")
    options = batch_options(given)
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert options.subscription == SubscribeTopics(("a", "b"))


@pytest.mark.parametrize(
    ("name", "text", "subscription"),
    [
        ("assign", '{"orders":[1,0]}', AssignPartitions((("orders", 0), ("orders", 1)))),
        ("subscribePattern", "orders-.*", SubscribePattern("orders-.*")),
    ],
)
def test_the_other_ways_to_subscribe(
    name: str, text: str, subscription: AssignPartitions | SubscribePattern
) -> None:
    options = CaseInsensitiveDict({**BROKERS, name: text})
    assert batch_options(options).subscription == subscription


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers must be set"),
        ({"assign": '{"a":[0]}'}, "Exactly one of .* must be set; got subscribe, assign"),
        ({"subscribe": " , "}, "subscribe names no topic"),
        ({"startingOffsets": "{"}, "startingOffsets is malformed: .*line 1 column 2"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss must be true or false, got 'yes'"),
        ({"includeHeaders": ""}, "includeHeaders must be true or false"),
        ({"kafka.auto.offset.reset": "latest"}, "auto.offset.reset is not supported. Set the"),
        ({"kafka.key.deserializer": "x"}, "key.deserializer is not supported"),
        ({"kafka.value.deserializer": "x"}, "value.deserializer is not supported"),
        ({"kafka.enable.auto.commit": "true"}, "enable.auto.commit is not supported"),
        ({"kafka.interceptor.classes": "x"}, "interceptor.classes is not supported"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be a number of bytes"),
        ({"maxBytesPerTrigger": "1.5g"}, "maxBytesPerTrigger must be .* got '1.5g'"),
        ({"maxPartitionsPerTask": "0"}, "maxPartitionsPerTask must be a whole number from 1 to"),
        ({"commitOffsetsToGroup": " "}, "commitOffsetsToGroup is empty; name a consumer group"),
        ({"startingOffsets": "-3 parsecs"}, "startingOffsets has the unit 'parsecs'"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number from 1 to"),
        ({"maxOffsetsPerTrigger": "1_0"}, "maxOffsetsPerTrigger must be .* got '1_0'"),
        ({"minOffsetsPerTrigger": "-1"}, "minOffsetsPerTrigger must be a whole number from 0 to"),
        ({"minOffsetsPerTrigger": "9" * 19}, "minOffsetsPerTrigger must be a whole number"),
        (
            {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
            "minOffsetsPerTrigger is 11, which is more than the 10 of maxOffsetsPerTrigger",
        ),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be .* for example 15m; got 'soon'"),
        ({"maxTriggerDelay": "1.5h"}, "maxTriggerDelay must be"),
        ({"maxTriggerDelay": "2 weeks"}, "maxTriggerDelay must be"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp must be a whole number .*'yest"),
        ({"endingTimestamp": "-1"}, "endingTimestamp must be a whole number from 0"),
        ({"startingOffsetsByTimestamp": "1000"}, "startingOffsetsByTimestamp is malformed"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "Strategy must be error or latest"),
        ({"kafkaConsumer.pollTimeoutMs": "0"}, "pollTimeoutMs must be a whole number from 1 to"),
        ({"fetchOffset.numRetries": "many"}, "fetchOffset.numRetries must be a whole number"),
        ({"fetchOffset.retryIntervalMs": "1s"}, "fetchOffset.retryIntervalMs must be a whole num"),
        ({"minPartitions": "0"}, "minPartitions must be a whole number from 1 to 2147483647, g"),
        ({"minPartitions": "2147483648"}, "minPartitions must be a whole number"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be a whole number from 1"),
    ],
)
@pytest.mark.parametrize("parse", [check_source_options, batch_options, stream_options])
def test_what_cannot_work_is_refused_by_name(
    given: dict[str, str], message: str, parse: Callable[[Mapping[str, str]], SourceOptions]
) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        parse(spark_options(**given))


def test_brokers_and_a_subscription_are_required() -> None:
    with pytest.raises(InvalidOptionError, match=r"bootstrap\.servers must be set"):
        batch_options({"subscribe": "orders"})
    with pytest.raises(InvalidOptionError, match=r"must be set; got none\.$"):
        batch_options(BROKERS)
    with pytest.raises(InvalidOptionError, match=r"There is subcribe\. Did you mean subscribe\?$"):
        batch_options({**BROKERS, "subcribe": "orders"})
    with pytest.raises(InvalidOptionError, match=r"to read a topic, give subscribe\.$"):
        batch_options({**BROKERS, "topic": "orders"})


@pytest.mark.parametrize("pattern", ["", "orders-("])
def test_a_pattern_must_be_a_regular_expression(pattern: str) -> None:
    with pytest.raises(InvalidOptionError, match="subscribePattern"):
        batch_options({**BROKERS, "subscribepattern": pattern})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        (
            {"startingOffsets": '{"orders":{"0":1,"1":-1}}'},
            r"startingOffsets cannot be latest \(-1\) for orders-1 in a batch query",
        ),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets cannot be earliest .*orders-0"),
    ],
)
def test_a_batch_read_neither_starts_at_the_latest_nor_ends_at_the_earliest(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        batch_options(spark_options(**given))


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_ending_offsets(name: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"{name} is not valid in streaming"):
        stream_options(spark_options(**{name: "latest"}))


def test_an_ending_time_has_no_effect_on_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    stream_options(spark_options(endingTimestamp="1000"))
    assert "endingTimestamp has no effect in a streaming query" in caplog.text


TIMES = '{"orders":{"0":1000}}'
ORDERS_0 = TopicPartition("orders", 0)


@pytest.mark.parametrize("parse", [batch_options, stream_options])
def test_a_time_for_all_goes_before_times_of_each_and_these_before_offsets(
    parse: Callable[[Mapping[str, str]], SourceOptions],
) -> None:
    # What goes behind is not even looked at, as in Spark.
    given = {"startingOffsets": "nonsense", "startingOffsetsByTimestamp": TIMES}
    by_partition = parse(spark_options(**given)).starting
    assert by_partition == TimeLimit(
        "startingOffsetsByTimestamp", False, by_partition={ORDERS_0: 1000}
    )
    given = {"startingOffsetsByTimestamp": "nonsense", "startingTimestamp": " 2000 "}
    assert parse(spark_options(**given)).starting == TimeLimit("startingTimestamp", False, 2000)


def test_the_end_of_a_batch_read_may_be_a_time() -> None:
    ending = batch_options(spark_options(endingOffsetsByTimestamp=TIMES)).ending
    assert ending == TimeLimit("endingOffsetsByTimestamp", True, by_partition={ORDERS_0: 1000})
    given = {"endingTimestamp": "3000", "endingOffsets": "earliest"}
    assert batch_options(spark_options(**given)).ending == TimeLimit("endingTimestamp", True, 3000)


def test_a_start_without_a_record_may_be_the_latest() -> None:
    strategy = {"startingOffsetsByTimestampStrategy": "LATEST", "startingTimestamp": "1"}
    starting = stream_options(spark_options(**strategy)).starting
    assert starting == TimeLimit("startingTimestamp", True, 1)
    assert starting.mentions(LATEST)


def test_times_must_not_be_the_wrong_way_round() -> None:
    later = TIMES.replace("1000", "1001")
    given = {"startingOffsetsByTimestamp": later, "endingOffsetsByTimestamp": TIMES}
    with pytest.raises(InvalidOptionError, match="has 1001 for orders-0, which is later than the"):
        batch_options(spark_options(**given))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("startingOffset", "Did you mean startingOffsets?"),
        ("include_headers", "Did you mean includeHeaders?"),
        ("bootstrap.servers", "Did you mean kafka.bootstrap.servers?"),
        ("kafka.fetch.max.byte", "Did you mean kafka.fetch.max.bytes?"),
        ("kafka.akcs", "Did you mean kafka.acks?"),
        ("colour", "colour is unknown"),
        ("groupIdPrefix", "groupIdPrefix has no effect"),
        ("kafka.group.id", "kafka.group.id has no effect"),
    ],
)
def test_unknown_options_are_warned_about_with_the_nearest(
    caplog: pytest.LogCaptureFixture, name: str, hint: str
) -> None:
    batch_options(spark_options(**{name: "x"}))
    batch_options(spark_options(**{name: "x"}))
    assert hint in caplog.text
    assert len(caplog.records) == 1


def test_known_options_are_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    batch_options(spark_options(**{"kafka.client.id": "me", "endingOffsets": "latest"}))
    sink_options({**BROKERS, "topic": "orders", "checkpointlocation": "/c", "queryname": "q"})
    assert not caplog.records


def test_options_travel_pickled_and_never_show_a_secret() -> None:
    line = 'org.apache.kafka.Login required username="me" password="hunter2";'
    secret = {"kafka.sasl.jaas.config": line, "kafka.sasl.password": "hunter2"}
    for options in (batch_options(spark_options(**secret)), sink_options({**BROKERS, **secret})):
        assert pickle.loads(pickle.dumps(options)) == options
        assert "hunter2" not in repr(options)


def test_the_sink_takes_its_topic_from_an_option() -> None:
    assert sink_options(BROKERS).topic is None
    assert sink_options({**BROKERS, "topic": "orders"}).topic == "orders"
    with pytest.raises(InvalidOptionError, match="topic is empty"):
        sink_options({**BROKERS, "topic": " "})


def test_the_sink_takes_a_prefix_for_transactional_ids() -> None:
    assert sink_options(BROKERS).transactional_id_prefix is None
    prefixed = {**BROKERS, "transactionalidprefix": "orders-eu_1.x", "checkpointlocation": "/c"}
    options = sink_options(prefixed)
    assert (options.transactional_id_prefix, options.checkpoint_location) == ("orders-eu_1.x", "/c")
    assert options.client.transaction_timeout_ms == 900_000
    for prefix in ("", "a b", "ä", "x" * 201):
        with pytest.raises(InvalidOptionError, match="Option transactionalIdPrefix is"):
            sink_options({**BROKERS, "transactionalidprefix": prefix})
    for name, value in (("kafka.acks", "1"), ("kafka.enable.idempotence", "false")):
        with pytest.raises(InvalidOptionError, match=r"needs kafka\.acks=all and"):
            sink_options({**prefixed, name: value})
    with pytest.raises(InvalidOptionError, match="Set the option transactionalIdPrefix instead"):
        sink_options({**BROKERS, "kafka.transactional.id": "x"})


@pytest.mark.parametrize("name", ["kafka.key.serializer", "kafka.value.serializer"])
def test_the_sink_refuses_serializers(name: str) -> None:
    with pytest.raises(InvalidOptionError, match="is not supported"):
        sink_options({**BROKERS, name: "x"})


def test_partitions_of_an_assignment_are_topic_partitions() -> None:
    options = batch_options({**BROKERS, "assign": '{"orders":[3]}'})
    assert options.subscription == AssignPartitions((TopicPartition("orders", 3),))


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1", 1), (" 1048576 ", 1 << 20), ("512k", 512 << 10), ("10MB", 10 << 20), ("2g", 2 << 30)],
)
def test_sizes_are_sparks_byte_strings(text: str, size_bytes: int) -> None:
    limits = stream_options(spark_options(maxBytesPerTrigger=text)).trigger_limits
    assert limits.max_bytes == size_bytes
    assert limits


def test_a_start_that_is_counted_back_is_no_latest_for_a_batch_read() -> None:
    for text, offsets, ms in [("-1000", 1000, 0), ("-10 minutes", 0, 600_000)]:
        starting = batch_options(spark_options(startingOffsets=text)).starting
        assert isinstance(starting, RelativeLimit)
        assert (starting.offsets or 0, starting.ms or 0) == (offsets, ms)
    with pytest.raises(InvalidOptionError, match="endingOffsets is malformed"):
        batch_options(spark_options(endingOffsets="-10 minutes"))
    with pytest.raises(InvalidOptionError, match=r"cannot be latest \(-1\) for orders in a batch"):
        batch_options(spark_options(startingOffsets='{"orders":"latest"}'))


def test_the_group_that_is_told_of_a_stream() -> None:
    assert stream_options(spark_options(commitOffsetsToGroup=" g1 ")).commit_group == "g1"
    assert stream_options(spark_options()).commit_group is None


def test_a_security_property_that_does_nothing_is_said_to(caplog: pytest.LogCaptureFixture) -> None:
    kafkas = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    batch_options(
        {
            **READ,
            "kafka.ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
            "kafka.sasl.login.callback.handler.class": kafkas,
        }
    )
    (record,) = caplog.records
    assert "kafka.ssl.cipher.suites has no effect" in record.message


def test_versions_of_tls_are_chosen() -> None:
    only = batch_options({**READ, "kafka.ssl.enabled.protocols": "TLSv1.3"})
    assert tls_context(only.client).minimum_version == TLSVersion.TLSv1_3
    with pytest.raises(InvalidOptionError, match=r"ssl\.enabled\.protocols is 'TLSv1\.2,SSLv3'"):
        batch_options({**READ, "kafka.ssl.enabled.protocols": "TLSv1.2,SSLv3"})
