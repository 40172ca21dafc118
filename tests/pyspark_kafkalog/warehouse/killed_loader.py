"""Child program of test_commit_crash: kills a load before each of its file system operations.

`python -m ...killed_loader SOURCE DESTINATION`: for step 1, 2, ... copies SOURCE to
DESTINATION/<step>, forks, loads there with SIGKILL before that step, until a load runs to its end.
Writes nothing else. A program of its own because forking needs a process without threads.
"""

import os
import shutil
import signal
import sys

from tests.pyspark_kafkalog.warehouse.filesystem_steps import FilesystemSteps
from tests.pyspark_kafkalog.warehouse.lines_loader import load


def killed_at(path: str, step: int) -> bool:
    """Loads into `path`, killed before operation `step`; False when it came to its end first."""

    def before(current: int, operation: str, what: object) -> None:
        if current == step:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        with FilesystemSteps(before):
            load(path, "nightly", 7)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status) != 0:
        raise RuntimeError(f"the load at step {step} failed")
    return False


def main(source: str, destination: str) -> None:
    step = 1
    while True:
        path = os.path.join(destination, str(step))
        shutil.copytree(source, path)
        if not killed_at(path, step):
            return
        step += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
