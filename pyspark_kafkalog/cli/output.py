"""What commands print: text for people, or JSON for programs.

What was asked for (`row`) goes to stdout always, one line or one JSON object each; what was done
(`say`) too, unless it is to be quiet; errors (`say_error`) go to stderr.

Names of groups, clients and hosts may be anything: what a terminal would obey is shown by its
number.
"""

import select
import sys
from dataclasses import dataclass
from typing import Any

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
_SHOWN = {each: f"\\x{each:02x}" for each in _CONTROLS} | {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}
_SHOWN_IN_JSON = {each: f"\\u{each:04x}" for each in _CONTROLS}


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's words go, as --format and --quiet want them."""

    as_json: bool = False
    is_quiet: bool = False

    def row(self, *lines: str, **document: Any) -> None:
        """Something that was asked for: `lines`, or `document` as one line of JSON."""
        if not self.as_json:
            print("\n".join(map(without_controls, lines)))
            return
        import json

        has_all_letters = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        text = json.dumps(document, ensure_ascii=not has_all_letters, default=str)
        print(text.translate(_SHOWN_IN_JSON))

    def say(self, *lines: str, **document: Any) -> None:
        """Something that was done."""
        if not self.is_quiet:
            self.row(*lines, **document)


def say_error(text: str) -> None:
    """What went wrong, on stderr. It may have several lines, as what a broker said last has."""
    shown = "\n".join(map(without_controls, text.split("\n")))
    print(f"kafkalog: {shown}", file=sys.stderr, flush=True)


def without_controls(text: str) -> str:
    """A text in which nothing moves a terminal's cursor or ends a line."""
    return text.translate(_SHOWN)


def is_stdout_closed() -> bool:
    """Whether nobody reads the pipe, or the socket, that we write to."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))
