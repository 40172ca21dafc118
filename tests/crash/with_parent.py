"""Child program: runs a module, and ends at once when its parent does, which holds its stdin.

`python -m tests.crash.with_parent MODULE ARGUMENT...`
"""

import os
import runpy
import sys
import threading


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def main(module: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
