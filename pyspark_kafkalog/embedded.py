"""A broker of one's own for a notebook, a test or the quick start: a child process.

    with EmbeddedBroker() as broker:
        spark.read.format("kafkalog").option("kafka.bootstrap.servers", broker.bootstrap_servers)

Starts `python -m broker` and reads the line `listening HOST:PORT` that it prints when it is ready.
The child watches the pipe that is its stdin: when this process ends, however it ends, the pipe
closes and the child stops, and deletes its data if the folder is temporary. Never imports the
broker, so that executors need the connector alone. One thread at a time.
"""

import logging
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from pyspark_kafkalog.errors import BrokerStartError

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
_READY = b"listening "
_LAST_LINES = 8
_REFUSAL = re.compile(r"^broker: (.+)$", re.MULTILINE)
"""The one sentence in which a broker says why it cannot start."""
_LARGEST_READY_LINE_BYTES = 4096
_UNKNOWN = re.compile(rb"event=config\.unknown name=(\S+)(?: nearest=(\S+))?")
_FIRST_BYTES = 64 << 10

_logger = logging.getLogger(__name__)


class EmbeddedBroker:
    """One broker on 127.0.0.1, a context manager; or `start()` and `stop()` by hand.

        with EmbeddedBroker() as broker:
            spark.read.format("kafkalog").option(
                "kafka.bootstrap.servers", broker.bootstrap_servers
            )

    `data_dir` keeps its topics between runs; without it a temporary folder is used and deleted.
    `port` 0 takes a free one. `config` holds broker properties under Kafka's names.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._given_data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._port = port
        # As in Kafka's own quick start: a notebook's first consumer has nobody to wait for.
        self._config = {"group.initial.rebalance.delay.ms": "0", **(config or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._address = ""
        self._data_dir = self._given_data_dir

    def __enter__(self) -> "EmbeddedBroker":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> "EmbeddedBroker":
        """Starts the broker and returns when it accepts connections; raises BrokerStartError."""
        if self._process is not None:
            raise RuntimeError("This EmbeddedBroker is running already.")
        if self._given_data_dir is None:
            self._data_dir = Path(tempfile.mkdtemp(prefix="kafkalog-"))
        else:
            self._given_data_dir.mkdir(parents=True, exist_ok=True)
        # A file and not a pipe: nobody reads along, and a full pipe would stop the broker.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd=self._data_dir,
                env=_environment(),
            )
            self._address = self._ready_address(self._process)
        except BaseException:
            self.stop()
            raise
        self._warn_of_unknown()
        return self

    def stop(self) -> None:
        """Stops the broker and deletes a temporary folder; may be called again."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._given_data_dir is None and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None

    def kill(self) -> None:
        """As by a crash, with SIGKILL; then as `stop`."""
        if self._process is not None:
            self._process.kill()
        self.stop()

    @property
    def is_running(self) -> bool:
        """False before `start`, and once it has ended: by `stop`, or by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, for `kafka.bootstrap.servers`."""
        if self._process is None:
            raise RuntimeError("This EmbeddedBroker is not running. Call start(), or use `with`.")
        return self._address

    @property
    def data_dir(self) -> Path | None:
        """Where the broker keeps its logs; None for a temporary folder that is not there now."""
        return self._data_dir

    @property
    def pid(self) -> int:
        """The child's process id; raises RuntimeError when it is not running."""
        if self._process is None:
            raise RuntimeError("This EmbeddedBroker is not running. Call start(), or use `with`.")
        return self._process.pid

    def __repr__(self) -> str:
        state = "stopped" if self._process is None else self._address
        return f"EmbeddedBroker({state})"

    def _command(self) -> list[str]:
        options = ["--listen", f"127.0.0.1:{self._port}", "--data-dir", str(self._data_dir)]
        if self._given_data_dir is None:
            options.append("--ephemeral")
        for name, value in self._config.items():
            options += ["--override", f"{name}={value}"]
        return [sys.executable, "-m", "broker", "--exit-with-parent", *options]

    def _ready_address(self, process: "subprocess.Popen[bytes]") -> str:
        line = _ready_line(process)
        if line.startswith(_READY) and line.endswith(b"\n"):
            return line.removeprefix(_READY).decode().strip()
        try:
            code = process.wait(1)
            refused = _REFUSAL.search(self._last_lines())
            if code == 1 and refused:
                raise BrokerStartError(f"The embedded broker did not start: {refused[1]}")
            what = f"it ended with code {code}"
        except subprocess.TimeoutExpired:
            what = f"it was not ready within {_START_TIMEOUT_S:g} s"
        raise BrokerStartError(f"The embedded broker did not start: {what}.\n{self._last_lines()}")

    def _warn_of_unknown(self) -> None:
        """Of properties that no broker has, as nobody else reads what it logs."""
        assert self._log is not None
        # Without a seek, which would move where the child writes.
        first = os.pread(self._log.fileno(), _FIRST_BYTES, 0)
        for name, nearest in _UNKNOWN.findall(first):
            hint = f": write {nearest.decode()}?" if nearest else "."
            _logger.warning("No broker has a property %s%s", name.decode(), hint)

    def _last_lines(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-_LAST_LINES:])


def _environment() -> dict[str, str]:
    """The child's environment, in which `broker` is found beside this package.

    The child runs in its data folder, where relative entries would mean something else and where
    no module of the user's can be taken for the broker.
    """
    beside = Path(__file__).absolute().parent.parent
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = [str(beside), *(os.path.abspath(entry) for entry in inherited)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


def _ready_line(process: "subprocess.Popen[bytes]") -> bytes:
    """What the broker prints first, without waiting for a line's end that never comes."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    until_s = time.monotonic() + _START_TIMEOUT_S
    line = b""
    while not line.endswith(b"\n") and len(line) < _LARGEST_READY_LINE_BYTES:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
            break
        chunk = os.read(descriptor, _LARGEST_READY_LINE_BYTES)
        if not chunk:
            break
        line += chunk
    return line
