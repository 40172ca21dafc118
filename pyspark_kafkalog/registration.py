"""What `import pyspark_kafkalog` does so that Spark finds `format("kafkalog")`.

Spark finds formats by itself: it starts a Python, lists the folders of its `sys.path` and imports
every top-level `pyspark_*` module. That Python is `python3` of the PATH unless PYSPARK_PYTHON says
otherwise, so that a job run as `/path/venv/bin/python job.py` would have workers of another
environment. A session that began before the import has chosen its Python, and perhaps looked
already: it is handed the formats.

Called by the package's `__init__` alone. Imports nothing of Spark that is not loaded, never raises.
"""

import os
import sys
from shutil import which
from typing import Any


def meet_spark() -> None:
    """Sets the Python of workers to come, or registers the formats with the session that is there.

    What somebody has set stays. Where Spark will not find the formats, a warning says why.
    """
    try:
        pyspark = sys.modules.get("pyspark")
        context = getattr(getattr(pyspark, "SparkContext", None), "_active_spark_context", None)
        if context is None:
            _prepare_workers()
        else:
            _register(context)
    except Exception as error:
        _warn(f"it was not registered with the active session: {str(error).partition(chr(10))[0]}")


def _prepare_workers() -> None:
    # A JVM that has started this Python, by spark-submit, has chosen its workers' Python as well.
    # On a cluster `python3` may be elsewhere than here: it is left where it means this one.
    chosen = {"PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT"} & os.environ.keys()
    if not chosen and not _is_this_python("python3"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = os.path.dirname(_folder(__file__))
    if folder not in map(os.path.abspath, sys.path):
        _warn(
            "Spark will not find it, as it lists the folders of sys.path alone and this editable "
            f"install left {folder} out: pip install -e {folder} "
            "--config-settings editable_mode=compat"
        )


def _register(context: Any) -> None:
    local = context.master.startswith("local")
    if local and "PYSPARK_PYTHON" not in os.environ and not _is_this_python(context.pythonExec):
        context.pythonExec = sys.executable
    from pyspark.sql import SparkSession

    from pyspark_kafkalog.source.datasource import DefaultSource
    from pyspark_kafkalog.warehouse.sink.datasource import LoadSink

    session = SparkSession.getActiveSession()
    if session is not None:
        for source in (DefaultSource, LoadSink):
            session.dataSource.register(source)


def _is_this_python(name: str) -> bool:
    """Whether `name` is a Python of the folder that this one is in, and so of its environment."""
    found = which(name)
    return found is not None and _folder(found) == _folder(sys.executable)


def _folder(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


def _warn(why: str) -> None:
    import logging

    logging.getLogger("pyspark_kafkalog").warning('format("kafkalog"): %s', why)
