"""Who a broker is to ZooKeeper: the JAAS file, SASL with a real ZooKeeper, ACLs of nodes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from broker.cluster.jaas import DigestUser, zookeeper_user
from broker.cluster.store import Create, MetadataStoreError
from broker.config.definition import ConfigError
from tests.support.zookeeper import DIGEST_MODULE, ZooKeeperServer

# What Java takes within quotes, and within a shell's word.
PASSWORD = 'se"cret \\{};='
OpenStore = Callable[..., Any]
Login = Callable[..., None]


def jaas(section: str = "Client", password: str = PASSWORD, module: str = DIGEST_MODULE) -> str:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return f"""
    /* Of brokers; */ KafkaServer {{ some.Module sufficient debug=true; }};
    {section} {{
        {module} required // once
        username=kafka password="{quoted}";
    }};
    """


@pytest.fixture
def options(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    def of(text: str, more: str = "") -> dict[str, str]:
        file = tmp_path / "jaas file"
        file.write_text(text)
        return {"KAFKA_OPTS": f"-Xmx1g '-Djava.security.auth.login.config={file}' {more}"}

    return of


def test_the_user_is_who_the_section_for_zookeeper_says(
    options: Callable[..., dict[str, str]],
) -> None:
    kafka = DigestUser("kafka", PASSWORD)
    assert zookeeper_user(options(jaas())) == kafka
    assert zookeeper_user(options(jaas("Zk"), "-Dzookeeper.sasl.clientconfig=Zk")) == kafka
    assert zookeeper_user(options(jaas("Zk"))) is None
    assert zookeeper_user(options(jaas(), "-Dzookeeper.sasl.client=false")) is None
    assert zookeeper_user({"KAFKA_OPTS": "-Xmx1g"}) is None
    assert zookeeper_user({}) is None
    assert PASSWORD not in repr(kafka)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (jaas(module="com.sun.security.auth.module.Krb5LoginModule"), "asks for the login module"),
        (f"Client {{ {DIGEST_MODULE} required username=kafka; }};", 'password="..."'),
        (jaas()[:-10], "is no JAAS file"),
        (jaas().replace("{\n", "\n"), "is no JAAS file"),
        (jaas().replace("=kafka", " kafka"), "is no JAAS file"),
    ],
)
def test_a_file_that_says_no_user_is_refused(
    options: Callable[[str], dict[str, str]], text: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        zookeeper_user(options(text))
    assert "se" + "cret" not in str(raised.value)


@pytest.mark.parametrize(
    "value", ["-Djava.security.auth.login.config=/nowhere", "-Djava.security 'open"]
)
def test_options_that_lead_to_no_file_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="KAFKA_OPTS"):
        zookeeper_user({"KAFKA_OPTS": value})


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(passwords={"kafka": "word", "other": "word"}) as running:
        yield running


@pytest.fixture
def login(options: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Login:
    def of(name: str, password: str = "word") -> None:
        text = jaas(password=password).replace("=kafka", f"={name}")
        monkeypatch.setenv("KAFKA_OPTS", options(text)["KAFKA_OPTS"])

    return of


def test_nodes_are_the_brokers_own_and_others_read_what_is_no_secret(
    server: ZooKeeperServer, open_store: OpenStore, login: Login
) -> None:
    login("kafka")
    store, _ = open_store(server.address, set_acl="true")
    root = store._root
    for path in ("/open", "/config", "/config/users", "/config/users/u"):
        store.commit([Create(path, b"x")])
    login("other")
    other, _ = open_store(server.address)
    assert other.get("/open").value == b"x"
    attempts: list[Callable[[], object]] = [
        lambda: other.get("/config/users/u"),
        lambda: other.commit([Create("/open/below")]),
    ]
    for refused in attempts:
        with pytest.raises(MetadataStoreError, match=r"this broker's user .*zookeeper\.set\.acl"):
            refused()
    stranger = KazooClient(server.address + root)
    stranger.start()
    try:
        with pytest.raises(NoAuthError):
            stranger.set("/open", b"y")
    finally:
        stranger.stop()
        stranger.close()
    login("kafka")
    assert open_store(server.address)[0].get("/config/users/u").value == b"x"


def test_a_wrong_password_is_said(
    server: ZooKeeperServer, open_store: OpenStore, login: Login
) -> None:
    login("kafka", "other word")
    with pytest.raises(MetadataStoreError, match=r"AUTH_FAILED|KAFKA_OPTS"):
        open_store(server.address, connection_timeout_ms="2000")


def test_acls_without_a_user_are_refused(open_store: OpenStore) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.set\.acl"):
        open_store("localhost:1", set_acl="true")
