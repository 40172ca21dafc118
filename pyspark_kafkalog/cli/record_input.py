"""Records from lines: what `produce` reads from stdin and files, as Arrow rows of `arrow.encode`.

A line is a value, or a key and a value with a separator between; or, as JSON, an object as
`consume --format json` writes it. Whole chunks of lines become Arrow arrays at once.
"""

import base64
import json
import select
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.arrow.schema import COLUMN_TYPES
from pyspark_kafkalog.errors import InvalidOptionError

_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "value_error", "headers")
"""Of a record that `consume` wrote. Where it lay, and what its value could not be, says nothing of
where it goes."""
_READ_BYTES = 1 << 20
_LARGEST_LINE_BYTES = 64 << 20
_LINGER_S = 0.005
"""How long more is waited for before what is there is sent: a program writes faster than that, and
a person does not notice."""


class BadLineError(InvalidOptionError):
    """A line is no record: the one that comes after as many others as `before` has."""

    def __init__(self, why: str, before: Sequence[bytes] = ()) -> None:
        super().__init__(why)
        self.before = before


@dataclass(frozen=True, slots=True)
class RecordInput:
    """How lines are read, and what all of their records have."""

    is_json: bool = False
    separator: bytes = b""
    null: bytes | None = None
    """Keys and values that are these bytes are null."""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    partition_count: int | None = None
    """Of the topic: JSON may name others."""

    def rows(self, lines: bytes) -> "pa.RecordBatch":
        """The records of whole lines, without the last one's end; raises BadLineError."""
        if self.is_json:
            return self._with_constants(_documents(lines, self.partition_count))
        return self._with_constants(self._keys_and_values(split(lines)))

    def whole(self, value: bytes) -> "pa.RecordBatch":
        """One record."""
        return self._with_constants({"value": pa.array([value], pa.binary())})

    def _keys_and_values(self, lines: "pa.Array") -> dict[str, "pa.Array"]:
        if not self.separator:
            return {"value": self._nulled(lines)}
        parts = pc.split_pattern(lines, self.separator, max_splits=1)
        counts = pc.list_value_length(parts)
        starts = parts.offsets.slice(0, len(parts))
        first = parts.values.take(starts)
        last = parts.values.take(pc.add(starts, pc.subtract(counts, 1)))
        # A line without the separator is a value without key, not a key without value.
        keys = pc.if_else(pc.equal(counts, 2), first, pa.scalar(None, pa.binary()))
        return {"key": self._nulled(keys), "value": self._nulled(last)}

    def _nulled(self, column: "pa.Array") -> "pa.Array":
        if self.null is None:
            return column
        return pc.if_else(pc.equal(column, self.null), pa.scalar(None, pa.binary()), column)

    def _with_constants(self, columns: dict[str, "pa.Array"]) -> "pa.RecordBatch":
        count = len(columns["value"])
        if self.key is not None:
            columns["key"] = pa.repeat(pa.scalar(self.key, pa.binary()), count)
        if self.partition is not None:
            columns["partition"] = pa.repeat(pa.scalar(self.partition, pa.int32()), count)
        if self.headers:
            headers = [{"key": key, "value": value} for key, value in self.headers]
            one = pa.array([headers], COLUMN_TYPES["headers"])
            columns["headers"] = one.take(pa.repeat(pa.scalar(0), count))
        return pa.record_batch(columns)


def chunks(source: Any) -> Iterator[tuple[bytes | None, bool]]:
    """Whole lines as they come, without the end of the last one, and whether more can be read
    without waiting; None where that was but the beginning of a line. Raises BadLineError for a line
    that is too long."""
    # Of a line whose end has not come, the pieces: joining them each time would be quadratic.
    begun: list[bytes] = []
    begun_bytes = 0
    more_was_ready = False
    while chunk := source.read1(_READ_BYTES):
        whole, end, rest = chunk.rpartition(b"\n")
        if end:
            more_was_ready = _is_readable(source)
            yield b"".join([*begun, whole]), more_was_ready
            begun, begun_bytes = [], 0
        elif more_was_ready and not _is_readable(source):
            more_was_ready = False
            yield None, False
        begun.append(rest)
        begun_bytes += len(rest)
        if begun_bytes > _LARGEST_LINE_BYTES:
            raise BadLineError(f"it is longer than {_LARGEST_LINE_BYTES} bytes")
    if begun_bytes:
        yield b"".join(begun), False


def _is_readable(source: Any) -> bool:
    return bool(select.select([source], [], [], _LINGER_S)[0])


def split(lines: bytes) -> "pa.Array":
    """Each line, without a carriage return at its end."""
    if b"\r" in lines:
        lines = lines.replace(b"\r\n", b"\n").removesuffix(b"\r")
    one = pa.array([lines], pa.binary())
    return pc.split_pattern(one, b"\n").values


def _documents(lines: bytes, partition_count: int | None) -> dict[str, "pa.Array"]:
    records = []
    each = lines.split(b"\n")
    for number, line in enumerate(each):
        if not line.strip():
            continue
        try:
            records.append(_record(line, partition_count))
        except orjson.JSONDecodeError as error:
            # It counts lines of its own.
            raise _bad(each, number, f"{error.msg}: character {error.pos + 1}") from None
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise _bad(each, number, str(error)) from None
    return {
        name: pa.array([record[name] for record in records], COLUMN_TYPES[name])
        for name in ("key", "value", "partition", "timestamp", "headers")
    }


def _bad(lines: Sequence[bytes], number: int, why: str) -> BadLineError:
    shown = lines[number][:80].decode(errors="replace")
    return BadLineError(
        f"{shown!r} is no record as `consume --format json` writes it: {why}", lines[:number]
    )


def _record(line: bytes, partition_count: int | None) -> dict[str, Any]:
    document = orjson.loads(line)
    if not isinstance(document, dict):
        raise TypeError("it is no JSON object")
    if unknown := document.keys() - set(_FIELDS):
        # What is left out would be null, and a null value deletes where a topic is compacted.
        raise ValueError(f"it has {min(unknown)!r}, which is none of {', '.join(_FIELDS)}")
    data = [document.get(name) for name in ("key", "value")]
    if not all(each is None or isinstance(each, str) or _is_base64(each) for each in data):
        # Where numbers are to stay what they are, and not the nearest that a double can be.
        exact = json.loads(line, parse_int=orjson.Fragment, parse_float=orjson.Fragment)
        data = [exact.get(name) for name in ("key", "value")]
    return {
        "key": _bytes(data[0]),
        "value": _bytes(data[1]),
        "partition": _partition(document.get("partition"), partition_count),
        "timestamp": _micros(document.get("timestamp")),
        "headers": _headers(document.get("headers") or []),
    }


def _headers(pairs: Any) -> list[dict[str, Any]]:
    if not isinstance(pairs, list):
        raise TypeError("headers are no list of pairs")
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise TypeError("a header is no pair of name and value")
    return [{"key": _name(name), "value": _bytes(value)} for name, value in pairs]


def _bytes(value: Any) -> bytes | None:
    """A text in UTF-8, bytes that are written as {"base64": ...}; other values stay JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if _is_base64(value):
        return base64.b64decode(value["base64"], validate=True)
    return orjson.dumps(value)


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"base64"}


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name {name!r} of a header is no text")
    return name


def _partition(number: Any, count: int | None) -> int | None:
    if number is None:
        return None
    if not (type(number) is int and 0 <= number < 1 << 31):
        raise ValueError(f"partition {number!r} is no number of a partition")
    if count is not None and number >= count:
        raise ValueError(f"the topic has no partition {number}, only 0 to {count - 1}")
    return number


def _micros(timestamp: Any) -> int | None:
    """Of ISO 8601, or of milliseconds; raises OverflowError for a number that Kafka has not."""
    if timestamp is None:
        return None
    if type(timestamp) is int:
        return int(pa.scalar(timestamp * 1000, pa.int64()).as_py())
    if not isinstance(timestamp, str):
        raise TypeError(f"timestamp {timestamp!r} is no time: write ISO 8601, or milliseconds")
    moment = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    return round(moment.timestamp() * 1000) * 1000
