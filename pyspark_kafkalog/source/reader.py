"""Batch reads: a Spark task reads one range of offsets, or several; Arrow record batches out.

A KafkalogReader is made in Spark's planning process, where `partitions()` asks the brokers once,
and travels pickled to the tasks, where `read()` uses the connections of its worker (python_worker).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.source.options import SourceOptions
from pyspark_kafkalog.source.partitions import NO_EPOCHS, plan_batch, read_tasks
from pyspark_kafkalog.source.plain_errors import PlainErrors
from pyspark_kafkalog.source.python_worker import freeze_imports
from pyspark_kafkalog.source.reading import read_task
from pyspark_kafkalog.source.splitting import plan_tasks


class KafkalogReader(DataSourceReader):
    """Reads the offsets that are there at the first action on a DataFrame.

    Spark plans once for each `load()`, not for each action: a `count()` and a `write` of one
    DataFrame see the same offsets, and a new `load()` sees newer ones.

    pushFilters is deliberately not overridden: Spark 4.2 and 4.3 hand a plan with pushed filters
    to other scans of the same DataFrame, which then miss rows.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    @PlainErrors()
    def partitions(self) -> list[InputPartition]:
        freeze_imports()
        options = self._options
        with Cluster(options.client, fails_fast=True) as cluster:
            ranges, topic_ids, epochs = plan_batch(
                cluster,
                options.subscription,
                options.starting,
                options.ending,
                options.fail_on_data_loss,
            )
        # Who may lose data reads on where a log was cut off since.
        doubted = epochs if options.fail_on_data_loss else NO_EPOCHS
        tasks = read_tasks(plan_tasks(ranges, options.splitting), topic_ids, doubted)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark makes up an InputPartition(None) when there are no partitions.
        if partition.value is not None:
            with PlainErrors():
                yield from read_task(self._options, self._columns, partition.value)
