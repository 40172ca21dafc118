"""The seeds of the fuzzers, and the script that makes them: `python -m tests.fuzz.corpus`.

`seeds/frames`: one request of every API in every version the broker speaks, as `kafka.protocol`'s
schemas have it (so by code that is not ours). `seeds/batches`: what a producer sends, in every
codec and message format, also two batches and half a one. `seeds/directories`: the files of a
log's directory after an unclean stop, packed by `pack`.
"""

import importlib
import pkgutil
import struct
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka.protocol
from kafka.protocol.api_message import ApiMessage

from broker.api.apis import APIS
from broker.config.log import LogConfig
from broker.log.log import Log
from pyspark_kafkalog.protocol.frames import encode_request_header
from tests.support.records import CODECS, batch_of

SEEDS = Path(__file__).with_name("seeds")
DIRECTORY_FILES = (
    "00000000000000000000.log",
    "00000000000000000000.index",
    "00000000000000000000.timeindex",
    "00000000000000000005.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
)
_LENGTH = struct.Struct(">H")
_ROWS = [(b"key", b"value"), (None, b"x" * 40), (b"k", None)]

# By field name, where a number of the type's kind alone would lead nowhere.
_VALUES: dict[str, Any] = {
    "acks": 1,
    "assignments": [],
    "broker_ids": [1],
    "current_leader_epoch": -1,
    "endpoint_type": 1,
    "key_type": 0,
    "max_bytes": 1 << 20,
    "max_wait_ms": 10,
    "member_epoch": 0,
    "num_partitions": 1,
    "partition_max_bytes": 1 << 20,
    "replica_id": -1,
    "replication_factor": 1,
    "resource_type": 2,
    "server_assignor": "range",
    "session_epoch": -1,
    "timestamp": -1,
    "transactional_id": None,
}
# The same for one API: a member that joins owns nothing yet.
_BY_API: dict[int, dict[str, Any]] = {68: {"topic_partitions": []}}
_BY_TYPE: dict[str, Any] = {
    "string": "fuzz",
    "bool": True,
    "bytes": b"",
    "float64": 0.0,
    "uuid": uuid.UUID(int=1),
}


def _request_classes() -> dict[int, Any]:
    classes: dict[int, Any] = {}
    names = ["pyspark_kafkalog.protocol.consumer_groups"]
    for module_info in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if module_info.name.count(".") <= 2 and ".schemas" not in module_info.name:
            names.append(module_info.name)
    for module_name in names:
        for name, value in vars(importlib.import_module(module_name)).items():
            if name.endswith("Request") and isinstance(value, type(ApiMessage)):
                classes.setdefault(value.API_KEY, value)
    return classes


def _sample(field: Any, version: int) -> Any:
    if field.name in _VALUES:
        return _VALUES[field.name]
    if field.name == "records":  # in the format of the version's time
        return batch_of(_ROWS, magic=2 if version >= 3 else version // 2)
    if field.is_struct_array():
        return [
            field.data_class(
                **{each.name: _sample(each, version) for each in field.fields.values()}
            )
        ]
    if field.is_array():
        return [_sample(field.array_of, version)]
    if field.is_struct():
        return field.data_class(
            **{each.name: _sample(each, version) for each in field.fields.values()}
        )
    return _BY_TYPE.get(field.type_str, 0)


def frames() -> Iterator[tuple[str, bytes]]:
    """(name, frame) of every API and version."""
    classes = _request_classes()
    for api in APIS:
        message_class = classes[api.key]
        for version in range(api.min_version, api.max_version + 1):
            fields = message_class.fields.items()
            values = {name: _sample(field, version) for name, field in fields}
            message = message_class(**values | _BY_API.get(api.key, {}))
            header = encode_request_header(api.key, version, 7, "fuzz")
            name = f"{api.key:03d}-{message_class.__name__}-v{version}"
            yield name, header + bytes(message.encode(version=version))


def record_batches() -> Iterator[tuple[str, bytes]]:
    for codec in CODECS:
        yield f"v2-{codec}", batch_of(_ROWS * 3, codec=codec)
        if codec != "zstd":  # which came after the older formats
            yield f"v1-{codec}", batch_of(_ROWS, magic=1, codec=codec)
    yield "v0", batch_of(_ROWS, magic=0)
    yield "v2-idempotent", batch_of(_ROWS, producer=(1000, 0, 0))
    yield "v2-two-and-a-half", batch_of(2) + batch_of(_ROWS, codec="gzip") + batch_of(2)[:70]


def directories() -> Iterator[tuple[str, bytes]]:
    for name, config in (("one", LogConfig(index_interval_bytes=1)), ("plain", LogConfig())):
        with tempfile.TemporaryDirectory() as parent:
            directory = Path(parent) / "fuzz-0"
            directory.mkdir()
            log = Log(directory, config)
            for codec in ("none", "lz4"):
                log.append(memoryview(bytearray(batch_of(_ROWS, codec=codec))), 3)
            log.append(memoryview(bytearray(batch_of(2, producer=(1000, 0, 0)))), 4)
            log.close()
            files = {path.name: path.read_bytes() for path in directory.iterdir()}
            yield name, pack(files)


def pack(files: dict[str, bytes]) -> bytes:
    """The contents of DIRECTORY_FILES, each after its length; 0 for one that is not there."""
    contents = (files.get(name, b"")[:0xFFFF] for name in DIRECTORY_FILES)
    return b"".join(_LENGTH.pack(len(content)) + content for content in contents)


def unpack(data: bytes) -> dict[str, bytes]:
    """What `pack` made, of any bytes."""
    files = {}
    position = 0
    for name in DIRECTORY_FILES:
        if position + _LENGTH.size > len(data):
            break
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length:
            files[name] = data[position : position + length]
        position += length
    return files


def read_seeds(kind: str) -> list[bytes]:
    """The seeds in the tree, of `frames`, `batches` or `directories`."""
    return [path.read_bytes() for path in sorted((SEEDS / kind).iterdir())]


def main() -> None:
    makers = {"frames": frames, "batches": record_batches, "directories": directories}
    for kind, make in makers.items():
        folder = SEEDS / kind
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in make():
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
