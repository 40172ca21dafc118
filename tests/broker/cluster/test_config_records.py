"""What is set on topics and brokers, as nodes that any broker writes, and its notices."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import UnknownTopicOrPartitionError

from broker.cluster import znodes
from broker.cluster.config_records import ConfigRecords
from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import new_topic
from broker.cluster.records import MetadataRecords
from broker.cluster.store import ANY_VERSION, Create, Delete, Set

PATH = "/config/topics/orders"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    opened = LocalStore(tmp_path)
    records = MetadataRecords(opened)
    records.prepare()
    records.become_controller(1)
    records.create_topic(new_topic("orders", 1, 1), {"a": "1"})
    yield opened
    opened.close()


@pytest.fixture
def records(store: LocalStore) -> ConfigRecords:
    return ConfigRecords(store, tells_others=True)


def notices(store: LocalStore) -> list[Any]:
    return [
        json.loads(store.get(f"/config/changes/{name}").value)
        for name in store.children("/config/changes")
    ]


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        ("topics", "orders", "topics/orders"),
        ("brokers", "<default>", "brokers/<default>"),
        ("brokers", "2", "brokers/2"),
        ("users", "alice@x y", "users/alice%40x%20y"),
        ("groups", "a/b", "groups/a%2Fb"),
        ("groups", "..", "groups/%2E%2E"),
    ],
)
def test_a_change_and_its_notice_are_kafkas(
    store: LocalStore, records: ConfigRecords, kind: str, name: str, path: str
) -> None:
    assert records.change(kind, name, lambda configs: {**configs, "b": "2"})["b"] == "2"
    value = json.loads(store.get(f"/config/{path}").value)
    assert (value["version"], value["config"]["b"]) == (1, "2")
    assert notices(store) == [{"version": 2, "entity_path": path}]
    assert store.children("/config/changes") == ["config_change_0000000000"]
    assert records.read(kind, name).values == value["config"]
    assert name in records.names(kind)


def test_a_broker_alone_tells_nobody(store: LocalStore) -> None:
    ConfigRecords(store, tells_others=False).change("topics", "orders", lambda _: {"b": "2"})
    assert notices(store) == []


def test_what_stays_as_it_was_is_neither_written_nor_told(
    store: LocalStore, records: ConfigRecords
) -> None:
    records.change("topics", "orders", dict)
    records.change("groups", "g", dict)
    assert (store.get(PATH).version, notices(store)) == (0, [])


def test_nothing_that_another_broker_sets_meanwhile_is_lost(
    store: LocalStore, records: ConfigRecords
) -> None:
    others = iter(("x", "y"))

    def changed(configs: Mapping[str, str]) -> dict[Any, Any]:
        if name := next(others, None):  # between this one's reading and its writing
            before = json.loads(store.get(PATH).value)["config"]
            store.commit([Set(PATH, znodes.dump_config({**before, name: "1"}), ANY_VERSION)])
        return {**configs, "b": "2"}

    assert records.change("topics", "orders", changed) == {"a": "1", "b": "2", "x": "1", "y": "1"}
    assert len(notices(store)) == 1


def test_a_topic_that_is_gone_has_no_configs(store: LocalStore, records: ConfigRecords) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        records.change("topics", "gone", lambda _: {"a": "1"})
    assert not store.exists("/config/topics/gone")
    # Apache Kafka makes a topic before its config is there, where nothing is set.
    store.commit([Delete(PATH, ANY_VERSION)])
    assert records.change("topics", "orders", lambda _: {"a": "2"}) == {"a": "2"}


DEEP = b'{"version":1,"config":' + b'{"a":' * 100_000


@pytest.mark.parametrize(
    "value", [b"{", b"[]", b'{"config":7}', b'{"config":{"a":1}}', b"\xff", DEEP]
)
def test_nonsense_is_nothing_that_is_set_and_can_be_replaced(
    store: LocalStore, records: ConfigRecords, value: bytes
) -> None:
    store.commit([Set(PATH, value, ANY_VERSION)])
    with pytest.raises(ValueError, match=r".*"):
        records.read("topics", "orders")
    assert records.read_or_nothing("topics", "orders").values == {}
    records.change("topics", "orders", lambda _: {"a": "2"})
    assert records.read("topics", "orders").values == {"a": "2"}


def test_a_users_clients_stay_when_nothing_is_set_on_the_user(
    store: LocalStore, records: ConfigRecords
) -> None:
    records.change("users", "u", lambda _: {"a": "1"})
    store.commit([Create("/config/users/u/clients")])
    records.change("users", "u", lambda _: {})
    assert records.read("users", "u").values == {}
    store.commit([Create("/config/users/folder")])
    assert records.read("users", "folder").values == {}
    records.change("groups", "g", lambda _: {"a": "1"})
    records.change("groups", "g", lambda _: {})
    assert records.names("groups") == []
    store.commit([Create("/config/users/%2e")])
    assert records.names("users") == ["folder", "u"]


@pytest.mark.parametrize(
    ("value", "entity"),
    [
        (b'{"version":2,"entity_path":"users/alice/clients/app"}', ("users", "alice/clients/app")),
        (b'{"version":2,"entity_path":"brokers/<default>"}', ("brokers", "<default>")),
        (b'{"version":1,"entity_type":"topics","entity_name":"t"}', ("topics", "t")),
        *(
            (value, None)
            for value in (
                b"",
                b"7",
                b"{}",
                b'{"version":2}',
                b'{"version":2,"entity_path":"topics"}',
                b'{"version":2,"entity_path":7}',
                b'{"version":3,"entity_path":"topics/t"}',
                b'{"version":1,"entity_type":"topics"}',
                b"\xff\xfe",
            )
        ),
    ],
)
def test_notices_are_read_as_kafka_reads_them(value: bytes, entity: tuple[str, str] | None) -> None:
    if entity is None:
        with pytest.raises(ValueError, match=r".*"):
            znodes.load_config_change(value)
    else:
        assert znodes.load_config_change(value) == entity
