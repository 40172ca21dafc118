"""What a process and those that it started have used, by Linux's /proc: memory and processor time.

Resident memory counts pages that processes share once for each of them (Python workers share what
their daemon had loaded when it forked them), so a sum over processes is a little too large.
"""

import os
import re
from collections import defaultdict
from pathlib import Path

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


def _memory_mb(pid: int, name: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    assert found, f"process {pid} has no {name}"
    return int(found[1]) / 1024


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[str]:
    """The fields behind the process's name, from its state on (proc(5)'s third)."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return text.rpartition(")")[2].split()
