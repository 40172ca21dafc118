"""Stops a piece of code before each file system operation it makes: to kill it, or to run another.

`FilesystemSteps(before)` patches the functions of `os` and `open` for its own process and calls
`before(step, operation, path)` ahead of each call, steps counted from 1. Calls that `before` itself
makes are not counted.
"""

import builtins
import os
from collections.abc import Callable
from typing import Any
from unittest import mock

OPERATIONS = (
    *("open", "mkdir", "rename", "link", "unlink", "rmdir", "fsync"),
    *("stat", "lstat", "listdir", "scandir"),
)


class FilesystemSteps:
    """A context manager; `count` is the number of operations so far."""

    def __init__(self, before: Callable[[int, str, Any], None]) -> None:
        self.count = 0
        self._before = before
        self._inside = False
        self._patches = [
            mock.patch.object(os, name, self._counted(name, getattr(os, name)))
            for name in OPERATIONS
        ]
        self._patches.append(
            mock.patch.object(builtins, "open", self._counted("open", builtins.open))
        )

    def __enter__(self) -> "FilesystemSteps":
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if not self._inside:
                self.count += 1
                self._inside = True
                try:
                    self._before(self.count, name, args[0] if args else None)
                finally:
                    self._inside = False
            return call(*args, **kwargs)

        return counted
