"""Child processes that are killed and started again, each life with a name of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
_MODULE = [sys.executable, "-m"]


class Supervised:
    """A client program: started again when it was killed, failed, or has more to do.

    `command_of` gets the name of the new life. Output goes to the end of `log`. One of Python's
    outlives no end of this process, however that comes.
    """

    def __init__(
        self,
        name: str,
        log: Path,
        command_of: Callable[[str], list[str]],
        has_work: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.life = 0
        self._has_work = has_work
        self.failures = 0
        self._log = log
        self._command_of = command_of
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def client(self) -> str:
        """The name of this life in the history."""
        return f"{self.name}.{self.life}"

    @property
    def code(self) -> int | None:
        """What it ended with; None while it runs."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            self._forget()
        return code

    def start(self) -> None:
        self.life += 1
        command = self._command_of(self.client)
        if command[:2] == _MODULE:
            command = [*_MODULE, "tests.crash.with_parent", *command[2:]]
        with self._log.open("ab") as log:
            log.write(f"--- life {self.life}\n".encode())
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._forget()

    def revive(self) -> None:
        """Starts it again if it has ended by itself."""
        code = self.code
        if code or (code == 0 and self._has_work()):
            self.failures += code != 0
            self.start()

    def retire(self) -> None:
        """SIGTERM, with SIGKILL for who does not care."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._forget()

    def _forget(self) -> None:
        """One that has ended, or will."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.wait()
        self._process.stdin.close()
