"""The cleaner in a process of its own, so that its work never holds up the broker's event loop.

The broker's side is CleanerProcess: it starts `python -m broker.log.cleaner_process` when there is
something to do, sends it a job, takes the answers, and puts the new segments into the log itself.
The child reads and writes segment files by the job's directory, and nothing else.

Both pipes carry pickles, between these two only: settings once, then per job a CleaningJob one way;
CleanedSegments and a CleaningResult, or the text of what went wrong, the other. The child ends when
its stdin does, at the latest before its next read of a segment: it never outlives its broker for
long enough to write into a log that another broker has opened. It runs at a lower priority.

A process and not a thread: opening records is Python's own work, and would make every turn of the
broker's loop wait for the interpreter (docs/figures.md).
"""

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kafka.errors import BrokerResponseError

from broker.log.cleaner import CleanedSegment, Cleaner, CleanerSettings, CleaningJob, CleaningResult
from broker.log.files import DiskFiles

_ROOT = Path(__file__).resolve().parents[2]
_NICENESS = 5
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class CleaningFailedError(Exception):
    """A log could not be cleaned; the message says why."""


class CleaningDeferredError(Exception):
    """The disk refused: it may do no longer some time later. The message says what it was."""


class CleaningAbortedError(Exception):
    """The cleaning was called off."""


class CleanerProcess:
    """One child at a time. `clean` and `close` by one thread, `kill` by any."""

    def __init__(self, settings: CleanerSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False

    def clean(self, job: CleaningJob) -> Iterator[CleanedSegment | CleaningResult]:
        """As Cleaner.clean. Raises CleaningFailedError, CleaningDeferredError, and
        CleaningAbortedError after `kill`."""
        process = self._started()
        try:
            _send(process.stdin, job)
            while True:
                answer = _receive(process.stdout)
                if isinstance(answer, OSError):
                    raise CleaningDeferredError(str(answer))
                if isinstance(answer, str):
                    raise CleaningFailedError(answer)
                yield answer
                if isinstance(answer, CleaningResult):
                    return
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            was_killed = self._is_killed
            self.close()
            if was_killed:
                raise CleaningAbortedError from None
            code = process.returncode
            raise CleaningFailedError(f"its process ended with code {code}") from error

    def kill(self) -> None:
        """Ends the child at once; a `clean` under way raises CleaningAbortedError."""
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Ends the child; the next `clean` starts another."""
        with self._lock:
            self._is_killed = False
        self._end_child()

    def _end_child(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                _close(pipe)

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is not None:
            self._end_child()  # someone else has ended it while it was idle
        with self._lock:
            if not self._is_killed:
                if self._process is None:
                    self._process = self._new_child()
                return self._process
        # Called off before it began: whoever did so waits for the end of the cleaning.
        self.close()
        raise CleaningAbortedError

    def _new_child(self) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join([str(_ROOT), *filter(None, sys.path)])
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            env=os.environ | {"PYTHONPATH": path},
        )
        # If it has died already, the next message finds out.
        with contextlib.suppress(OSError):
            _send(process.stdin, self._settings)
        return process


def _send(pipe: IO[bytes] | None, message: object) -> None:
    if pipe is None:
        raise EOFError
    pickle.dump(message, pipe)
    pipe.flush()


def _receive(pipe: IO[bytes] | None) -> "CleanedSegment | CleaningResult | str":
    if pipe is None:
        raise EOFError
    answer: CleanedSegment | CleaningResult | str = pickle.load(pipe)
    return answer


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        # There may be something left for a child that is gone.
        with contextlib.suppress(OSError):
            pipe.close()


def main() -> None:
    """The child."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # its end is that of its stdin
    os.nice(_NICENESS)
    answers = os.fdopen(os.dup(_STDOUT), "wb")
    os.dup2(_STDERR, _STDOUT)  # whatever prints must not mix with the answers
    jobs = sys.stdin.buffer
    try:
        cleaner = Cleaner(pickle.load(jobs), DiskFiles(), check=_check_parent)
        while True:
            job = pickle.load(jobs)
            for answer in _answers(cleaner, job):
                _send(answers, answer)
    except (EOFError, BrokenPipeError, _ParentGoneError):
        os._exit(0)


def _answers(
    cleaner: Cleaner, job: CleaningJob
) -> Iterator["CleanedSegment | CleaningResult | str | OSError"]:
    try:
        yield from cleaner.clean(job)
    except BrokerResponseError as error:
        yield str(error.args[0] if error.args else error)
    except OSError as error:
        yield error
    except (ValueError, MemoryError) as error:
        yield f"{type(error).__name__}: {error}"


class _ParentGoneError(Exception):
    """Nobody is left to clean for."""


def _check_parent() -> None:
    poll = select.poll()
    poll.register(_STDIN, 0)
    if poll.poll(0):
        raise _ParentGoneError


if __name__ == "__main__":
    main()
