"""How decoded values are written as JSON where somebody looks at them. Pure functions."""

import base64
import math
from datetime import timedelta
from decimal import Decimal
from typing import Any

import orjson


def as_json(value: Any) -> bytes:
    """In UTF-8. Numbers that JSON has not are "NaN", "Infinity" and "-Infinity", as in Protobuf's
    JSON; raises orjson.JSONEncodeError for what it cannot write."""
    text = orjson.dumps(value, _of_other_types)
    if b"null" not in text:  # as which orjson writes them
        return text
    return orjson.dumps(_named(value), _of_other_types)


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _named(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_named(each) for each in value]
    return value


def _of_other_types(value: Any) -> Any:
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
