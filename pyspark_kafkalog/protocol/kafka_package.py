"""kafka-python, opened no further than it is used.

The package's own code imports its clients: 110 modules of which nothing here uses one. They are a
tenth of a broker's start and 5 MB, a quarter of the start of a process that lands records. So its
modules are imported without that; it runs when somebody asks the package for a name that is not
there, such as KafkaConsumer. Nothing is changed where the package was imported before.

For processes that are ours, or that Spark started for us; in a user's own the package stays as it
is.
"""

import sys
import threading
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_opening = threading.RLock()


class _Unopened(ModuleType):
    """A package whose own code has not run."""

    def __getattr__(self, name: str) -> Any:
        with _opening:
            # Its code runs once: what it imports asks for names that are not there yet.
            if not vars(self).setdefault("_is_opening", False):
                vars(self)["_is_opening"] = True
                assert self.__spec__ is not None
                assert self.__spec__.loader is not None
                self.__spec__.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
                del vars(self)["_is_opening"]
        return object.__getattribute__(self, name)


def leave_unopened() -> None:
    """To be called before anything of kafka-python is imported."""
    spec = None if "kafka" in sys.modules else find_spec("kafka")
    if spec is not None:
        package = module_from_spec(spec)
        package.__class__ = _Unopened
        sys.modules["kafka"] = package
