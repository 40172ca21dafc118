"""Which tests run in one process, where pytest-xdist spreads them over several.

Those of a file, as by its own `--dist loadfile`. Those of Spark's files in SPARK_PROCESSES: a JVM
and its first queries are some 35 s of processor time, in each process that has one.
"""

from pathlib import PurePath
from zlib import crc32

from xdist.scheduler import LoadFileScheduling

SPARK_PROCESSES = 3


class Schedule(LoadFileScheduling):  # type: ignore[misc]
    """For `pytest_xdist_make_scheduler`."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        if PurePath(file).parent == PurePath("tests/spark"):
            return f"tests/spark {crc32(file.encode()) % SPARK_PROCESSES}"
        return file
