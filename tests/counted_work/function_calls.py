"""Function calls of a thread, Python's and C's, counted by the interpreter (sys.setprofile).

Compiled modules call without telling it, so what is in `INNER_LOOPS` does not count, neither where
it is compiled nor where it is not: what happens inside of them is counted by what they allocate.
Calls of all others are fewer where more is compiled.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INNER_LOOPS = ("/arrow/decode.py", "/arrow/encode.py", "/record/record_spans.py")


class FunctionCalls:
    """How often each function was called; installed by `sys.setprofile`."""

    def __init__(self) -> None:
        self.by_name: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.endswith(INNER_LOOPS):
            return
        if event == "call":
            self.by_name[f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_name}"] += 1
        elif event == "c_call":
            self.by_name[argument.__qualname__] += 1

    @property
    def total(self) -> int:
        return self.by_name.total()


@contextmanager
def function_calls() -> Iterator[FunctionCalls]:
    """Those of this thread in this block."""
    counted = FunctionCalls()
    sys.setprofile(counted)
    try:
        yield counted
    finally:
        sys.setprofile(None)
