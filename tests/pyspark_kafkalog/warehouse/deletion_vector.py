"""A deletion of rows as engines with deletion vectors make it, which deltalake only reads."""

import base64
import json
import struct
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable

_MAGIC, _ROARING = 1681511377, 12346
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_FEATURES = ["deletionVectors"]


def delete_by_vector(table: DeltaTable, rows: Sequence[int]) -> Path:
    """Deletes rows, by their numbers, of the file that the newest commit added; the path of the
    vector."""
    directory, version = Path(table.table_uri.removeprefix("file://")), table.version()
    log = directory / "_delta_log"
    actions = map(json.loads, (log / f"{version:020}.json").read_text().splitlines())
    add = next(action["add"] for action in actions if "add" in action)
    name, vector = uuid.uuid4(), _vector(rows)
    path = directory / f"deletion_vector_{name}.bin"
    framed = struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    path.write_bytes(b"\x01" + framed)
    text = base64.b85encode(name.bytes).translate(bytes.maketrans(_B85, _Z85)).decode()
    described = {
        "storageType": "u",
        "pathOrInlineDv": text,
        "offset": 1,
        "sizeInBytes": len(vector),
        "cardinality": len(rows),
    }
    removed = {key: add[key] for key in ("path", "size", "partitionValues")}
    stats = {**json.loads(add["stats"]), "tightBounds": False}
    features = {"readerFeatures": _FEATURES, "writerFeatures": _FEATURES}
    entry = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {**removed, "deletionTimestamp": 0, "dataChange": True}},
        {"add": {**add, "stats": json.dumps(stats), "deletionVector": described}},
    ]
    (log / f"{version + 1:020}.json").write_text("\n".join(map(json.dumps, entry)))
    return path


def _vector(rows: Sequence[int]) -> bytes:
    """Numbers below 65,536 as one array of a roaring bitmap."""
    container = struct.pack("<HHI", 0, len(rows) - 1, 16)
    bitmap = struct.pack("<II", _ROARING, 1) + container + struct.pack(f"<{len(rows)}H", *rows)
    return struct.pack("<IQI", _MAGIC, 1, 0) + bitmap
