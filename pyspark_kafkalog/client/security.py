"""TLS and SASL for a connection: the context that Python's ssl needs, and the SASL exchange.

Mechanisms (PLAIN, SCRAM, OAUTHBEARER, GSSAPI, AWS_MSK_IAM) are `kafka.net.sasl`'s, which do no I/O:
this module asks for the bytes to send and hands back what the broker answered. GSSAPI needs the
package `gssapi`, AWS_MSK_IAM `botocore`. Never shows a credential: what others worded is scrubbed.
Blocking, one thread at a time; every wait ends with the deadline that is handed in.
"""

import json
import ssl
import tempfile
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from kafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaTimeoutError,
    for_code,
)
from kafka.net.sasl import SASL_MECHANISMS, get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from pyspark_kafkalog.client.config import ClientConfig, pem_conversion
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.errors import AuthenticationError, InvalidOptionError

_MOST_EXCHANGES = 32
_LARGEST_STORE_BYTES = 1 << 24
_LARGEST_TOKEN_ANSWER_BYTES = 1 << 20


def tls_context(config: ClientConfig) -> ssl.SSLContext:
    """The context of `kafka.ssl.*`; raises InvalidOptionError naming the option that fails."""
    if not config.ssl_truststore_certificates:
        _check_readable("truststore", config.ssl_truststore_location)
    if not config.ssl_keystore_key:
        _check_readable("keystore", config.ssl_keystore_location)
    context = ssl.create_default_context()
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    versions = [ssl.TLSVersion[name.replace(".", "_")] for name in config.ssl_enabled_protocols]
    try:
        if config.ssl_truststore_certificates:
            context = _trusting(context, cadata=config.ssl_truststore_certificates)
        elif config.ssl_truststore_location:
            context = _trusting(context, cafile=config.ssl_truststore_location)
    except (OSError, ValueError) as error:
        raise InvalidOptionError(
            f"kafka.ssl.truststore holds no trusted certificates in PEM form: {error}"
            f"{_advice('truststore', config.ssl_truststore_location)}"
        ) from None
    try:
        _load_own_certificate(context, config)
    except (OSError, ValueError) as error:
        raise InvalidOptionError(
            "kafka.ssl.keystore holds no certificate with its private key in PEM form, or "
            f"kafka.ssl.key.password does not open it: {config.scrub(str(error))}"
            f"{_advice('keystore', config.ssl_keystore_location)}"
        ) from None
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    return context


def _check_readable(store: str, path: str) -> None:
    try:
        if path:
            open(path, "rb").close()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidOptionError(
            f"kafka.ssl.{store}.location names the file {path}, which cannot be read here: "
            f"{reason}. Put it on the driver and on every executor."
        ) from None


def _advice(store: str, path: str) -> str:
    """What to do where the file at `path` is there and no PEM, whatever its name says."""
    try:
        with open(path, "rb") as file:
            is_pem = b"-----BEGIN" in file.read(_LARGEST_STORE_BYTES)
    except OSError:
        return ""
    return "" if is_pem else f". If it is a Java store, convert it: {pem_conversion(store, path)}"


def _trusting(default: ssl.SSLContext, **certificates: str) -> ssl.SSLContext:
    """As `default`, but trusting these certificates alone and not the system's."""
    context = ssl.create_default_context(**certificates)  # type: ignore[arg-type]
    context.check_hostname = default.check_hostname
    return context


def _load_own_certificate(context: ssl.SSLContext, config: ClientConfig) -> None:
    password = config.ssl_key_password.reveal() or None
    if config.ssl_keystore_key:
        pem = f"{config.ssl_keystore_key.reveal()}\n{config.ssl_keystore_certificate_chain}"
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # Created with mode 0600.
            file.write(pem)
            file.flush()
            context.load_cert_chain(file.name, password=password)
    elif config.ssl_keystore_location:
        context.load_cert_chain(config.ssl_keystore_location, password=password)


def authenticate(
    call: Callable[[Any], Any], host: str, config: ClientConfig, deadline: Deadline
) -> None:
    """Runs the SASL exchange of `kafka.sasl.*` through `call`, which sends one message.

    Raises AuthenticationError when the broker refuses, InvalidOptionError when an option lacks.
    """
    name = config.sasl_mechanism
    if name not in SASL_MECHANISMS:
        raise InvalidOptionError(
            f"kafka.sasl.mechanism is {name!r}. Give one of {', '.join(sorted(SASL_MECHANISMS))}."
        )
    try:
        answer = call(SaslHandshakeRequest(mechanism=name))
    except IncompatibleBrokerVersion:
        raise _without_sasl(host, config) from None
    if answer.error_code:
        if not answer.mechanisms:  # so say Apache Kafka's listeners without SASL
            raise _without_sasl(host, config)
        raise AuthenticationError(
            f"{host} does not offer kafka.sasl.mechanism={name}, only "
            f"{', '.join(answer.mechanisms)}."
        )
    try:
        _exchange(call, _mechanism(name, host, config, deadline), host)
    except (InvalidOptionError, KafkaConnectionError, KafkaTimeoutError):
        raise
    except AuthenticationError as error:
        raise AuthenticationError(config.scrub(str(error))) from None
    except KafkaConfigurationError as error:
        raise InvalidOptionError(config.scrub(f"kafka.sasl.mechanism={name}: {error}")) from None
    except Exception as error:
        # Mechanisms come from other libraries, whose errors may quote what they were given.
        text = config.scrub(f"{type(error).__name__}: {error}")
        raise AuthenticationError(f"{host}: SASL {name} failed: {text}") from None


def _without_sasl(host: str, config: ClientConfig) -> AuthenticationError:
    return AuthenticationError(
        f"The listener at {host} has no SASL. Set kafka.security.protocol, which is "
        f"{config.security_protocol}, to what that listener speaks."
    )


def _exchange(call: Callable[[Any], Any], mechanism: Any, host: str) -> None:
    for _ in range(_MOST_EXCHANGES):
        if mechanism.is_done():
            break
        answer = call(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes()))
        if answer.error_code:
            reason = answer.error_message or for_code(answer.error_code).__name__
            raise AuthenticationError(
                f"{host} refused the credentials: {reason.removesuffix('.')}. Check them in the "
                "options kafka.sasl.*."
            )
        mechanism.receive(bytes(answer.auth_bytes))
    if not mechanism.is_done() or not mechanism.is_authenticated():
        raise AuthenticationError(f"{host} did not complete the authentication.")


def _mechanism(name: str, host: str, config: ClientConfig, deadline: Deadline) -> Any:
    jaas = config.jaas_options()
    settings: dict[str, Any] = {
        "host": host,
        "sasl_mechanism": name,
        # The exchange warns about SASL_PLAINTEXT for each connection; the user chose it once.
        "security_protocol": "SASL_SSL" if config.uses_tls else "",
        "sasl_kerberos_service_name": jaas.get("serviceName", config.sasl_kerberos_service_name),
    }
    if name == "PLAIN" or name.startswith("SCRAM"):
        username = jaas.get("username") or config.sasl_username
        password = jaas.get("password") or config.sasl_password.reveal()
        if not username or not password:
            raise InvalidOptionError(
                f"kafka.sasl.mechanism={name} needs a user name and a password: give both in "
                "kafka.sasl.jaas.config, or as kafka.sasl.username and kafka.sasl.password."
            )
        settings |= {"sasl_plain_username": username, "sasl_plain_password": password}
    if name == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = _ClientCredentials(config, jaas, deadline)
    return get_sasl_mechanism(name)(**settings)


class _ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]
    """OAuth's client credentials grant (RFC 6749, 4.4): one token for each connection."""

    def __init__(self, config: ClientConfig, jaas: dict[str, str], deadline: Deadline) -> None:
        self._url = config.sasl_oauthbearer_token_endpoint_url
        self._deadline = deadline
        self._fields = {
            "grant_type": "client_credentials",
            "client_id": config.sasl_oauthbearer_client_credentials_client_id
            or jaas.get("clientId", ""),
            "client_secret": config.sasl_oauthbearer_client_credentials_client_secret.reveal()
            or jaas.get("clientSecret", ""),
        }
        if scope := config.sasl_oauthbearer_scope or jaas.get("scope"):
            self._fields["scope"] = scope
        if not self._url.startswith(("https://", "http://")) or not all(self._fields.values()):
            raise InvalidOptionError(
                "kafka.sasl.mechanism=OAUTHBEARER needs "
                "kafka.sasl.oauthbearer.token.endpoint.url (https://...), "
                "kafka.sasl.oauthbearer.client.credentials.client.id and ...client.secret."
            )

    def token(self) -> str:
        """The access token; raises AuthenticationError without quoting request or answer."""
        request = Request(self._url, urlencode(self._fields).encode(), method="POST")
        try:
            with urlopen(request, timeout=max(0.001, self._deadline.remaining_s)) as answer:
                document = answer.read(_LARGEST_TOKEN_ANSWER_BYTES)
        except (OSError, HTTPException, UnicodeError) as error:
            if isinstance(error, HTTPError):
                error.close()
            # What is no HTTP is quoted by the others.
            why = error if isinstance(error, OSError | UnicodeError) else type(error).__name__
            raise AuthenticationError(f"{self._url} gave no OAuth token: {why}") from None
        try:
            token = json.loads(document)["access_token"]
        except (ValueError, KeyError, TypeError):
            raise AuthenticationError(
                f"{self._url} answered without an OAuth access_token."
            ) from None
        return str(token)
