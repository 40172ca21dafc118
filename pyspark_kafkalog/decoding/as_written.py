"""Values in Confluent's wire format as they were written, for who looks at them one by one.

Each value names the schema that it was written with, and is read by that one, so that nothing is
left out or added, as a reader's schema would. Whoever reads a topic as a table has one schema for
all of its values instead (`confluent`, `protobuf`). One thread.
"""

from typing import Any

import pyarrow as pa

from pyspark_kafkalog.decoding.confluent import ConfluentAvroDecoder, Writers
from pyspark_kafkalog.decoding.decoder import BadValueError, Decoder, unframed
from pyspark_kafkalog.decoding.registry import RegistryConfig
from pyspark_kafkalog.errors import MissingExtraError

_MOST_DECODERS = 100
"""Values may name any number of schemas."""


class AsWritten:
    """The values of one registry's schemas."""

    def __init__(self, config: RegistryConfig) -> None:
        self._config = config
        self._writers = Writers(config)
        self._decoders: dict[tuple[int, tuple[int, ...]], Decoder] = {}

    def read(self, value: bytes) -> tuple[str, Any]:
        """The kind of its schema (AVRO, PROTOBUF or JSON), and what `value` holds: Python's values,
        of JSON the text as bytes.

        Raises BadValueError, InvalidSchemaError, MissingExtraError, and SchemaRegistryError where
        the registry does not answer.
        """
        schema_id, rest = unframed(value)
        kind = self._writers.schema(schema_id).kind
        if kind == "JSON":
            return kind, rest
        decoded = self._decoder(schema_id, kind, rest).decode(pa.array([value], pa.binary()))
        if decoded.errors:
            raise BadValueError(decoded.errors[0])
        try:
            return kind, decoded.column[0].as_py()
        except (ValueError, OverflowError) as error:
            raise BadValueError(f"Python has no such value: {error}") from None

    def _decoder(self, schema_id: int, kind: str, rest: bytes) -> Decoder:
        path: tuple[int, ...] = ()
        if kind == "PROTOBUF":
            try:
                from pyspark_kafkalog.decoding import protobuf
            except ImportError as error:
                raise MissingExtraError(
                    "Protobuf values need pip install 'pyspark-kafkalog[protobuf]'"
                ) from error
            path, _ = protobuf.message_path(rest)
        key = schema_id, path
        if key not in self._decoders:
            schema = self._writers.schema(schema_id)
            if len(self._decoders) >= _MOST_DECODERS:
                self._decoders.clear()
            self._decoders[key] = (
                protobuf.open_as_written(self._config, schema, path)
                if kind == "PROTOBUF"
                else ConfluentAvroDecoder(self._config, schema)
            )
        return self._decoders[key]
