"""A Delta table at the place where it lies, as deltalake opens it."""

from collections.abc import Sequence

from deltalake import DeltaTable, Schema

from pyspark_kafkalog.warehouse.targets.table_place import TablePlace

LOG = "_delta_log"
"""Where a table has its log."""


def open_table(place: TablePlace) -> DeltaTable:
    """In its newest version. Raises TableNotFoundError, and what else deltalake raises."""
    return DeltaTable(place.uri, storage_options=_options(place))


def create_table(place: TablePlace, schema: Schema, partition_by: Sequence[str]) -> DeltaTable:
    """Raises DeltaError or OSError where another one was faster."""
    return DeltaTable.create(
        place.uri,
        schema,
        mode="error",
        partition_by=list(partition_by),
        storage_options=_options(place),
    )


def _options(place: TablePlace) -> dict[str, str] | None:
    options = place.options()
    return None if options is None else dict(options)
