"""On which line of a TOML file a table or a key stands, which Python's parser does not tell.

For files that were parsed before: what is no TOML is not noticed here. Knows as much of the format
as is needed to tell a key from what looks like one in a text or an array of many lines.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field

_HEADER = re.compile(r"\[{1,2}\s*([^\]]+?)\s*\]{1,2}")
_KEY = re.compile(r"""([A-Za-z0-9_-]+|"[^"]*"|'[^']*')\s*[.=]""")
_TEXT = re.compile(r"\"\"\"|'''|\"(?:\\.|[^\"\\])*\"|'[^']*'|#.*|[\[\]{}]")


@dataclass(slots=True)
class TableLines:
    """Where a table begins, and each of its keys."""

    line: int
    keys: dict[str, int] = field(default_factory=dict)

    def of(self, key: str) -> int:
        """The key's line, or the table's where it does not stand there."""
        return self.keys.get(key, self.line)


def table_lines(text: str) -> dict[str, list[TableLines]]:
    """The tables by name, those of an array in their order; "" is what stands before all of them.
    Keys of a subtable have the line of its head, as its own key has."""
    tables: dict[str, list[TableLines]] = defaultdict(list)
    tables[""].append(TableLines(1))
    here = tables[""][0]
    is_below = False
    open_text, depth = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not open_text and not depth:
            head = line.strip()
            if found := _HEADER.match(head):
                name, *below = [part.strip().strip("\"'") for part in found[1].split(".")]
                is_below = bool(below)
                if is_below and tables[name]:
                    here = tables[name][-1]
                else:
                    here = TableLines(number)
                    tables[name].append(here)
                if is_below:
                    here.keys.setdefault(below[0], number)
                continue
            if (found := _KEY.match(head)) and not is_below:
                here.keys.setdefault(found[1].strip("\"'"), number)
        open_text, depth = _after(line, open_text, depth)
    return tables


def _after(line: str, open_text: str, depth: int) -> tuple[str, int]:
    """Which text of many lines is open at the end of a line, and how many brackets."""
    at = 0
    while at < len(line):
        if open_text:
            end = line.find(open_text, at)
            if end < 0:
                return open_text, depth
            at, open_text = end + 3, ""
            continue
        found = _TEXT.search(line, at)
        if found is None:
            break
        at = found.end()
        if found[0] in ('"""', "'''"):
            open_text = found[0]
        elif found[0] in "[{":
            depth += 1
        elif found[0] in "]}":
            depth -= 1
    return open_text, depth
