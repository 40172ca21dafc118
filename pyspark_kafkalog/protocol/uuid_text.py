"""Ids as Kafka writes them where there is text: URL-safe base64 without padding, 22 characters.

Topic ids in `partition.metadata` and in the metadata tree, directory and cluster ids. Pure
functions: any thread.
"""

import base64
import binascii
import uuid


def encode_uuid(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    """ValueError when it is no id."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except (binascii.Error, ValueError):
        raise ValueError(f"{text!r} is no id") from None
