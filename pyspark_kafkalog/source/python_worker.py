"""What a call from Spark leaves behind in its process, a Python worker that Spark keeps for more.

Those of tasks and of planning do one thing at a time, in one thread.
"""

import gc
import sys


class _Frozen:
    """Of this process."""

    modules = 0


def freeze_imports() -> None:
    """Garbage collections leave out what is there now: mostly modules that were imported.

    A worker collects garbage after each task, before it takes the next. Going through the modules
    of PySpark, pandas, Arrow and ours takes 20 to 60 ms of that every time, several times what a
    task of a micro-batch takes itself, and there is nothing among them to free. Some are imported
    at the end of a first task only, so this is for the beginning of each.
    """
    if len(sys.modules) > _Frozen.modules:
        gc.freeze()
        _Frozen.modules = len(sys.modules)
