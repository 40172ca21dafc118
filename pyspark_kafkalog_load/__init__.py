"""`format("kafkalog_load")`: the sink of pyspark_kafkalog that loads rows into a warehouse.

Spark registers one `DefaultSource` of each top-level module whose name begins with `pyspark_`, so a
second format needs a second module. It holds nothing else; what it names is loaded on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_kafkalog.warehouse.datasource import LoadSink as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_kafkalog.warehouse.datasource import LoadSink

    return LoadSink
