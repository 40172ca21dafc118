"""Files of which one call fails, as on a bad disk, and all others work."""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.broker.log.memory_files import MemoryFiles

if TYPE_CHECKING:
    from typing_extensions import Buffer


class FailingFiles:
    """The files of `files`; the call after the first `left` ones fails."""

    def __init__(self, files: MemoryFiles, left: int) -> None:
        self._files = files
        self._left = left
        self.failed = ""
        """Which call, once it has."""

    def step(self, call: str) -> None:
        self._left -= 1
        if self._left == -1:
            self.failed = call
            raise OSError(errno.EIO, "Input/output error")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._files, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self.step(f"{name} {arguments[0].name}")
            found = call(*arguments, **named)
            return FailingFile(self, found, arguments[0].name) if name == "open" else found

        return counted


class FailingFile:
    """One of them. The write that fails leaves its first half."""

    def __init__(self, files: FailingFiles, file: Any, name: str) -> None:
        self._files = files
        self._file = file
        self._name = name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._file, name)

        def counted(*arguments: Any) -> Any:
            self._files.step(f"{name} {self._name}")
            return call(*arguments)

        return counted

    def pwrite(self, data: "Buffer", position: int) -> None:
        try:
            self._files.step(f"pwrite {self._name}")
        except OSError:
            view = memoryview(data)
            self._file.pwrite(view[: len(view) // 2], position)
            raise
        self._file.pwrite(data, position)
