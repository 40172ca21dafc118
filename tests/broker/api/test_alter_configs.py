"""AlterConfigs and IncrementalAlterConfigs: checked, applied at once, described, and kept."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from tests.broker.api.conftest import Eventually
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import stays, wait_until
from tests.support.present import present
from tests.support.records import batch_of

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
DEFAULT, STATIC, DEFAULT_BROKER, OWN_BROKER, OWN_TOPIC = 5, 4, 3, 2, 1
UNKNOWN_PARTITION, INVALID_TOPIC, INVALID_CONFIG, INVALID_REQUEST = 3, 17, 40, 42
TOO_LARGE = 10


def incremental(
    client: RawClient,
    kind: int,
    name: str,
    *operations: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> tuple[Any, Any]:
    """`operations`: (property, operation, value); (code, message)."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        resource.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in operations
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=kind, resource_name=name, configs=configs)],
        validate_only=validate_only,
    )
    (found,) = client.call(request, IncrementalAlterConfigsResponse, version).responses
    assert (found.resource_type, found.resource_name) == (kind, name)
    return found.error_code, found.error_message


def replace(
    client: RawClient,
    kind: int,
    name: str,
    *configs: tuple[str, str | None],
    version: int = 2,
    validate_only: bool = False,
) -> tuple[Any, Any]:
    resource = AlterConfigsRequest.AlterConfigsResource
    request = AlterConfigsRequest(
        resources=[
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[resource.AlterableConfig(name=key, value=value) for key, value in configs],
            )
        ],
        validate_only=validate_only,
    )
    (found,) = client.call(request, AlterConfigsResponse, version).responses
    return found.error_code, found.error_message


def describe(
    client: RawClient, kind: int, name: str, key: str
) -> tuple[Any, Any, list[tuple[Any, Any]]] | None:
    """(value, source, synonyms' sources and values) of one property; None if it is not listed."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=[key]
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = client.call(request, DescribeConfigsResponse, 4).results
    assert result.error_code == 0
    if not result.configs:
        return None
    (config,) = result.configs
    synonyms = [(synonym.source, synonym.value) for synonym in config.synonyms]
    return config.value, config.config_source, synonyms


def entry_of(client: RawClient, broker: str, key: str) -> tuple[Any, Any, Any, Any, Any] | None:
    """(value, source, read-only, sensitive, type) of one of a broker's properties."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER, resource_name=broker, configuration_keys=[key]
    )
    (result,) = client.call(
        DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 4
    ).results
    if not result.configs:
        return None
    (found,) = result.configs
    return found.value, found.config_source, found.read_only, found.is_sensitive, found.config_type


def assert_described(client: RawClient, kind: int, name: str, key: str, expected: object) -> None:
    """Apache Kafka's brokers hear of a change some moments after it is answered."""
    wait_until(
        lambda: describe(client, kind, name, key) == expected,
        lambda: (describe(client, kind, name, key), expected),
    )


@pytest.mark.parametrize("version", range(2))
def test_set_and_delete(client: RawClient, create: Callable[..., str], version: int) -> None:
    name = create(**{"segment.bytes": "2000000"})
    assert incremental(
        client, TOPIC, name, ("max.message.bytes", SET, "5000"), version=version
    ) == (0, None)
    assert_described(
        client,
        TOPIC,
        name,
        "max.message.bytes",
        ("5000", OWN_TOPIC, [(OWN_TOPIC, "5000"), (DEFAULT, "1048588")]),
    )
    assert present(describe(client, TOPIC, name, "segment.bytes"))[:2] == ("2000000", OWN_TOPIC)
    changes = [("max.message.bytes", DELETE, None), ("segment.bytes", DELETE, "whatever")]
    assert incremental(client, TOPIC, name, *changes, version=version) == (0, None)
    for key, value in (("max.message.bytes", "1048588"), ("segment.bytes", "1073741824")):
        assert_described(client, TOPIC, name, key, (value, DEFAULT, [(DEFAULT, value)]))


def test_lists_are_appended_to_and_subtracted_from(client: RawClient, topic: str) -> None:
    for operation, value, expected in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete", "compact"),
        (APPEND, "delete", "compact,delete"),
    ):
        change = ("cleanup.policy", operation, value)
        assert incremental(client, TOPIC, topic, change) == (0, None)
        assert_described(
            client,
            TOPIC,
            topic,
            "cleanup.policy",
            (expected, OWN_TOPIC, [(OWN_TOPIC, expected), (DEFAULT, "delete")]),
        )


def test_a_change_counts_at_once(client: RawClient, topic: str) -> None:
    large = batch_of([(None, b"x" * 10_000)])
    assert client.produce(topic, 0, large).error_code == 0
    incremental(client, TOPIC, topic, ("max.message.bytes", SET, "5000"))
    assert_described(
        client,
        TOPIC,
        topic,
        "max.message.bytes",
        ("5000", OWN_TOPIC, [(OWN_TOPIC, "5000"), (DEFAULT, "1048588")]),
    )
    assert client.produce(topic, 0, large).error_code == TOO_LARGE
    assert replace(client, TOPIC, topic) == (0, None)
    assert_described(
        client, TOPIC, topic, "max.message.bytes", ("1048588", DEFAULT, [(DEFAULT, "1048588")])
    )
    assert client.produce(topic, 0, large).error_code == 0


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (("nope", SET, "1"), INVALID_CONFIG, None),
        (("retention.ms", SET, "x"), INVALID_CONFIG, None),
        (("retention.ms", SET, "-5"), INVALID_CONFIG, None),
        (("cleanup.policy", APPEND, "keep"), INVALID_CONFIG, None),
        (
            ("retention.ms", SET, None),
            INVALID_REQUEST,
            "Null value not supported for : retention.ms",
        ),
        (
            ("retention.ms", APPEND, "1"),
            INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (("retention.ms", 9, "1"), -1, None),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_what_a_topic_refuses(
    client: RawClient,
    topic: str,
    change: tuple[str, int, str | None],
    code: int,
    message: str | None,
    validate_only: bool,
) -> None:
    good = ("segment.ms", SET, "123456")
    found = incremental(client, TOPIC, topic, good, change, validate_only=validate_only)
    assert found[0] == code
    if message is not None:
        assert found[1] == message
    assert present(describe(client, TOPIC, topic, "segment.ms"))[1] == DEFAULT  # all or nothing


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "missing-topic", UNKNOWN_PARTITION, "The topic 'missing-topic' does not exist."),
        (TOPIC, "bad name", INVALID_TOPIC, None),
        (TOPIC, "", INVALID_REQUEST, "Default topic resources are not allowed."),
        (BROKER, "99", INVALID_REQUEST, "Unexpected broker id, expected 1, but received 99"),
        (BROKER, "x", INVALID_REQUEST, "Node id must be an integer, but it is: x"),
        (99, "x", INVALID_REQUEST, "Unknown resource type 99"),
    ],
)
def test_resources_that_are_not_there(
    client: RawClient, kind: int, name: str, code: int, message: str | None
) -> None:
    found = incremental(client, kind, name, ("retention.ms", SET, "1"))
    assert found[0] == code
    if message is not None:
        assert found == (code, message)
    if kind != BROKER:
        assert replace(client, kind, name, ("retention.ms", "1"))[0] == code


def test_each_property_once(client: RawClient, topic: str) -> None:
    expected = (INVALID_REQUEST, "Error due to duplicate config keys")
    changes = [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)]
    assert incremental(client, TOPIC, topic, *changes) == expected
    assert replace(client, TOPIC, topic, *[("retention.ms", "1")] * 2) == expected


def test_only_validated(client: RawClient, topic: str) -> None:
    change = ("segment.ms", SET, "123456")
    assert incremental(client, TOPIC, topic, change, validate_only=True) == (0, None)
    assert replace(client, TOPIC, topic, ("segment.ms", "7"), validate_only=True) == (0, None)

    def source() -> object:
        return present(describe(client, TOPIC, topic, "segment.ms"))[1]

    assert stays(lambda: source() == DEFAULT, 0.1)


@pytest.mark.parametrize("version", range(3))
def test_all_is_replaced(client: RawClient, create: Callable[..., str], version: int) -> None:
    name = create(**{"segment.bytes": "2000000"})
    wanted = ("max.message.bytes", "5000")
    assert replace(client, TOPIC, name, wanted, version=version) == (0, None)
    value = "1073741824"
    assert_described(client, TOPIC, name, "segment.bytes", (value, DEFAULT, [(DEFAULT, value)]))
    assert present(describe(client, TOPIC, name, "max.message.bytes"))[:2] == ("5000", OWN_TOPIC)
    assert replace(client, TOPIC, name, ("retention.ms", None)) == (
        INVALID_REQUEST,
        "Null value not supported for : retention.ms",
    )
    assert replace(client, TOPIC, name, ("nope", "1"))[0] == INVALID_CONFIG


def test_topics_that_were_made_for_tiered_storage(
    client: RawClient,
    topic: str,
    eventually: Eventually,
) -> None:
    """Clients that copy a topic set all that it has."""
    plain = (
        ("remote.storage.enable", "false"),
        ("remote.log.copy.disable", "true"),
        ("remote.log.delete.on.disable", "false"),
        ("local.retention.ms", "-2"),
        ("local.retention.bytes", "5"),
    )
    changes = [(name, SET, value) for name, value in plain]
    assert incremental(client, TOPIC, topic, *changes) == (0, None)
    for name, value in plain:
        eventually(
            lambda name=name: present(describe(client, TOPIC, topic, name))[:2], (value, OWN_TOPIC)
        )
    assert incremental(client, TOPIC, topic, ("remote.storage.enable", SET, "true")) == (
        INVALID_CONFIG,
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with "
        "remote log storage.",
    )


class TestBroker:
    """Each test sets what no other does, and takes it back."""

    def test_own_values_count_above_those_of_all(self, client: RawClient, topic: str) -> None:
        key = "log.index.interval.bytes"
        try:
            assert incremental(client, BROKER, "1", (key, SET, "5000")) == (0, None)
            assert incremental(client, BROKER, "", (key, SET, "6000")) == (0, None)
            rows = [(OWN_BROKER, "5000"), (DEFAULT_BROKER, "6000"), (DEFAULT, "4096")]
            assert_described(client, BROKER, "1", key, ("5000", OWN_BROKER, rows))
            assert_described(
                client, BROKER, "", key, ("6000", DEFAULT_BROKER, [(DEFAULT_BROKER, "6000")])
            )
            assert_described(
                client, TOPIC, topic, "index.interval.bytes", ("5000", OWN_BROKER, rows)
            )
            assert incremental(client, BROKER, "1", (key, DELETE, None)) == (0, None)
            assert_described(client, BROKER, "1", key, ("6000", DEFAULT_BROKER, rows[1:]))
            assert_described(
                client, TOPIC, topic, "index.interval.bytes", ("6000", DEFAULT_BROKER, rows[1:])
            )
        finally:
            for name in ("1", ""):
                incremental(client, BROKER, name, (key, DELETE, None))
        assert_described(client, BROKER, "1", key, ("4096", DEFAULT, [(DEFAULT, "4096")]))
        assert describe(client, BROKER, "", key) is None

    def test_finer_units_count_above_coarser_ones(self, client: RawClient, topic: str) -> None:
        key = "log.retention.ms"
        try:
            assert incremental(client, BROKER, "1", (key, SET, "5000000")) == (0, None)
            rows = [(OWN_BROKER, "5000000"), (DEFAULT, "168")]
            assert_described(client, BROKER, "1", key, ("5000000", OWN_BROKER, rows))
            assert_described(client, TOPIC, topic, "retention.ms", ("5000000", OWN_BROKER, rows))
        finally:
            incremental(client, BROKER, "1", (key, DELETE, None))
        assert_described(client, BROKER, "1", key, (None, DEFAULT, []))

    def test_topics_change_with_their_broker_at_once(
        self, client: RawClient, create: Callable[..., str]
    ) -> None:
        name = create()
        large = batch_of([(None, b"x" * 10_000)])
        try:
            change = ("message.max.bytes", SET, "5000")
            assert incremental(client, BROKER, "", change) == (0, None)
            rows = [(DEFAULT_BROKER, "5000"), (DEFAULT, "1048588")]
            assert_described(
                client, BROKER, "1", "message.max.bytes", ("5000", DEFAULT_BROKER, rows)
            )
            assert client.produce(name, 0, large).error_code == TOO_LARGE
        finally:
            undo = ("message.max.bytes", DELETE, None)
            assert incremental(client, BROKER, "", undo) == (0, None)
        rows = [(DEFAULT, "1048588")]
        assert_described(client, BROKER, "1", "message.max.bytes", ("1048588", DEFAULT, rows))
        assert client.produce(name, 0, large).error_code == 0

    @pytest.mark.parametrize(
        ("name", "key", "value", "message"),
        [
            (
                "1",
                "socket.request.max.bytes",
                "1000000",
                "Cannot update these configs dynamically: [socket.request.max.bytes]",
            ),
            ("", "log.dirs", "/x", "Cannot update these configs dynamically: [log.dirs]"),
            (
                "1",
                "log.retention.minutes",
                "1",
                "Cannot update these configs dynamically: [log.retention.minutes]",
            ),
            ("1", "message.max.bytes", "x", None),
            ("1", "message.max.bytes", "-1", None),
            ("", "log.segment.bytes", "12", None),
        ],
    )
    def test_what_is_refused(
        self, client: RawClient, name: str, key: str, value: str, message: str | None
    ) -> None:
        found = incremental(client, BROKER, name, (key, SET, value))
        assert found[0] == INVALID_REQUEST
        if message is not None:
            assert found[1] == message

    def test_names_that_no_broker_has_are_kept_as_secrets(
        self,
        client: RawClient,
        eventually: Eventually,
    ) -> None:
        for name, source in (("1", OWN_BROKER), ("", DEFAULT_BROKER)):
            assert incremental(client, BROKER, name, ("my.plug.in", SET, "1")) == (0, None)
            eventually(
                lambda name=name: entry_of(client, name, "my.plug.in"),
                (None, source, True, True, 0),
            )
            assert incremental(client, BROKER, name, ("my.plug.in", DELETE, None)) == (0, None)
            assert incremental(client, BROKER, name, ("my.plug.in", APPEND, "1")) == (
                INVALID_CONFIG,
                "Unknown config name: my.plug.in",
            )

    @pytest.mark.parametrize(
        ("names", "key", "text", "default"),
        [
            (("1", ""), "background.threads", "12", "10"),
            (("1",), "sasl.kerberos.min.time.before.relogin", "58000", "60000"),
            (("1", ""), "log.cleaner.threads", "2", "1"),
            (("1", ""), "log.cleaner.min.cleanable.ratio", "0.25", "0.5"),
            (("1", ""), "group.consumer.assignment.interval.ms", "500", "1000"),
            (("1",), "ssl.client.auth", "none", "none"),
        ],
    )
    def test_kafkas_properties_are_kept(
        self,
        client: RawClient,
        eventually: Eventually,
        names: tuple[str, ...],
        key: str,
        text: str,
        default: str,
    ) -> None:
        for name in names:
            assert incremental(client, BROKER, name, (key, SET, text)) == (0, None)
            eventually(
                lambda name=name: (entry_of(client, name, key) or ())[:2],
                (text, OWN_BROKER if name else DEFAULT_BROKER),
            )
            assert incremental(client, BROKER, name, (key, DELETE, None)) == (0, None)
        eventually(lambda: present(entry_of(client, "1", key))[:2], (default, DEFAULT))

    @pytest.mark.parametrize(
        ("name", "key", "value", "message"),
        [
            ("1", "node.id", "3", "Cannot update these configs dynamically: [node.id]"),
            (
                "1",
                "background.threads",
                "x",
                "Invalid value x for configuration background.threads: Not a number of type INT",
            ),
            (
                "",
                "background.threads",
                "0",
                "Invalid value 0 for configuration background.threads: Value must be at least 1",
            ),
            (
                "",
                "sasl.kerberos.min.time.before.relogin",
                "58000",
                "Cannot update these configs at default cluster level, broker id must be "
                "specified: [sasl.kerberos.min.time.before.relogin]",
            ),
            (
                "1",
                "ssl.keystore.password",
                "secret",
                "These security configs can be dynamically updated only per-listener using the "
                "listener prefix: [ssl.keystore.password]",
            ),
            (
                "1",
                "compression.type",
                "rar",
                "Invalid value rar for configuration compression.type: String must be one of: "
                "uncompressed, zstd, lz4, snappy, gzip, producer",
            ),
        ],
    )
    def test_what_kafka_refuses(
        self, client: RawClient, name: str, key: str, value: str, message: str
    ) -> None:
        found = incremental(client, BROKER, name, (key, SET, value))
        assert found == (INVALID_REQUEST, message)

    def test_it_outlives_a_crash(self, tmp_path: Path) -> None:
        def retention(client: RawClient, name: str) -> Any:
            return present(describe(client, TOPIC, name, "retention.ms"))[:2]

        wanted = MetadataRequest.MetadataRequestTopic(name="kept")
        with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
            client.call(MetadataRequest(topics=[wanted]), MetadataResponse, 9)
            for kind, name, key, value in (
                (TOPIC, "kept", "segment.bytes", "3000000"),
                (BROKER, "1", "max.connections", "3"),
                (BROKER, "", "log.retention.ms", "7000000"),
            ):
                assert incremental(client, kind, name, (key, SET, value)) == (0, None)
            child.kill()
        with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
            assert present(describe(client, TOPIC, "kept", "segment.bytes"))[:2] == (
                "3000000",
                OWN_TOPIC,
            )
            assert retention(client, "kept") == ("7000000", DEFAULT_BROKER)
            assert present(describe(client, BROKER, "1", "max.connections"))[:2] == (
                "3",
                OWN_BROKER,
            )
            # Damaged by another version's hand: left out, said, and everything else counts.
            assert child.stop() == 0
        _spoil(tmp_path)
        with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
            assert retention(client, "kept") == ("604800000", DEFAULT)
            assert present(describe(client, BROKER, "1", "max.connections"))[:2] == (
                "3",
                OWN_BROKER,
            )
            assert "event=config.ignored entity=<default> name=log.retention.ms" in child.stderr()
            assert child.stop() == 0

    def test_fewer_connections_from_now_on(self, tmp_path: Path) -> None:
        with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
            assert incremental(client, BROKER, "1", ("max.connections", SET, "1")) == (0, None)
            with RawClient(child.host, child.port, timeout_s=0.3) as waiting:
                with pytest.raises(TimeoutError):
                    describe(waiting, BROKER, "1", "max.connections")
                more = ("max.connections", DELETE, None)
                assert incremental(client, BROKER, "1", more) == (0, None)
                waiting.socket.settimeout(10)
                assert waiting.receive_body(32, 4)
                assert present(describe(waiting, BROKER, "1", "max.connections"))[1] == DEFAULT
            assert child.stop() == 0


def _spoil(directory: Path) -> None:
    """A value in the store that this broker does not take."""
    from broker.cluster.local_store import LocalStore
    from broker.cluster.store import ANY_VERSION, Set

    store = LocalStore(directory)
    value = json.dumps({"version": 1, "config": {"log.retention.ms": "seven"}}).encode()
    store.commit([Set("/config/brokers/<default>", value, ANY_VERSION)])
    store.close()
