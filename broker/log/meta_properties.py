"""The meta.properties file of a data directory: whose directory this is.

Apache Kafka's, version 1: `node.id`, `cluster.id`, and a `directory.id` of its own; in a cluster
over ZooKeeper version 0, with `broker.id`, as Apache Kafka 3.9 reads no other there. Written when
the directory is first used; a broker with another number, or of another cluster, is turned away
before it harms anything. Called once, at start.
"""

import errno
import uuid
from pathlib import Path

from kafka.errors import InconsistentClusterIdError

from broker.config.definition import ConfigError
from broker.log.files import Files
from pyspark_kafkalog.protocol.properties_text import format_properties, parse_properties
from pyspark_kafkalog.protocol.uuid_text import encode_uuid

FILE_NAME = "meta.properties"


def new_id() -> str:
    """A random id in Kafka's text form; none that begins with a dash."""
    while (text := encode_uuid(uuid.uuid4())).startswith("-"):
        pass
    return text


def read_cluster_id(directory: Path, files: Files) -> str | None:
    """None when the directory was never used. Raises OSError, as `claim` does, also where the file
    is damaged."""
    return _read(directory, files).get("cluster.id")


def claim(
    directory: Path, broker_id: int, cluster_id: str, files: Files, *, is_member: bool = False
) -> None:
    """Marks the directory as this broker's. `is_member`: of a cluster over ZooKeeper.

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
    version, owner_key = ("0", "broker.id") if is_member else ("1", "node.id")
    wanted = {
        "version": version,
        owner_key: str(broker_id),
        "cluster.id": cluster_id,
        "directory.id": known.get("directory.id") or new_id(),
    }
    if not wanted.items() <= known.items():
        kept = {key: value for key, value in known.items() if key not in ("node.id", "broker.id")}
        text = format_properties(kept | wanted)
        files.replace(directory / FILE_NAME, text.encode())


def _read(directory: Path, files: Files) -> dict[str, str]:
    path = directory / FILE_NAME
    try:
        return parse_properties(files.read(path).decode())
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise OSError(errno.EIO, "is damaged", str(path)) from None
