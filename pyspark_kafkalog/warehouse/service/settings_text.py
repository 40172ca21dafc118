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


def expanded(value: Any, folder: Path) -> Any:
    """A value of TOML with all that its texts stand for; files are looked for in `folder`. Raises
    InvalidOptionError."""
    if isinstance(value, str):
        return _PLACE.sub(_meant(folder), value)
    if isinstance(value, list):
        return [expanded(each, folder) for each in value]
    if isinstance(value, dict):
        return {name: expanded(each, folder) for name, each in value.items()}
    return value


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
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise InvalidOptionError(f"{path} cannot be read: {why}") from None
    if len(text) > _MOST_BYTES:
        raise InvalidOptionError(f"{path} is too long for the value of a setting")
    return text.rstrip("\r\n")
