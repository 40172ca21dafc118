"""A mutant: one planted bug, and the lists of them.

`lists/*.txt` hold them, a file for each room. A mutant is a block of lines; blocks are apart by
blank lines, and a line that begins with `#` is a remark:

    broker/log/retention.py: tests/broker/log/test_log.py -k retention
    - the text to replace: a whole line of the file or a part of one, found exactly once
    + what comes in its place: nothing where there is no such line
    ? why the tests may pass with it, where they are expected to

Behind the colon are pytest's arguments, the fewest tests that fail with the bug. Several `-` or `+`
lines are several lines of the file. Where a text is not unique by itself, the line before it makes
it so. What is left has to be Python.
"""

import ast
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LISTS = Path(__file__).parent / "lists"


class MutantError(Exception):
    """A mutant that is no more: its text is gone, or what it makes is no Python."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`path` is relative to the repository; `survives` says why, or is empty."""

    place: str
    """Where it is listed: `coordinator:12`, its list and line."""
    path: str
    tests: tuple[str, ...]
    old: str
    new: str
    survives: str

    def plant(self, text: str) -> str:
        """The file's text with the bug in it. Raises MutantError."""
        count = text.count(self.old)
        if count != 1:
            raise MutantError(f"{self.place}: found {count} times in {self.path}: {self.old!r}")
        planted = text.replace(self.old, self.new)
        try:
            ast.parse(planted)
        except SyntaxError as error:
            raise MutantError(f"{self.place}: no Python is left of {self.path}: {error}") from error
        return planted


def read_lists(folder: Path = LISTS) -> list[Mutant]:
    """All of them, in the order of the lists. Raises MutantError."""
    return [mutant for path in sorted(folder.glob("*.txt")) for mutant in _read(path)]


def _read(path: Path) -> Iterator[Mutant]:
    block: list[str] = []
    first = 0
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate([*lines, ""], 1):
        if line.startswith("#"):
            continue
        if line.strip():
            first = first if block else number
            block.append(line)
        elif block:
            yield _mutant(f"{path.stem}:{first}", block)
            block = []


def _mutant(place: str, block: list[str]) -> Mutant:
    file, _, tests = block[0].partition(": ")
    parts: dict[str, list[str]] = {"-": [], "+": [], "?": []}
    for line in block[1:]:
        if line[0] not in parts or line[1:2] not in (" ", ""):
            raise MutantError(f"{place}: not a line of a mutant: {line!r}")
        parts[line[0]].append(line[2:])
    old, new = "\n".join(parts["-"]), "\n".join(parts["+"])
    if not old.strip() or old == new or not tests:
        raise MutantError(f"{place}: a mutant has a file, its tests, an old and another new text")
    return Mutant(place, file, tuple(shlex.split(tests)), old, new, " ".join(parts["?"]))
