"""Spark's daemon of Python workers, with all imported that a task of a load is going to need.

So a worker that was killed is replaced in milliseconds, not in the second that imports take.
"""

import pyarrow.parquet  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import pyspark_kafkalog.warehouse.load  # noqa: F401

if __name__ == "__main__":
    manager()
