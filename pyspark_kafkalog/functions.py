"""Column functions that decode values, in Arrow batches and without a JAR.

`from_avro` and `from_protobuf` are for plain values and close to Spark's own functions of these
names; `from_confluent_avro`, `from_confluent_protobuf` and `from_confluent_json` for Confluent's
wire format against a schema registry. All of them work in batch and streaming queries and over
Spark Connect:

    from pyspark_kafkalog.functions import from_confluent_avro

    df.select(from_confluent_avro("value", "https://registry:8081", subject="orders-value"))

`registry` is its address, or a mapping of options by Confluent's names (`schema.registry.url`,
`basic.auth.user.info`, `ssl.truststore.location`, ...; see `decoding/registry.py`), where secrets
may be references such as `${env:NAME}`. The column's type is that of the reader's schema: `schema`,
or the newest of `subject` when the function is called, which is when the registry is asked for it,
by this process. Executors ask for writers' schemas by their ids.

`mode` (in the options of `from_avro`, as in Spark's) is FAILFAST (the default: a bad value fails
the query with its reason) or PERMISSIVE (it becomes null). Null is null. Which types become which
is said in `decoding/avro_schema.py`, `decoding/protobuf.py` and `decoding/json_type.py`.

Functions raise InvalidOptionError, InvalidSchemaError, SchemaRegistryError or MissingExtraError
where they are called.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from pyspark_kafkalog.decoding.decoder import Decoder
from pyspark_kafkalog.decoding.formats import open_decoder
from pyspark_kafkalog.decoding.room import slices
from pyspark_kafkalog.errors import InvalidOptionError, MalformedValueError

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = [
    "from_avro",
    "from_confluent_avro",
    "from_confluent_json",
    "from_confluent_protobuf",
    "from_protobuf",
]

_URL = "schema.registry.url"
_SUBJECT = "subject"
_MODES = ("FAILFAST", "PERMISSIVE")


def from_avro(
    data: "Column | str", jsonFormatSchema: str, options: Mapping[str, str] | None = None
) -> "Column":
    """Plain Avro values that were written with `jsonFormatSchema`; called as Spark's own.

    `options` are `mode` and `avroSchema`, a later schema to read them with.
    """
    from pyspark_kafkalog.decoding.avro import AvroDecoder

    given = {name.lower(): value for name, value in (options or {}).items()}
    unknown = given.keys() - {"mode", "avroschema"}
    if unknown:
        raise InvalidOptionError(
            f"from_avro knows the options mode and avroSchema, not {', '.join(sorted(unknown))}."
        )
    decoder = AvroDecoder(given.get("avroschema", jsonFormatSchema), jsonFormatSchema)
    return _decoded("from_avro", data, decoder, given.get("mode", _MODES[0]))


def from_protobuf(
    data: "Column | str", schema: str, *, message: str | None = None, mode: str = "FAILFAST"
) -> "Column":
    """Plain Protobuf values: `message`, or the first, of the text of a .proto file."""
    decoder = open_decoder("protobuf", schema, message=message)
    return _decoded("from_protobuf", data, decoder, mode)


def from_confluent_avro(
    data: "Column | str",
    registry: str | Mapping[str, str],
    *,
    subject: str | None = None,
    schema: str | None = None,
    mode: str = "FAILFAST",
) -> "Column":
    """Avro values in Confluent's wire format; each is resolved from its writer's schema."""
    decoder = open_decoder("avro", schema, _options(registry, subject))
    return _decoded("from_confluent_avro", data, decoder, mode)


def from_confluent_json(
    data: "Column | str",
    registry: str | Mapping[str, str],
    *,
    subject: str | None = None,
    schema: str | None = None,
    mode: str = "FAILFAST",
) -> "Column":
    """JSON values in Confluent's wire format, by a JSON Schema."""
    decoder = open_decoder("json", schema, _options(registry, subject))
    return _decoded("from_confluent_json", data, decoder, mode)


def from_confluent_protobuf(
    data: "Column | str",
    registry: str | Mapping[str, str],
    *,
    subject: str | None = None,
    schema: str | None = None,
    message: str | None = None,
    mode: str = "FAILFAST",
) -> "Column":
    """Protobuf values in Confluent's wire format: `message`, or the first, of the schema."""
    decoder = open_decoder("protobuf", schema, _options(registry, subject), message=message)
    return _decoded("from_confluent_protobuf", data, decoder, mode)


def _options(registry: str | Mapping[str, str], subject: str | None) -> Mapping[str, str]:
    options = {_URL: registry} if isinstance(registry, str) else dict(registry)
    return options if subject is None else {**options, _SUBJECT: subject}


def _decoded(name: str, data: "Column | str", decoder: Decoder, mode: str) -> "Column":
    if mode.upper() not in _MODES:
        raise InvalidOptionError(f"mode is {mode!r}. Give one of {', '.join(_MODES)}.")
    decode = _batches_function(decoder, fails=mode.upper() == "FAILFAST")
    decode.__name__ = name
    # Its stubs do not know that the kind of function can be read off its type hints.
    make: Any = arrow_udf
    column: Column = make(decode, from_arrow_type(decoder.type))(data)
    return column


def _batches_function(
    decoder: Decoder, *, fails: bool
) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    """Of batches, since what one of them decodes to may be more than should be held at a time."""

    def decode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            values = batch if pa.types.is_binary(batch.type) else batch.cast(pa.binary())
            for start, count in slices(values, decoder.type):
                decoded = decoder.decode(values.slice(start, count))
                if fails and decoded.errors:
                    reason = decoded.errors[min(decoded.errors)]
                    raise MalformedValueError(
                        f"{len(decoded.errors)} of {count} values cannot be decoded, the first: "
                        f"{reason}. With mode='PERMISSIVE' they are null."
                    )
                yield decoded.column

    return decode
