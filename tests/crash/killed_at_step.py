"""The broker, as a child process that is killed before a chosen append.

`python -m tests.crash.killed_at_step ARGUMENTS OF THE BROKER`, with KAFKALOG_KILL_TRIGGER naming a
file: when it is there, it says before which append from then on the process is to die. The patched
methods are the two through which every record and marker goes.
"""

import os
import signal
from pathlib import Path
from typing import Any

from broker.__main__ import main
from broker.replica.manager import ReplicaManager

_TRIGGER = Path(os.environ["KAFKALOG_KILL_TRIGGER"])
_steps_taken = 0


def _take_step() -> None:
    global _steps_taken
    if not _TRIGGER.exists():
        return
    if _steps_taken == int(_TRIGGER.read_text()):
        os.kill(os.getpid(), signal.SIGKILL)
    _steps_taken += 1


def _patch(name: str) -> None:
    original = getattr(ReplicaManager, name)

    def stepping(self: ReplicaManager, *arguments: Any, **options: Any) -> Any:
        _take_step()
        return original(self, *arguments, **options)

    setattr(ReplicaManager, name, stepping)


if __name__ == "__main__":
    _patch("append")
    _patch("append_end_marker")
    raise SystemExit(main())
