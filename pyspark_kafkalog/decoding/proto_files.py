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

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from pyspark_kafkalog.errors import InvalidSchemaError, MissingExtraError

_MAIN = "schema-of-the-values.proto"
_TIMEOUT_S = 30
_CACHED_SCHEMAS = 100


@lru_cache(_CACHED_SCHEMAS)
def compile_proto(text: str, references: tuple[tuple[str, str], ...] = ()) -> bytes:
    """A serialized FileDescriptorSet, the last of which is `text`; `references` are names and texts
    of files that it imports besides those of `google/protobuf`.

    Raises InvalidSchemaError with what the compiler says, MissingExtraError.
    """
    if find_spec("grpc_tools") is None:
        raise MissingExtraError(
            "a Protobuf schema needs grpcio-tools, which is not installed: "
            "pip install 'pyspark-kafkalog[protobuf]'"
        )
    with tempfile.TemporaryDirectory() as folder:
        for name, source in (*references, (_MAIN, text)):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.name:
                raise InvalidSchemaError(f"the Protobuf schema imports {name!r}")
            file = Path(folder, *path.parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, encoding="utf-8")
        compiled = Path(folder, "compiled")
        # With -P the folder that the process runs in, which may be anything, brings no modules.
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder}"]
        _run([*command, "--include_imports", f"--descriptor_set_out={compiled}", _MAIN], folder)
        return compiled.read_bytes()


def _run(command: Sequence[str], folder: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd=folder, check=False
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
    for full_name in (name, f"{prefix}{name}"):
        try:
            found: Descriptor = pool.FindMessageTypeByName(full_name)
        except KeyError:
            continue
        return found
    names = ", ".join(message.name for message in main.message_type)
    raise InvalidSchemaError(f"the Protobuf schema has no message {name!r}, only {names}")


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
