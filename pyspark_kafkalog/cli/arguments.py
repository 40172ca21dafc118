"""What several words of the command line take, and how it is read.

`takes_client` gives a command the arguments that say which cluster it talks to, and calls it with a
Client; `takes_output` gives it --format and --quiet, and calls it with an Output.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspark_kafkalog.cli.output import Output
from pyspark_kafkalog.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark_kafkalog.client.cluster import Cluster
    from pyspark_kafkalog.client.config import ClientConfig

SERVERS_VARIABLE = "KAFKALOG_BOOTSTRAP_SERVERS"
CONFIG_VARIABLE = "KAFKALOG_COMMAND_CONFIG"

_REQUEST_TIMEOUT_MS = "10000"
"""Shorter than the client's: somebody is waiting at the keyboard."""

_SERVERS = "bootstrap.servers"

_LAST_PORT = 65535
PORT = click.IntRange(0, _LAST_PORT)
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Client:
    """Which cluster a command line means, and how to talk to it.

    What is nearer to the command counts: an argument before the file that another one names, that
    before the environment's servers, and these before the environment's file.
    """

    servers: str | None
    settings: tuple[str, ...]
    file: Path | None

    def properties(self) -> dict[str, str]:
        """Kafka's client properties; raises InvalidOptionError, and UsageError without servers."""
        given = self._given()
        if _SERVERS not in given:
            raise click.UsageError(
                "Say where the cluster is: --bootstrap-servers HOST:PORT, the environment variable "
                f"{SERVERS_VARIABLE}, or bootstrap.servers in the file of --command-config."
            )
        return given

    def config(self, **settings: str) -> "ClientConfig":
        """The same, checked; `settings` (with _ for .) are defaults that the user's go before."""
        from pyspark_kafkalog.client.config import ClientConfig

        defaults = {name.replace("_", "."): value for name, value in settings.items()}
        defaults.setdefault("request.timeout.ms", _REQUEST_TIMEOUT_MS)
        return ClientConfig.from_options(defaults | self.properties())

    def cluster(self) -> "Cluster":
        """The cluster, which says soon that nobody is there."""
        from pyspark_kafkalog.client.cluster import Cluster

        return Cluster(self.config(), fails_fast=True)

    def cluster_if_named(self) -> "Cluster | None":
        """The cluster, where the command line or the environment says which."""
        return self.cluster() if _SERVERS in self._given() else None

    def properties_if_named(self) -> dict[str, str]:
        """The same as `properties`; none at all where nobody says which cluster."""
        given = self._given()
        return given if _SERVERS in given else {}

    def _given(self) -> dict[str, str]:
        from pyspark_kafkalog.client import properties

        given = self._from_environment() | _file_properties(self.file)
        given |= {
            _name(name): value.strip()
            for name, value in read_settings("--property", self.settings).items()
        }
        if self.servers:
            given[_SERVERS] = self.servers
        properties.refuse_unknown(given)
        return given

    def _from_environment(self) -> dict[str, str]:
        file = os.environ.get(CONFIG_VARIABLE)
        given = _file_properties(Path(file)) if file and self.file is None else {}
        servers = os.environ.get(SERVERS_VARIABLE)
        return given | ({_SERVERS: servers} if servers else {})


def suit_arrow() -> None:
    """For a word that has pyarrow handle nothing but bytes and numbers."""
    from pyspark_kafkalog.cli.lean_arrow import import_lean_arrow

    if click.get_current_context().obj:  # else others in this process may want all of it
        import_lean_arrow()


def takes_client(command: Callable[..., None]) -> Callable[..., None]:
    """The arguments of every command that talks to a cluster; it gets a Client as `client`."""

    @click.option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,...",
        help=f"Brokers to ask first (or {SERVERS_VARIABLE}).",
    )
    @click.option(
        "--command-config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"A file of Kafka client properties (or {CONFIG_VARIABLE}).",
    )
    @click.option(
        "--property",
        "-X",
        multiple=True,
        metavar="NAME=VALUE",
        help="A Kafka client property, such as security.protocol=SSL; may be repeated.",
    )
    @functools.wraps(command)
    def with_client(
        bootstrap_servers: str | None,
        property: tuple[str, ...],
        command_config: Path | None,
        **options: Any,
    ) -> None:
        command(client=Client(bootstrap_servers, property, command_config), **options)

    return with_client


def host_and_port(flag: str, at: str) -> tuple[str, int]:
    """Of HOST:PORT, or of a PORT of this machine's own; raises UsageError."""
    host, _, port = at.rpartition(":")
    if not port.isdecimal() or int(port) > _LAST_PORT:
        raise click.UsageError(f"{flag} takes HOST:PORT, and not {at!r}.")
    return host.strip("[]") or LOOPBACK, int(port)


def takes_output(command: Callable[..., None]) -> Callable[..., None]:
    """--format and --quiet; the command gets an Output as `output`."""

    @click.option(
        "--format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="text, or one JSON object a line.",
    )
    @takes_quiet
    @functools.wraps(command)
    def with_output(format: str, quiet: bool, **options: Any) -> None:
        command(output=Output(format == "json", quiet), **options)

    return with_output


def takes(options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """A decorator for several of click's options, in the order in which help shows them."""

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


takes_quiet = click.option(
    "--quiet", "-q", is_flag=True, help="Say nothing but what was asked for, and errors."
)


TARGET = (
    "The target: parquet:PATH (a folder, or s3://BUCKET/PATH, gs://..., az://...), delta:PATH "
    "(also s3://..., abfs://...), "
    "iceberg:NAMESPACE.TABLE?uri=...&warehouse=... or sql:SQLALCHEMY_URL#TABLE."
)

VALUE_OPTIONS = (
    click.option(
        "--value-format",
        default="binary",
        metavar="FORMAT",
        help="What values are: binary (the default), string, json, avro or protobuf.",
    ),
    click.option(
        "--value-schema",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="A file with the values' schema: DDL or JSON Schema, Avro, ...",
    ),
    click.option("--registry", metavar="URL", help="The schema registry to ask instead."),
    click.option(
        "--registry-option",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the registry, such as subject or basic.auth.user.info.",
    ),
)
"""How values are decoded."""


def read_schema(path: Path | None) -> str | None:
    """The text of --value-schema, a file or a pipe; raises InvalidOptionError."""
    if path is None:
        return None
    if not path.exists() or path.is_dir():
        raise InvalidOptionError(f"--value-schema takes a file, and there is no {path}.")
    return read_text(path)


def read_registry(url: str | None, settings: Iterable[str]) -> dict[str, str] | None:
    """The options of the schema registry, None for none; raises InvalidOptionError."""
    registry = read_settings("--registry-option", settings)
    if url:
        registry["schema.registry.url"] = url
    return registry or None


def read_text(path: Path) -> str:
    """A file that an argument names; raises InvalidOptionError for one that is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidOptionError(f"{path} is not valid UTF-8: save it as UTF-8.") from None


def read_settings(flag: str, settings: Iterable[str]) -> dict[str, str]:
    """What an argument that is written NAME=VALUE was given, the last one of a name; raises
    UsageError."""
    return dict(read_pairs(flag, settings))


def read_pairs(flag: str, settings: Iterable[str]) -> list[tuple[str, str]]:
    """The same, each of them, where a name may come more than once."""
    given = []
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            # Not quoted: it may hold a password.
            raise click.UsageError(f"Write each {flag} as NAME=VALUE; one is not.")
        given.append((name, value))
    return given


def let_spark_workers_be_this_python() -> None:
    """Without an activated environment Spark would start its workers as another `python3`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _file_properties(path: Path | None) -> dict[str, str]:
    """In the format of Java's, as Kafka's own tools read them."""
    if path is None:
        return {}
    from pyspark_kafkalog.protocol.properties_text import logical_lines, parse_properties

    text = read_text(path)
    if not all("=" in line or ":" in line for line in logical_lines(text)):
        # Not quoted: it may hold a password.
        raise InvalidOptionError(f"Write each line of {path} as NAME=VALUE; one is not.")
    return {_name(name): value.strip() for name, value in parse_properties(text).items()}


def _name(name: str) -> str:
    return name.strip().removeprefix("kafka.")
