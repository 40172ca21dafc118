"""`kafkalog ui`: a page of topics, records, groups, brokers and loads."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

import click

from pyspark_kafkalog.cli.arguments import (
    LOOPBACK,
    PORT,
    TARGET,
    Client,
    host_and_port,
    read_registry,
    takes_client,
    takes_output,
)
from pyspark_kafkalog.cli.output import Output
from pyspark_kafkalog.errors import KafkalogError, MissingExtraError

if TYPE_CHECKING:
    from socket import socket

    from pyspark_kafkalog.decoding.registry import RegistryConfig

_PORT = 8090
_BROKER_MS = "4000"
_CONNECT_MS = "1500"
_REGISTRY_MS = "2000"
"""Shorter than other commands': a page is waited for, and asked for again."""
_LAST_ANSWERS_S = 5.0


@click.command
@click.option(
    "--host",
    default=LOOPBACK,
    metavar="ADDRESS",
    help="The address to listen at (default: this machine's own alone).",
)
@click.option(
    "--port", type=PORT, default=_PORT, metavar="PORT", help=f"Default: {_PORT}; 0: a free one."
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="A name that the page is reached under, besides addresses and localhost; may be repeated.",
)
@click.option(
    "--to",
    "targets",
    multiple=True,
    metavar="KIND:PLACE",
    help=f"Show the loads of a target, too; may be repeated. {TARGET}",
)
@click.option("--registry", metavar="URL", help="The schema registry of Avro and Protobuf values.")
@click.option(
    "--registry-option",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the registry, such as basic.auth.user.info.",
)
@click.option("--exit-with-stdin", is_flag=True, hidden=True, help="As a process beside another.")
@takes_client
@takes_output
def command(
    client: Client,
    output: Output,
    host: str,
    port: int,
    exit_with_stdin: bool,
    **shown: Any,
) -> None:
    """Show topics, records, groups, brokers and loads on a page, until SIGTERM or Ctrl-C.

    Of any Kafka cluster; changes nothing. Prints the page's address. There is no login: whoever
    reaches it sees all that this command may read, which is why it listens on this machine alone
    unless --host says otherwise.
    """
    if not host:  # of a variable that is not set, perhaps; to a socket it means all addresses
        raise click.UsageError("--host is empty: give an address, or leave it out.")
    config = client.config(
        request_timeout_ms=_BROKER_MS, socket_connection_setup_timeout_ms=_CONNECT_MS
    )
    with _needing_extra():
        from pyspark_kafkalog.web.app import PageSettings
        from pyspark_kafkalog.web.server import listen, serve, server_of
    registry = _registry(shown["registry"], shown["registry_option"])
    server = server_of(PageSettings(config, shown["targets"], registry, shown["allow_host"]))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if exit_with_stdin:
        Thread(target=_end_with_stdin, daemon=True).start()
    with listen(host, port) as listening:
        page = _address(listening)
        output.row(page, page=page)
        sys.stdout.flush()
        serve(server, listening)
    sys.stdout.flush()
    # At once: threads may still wait for what hangs, and have nothing to bring to an end.
    os._exit(0)


@contextmanager
def _needing_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("pyspark_kafkalog"):
            raise
        raise MissingExtraError(
            f"The page needs {error.name or error}, which is not installed: "
            "pip install 'pyspark-kafkalog[ui]'"
        ) from error


def _address(listening: "socket") -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def _registry(url: str | None, options: Sequence[str]) -> "RegistryConfig | None":
    given = read_registry(url, options)
    if given is None:
        return None
    from pyspark_kafkalog.decoding.registry import RegistryConfig

    return RegistryConfig.from_options({"request.timeout.ms": _REGISTRY_MS} | given)


def _end_with_stdin() -> None:
    """Whoever started this is gone, however it ended, when its end of the pipe closes."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def page_within(properties: Mapping[str, str], targets: Sequence[str], at: str) -> Iterator[str]:
    """The page of a cluster, which these properties of Kafka's clients name, and of targets in a
    thread of this process, at `at` as HOST:PORT; its address. Ends with the body. Raises
    KafkalogError."""
    host, port = host_and_port("--ui", at)
    with _needing_extra():
        from pyspark_kafkalog.web.app import PageSettings
        from pyspark_kafkalog.web.server import listen, serve, server_of
    from pyspark_kafkalog.client.config import ClientConfig

    limits = {
        "request.timeout.ms": _BROKER_MS,
        "socket.connection.setup.timeout.ms": _CONNECT_MS,
    }
    settings = PageSettings(ClientConfig.from_options(limits | dict(properties)), tuple(targets))
    server = server_of(settings)
    with listen(host, port) as listening:
        thread = Thread(target=serve, args=[server, listening], name="page", daemon=True)
        thread.start()
        try:
            yield _address(listening)
        finally:
            server.should_exit = True
            thread.join(_LAST_ANSWERS_S)


@contextmanager
def page_beside(servers: str, listen: str) -> Iterator[str]:
    """The page of the cluster at `servers` in a process of its own, at `listen` as HOST:PORT; its
    address. Ends with this process. Raises KafkalogError."""
    host, port = host_and_port("--ui", listen)
    own = ["--bootstrap-servers", servers, "--host", host, "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "pyspark_kafkalog.cli", "ui", "--exit-with-stdin", *own],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            page = child.stdout.readline().strip()
            if not page:
                raise KafkalogError("The page did not start; what is the matter stands above.")
            yield page
        finally:
            child.stdin.close()
