"""A cluster of one's own for a notebook or a test: ZooKeeper and brokers, as child processes.

    with EmbeddedCluster() as cluster:
        spark.read.format("kafkalog").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        cluster.kill_broker(1)

Topics have three replicas, and `acks=all` waits for two, as far as there are so many brokers. All
processes end with this one. One thread at a time.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.embedded_zookeeper import EmbeddedZooKeeper
from pyspark_kafkalog.errors import InvalidOptionError

_MOST_REPLICAS = 3
_CHROOT = "/kafkalog"


class EmbeddedCluster:
    """`brokers` brokers and a ZooKeeper on 127.0.0.1, a context manager; or `start()` and
    `stop()` by hand.

        with EmbeddedCluster(brokers=3) as cluster:
            cluster.kill_broker(2)

    Brokers have ids from 1 on. ZooKeeper needs Java.

    `data_dir` keeps topics between runs; without it a temporary folder is used and deleted.
    `config` holds broker properties under Kafka's names, for all brokers.
    """

    def __init__(
        self,
        brokers: int = 3,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        if brokers < 1:
            raise InvalidOptionError(f"A cluster has one broker or more, and not {brokers}.")
        self._given_data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._config = {**_defaults(brokers), **(config or {})}
        self._wanted = range(1, brokers + 1)
        self._data_dir: Path | None = None
        self._zookeeper: EmbeddedZooKeeper | None = None
        self._brokers: dict[int, EmbeddedBroker] = {}
        self._addresses: dict[int, str] = {}

    def __enter__(self) -> "EmbeddedCluster":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> "EmbeddedCluster":
        """Returns when all brokers accept connections. Raises BrokerStartError, and
        JavaNotFoundError without Java, which ZooKeeper runs on."""
        if self._zookeeper is not None:
            raise RuntimeError("This EmbeddedCluster is running already.")
        self._data_dir = self._given_data_dir or Path(tempfile.mkdtemp(prefix="kafkalog-cluster-"))
        is_temporary = self._given_data_dir is None
        self._zookeeper = EmbeddedZooKeeper(
            self._data_dir / "zookeeper", self._data_dir if is_temporary else None
        )
        try:
            self._zookeeper.start()
            with ThreadPoolExecutor(len(self._wanted)) as threads:
                list(threads.map(self.start_broker, self._wanted))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stops all, and deletes a temporary folder; may be called again."""
        with ThreadPoolExecutor(len(self._wanted)) as threads:
            list(threads.map(EmbeddedBroker.stop, self._brokers.values()))
        self._brokers.clear()
        if self._zookeeper is not None:
            self._zookeeper.stop()
            self._zookeeper = None
        if self._given_data_dir is None and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
        self._data_dir = None
        self._addresses.clear()

    @property
    def is_running(self) -> bool:
        """Whether at least one of its brokers runs."""
        return any(broker.is_running for broker in self._brokers.values())

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,host:port,...` of all brokers, for `kafka.bootstrap.servers`; also of those
        that are stopped at the moment."""
        if self._zookeeper is None:
            raise RuntimeError("This EmbeddedCluster is not running. Call start(), or use `with`.")
        return ",".join(self._addresses[node_id] for node_id in self._wanted)

    @property
    def zookeeper_connect(self) -> str:
        """For `zookeeper.connect` of another broker that is to join."""
        if self._zookeeper is None:
            raise RuntimeError("This EmbeddedCluster is not running. Call start(), or use `with`.")
        return self._zookeeper.address + _CHROOT

    @property
    def broker_ids(self) -> list[int]:
        """The ids of the brokers that run now."""
        return sorted(self._brokers)

    def stop_broker(self, node_id: int) -> None:
        """Stops a broker as for maintenance: others lead before it ends."""
        self._take_out(node_id).stop()

    def kill_broker(self, node_id: int) -> None:
        """Ends a broker as a crash does (SIGKILL): others lead when its session with ZooKeeper
        has ended."""
        self._take_out(node_id).kill()

    def _take_out(self, node_id: int) -> EmbeddedBroker:
        if node_id not in self._brokers:
            running = ", ".join(map(str, self.broker_ids)) or "none"
            raise InvalidOptionError(f"No broker {node_id} runs here. Running: {running}.")
        return self._brokers.pop(node_id)

    def start_broker(self, node_id: int) -> None:
        """Starts a broker again that was stopped or killed, with its data and at its address."""
        if node_id not in self._wanted:
            raise InvalidOptionError(
                f"This cluster has no broker {node_id}: its brokers are 1 to {len(self._wanted)}."
            )
        if node_id in self._brokers:
            raise RuntimeError(f"Broker {node_id} runs already.")
        zookeeper_connect = self.zookeeper_connect
        assert self._data_dir is not None
        _, _, port = self._addresses.get(node_id, "127.0.0.1:0").rpartition(":")
        broker = EmbeddedBroker(
            self._data_dir / f"broker-{node_id}",
            int(port),
            {
                **self._config,
                "broker.id": str(node_id),
                "zookeeper.connect": zookeeper_connect,
            },
        )
        broker.start()
        self._brokers[node_id] = broker
        self._addresses[node_id] = broker.bootstrap_servers

    def __repr__(self) -> str:
        state = "stopped" if self._zookeeper is None else self.bootstrap_servers
        return f"EmbeddedCluster({state})"


def _defaults(brokers: int) -> dict[str, str]:
    replicas = min(_MOST_REPLICAS, brokers)
    in_sync = max(1, replicas - 1)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "zookeeper.session.timeout.ms": "6000",
    }
