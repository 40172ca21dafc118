"""The java.util.Properties text format: server.properties, meta.properties, files of clients.

One `key=value` a line; `:` or white space may stand for `=`; `#` and `!` begin comment lines; a
trailing backslash joins the next line; backslash escapes as in Java (also four-digit unicode).
Pure functions on text: any thread. Never opens a file.
"""

import re
from collections.abc import Iterator, Mapping

__all__ = ["format_properties", "logical_lines", "parse_properties"]

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ENTRY = re.compile(r"((?:\\.|[^ \t\f=:\\])+)[ \t\f]*[=: \t\f]?[ \t\f]*(.*)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """Key to value; of a repeated key the last one counts, as in Java."""
    entries: dict[str, str] = {}
    for line in logical_lines(text):
        match = _ENTRY.match(line)
        if match:
            entries[_unescape(match[1])] = _unescape(match[2])
    return entries


def format_properties(entries: Mapping[str, str]) -> str:
    """Text that `parse_properties` (and Java) reads back as `entries`."""
    return "".join(f"{_escape(key, key=True)}={_escape(value)}\n" for key, value in entries.items())


def logical_lines(text: str) -> Iterator[str]:
    """Those that say something, each with what a backslash at its end joins to it."""
    pending = ""
    for raw in re.split(r"\r\n|\n|\r", text):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 5:
            return chr(int(code[1:], 16))
        return _NAMED.get(code, code)

    return _ESCAPE.sub(plain, text)


def _escape(text: str, *, key: bool = False) -> str:
    escaped = text.replace("\\", "\\\\")
    for letter, character in _NAMED.items():
        escaped = escaped.replace(character, "\\" + letter)
    if key:
        return re.sub(r"([ =:#!])", r"\\\1", escaped)
    return re.sub(r"^ ", r"\\ ", escaped)
