"""`kafkalog serve` as a process, and what it says."""

import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pyspark_kafkalog
from tests.support.patience import EVENT_S, wait_until

_ROOT = Path(pyspark_kafkalog.__file__).parent.parent


class Serving:
    """One process in `folder`, which runs the loads of loads.toml there."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        inherited = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyspark_kafkalog.cli", "serve", "loads.toml", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(inherited), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self.is_heard = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Serving":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(EVENT_S)

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    def says(self, text: str, times: int = 1) -> str:
        """Waits for lines with this text; the last of them."""
        wait_until(
            lambda: sum(text in line for line in self.lines) >= times,
            lambda: f"{text!r} in:\n{self.said}",
        )
        return [line for line in self.lines if text in line][times - 1]

    def ask(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        """Its exit code."""
        code = self.process.wait(EVENT_S)
        self._reader.join(EVENT_S)
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            for line in said:
                self.lines.append(line.rstrip("\n"))
                if not self.is_heard:
                    return


def fetched(url: str) -> tuple[int, str]:
    """Status and body of an answer by HTTP."""
    try:
        with urllib.request.urlopen(url, timeout=EVENT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def sample(metrics: str, name: str, labels: Mapping[str, str]) -> float | None:
    """The value of one sample of Prometheus's text; None where it is not there."""
    for line in metrics.splitlines():
        metric, _, value = line.rpartition(" ")
        if metric.partition("{")[0] == name and all(
            f'{label}="{text}"' in metric for label, text in labels.items()
        ):
            return float(value)
    return None
