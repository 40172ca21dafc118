"""What of Spark is in a process that it started for Python, and is in our way. Light to import.

Any process may ask: in one that a user started nothing is found, and nothing changed.
"""

import sys
from typing import Any

from pyspark import accumulators
from pyspark.sql.datasource import DataSource

from pyspark_kafkalog.protocol.kafka_package import leave_unopened

_PROFILERS = (-1, -2)
"""The numbers of their accumulators, in two formats."""


def is_worker() -> bool:
    """Whether Spark started this process, to plan or for tasks."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def forget_idle_profilers() -> None:
    """Takes off the profilers of data sources that Spark has registered and not switched on.

    PySpark sends home what they found, nothing, from each process that plans a data source. A
    client of Spark Connect takes no such answer to a command that runs for long (SPARK-59135): a
    declarative pipeline ends with UNKNOWN_RESPONSE, and code 1, when all of it is done.
    """
    registry = accumulators._accumulatorRegistry
    if is_worker() and not _is_profiled():
        for number in _PROFILERS:
            if number in registry and not registry[number]._value:
                del registry[number]


class WorkerDataSource(DataSource):
    """A data source that is made, or unpickled, wherever Spark plans one."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        forget_idle_profilers()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        forget_idle_profilers()


def _is_profiled() -> bool:
    """By functions or by lines, whoever does it."""
    monitoring = getattr(sys, "monitoring", None)
    by_monitoring = monitoring is not None and monitoring.get_tool(monitoring.PROFILER_ID)
    return bool(by_monitoring or sys.getprofile() or sys.gettrace())


# To find formats Spark imports this in a process that makes no data source.
forget_idle_profilers()
if is_worker():
    leave_unopened()
