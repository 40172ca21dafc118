"""`python -m tests.broker.api.slow_disk`: our broker, whose large writes take half a second."""

import os
import sys
import time
from collections.abc import Callable

from typing_extensions import Buffer

from broker.__main__ import main

SECOND_LARGE = 2
_LARGE_BYTES = 500_000
_written = [0]


def _slowly(write: Callable[[int, Buffer, int], int]) -> Callable[[int, Buffer, int], int]:
    def pwrite(descriptor: int, data: Buffer, position: int) -> int:
        if memoryview(data).nbytes >= _LARGE_BYTES:
            _written[0] += 1
            if _written[0] == SECOND_LARGE:
                print("writing", flush=True)
                time.sleep(0.5)
        return write(descriptor, data, position)

    return pwrite


if __name__ == "__main__":
    os.pwrite = _slowly(os.pwrite)
    sys.exit(main())
