"""The meta.properties file of a data directory: whose directory this is.

Apache Kafka's, version 1: `node.id`, `cluster.id`, and a `directory.id` of its own. Written when
the directory is first used; a broker with another number, or of another cluster, is turned away
before it harms anything. Called once, at start.
"""

import uuid
from pathlib import Path

from kafka.errors import InconsistentClusterIdError

from broker.config.definition import ConfigError
from broker.log.files import Files
from broker.properties import format_properties, parse_properties
from pyspark_kafkalog.protocol.uuid_text import encode_uuid

FILE_NAME = "meta.properties"


def new_id() -> str:
    """A random id in Kafka's text form; none that begins with a dash."""
    while (text := encode_uuid(uuid.uuid4())).startswith("-"):
        pass
    return text


def read_cluster_id(directory: Path, files: Files) -> str | None:
    """None when the directory was never used."""
    return _read(directory, files).get("cluster.id")


def claim(directory: Path, broker_id: int, cluster_id: str, files: Files) -> None:
    """Marks the directory as this broker's.

    Raises ConfigError when it is another broker's, InconsistentClusterIdError when its cluster is
    another one.
    """
    known = _read(directory, files)
    owner = known.get("node.id", known.get("broker.id", str(broker_id)))
    if owner != str(broker_id):
        raise ConfigError(
            f"{directory} belongs to broker {owner}: set broker.id={owner} or another log.dirs"
        )
    if known.get("cluster.id", cluster_id) != cluster_id:
        raise InconsistentClusterIdError(
            f"{directory} belongs to cluster {known['cluster.id']}, this is {cluster_id}"
        )
    wanted = {
        "version": "1",
        "node.id": str(broker_id),
        "cluster.id": cluster_id,
        "directory.id": known.get("directory.id") or new_id(),
    }
    if not wanted.items() <= known.items():
        text = format_properties(known | wanted)
        files.replace(directory / FILE_NAME, text.encode())


def _read(directory: Path, files: Files) -> dict[str, str]:
    try:
        return parse_properties(files.read(directory / FILE_NAME).decode())
    except FileNotFoundError:
        return {}
