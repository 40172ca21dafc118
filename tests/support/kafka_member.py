"""Apache Kafka 3.9 as a broker of a cluster over ZooKeeper; jars: `tests/interop/peers/fetch`.

Its data directory is laid out as ours, so either kind of broker may go on with the other's.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.jvm import PEERS, short_lived
from tests.support.patience import EVENT_S, wait_until
from tests.support.ports import free_ports

_JARS = PEERS / "kafka-zk"
JAVA_OPTIONS = ("-Xmx256m", *short_lived("kafka-zk"))
_SMALL = {
    "num.io.threads": "2",
    "num.network.threads": "2",
    "log.cleaner.dedupe.buffer.size": "2097152",
}
# It outlives no end of this process, however that comes: the shell's stdin closes with it.
_SCRIPT = """"$@" > log 2>&1 < /dev/null & kafka=$!; echo $kafka
exec 3<&0; (cat <&3 > /dev/null; kill -KILL $kafka) > /dev/null & watch=$!
wait $kafka; code=$?; kill $watch 2> /dev/null; exit $code"""
_LOG4J = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


def require_kafka_with_zookeeper() -> None:
    """Skips the test where the jars have not been fetched."""
    if not _JARS.is_dir():
        pytest.skip(f"no Apache Kafka 3.9 in {PEERS}: run tests/interop/peers/fetch")


class KafkaMember:
    """One broker on 127.0.0.1, begun when made; `wait` says when it serves. As a BrokerChild,
    which it may be followed by on the same directory, port and id."""

    host = "127.0.0.1"

    def __init__(
        self,
        data_dir: Path,
        properties: Mapping[str, str],
        port: int = 0,
        java_options: Sequence[str] = JAVA_OPTIONS,
    ) -> None:
        self.data_dir = data_dir
        self.port = port or free_ports(1)[0]
        own = data_dir.with_name(f"{data_dir.name}.kafka")
        own.mkdir(parents=True, exist_ok=True)
        values = {
            **_SMALL,
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "log.dirs": data_dir,
            **properties,
        }
        lines = [f"{name}={value}\n" for name, value in values.items()]
        own.joinpath("server.properties").write_text("".join(lines))
        own.joinpath("log4j.properties").write_text(_LOG4J)
        self._log = own / "log"
        self._log.unlink(missing_ok=True)  # of its life before, in which it served
        server = [
            *("java", *java_options, "-Djava.net.preferIPv4Stack=true"),
            f"-Dlog4j.configuration=file:{own}/log4j.properties",
            *("-cp", f"{_JARS}/*", "kafka.Kafka", "server.properties"),
        ]
        self._shell = subprocess.Popen(
            ["sh", "-c", _SCRIPT, "sh", *server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the shell tells who was killed
            cwd=own,
        )
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())

    def wait(self) -> None:
        """Until it serves."""

        def is_ready() -> bool:
            assert self._shell.poll() is None, self.stderr()[-8000:]
            return "started (kafka.server.KafkaServer)" in self.stderr()

        wait_until(is_ready, lambda: self.stderr()[-8000:], pause_s=0.05)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def stderr(self) -> str:
        """What it has logged since its start."""
        return self._log.read_text() if self._log.exists() else ""

    def stop(self) -> int:
        """SIGTERM, and 0 where it has ended by that."""
        os.kill(self.pid, signal.SIGTERM)
        code = self._shell.wait(EVENT_S)
        self.close()
        return 0 if code == 128 + signal.SIGTERM else code

    def kill(self) -> None:
        """SIGKILL."""
        self.close()

    def close(self) -> None:
        """Kills what is left; safe to call twice."""
        for pipe in (self._shell.stdin, self._shell.stdout):
            if pipe is not None:
                pipe.close()
        self._shell.wait(EVENT_S)
