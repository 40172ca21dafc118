"""The client's settings: what is accepted, what is refused with which words, what stays hidden."""

import copy
import pickle
from pathlib import Path

import pytest

from pyspark_kafkalog.client import properties
from pyspark_kafkalog.client.config import ClientConfig, Isolation, Partitioner, Secret
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.record.compression import Codec

SERVERS = {"bootstrap.servers": "a:9092"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def config(**given: str) -> ClientConfig:
    return ClientConfig.from_options(
        SERVERS | {name.replace("_", "."): text for name, text in given.items()}
    )


def test_defaults_are_those_of_kafka_where_it_has_them() -> None:
    made = config()
    assert made.request_timeout_ms == 30_000
    assert made.fetch_max_bytes == 52_428_800
    assert made.isolation_level is Isolation.READ_UNCOMMITTED
    assert made.acks == -1
    assert made.enable_idempotence is True
    assert made.delivery_timeout_ms == 120_000
    assert made.max_in_flight_requests_per_connection == 5
    assert made.compression_type is Codec.NONE


def test_names_come_in_any_case() -> None:
    assert ClientConfig.from_options({"Bootstrap.Servers": "b:1", "ACKS": "1"}).acks == 1


@pytest.mark.parametrize(
    ("servers", "parsed"),
    [
        ("a:1", (("a", 1),)),
        (" a:1 , b-c.d:2,", (("a", 1), ("b-c.d", 2))),
        ("[::1]:9092", (("::1", 9092),)),
        ("PLAINTEXT://a:1", (("a", 1),)),
    ],
)
def test_bootstrap_servers(servers: str, parsed: tuple[tuple[str, int], ...]) -> None:
    made = ClientConfig.from_options({"bootstrap.servers": servers})
    assert made.bootstrap_servers == parsed


@pytest.mark.parametrize("servers", ["", " , ", "a", "a:", "a:b", "a:0", "a:65536", "::1:9092"])
def test_malformed_bootstrap_servers_are_named(servers: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"kafka\.bootstrap\.servers"):
        ClientConfig.from_options({"bootstrap.servers": servers})


def test_missing_bootstrap_servers_are_named() -> None:
    with pytest.raises(InvalidOptionError, match=r"kafka\.bootstrap\.servers is missing"):
        ClientConfig.from_options({})


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("request.timeout.ms", "soon", "a whole number from 1"),
        ("request.timeout.ms", "0", "a whole number from 1"),
        ("fetch.max.bytes", "99999999999", "to 2147483647"),
        ("max.in.flight.requests.per.connection", "6", "from 1 to 5"),
        ("isolation.level", "serializable", "read_uncommitted, read_committed"),
        ("compression.type", "rar", "none, gzip, snappy, lz4, zstd"),
        ("acks", "2", "one of all"),
        ("partitioner.class", "a.B", "kafka.clients.producer.RoundRobinPartitioner"),
        ("enable.idempotence", "yes", "true, false"),
        ("security.protocol", "TLS", "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("ssl.truststore.type", "JKS", "PEM"),
    ],
)
def test_a_malformed_value_names_its_option_and_what_to_write(
    name: str, text: str, advice: str
) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        ClientConfig.from_options(SERVERS | {name: text})
    assert f"kafka.{name}" in str(raised.value)
    assert advice in str(raised.value)


def test_ignored_keys_count_where_no_partitioner_is_named() -> None:
    sticky = {"partitioner.ignore.keys": "true"}
    by_key = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"
    assert ClientConfig.from_options(SERVERS).partitioner is Partitioner.BY_KEY
    assert ClientConfig.from_options(SERVERS | sticky).partitioner is Partitioner.STICKY
    both = SERVERS | sticky | {"partitioner.class": by_key}
    assert ClientConfig.from_options(both).partitioner is Partitioner.BY_KEY


def test_fewer_acks_switch_idempotence_off() -> None:
    assert config(acks="1").enable_idempotence is False


@pytest.mark.parametrize("acks", ["all", "ALL", " all ", "-1", " -1"])
def test_all_acks_keep_idempotence_however_they_are_written(acks: str) -> None:
    made = config(acks=acks)
    assert (made.acks, made.enable_idempotence) == (-1, True)


def test_fewer_acks_contradict_idempotence_that_was_asked_for() -> None:
    with pytest.raises(InvalidOptionError, match=r"kafka\.enable\.idempotence needs kafka\.acks"):
        config(acks="0", enable_idempotence="true")


def test_no_secret_shows_in_any_form_of_the_config() -> None:
    made = config(
        sasl_password="hunter2",
        sasl_jaas_config=f'{PLAIN} username="u" password="hunter2";',
        ssl_key_password="hunter2",
        ssl_keystore_key="hunter2",
        sasl_oauthbearer_client_credentials_client_secret="hunter2",
    )
    for shown in (repr(made), str(made), f"{made.sasl_password}", repr([made])):
        assert "hunter2" not in shown
    assert "[hidden]" in repr(made)


def test_a_config_survives_pickling_and_copying() -> None:
    made = config(sasl_password="hunter2", max_partition_fetch_bytes="7")
    for copied in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert copied == made
        assert copied.sasl_password.reveal() == "hunter2"


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (f'{PLAIN} username="u" password="p";', {"username": "u", "password": "p"}),
        (f'{PLAIN}\n  username="u"\n  password="a \\"b\\" \\\\;";', {"password": 'a "b" \\;'}),
        (f"{PLAIN} username='u' password=p;", {"username": "u", "password": "p"}),
        (f"{PLAIN} username=u", {"username": "u"}),
        (f"{PLAIN};", {}),
    ],
)
def test_login_module_lines(line: str, options: dict[str, str]) -> None:
    parsed = config(sasl_jaas_config=line).jaas_options()
    assert options.items() <= parsed.items()


@pytest.mark.parametrize("line", ["hunter2", f'{PLAIN} password="hunter2', f"{PLAIN} = hunter2;"])
def test_a_malformed_login_module_line_is_refused_without_its_text(line: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"kafka\.sasl\.jaas\.config") as raised:
        config(sasl_jaas_config=line).jaas_options()
    assert "hunter2" not in str(raised.value)


def test_a_secret_in_the_environment_is_looked_up_where_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = Secret("${env:KAFKALOG_TEST_PASSWORD}")
    assert pickle.loads(pickle.dumps(secret)) == secret
    with pytest.raises(InvalidOptionError, match="KAFKALOG_TEST_PASSWORD, which is not set"):
        secret.reveal()
    monkeypatch.setenv("KAFKALOG_TEST_PASSWORD", "hunter2")
    assert secret.reveal() == "hunter2"
    line = f'{PLAIN} username="u" password="${{env:KAFKALOG_TEST_PASSWORD}}";'
    assert config(sasl_jaas_config=line).jaas_options()["password"] == "hunter2"


def test_a_secret_in_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "secrets.properties"
    path.write_text("# ours\npassword = hunter2=x\nescaped: a\\\\b\nlong=one,\\\n  two\n")
    assert Secret(f"${{file:{path}:password}}").reveal() == "hunter2=x"
    assert Secret(f"${{file:{path}:escaped}}").reveal() == "a\\b"
    assert Secret(f"${{file:{path}:long}}").reveal() == "one,two"
    with pytest.raises(InvalidOptionError, match="has no line 'other="):
        Secret(f"${{file:{path}:other}}").reveal()
    with pytest.raises(InvalidOptionError, match="cannot be read here"):
        Secret(f"${{file:{path}.gone:password}}").reveal()


def test_a_secret_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(" hunter2=:x \n")
    assert Secret(f"${{dir:{tmp_path}:password}}").reveal() == " hunter2=:x "
    with pytest.raises(InvalidOptionError, match=f"names the file {tmp_path}/other, which cannot"):
        Secret(f"${{dir:{tmp_path}:other}}").reveal()
    (tmp_path / "store.p12").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidOptionError, match="not valid UTF-8"):
        Secret(f"${{dir:{tmp_path}:store.p12}}").reveal()


def test_a_password_in_a_reference_may_hold_any_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKALOG_TEST_PASSWORD", "a\"; b='c' \\ ${env:HOME}")
    line = f'{PLAIN} username="u" password="${{env:KAFKALOG_TEST_PASSWORD}}";'
    parsed = config(sasl_jaas_config=line).jaas_options()
    assert parsed == {"username": "u", "password": "a\"; b='c' \\ ${env:HOME}"}


def test_a_whole_login_module_line_in_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKALOG_TEST_LOGIN", f'{PLAIN} username="u" password="p";')
    made = config(sasl_jaas_config="${env:KAFKALOG_TEST_LOGIN}")
    assert made.jaas_options() == {"username": "u", "password": "p"}


@pytest.mark.parametrize(
    "given",
    [
        {"ssl.truststore.type": "JKS", "ssl.truststore.location": "/etc/trust.store"},
        {"ssl.truststore.location": "/etc/trust.store.jks"},
        {"ssl.truststore.location": "/etc/trust.store.P12", "ssl.truststore.type": "PEM"},
    ],
)
def test_a_java_store_is_refused_with_the_command_that_converts_it(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOptionError, match=r"keytool -list -rfc -keystore /etc/trust\.store"):
        ClientConfig.from_options(SERVERS | given)


def test_scrub_takes_every_secret_out_of_a_text() -> None:
    made = config(sasl_jaas_config=f'{PLAIN} username="u" password="hunter2";')
    assert made.scrub("u said hunter2!") == "u said [hidden]!"


def test_scrub_leaves_no_rest_of_a_secret_that_begins_with_another() -> None:
    made = config(sasl_password="hunter", ssl_key_password="hunter2")
    assert made.scrub("hunter2 and hunter") == "[hidden] and [hidden]"


@pytest.mark.parametrize(
    ("protocol", "tls", "sasl"),
    [
        ("PLAINTEXT", False, False),
        ("SSL", True, False),
        ("SASL_PLAINTEXT", False, True),
        ("SASL_SSL", True, True),
    ],
)
def test_what_a_security_protocol_is_made_of(protocol: str, tls: bool, sasl: bool) -> None:
    made = config(security_protocol=protocol)
    assert (made.uses_tls, made.uses_sasl) == (tls, sasl)


def test_scrub_works_while_a_reference_leads_nowhere() -> None:
    made = config(sasl_password="${env:KAFKALOG_TEST_NOWHERE}", ssl_key_password="hunter2")
    assert made.scrub("a text of hunter2") == "a text of [hidden]"


def test_unknown_properties_come_with_the_nearest_known_one() -> None:
    names = ["fetch.max.bites", "group.id", "sasl.pasword", "frobnicate", "FETCH.MAX.BYTES"]
    assert properties.unknown(names) == {
        "fetch.max.bites": "fetch.max.bytes",
        "sasl.pasword": "sasl.password",
        "frobnicate": None,
    }
