"""Schemas of JSON values into Arrow types: JSON Schema, or Spark's DDL.

A schema that begins with `{` is JSON Schema (any draft): objects with properties are structs, those
with only `additionalProperties` maps, `integer` is a long, `number` a double; null among types or
alternatives makes nothing but nullable, as all fields are. References go to definitions of the same
document or of documents that the registry names. What has no one type to Arrow (alternatives of
several types, objects that say nothing of their members, recursion) is a string of JSON text.
Nothing is validated beyond types, as Confluent's deserializers do by default.

Everything else is DDL: `order BIGINT, tags ARRAY<STRING>`, as in Spark's `from_json` (`ddl.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urljoin

import pyarrow as pa

from pyspark_kafkalog.decoding.ddl import ddl_type
from pyspark_kafkalog.errors import InvalidSchemaError

_JSON_TEXT = pa.string()
_DEEPEST = 64
_PLAIN = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64()} | {
    "boolean": pa.bool_()
}


def json_type(schema: str, references: Sequence[tuple[str, str]] = ()) -> pa.DataType:
    """The type of JSON values by `schema`; `references` are further documents by their names.

    Raises InvalidSchemaError.
    """
    if not schema.lstrip().startswith("{"):
        return ddl_type(schema)
    root = _document(schema)
    others = {name: _document(text) for name, text in references}
    try:
        return _JsonSchema(others).type(root, _Scope("", root))
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidSchemaError):
            raise
        raise InvalidSchemaError(f"the JSON Schema is malformed: {error}") from None


def _document(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the JSON Schema is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidSchemaError("the JSON Schema is not an object")
    return document


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where a schema stands: its document, and the references that led there."""

    name: str
    root: Mapping[str, Any]
    trail: tuple[tuple[str, str], ...] = ()
    depth: int = 0

    def deeper(self) -> "_Scope":
        return _Scope(self.name, self.root, self.trail, self.depth + 1)


@dataclass(frozen=True, slots=True)
class _JsonSchema:
    """Types of a schema and of the `documents` that it refers to, by their names."""

    documents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def type(self, schema: Any, scope: _Scope) -> pa.DataType:
        if not isinstance(schema, dict) or scope.depth > _DEEPEST:
            return _JSON_TEXT
        if "$ref" in schema:
            return self._referenced(str(schema["$ref"]), scope)
        if "allOf" in schema:
            schema, scope = self._merged(schema, scope)
        for alternatives in ("oneOf", "anyOf"):
            if alternatives in schema:
                return self._one_of(schema[alternatives], scope)
        return self._plain(schema, scope)

    def _plain(self, schema: Mapping[str, Any], scope: _Scope) -> pa.DataType:
        kinds = _kinds(schema)
        if kinds <= {"integer", "number"} and len(kinds) == 2:
            kinds = {"number"}
        if len(kinds) != 1:
            return _JSON_TEXT
        (kind,) = kinds
        if kind == "object":
            return self._object(schema, scope)
        if kind == "array" and isinstance(schema.get("items"), dict):
            return pa.list_(self.type(schema["items"], scope.deeper()))
        return _PLAIN.get(kind, _JSON_TEXT)

    def _object(self, schema: Mapping[str, Any], scope: _Scope) -> pa.DataType:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            return pa.struct(
                [
                    pa.field(name, self.type(member, scope.deeper()))
                    for name, member in properties.items()
                ]
            )
        members = schema.get("additionalProperties")
        if isinstance(members, dict) and members and not schema.get("patternProperties"):
            return pa.map_(pa.string(), self.type(members, scope.deeper()))
        return _JSON_TEXT

    def _one_of(self, alternatives: Any, scope: _Scope) -> pa.DataType:
        found = {
            self.type(one, scope.deeper())
            for one in (alternatives if isinstance(alternatives, list) else ())
            if not (isinstance(one, dict) and one.get("type") == "null")
        }
        return found.pop() if len(found) == 1 else _JSON_TEXT

    def _merged(self, schema: Mapping[str, Any], scope: _Scope) -> tuple[Mapping[str, Any], _Scope]:
        """`allOf` as one schema, where its parts are plain or refer to the same document."""
        merged = {name: value for name, value in schema.items() if name != "allOf"}
        properties = dict(merged.get("properties") or {})
        parts = schema["allOf"]
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and str(part.get("$ref", "")).startswith("#"):
                part = _pointed(scope.root, str(part["$ref"])[1:])
            if not isinstance(part, dict) or "$ref" in part or "allOf" in part:
                return {}, scope
            properties |= part.get("properties") or {}
            merged = {**part, **merged}
        if properties:
            merged |= {"type": "object", "properties": properties}
        return merged, scope.deeper()

    def _referenced(self, reference: str, scope: _Scope) -> pa.DataType:
        name, _, pointer = reference.partition("#")
        root = scope.root
        if name:
            name, root = self._document(name, scope)
        target = (name or scope.name, pointer)
        if target in scope.trail:
            return _JSON_TEXT
        schema = _pointed(root, pointer)
        if schema is None:
            raise InvalidSchemaError(f"the JSON Schema refers to {reference!r}, which is nowhere")
        trail = (*scope.trail, target)
        return self.type(schema, _Scope(target[0], root, trail, scope.depth + 1))

    def _document(self, name: str, scope: _Scope) -> tuple[str, Mapping[str, Any]]:
        for candidate in (name, urljoin(str(scope.root.get("$id", "")), name)):
            for known, root in (("", scope.root), *self.documents.items()):
                if candidate in (known, root.get("$id")):
                    return candidate, root
        raise InvalidSchemaError(f"the JSON Schema refers to {name!r}, which is nowhere")


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The names of the types that a schema allows, without null; guessed where it does not say."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared} - {"null"}
    if isinstance(declared, list):
        return {str(kind) for kind in declared} - {"null"}
    if "properties" in schema or "additionalProperties" in schema:
        return {"object"}
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return {_KIND_OF.get(type(value), "other") for value in values if value is not None}


_KIND_OF = {str: "string", bool: "boolean", int: "integer", float: "number"}


def _pointed(root: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) or an anchor leads to; None when that is nothing."""
    if pointer and not pointer.startswith("/"):
        definitions = [*root.get("$defs", {}).values(), *root.get("definitions", {}).values()]
        for schema in definitions:
            if isinstance(schema, dict) and schema.get("$anchor") == pointer:
                return schema
        return None
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and name.isdigit() and int(name) < len(root):
            root = root[int(name)]
        elif isinstance(root, dict) and name in root:
            root = root[name]
        else:
            return None
    return root
