"""Spark's DDL of types into Arrow types, without Spark: `a BIGINT, b ARRAY<STRING> COMMENT 'x'`.

Owns the grammar: names in backticks or not, with or without a colon before the type; `NOT NULL` is
passed over, as all fields are nullable. Pure functions.
"""

import re
from collections.abc import Mapping

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidSchemaError

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|([<>(),:]))", re.S)
_TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMALS = ("decimal", "dec", "numeric")
_MOST_DIGITS = 38
_DEEPEST = 64


def ddl_type(text: str) -> pa.DataType:
    """The type of `text`: a list of columns is a struct. Raises InvalidSchemaError."""
    tokens = _tokens(text)
    # One name alone is a type; columns have at least two words.
    is_type = len(tokens) == 1 or tokens[1:2] in (["<"], ["("])
    parser = _Parser(text, tokens)
    found = parser.type() if is_type else parser.fields("")
    if parser.rest:
        raise parser.error()
    return found


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise InvalidSchemaError(f"the schema has {text[position : position + 20]!r} in it")
        tokens.append(found.group().strip())
        position = found.end()
    if not tokens:
        raise InvalidSchemaError("the schema is empty")
    return tokens


class _Parser:
    """Reads tokens from the left. One use."""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self.rest = tokens[::-1]
        self._text = text
        self._depth = 0

    def error(self) -> InvalidSchemaError:
        where = f"near {self.rest[-1]!r}" if self.rest else "at its end"
        return InvalidSchemaError(
            f"the schema {self._text[:80]!r} is not understood {where}: write columns such as "
            "'order BIGINT, tags ARRAY<STRING>', or a JSON Schema"
        )

    def fields(self, closing: str) -> pa.DataType:
        """Columns up to `closing`, or to the end."""
        fields: list[pa.Field] = []
        while True:
            name = self._next()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            elif not name.isidentifier() and not name.isalnum():
                raise self.error()
            self._skip(":")
            fields.append(pa.field(name, self.type()))
            if self._skip("not") and not self._skip("null"):
                raise self.error()
            if self._skip("comment"):
                self._text_literal()
            if not self._skip(","):
                break
        if closing:
            self._expect(closing)
        names = [one.name for one in fields]
        if len(set(names)) < len(names):
            raise InvalidSchemaError(f"the schema {self._text[:80]!r} has two columns of one name")
        return pa.struct(fields)

    def type(self) -> pa.DataType:
        self._depth += 1
        name = self._next().lower()
        if name not in _TYPES and name not in (*_DECIMALS, "struct", "array", "map"):
            self.rest.append(name)
            raise self.error()
        if self._depth > _DEEPEST:
            raise InvalidSchemaError(f"the schema is nested more than {_DEEPEST} deep")
        found = self._nested(name) if name in ("struct", "array", "map") else self._plain(name)
        self._depth -= 1
        return found

    def _nested(self, name: str) -> pa.DataType:
        self._expect("<")
        if name == "struct":
            return self.fields(">")
        first = self.type()
        if name == "array":
            self._expect(">")
            return pa.list_(first)
        self._expect(",")
        items = self.type()
        self._expect(">")
        if not pa.types.is_string(first):
            raise InvalidSchemaError(
                "the keys of a map are strings in JSON: write MAP<STRING, ...>"
            )
        return pa.map_(first, items)

    def _plain(self, name: str) -> pa.DataType:
        numbers: list[int] = []
        if self._skip("("):
            numbers.append(self._number())
            while self._skip(","):
                numbers.append(self._number())
            self._expect(")")
        if name not in _DECIMALS:
            return _TYPES[name]
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
        if not 0 < precision <= _MOST_DIGITS or scale > precision:
            raise InvalidSchemaError(f"the schema has a DECIMAL({precision},{scale})")
        return pa.decimal128(precision, scale)

    def _text_literal(self) -> None:
        """Passes over quoted text; what stands side by side is one."""
        if not self._next().startswith("'"):
            raise self.error()
        while self.rest and self.rest[-1].startswith("'"):
            self.rest.pop()

    def _number(self) -> int:
        text = self._next()
        if not text.isdigit():
            raise self.error()
        return int(text)

    def _next(self) -> str:
        if not self.rest:
            raise self.error()
        return self.rest.pop()

    def _skip(self, token: str) -> bool:
        if self.rest and self.rest[-1].lower() == token:
            self.rest.pop()
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._skip(token):
            raise self.error()
