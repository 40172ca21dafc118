"""Keys, values and headers as the page shows them: text, JSON laid out, or bytes as hex.

Only what is shown is looked at, but for JSON, which is shown laid out where all of it is valid. The
text is the record's own, number by number; characters that would change how the page reads,
controls and those that turn the direction of writing, are shown by signs. Whether it is safe in
HTML is the templates' business, which escape everything.
"""

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

import orjson

from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.decoding.as_written import AsWritten
from pyspark_kafkalog.decoding.decoder import FRAME_BYTES, BadValueError
from pyspark_kafkalog.decoding.registry import RegistryConfig
from pyspark_kafkalog.decoding.values_as_json import as_json
from pyspark_kafkalog.errors import KafkalogError, SchemaRegistryError

SHOWN_CHARACTERS = 4_096
_PREVIEW_CHARACTERS = 160
_SHOWN_HEX_BYTES = 1_024
_LARGEST_JSON_BYTES = 1 << 20
"""Larger values are shown as text, without a look at whether they are JSON."""
_LARGEST_DECODED_BYTES = 1 << 20
_QUIET_MS = 10_000
_HEX_COLUMNS = 16
_MOST_CONTROLS = 8
"""Text has one control character in so many at most, colors of a terminal for example."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_SIGNS: Mapping[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **{
        code: f"\u27e8U+{code:04X}\u27e9"
        for code in (
            *range(0x80, 0xA0),
            0x061C,
            *range(0x200B, 0x2010),
            *range(0x2028, 0x202F),
            *range(0x2060, 0x2070),
            0xFEFF,
        )
    },
}


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of some bytes: `kind` is null, empty, text, json, hex, avro or protobuf.

    `error` says why they were not decoded, where they should have been.
    """

    kind: str
    text: str = ""
    size_bytes: int = 0
    is_cut: bool = False
    error: str = ""

    @property
    def preview(self) -> str:
        """One line of it."""
        head = self.text[: 2 * _PREVIEW_CHARACTERS]
        if self.kind == "hex":
            head = " ".join(line[10:58].strip() for line in head.splitlines()[:2])
        line = " ".join(head.split())
        is_cut = len(line) > _PREVIEW_CHARACTERS or len(head) < len(self.text)
        return line[:_PREVIEW_CHARACTERS] + ("\u2026" if is_cut else "")


class Registry:
    """Decodes values in Confluent's wire format; any thread. Where the registry does not answer,
    nobody waits for it again for a while."""

    def __init__(self, config: RegistryConfig) -> None:
        self._values = AsWritten(config)
        self._lock = Lock()
        self._quiet = Deadline(0)
        self._why = ""

    def show(self, data: memoryview) -> Shown:
        """Raises BadValueError, KafkalogError."""
        with self._lock:
            if not self._quiet.expired:
                raise SchemaRegistryError(self._why)
            try:
                kind, value = self._values.read(bytes(data))
            except SchemaRegistryError as error:
                self._why, self._quiet = str(error), Deadline(_QUIET_MS)
                raise
        text = value if kind == "JSON" else as_json(value)
        shown = show(memoryview(text))
        return Shown(
            "json by its schema" if kind == "JSON" else kind.lower(),
            shown.text,
            len(data),
            shown.is_cut,
        )


def show(data: memoryview | None, registry: Registry | None = None) -> Shown:
    """Whatever the bytes are."""
    if data is None:
        return Shown("null")
    if not data:
        return Shown("empty")
    error = ""
    is_framed = registry is not None and len(data) > FRAME_BYTES and data[0] == 0
    if registry is not None and is_framed and len(data) <= _LARGEST_DECODED_BYTES:
        try:
            return registry.show(data)
        except (BadValueError, KafkalogError, orjson.JSONEncodeError) as trouble:
            error = visible(str(trouble))
    text = _json_text(data)
    if text is not None:
        return Shown("json", *_cut(text, len(data)), error)
    text = _plain_text(data)
    if text is None:
        return Shown("hex", _hex(data), len(data), len(data) > _SHOWN_HEX_BYTES, error)
    cut, size_bytes, is_cut = _cut(text, len(data))
    return Shown("text", cut, size_bytes, is_cut or len(text.encode()) < len(data), error)


def visible(text: str) -> str:
    """The same with signs for what cannot be seen, or hides what can."""
    return text.translate(_SIGNS)


def _cut(text: str, size_bytes: int) -> tuple[str, int, bool]:
    return visible(text[:SHOWN_CHARACTERS]), size_bytes, len(text) > SHOWN_CHARACTERS


def _json_text(data: memoryview) -> str | None:
    """An object or an array, laid out; None for anything else."""
    if len(data) > _LARGEST_JSON_BYTES or bytes(data[:64]).lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return laid_out(bytes(data).decode())


def laid_out(text: str) -> str:
    """Valid JSON with a line for each member, up to what is shown; its tokens are left as they
    are, as a parser would round numbers and forget names that come twice."""
    pieces: list[str] = []
    size = depth = 0
    opened = False
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in "]}":
            depth -= 1
            piece = token if opened else "\n" + "  " * depth + token
        else:
            piece = ("\n" + "  " * depth + token) if opened else token
        opened = token in "[{"
        if opened:
            depth += 1
        elif token == ",":
            piece += "\n" + "  " * depth
        elif token == ":":
            piece += " "
        pieces.append(piece)
        size += len(piece)
        if size > SHOWN_CHARACTERS:
            break
    return "".join(pieces)


def _plain_text(data: memoryview) -> str | None:
    """The beginning as text; None for bytes that are none."""
    head = bytes(data[: 4 * SHOWN_CHARACTERS])
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, len(head) == len(data))
    except UnicodeDecodeError:
        return None
    controls = sum(ord(letter) < 0x20 and letter not in "\t\n\r" for letter in text)
    return None if "\0" in text or controls * _MOST_CONTROLS > len(text) else text


def _hex(data: memoryview) -> str:
    lines = []
    for start in range(0, min(len(data), _SHOWN_HEX_BYTES), _HEX_COLUMNS):
        row = bytes(data[start : start + _HEX_COLUMNS])
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{3 * _HEX_COLUMNS - 1}}  {letters}")
    return "\n".join(lines)
