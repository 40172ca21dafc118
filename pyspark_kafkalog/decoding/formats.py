"""How decoders are named: `open_decoder` is the door, and says which formats there are.

A decoder with a writer's schema apart from the reader's is made by `avro.py` itself. Formats are
imported when they are asked for.
"""

from collections.abc import Callable, Mapping

from pyspark_kafkalog.decoding.decoder import Decoder
from pyspark_kafkalog.errors import InvalidOptionError, MissingExtraError


def open_decoder(
    value_format: str,
    schema: str | None = None,
    registry: Mapping[str, str] | None = None,
    *,
    message: str | None = None,
) -> Decoder:
    """The decoder of `value_format`: binary, string, json, avro or protobuf.

    `schema` is the reader's: of json a DDL such as `order BIGINT, tags ARRAY<STRING>` or a JSON
    Schema, of avro an Avro schema in JSON, of protobuf the text of a .proto file, of which it is
    `message` or the first.

    With `registry`, whose options `registry.py` names, values are in Confluent's wire format; its
    option `subject` says whose newest schema is the reader's where `schema` is not given, and
    `message` the same as the argument.

    Raises InvalidOptionError, InvalidSchemaError for a schema that cannot be used,
    SchemaRegistryError, and MissingExtraError.
    """
    if value_format not in FORMATS:
        raise InvalidOptionError(
            f"value_format is {value_format!r}. Give one of {', '.join(FORMATS)}."
        )
    if value_format == "protobuf":
        return _protobuf(schema, registry, message or "")
    if message is not None:
        raise InvalidOptionError(f"value_format {value_format} has no messages to choose from.")
    return _OPENERS[value_format](schema, registry)


def _binary(schema: str | None, registry: Mapping[str, str] | None) -> Decoder:
    from pyspark_kafkalog.decoding.plain import BinaryDecoder

    _refuse_schema("binary", schema, registry)
    return BinaryDecoder()


def _string(schema: str | None, registry: Mapping[str, str] | None) -> Decoder:
    from pyspark_kafkalog.decoding.plain import StringDecoder

    _refuse_schema("string", schema, registry)
    return StringDecoder()


def _json(schema: str | None, registry: Mapping[str, str] | None) -> Decoder:
    from pyspark_kafkalog.decoding.confluent import open_confluent_json
    from pyspark_kafkalog.decoding.json_rows import JsonDecoder

    if registry is not None:
        return open_confluent_json(schema, registry)
    return JsonDecoder(_needed("json", schema))


def _avro(schema: str | None, registry: Mapping[str, str] | None) -> Decoder:
    from pyspark_kafkalog.decoding.avro import AvroDecoder
    from pyspark_kafkalog.decoding.confluent import open_confluent_avro

    if registry is not None:
        return open_confluent_avro(schema, registry)
    schema = _needed("avro", schema)
    return AvroDecoder(schema, schema)


def _protobuf(schema: str | None, registry: Mapping[str, str] | None, message: str) -> Decoder:
    try:
        from pyspark_kafkalog.decoding.protobuf import open_confluent_protobuf, open_protobuf
    except ImportError as error:
        raise MissingExtraError(
            f"value_format protobuf needs {(error.name or str(error))}, which is not installed: "
            "pip install 'pyspark-kafkalog[protobuf]'"
        ) from error
    if registry is not None:
        return open_confluent_protobuf(schema, registry, message)
    return open_protobuf(_needed("protobuf", schema), message)


def _needed(value_format: str, schema: str | None) -> str:
    if schema is None:
        raise InvalidOptionError(
            f"value_format {value_format} needs a schema: give value_schema, or registry."
        )
    return schema


def _refuse_schema(
    value_format: str, schema: str | None, registry: Mapping[str, str] | None
) -> None:
    if schema is not None or registry is not None:
        raise InvalidOptionError(
            f"value_format {value_format} has no schema: leave the schema and the registry out, or "
            "give the format that the schema is for."
        )


_OPENERS: Mapping[str, Callable[[str | None, Mapping[str, str] | None], Decoder]] = {
    "binary": _binary,
    "string": _string,
    "json": _json,
    "avro": _avro,
}
FORMATS = (*_OPENERS, "protobuf")
"""What `value_format` may be."""
