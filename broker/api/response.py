"""A handler's answer as a value: how it becomes the parts that are sent, and which errors it tells.

A Response is a message of `kafka.protocol`, or the ProduceResponse or FetchResponse of
`pyspark_kafkalog.protocol`; None where the client wants no answer. Pure functions on these: any
thread.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator
from typing import Any, Final, TypeAlias

from kafka.protocol.data_container import DataContainer

from broker.network.send import Part
from pyspark_kafkalog.protocol.fetch import FetchResponse, encode_fetch_response
from pyspark_kafkalog.protocol.produce import ProduceResponse, encode_produce_response

# `kafka.protocol` has no types.
Response: TypeAlias = Any
# A coroutine becomes a task; a future is cancelled when its connection closes.
Outcome: TypeAlias = (
    "Response | Coroutine[Any, Any, Response] | asyncio.Future[Response] | CarriedOut"
)

# The second is AddPartitionsToTxn's. A topic's `topic_config_error_code` tells why its configs are
# left out of an answer without error, and is not counted by Kafka either.
_ERROR_CODES: Final = frozenset({"error_code", "partition_error_code"})


class CarriedOut:
    """The request is carried out, and waits for its answer alone: others of its API that came
    behind it on its connection are handled meanwhile."""

    __slots__ = ("response",)

    def __init__(self, response: Coroutine[Any, Any, Response]) -> None:
        self.response = response

    def __await__(self) -> Generator[Any, Any, Response]:
        return self.response.__await__()


def encode_response(response: Response, version: int) -> list[Part]:
    """The answer's body in parts; records stay where they lie."""
    if type(response) is ProduceResponse:
        return [encode_produce_response(response, version)]  # type: ignore[list-item]
    if type(response) is FetchResponse:
        return encode_fetch_response(response, version)  # type: ignore[return-value]
    return [response.encode(version=version)]


def is_response(outcome: Outcome) -> bool:
    """Whether a handler has answered at once; else its answer is awaited."""
    return outcome is None or isinstance(outcome, (ProduceResponse, FetchResponse, DataContainer))


def count_errors(response: Response, counts: Counter[int]) -> None:
    """Adds each error that the client is told, at the top and in the parts."""
    if type(response) is ProduceResponse:
        for produced in response.partitions:
            if produced.error_code:
                counts[produced.error_code] += 1
    elif type(response) is FetchResponse:
        if response.error_code:
            counts[response.error_code] += 1
        for found in response.partitions:
            if found.error_code:
                counts[found.error_code] += 1
    else:
        counts.update(_error_codes_in(response))


def _error_codes_in(container: Any) -> Iterator[int]:
    container_class: Any = type(container)
    codes, structs, arrays = _fields_with_errors(container_class)
    for name in codes:
        if code := getattr(container, name):
            yield code
    for name in structs:
        if (inner := getattr(container, name)) is not None:
            yield from _error_codes_in(inner)
    for name in arrays:
        for inner in getattr(container, name) or ():
            yield from _error_codes_in(inner)


@functools.cache
def _fields_with_errors(
    container_class: Any,
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Of the class: its error codes, its structures, and its arrays of structures."""
    by_name: dict[str, Any] = container_class.fields
    fields = by_name.items()
    return (
        tuple(name for name in by_name if name in _ERROR_CODES),
        tuple(name for name, field in fields if field.is_struct()),
        tuple(name for name, field in fields if field.is_struct_array()),
    )
