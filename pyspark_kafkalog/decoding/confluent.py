"""Values in Confluent's wire format: a zero byte, the id of the writer's schema, then the value.

The reader's schema is the one that is given, or the newest of a subject when the decoder is made: a
column keeps its type, whatever is registered later. Writers' schemas are asked for by id when a
value names them, in the task, once for each process. An id that the registry does not know, or
whose schema can never be read, is the error of its rows; a registry that does not answer is the
task's, as no value is at fault.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.decoding.avro import AvroReader
from pyspark_kafkalog.decoding.avro_rows import Refuse
from pyspark_kafkalog.decoding.avro_schema import AvroType, parse_avro_schema
from pyspark_kafkalog.decoding.decoder import BadValueError, Decoded, Decoder
from pyspark_kafkalog.decoding.json_rows import JsonDecoder
from pyspark_kafkalog.decoding.registry import (
    SUBJECT,
    NotRegisteredError,
    RegisteredSchema,
    RegistryConfig,
    decoder_option,
    latest_schema,
    schema_by_id,
)
from pyspark_kafkalog.errors import InvalidOptionError, InvalidSchemaError

MOST_UNKNOWN_IDS = 100_000
"""A decoder remembers so many at most, and asks anew for others: values may name any number."""

_LARGEST_ID = (1 << 31) - 1
"""Registries count in int32; some answer what is no such number as if they were out of order."""


def open_confluent_avro(schema: str | None, registry: Mapping[str, str]) -> Decoder:
    config, reader = reader_schema("AVRO", schema, registry)
    return ConfluentAvroDecoder(config, reader)


def open_confluent_json(schema: str | None, registry: Mapping[str, str]) -> Decoder:
    _, reader = reader_schema("JSON", schema, registry)
    return JsonDecoder(reader.text, reader.references, framed=True)


def reader_schema(
    kind: str, schema: str | None, registry: Mapping[str, str]
) -> tuple[RegistryConfig, RegisteredSchema]:
    """The schema to read with. Raises InvalidOptionError, SchemaRegistryError."""
    config = RegistryConfig.from_options(registry)
    if schema is not None:
        return config, RegisteredSchema(0, kind, schema)
    subject = decoder_option(registry, SUBJECT)
    if subject is None:
        raise InvalidOptionError(
            "the reader's schema is missing: give the schema, or the option subject (by "
            "convention TOPIC-value), whose newest schema is taken."
        )
    found = latest_schema(config, subject)
    if found.kind != kind:
        raise InvalidOptionError(
            f"the schema of subject {subject!r} is {found.kind}, but {kind} was asked for."
        )
    return config, found


@dataclass(slots=True)
class Writers:
    """The schemas that values were written with, by id: of one kind, or of any. One thread."""

    config: RegistryConfig
    kind: str | None = None
    _unknown: set[int] = field(default_factory=set)

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Raises BadValueError for an id that names no schema of the kind; SchemaRegistryError."""
        if schema_id <= _LARGEST_ID and schema_id not in self._unknown:
            try:
                found = schema_by_id(self.config, schema_id)
            except NotRegisteredError:
                if len(self._unknown) >= MOST_UNKNOWN_IDS:
                    self._unknown.clear()
                self._unknown.add(schema_id)
            else:
                if self.kind not in (None, found.kind):
                    raise BadValueError(f"schema {schema_id} is {found.kind}, not {self.kind}")
                return found
        raise BadValueError(f"the registry has no schema {schema_id}")


@dataclass(slots=True)
class ConfluentAvroDecoder:
    """Avro whose writers' schemas are in a registry, read as `reader` by Avro's rules."""

    config: RegistryConfig
    reader: RegisteredSchema
    _reader: AvroReader = field(init=False, repr=False, compare=False)
    _writers: Writers = field(init=False, repr=False, compare=False)
    _steps: dict[int, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._reader = AvroReader.of(_avro_type(self.reader))
        self._writers = Writers(self.config, "AVRO")
        self._steps = {}

    def __reduce__(self) -> tuple[type["ConfluentAvroDecoder"], tuple[Any, ...]]:
        return ConfluentAvroDecoder, (self.config, self.reader)

    @property
    def type(self) -> pa.DataType:
        return self._reader.type

    def decode(self, values: pa.Array) -> Decoded:
        return self._reader.read(values, None, self._step)

    def _step(self, schema_id: int) -> Any:
        step = self._steps.get(schema_id)
        if step is None:
            schema = self._writers.schema(schema_id)
            try:
                step = self._reader.step_for(_avro_type(schema), whole=True)
            except InvalidSchemaError as error:
                step = Refuse(f"schema {schema_id}: {error}")
            self._steps[schema_id] = step
        return step


def _avro_type(schema: RegisteredSchema) -> AvroType:
    return parse_avro_schema(schema.text, [text for _, text in schema.references])
