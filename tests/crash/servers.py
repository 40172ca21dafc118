"""The servers that crash tests kill: Apache Kafka, and this project's broker, with one interface.

Each keeps its data and its address over `kill` and `start`.
"""

from pathlib import Path
from typing import Protocol

from tests.support.broker_child import BrokerChild
from tests.support.kafka_server import KafkaServer, require_kafka

# Groups that notice soon that a member was killed; few partitions of the internal topics, so that
# Apache Kafka starts faster.
PROPERTIES = {
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
KAFKA_PROPERTIES = {
    "transaction.state.log.num.partitions": "3",
    # After a SIGKILL its controller refuses it until its last life's session has ended.
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    # Three partitions of one client are copied at once; a JVM with two cores needs no more.
    "num.network.threads": "2",
    "num.io.threads": "2",
}


class Server(Protocol):
    @property
    def bootstrap_servers(self) -> str: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...


class Kafkalog:
    """`python -m broker`, on the port of its first start."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._child: BrokerChild | None = None
        self._port = 0

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        self._child = BrokerChild(self._directory, PROPERTIES, port=self._port)
        self._port = self._child.port

    def kill(self) -> None:
        child = self._running()
        child.kill()
        self._judge(child)

    def stop(self) -> None:
        child = self._running()
        assert child.stop() == 0
        self._judge(child)

    def _running(self) -> BrokerChild:
        child, self._child = self._child, None
        assert child is not None
        return child

    def _judge(self, child: BrokerChild) -> None:
        """It was killed or asked to stop; of itself it has nothing to complain about."""
        log = child.stderr()
        assert "level=error" not in log, log
        assert "Traceback" not in log, log


def make_server(name: str, directory: Path) -> Server:
    """ "kafka" (Apache Kafka) or "kafkalog" (ours), not started; its data goes into `directory`."""
    directory.mkdir()
    if name == "kafkalog":
        return Kafkalog(directory)
    require_kafka()
    return KafkaServer(directory, PROPERTIES | KAFKA_PROPERTIES)
