"""System calls of a child process, counted below Python by count_system_calls.c."""

import struct
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.patience import stays, wait_until
from tests.support.present import present

_SETTLED_S = 0.02
_ENTRY = struct.Struct("24sqq")


@dataclass(frozen=True, slots=True)
class Counted:
    """Calls by name, and the bytes that they moved."""

    calls: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)


class SystemCalls:
    """The counts of a process that was started with `environment`."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "counts"
        library = directory / "count_system_calls.so"
        source = Path(__file__).with_name("count_system_calls.c")
        compiler = (sysconfig.get_config_var("CC") or "cc").split()
        command = [*compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"]
        subprocess.run(command, check=True, timeout=60)
        self.environment = {"LD_PRELOAD": str(library), "KAFKALOG_COUNTED_IN": str(self._file)}

    @contextmanager
    def counted(self) -> Iterator[Counted]:
        """What the process does in this block; filled in at its end."""
        found = Counted()
        before = self._now()
        yield found
        settled = present(wait_until(self._unchanged, "calls that are all counted"))
        for name, (calls, size_bytes) in settled.items():
            found.calls[name] = calls - before[name][0]
            found.bytes[name] = size_bytes - before[name][1]

    def _unchanged(self) -> dict[str, tuple[int, int]] | None:
        """A call is counted when it returns, which may be after its bytes arrived here."""
        now = self._now()
        return now if stays(lambda: self._now() == now, _SETTLED_S) else None

    def _now(self) -> dict[str, tuple[int, int]]:
        entries = _ENTRY.iter_unpack(self._file.read_bytes())
        return {
            name.rstrip(b"\0").decode(): (calls, size_bytes) for name, calls, size_bytes in entries
        }
