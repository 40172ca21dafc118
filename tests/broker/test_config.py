"""BrokerConfig and LogConfig: parsing, inheritance, validation, DescribeConfigs."""

import logging
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import InvalidConfigurationError, InvalidRequestError

from broker.config.broker import BrokerConfig
from broker.config.definition import ConfigEntry, ConfigError, ConfigSource, ConfigType
from broker.config.describe import describe_broker, describe_default, describe_topic
from broker.config.dynamic import usable_topic_configs, with_dynamic
from broker.config.endpoint import Endpoint, parse_ip_overrides, parse_zookeeper
from broker.config.log import LogConfig
from tests.support.present import present


def test_defaults_are_kafkas() -> None:
    config = BrokerConfig.from_properties({})
    assert config.log_segment_bytes == 1073741824
    assert config.message_max_bytes == 1048588
    assert [str(endpoint) for endpoint in config.endpoints] == ["PLAINTEXT://:9092"]
    topic = config.log_config({})
    assert topic.retention_ms == topic.segment_ms == 604800000
    assert topic.flush_ms == topic.flush_messages == 2**63 - 1
    assert topic.cleanup_policy == ("delete",)


def test_a_config_without_a_file_equals_the_dataclass_defaults() -> None:
    assert BrokerConfig.from_properties({}) == BrokerConfig()


def test_reads_a_file_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("node.id=4\nlog.dirs=/a, /b\nlisteners=PLAINTEXT://[::1]:0\n")
    config = BrokerConfig.from_file(path, {"num.partitions": "3"})
    assert (config.broker_id, config.num_partitions) == (4, 3)
    assert [str(each) for each in config.data_dirs] == ["/a", "/b"]
    assert config.endpoints == (Endpoint("PLAINTEXT", "::1", 0),)
    assert str(config.endpoints[0]) == "PLAINTEXT://[::1]:0"


def test_advertises_its_listeners_unless_told_otherwise() -> None:
    listening = {"listeners": "PLAINTEXT://h:1"}
    assert BrokerConfig.from_properties(listening).advertised_endpoints[0].host == "h"
    told = listening | {"advertised.listeners": "PLAINTEXT://public:2"}
    advertised = BrokerConfig.from_properties(told).advertised_endpoints
    assert advertised == (Endpoint("PLAINTEXT", "public", 2),)
    assert BrokerConfig.from_properties({}).advertised_endpoints[0].host


def test_protection_that_is_asked_for_and_not_there_is_no_warning() -> None:
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name is set, but this broker has"):
        BrokerConfig.from_properties({"authorizer.class.name": "a.b.Authorizer"})
    BrokerConfig.from_properties({"authorizer.class.name": ""})


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_the_address_of_all_interfaces_is_listened_on_but_not_advertised(host: str) -> None:
    listening = {"listeners": f"PLAINTEXT://{host}:9092"}
    with pytest.raises(ConfigError, match=r"set advertised\.listeners=PLAINTEXT://HOST:9092"):
        assert BrokerConfig.from_properties(listening).advertised_endpoints
    told = listening | {"advertised.listeners": "PLAINTEXT://public:9092"}
    assert BrokerConfig.from_properties(told).advertised_endpoints[0].host == "public"


@pytest.mark.parametrize(
    ("given", "expected_ms"),
    [
        ({"log.retention.ms": "5", "log.retention.minutes": "2"}, 5),
        ({"log.retention.minutes": "2", "log.retention.hours": "1"}, 120000),
        ({"log.retention.hours": "1"}, 3600000),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-1", "log.retention.hours": "1"}, -1),
    ],
)
def test_the_finest_unit_counts(given: dict[str, str], expected_ms: int) -> None:
    assert BrokerConfig.from_properties(given).log_config({}).retention_ms == expected_ms


def test_a_topic_overrides_its_broker() -> None:
    config = BrokerConfig.from_properties({"log.segment.bytes": "2000000"})
    assert config.log_config({}).segment_bytes == 2000000
    assert config.log_config({"segment.bytes": "3000000"}).segment_bytes == 3000000


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("log.segment.bytes", "12", "at least 1048576"),
        ("log.segment.bytes", "ten", "Not a number of type INT"),
        ("num.partitions", "3000000000", "Not a number of type INT"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("log.cleanup.policy", "delete,keep", "Invalid value keep"),
        ("group.consumer.assignors", "", "must not be empty"),
        (
            "compression.type",
            "rar",
            "must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("log.cleaner.io.buffer.load.factor", "1.5", "above 0 and no more than 1"),
        ("log.cleaner.io.max.bytes.per.second", "0", "above 0"),
        ("log.cleaner.min.cleanable.ratio", "2", "no more than 1"),
        ("log.cleaner.dedupe.buffer.size", "1000", "1 MiB for each"),
        ("listeners", "localhost:9092", "PLAINTEXT://HOST:PORT"),
        ("listeners", "SSL://localhost:9092", "PLAINTEXT://HOST:PORT"),
        ("listeners", "PLAINTEXT://localhost:99999", "PLAINTEXT://HOST:PORT"),
        ("listeners", "", "must not be empty"),
        ("listeners", "PLAINTEXT://a:1,PLAINTEXT://b:2", "a different name"),
        ("advertised.listeners", "PLAINTEXT://a:1,PLAINTEXT://b:2", "a different name"),
    ],
)
def test_an_illegal_value_names_the_property_and_what_is_legal(
    name: str, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties({name: text})
    assert name in str(caught.value)
    assert expected in str(caught.value)
    assert isinstance(caught.value, InvalidConfigurationError)


def test_segments_of_a_cluster_may_be_as_small_as_apache_kafka_3_9_lets_them_be() -> None:
    alone = BrokerConfig()
    member = BrokerConfig.from_properties(
        {"zookeeper.connect": "127.0.0.1:2181", "log.segment.bytes": "14"}
    )
    assert member.log_config({}).segment_bytes == 14
    for config, least in ((alone, 1 << 20), (member, 14)):
        kept = {"segment.bytes": str(least)}
        assert usable_topic_configs(config, kept) == kept
        assert config.log_config(kept, strict=True).segment_bytes == least
        too_small = {"segment.bytes": str(least - 1)}
        assert usable_topic_configs(config, too_small) == {}
        with pytest.raises(ConfigError, match=rf"segment\.bytes: Value must be at least {least}$"):
            config.log_config(too_small, strict=True)
        of_broker = {"log.segment.bytes": str(least)}
        assert with_dynamic(config, of_broker, {}).log_segment_bytes == least
        with pytest.raises(ConfigError, match=rf"segment\.bytes: Value must be at least {least}$"):
            with_dynamic(config, {"log.segment.bytes": str(least - 1)}, {})


def test_what_apache_kafka_3_9_has_stored_besides_stands_in_nobodys_way() -> None:
    stored = {"message.format.version": "3.0-IV1", "retention.ms": "7"}
    member = BrokerConfig.from_properties({"zookeeper.connect": "127.0.0.1:2181"})
    assert member.log_config(stored, strict=True).overrides == {"retention.ms": "7"}
    with pytest.raises(ConfigError, match="Unknown topic config"):
        BrokerConfig().log_config(stored, strict=True)


def test_the_lags_of_compaction_fit_together() -> None:
    config = BrokerConfig.from_properties({"log.cleaner.min.compaction.lag.ms": "10"})
    assert config.log_config({}).min_compaction_lag_ms == 10
    with pytest.raises(ConfigError, match=r"conflict .* min\.compaction\.lag\.ms \(10\) >"):
        config.log_config({"max.compaction.lag.ms": "9"})
    with pytest.raises(ConfigError, match=r"log\.cleaner\.min\.compaction\.lag\.ms \(10\) >"):
        BrokerConfig.from_properties(
            {"log.cleaner.min.compaction.lag.ms": "10", "log.cleaner.max.compaction.lag.ms": "9"}
        )


def test_two_numbers_for_one_broker_are_refused() -> None:
    BrokerConfig.from_properties({"broker.id": "3", "node.id": "3"})
    with pytest.raises(ConfigError, match=r"broker\.id and node\.id"):
        BrokerConfig.from_properties({"broker.id": "3", "node.id": "4"})


def test_an_unknown_property_is_a_warning_with_the_nearest_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        config = BrokerConfig.from_properties({"num.partition": "3"})
    assert config.num_partitions == 1
    assert "name=num.partition nearest=num.partitions" in caplog.text
    assert "num.partition" not in config.given


def test_a_property_of_kafkas_without_effect_is_said_to_be_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {
        "process.roles": "broker,controller",
        "num.io.threads": "9",
        "listener.name.plaintext.ssl.client.auth": "none",
    }
    with caplog.at_level(logging.WARNING):
        config = BrokerConfig.from_properties(given)
    (line,) = (each for each in caplog.messages if "without_effect" in each)
    assert all(name in line for name in given)
    assert "config.unknown" not in caplog.text
    described = {entry.name: entry for entry in describe_broker(config)}
    assert described["num.io.threads"].value == "9"
    assert described["num.io.threads"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert described["num.network.threads"].value == "3"
    assert described["ssl.keystore.password"].value is None
    with pytest.raises(ConfigError, match=r"Invalid value x for configuration num\.io\.threads"):
        BrokerConfig.from_properties({"num.io.threads": "x"})


@pytest.mark.parametrize("name", ["authorizer.class.name", "sasl.enabled.mechanisms"])
def test_what_would_protect_is_refused_while_the_broker_runs_too(name: str) -> None:
    for prefix in ("", "listener.name.plaintext."):
        with pytest.raises((ConfigError, InvalidRequestError)):
            with_dynamic(BrokerConfig(), {prefix + name: "PLAIN"}, {})


@pytest.mark.parametrize("version", ["3.9", "3.9-IV0", " 3.9.1"])
def test_a_cluster_speaks_the_version_that_this_broker_speaks(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of others the first word of Apache Kafka's controller would be nonsense here."""
    member, name = {"zookeeper.connect": "127.0.0.1:2181"}, "inter.broker.protocol.version"
    assert BrokerConfig.from_properties({**member, name: version}).is_member
    assert not caplog.records
    for older in ("3.3", "3.9x", "0.10.2"):
        with pytest.raises(ConfigError, match=f"{name}={older}, and this broker speaks 3.9 alone"):
            BrokerConfig.from_properties({**member, name: older})
    BrokerConfig.from_properties({name: "3.3"})
    assert "config.unknown" in caplog.text


def test_an_unknown_topic_config_is_refused_from_a_client_and_tolerated_on_disk(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = BrokerConfig()
    with pytest.raises(ConfigError, match="Unknown topic config name: retentionms"):
        config.log_config({"retentionms": "1"}, strict=True)
    with caplog.at_level(logging.WARNING):
        assert config.log_config({"retentionms": "1"}).overrides == {}
    assert "topic_config=retentionms" in caplog.text


class TestDescribe:
    def entries(self, entries: list[ConfigEntry]) -> dict[Any, Any]:
        return {entry.name: entry for entry in entries}

    def test_names_each_broker_property_with_its_source(self) -> None:
        config = BrokerConfig.from_properties({"node.id": "7", "log.dirs": "/a,/b"})
        found = self.entries(describe_broker(config))
        assert found["log.dirs"].value == "/a,/b"
        assert found["log.dirs"].source is ConfigSource.STATIC_BROKER_CONFIG
        assert found["broker.id"].source is ConfigSource.STATIC_BROKER_CONFIG
        assert found["num.partitions"].source is ConfigSource.DEFAULT_CONFIG
        assert found["num.partitions"].type is ConfigType.INT
        assert found["advertised.listeners"].value is None
        assert found["delete.topic.enable"].value == "true"
        assert all(entry.documentation for entry in found.values())
        assert found["log.dirs"].is_read_only
        assert not found["log.retention.ms"].is_read_only

    def test_shows_where_a_topics_value_comes_from(self) -> None:
        config = BrokerConfig.from_properties({"log.retention.minutes": "2"})
        topic = config.log_config({"segment.ms": "9"})
        found = self.entries(describe_topic(config, topic))
        segment, retention = found["segment.ms"], found["retention.ms"]
        assert (segment.value, segment.source) == ("9", ConfigSource.DYNAMIC_TOPIC_CONFIG)
        assert segment.synonyms == (
            ("segment.ms", "9", ConfigSource.DYNAMIC_TOPIC_CONFIG),
            ("log.roll.hours", "168", ConfigSource.DEFAULT_CONFIG),
        )
        assert retention.value == "120000"
        assert retention.source is ConfigSource.STATIC_BROKER_CONFIG
        assert found["preallocate"].source is ConfigSource.DEFAULT_CONFIG
        assert not any(entry.is_read_only for entry in found.values())

    def test_shows_what_was_set_while_the_broker_ran(self) -> None:
        static = BrokerConfig.from_properties({"log.retention.hours": "3"})
        config = with_dynamic(static, {"log.retention.ms": "5"}, {"log.retention.ms": "6"})
        assert config.log_config({}).retention_ms == config.log_retention_ms == 5
        rows = (
            ("log.retention.ms", "5", ConfigSource.DYNAMIC_BROKER_CONFIG),
            ("log.retention.ms", "6", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            ("log.retention.hours", "3", ConfigSource.STATIC_BROKER_CONFIG),
            ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
        )
        broker = self.entries(describe_broker(config))
        topic = self.entries(describe_topic(config, config.log_config({})))
        assert broker["log.retention.ms"].synonyms == topic["retention.ms"].synonyms == rows
        assert broker["log.retention.hours"].synonyms == rows[2:]
        assert broker["log.retention.ms"].source is ConfigSource.DYNAMIC_BROKER_CONFIG
        (default,) = describe_default(config)
        assert (default.name, default.value, default.synonyms) == (
            "log.retention.ms",
            "6",
            rows[1:2],
        )
        # Unset, nothing stands for the finer property; the coarser one is shown by itself.
        assert self.entries(describe_broker(static))["log.retention.ms"].synonyms == ()

    def test_lists_every_topic_config_that_kafka_clients_set(self) -> None:
        config = BrokerConfig()
        names = {entry.name for entry in describe_topic(config, config.log_config({}))}
        assert {"min.insync.replicas", "min.cleanable.dirty.ratio", "delete.retention.ms"} <= names

    def test_every_value_parses_back(self) -> None:
        config = BrokerConfig()
        topic = config.log_config({})
        texts = {entry.name: entry.value for entry in describe_topic(config, topic)}
        again = config.log_config({name: text for name, text in texts.items() if text})
        assert all(
            getattr(again, name) == getattr(topic, name)
            for name in topic.__slots__
            if name != "overrides"
        )


def test_overrides_of_an_address_are_checked() -> None:
    def given(text: str) -> BrokerConfig:
        return BrokerConfig.from_properties({"max.connections.per.ip.overrides": text})

    overrides = given("127.0.0.1:5, [::1]:0,host:7").max_connections_per_ip_overrides
    assert parse_ip_overrides(overrides) == {"127.0.0.1": 5, "::1": 0, "host": 7}
    for bad in ("127.0.0.1", ":5", "host:-1", "host:many", "a..b:5", f"{'a' * 64}:5"):
        with pytest.raises(ConfigError, match="HOST:CONNECTIONS"):
            given(bad)


@pytest.mark.parametrize(
    ("text", "servers", "root"),
    [
        ("localhost", "localhost", ""),
        ("a:2181,b:2182/kafka", "a:2181,b:2182", "/kafka"),
        ("[::1]:2181/kafka/blue", "[::1]:2181", "/kafka/blue"),
        ("a:1/", "a:1", ""),
    ],
)
def test_zookeeper_is_told_by_its_servers_and_a_path(text: str, servers: str, root: str) -> None:
    config = BrokerConfig.from_properties({"zookeeper.connect": text})
    assert parse_zookeeper(present(config.zookeeper_connect)) == (servers, root)


@pytest.mark.parametrize(
    "text", ["", ":1", "a:", "a:x", "a:0", "a:1,,b:1", "a:1/x/", "a:1//x", "/"]
)
def test_a_wrong_address_of_zookeeper(text: str) -> None:
    with pytest.raises(ConfigError, match=r"HOST:PORT, comma-separated, then perhaps /PATH"):
        BrokerConfig.from_properties({"zookeeper.connect": text})


def test_javas_stores_are_no_pem_files() -> None:
    for name in ("keystore", "truststore"):
        with pytest.raises(ConfigError, match="must be one of: PEM"):
            BrokerConfig.from_properties({f"zookeeper.ssl.{name}.type": "JKS"})
    secret = BrokerConfig.from_properties({"zookeeper.ssl.keystore.password": "x"})
    described = {entry.name: entry for entry in describe_broker(secret)}
    assert described["zookeeper.ssl.keystore.password"].is_sensitive


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("compression.lz4.level", 1, 17),
        ("num.partitions", 1, 2**31 - 1),
        ("flush.messages", 1, 2**63 - 1),
    ],
)
def test_numbers_may_be_all_that_they_may(name: str, least: int, most: int) -> None:
    def parsed(number: int) -> BrokerConfig | LogConfig:
        if name == "num.partitions":
            return BrokerConfig.from_properties({name: str(number)})
        return BrokerConfig().log_config({name: str(number)}, strict=True)

    parsed(least)
    parsed(most)
    for number in (least - 1, most + 1):
        with pytest.raises(ConfigError):
            parsed(number)


def test_both_lags_of_compaction_may_be_the_same() -> None:
    lags = {"min.compaction.lag.ms": "5000", "max.compaction.lag.ms": "5000"}
    assert BrokerConfig().log_config(lags, strict=True).min_compaction_lag_ms == 5000
    with pytest.raises(ConfigError):
        BrokerConfig().log_config(lags | {"max.compaction.lag.ms": "4999"}, strict=True)
