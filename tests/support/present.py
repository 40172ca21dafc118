"""What may be None, where a test knows that it is not."""

from typing import TypeVar

_Value = TypeVar("_Value")


def present(value: _Value | None) -> _Value:
    """The value; AssertionError where there is none."""
    assert value is not None
    return value
