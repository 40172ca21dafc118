"""Apache Kafka as a child process: the jars of `tests/interop/peers/fetch`, one KRaft node, or one
more that follows the first as its controller.

Listens without protection on `port`, with TLS and SASL (PLAIN, SCRAM-SHA-512; user alice, password
PASSWORD; OAUTHBEARER, unsigned tokens) on `sasl_port`, and with mutual TLS on `tls_port`. May be
killed and started again.
"""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.jvm import PEERS, ROOT, peer_java, short_lived
from tests.support.patience import attempts
from tests.support.ports import free_ports

CERTIFICATES = ROOT / "tests" / "pyspark_kafkalog" / "client" / "data"
START_TIMEOUT_S = 60
PASSWORD = "pa55word-of-alice"
_JAVA_OPTIONS = ("-Xmx512m", *short_lived("kafka"))


def require_kafka() -> None:
    """Skips the test where the jars have not been fetched."""
    if not (PEERS / "kafka").is_dir():
        pytest.skip(f"no Apache Kafka in {PEERS}: run tests/interop/peers/fetch")


class KafkaServer:
    """Kafka on free ports of 127.0.0.1, with its data in `directory`; a context manager.

    `properties` are added to its configuration, or replace what is there; `features` have other
    levels than the release's own. With a `controller` this is a second node, a broker only, in the
    cluster of that one.
    """

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        controller: "KafkaServer | None" = None,
        java_options: Sequence[str] = _JAVA_OPTIONS,
        features: Mapping[str, int] | None = None,
    ) -> None:
        self._directory = directory
        self._config = directory / "server.properties"
        self.port, self.sasl_port, self.tls_port, own_controller_port = free_ports(4)
        self.controller_port: int = (
            controller.controller_port if controller else own_controller_port
        )
        added = [f"{name}={value}\n" for name, value in (properties or {}).items()]
        text = self._properties(is_controller=controller is None) + "".join(added)
        self._config.write_text(text)
        self._java = ["java", *java_options, "-cp", f"{PEERS}/kafka/*"]
        self._process: subprocess.Popen[bytes] | None = None
        subprocess.run(
            [
                *peer_java("kafka"),
                *("kafka.tools.StorageTool", "format", "-t", "kL0gInterop00000000001"),
                *("-c", str(self._config)),
                *("--add-scram", f"SCRAM-SHA-512=[name=alice,password={PASSWORD}]"),
                *(
                    part
                    for name, level in (features or {}).items()
                    for part in ("--feature", f"{name}={level}")
                ),
            ],
            check=True,
            capture_output=True,
        )

    def __enter__(self) -> "KafkaServer":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the server and returns when it serves."""
        log = self._directory / "server.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._config)],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        for _ in attempts(lambda: log.read_text()[-4000:], START_TIMEOUT_S, pause_s=0.05):
            if b"Kafka Server started" in log.read_bytes():
                break
            assert self._process.poll() is None, log.read_text()[-4000:]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(60)

    def _properties(self, is_controller: bool) -> str:
        login = "org.apache.kafka.common.security"
        own_listener = f",CONTROLLER://127.0.0.1:{self.controller_port}" if is_controller else ""
        return "\n".join(
            [
                f"process.roles={'broker,controller' if is_controller else 'broker'}",
                f"node.id={1 if is_controller else 2}",
                f"controller.quorum.voters=1@127.0.0.1:{self.controller_port}",
                f"listeners=PLAINTEXT://127.0.0.1:{self.port},"
                f"SASL_SSL://127.0.0.1:{self.sasl_port},SSL://127.0.0.1:{self.tls_port}{own_listener}",
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "SASL_SSL:SASL_SSL,SSL:SSL",
                "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512,OAUTHBEARER",
                f"listener.name.sasl_ssl.plain.sasl.jaas.config={login}.plain.PlainLoginModule "
                f'required user_alice="{PASSWORD}";',
                f"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={login}.scram."
                "ScramLoginModule required;",
                f"listener.name.sasl_ssl.oauthbearer.sasl.jaas.config={login}.oauthbearer."
                'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
                "ssl.keystore.type=PEM",
                f"ssl.keystore.location={CERTIFICATES / 'localhost.pem'}",
                "ssl.truststore.type=PEM",
                f"ssl.truststore.location={CERTIFICATES / 'trusted.pem'}",
                "listener.name.ssl.ssl.client.auth=required",
                f"log.dirs={self._directory / 'log'}",
                "offsets.topic.replication.factor=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                "log.cleaner.backoff.ms=100",
                "log.initial.task.delay.ms=100",
                "",
            ]
        )
