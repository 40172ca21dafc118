"""pyarrow without NumPy and pandas, in a process that is the command line's own.

pyarrow imports NumPy with itself, and pandas when it is first given a list or a number, to see
whether it is one of theirs: half of the time in which `produce` of a line is done. So it does not
find them; afterwards whoever wants them imports them as ever.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_LEFT_OUT = ("numpy", "pandas")


class _LeavesOut(MetaPathFinder):
    """Says of modules that they are not there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name in _LEFT_OUT:
            raise ModuleNotFoundError(f"{name} is left out", name=name)


def import_lean_arrow() -> None:
    """Imports pyarrow so, where neither it nor one of them was imported before."""
    if sys.modules.keys() & {"pyarrow", *_LEFT_OUT}:
        return
    finder = _LeavesOut()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa
        import pyarrow.compute  # which looks for NumPy, too

        pa.array([])
    finally:
        sys.meta_path.remove(finder)
