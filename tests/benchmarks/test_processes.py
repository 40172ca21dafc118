"""What is read of processes is what they used."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks.processes import (
    SharePeak,
    cpu_s,
    cpu_s_since,
    forget_peaks,
    output_of,
    peak_mb,
    resident_mb,
    share_mb,
    tree,
)
from tests.support.patience import wait_until
from tests.support.present import present

# Allocates 60 MB and lets them go, burns some processor time in a child, and waits.
PROGRAM = """
import subprocess, sys
held = bytearray(60_000_000)
for place in range(0, len(held), 4096):
    held[place] = 1
del held
child = "import time; until = time.process_time() + 0.2\\nwhile time.process_time() < until: pass"
subprocess.run([sys.executable, "-c", child], check=True)
print("ready", flush=True)
sys.stdin.readline()
"""
# Holds 60 MB from one line of its input to the next.
HOLDER = """
import os, sys
sys.stdin.readline()
held = bytearray(os.urandom(60_000_000))
print("held", flush=True)
sys.stdin.readline()
"""
EVENT_S = 60


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert present(running.stdout).readline() == b"ready\n"
    yield running
    running.communicate()


def test_a_peak_outlasts_what_made_it_until_it_is_forgotten(
    process: subprocess.Popen[bytes],
) -> None:
    assert peak_mb(process.pid) > resident_mb(process.pid) + 50
    forget_peaks(process.pid)
    assert peak_mb(process.pid) < resident_mb(process.pid) + 10


def test_processor_time_counts_children_that_have_ended(process: subprocess.Popen[bytes]) -> None:
    assert cpu_s(process.pid) >= 0.2
    assert cpu_s_since(process.pid, cpu_s(process.pid)) > 0


def test_descendants_are_found_and_shared_pages_are_divided(
    process: subprocess.Popen[bytes],
) -> None:
    assert process.pid in tree(os.getpid())
    assert 0 < share_mb(process.pid) <= resident_mb(process.pid) + 1


def test_the_most_memory_of_all_is_seen_while_it_is_held() -> None:
    # A process of its own: what else this one has started gives memory back, too.
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder, SharePeak(holder.pid) as peak:
        before_mb = share_mb(holder.pid)
        present(holder.stdin).write(b"hold\n")
        present(holder.stdin).flush()
        assert present(holder.stdout).readline() == b"held\n"
        wait_until(lambda: peak.mb >= before_mb + 50, lambda: (peak.mb, before_mb))
        present(holder.stdin).close()


def test_a_program_that_fails_is_an_error_with_its_last_words() -> None:
    assert output_of([sys.executable, "-c", "print(6 * 7)"]) == "42\n"
    with pytest.raises(RuntimeError, match="ValueError: no such topic"):
        output_of([sys.executable, "-c", "raise ValueError('no such topic')"])


def test_a_process_that_nobody_waited_for_has_no_memory() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert peak_mb(ended.pid) == 0
    ended.communicate()
