"""A stream that cannot be read, as a reader: Spark hears why by the first thing that it asks.

Spark 4.2 and 4.3 look for the reader that was not made when a data source refuses to make one, and
end with that error (UnboundLocalError) instead of its own.
"""

from collections.abc import Iterator
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.source.plain_errors import PlainErrors


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises `error` from whatever it is asked for, but for its end."""

    def __init__(self, error: KafkalogError) -> None:
        self._error = error

    @PlainErrors()
    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self._refuse()

    def stop(self) -> None:
        """There is nothing to stop."""
