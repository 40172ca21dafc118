"""Values that are bytes, or text in UTF-8, and nothing else. See `decoder.py` for the rules."""

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from pyspark_kafkalog.decoding.decoder import Decoded


@dataclass(frozen=True, slots=True)
class BinaryDecoder:
    """Leaves values as they are."""

    type: ClassVar[pa.DataType] = pa.binary()

    def decode(self, values: pa.Array) -> Decoded:
        return Decoded(values)


@dataclass(frozen=True, slots=True)
class StringDecoder:
    """Text in UTF-8; anything else is an error."""

    type: ClassVar[pa.DataType] = pa.string()

    def decode(self, values: pa.Array) -> Decoded:
        try:
            return Decoded(values.cast(pa.string()))
        except pa.ArrowInvalid:
            pass
        rows: list[str | None] = []
        errors = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                rows.append(None if value is None else value.decode())
            except UnicodeDecodeError as error:
                rows.append(None)
                errors[row] = f"not valid UTF-8: {error.reason} at byte {error.start}"
        return Decoded(pa.array(rows, pa.string()), errors)
