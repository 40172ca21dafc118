"""kafka-python, opened no further than it is used.

The package's own code imports its clients: 110 modules of which a broker uses none, a tenth of its
start and 5 MB. So its modules are imported without that; it runs when somebody asks the package for
a name that is not there, such as KafkaConsumer. Nothing is changed where the package was imported
before.
"""

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


class _Unopened(ModuleType):
    """A package whose own code has not run."""

    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def leave_unopened() -> None:
    """To be called before anything of kafka-python is imported."""
    spec = None if "kafka" in sys.modules else find_spec("kafka")
    if spec is not None:
        package = module_from_spec(spec)
        package.__class__ = _Unopened
        sys.modules["kafka"] = package
