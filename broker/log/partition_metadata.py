"""The partition.metadata file in a log's directory: which topic the log belongs to, by id.

Apache Kafka's text format: `version: 0` and `topic_id: ` with the id in Kafka's text form. Written
once, when the log is created. Any thread.
"""

import uuid
from pathlib import Path

from broker.log.files import Files
from pyspark_kafkalog.protocol.uuid_text import decode_uuid, encode_uuid

FILE_NAME = "partition.metadata"


def read_topic_id(directory: Path, files: Files) -> uuid.UUID | None:
    """None when there is no file, or a damaged one."""
    try:
        text = files.read(directory / FILE_NAME).decode()
        fields = dict(line.split(": ", 1) for line in text.splitlines())
        return decode_uuid(fields["topic_id"])
    except (FileNotFoundError, KeyError, ValueError):
        return None


def write_topic_id(directory: Path, topic_id: uuid.UUID, files: Files) -> None:
    text = f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n"
    files.replace(directory / FILE_NAME, text.encode())


def topic_id_written_ms(directory: Path, files: Files) -> int:
    """When. A copy may be younger than what it is a copy of. Raises OSError."""
    return files.modified_ms(directory / FILE_NAME)
