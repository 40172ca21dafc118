"""Protobuf schemas from the text of .proto files into descriptors, by protoc as grpcio-tools has
it.

The compiler runs as a child process for a quarter of a second: it reads files, writes to the
process's own standard error, and schemas come from elsewhere. Each process keeps what it has
compiled. Names of files are those that `import` uses; they stay below the compiler's temporary
directory."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from pyspark_kafkalog.errors import InvalidSchemaError, MissingExtraError

_MAIN = "schema-of-the-values.proto"
_CONFLUENT = {
    "confluent/meta.proto": """
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """
syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; int32 precision = 2; int32 scale = 3; }
""",
}
_TIMEOUT_S = 30
_CACHED_SCHEMAS = 100


@lru_cache(_CACHED_SCHEMAS)
def compile_proto(text: str, references: tuple[tuple[str, str], ...] = ()) -> bytes:
    """A serialized FileDescriptorSet, the last of which is `text`; `references` are names and texts
    of files that it imports besides those that are always there.

    Raises InvalidSchemaError with what the compiler says, MissingExtraError.
    """
    if find_spec("grpc_tools") is None:
        raise MissingExtraError(
            "a Protobuf schema needs grpcio-tools, which is not installed: "
            "pip install 'pyspark-kafkalog[protobuf]'"
        )
    with tempfile.TemporaryDirectory() as folder:
        for name, source in {**_CONFLUENT, **dict(references), _MAIN: text}.items():
            path = PurePosixPath(name)
            # Nothing but .proto files: the compiler is a Python program.
            if path.is_absolute() or ".." in path.parts or path.suffix != ".proto":
                raise InvalidSchemaError(f"the Protobuf schema imports {name!r}")
            file = Path(folder, *path.parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, encoding="utf-8")
        compiled = Path(folder, "compiled")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder}"]
        command += [f"--proto_path={path}" for path in _google_protos()]
        _run([*command, "--include_imports", f"--descriptor_set_out={compiled}", _MAIN], folder)
        return compiled.read_bytes()


def _google_protos() -> list[Path]:
    spec = find_spec("google.type")
    locations = spec.submodule_search_locations if spec else None
    return [Path(location).parent.parent for location in locations or ()]


def _run(command: Sequence[str], folder: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InvalidSchemaError(f"the Protobuf schema took over {_TIMEOUT_S} s") from None
    if done.returncode:
        said = done.stderr.replace(f"{folder}/", "").replace(f"{_MAIN}:", "").splitlines()
        errors = [line for line in said if not line.startswith(("W", "I"))]
        reason = " ".join(errors) or f"status {done.returncode}"
        raise InvalidSchemaError(f"the Protobuf schema cannot be compiled: {reason[:400]}")


def message_type(files: bytes, name: str) -> Descriptor:
    """The message `name` of the last of `files`: its name with or without the package; empty for
    the first. Raises InvalidSchemaError."""
    parsed = _parsed(files)
    main = parsed.file[-1]
    pool = DescriptorPool()
    for file in parsed.file:
        pool.Add(file)
    if not name:
        if not main.message_type:
            raise InvalidSchemaError("the Protobuf schema has no message")
        name = main.message_type[0].name
    prefix = f"{main.package}." if main.package else ""
    # Its own package first: a file that it imports may have a message of the same short name.
    for full_name in (f"{prefix}{name}", name):
        try:
            found: Descriptor = pool.FindMessageTypeByName(full_name)
        except KeyError:
            continue
        return found
    names = ", ".join(message.name for message in main.message_type)
    raise InvalidSchemaError(f"the Protobuf schema has no message {name!r}, only {names}")


def message_class(files: bytes, name: str) -> Any:
    """The class of that message, made at run time."""
    return GetMessageClass(message_type(files, name))


def message_at(files: bytes, path: Sequence[int]) -> str | None:
    """The name, without its package, of the message at `path` (Confluent's message indexes) of the
    last of `files`: by its place among the file's messages, then among those inside it."""
    messages = _parsed(files).file[-1].message_type
    names = []
    for index in path:
        if not 0 <= index < len(messages):
            return None
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def _parsed(files: bytes) -> FileDescriptorSet:
    try:
        parsed: FileDescriptorSet = FileDescriptorSet.FromString(files)
    except DecodeError as error:
        raise InvalidSchemaError(f"the Protobuf descriptors are damaged: {error}") from None
    return parsed
