"""Plants mutants, one at a time, in copies of the tree, and runs the tests that should notice.

The copies have no compiled modules: those would go on as they were. Each of several at once has a
copy of its own. The tree itself is never touched.
"""

import importlib.util
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.mutants.mutant import Mutant, MutantError

ROOT = Path(__file__).parents[2]
_COPIED = ("pyspark_kafkalog", "broker", "tests", "benchmarks", "pyproject.toml")
_FAILED = (1, 2)
"""pytest's exit codes for tests that fail, and for what cannot even be imported."""
_TAIL_LINES = 25
_MOST_BYTES = 6 << 30
"""A bug may be a loop that collects: it is not to take the machine's memory with it."""
_WITH_LESS_MEMORY = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_DATA, ({_MOST_BYTES}, {_MOST_BYTES}))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Fate(Enum):
    CAUGHT = "caught"
    HUNG = "hung"
    """The tests did not end in time: caught as well, but slowly."""
    SURVIVED = "SURVIVED"


@dataclass(frozen=True, slots=True)
class Result:
    mutant: Mutant
    fate: Fate
    seconds: float


def copy_tree(target: Path) -> None:
    """The packages and their tests, without what was compiled from them."""
    ignore = shutil.ignore_patterns("*.so", "__pycache__", ".pytest_cache", ".hypothesis")
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        else:
            shutil.copy(source, target / name)


def run_tests(tree: Path, tests: Sequence[str], timeout_s: float) -> tuple[int | None, str]:
    """pytest's exit code, None when the time was up, and the end of what it said."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    pytest = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests)
    command = [sys.executable, "-c", _WITH_LESS_MEMORY, *pytest]
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        else:
            code = process.returncode
        finally:
            _kill_session(process)
        output.seek(0)
        tail = output.read().splitlines()[-_TAIL_LINES:]
    return code, "\n".join(tail)


def _kill_session(process: "subprocess.Popen[bytes]") -> None:
    """The tests, and the brokers that they may have left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def planted(tree: Path, mutant: Mutant) -> Iterator[None]:
    """The bug is in the copy for as long as this lasts. Raises MutantError."""
    path = tree / mutant.path
    text = path.read_text(encoding="utf-8")
    with_bug = mutant.plant(text)
    try:
        _write(path, with_bug)
        yield
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    """And no bytecode of another text, which could pass for it: same size, same second."""
    path.write_text(text, encoding="utf-8")
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def check_unplanted(tree: Path, mutants: Sequence[Mutant], timeout_s: float) -> None:
    """With nothing planted the tests have to pass. Raises MutantError."""
    for tests in dict.fromkeys(mutant.tests for mutant in mutants):
        code, output = run_tests(tree, tests, timeout_s)
        if code != 0:
            raise MutantError(f"with nothing planted {' '.join(tests)} fails: {code}\n{output}")


def try_mutant(tree: Path, mutant: Mutant, timeout_s: float) -> Result:
    """Raises MutantError where there is nothing to run."""
    began_s = time.monotonic()
    with planted(tree, mutant):
        code, output = run_tests(tree, mutant.tests, timeout_s)
    if code is None:
        fate = Fate.HUNG
    elif code == 0:
        fate = Fate.SURVIVED
    elif code in _FAILED:
        fate = Fate.CAUGHT
    else:
        raise MutantError(f"{mutant.place}: pytest gave up with {code}:\n{output}")
    return Result(mutant, fate, time.monotonic() - began_s)


def try_all(trees: Sequence[Path], mutants: Sequence[Mutant], timeout_s: float) -> Iterator[Result]:
    """As they end, in any order: as many at once as there are copies."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)

    def run(mutant: Mutant) -> Result:
        tree = free.get()
        try:
            return try_mutant(tree, mutant, timeout_s)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        begun = [pool.submit(run, mutant) for mutant in mutants]
        try:
            for future in as_completed(begun):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
