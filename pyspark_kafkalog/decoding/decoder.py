"""What turns the values of records into Arrow columns: what all decoders share.

A Decoder is made on the driver, where what it needs is looked up and checked, and travels pickled
to tasks, where one thread uses it. It takes values in batches of any size and never raises
for what a value holds: a bad value is null in the column and named in `Decoded.errors`. It raises
where nothing could be decoded for reasons outside of the values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

FRAME_BYTES = 5
"""Confluent's wire format begins with a zero byte and the schema's id, int32 in network order."""


class BadValueError(Exception):
    """A value is not what its schema says. Inside this package only: users see Decoded.errors."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded batch: as many rows as there were values.

    `column` is null for null and for what could not be decoded; `errors` says why, by row, for the
    latter alone.
    """

    column: pa.Array
    errors: Mapping[int, str] = field(default_factory=dict)


def unframed(value: bytes) -> tuple[int, bytes]:
    """The schema's id and the rest of a value in Confluent's wire format; raises BadValueError."""
    if len(value) < FRAME_BYTES:
        raise BadValueError(
            f"{len(value)} bytes: too short for Confluent's magic byte and schema id"
        )
    if value[0]:
        raise BadValueError(f"the magic byte is {value[0]}, not 0 as Confluent's is")
    return int.from_bytes(value[1:FRAME_BYTES], "big"), value[FRAME_BYTES:]


class Decoder(Protocol):
    """Values of one format to Arrow. Picklable; one thread."""

    @property
    def type(self) -> pa.DataType:
        """What values are decoded to; all but the keys of maps is nullable."""

    def decode(self, values: pa.Array) -> Decoded:
        """Decodes an array of type binary."""
