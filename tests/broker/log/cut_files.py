"""Files that stop at a chosen operation, as when the process dies or the power goes just then."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.broker.log.memory_files import MemoryFiles

if TYPE_CHECKING:
    from typing_extensions import Buffer


class PowerCut(BaseException):
    """No error that anybody could handle."""


class CutFiles:
    """The files of `files`, until `left` more operations have changed something."""

    def __init__(self, files: MemoryFiles, left: int) -> None:
        self._files = files
        self.left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def step(self) -> None:
        if not self.left:
            raise PowerCut
        self.left -= 1

    def open(self, path: Path, *, create: bool = False) -> "CutFile":
        if create:
            self.step()
        return CutFile(self, self._files.open(path, create=create))

    def rename(self, path: Path, new_path: Path) -> None:
        self.step()
        self._files.rename(path, new_path)

    def remove(self, path: Path) -> None:
        self.step()
        self._files.remove(path)

    def replace(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        self.step()
        self._files.replace(path, data, sync=sync)

    def sync_directory(self, path: Path) -> None:
        self.step()
        self._files.sync_directory(path)


class CutFile:
    """One of them. The write that is cut leaves its first half."""

    def __init__(self, files: CutFiles, file: Any) -> None:
        self._files = files
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pwrite(self, data: "Buffer", position: int) -> None:
        if not self._files.left:
            view = memoryview(data)
            self._file.pwrite(view[: len(view) // 2], position)
        self._files.step()
        self._file.pwrite(data, position)

    def truncate(self, size_bytes: int) -> None:
        self._files.step()
        self._file.truncate(size_bytes)

    def sync(self) -> None:
        self._files.step()
        self._file.sync()
