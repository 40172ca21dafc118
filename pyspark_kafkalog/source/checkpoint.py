"""What Spark's checkpoint says of a query, read from Python where its file system can be reached.

`CHECKPOINT/metadata` has the query's id. `CHECKPOINT/offsets/N` is written before micro-batch N
runs and is never changed: a line `v1`, one of metadata with the time of the plan, then where each
source ends, of a topic as the JSON `{"topic": {"0": 123}}`. Reads only, in any process.
"""

import json
import os
import re
from collections.abc import Mapping
from hashlib import blake2b
from urllib.parse import unquote, urlsplit

import pyarrow.fs

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_HEAD_LINES = 2
_DIGEST_BYTES = 16


def query_id_at(checkpoint: str | None) -> str | None:
    """The id of the query with this checkpoint; None where it lies on another file system."""
    if checkpoint is None:
        return None
    place = urlsplit(checkpoint)
    if place.scheme not in ("", "file") or place.netloc:
        return None
    try:
        with open(f"{unquote(place.path)}/metadata", encoding="utf-8") as metadata:
            found = json.loads(metadata.read())["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)


def planned_from(checkpoint: str | None, batch: int) -> str:
    """A digest of what micro-batch `batch` was planned from; empty where that cannot be read.

    Equal digests are the same micro-batch. When Spark runs one again its file is there and is the
    same, byte by byte. One that was planned anew, as the file was lost, is the same where offsets
    of topics say all: it begins and ends where it did, reads something, and no state has a part in
    its rows (some of which depends on the time). Other sources number what they give.
    """
    if checkpoint is None:
        return ""
    # Arrow's name of the scheme, and Hadoop's of a local directory.
    place = re.sub(r"\As3[an]:", "s3:", re.sub(r"\Afile:/(?!/)", "file:///", checkpoint))
    if not _SCHEME.match(place):
        place = os.path.abspath(place)
    try:
        files, root = pyarrow.fs.FileSystem.from_uri(place)
        plan = _read(files, f"{root}/offsets/{batch}")
        # Where the first batch of a query begins is in none of its files.
        before = _read(files, f"{root}/offsets/{batch - 1}") if batch else b""
        state = files.get_file_info(f"{root}/state")
        has_state = state.type is not pyarrow.fs.FileType.NotFound
        starts, ends = _topic_offsets(before), _topic_offsets(plan)
    except (OSError, ValueError, NotImplementedError):
        return ""
    if starts and ends and starts != ends and not has_state:
        plan = json.dumps([starts, ends], sort_keys=True).encode()
    return blake2b(plan, digest_size=_DIGEST_BYTES).hexdigest()


def _read(files: pyarrow.fs.FileSystem, path: str) -> bytes:
    with files.open_input_stream(path) as stream:
        return bytes(stream.read())


def _topic_offsets(plan: bytes) -> list[dict[str, dict[str, int]]]:
    """Where each source ends, in order; empty unless all of them are topics."""
    found = []
    for line in plan.decode().splitlines()[_HEAD_LINES:]:
        try:
            offsets = json.loads(line)
        except ValueError:
            return []
        if not _are_of_topics(offsets):
            return []
        found.append(offsets)
    return found


def _are_of_topics(offsets: object) -> bool:
    return (
        isinstance(offsets, Mapping)
        and bool(offsets)
        and all(isinstance(partitions, Mapping) and partitions for partitions in offsets.values())
        and all(
            partition.isdecimal() and type(offset) is int
            for partitions in offsets.values()
            for partition, offset in partitions.items()
        )
    )
