"""Lets Spark find `format("kafkalog_load")`: it takes a `DefaultSource` of each module `pyspark_*`.

Imported by Spark's planning process alone.
"""

from pyspark_kafkalog.warehouse.datasource import LoadSink as DefaultSource

__all__ = ["DefaultSource"]
