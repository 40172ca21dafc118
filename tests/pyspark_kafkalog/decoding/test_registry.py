"""The registry's client: credentials, and registries that misbehave, in bounded time."""

import base64
import json
import pickle
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.decoding.registry import RegistryConfig, latest_schema, schema_by_id
from pyspark_kafkalog.errors import InvalidOptionError, SchemaRegistryError
from tests.pyspark_kafkalog.decoding.registry_stub import Registry, serving
from tests.support.patience import BUSY_S
from tests.support.ports import closed_port
from tests.support.present import present

CERTIFICATES = Path(__file__).parents[1] / "client" / "data"
PASSWORD = "s3cret-w0rd"


def config(url: str, **more: Any) -> RegistryConfig:
    more = {name.replace("_", "."): value for name, value in more.items()}
    return RegistryConfig.from_options({"schema.registry.url": url, **more})


def basic(user_info: str) -> str:
    return f"Basic {base64.b64encode(user_info.encode()).decode()}"


@pytest.mark.parametrize(
    "options",
    [
        {"basic.auth.user.info": f"etl:{PASSWORD}"},
        {"basic.auth.user.info": "etl:${env:REGISTRY_PASSWORD}"},
        {"schema.registry.basic.auth.user.info": f"etl:{PASSWORD}"},
        {"basic.auth.credentials.source": "USER_INFO", "Basic.Auth.User.Info": f"etl:{PASSWORD}"},
    ],
)
def test_basic_auth(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", PASSWORD)
    registry.register("s", '"int"')
    found = RegistryConfig.from_options({"schema.registry.url": registry.url, **options})
    assert latest_schema(found, "s").text == '"int"'
    assert registry.authorizations == [basic(f"etl:{PASSWORD}")]
    assert PASSWORD not in repr(found)


def test_credentials_in_the_url(registry: Registry) -> None:
    registry.register("s", '"int"')
    found = config(registry.url.replace("//", f"//etl:{PASSWORD}@"))
    assert latest_schema(found, "s").id == 1
    assert registry.authorizations == [basic(f"etl:{PASSWORD}")]
    assert PASSWORD not in repr(found)


def test_a_bearer_token(registry: Registry) -> None:
    registry.register("s", '"int"')
    latest_schema(config(registry.url, bearer_auth_token="${env:HOME}x"), "s")
    assert present(registry.authorizations[0]).startswith("Bearer /")


def test_a_token_may_end_in_a_newline_as_files_do(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_TOKEN", f"{PASSWORD}\n")
    registry.register("s", '"int"')
    latest_schema(config(registry.url, bearer_auth_token="${env:REGISTRY_TOKEN}"), "s")
    assert registry.authorizations == [f"Bearer {PASSWORD}"]


@pytest.mark.parametrize("token", [f"{PASSWORD}\r\nX-Other: 1", f"{PASSWORD}\nx", f"{PASSWORD}é€"])
def test_a_token_that_is_none_is_refused_unseen(registry: Registry, token: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"bearer\.auth\.token") as raised:
        latest_schema(config(registry.url, bearer_auth_token=token), "s")
    assert PASSWORD not in str(raised.value)
    assert registry.asked == []


@pytest.mark.parametrize(
    "url",
    [
        f"http://etl:{PASSWORD},x@registry:8081",
        f"http://etl:{PASSWORD}",
        f"http://registry:8081,http://etl:{PASSWORD},y@registry:8081",
    ],
)
def test_an_address_that_is_none_is_refused_unseen(url: str) -> None:
    with pytest.raises(InvalidOptionError, match="address") as raised:
        config(url)
    assert PASSWORD not in str(raised.value)


def test_a_host_that_can_be_none_does_not_answer() -> None:
    with pytest.raises(SchemaRegistryError, match="no schema registry answered"):
        latest_schema(config(f"http://{'a' * 70}.example:1", request_timeout_ms=300), "s")


def test_a_reference_to_a_secret_travels_as_such() -> None:
    found = config("http://r:1", basic_auth_user_info="etl:${env:NOT_SET_ANYWHERE}")
    found = pickle.loads(pickle.dumps(found))
    with pytest.raises(InvalidOptionError, match="NOT_SET_ANYWHERE"):
        latest_schema(found, "s")


def test_refused_credentials_are_named_and_not_shown(registry: Registry) -> None:
    registry.failures.append((401, '{"error_code": 401, "message": "Unauthorized"}'))
    found = config(registry.url, basic_auth_user_info=f"etl:{PASSWORD}")
    with pytest.raises(SchemaRegistryError, match="refused the credentials") as refused:
        latest_schema(found, "s")
    assert PASSWORD not in str(refused.value)


def test_the_next_address_is_asked_where_one_is_down(registry: Registry) -> None:
    registry.register("s", '"int"')
    assert latest_schema(config(f"http://127.0.0.1:{closed_port()}, {registry.url}/"), "s").id == 1


def test_trouble_that_passes_is_waited_for(registry: Registry) -> None:
    registry.register("s", '"int"')
    registry.failures += [(503, ""), (429, "")]
    assert latest_schema(config(registry.url), "s").id == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (302, ""),
        (200, ""),
        (200, "[]"),
        (200, "<html>"),
        (200, "{}"),
        (200, '{"schema": 1}'),
        (200, '{"schema": "x"}'),
        (200, '{"schema": "x", "id": 1, "references": 1}'),
        (200, '{"schema": "x", "id": 1, "references": [1]}'),
        (200, "[" * 100_000),
        (200, json.dumps({"schema": "x" * (5 << 20), "id": 1})),
        (404, "not found"),
        (418, "{}"),
    ],
)
def test_answers_that_no_registry_gives(registry: Registry, status: int, body: str) -> None:
    registry.failures.append((status, body))
    with pytest.raises(SchemaRegistryError):
        latest_schema(config(registry.url), "s")
    assert len(registry.asked) == 1


def test_references_that_lead_in_a_circle_end(registry: Registry) -> None:
    to = {name: {"name": name, "subject": name, "version": 1} for name in "ab"}
    registry.register("a", '"int"', references=[to["b"]])
    registry.register("b", '"long"', references=[to["a"]])
    found = latest_schema(config(registry.url), "a")
    assert {name for name, _ in found.references} == {"a", "b"}
    registry.register("c", '"int"', references=[{"name": "d", "subject": "d", "version": 1}])
    with pytest.raises(SchemaRegistryError, match="version 1 of d"):
        latest_schema(config(registry.url), "c")


@pytest.mark.parametrize(
    ("talk", "drop"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.0 200 OK\r\n\r\n", b" "),
    ],
)
def test_a_registry_that_falls_silent_or_drips_is_given_up_in_time(
    talk: bytes, drop: bytes
) -> None:
    done = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(talk)
            for _ in range(600):
                if done.wait(0.05):
                    return
                try:
                    connection.sendall(drop)
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=[server])
        thread.start()
        port = server.getsockname()[1]
        started = time.monotonic()
        try:
            with pytest.raises(SchemaRegistryError, match="within 300 ms"):
                schema_by_id(config(f"http://127.0.0.1:{port}", request_timeout_ms="300"), 1)
            assert time.monotonic() - started < 3 + BUSY_S
        finally:
            done.set()
            thread.join()


def test_an_answer_that_is_cut_off_is_asked_for_again() -> None:
    body = json.dumps({"schema": '"int"'}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)

    def answer(server: socket.socket) -> None:
        for told in (body[:-5], body):
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(head + told)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=[server], daemon=True)
        thread.start()
        port = server.getsockname()[1]
        assert schema_by_id(config(f"http://127.0.0.1:{port}"), 1).text == '"int"'


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "schema.registry.url is missing"),
        ({"schema.registry.url": "registry:8081"}, "not a list of addresses"),
        ({"schema.registry.url": f"ftp://a:{PASSWORD}@r"}, "not a list of addresses"),
        ({"schema.registry.url": f"https://a:{PASSWORD}@r:x"}, "address number 1 has no host"),
        ({"basic.auth.user.inf": PASSWORD}, "no option 'basic.auth.user.inf'"),
        ({"basic.auth.user.info": PASSWORD, "bearer.auth.token": "x"}, "not both"),
        ({"bearer.auth.credentials.source": "OAUTHBEARER"}, "must be one of STATIC_TOKEN"),
        ({"request.timeout.ms": "soon"}, "number of milliseconds"),
        ({"ssl.truststore.location": "/trust.jks"}, r"schema\.registry\.ssl\.truststore"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str], reason: str) -> None:
    if options and "schema.registry.url" not in options:
        options = {"schema.registry.url": "https://r", **options}
    with pytest.raises(InvalidOptionError, match=reason) as refused:
        RegistryConfig.from_options(options)
    assert PASSWORD not in str(refused.value)


def test_tls() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "localhost.pem")
    with serving(context) as secured:
        secured.register("s", '"int"')
        url = secured.url.replace("127.0.0.1", "localhost")
        for option in ("schema.registry.ssl.truststore.location", "ssl.ca.location"):
            options = {"schema.registry.url": url, option: str(CERTIFICATES / "trusted.pem")}
            assert latest_schema(RegistryConfig.from_options(options), "s").id == 1
        with pytest.raises(SchemaRegistryError, match="CERTIFICATE_VERIFY_FAILED"):
            latest_schema(config(url), "s")
        with pytest.raises(InvalidOptionError, match=r"schema\.registry\.ssl\.truststore"):
            latest_schema(config(url, ssl_truststore_location="/nowhere.pem"), "s")
