"""Rules of the house that no tool knows: how long a function is, what it hands on, and how a test
waits."""

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module", autouse=True)
def without_collecting() -> Iterator[None]:
    """A million nodes of trees, none of them garbage: looking for some takes most of the time."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


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


SLEEPING = {
    "tests/broker/api/slow_disk.py: pwrite": "a disk that is slow",
    "tests/broker/api/test_consumer_groups.py: wait_for_interval": "in which Apache Kafka, too, "
    "assigns nothing anew, and says nothing at its end",
    "tests/broker/api/test_produce.py: "
    "test_a_topic_that_is_created_again_while_a_batch_is_converted_gets_nothing": "nothing tells "
    "that a request has arrived before it is answered",
    "tests/broker/network/conftest.py: __call__": "a handler that is slow",
    "tests/broker/replica/test_fetcher.py: exchange": "a leader that is asked over a network",
    "tests/chaos/proxy.py: _end": "a network that is slow",
    "tests/interop/test_admin_tools.py: settle": "nothing tells that the last of Apache Kafka's "
    "brokers knows of a change",
    "tests/pyspark_kafkalog/cli/test_consume.py: test_records_are_printed_as_they_come": "nothing "
    "tells that what was printed counts as printed",
    "tests/pyspark_kafkalog/cli/test_consume.py: "
    "test_an_idle_tail_takes_no_processor_time": "how much is used in a time",
    "tests/pyspark_kafkalog/cli/test_consume.py: "
    "test_a_partition_that_has_stopped_takes_none_while_others_are_waited_for": "how much is used "
    "in a time",
    "tests/pyspark_kafkalog/client/test_fetcher.py: "
    "test_a_slow_reader_is_no_stuck_partition": "a reader that is slow",
    "tests/pyspark_kafkalog/client/test_producer.py: "
    "test_a_time_without_calls_is_not_counted_against_what_was_never_sent": "a time without calls",
}
"""Functions that let time pass because it is what they are about, or for want of an event."""


def test_tests_await_events() -> None:
    """By `tests/support/patience.py`, without sleeping or looking at the clock in a loop."""
    found = {
        f"{path}: {function.name}"
        for path, tree in modules("tests")
        if not path.startswith("tests/support/")
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        if any(map(waits_by_hand, own_nodes(function)))
    }
    assert found == set(SLEEPING)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time.sleep(1)", True),
        ("await asyncio.sleep(0)", True),
        ("sleep(1)", True),
        ("while time.monotonic() < until_s: poll()", True),
        ("while not done:\n    assert time.time() < until_s", True),
        ("monkeypatch.setattr(time, 'sleep', slept.append)", False),
        ("while not stopping.wait(0.1): produce()", False),
        ("assert time.monotonic() < until_s", False),
    ],
)
def test_waiting_by_hand_is_found(text: str, expected: bool) -> None:
    assert any(map(waits_by_hand, ast.walk(ast.parse(text)))) is expected


@pytest.mark.parametrize(
    ("text", "index"), [("a[0]", 0), ("a[0][2]", 2), ("a[-1]", None), ("a[b]", None), ("a", None)]
)
def test_an_index_is_found(text: str, index: int | None) -> None:
    assert index_of(ast.parse(text, mode="eval").body) == index


def modules(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), tree_of(path)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


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


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """But for those of functions inside of it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
            yield from own_nodes(node)


def waits_by_hand(node: ast.AST) -> bool:
    if isinstance(node, ast.While):
        return any(called(each) in ("time.monotonic", "time.time") for each in ast.walk(node))
    return called(node) in ("time.sleep", "asyncio.sleep", "sleep")


def called(node: ast.AST) -> str:
    """The name of what is called there, if anything is."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def index_of(node: ast.AST) -> int | None:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        value = node.slice.value
        return value if isinstance(value, int) else None
    return None
