"""Frame headers against kafka-python's own tables and encoders."""

from typing import Any

import pytest
from kafka.errors import KafkaProtocolError
from kafka.protocol.api_header import RequestHeader as OracleRequestHeader
from kafka.protocol.api_header import ResponseClassRegistry

from pyspark_kafkalog.protocol import frames


def every_message() -> Any:
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import kafka.protocol.sasl  # noqa: F401

    return ResponseClassRegistry._response_class_registry.items()


def test_flexible_versions_are_those_of_the_schemas() -> None:
    messages = list(every_message())
    assert len(messages) > 40
    for api_key, message in messages:
        for version in range(message.max_version + 1):
            expected = message.flexible_version_q(version)
            assert frames.is_flexible(api_key, version) == expected, (message.name, version)


@pytest.mark.parametrize("client_id", [None, "", "spark-é"])
@pytest.mark.parametrize(("api_key", "version"), [(0, 3), (0, 9), (18, 0), (18, 3), (3, 12)])
def test_request_header_agrees_with_the_oracle(
    api_key: int, version: int, client_id: str | None
) -> None:
    oracle = OracleRequestHeader(
        request_api_key=api_key,
        request_api_version=version,
        correlation_id=77,
        client_id=client_id,
    ).encode(flexible=frames.is_flexible(api_key, version))
    ours = frames.encode_request_header(api_key, version, 77, client_id)
    assert ours == bytes(oracle)
    header = frames.decode_request_header(memoryview(ours + b"body"))
    assert header == frames.RequestHeader(api_key, version, 77, client_id, len(ours))


def test_api_versions_is_answered_without_tags() -> None:
    assert frames.encode_response_header(18, 4, 5) == b"\0\0\0\5"
    assert frames.encode_response_header(3, 12, 5) == b"\0\0\0\5\0"
    number, rest = frames.decode_response_header(memoryview(b"\0\0\0\5\0xy"), 3, 12)
    assert (number, bytes(rest)) == (5, b"xy")


@pytest.mark.parametrize("version", [3, 12])
def test_a_header_that_is_cut_off_is_refused(version: int) -> None:
    whole = frames.encode_request_header(3, version, 77, "client")
    for size in range(len(whole)):
        with pytest.raises(KafkaProtocolError):
            frames.decode_request_header(memoryview(whole[:size]))
