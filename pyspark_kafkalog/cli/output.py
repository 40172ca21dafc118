"""What commands print: text for people, or JSON for programs.

What was asked for (`row`) goes to stdout always, one line or one JSON object each; what was done
(`say`) too, unless it is to be quiet. Errors are not printed here.
"""

import select
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's words go, as --format and --quiet want them."""

    as_json: bool = False
    is_quiet: bool = False

    def row(self, text: str, **document: Any) -> None:
        """Something that was asked for: `text`, or `document` as one line of JSON."""
        if not self.as_json:
            print(text)
            return
        import json

        has_all_letters = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        print(json.dumps(document, ensure_ascii=not has_all_letters, default=str))

    def say(self, text: str, **document: Any) -> None:
        """Something that was done."""
        if not self.is_quiet:
            self.row(text, **document)


def is_stdout_closed() -> bool:
    """Whether nobody reads the pipe, or the socket, that we write to."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))
