"""SASL against a scripted broker: what is sent, what a refusal says, and that no secret shows."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.security import tls_context
from pyspark_kafkalog.errors import AuthenticationError, InvalidOptionError
from tests.pyspark_kafkalog.client.scripted import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    VERSIONS,
    RawPeer,
    Request,
    ScriptedBroker,
)
from tests.support.patience import EVENT_S

PASSWORD = "hunter2"
PLAIN = {
    "sasl_mechanism": "PLAIN",
    "sasl_jaas_config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="alice" password="{PASSWORD}";',
}


class SaslBroker(ScriptedBroker):
    """Accepts the mechanisms of `offers`; answers each exchange with the next of `answers`."""

    def __init__(self, offers: list[str], answers: list[tuple[int, str, bytes]]) -> None:
        super().__init__({SASL_HANDSHAKE: self.handshake, SASL_AUTHENTICATE: self.authenticate})
        self.offers = offers
        self.answers = answers
        self.received: list[bytes] = []

    def handshake(self, request: Request) -> bytes:
        asked = SaslHandshakeRequest.decode(request.body, version=request.version)
        error_code = 0 if asked.mechanism in self.offers else 33
        response = SaslHandshakeResponse(error_code=error_code, mechanisms=self.offers)
        return bytes(response.encode(version=request.version))

    def authenticate(self, request: Request) -> bytes:
        asked = SaslAuthenticateRequest.decode(request.body, version=request.version)
        self.received.append(bytes(asked.auth_bytes))
        error_code, message, answer = self.answers.pop(0)
        response = SaslAuthenticateResponse(
            error_code=error_code, error_message=message, auth_bytes=answer, session_lifetime_ms=0
        )
        return bytes(response.encode(version=request.version))

    def connect(self, **properties: str) -> Connection:
        config = self.config(security_protocol="SASL_PLAINTEXT", **properties)
        return Connection("127.0.0.1", self.port, config)


def test_plain_sends_user_and_password() -> None:
    with SaslBroker(["PLAIN"], [(0, "", b"")]) as broker:
        broker.connect(**PLAIN).close()
        assert broker.received == [b"alice\0alice\0hunter2"]


def test_the_short_form_of_user_and_password() -> None:
    with SaslBroker(["PLAIN"], [(0, "", b"")]) as broker:
        broker.connect(sasl_mechanism="PLAIN", sasl_username="bob", sasl_password="hunter2").close()
        assert broker.received == [b"bob\0bob\0hunter2"]


def test_a_refusal_is_told_without_the_secrets_that_the_broker_repeats(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusal = (58, f"no user alice with password {PASSWORD}", b"")
    with (
        SaslBroker(["PLAIN"], [refusal]) as broker,
        pytest.raises(AuthenticationError, match="refused the credentials") as raised,
    ):
        broker.connect(**PLAIN)
    assert str(raised.value).endswith(". Check them in the options kafka.sasl.*.")
    assert PASSWORD not in str(raised.value)
    assert "[hidden]" in str(raised.value)
    assert PASSWORD not in caplog.text
    assert raised.value.__cause__ is None


def test_a_mechanism_that_is_not_offered_names_those_that_are() -> None:
    with (
        SaslBroker(["SCRAM-SHA-512", "GSSAPI"], []) as broker,
        pytest.raises(AuthenticationError, match="only SCRAM-SHA-512, GSSAPI"),
    ):
        broker.connect(**PLAIN)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_listener_without_sasl_says_which_option_is_wrong(
    monkeypatch: pytest.MonkeyPatch, says_so: bool
) -> None:
    """Apache Kafka's answers that it knows no mechanism at all."""
    if not says_so:
        monkeypatch.delitem(VERSIONS, SASL_HANDSHAKE)
    with (
        SaslBroker([], []) as broker,
        pytest.raises(AuthenticationError, match=r"no SASL.*kafka\.security\.protocol"),
    ):
        broker.connect(**PLAIN)


def test_an_unknown_mechanism_names_the_known_ones() -> None:
    with (
        SaslBroker([], []) as broker,
        pytest.raises(InvalidOptionError, match=r"kafka\.sasl\.mechanism is 'PLANE'.*PLAIN"),
    ):
        broker.connect(sasl_mechanism="PLANE")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_missing_credentials_say_which_options_to_give(mechanism: str) -> None:
    with (
        SaslBroker([mechanism], []) as broker,
        pytest.raises(InvalidOptionError, match=r"kafka\.sasl\.username"),
    ):
        broker.connect(sasl_mechanism=mechanism)


def test_a_scram_answer_that_makes_no_sense_is_a_typed_error() -> None:
    with (
        SaslBroker(["SCRAM-SHA-256"], [(0, "", b"r=nonsense")]) as broker,
        pytest.raises(AuthenticationError, match="SASL SCRAM-SHA-256 failed") as raised,
    ):
        broker.connect(**{**PLAIN, "sasl_mechanism": "SCRAM-SHA-256"})
    assert PASSWORD not in str(raised.value)


def test_an_exchange_that_never_ends_is_ended() -> None:
    with SaslBroker(["OAUTHBEARER"], [(0, "", b"more")] * 100) as broker:
        with (
            TokenEndpoint({"access_token": "token"}) as endpoint,
            pytest.raises(AuthenticationError, match="did not complete"),
        ):
            broker.connect(**endpoint.options)
        assert len(broker.answers) > 50


class TokenEndpoint:
    """An OAuth server on 127.0.0.1 that answers with one document."""

    __test__ = False

    def __init__(self, document: Any, status: int = 200) -> None:
        asked: list[dict[str, list[str]]] = []
        self.asked = asked

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                asked.append(parse_qs(self.rfile.read(length).decode()))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(document).encode())

            def log_message(self, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self.options = {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_endpoint_url": (
                f"http://127.0.0.1:{self._server.server_port}/token"
            ),
            "sasl_oauthbearer_client_credentials_client_id": "me",
            "sasl_oauthbearer_client_credentials_client_secret": PASSWORD,
        }

    def __enter__(self) -> "TokenEndpoint":
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(EVENT_S)


def test_oauthbearer_asks_the_endpoint_for_a_token() -> None:
    with SaslBroker(["OAUTHBEARER"], [(0, "", b"")]) as broker:
        with TokenEndpoint({"access_token": "the-token"}) as endpoint:
            broker.connect(**endpoint.options, sasl_oauthbearer_scope="logs").close()
        assert broker.received == [b"n,,\x01auth=Bearer the-token\x01\x01"]
        assert endpoint.asked == [
            {
                "grant_type": ["client_credentials"],
                "client_id": ["me"],
                "client_secret": [PASSWORD],
                "scope": ["logs"],
            }
        ]


@pytest.mark.parametrize(("document", "status"), [({}, 401), ({}, 200), ([], 200), ("x", 200)])
def test_an_endpoint_without_a_token_is_named_without_the_secret(
    document: dict[str, object], status: int
) -> None:
    with (
        SaslBroker(["OAUTHBEARER"], []) as broker,
        TokenEndpoint(document, status) as endpoint,
        pytest.raises(AuthenticationError, match="/token") as raised,
    ):
        broker.connect(**endpoint.options)
    assert PASSWORD not in str(raised.value)


def test_an_endpoint_that_is_none_is_named_without_the_secret() -> None:
    def greet(sock: socket.socket) -> None:
        sock.recv(1 << 16)
        sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    with (
        RawPeer(greet) as peer,
        SaslBroker(["OAUTHBEARER"], []) as broker,
        TokenEndpoint({}) as endpoint,
    ):
        for host in (f"127.0.0.1:{peer.port}", "a..b:1", "127.0.0.1:many"):
            url = {"sasl_oauthbearer_token_endpoint_url": f"http://{host}/token"}
            with pytest.raises(AuthenticationError, match=f"{host}/token gave no OAu") as raised:
                broker.connect(**endpoint.options | url)
            assert PASSWORD not in str(raised.value)
            assert "SSH" not in str(raised.value)


def test_oauthbearer_without_endpoint_says_which_options_to_give() -> None:
    with (
        SaslBroker(["OAUTHBEARER"], []) as broker,
        pytest.raises(InvalidOptionError, match=r"token\.endpoint\.url"),
    ):
        broker.connect(sasl_mechanism="OAUTHBEARER")


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"ssl.truststore.location": "/nowhere.pem"}, "truststore.location names the file"),
        ({"ssl.truststore.certificates": "no PEM"}, "kafka.ssl.truststore"),
        ({"ssl.keystore.location": "/nowhere.pem"}, "keystore.location names the file"),
        ({"ssl.keystore.key": PASSWORD, "ssl.key.password": PASSWORD}, "kafka.ssl.keystore"),
    ],
)
def test_a_store_that_cannot_be_read_is_named(given: dict[str, str], option: str) -> None:
    config = ClientConfig.from_options({"bootstrap.servers": "a:1", **given})
    with pytest.raises(InvalidOptionError) as raised:
        tls_context(config)
    assert option in str(raised.value)
    assert PASSWORD not in str(raised.value)
