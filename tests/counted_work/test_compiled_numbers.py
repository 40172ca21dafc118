"""What is done for each row makes no number of Python's.

Cython takes a constant of the module, and some literals, for Python's integers, silently: one
comparison with one made decoding three times as slow, and one multiplication encoding six times.
So this reads the C that Cython wrote: each C function, but for what it raises and for the lines
named here, works on C's numbers.
"""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.present import present

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "cython"
_OBJECTS = re.compile(
    r"(?:PyNumber_|__Pyx_PyObject_CompareBool|__Pyx_PyLong_|PyLong_From)\w*\(.*"
    r"__PYX_ERR\(0, (\d+)"
)
ALLOWED = {
    "arrow/decode.py": {
        # Of records alone whose timestamp is no time.
        "rows.without_timestamp.append(rows.count)",
    },
    "arrow/encode.py": set(),
    "decoding/avro_rows.py": {
        # Decimals may have 128 bits, and struct rounds and widens what C would have to be told to.
        "if not -self.bound < unscaled < self.bound:",
        "self.column.append(struct.unpack(code, struct.pack(packed, number))[0])",
        '(number,) = struct.unpack_from("<f", source.data, start)',
        'self.column.append(struct.unpack("<q", struct.pack("<d", number))[0])',
        # Not of each row: a column grows, a field's default is read.
        "larger = pa.allocate_buffer(room_bytes)",
        "self.source.room = room.value_room(self.source.end)",
    },
    "record/record_spans.py": set(),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_c_functions_work_on_numbers_of_c(name: str) -> None:
    path = ROOT / "pyspark_kafkalog" / name
    written = BUILT / "pyspark_kafkalog" / Path(name).with_suffix(".c")
    lines_with_objects = {int(line) for line in _OBJECTS.findall(written.read_text())}
    assert lines_with_objects, "the pattern finds nothing any more"
    source = path.read_text(encoding="utf-8")
    lines = lines_with_objects & lines_of_c_functions(ast.parse(source))
    found = {source.splitlines()[line - 1].strip() for line in lines}
    assert found - ALLOWED[name] == set()


def lines_of_c_functions(module: ast.Module) -> set[int]:
    """Of the bodies of `cython.cfunc` and `cython.ccall`, without what they raise."""
    lines = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and any(map(is_c, node.decorator_list)):
            lines |= span(node.body)
            for inner in ast.walk(node):
                if isinstance(inner, ast.Raise):
                    lines -= span([inner])
    return lines


def span(nodes: Sequence[ast.stmt]) -> set[int]:
    return {line for node in nodes for line in range(node.lineno, present(node.end_lineno) + 1)}


def is_c(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Attribute) and decorator.attr in ("cfunc", "ccall")
