"""Rules of the house that no tool knows: how long a function is, and what it hands on."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_LINES = 70

LONG = {
    "tests/broker/api/test_dispatcher.py: partition_requests": "a table of requests",
}
"""Functions that are longer, each with its reason."""


def test_functions_fit_a_screen_or_two() -> None:
    found = {
        f"{path}: {function.name}"
        for path, tree in modules("broker", "pyspark_kafkalog", "benchmarks", "tests")
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        and lines_of(function) > MOST_LINES
    }
    assert found == set(LONG)


MOST_PARAMETERS = 8

WIDE = {
    "pyspark_kafkalog/protocol/produce.py: __init__": "the fields of a message",
    "pyspark_kafkalog/warehouse/load.py: load": "what a user may say, by keyword",
}
"""Functions that take more, each with its reason."""


def test_functions_take_at_most_eight_parameters() -> None:
    found = {
        f"{path}: {function.name}"
        for path, tree in modules("broker", "pyspark_kafkalog", "benchmarks")
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        and parameters_of(function) > MOST_PARAMETERS
    }
    assert found == set(WIDE)


def test_no_tuple_is_read_by_index_inside_of_another() -> None:
    """What holds several things has names for them: `sent.due`, not `sent[0][2]`."""
    found = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in modules("broker", "pyspark_kafkalog", "benchmarks")
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        if index_of(node) is not None and index_of(node.value) is not None
    ]
    assert found == []


def test_every_class_says_what_it_is() -> None:
    """In its own docstring, which an API reference prints, and not by a word on where to look."""
    found = [
        f"{path}:{node.lineno}: {node.name}"
        for path, tree in modules("broker", "pyspark_kafkalog")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        if (ast.get_docstring(node) or "see").lower().startswith("see")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "index"), [("a[0]", 0), ("a[0][2]", 2), ("a[-1]", None), ("a[b]", None), ("a", None)]
)
def test_an_index_is_found(text: str, index: int | None) -> None:
    assert index_of(ast.parse(text, mode="eval").body) == index


def modules(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without its docstring."""
    assert function.end_lineno is not None
    first = function.body[0]
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """But for `self` and `cls`."""
    arguments = function.args
    names = [each.arg for each in (*arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def index_of(node: ast.AST) -> int | None:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        value = node.slice.value
        return value if isinstance(value, int) else None
    return None
