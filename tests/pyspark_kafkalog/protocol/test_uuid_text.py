"""Ids in Kafka's text form."""

import uuid

import pytest

from pyspark_kafkalog.protocol.uuid_text import decode_uuid, encode_uuid


def test_ids_are_written_as_kafka_writes_them() -> None:
    # From a meta.properties of Apache Kafka 4.3: 16 bytes in URL-safe base64 without padding.
    text = "kL0gPeerNode0000000001"
    assert encode_uuid(decode_uuid(text)) == text[:-1] + "w"
    value = uuid.uuid4()
    assert decode_uuid(encode_uuid(value)) == value


@pytest.mark.parametrize("text", ["", "x", "kL0gPeerNode00000000011", "kL0g/eerNode000000000é"])
def test_what_is_no_id_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no id"):
        decode_uuid(text)
