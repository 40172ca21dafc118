"""What becomes of records on their way into a warehouse, as the user of a load says it.

Made on the driver before anything is asked of a broker; reads a schema registry if there is one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pyspark_kafkalog.decoding.registry import SUBJECT
from pyspark_kafkalog.source.options import parse_bytes
from pyspark_kafkalog.warehouse.layout import FILE_BYTES, Layout, make_layout
from pyspark_kafkalog.warehouse.transformation import Batches, takes_batches
from pyspark_kafkalog.warehouse.values import Values, open_values

if TYPE_CHECKING:
    from pyspark_kafkalog.warehouse.dataframe import Frames


@dataclass(frozen=True, slots=True)
class Shape:
    """How values are decoded, rows changed and files laid out. `batches` and `query` are the two
    kinds of a transformation, of Arrow batches or of DataFrames."""

    layout: Layout
    values: Values | None = None
    batches: Batches | None = None
    query: "Frames | None" = None


def make_shape(
    options: Mapping[str, str],
    transform: "Batches | Frames | None" = None,
    value_format: str = "binary",
    value_schema: str | None = None,
    registry: Mapping[str, str] | None = None,
    on_error: str = "fail",
    dead_letter_topic: str | None = None,
    partition_by: str | Sequence[str] = (),
    sort_by: str | Sequence[str] = (),
    compression: str = "zstd",
    target_file_bytes: int | str = FILE_BYTES,
) -> Shape:
    """The arguments are those of `load`. Without a schema and a subject, a registry is asked for
    that of the one topic which `options` subscribe to, TOPIC-value.

    Raises InvalidOptionError, InvalidSchemaError, SchemaRegistryError.
    """
    file_bytes = parse_bytes("target_file_bytes", str(target_file_bytes))
    layout = make_layout(partition_by, sort_by, compression, file_bytes)
    is_of_batches = transform is not None and takes_batches(transform)
    if registry is not None and value_schema is None:
        registry = _with_subject(registry, options)
    values = open_values(value_format, value_schema, registry, on_error, dead_letter_topic)
    if is_of_batches:
        return Shape(layout, values, batches=cast("Batches", transform))
    return Shape(layout, values, query=cast("Frames | None", transform))


def _with_subject(registry: Mapping[str, str], options: Mapping[str, str]) -> Mapping[str, str]:
    topics = {name.lower(): text for name, text in options.items()}.get("subscribe", "").split(",")
    if len(topics) != 1 or not topics[0].strip() or SUBJECT in map(str.lower, registry):
        return registry
    return {**registry, SUBJECT: f"{topics[0].strip()}-value"}
