"""`python -m tests.support.shifted_clock --shift-s=N ...`: a broker whose wall clock is ahead by so
much, or behind. That all of its code asks `time.time` and `time.time_ns` makes it one."""

import sys
import time

from broker.__main__ import main

_time, _time_ns = time.time, time.time_ns

if __name__ == "__main__":
    shift_s = int(sys.argv.pop(1).removeprefix("--shift-s="))
    time.time = lambda: _time() + shift_s
    time.time_ns = lambda: _time_ns() + shift_s * 1_000_000_000
    sys.exit(main())
