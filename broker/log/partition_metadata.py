"""The partition.metadata file in a log's directory: which topic the log belongs to, by id.

Apache Kafka's text format: `version: 0` and `topic_id: ` with the 16 bytes of the id in URL-safe
base64 without padding. Written once, when the log is created. Any thread.
"""

import base64
import binascii
import uuid
from pathlib import Path

from broker.log.files import Files

FILE_NAME = "partition.metadata"


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """Kafka's text form of an id: 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(text: str) -> uuid.UUID:
    """ValueError when it is no id."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except (binascii.Error, ValueError):
        raise ValueError(f"{text!r} is no topic id") from None


def read_topic_id(directory: Path, files: Files) -> uuid.UUID | None:
    """None when there is no file, or a damaged one."""
    try:
        text = files.read(directory / FILE_NAME).decode()
        fields = dict(line.split(": ", 1) for line in text.splitlines())
        return decode_topic_id(fields["topic_id"])
    except (FileNotFoundError, KeyError, ValueError):
        return None


def write_topic_id(directory: Path, topic_id: uuid.UUID, files: Files) -> None:
    text = f"version: 0\ntopic_id: {encode_topic_id(topic_id)}\n"
    files.replace(directory / FILE_NAME, text.encode())
