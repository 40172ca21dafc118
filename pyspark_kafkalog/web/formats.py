"""Figures as the page writes them, short enough for a table. Pure functions."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark_kafkalog.client.cluster import PartitionMetadata

NOTHING = "\u2013"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(value: int | None) -> str:
    """12 345 678, with spaces that do not break."""
    return NOTHING if value is None else f"{value:,}".replace(",", "\u202f")


def size(value: float | None) -> str:
    """Of bytes: 12.3 MiB."""
    if value is None:
        return NOTHING
    unit = 0
    while value >= 1000 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or value >= 100 else 1
    return f"{value:.{digits}f}\u202f{_UNITS[unit]}"


def rate(value: float | None) -> str:
    """A second: 0, 0.4, 12, 3 456."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if 0 < value < 10 else number(round(value))


def size_rate(value: float | None) -> str:
    return NOTHING if value is None else f"{size(value)}/s"


def is_unwell(partition: PartitionMetadata) -> bool:
    """Without a leader, or with replicas that are not in sync."""
    return partition.leader < 0 or len(partition.isr) < len(partition.replicas)


def health(partitions: Iterable[PartitionMetadata]) -> Mapping[str, int]:
    """How many partitions there are, and how many are not well."""
    count = offline = under = 0
    for each in partitions:
        count += 1
        offline += each.leader < 0
        under += each.leader >= 0 and len(each.isr) < len(each.replicas)
    return {"partitions": count, "offline": offline, "under_replicated": under}


FILTERS: Mapping[str, Callable[[Any], Any]] = {
    "number": number,
    "size": size,
    "rate": rate,
    "size_rate": size_rate,
    "health": health,
}
