"""Handlers are given what their family of APIs needs, and no more."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from broker.api import contexts
from broker.api.apis import APIS
from broker.api.cluster_apis import CLUSTER_APIS

CLASSES = sorted({api.context for api in (*APIS, *CLUSTER_APIS)}, key=lambda each: each.__name__)
# Read through a property, and as it is.
READ_AS = {"configs": r"configs?\b|longest_wait_ms"}


def test_every_context_is_some_apis() -> None:
    found = inspect.getmembers(contexts, inspect.isclass)
    assert [each for name, each in found if name.endswith("Context")] == CLASSES


@pytest.mark.parametrize("context", CLASSES)
def test_every_part_of_a_context_is_read_by_its_family(context: type) -> None:
    folder = Path(contexts.__file__).parent
    texts = [path.read_text() for path in folder.glob("*.py") if path.stem != "contexts"]
    family = "".join(text for text in texts if re.search(rf"\b{context.__name__}\b", text))
    names = [field.name for field in fields(context)]
    unread = [n for n in names if not re.search(rf"context\.({READ_AS.get(n, n)})\b", family)]
    assert unread == []
