"""Runs pages of the documentation, one after the other, with one Spark for all of them.

Each line on stdin is a request in JSON, `{"page": ..., "folder": ..., "program": ...}`; each is
answered by a line on stdout, `{"error": ...}`, the traceback or null. What pages print goes to
stderr. Ends with its stdin.
"""

import json
import os
import sys
import traceback


def run(page: str, folder: str, program: str) -> str | None:
    os.chdir(folder)
    try:
        # As a program of its own: functions travel to Spark's workers by value.
        exec(compile(program, page, "exec"), {"__name__": "__main__"})
    except BaseException:
        return traceback.format_exc()
    return None


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        error = run(**json.loads(line))
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
