"""Iceberg's own Kafka Connect sink as a child process, and a catalog that our loads can use, too.

Its jars lie in `$KAFKALOG_PEERS/iceberg-connect` (`make .peers/iceberg-connect`). The catalog is
one of SQLite, which Iceberg's JdbcCatalog and pyiceberg's SqlCatalog keep in the same tables; files
lie in a directory. The sink has several connections to it, so it opens it with SQLite's write-ahead
log: without, its own readers kept its coordinator from committing ("database is locked").
"""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from tests.support.jvm import PEERS

JARS = PEERS / "iceberg-connect"
# As bin/connect-standalone.sh and bin/kafka-run-class.sh of Apache Kafka set them.
JAVA_OPTIONS = (
    *("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
_CATALOG, _NAMESPACE = "kafkalog", "lake"
_TRANSFORMS = "org.apache.kafka.connect.transforms"
_BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
PLACED = {
    "transforms": "place",
    "transforms.place.type": f"{_TRANSFORMS}.InsertField$Value",
    "transforms.place.topic.field": "topic",
    "transforms.place.partition.field": "partition",
    "transforms.place.offset.field": "offset",
    "transforms.place.timestamp.field": "timestamp",
}
"""Columns that say where a row comes from, as our loads have them."""
AS_BYTES = {
    **PLACED,
    "value.converter": _BYTES,
    "transforms": "hoist,place",
    "transforms.hoist.type": f"{_TRANSFORMS}.HoistField$Value",
    "transforms.hoist.field": "value",
}
"""The same, and a column of the values as they are."""


class Lake:
    """A catalog and a warehouse in a folder."""

    def __init__(self, folder: Path) -> None:
        self._database, self._warehouse = folder / "catalog.db", folder / "warehouse"
        self._catalog = SqlCatalog(
            _CATALOG, uri=f"sqlite:///{self._database}", warehouse=f"file://{self._warehouse}"
        )
        self._catalog.create_namespace(_NAMESPACE)

    def create(self, name: str, schema: Schema) -> None:
        self._catalog.create_table(f"{_NAMESPACE}.{name}", schema)

    def has(self, name: str) -> bool:
        return self._catalog.table_exists(f"{_NAMESPACE}.{name}")

    def table(self, name: str) -> Table:
        return self._catalog.load_table(f"{_NAMESPACE}.{name}")

    def target(self, name: str) -> str:
        """A table, as our loads are told of it."""
        place = f"uri=sqlite:///{self._database}&warehouse=file://{self._warehouse}"
        return f"iceberg:{_NAMESPACE}.{name}?{place}"

    def of_sink(self, name: str) -> dict[str, str]:
        """A table, as the sink is told of it."""
        database = f"{self._database}?journal_mode=WAL&busy_timeout=30000"
        return {
            "iceberg.tables": f"{_NAMESPACE}.{name}",
            "iceberg.catalog": _CATALOG,
            "iceberg.catalog.type": "jdbc",
            "iceberg.catalog.uri": f"jdbc:sqlite:{database}",
            "iceberg.catalog.warehouse": f"file://{self._warehouse}",
        }


class IcebergSink:
    """A standalone worker of Kafka Connect with one sink for a topic; a context manager.

    `properties` are the connector's, beside its name, class and topics; its log lies in `folder`.
    It may be killed and started again, and goes on where its consumer group is.
    """

    def __init__(
        self,
        folder: Path,
        servers: str,
        topic: str,
        properties: Mapping[str, str],
        java_options: Sequence[str] = JAVA_OPTIONS,
    ) -> None:
        self.log = folder / "connect.log"
        self._java = ["java", *java_options, "-cp", f"{JARS}/*"]
        worker = {
            "bootstrap.servers": servers,
            "key.converter": _BYTES,
            "value.converter": _BYTES,
            "offset.storage.file.filename": str(folder / "connect.offsets"),
            # A task that waits for records looks at the control topic no more often than that.
            "offset.flush.interval.ms": "1000",
            "listeners": "HTTP://127.0.0.1:0",
            # Else it looks for plugins in all classes of the jars.
            "plugin.discovery": "service_load",
        }
        connector = {
            "name": f"to-iceberg-{topic}",
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "topics": topic,
            **properties,
        }
        self._files = folder / "worker.properties", folder / "connector.properties"
        for path, given in zip(self._files, (worker, connector), strict=True):
            path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "IcebergSink":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = [*self._java, main, *map(str, self._files)]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(60)
