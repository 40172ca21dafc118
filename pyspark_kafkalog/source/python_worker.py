"""What a task leaves behind in its process, a Python worker that Spark keeps for later tasks."""

import gc
from functools import cache


@cache
def freeze_imports() -> None:
    """Once in a process: garbage collections leave out what is there, mostly imported modules.

    A worker collects garbage after each task, before it takes the next. Going through the modules
    of PySpark, Arrow and ours takes 20 to 60 ms of that every time, several times what a task of a
    micro-batch takes itself, and there is nothing among them to free.
    """
    gc.freeze()
