"""A function by its name: what tasks are sent of it."""

import pickle
import subprocess
import sys
from pathlib import Path

SENT = """
import pickle, sys
from pyspark import cloudpickle
from pyspark_kafkalog.warehouse.named_function import function_named
functions = [function_named(name) for name in ("builtins:len", "mine:double")]
sys.stdout.buffer.write(cloudpickle.dumps((*functions, lambda: open, int)))
"""


def test_modules_of_the_users_go_along_and_pythons_own_do_not(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def double(n):\n    return 2 * n\n")
    sent = subprocess.run([sys.executable, "-c", SENT], cwd=tmp_path, capture_output=True)
    assert sent.stderr == b""
    own, double, opener, kind = pickle.loads(sent.stdout)
    assert (own, opener(), kind) == (len, open, int)
    assert double(21) == 42
