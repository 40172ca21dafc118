"""A ZooKeeper of one's own, as a child process out of the jars that come with PySpark.

For `EmbeddedCluster`. It is the real server, alone, on a free port of 127.0.0.1. A shell between
this process and Java ends it when this process ends, however it ends. Its data is flushed to disk
as ZooKeeper does by default. One thread at a time.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark_kafkalog.errors import BrokerStartError
from pyspark_kafkalog.java import find_java

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
_PAUSE_S = 0.05
_TICK_MS = 500
_LAST_LINES = 8
# A line says that it is to stop; the end of its input, that this process has ended. Then it is the
# last one: brokers leave in order while it is there, and nobody else is left to remove the folder.
_UNTIL_TOLD = """
"$@" >> log 2>&1 < /dev/null &
if read -r _; then remove=; else sleep 3; fi
kill $!
wait
tries=0
while [ -n "$remove" ] && [ -e "$remove" ] && [ $tries -lt 60 ]; do
    rm -rf "$remove"
    sleep 1
    tries=$((tries + 1))
done
"""
_REMOVE = "remove"
_LOGBACK = """<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d %level %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="out"/></root></configuration>
"""


class EmbeddedZooKeeper:
    """One server, with its data below `folder`; `start()` and `stop()`, as often as wanted."""

    def __init__(self, folder: Path, temporary: Path | None = None) -> None:
        """`temporary`: what is removed where this process ends without a `stop`."""
        self._folder = folder
        self._temporary = temporary
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port`, for `zookeeper.connect`; the same after each start."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when it answers. Raises BrokerStartError, and JavaNotFoundError without Java."""
        java, jars = find_java(), _jars()
        with _reserved(self._port) as self._port:
            self._start(java, jars)

    def _start(self, java: str, jars: Path) -> None:
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        settings = {
            "dataDir": "data",
            "clientPortAddress": "127.0.0.1",
            "clientPort": self._port,
            "tickTime": _TICK_MS,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        (self._folder / "zoo.cfg").write_text("".join(lines), encoding="utf-8")
        (self._folder / "logback.xml").write_text(_LOGBACK, encoding="utf-8")
        server = [
            *(java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-Dlogback.configurationFile=logback.xml", "-Dzookeeper.preAllocSize=1024"),
            *("-cp", f"{jars}/*", "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"),
        ]
        self._process = subprocess.Popen(
            ["sh", "-c", _UNTIL_TOLD, "sh", *server],
            stdin=subprocess.PIPE,
            cwd=self._folder,
            # Ctrl-C is for who has started it, and needs it to stop its brokers.
            start_new_session=True,
            env=os.environ | {_REMOVE: str(self._temporary or "")},
        )
        try:
            self._wait(self._process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """May be called again."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"stop\n")
            process.stdin.close()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        until_s = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > until_s:
                log = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
                last = "\n".join(log.splitlines()[-_LAST_LINES:])
                raise BrokerStartError(
                    f"ZooKeeper was not ready within {_START_TIMEOUT_S:g} s.\n{last}"
                )
            time.sleep(_PAUSE_S)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1) as connection:
                connection.sendall(b"srvr")
                return b"Mode: " in b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return False


def _jars() -> Path:
    import pyspark

    assert pyspark.__file__ is not None
    jars = Path(pyspark.__file__).parent / "jars"
    if not list(jars.glob("zookeeper-[0-9]*.jar")):
        raise BrokerStartError(
            f"{jars} has no zookeeper jar: install pyspark, and not pyspark-client or -connect."
        )
    return jars


@contextlib.contextmanager
def _reserved(port: int) -> Iterator[int]:
    """A free port, or the given one, for the server that is about to listen there.

    On Linux it is kept bound until then, as servers bind theirs: else the kernel may give it to a
    client's end of a connection while Java starts. Elsewhere nobody else could listen there.
    """
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(("127.0.0.1", port))
        reserved = int(door.getsockname()[1])
        if sys.platform != "linux":
            door.close()
        yield reserved
