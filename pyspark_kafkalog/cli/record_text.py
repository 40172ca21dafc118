"""Records as text: what `consume --format` may be.

`raw` has values, one a line; `json` one object a line; everything else is a template, in which %s
(or %v) stands for the value, %k for the key, %t topic, %p partition, %o offset, %T timestamp in ms,
%h headers as NAME=VALUE with commas between, %S and %K for the bytes of value and key (-1: null),
and %% for %, with \\n, \\t, \\r, \\0, \\\\ and \\xHH as in kcat. What is null is empty; a
header's value is NULL.

Whole Arrow batches become bytes at once, as long as it goes without Python's objects.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.decoding.values_as_json import as_json, readable
from pyspark_kafkalog.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark_kafkalog.decoding.decoder import Decoder

_Pieces: TypeAlias = "list[pa.Array | bytes]"
"""What lines are made of: of each row its own, or bytes that are the same in all."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_CALENDAR_US = -62_135_596_800_000_000
_END_OF_CALENDAR_US = 253_402_300_800_000_000
"""The years 1 to 9999, which Python's calendar has."""
_SPACE = 0x20
"""All before it is a control character, which JSON escapes."""
_DIRECTIVE = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_COLUMN_OF = {
    **dict.fromkeys("svS", "value"),
    **dict.fromkeys("kK", "key"),
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp",
    "h": "headers",
}
_JSON_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")


class RecordText:
    """What records look like, as `--format` says: bytes of Arrow batches that have `columns`."""

    def __init__(self, wanted: str, decoder: "Decoder | None") -> None:
        """`decoder` is for values, None for those that are shown as they are. Raises
        InvalidOptionError for what is neither raw nor json nor a template."""
        self._decoder = decoder
        if wanted == "json":
            self.columns: tuple[str, ...] = _JSON_COLUMNS
            self._text: Callable[[pa.RecordBatch], Any] = self._json
            return
        pieces = _parse("%s\\n" if wanted == "raw" else wanted)
        if not any(isinstance(piece, str) for piece in pieces):
            raise InvalidOptionError(
                f"--format is {wanted!r}. Give raw, json, or a template such as "
                "'%t %p %o %k %v\\n'."
            )
        named = {_COLUMN_OF[piece] for piece in pieces if isinstance(piece, str)}
        self.columns = (*(name for name in _JSON_COLUMNS if name in named | {"offset"}),)
        self._text = lambda records: self._fill(pieces, records)

    def of(self, records: "pa.RecordBatch") -> Any:
        """The records' text in UTF-8, as bytes or a view of bytes."""
        return self._text(records) if records.num_rows else b""

    def _fill(self, pieces: list[str | bytes], records: "pa.RecordBatch") -> memoryview:
        return _joined(
            piece if isinstance(piece, bytes) else self._column(piece, records) for piece in pieces
        )

    def _column(self, letter: str, records: "pa.RecordBatch") -> "pa.Array":
        column = records.column(_COLUMN_OF[letter])
        if letter in "sv" and self._decoder is not None:
            return pa.array(map(_json_text, self._values(column)[0]), pa.binary())
        if letter in "SK":
            return _text(pc.fill_null(pc.binary_length(column), -1))
        if letter == "h":
            return pa.array(map(_headers_text, column.to_pylist()), pa.binary())
        if letter == "T":
            return _text(pc.fill_null(_millis(column), -1))
        return column if column.type == pa.binary() else _text(column)

    def _json(self, records: "pa.RecordBatch") -> memoryview:
        # All are of one partition.
        (topic,), (partition,) = (
            records.column(name).slice(0, 1).to_pylist() for name in ("topic", "partition")
        )
        value, error = self._json_values(records.column("value"))
        return _joined(
            [
                b'{"topic":' + orjson.dumps(topic) + b',"partition":%d,"offset":' % partition,
                _text(records.column("offset")),
                b',"timestamp":',
                *_json_times(records.column("timestamp")),
                b',"key":',
                *_json_texts(records.column("key")),
                b',"value":',
                *value,
                error,
                _json_headers(records.column("headers")),
                b"}\n",
            ]
        )

    def _json_values(self, column: "pa.Array") -> "tuple[_Pieces, pa.Array | bytes]":
        if self._decoder is None:
            return _json_texts(column), b""
        values, errors = self._values(column)
        told = [
            b',"value_error":' + orjson.dumps(errors[row]) if row in errors else b""
            for row in range(len(values))
        ]
        return [_of_values(values)], pa.array(told, pa.binary())

    def _values(self, column: "pa.Array") -> tuple[list[Any], Mapping[int, str]]:
        """Decoded values, and why some could not be decoded: these are as they came."""
        assert self._decoder is not None
        decoded = self._decoder.decode(column)
        values, others = _of_python(decoded.column)
        errors = {**decoded.errors, **others}
        for row in errors:
            values[row] = readable(column[row].as_py())
        return values, errors


def _of_python(column: "pa.Array") -> tuple[list[Any], dict[int, str]]:
    """Python's values, and why some are None instead: its calendar ends with the year 9999."""
    try:
        return column.to_pylist(), {}
    except (OverflowError, ValueError):
        values: list[Any] = []
        errors = {}
        for row, value in enumerate(column):
            try:
                values.append(value.as_py())
            except (OverflowError, ValueError) as error:
                values.append(None)
                errors[row] = f"a value that cannot be shown: {error}"
        return values, errors


def _parse(template: str) -> list[str | bytes]:
    """Letters of directives, and the bytes between them."""
    pieces: list[str | bytes] = []
    position = 0
    for found in _DIRECTIVE.finditer(template):
        pieces.append(template[position : found.start()].encode())
        position = found.end()
        letter, escape = found[1], found[2]
        if letter == "%":
            pieces.append(b"%")
        elif letter is not None:
            if letter not in _COLUMN_OF:
                raise InvalidOptionError(
                    f"--format has %{letter}, which stands for nothing. Write one of "
                    f"{' '.join('%' + each for each in _COLUMN_OF)}, or %%."
                )
            pieces.append(letter)
        elif escape.startswith("x"):
            pieces.append(bytes.fromhex(escape[1:]))
        else:
            pieces.append(_ESCAPES.get(escape, b"\\" + escape.encode()))
    pieces.append(template[position:].encode())
    return [piece for piece in pieces if piece]


def _joined(pieces: "Iterable[pa.Array | bytes]") -> memoryview:
    """The bytes of all rows, one after the other: of each its pieces, null for nothing."""
    columns = []
    for is_same, group in groupby(pieces, lambda piece: isinstance(piece, bytes)):
        if is_same:
            columns.append(pa.scalar(b"".join(group), pa.binary()))
        else:
            columns += [pc.fill_null(piece, b"") for piece in group]
    joined = pc.binary_join_element_wise(*columns, b"")
    _, ends, data = joined.buffers()
    first, last = (
        memoryview(ends).cast("B").cast("i")[joined.offset + row] for row in (0, len(joined))
    )
    return memoryview(b"" if data is None else data)[first:last]


def _text(column: "pa.Array") -> "pa.Array":
    return column.cast(pa.string()).cast(pa.binary())


def _millis(column: "pa.Array") -> "pa.Array":
    return pc.divide(column.cast(pa.int64()), 1000)


def _headers_text(headers: list[dict[str, Any]] | None) -> bytes:
    return b",".join(
        (h["key"] or "").encode() + b"=" + (b"NULL" if h["value"] is None else h["value"])
        for h in headers or ()
    )


def _json_text(value: Any) -> bytes:
    """A decoded value as a line shows it: text as it is, everything else as JSON."""
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else as_json(value)


def _of_values(values: list[Any]) -> "pa.Array":
    return pa.array([as_json(value) for value in values], pa.binary())


def _json_texts(column: "pa.Array") -> "_Pieces":
    """Keys or values as JSON: text, or base64 where they are no UTF-8."""
    if column.null_count == len(column):
        return [b"null"]
    try:
        text = column.cast(pa.string())
    except pa.ArrowInvalid:
        return [_of_values([readable(value) for value in column.to_pylist()])]
    letters = _letters(text)
    least = pc.min(_numbers(letters)).as_py()
    if least is not None and least < _SPACE:
        return [_of_values(text.to_pylist())]
    for letter in ("\\", '"'):
        if letter.encode() in letters:
            text = pc.replace_substring(text, letter, "\\" + letter)
    return _quoted(text)


def _letters(text: "pa.Array") -> bytes:
    """All bytes of all rows, one after the other."""
    _, ends, data = text.buffers()
    if data is None:
        return b""
    first, last = (
        memoryview(ends).cast("B").cast("i")[text.offset + row] for row in (0, len(text))
    )
    return memoryview(data)[first:last].tobytes()


def _numbers(data: bytes) -> "pa.Array":
    return pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])


def _quoted(text: "pa.Array", more: str = "") -> "_Pieces":
    """Texts with `more` after each, in quotes; null for nothing."""
    if not text.null_count:
        return [b'"', text.cast(pa.binary()), f'{more}"'.encode()]
    quoted = pc.binary_join_element_wise('"', text, f'{more}"', "")
    return [pc.fill_null(quoted, "null").cast(pa.binary())]


def _json_headers(column: "pa.Array") -> "pa.Array | bytes":
    lengths = pc.list_value_length(column)
    if not pc.any(pc.greater(lengths, 0)).as_py():
        return b""
    lines = (
        b',"headers":' + orjson.dumps([[h["key"], readable(h["value"])] for h in headers])
        if headers
        else b""
        for headers in column.to_pylist()
    )
    return pa.array(lines, pa.binary())


def _json_times(column: "pa.Array") -> "_Pieces":
    """ISO 8601; the number of milliseconds where a producer's clock counts beyond year 9999."""
    span = pc.min_max(column.cast(pa.int64())).as_py()
    first, last = span["min"], span["max"]
    if first is None or first < _CALENDAR_US or last >= _END_OF_CALENDAR_US:
        return [_of_values([_time(micros) for micros in column.cast(pa.int64()).to_pylist()])]
    text = column.cast(pa.timestamp("ms"), safe=False).cast(pa.string())
    return _quoted(pc.replace_substring(text, " ", "T"), "+00:00")


def _time(micros: int | None) -> str | int | None:
    if micros is None:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="milliseconds")
    except OverflowError:
        return micros // 1000
