"""`python -m broker`: one broker as a process.

Prints one line on stdout when it is ready, `listening HOST:PORT`, and nothing else; its log goes to
stderr, one line of key=value pairs for each event. Exit code 0 after SIGTERM, SIGINT, or the end of
its parent (--exit-with-parent); 1 with one line on stderr when it cannot start.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kafka.errors import KafkaError

from broker.cluster.local_store import FILE_NAME
from broker.cluster.store import MetadataStoreError
from broker.config.broker import BrokerConfig
from broker.config.endpoint import Endpoint
from broker.log import log
from broker.network.loop import new_event_loop
from broker.server import BrokerServer
from pyspark_kafkalog.record import record_spans

_log = logging.getLogger("broker")

_STDIN = 0
_SWITCH_INTERVAL_S = 0.0005


class KeyValueFormatter(logging.Formatter):
    """`time=... level=... event=name key=value ...`, always one line."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = (
            f"time={seconds}.{int(record.msecs):03d}Z level={record.levelname.lower()} "
            f"event={record.getMessage()}"
        )
        if record.exc_info:
            line += f" trace={self.formatException(record.exc_info)!r}"
        return line.replace("\n", "\\n")


class StartError(Exception):
    """Why the broker cannot start, in one sentence."""


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m broker", description="A Kafka broker.")
    parser.add_argument("--data-dir", type=Path, help="where the logs lie (property log.dirs)")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="address to listen on; port 0 takes a free one"
    )
    parser.add_argument(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="serve /metrics and /healthz by HTTP there (property metrics.listener)",
    )
    parser.add_argument("--config", type=Path, help="a server.properties file")
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="PROPERTY=VALUE",
        help="a property, counting above the file's; may be repeated",
    )
    parser.add_argument(
        "--exit-with-parent",
        action="store_true",
        help="stop when stdin, a pipe from the parent, is closed",
    )
    parser.add_argument(
        "--ephemeral",
        action="store_true",
        help="delete the data directory at exit; without --data-dir take a temporary one",
    )
    return parser.parse_args(arguments)


def load_config(options: argparse.Namespace) -> BrokerConfig:
    """Raises StartError."""
    given = {}
    for override in options.override:
        name, equals, value = override.partition("=")
        if not equals:
            # Not quoted: it may hold a password.
            raise StartError("write each --override as PROPERTY=VALUE; one is not")
        given[name] = value
    if options.data_dir is not None:
        given["log.dirs"] = str(options.data_dir)
    if options.listen is not None:
        if "listeners" in given:
            raise StartError("--listen and --override listeners=... name the same: give one")
        given["listeners"] = f"PLAINTEXT://{options.listen}"
    if options.metrics_listen is not None:
        given["metrics.listener"] = options.metrics_listen
    try:
        if options.config is None:
            return BrokerConfig.from_properties(given)
        return BrokerConfig.from_file(options.config, given)
    except OSError as error:
        raise StartError(f"cannot read {options.config}: {error.strerror}") from error
    except KafkaError as error:
        raise StartError(str(error.args[0])) from error


def check_ephemeral_directory(directory: Path) -> None:
    """What is deleted at exit must be a broker's own. Raises StartError."""
    try:
        in_use = directory.exists() and any(directory.iterdir())
        if in_use and not (directory / FILE_NAME).exists():
            raise StartError(f"--ephemeral: {directory} holds files that are no broker's")
    except OSError as error:
        raise StartError(f"data directory {directory}: {error.strerror}") from error


def _reason(error: OSError) -> str:
    """What the system said, without its number."""
    said = error.strerror or str(error)
    return f"{error.filename}: {said}" if error.filename else said


def open_server(config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> tuple[BrokerServer, str]:
    """A server that is ready to start, and its first address as HOST:PORT. Raises StartError."""
    try:
        server = BrokerServer(config, loop)
        endpoint, *_ = server.open()
    except OSError as error:
        addresses = ",".join(f"{each.host}:{each.port}" for each in config.endpoints)
        raise StartError(
            f"cannot start on {addresses} with data in "
            f"{','.join(map(str, config.data_dirs))}: {_reason(error)}"
        ) from error
    except (KafkaError, MetadataStoreError) as error:
        raise StartError(str(error.args[0])) from error
    return server, str(Endpoint("", endpoint.host, endpoint.port)).removeprefix("://")


async def serve(server: BrokerServer, address: str, exit_with_parent: bool) -> None:
    """Serves until a signal, or the end of the parent."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if exit_with_parent:
        watch_parent(loop, stop)
    try:
        await server.start()
    except OSError as error:  # another process was first to listen on a port that both had bound
        raise StartError(f"cannot listen on {address}: {_reason(error)}") from error
    except (KafkaError, MetadataStoreError) as error:
        raise StartError(str(error.args[0])) from error
    _log.info("broker.started address=%s compiled=%s", address, compiled())
    print(f"listening {address}", flush=True)
    # What was made so far lives until the end: no collection needs to look at it again.
    gc.freeze()
    # A thread at work on records (conversion, say) lets the loop in so often, not every 5 ms.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    await stop.wait()
    _log.info("broker.stopping")
    await server.stop()
    _log.info("broker.stopped")


def compiled() -> str:
    """ "true", "false", or "partly" where one of the two units that are compiled is not."""
    suffixes = {Path(str(unit.__file__)).suffix for unit in (log, record_spans)}
    return "partly" if len(suffixes) > 1 else str(".py" not in suffixes).lower()


def check_parent_pipe() -> None:
    """Raises StartError when nobody can hold the other end of stdin."""
    try:
        mode = os.fstat(_STDIN).st_mode
    except OSError:
        mode = 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        raise StartError("--exit-with-parent needs a pipe on stdin")


def watch_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """The parent holds the other end of our stdin; when that closes, the parent is gone."""

    def on_readable() -> None:
        if not os.read(_STDIN, 4096):
            loop.remove_reader(_STDIN)
            stop.set()

    loop.add_reader(_STDIN, on_readable)


def raise_file_limit() -> None:
    """Each log holds up to three files open: takes what the system grants, as the JVM does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS grants less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(options: argparse.Namespace) -> None:
    """Raises StartError."""
    if options.exit_with_parent:
        check_parent_pipe()
    ours = False
    if options.ephemeral and options.data_dir is None:
        options.data_dir = Path(tempfile.mkdtemp(prefix="kafkalog-"))
        ours = True
    elif options.ephemeral:
        check_ephemeral_directory(options.data_dir)
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        server, address = open_server(load_config(options), loop)
        ours = True  # locked: no other broker's data is deleted below
        loop.run_until_complete(serve(server, address, options.exit_with_parent))
    finally:
        loop.close()
        if options.ephemeral and ours:
            shutil.rmtree(options.data_dir, ignore_errors=True)


def main() -> int:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        options = parse_arguments()
        raise_file_limit()
        run(options)
    except StartError as error:
        print(f"broker: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
