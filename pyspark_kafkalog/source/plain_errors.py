"""How an error of this package reaches a user of Spark: as its sentence, without any stack.

Spark shows the whole Python traceback of what a data source raises, its own processes' lines and
ours. An error that says what to change needs none, and is hard to find below twenty lines of it.
Any process, any thread.
"""

import logging
import os
from contextlib import ContextDecorator
from types import TracebackType

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.source.worker_process import is_worker

_log = logging.getLogger(__name__)


class PlainErrors(ContextDecorator):
    """Cuts the traceback of a KafkalogError that passes; it is logged at level DEBUG instead.

    A decorator of methods that Spark calls; in a generator, a context around what it yields.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, KafkalogError):
            _log.debug("A call from Spark fails", exc_info=error)
            if is_worker():
                # What spark.sql.execution.pyspark.udf.hideTraceback.enabled sets for all errors.
                # This process tells of the error and ends.
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise error.with_traceback(None) from None
