"""The function that a command line or a file names as MODULE:FUNCTION, for tasks elsewhere, too."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pyspark_kafkalog.errors import InvalidOptionError


def function_named(name: str) -> Callable[..., Any]:
    """Of MODULE:FUNCTION; modules are looked for in this directory, too. Raises
    InvalidOptionError."""
    from pyspark import cloudpickle

    module_name, _, function_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
        function: Callable[..., Any] = getattr(module, function_name)
    except (Exception, SystemExit) as error:  # whatever the module raises
        told = isinstance(error, ImportError | AttributeError | ValueError | SyntaxError)
        what = str(error) if told else f"{type(error).__name__}: {error}"
        raise InvalidOptionError(
            f"transform {name} cannot be imported: {what}. Write MODULE:FUNCTION."
        ) from None
    # Else tasks would have to find the module where they run. Python's own are everywhere.
    if module_name.partition(".")[0] not in sys.stdlib_module_names:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return function
