"""A schema registry's client: schemas by id and by subject, over Confluent's REST interface.

Owns the options, by the names that Confluent's serializers give them (with or without the prefix
`schema.registry.`): `schema.registry.url` (several, by commas), `basic.auth.user.info`
(`user:password`), `bearer.auth.token`, `ssl.truststore.location` or `ssl.ca.location` and the other
`ssl.*` of Kafka's clients, with PEM files; `request.timeout.ms` bounds one question with all its
retries. Secrets may be references such as `${env:NAME}`, looked up for each request, and are in no
repr, message or log.

What a registry answers is bounded, redirects are not followed (they would take the credentials
along), and every wait ends: a timer closes the connection at the deadline. Blocking; any thread.
Schemas by id never change, so each process keeps those that it has seen.
"""

import base64
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from threading import Timer
from typing import Any
from urllib.parse import quote, urlsplit

from pyspark_kafkalog.client.config import ClientConfig, Secret
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.security import tls_context
from pyspark_kafkalog.errors import InvalidOptionError, SchemaRegistryError

SUBJECT = "subject"
MESSAGE = "message"
"""Options of a decoder that stand among the registry's: whose newest schema is the reader's, and
which message of a Protobuf schema it is."""

_PREFIX = "schema.registry."
_URL = "schema.registry.url"
_USER_INFO = "basic.auth.user.info"
_TOKEN = "bearer.auth.token"
_TIMEOUT = "request.timeout.ms"
_SOURCES = {
    "basic.auth.credentials.source": ("USER_INFO", "URL"),
    "bearer.auth.credentials.source": ("STATIC_TOKEN",),
}
_DEFAULT_TIMEOUT_MS = 30_000
_ROUNDS = 3
_PAUSE_S = 0.2
_LARGEST_ANSWER_BYTES = 4 << 20
_MOST_REFERENCES = 200
_CACHED_SCHEMAS = 1_000


class NotRegisteredError(Exception):
    """The registry does not know the id, subject or version. Inside this package only."""


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """Where a registry is and how it is asked. Picklable, hashable, without secrets in its repr."""

    urls: tuple[str, ...]
    user_info: Secret
    token: Secret
    tls: ClientConfig
    timeout_ms: int

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "RegistryConfig":
        """Raises InvalidOptionError, also for an option that it does not know."""
        given = {_option_name(name): str(value) for name, value in options.items()}
        for name in (SUBJECT, MESSAGE):
            given.pop(name, None)
        urls, in_url = _urls(given.pop(_URL, ""))
        for name, choices in _SOURCES.items():
            if given.pop(name, choices[0]) not in choices:
                raise InvalidOptionError(f"{name} must be one of {', '.join(choices)}.")
        user_info = Secret(given.pop(_USER_INFO, in_url))
        token = Secret(given.pop(_TOKEN, ""))
        if user_info and token:
            raise InvalidOptionError(f"Give {_USER_INFO} or {_TOKEN}, not both.")
        timeout = given.pop(_TIMEOUT, str(_DEFAULT_TIMEOUT_MS))
        if not timeout.isdecimal() or not 0 < int(timeout) < 1 << 31:
            raise InvalidOptionError(f"{_TIMEOUT} is {timeout!r}. Give a number of milliseconds.")
        if "ssl.ca.location" in given:
            given.setdefault("ssl.truststore.location", given.pop("ssl.ca.location"))
        unknown = [name for name in given if not name.startswith("ssl.")]
        if unknown:
            raise InvalidOptionError(
                f"a schema registry has no option {unknown[0]!r}. There are {_URL}, {SUBJECT}, "
                f"{MESSAGE}, {_USER_INFO}, {_TOKEN}, {_TIMEOUT} and ssl.*"
            )
        with _naming_the_registry():
            tls = ClientConfig.from_options({"bootstrap.servers": "registry:1", **given})
        return cls(urls, user_info, token, tls, int(timeout))


def decoder_option(options: Mapping[str, str], name: str) -> str | None:
    """SUBJECT or MESSAGE where it is among the options."""
    return next((value for key, value in options.items() if key.strip().lower() == name), None)


def _option_name(name: str) -> str:
    name = name.strip().lower()
    return name if name == _URL else name.removeprefix(_PREFIX)


def _urls(text: str) -> tuple[tuple[str, ...], str]:
    """The addresses, and the user and password that stand in the first of them."""
    urls, in_url = [], ""
    for url in filter(None, (part.strip() for part in text.split(","))):
        scheme, _, rest = url.partition("://")
        user_info, at, host = rest.rpartition("@")
        if scheme.lower() not in ("http", "https") or not host:
            raise InvalidOptionError(
                f"{_URL} is not a list of addresses: give for example https://registry:8081"
            )
        if at and not in_url:
            in_url = user_info
        urls.append(f"{scheme.lower()}://{host.rstrip('/')}")
        try:
            valid = bool(urlsplit(urls[-1]).hostname) and urlsplit(urls[-1]).port != 0
        except ValueError:
            valid = False
        if not valid:
            # Not shown: a password with a comma in it would be, in part.
            raise InvalidOptionError(
                f"{_URL}: its address number {len(urls)} has no host, or an invalid port. "
                f"Give a user and a password that have commas or slashes as {_USER_INFO}."
            )
    if not urls:
        raise InvalidOptionError(f"{_URL} is missing: give for example https://registry:8081")
    return tuple(urls), in_url


@contextmanager
def _naming_the_registry() -> Iterator[None]:
    """Errors about TLS say the registry's options, not those of the brokers."""
    try:
        yield
    except InvalidOptionError as error:
        raise InvalidOptionError(str(error).replace("kafka.ssl.", f"{_PREFIX}ssl.")) from None


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as it is registered; `kind` is AVRO, PROTOBUF or JSON.

    `references` are the names and texts of the schemas that it builds on, each after those that it
    needs itself.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


@lru_cache(_CACHED_SCHEMAS)
def schema_by_id(config: RegistryConfig, schema_id: int) -> RegisteredSchema:
    """Raises NotRegisteredError, SchemaRegistryError."""
    return _Session(config).schema(f"/schemas/ids/{schema_id}", schema_id)


def latest_schema(config: RegistryConfig, subject: str) -> RegisteredSchema:
    """The newest version of `subject`; raises SchemaRegistryError, also when there is none."""
    try:
        return _Session(config).schema(f"/subjects/{quote(subject, safe='')}/versions/latest", 0)
    except NotRegisteredError:
        raise SchemaRegistryError(
            f"{config.urls[0]} has no subject {subject!r}. Name one that has a schema, or give the "
            "reader's schema."
        ) from None


class _Session:
    """One question: a schema and all that it refers to, by one deadline."""

    def __init__(self, config: RegistryConfig) -> None:
        self._config = config
        self._deadline = Deadline(config.timeout_ms)
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if config.user_info:
            user_info = base64.b64encode(config.user_info.reveal().encode()).decode()
            self._headers["Authorization"] = f"Basic {user_info}"
        elif config.token:
            self._headers["Authorization"] = f"Bearer {_token(config.token)}"
        with _naming_the_registry():
            secure = any(url.startswith("https:") for url in config.urls)
            self._tls = tls_context(config.tls) if secure else None

    def schema(self, path: str, schema_id: int) -> RegisteredSchema:
        answer = self._ask(path)
        references: dict[str, str] = {}
        self._add_references(answer, references, ())
        return RegisteredSchema(
            id=schema_id or _whole_number(answer.get("id")),
            kind=str(answer.get("schemaType") or "AVRO").upper(),
            text=_text(answer),
            references=tuple(references.items()),
        )

    def _add_references(
        self, answer: Mapping[str, Any], found: dict[str, str], above: tuple[str, ...]
    ) -> None:
        references = answer.get("references") or []
        if not isinstance(references, list):
            raise SchemaRegistryError("a schema's references are not a list")
        for reference in references:
            try:
                name, subject = str(reference["name"]), str(reference["subject"])
                version = int(reference["version"])
            except (KeyError, TypeError, ValueError):
                raise SchemaRegistryError("a schema refers to nothing that has a name") from None
            if name in found or name in above:
                continue
            if len(found) + len(above) >= _MOST_REFERENCES:
                raise SchemaRegistryError(f"a schema needs more than {_MOST_REFERENCES} others")
            try:
                other = self._ask(f"/subjects/{quote(subject, safe='')}/versions/{version}")
            except NotRegisteredError:
                raise SchemaRegistryError(
                    f"a schema refers to version {version} of {subject}, which is not there"
                ) from None
            self._add_references(other, found, (*above, name))
            found[name] = _text(other)

    def _ask(self, path: str) -> Mapping[str, Any]:
        """The answer of the first address that has one."""
        reason = ""
        for attempt in range(_ROUNDS):
            for url in self._config.urls:
                try:
                    status, body = self._get(url, path)
                except (OSError, http.client.HTTPException, UnicodeError) as error:
                    reason = f"{url}: {_said(error)}"
                else:
                    if status < 500 and status != 429:
                        return self._judge(url, status, body)
                    reason = f"{url} answers with status {status}"
                if self._deadline.expired:
                    raise SchemaRegistryError(
                        f"no schema registry answered within {self._config.timeout_ms} ms "
                        f"({_TIMEOUT}): {reason}"
                    )
            if attempt + 1 < _ROUNDS:
                self._deadline.pause(_PAUSE_S * 2**attempt)
        raise SchemaRegistryError(f"no schema registry answered: {reason}")

    def _get(self, url: str, path: str) -> tuple[int, bytes]:
        parts = urlsplit(url)
        left_s = max(0.001, self._deadline.remaining_s)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=left_s, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(
                parts.hostname or "", parts.port, timeout=left_s
            )
        timer: Timer | None = None
        try:
            connection.connect()
            # Its socket, which the connection forgets where the answer ends with it.
            timer = Timer(max(0.001, self._deadline.remaining_s), _cut, [connection.sock])
            timer.daemon = True
            timer.start()
            connection.request("GET", parts.path + path, headers=self._headers)
            answer = connection.getresponse()
            body = answer.read(_LARGEST_ANSWER_BYTES + 1)
            if self._deadline.expired:
                raise TimeoutError("its answer did not end")
            if answer.length and len(body) <= _LARGEST_ANSWER_BYTES:
                raise http.client.IncompleteRead(body, answer.length)
            return answer.status, body
        finally:
            if timer is not None:
                timer.cancel()
            connection.close()

    def _judge(self, url: str, status: int, body: bytes) -> Mapping[str, Any]:
        if status in (401, 403):
            raise SchemaRegistryError(
                f"{url} refused the credentials (status {status}): see {_USER_INFO}, {_TOKEN}."
            )
        if len(body) > _LARGEST_ANSWER_BYTES:
            raise SchemaRegistryError(f"{url} answers with more than {_LARGEST_ANSWER_BYTES} bytes")
        answer = _parsed(body)
        if status == 404 and "error_code" in answer:
            raise NotRegisteredError
        if status != 200 or not answer:
            raise SchemaRegistryError(
                f"{url} answers with status {status}, and not as a schema registry does"
            )
        return answer


def _token(secret: Secret) -> str:
    """What is not fit for a header, an HTTP library would show in its error."""
    token = secret.reveal().strip()
    if not (token.isascii() and token.isprintable()):
        raise InvalidOptionError(
            f"{_TOKEN} has characters that no token has, such as the end of a line in its middle."
        )
    return token


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _cut(connected: socket.socket) -> None:
    # Of TCP, also where TLS is above it: no answer is waited for.
    with suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _whole_number(value: Any) -> int:
    if not isinstance(value, int):
        raise SchemaRegistryError("a registered schema has no id")
    return value


def _text(answer: Mapping[str, Any]) -> str:
    text = answer.get("schema")
    if not isinstance(text, str):
        raise SchemaRegistryError("a registered schema has no text")
    return text
