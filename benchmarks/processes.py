"""Processes that a benchmark starts or looks at: their output, memory and processor time (/proc).

Resident memory counts pages that processes share once for each of them, and Python workers share
what their daemon had loaded when it forked them. A sum over processes is therefore one of
proportional shares, which the kernel keeps no peak of: it is sampled.
"""

import os
import re
import subprocess
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

_SAMPLE_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """The process and all that descend from it now."""
    children = defaultdict(list)
    for process in _all():
        try:
            children[int(_stat(process)[1])].append(process)
        except OSError:
            continue
    found = [pid]
    for each in found:
        found += children[each]
    return found


def cpu_s(pid: int) -> float:
    """Seconds of processor time, user and system, of the process and its descendants so far.

    Those that have ended count when their parent has waited for them.
    """
    total = 0
    for process in tree(pid):
        try:
            total += sum(map(int, _stat(process)[11:15]))
        except OSError:
            continue
    return total / _TICKS_PER_S


def cpu_s_since(pid: int, before_s: float) -> float:
    """What `cpu_s` has grown by; one tick of the kernel's clock at least, which it counts in."""
    return max(cpu_s(pid) - before_s, 1 / _TICKS_PER_S)


def output_of(command: Sequence[str]) -> str:
    """What a program printed; RuntimeError with the end of its errors if it failed."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(f"{' '.join(command[:3])}: {lines[-1]}")
    return done.stdout


def resident_mb(pid: int) -> float:
    return _memory_mb(pid, "VmRSS")


def peak_mb(pid: int) -> float:
    """The most resident memory that the process had, since its start or `forget_peaks`."""
    return _memory_mb(pid, "VmHWM")


def forget_peaks(pid: int) -> None:
    """Has the peaks of the process and its descendants begin anew from what is resident now."""
    for process in tree(pid):
        try:
            Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            continue


def share_mb(pid: int) -> float:
    """Memory of the process and its descendants, shared pages divided among those that share."""
    total_kb = 0
    for process in tree(pid):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            continue
        found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
        total_kb += int(found[1]) if found else 0
    return total_kb / 1024


class SharePeak:
    """The most of `share_mb` while the context lasts, looked at all the time by a thread."""

    def __init__(self, pid: int) -> None:
        self.mb = 0.0
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "SharePeak":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            self.mb = max(self.mb, share_mb(self._pid))


def _memory_mb(pid: int, name: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    # One that has ended has none, until its parent waits for it: Spark leaves such a shell behind.
    return int(found[1]) / 1024 if found else 0.0


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[str]:
    """The fields behind the process's name, from its state on (proc(5)'s third)."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return text.rpartition(")")[2].split()
