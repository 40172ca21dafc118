"""The client's settings: Kafka's own property names, read once, checked once, frozen.

`ClientConfig.from_options` takes what a user wrote after `kafka.` (or a CLI flag gave) and refuses
what cannot work with a sentence that says what to write instead. Field names are Kafka's property
names with `_` for `.`; each field's docstring states unit and default.

Credentials are `Secret`s: their text appears in no repr, message or log line. A secret may name
where it is kept, as in Kafka's config providers: `${env:VARIABLE}`, `${file:/path:key}` for a line
`key=...` of a properties file, or `${dir:/path:name}` for the whole file `name`. Such a reference
is what travels with the config to executors; it is looked up where a connection is made.

Picklable and hashable; holds no socket. Any thread.
"""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.protocol.properties_text import parse_properties
from pyspark_kafkalog.record.compression import Codec

_LARGEST_INT32 = 2**31 - 1
# What does not compress grows: by a header, and by a few bytes for each block of 16 KiB or more.
_GROWTH_BYTES = 64
_BYTES_PER_GROWN_BYTE = 2048
_SERVER = re.compile(r"(?:[\w.%-]*://)?(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^:\[\]]+)):(?P<port>\d+)")
_REFERENCE = re.compile(
    r"\$\{(?:env:(?P<variable>[^}:]+)|(?P<kind>file|dir):(?P<path>[^}]*):(?P<key>[^}:]+))\}"
)
_JAAS = re.compile(r"\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.S)
_JAAS_OPTION = re.compile(r"""\s+([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))""")


class Isolation(IntEnum):
    """`isolation.level`, as a Fetch request writes it."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Partitioner(IntEnum):
    """`partitioner.class`: how a record's partition is chosen where it names none."""

    BY_KEY = 0
    """By the key's murmur2 hash; without a key as STICKY."""
    STICKY = 1
    """All of a batch together, keys or not; the next batch elsewhere."""
    ROUND_ROBIN = 2


_JAVA_PARTITIONERS = {
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": Partitioner.BY_KEY,
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": Partitioner.STICKY,
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": Partitioner.ROUND_ROBIN,
}


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A credential, or a reference to where it is kept. Only `reveal()` gives its text."""

    _text: str

    def reveal(self) -> str:
        """The text, with references looked up now; raises InvalidOptionError naming what lacks."""
        return _REFERENCE.sub(_look_up, self._text)

    def reveal_whole(self) -> str:
        """The text, looked up if all of it is one reference; otherwise with references as such."""
        return self.reveal() if _REFERENCE.fullmatch(self._text.strip()) else self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return "[hidden]"


NO_SECRET = Secret("")
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def _look_up(reference: re.Match[str]) -> str:
    variable, kind, path, key = reference.group("variable", "kind", "path", "key")
    if variable is not None:
        if variable not in os.environ:
            raise InvalidOptionError(
                f"{reference[0]} names the environment variable {variable}, which is not set on "
                "this machine. Set it for the driver and for every executor."
            )
        return os.environ[variable]
    if kind == "dir":
        path = os.path.join(path, key)
    try:
        with open(path, encoding="utf-8") as file:
            if kind == "dir":
                # As the tools write it that keep secrets in files; a password ends in no newline.
                return file.read().rstrip("\r\n")
            entries = parse_properties(file.read())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        raise InvalidOptionError(
            f"{reference[0]} names the file {path}, which cannot be read here: {reason}. "
            "Put it on the driver and on every executor."
        ) from None
    if key not in entries:
        raise InvalidOptionError(f"{reference[0]}: the file {path} has no line '{key}=...'.")
    return entries[key].strip()


def _text(_name: str, text: str) -> str:
    return text.strip()


def _secret(_name: str, text: str) -> Secret:
    return Secret(text)


def _whole(least: int, most: int = _LARGEST_INT32) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise InvalidOptionError(
                f"kafka.{name} is {text!r}. Give a whole number from {least} to {most}."
            )
        return number

    return parse


def _choices(*choices: str) -> Callable[[str, str], tuple[str, ...]]:
    """One or more of some words, with commas between."""

    def parse(name: str, text: str) -> tuple[str, ...]:
        words = {word.strip() for word in text.split(",")}
        if not words <= set(choices):
            raise InvalidOptionError(
                f"kafka.{name} is {text!r}. Give one or more of {', '.join(choices)}, with commas."
            )
        return tuple(sorted(words))

    return parse


def _choice(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        by_folded = {choice.casefold(): choice for choice in choices}
        if text.strip().casefold() not in by_folded:
            raise InvalidOptionError(f"kafka.{name} is {text!r}. Give one of {', '.join(choices)}.")
        return by_folded[text.strip().casefold()]

    return parse


def _yes_or_no(name: str, text: str) -> bool:
    return _choice("true", "false")(name, text) == "true"


def _isolation(name: str, text: str) -> Isolation:
    return Isolation[_choice("read_uncommitted", "read_committed")(name, text).upper()]


def _codec(name: str, text: str) -> Codec:
    return Codec[_choice(*(codec.name.lower() for codec in Codec))(name, text).upper()]


def _acks(name: str, text: str) -> int:
    return {"all": -1, "-1": -1, "0": 0, "1": 1}[_choice("all", "-1", "0", "1")(name, text)]


def _partitioner(name: str, text: str) -> Partitioner:
    if text.strip() not in _JAVA_PARTITIONERS:
        raise InvalidOptionError(
            f"kafka.{name} is {text!r}, which would be a Java class. Give one of "
            f"{', '.join(_JAVA_PARTITIONERS)}, or choose partitions in a column 'partition'."
        )
    return _JAVA_PARTITIONERS[text.strip()]


def _servers(name: str, text: str) -> tuple[tuple[str, int], ...]:
    servers = []
    for server in filter(None, (part.strip() for part in text.split(","))):
        match = _SERVER.fullmatch(server)
        if match is None or not 0 < int(match["port"]) < 65536:
            raise InvalidOptionError(
                f"kafka.{name} has {server!r}. Give host:port, several separated by commas."
            )
        servers.append((match["v6"] or match["name"], int(match["port"])))
    if not servers:
        raise InvalidOptionError(
            f"kafka.{name} is empty. Give host:port of one or more brokers, separated by commas."
        )
    return tuple(servers)


def _by(parse: Callable[[str, str], Any]) -> dict[str, Any]:
    return {"parse": parse}


TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """All settings of a client, named as Kafka's properties with `_` for `.`.

    `from_options` makes one of what a user wrote, and checks it. Hashable and picklable; no text of
    it shows a secret.
    """

    bootstrap_servers: tuple[tuple[str, int], ...] = field(metadata=_by(_servers))
    """(host, port) of brokers to ask first; tried in turn, all addresses of each."""
    client_id: str = field(default="pyspark-kafkalog", metadata=_by(_text))
    """What the broker's logs, metrics and quotas know this client by."""

    request_timeout_ms: int = field(default=30_000, metadata=_by(_whole(1)))
    """How long one call may take over all of its attempts."""
    socket_connection_setup_timeout_ms: int = field(default=10_000, metadata=_by(_whole(1)))
    """How long one broker may take to accept, negotiate and authenticate before the next one."""
    retry_backoff_ms: int = field(default=100, metadata=_by(_whole(0)))
    """First pause between two attempts; doubles up to `retry_backoff_max_ms`."""
    retry_backoff_max_ms: int = field(default=1_000, metadata=_by(_whole(0)))
    """The longest pause between two attempts."""
    metadata_max_age_ms: int = field(default=300_000, metadata=_by(_whole(0)))
    """How long leaders are believed without a reason to ask again."""
    receive_buffer_bytes: int = field(default=-1, metadata=_by(_whole(-1)))
    """The socket's receive buffer; -1 lets the operating system size it, which measured best."""
    send_buffer_bytes: int = field(default=-1, metadata=_by(_whole(-1)))
    """The socket's send buffer; -1 lets the operating system size it."""

    fetch_max_bytes: int = field(default=52_428_800, metadata=_by(_whole(1)))
    """Most bytes of one fetch answer; a single larger batch still comes whole."""
    max_partition_fetch_bytes: int | None = field(default=None, metadata=_by(_whole(1)))
    """Most bytes of one partition in one fetch answer; a reader holds at most two answers. None: as
    the network asks for (`client/fetcher.py`)."""
    fetch_min_bytes: int = field(default=1, metadata=_by(_whole(0)))
    """Fewest bytes of a fetch answer, unless `fetch_max_wait_ms` is over."""
    fetch_max_wait_ms: int = field(default=500, metadata=_by(_whole(0)))
    """How long a broker may hold a fetch back until `fetch_min_bytes` are there."""
    isolation_level: Isolation = field(default=Isolation.READ_UNCOMMITTED, metadata=_by(_isolation))
    """read_committed, a load's default: no records of open or aborted transactions."""

    acks: int = field(default=-1, metadata=_by(_acks))
    """-1 (`all`), 1 or 0."""
    enable_idempotence: bool = field(default=True, metadata=_by(_yes_or_no))
    """No retry doubles or reorders a record; off by itself when `acks` is not `all`."""
    compression_type: Codec = field(default=Codec.NONE, metadata=_by(_codec))
    """none, gzip, snappy, lz4 or zstd."""
    batch_size: int = field(default=1_048_576 - 4_096, metadata=_by(_whole(1)))
    """Most bytes of one record batch before compression; below the brokers' default limit."""
    max_request_size: int = field(default=1_048_576, metadata=_by(_whole(1)))
    """Most bytes of one Produce request, so also of one batch."""
    max_in_flight_requests_per_connection: int = field(default=5, metadata=_by(_whole(1, 5)))
    """Produce requests sent ahead of their answers; brokers remember five for each partition."""
    buffer_memory: int = field(default=33_554_432, metadata=_by(_whole(1)))
    """Most bytes of batches that are not acknowledged yet; `send` waits beyond."""
    partitioner_class: Partitioner = field(default=Partitioner.BY_KEY, metadata=_by(_partitioner))
    """One of the Java client's three, by its name there."""
    partitioner_ignore_keys: bool = field(default=False, metadata=_by(_yes_or_no))
    """True: STICKY, unless `partitioner_class` was given."""
    retries: int = field(default=_LARGEST_INT32, metadata=_by(_whole(0)))
    """How often one batch is sent again; `delivery_timeout_ms` is the bound that counts."""
    delivery_timeout_ms: int = field(default=120_000, metadata=_by(_whole(1)))
    """From `send` to acknowledgement, with all retries."""

    transaction_timeout_ms: int = field(default=900_000, metadata=_by(_whole(1)))
    """How long a transaction may stay open before the broker aborts it. The brokers' default
    `transaction.max.timeout.ms`, as an aborted one costs a streaming sink its micro-batch."""

    security_protocol: str = field(default="PLAINTEXT", metadata=_by(_choice(*SECURITY_PROTOCOLS)))
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    sasl_mechanism: str = field(default="GSSAPI", metadata=_by(_text))
    """GSSAPI, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM."""
    sasl_jaas_config: Secret = field(default=NO_SECRET, metadata=_by(_secret))
    """Kafka's login module line; its username, password, clientId ... are read."""
    sasl_username: str = field(default="", metadata=_by(_text))
    """librdkafka's short form instead of a login module line, as is `sasl.password`."""
    sasl_password: Secret = field(default=NO_SECRET, metadata=_by(_secret))
    """Of librdkafka's short form."""
    sasl_kerberos_service_name: str = field(default="kafka", metadata=_by(_text))
    """The first part of the brokers' Kerberos principal."""
    sasl_oauthbearer_token_endpoint_url: str = field(default="", metadata=_by(_text))
    """Where OAUTHBEARER asks for a token (client credentials grant)."""
    sasl_oauthbearer_client_credentials_client_id: str = field(default="", metadata=_by(_text))
    """Whom OAUTHBEARER asks a token for."""
    sasl_oauthbearer_client_credentials_client_secret: Secret = field(
        default=Secret(""), metadata=_by(_secret)
    )
    """Its secret."""
    sasl_oauthbearer_scope: str = field(default="", metadata=_by(_text))
    """The scope of the token."""

    ssl_truststore_type: str = field(default="PEM", metadata=_by(_text))
    """PEM alone; a Java store is refused with the command that converts it."""
    ssl_truststore_location: str = field(default="", metadata=_by(_text))
    """PEM file of trusted certificates; the system's when neither this nor the next is given."""
    ssl_truststore_certificates: str = field(default="", metadata=_by(_text))
    """Trusted certificates themselves, as PEM."""
    ssl_keystore_type: str = field(default="PEM", metadata=_by(_text))
    """PEM alone."""
    ssl_keystore_location: str = field(default="", metadata=_by(_text))
    """PEM file of the client's certificate chain and private key, for mutual TLS."""
    ssl_keystore_certificate_chain: str = field(default="", metadata=_by(_text))
    """That chain itself, as PEM."""
    ssl_keystore_key: Secret = field(default=NO_SECRET, metadata=_by(_secret))
    """That key itself, as PEM."""
    ssl_key_password: Secret = field(default=NO_SECRET, metadata=_by(_secret))
    """What the private key is encrypted with."""
    ssl_endpoint_identification_algorithm: str = field(
        default="https", metadata=_by(_choice("https", ""))
    )
    """Empty: the certificate need not name the broker's host."""
    ssl_enabled_protocols: tuple[str, ...] = field(
        default=TLS_VERSIONS, metadata=_by(_choices(*TLS_VERSIONS))
    )
    """The versions of TLS that may be spoken."""

    def open_batch_bytes(self, largest_bytes: int) -> int:
        """How large a batch may become before it is compressed, so that it is no larger than
        `largest_bytes` then."""
        if self.compression_type is not Codec.NONE:
            largest_bytes -= largest_bytes // _BYTES_PER_GROWN_BYTE + _GROWTH_BYTES
        return min(self.batch_size, largest_bytes)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "ClientConfig":
        """The config for property names without the prefix `kafka.`, in any case.

        Names that this client does not know are passed over: `properties.unknown` finds them.
        Raises InvalidOptionError.
        """
        given = {name.lower().strip(): str(text) for name, text in options.items()}
        if "bootstrap.servers" not in given:
            raise InvalidOptionError(
                "kafka.bootstrap.servers is missing. Give host:port of one or more brokers, "
                "separated by commas."
            )
        if _acks("acks", given.get("acks", "all")) != -1:
            if given.get("enable.idempotence", "").strip().lower() == "true":
                raise InvalidOptionError(
                    f"kafka.enable.idempotence needs kafka.acks=all, but kafka.acks is "
                    f"{given['acks']!r}. Leave one of the two out."
                )
            given["enable.idempotence"] = "false"
        if "partitioner.class" in given:
            given.pop("partitioner.ignore.keys", None)
        settings = {
            f.name: f.metadata["parse"](_property_name(f.name), given[_property_name(f.name)])
            for f in fields(cls)
            if _property_name(f.name) in given
        }
        config = cls(**settings)
        config._check_stores()
        return config

    def _check_stores(self) -> None:
        for store in ("truststore", "keystore"):
            kind = getattr(self, f"ssl_{store}_type").upper()
            path = getattr(self, f"ssl_{store}_location")
            if kind != "PEM" or path.lower().endswith((".jks", ".p12", ".pfx")):
                raise InvalidOptionError(
                    f"kafka.ssl.{store} is a Java store, and only PEM files are read here. "
                    f"Convert it: {pem_conversion(store, path)} and set "
                    f"kafka.ssl.{store}.location to that file, kafka.ssl.{store}.type to PEM."
                )

    @property
    def partitioner(self) -> Partitioner:
        return Partitioner.STICKY if self.partitioner_ignore_keys else self.partitioner_class

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def servers(self) -> str:
        """`kafka.bootstrap.servers` as it is shown in messages."""
        return ",".join(address(host, port) for host, port in self.bootstrap_servers)

    def jaas_options(self) -> dict[str, str]:
        """The login module's options, with secrets looked up; empty when there is none.

        Raises InvalidOptionError, without the text, when it is not a login module line.
        """
        if not self.sasl_jaas_config:
            return {}
        line = _JAAS.fullmatch(self.sasl_jaas_config.reveal_whole())
        rest = line[1] if line else "?"
        if _JAAS_OPTION.sub("", rest).strip():
            raise InvalidOptionError(
                "kafka.sasl.jaas.config is not a login module line (its text is not shown). Give "
                "for example: org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="..." password="...";'
            )
        # References are looked up in what was parsed, so that a password may hold any character.
        return {
            match[1]: Secret(
                re.sub(r"\\(.)", r"\1", match[2]) if match[2] else match[3] or match[4] or ""
            ).reveal()
            for match in _JAAS_OPTION.finditer(rest)
        }

    def scrub(self, text: str) -> str:
        """`text` without any secret of this config: for messages that others worded."""
        for secret in self._secret_texts():
            text = text.replace(secret, repr(NO_SECRET))
        return text

    def _secret_texts(self) -> list[str]:
        texts = []
        for secret in (getattr(self, f.name) for f in fields(self)):
            # What cannot be looked up was not used either.
            if isinstance(secret, Secret):
                with suppress(InvalidOptionError):
                    texts.append(secret.reveal())
        with suppress(InvalidOptionError):
            texts += [text for name, text in self.jaas_options().items() if _is_secret_name(name)]
        return sorted(filter(None, texts), key=len, reverse=True)


def pem_conversion(store: str, path: str) -> str:
    """The command that makes a PEM file of a Java `store` (truststore, keystore) of any type.

    It asks for the store's password.
    """
    path = path or f"{store}.jks"
    stem = path.rpartition(".")[0] or path
    if store == "truststore":
        return f"keytool -list -rfc -keystore {path} > {stem}.pem"
    return (
        f"keytool -importkeystore -srckeystore {path} -destkeystore {stem}.tmp -deststoretype "
        f"PKCS12 && openssl pkcs12 -in {stem}.tmp -nodes -out {stem}.pem"
    )


def _is_secret_name(jaas_option: str) -> bool:
    return any(word in jaas_option.lower() for word in ("password", "secret", "token"))


def _property_name(field_name: str) -> str:
    return field_name.replace("_", ".")


def address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
