"""Child program of test_target_crash: loads once, to be killed before one of its calls.

`python -m ...killed_table_loader TARGET UNTIL_OFFSET [headers|upsert|maintain|rewind]`, for a
column that is new in the table, for upserts that change some rows and delete others, and instead of
a load for maintenance, or for one that goes back to UNTIL_OFFSET, with the library of
kill_before_call.c preloaded: for each number read from stdin, forks, works in the child with
SIGKILL before that call, and prints `killed`, or `ended N` where it came to its end first, with N
calls. A negative number works without any harm. A program of its own because forking needs a
process without threads.
"""

import ctypes
import os
import sys

from pyspark_kafkalog.warehouse.maintain import maintain
from pyspark_kafkalog.warehouse.rewind import rewind
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import load
from tests.pyspark_kafkalog.warehouse.upsert_loader import Record, next_offset, upsert

CHANGES = [
    Record(b"a", b"new"),
    Record(b"b", None),
    Record(b"c", b"1"),
    Record(b"c", b"2"),
    Record(b"gone", b"back"),
]
"""What upserts load, after what is there: rows a and b, and a key gone that was deleted."""

UNASKED = {"failOnDataLoss": "false"}
"""Without brokers."""


def main(target: str, until_offset: int, what: str) -> None:
    headers = what == "headers"
    calls = ctypes.CDLL(None)
    open_target(target)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            opened = open_target(target)
            calls.kafkalog_arm(int(line))
            if what == "maintain":
                maintain(target, retention_hours=0, force=True)
            elif what == "rewind":
                to = {"orders": {"0": until_offset, "1": until_offset}}
                rewind(target, "nightly", to, truncate_after=True, options=UNASKED)
            elif what == "upsert":
                upsert(opened, "nightly", *CHANGES[max(next_offset(opened, "nightly") - 4, 0) :])
            else:
                load(opened, "nightly", until_offset, headers, SchemaChange(adds=headers or None))
            count = calls.kafkalog_count()
            # What follows is no part of the load.
            calls.kafkalog_arm(-1)
            print(f"ended {count}", flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            print("killed", flush=True)
        elif status:
            print("failed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "".join(sys.argv[3:]))
