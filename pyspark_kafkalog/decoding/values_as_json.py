"""How decoded values are written as JSON where somebody looks at them. Pure functions."""

import base64
from datetime import timedelta
from decimal import Decimal
from typing import Any


def of_other_types(value: Any) -> Any:
    """What orjson asks for values that JSON does not know."""
    if isinstance(value, bytes):
        return readable(value)
    if isinstance(value, Decimal | timedelta):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


def readable(data: bytes | None) -> str | dict[str, str] | None:
    """Text as it is; what is no UTF-8 as base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
