"""What a text of loads.toml may stand for: `${NAME}`, a variable of the environment, and
`${file:PATH}`, what a file says, such as a mounted secret. `$${` is `${` itself.

What they stand for is in no message: it may be a secret.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark_kafkalog.errors import InvalidOptionError

_PLACE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_FILE = "file:"
_MOST_BYTES = 1024 * 1024
_SHORTEST_SECRET = 4


class Expansion:
    """Puts in what texts stand for, files from `folder`, and takes it out of messages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, str] = {}

    def expanded(self, value: Any) -> Any:
        """A value of TOML with all that its texts stand for; raises InvalidOptionError."""
        if isinstance(value, str):
            return _PLACE.sub(self._put, value)
        if isinstance(value, list):
            return [self.expanded(each) for each in value]
        if isinstance(value, dict):
            return {name: self.expanded(each) for name, each in value.items()}
        return value

    def hidden(self, message: str) -> str:
        """A message that says what was written where it said what that stands for."""
        for meant in sorted(self._written, key=len, reverse=True):
            for said in (meant, repr(meant)[1:-1]):
                message = message.replace(said, self._written[meant])
        return message

    def _put(self, found: "re.Match[str]") -> str:
        meant = _meant(self._folder)(found)
        if len(meant) >= _SHORTEST_SECRET:
            self._written[meant] = found[0]
        return meant


def _meant(folder: Path) -> "Callable[[re.Match[str]], str]":
    def meant(found: "re.Match[str]") -> str:
        name = found[1]
        if name is None:
            return "${"
        if name.startswith(_FILE):
            return _content(folder / name.removeprefix(_FILE).strip())
        if name not in os.environ:
            raise InvalidOptionError(
                f"the environment has no variable {name}; what is to be ${{ itself is written $${{"
            )
        return os.environ[name]

    return meant


def _content(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8, or no path"
        raise InvalidOptionError(f"{path} cannot be read: {why}") from None
    if len(text) > _MOST_BYTES:
        raise InvalidOptionError(f"{path} is too long for the value of a setting")
    return text.rstrip("\r\n")
