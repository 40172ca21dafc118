"""pyspark-kafkalog: Kafka-protocol topics as Spark DataFrames and streams, without a JAR.

Spark imports every top-level `pyspark_*` module in its planning process and registers the
`DefaultSource` it finds, which is how `format("kafkalog")` works with no `register()` call. So this
module stays cheap to import and never fails: everything is loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.registration import meet_spark

if TYPE_CHECKING:
    from pyspark_kafkalog.embedded import EmbeddedBroker
    from pyspark_kafkalog.embedded_cluster import EmbeddedCluster
    from pyspark_kafkalog.source.datasource import DefaultSource
    from pyspark_kafkalog.source.lag_listener import LagListener, QueryLag
    from pyspark_kafkalog.warehouse.each_topic import TopicLoad, load_topics
    from pyspark_kafkalog.warehouse.forget import forget
    from pyspark_kafkalog.warehouse.load import LoadResult, load
    from pyspark_kafkalog.warehouse.loaded_offsets import loaded_offsets
    from pyspark_kafkalog.warehouse.maintain import MaintainResult, maintain
    from pyspark_kafkalog.warehouse.plan import LoadPlan
    from pyspark_kafkalog.warehouse.progress import LoadProgress
    from pyspark_kafkalog.warehouse.rewind import RewindResult, rewind
    from pyspark_kafkalog.warehouse.sink.datasource import LoadSink
    from pyspark_kafkalog.warehouse.status import LoadStatus, load_status
    from pyspark_kafkalog.warehouse.targets.parquet import committed_files

__version__ = "0.1.0"

_HOME = {
    "DefaultSource": "pyspark_kafkalog.source.datasource",
    "EmbeddedBroker": "pyspark_kafkalog.embedded",
    "EmbeddedCluster": "pyspark_kafkalog.embedded_cluster",
    "LagListener": "pyspark_kafkalog.source.lag_listener",
    "LoadPlan": "pyspark_kafkalog.warehouse.plan",
    "LoadProgress": "pyspark_kafkalog.warehouse.progress",
    "LoadResult": "pyspark_kafkalog.warehouse.load",
    "LoadSink": "pyspark_kafkalog.warehouse.sink.datasource",
    "LoadStatus": "pyspark_kafkalog.warehouse.status",
    "MaintainResult": "pyspark_kafkalog.warehouse.maintain",
    "QueryLag": "pyspark_kafkalog.source.lag_listener",
    "RewindResult": "pyspark_kafkalog.warehouse.rewind",
    "TopicLoad": "pyspark_kafkalog.warehouse.each_topic",
    "committed_files": "pyspark_kafkalog.warehouse.targets.parquet",
    "forget": "pyspark_kafkalog.warehouse.forget",
    "load": "pyspark_kafkalog.warehouse.load",
    "load_status": "pyspark_kafkalog.warehouse.status",
    "load_topics": "pyspark_kafkalog.warehouse.each_topic",
    "loaded_offsets": "pyspark_kafkalog.warehouse.loaded_offsets",
    "maintain": "pyspark_kafkalog.warehouse.maintain",
    "rewind": "pyspark_kafkalog.warehouse.rewind",
}

__all__ = [
    "DefaultSource",
    "EmbeddedBroker",
    "EmbeddedCluster",
    "LagListener",
    "LoadPlan",
    "LoadProgress",
    "LoadResult",
    "LoadSink",
    "LoadStatus",
    "MaintainResult",
    "QueryLag",
    "RewindResult",
    "TopicLoad",
    "__version__",
    "committed_files",
    "forget",
    "load",
    "load_status",
    "load_topics",
    "loaded_offsets",
    "maintain",
    "rewind",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


meet_spark()
