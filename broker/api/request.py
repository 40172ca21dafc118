"""What an API's handler is given, a request; and how an API is registered.

Owns: the decoding of requests by `kafka.protocol`, made safe for bytes from anyone: what those
decoders do not check (numbers and arrays without end, a null where none may be) is checked here.
Called by: the event loop's thread only.
"""

import asyncio
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kafka.protocol.data_container import DataContainer

from broker.api.caller import ANONYMOUS, Caller
from broker.api.response import Outcome
from broker.network.connection import CloseConnection
from broker.network.peer import Peer
from pyspark_kafkalog.protocol.frames import RequestHeader

T = TypeVar("T")
C = TypeVar("C")
"""A value of `broker.api.contexts`."""

# A request that is no bulk data: ten thousand topics of usual names fit. Both bounds keep the event
# loop's others from waiting more than some tenths of a second for one request.
MAX_CONTROL_REQUEST_BYTES = 512 * 1024
MAX_ELEMENTS = 20_000
# Of what controllers say of all partitions of a cluster, which only brokers are sent.
MAX_BROKER_REQUEST_BYTES = 64 << 20
MAX_BROKER_ELEMENTS = 4_000_000
# kafka.protocol reads a number for as long as its bytes say "more follows", in quadratic time.
_LONGEST_RUN = 4096
_HIGH_BIT = bytes(byte >> 7 for byte in range(256))
_RUN = b"\x01" * _LONGEST_RUN

# What decoding nonsense raises in kafka.protocol's generated code.
_DECODE_ERRORS = (
    struct.error,
    IndexError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    AttributeError,
)


@dataclass(frozen=True, slots=True)
class ApiRange:
    """An API and the versions of it that this broker speaks."""

    key: int
    min_version: int
    max_version: int


@dataclass(slots=True)  # not frozen: that takes three times as long to make
class Request:
    """One request: `body` is what follows the header, a writable view of the received frame."""

    header: RequestHeader
    body: memoryview
    peer: Peer

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def caller(self) -> Caller:
        """Made for those who ask: most requests do not care who sent them."""
        peer = self.peer
        return Caller(peer.listener, ANONYMOUS, self.header.client_id or "", peer.address)

    def decode(self, message_class: Any, max_elements: int = MAX_ELEMENTS) -> Any:
        """The body as a message of `kafka.protocol`. Raises CloseConnection for nonsense."""
        body = self.body
        if len(body) > _LONGEST_RUN and _RUN in bytes(body).translate(_HIGH_BIT):
            raise CloseConnection(f"malformed {message_class.__name__}")
        try:
            message = message_class.decode(body, version=self.version)
        except _DECODE_ERRORS as error:
            raise CloseConnection(f"malformed {message_class.__name__}: {error}") from None
        _check(message, self.version, max_elements)
        return message


@dataclass(frozen=True, slots=True)
class Api(Generic[C]):
    """One API: which versions of it are spoken, by whom it is answered, and what of the broker that
    one is given."""

    key: int
    min_version: int
    max_version: int
    handle: Callable[[Request, C], Outcome]
    context: type[C]
    max_request_bytes: int = MAX_CONTROL_REQUEST_BYTES

    @property
    def name(self) -> str:
        """As Kafka calls it: each API has a file of its name."""
        words = self.handle.__module__.rpartition(".")[2].split("_")
        return "".join(word.capitalize() for word in words)

    @property
    def range(self) -> ApiRange:
        return ApiRange(self.key, self.min_version, self.max_version)


def _check(message: Any, version: int, max_elements: int) -> None:
    """Raises CloseConnection for too many elements, and for a null where none may be."""
    count = 0
    containers = [message]
    while containers:
        container = containers.pop()
        container_class: Any = type(container)
        not_null, structs, arrays = _fields_of(container_class, version)
        for name in not_null:
            if getattr(container, name) is None:
                raise CloseConnection(f"malformed {type(message).__name__}: {name} is null")
        containers += (each for name in structs if (each := getattr(container, name)) is not None)
        for name in arrays:
            array = getattr(container, name)
            if not array:
                continue
            count += len(array)
            if count > max_elements:
                raise CloseConnection(
                    f"{type(message).__name__} of more than {max_elements} elements"
                )
            if isinstance(array[0], DataContainer):
                containers += array
            elif None in array:
                raise CloseConnection(f"malformed {type(message).__name__}: null in {name}")


@functools.cache
def _fields_of(container_class: Any, version: int) -> tuple[tuple[str, ...], ...]:
    """The fields that may not be null in this version, the structures, and the arrays."""
    fields = {
        name: field
        for name, field in container_class.fields.items()
        if field.for_version_q(version)
        and (
            field.is_array()
            or field.is_struct()
            or field.type_str in ("string", "bytes", "records")
        )
    }
    not_null = (name for name, field in fields.items() if not field.nullable_for_version_q(version))
    return (
        tuple(not_null),
        tuple(name for name, field in fields.items() if field.is_struct()),
        tuple(name for name, field in fields.items() if field.is_array()),
    )


def settle(answer: "asyncio.Future[T]", result: T) -> None:
    """Ends a wait, unless who waited has gone."""
    if not answer.done():
        answer.set_result(result)
