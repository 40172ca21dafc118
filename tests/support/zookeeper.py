"""A real ZooKeeper for tests: alone, or an ensemble of three, on free ports of 127.0.0.1.

Its jars are the peer's (`tests/interop/peers/fetch`: the version that Kafka 3.9 was released with),
or, where that was not fetched, those that come with PySpark. May be killed and started again.
"""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
from kazoo.client import KazooClient

from tests.support.jvm import PEERS, short_lived
from tests.support.kafka_server import CERTIFICATES
from tests.support.patience import EVENT_S, wait_until
from tests.support.ports import free_ports

TICK_S = 0.2
"""Sessions end in steps of this."""
SHORTEST_SESSION_S = 0.4
LONGEST_SESSION_S = 60.0

_LOGBACK = """<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d %level %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="out"/></root></configuration>"""
_JAVA_OPTIONS = ("-Xmx96m", *short_lived("zookeeper"))
# No fsync for each write, and no 64 MB of zeroes for each file: it lives for a minute.
_SETTINGS = (
    *("-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64", "-Djava.net.preferIPv4Stack=true"),
)
_TLS = {
    "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
    "ssl.keyStore.location": str(CERTIFICATES / "localhost.pem"),
    "ssl.keyStore.type": "PEM",
    "ssl.trustStore.location": str(CERTIFICATES / "trusted.pem"),
    "ssl.trustStore.type": "PEM",
}


DIGEST_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"


class ZooKeeperServer:
    """One server, with its data in a directory of its own until `close`; a context manager.

    `more`: what is added to its configuration. With `is_tls` it listens on `tls_port`, too, where
    it asks for a certificate. `passwords` are those of its users, by name (SASL's DIGEST-MD5).
    """

    def __init__(
        self,
        more: Mapping[str, str] | None = None,
        is_tls: bool = False,
        passwords: Mapping[str, str] | None = None,
        java_options: Sequence[str] = _JAVA_OPTIONS,
    ) -> None:
        self.port, self.tls_port = free_ports(2)
        self._directory = Path(tempfile.mkdtemp(prefix="zk-"))
        self._process: subprocess.Popen[bytes] | None = None
        values = {
            "dataDir": self.data_dir,
            "clientPortAddress": "127.0.0.1",
            "clientPort": self.port,
            "tickTime": int(TICK_S * 1000),
            "initLimit": 50,
            "syncLimit": 20,
            "minSessionTimeout": int(SHORTEST_SESSION_S * 1000),
            "maxSessionTimeout": int(LONGEST_SESSION_S * 1000),
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        if is_tls:
            values |= {"secureClientPort": self.tls_port, "secureClientPortAddress": "127.0.0.1"}
            values |= _TLS
        self._java = ["java", *java_options, *_SETTINGS]
        if passwords is not None:
            values["authProvider.sasl"] = (
                "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
            )
            jaas = self._directory / "jaas"
            users = " ".join(f'user_{name}="{word}"' for name, word in passwords.items())
            jaas.write_text(f"Server {{ {DIGEST_MODULE} required {users}; }};")
            self._java.append(f"-Djava.security.auth.login.config={jaas}")
        values |= dict(more or {})
        lines = [f"{name}={value}\n" for name, value in values.items()]
        self._directory.joinpath("zoo.cfg").write_text("".join(lines))
        self._directory.joinpath("logback.xml").write_text(_LOGBACK)
        self._log = self._directory / "log"

    def __enter__(self) -> "ZooKeeperServer":
        with _closed_if_failed(self):
            self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ports(self) -> list[int]:
        return [self.port]

    @property
    def data_dir(self) -> Path:
        return self._directory / "data"

    def start(self) -> None:
        self.begin()
        self.wait()

    def begin(self, myid: int | None = None) -> None:
        """Starts it, as that member of an ensemble where it is one; `wait` says when it serves."""
        if myid is not None:
            self.data_dir.mkdir(exist_ok=True)
            self.data_dir.joinpath("myid").write_text(str(myid))
        server = [
            *(*self._java, f"-Dlogback.configurationFile={self._directory}/logback.xml"),
            *("-cp", _jars(), "org.apache.zookeeper.server.quorum.QuorumPeerMain"),
            str(self._directory / "zoo.cfg"),
        ]
        # The shell outlives no end of this process, however that comes: its stdin closes with it.
        script = '"$@" >> log 2>&1 < /dev/null & read signal; kill -${signal:-KILL} $!; wait'
        self._process = subprocess.Popen(
            ["sh", "-c", script, "sh", *server], stdin=subprocess.PIPE, cwd=self._directory
        )

    @property
    def is_begun(self) -> bool:
        return self._process is not None

    def wait(self) -> None:
        wait_until(lambda: self.mode, lambda: self._log.read_text()[-4000:], pause_s=0.05)

    @property
    def mode(self) -> str:
        """standalone, leader or follower; nothing while it does not serve."""
        with suppress(OSError):
            return self.ask("srvr").partition("Mode: ")[2].partition("\n")[0]
        return ""

    def ask(self, word: str) -> str:
        """The answer to a word of four letters."""
        # One that is asked before it is ready may never answer.
        with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def stop(self) -> None:
        self._end(b"TERM")

    def kill(self) -> None:
        self._end(b"KILL")

    def _end(self, signal: bytes) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.communicate(signal, EVENT_S)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._directory)


class ZooKeeperEnsemble:
    """Three servers that agree; a context manager."""

    def __init__(self) -> None:
        ports = free_ports(6)
        members = {
            f"server.{number}": f"127.0.0.1:{ports[2 * number - 2]}:{ports[2 * number - 1]}"
            for number in (1, 2, 3)
        }
        self.servers = [ZooKeeperServer(members) for _ in members]

    def __enter__(self) -> "ZooKeeperEnsemble":
        with _closed_if_failed(self):
            self.start()
        return self

    def start(self) -> None:
        """Those that do not run; one that does may not serve, while they elect."""
        for myid, server in enumerate(self.servers, 1):
            if not server.is_begun:
                server.begin(myid)
        for server in self.servers:
            server.wait()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for server in self.servers:
            server.close()

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers)

    @property
    def ports(self) -> list[int]:
        return [server.port for server in self.servers]

    @property
    def leader(self) -> ZooKeeperServer:
        (leader,) = [server for server in self.servers if server.mode == "leader"]
        return leader


def expire(address: str, client_id: tuple[int, bytes] | None) -> None:
    """Ends the session of a client of kazoo's at once: whoever knows its password may."""
    twin = KazooClient(address, client_id=client_id)
    twin.start()
    # A server of an ensemble knows what it was asked by session and number: with numbers that the
    # other uses, too, the other got an answer to a request that had one.
    twin._connection._xid = 1 << 30
    twin.stop()
    twin.close()


@contextmanager
def _closed_if_failed(servers: ZooKeeperServer | ZooKeeperEnsemble) -> Iterator[None]:
    try:
        yield
    except BaseException:
        servers.close()
        raise


def _jars() -> str:
    fetched = PEERS / "zookeeper"
    return f"{fetched if fetched.is_dir() else Path(pyspark.__file__).parent / 'jars'}/*"
