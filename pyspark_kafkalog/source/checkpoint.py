"""What Spark's checkpoint says of a query, read from Python where its file system can be reached.

`CHECKPOINT/metadata` has the query's id. `CHECKPOINT/offsets/N` is written before micro-batch N
runs and is never changed: a line with the version, one of metadata with the time of the plan, then
where each source ends, of a topic as the JSON `{"topic": {"0": 123}}`; in version 2, which Spark
4.3 writes if it is told to, after the source's name and a colon. Spark takes a file of version 2
that lacks the line of a source for a query that has not begun to read it, and would read it anew:
one that was cut short, or of a query that gave a source with a name up and takes it again later.

Owns the reading of these files, for both sinks. Reads only, in any process. A file system may take
long to say that it cannot be reached (an S3 of another network 100 s, for each micro-batch), while
transactions are open: what takes longer than LONGEST_READ_S is not known, and whoever can go on
without does not ask that file system again for a while.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from hashlib import blake2b
from operator import or_
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeAlias
from urllib.parse import quote

import pyarrow.fs

from pyspark_kafkalog.errors import CheckpointError
from pyspark_kafkalog.source.log_identity import LogIdentity, identity_in
from pyspark_kafkalog.source.offsets import Offsets, from_json, is_note, start_in, to_json
from pyspark_kafkalog.source.options import warn_once

LONGEST_READ_S = 20.0
"""For the few kB of one micro-batch."""
_AGAIN_AFTER_S = 600.0

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//[^/]*)?(/.*)", re.DOTALL)
_HEAD_LINES = 2
_NAMED_SOURCES = "v2"
_DIGEST_BYTES = 16

_Sources: TypeAlias = Mapping[str, Any]

_resting: dict[str, float] = {}
"""File systems that could not be reached, and until when they are left alone: the process that
commits a micro-batch commits the next ones, too."""


@dataclass(frozen=True, slots=True)
class Jumps:
    """Where sources that are new begin, and where those `ended` that were given up before, of the
    same partitions; `batch` is the last micro-batch that had one of these."""

    ended: Offsets
    begins: Offsets
    batch: int


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What a micro-batch was planned from: the bytes of its file, where each source begins and ends
    (None of what is no topic), which logs these are of as far as it says so, and whether the query
    keeps state in the checkpoint.

    Of the first batch of a query `starts` is empty, as that is not written down; of a source that
    is new in a later one only our streams do so. There are `jumps` where new sources do not begin
    at the ends of those that were given up. `start` and `end` are digests of where all begin and
    end, whatever the sources are.
    """

    content: bytes
    start: str
    end: str
    starts: tuple[Offsets | None, ...]
    ends: tuple[Offsets | None, ...]
    logs: LogIdentity
    has_state: bool
    jumps: Jumps | None


@dataclass(frozen=True, slots=True)
class Planned:
    """What micro-batch `batch` was planned from, as digests; empty of what is not known.

    Equal `digest`s are the same micro-batch. When Spark runs one again its file is there and is the
    same, byte by byte. One that was planned anew, as the file was lost, is the same where offsets
    of topics say all: it begins and ends where it did, in the same topics, reads something, and no
    state has a part in its rows (some of which depends on the time). Other sources number what they
    give.

    `end` is where it ends, `start` where the one before did.
    """

    digest: str = ""
    start: str = ""
    end: str = ""
    checkpoint: str | None = field(default=None, compare=False)
    batch: int = field(default=0, compare=False)

    def end_of(self, earlier: int) -> str:
        """Where an earlier micro-batch of the same checkpoint ends; empty where Spark has deleted
        that by now."""
        if earlier == self.batch - 1:
            return self.start
        if self.checkpoint is None or not self.digest:
            return ""
        try:
            return batch_plan(self.checkpoint, earlier + 1, may_rest=True).start
        except (OSError, ValueError):
            return ""


NOT_KNOWN = Planned()


def query_id_at(checkpoint: str | None) -> str | None:
    """The id of the query with this checkpoint; None where it lies on another file system."""
    host, path = _place(checkpoint or "/")
    if checkpoint is None or host:
        return None
    try:
        with open(f"{path}/metadata", encoding="utf-8") as metadata:
            found = json.loads(metadata.read())["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)


def batch_plan(checkpoint: str, batch: int, may_rest: bool = False) -> BatchPlan:
    """The plan of micro-batch `batch`. Raises OSError or ValueError where that cannot be read;
    with `may_rest` at once, where the file system could not be reached a while ago. Raises
    CheckpointError where its file, or that of the one before, is cut short."""
    host, path = _place(checkpoint)
    if not host:
        return _read_plan(pyarrow.fs.LocalFileSystem(), path, batch)
    if may_rest and _resting.get(host, 0.0) > time.monotonic():
        raise TimeoutError(f"{host} could not be reached a while ago")
    try:
        return _read_in_time(f"{host}{quote(path)}", batch)
    except FileNotFoundError:
        raise
    except (OSError, ValueError):
        _resting[host] = time.monotonic() + _AGAIN_AFTER_S
        raise


def place_text(checkpoint: str) -> str:
    """The place of a checkpoint, as one text however it is written."""
    return "".join(_place(checkpoint))


def planned_from(checkpoint: str | None, batch: int) -> Planned:
    """What micro-batch `batch` was planned from; nothing is known where that cannot be read.

    Raises CheckpointError as `batch_plan` does, and where records would be read twice or never."""
    try:
        plan = None if checkpoint is None else batch_plan(checkpoint, batch, may_rest=True)
    except (OSError, ValueError):
        plan = None
    if plan is None:
        warn_once(
            (
                "The option checkpointLocation is not set on the write"
                if checkpoint is None
                else f"Python cannot read the checkpoint {checkpoint}"
            )
            + ", so what a micro-batch was planned from is not known: one that runs again after a "
            "failure counts as the one that was committed only if it has the same rows in the same "
            "tasks, and is refused otherwise."
        )
        return NOT_KNOWN
    refuse_jumps(f"{checkpoint}/offsets/{batch}", plan.jumps)
    content, starts, ends = plan.content, _of_topics(plan.starts), _of_topics(plan.ends)
    if starts and ends and starts != ends and not plan.has_state:
        ids = {topic: str(one) for topic, one in plan.logs.topic_ids.items()}
        content = json.dumps([starts, ends, *([ids] if ids else [])], sort_keys=True).encode()
    return Planned(_digest(content), plan.start, plan.end, checkpoint, batch)


def refuse_jumps(path: str, jumps: Jumps | None) -> None:
    """Raises CheckpointError where there are some in the file `path`."""
    if jumps is not None:
        ended, begins = (json.dumps(to_json(each)) for each in (jumps.ended, jumps.begins))
        raise CheckpointError(
            f"The file {path} of the checkpoint has a source that the last micro-batch did not "
            f"have. It begins at {begins}, and the query has read up to {ended} before (the source "
            "was given up, or had another name, or an earlier file is cut short), so records would "
            f"be left out, or be there twice. Give that source the option startingOffsets "
            f"'{ended}', delete this file, with the hidden .crc file beside it, and start the "
            f"query again. {_ran_without(jumps.batch)}"
        )


def _ran_without(batch: int) -> str:
    return (
        f"But if a source was given up while micro-batch {batch} was under way, Spark ran that "
        "again without it: where its records of that micro-batch are not in the output, they have "
        "to be written by another query, with another checkpoint."
    )


def _place(checkpoint: str) -> tuple[str, str]:
    """`scheme://host` in Arrow's words, empty of a local directory, and the path. Hadoop takes the
    path of a URL as it is written: a space, `#` and `%20` are part of it."""
    url = _URL.fullmatch(checkpoint)
    if url is None:
        return "", os.path.abspath(checkpoint)
    scheme, host, path = url[1], url[2] or "//", url[3]
    if scheme == "file" and host == "//":
        return "", path
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}:{host}", path


def _read_in_time(url: str, batch: int) -> BatchPlan:
    """Raises TimeoutError after LONGEST_READ_S, whatever the file system is waiting for."""
    answers: SimpleQueue[BatchPlan | Exception] = SimpleQueue()

    def read() -> None:
        try:
            files, path = pyarrow.fs.FileSystem.from_uri(url)
            answers.put(_read_plan(files, path, batch))
        except Exception as error:
            answers.put(error)

    Thread(target=read, daemon=True).start()
    try:
        answer = answers.get(timeout=LONGEST_READ_S)
    except Empty:
        raise TimeoutError(f"no answer within {LONGEST_READ_S:.0f} s") from None
    if isinstance(answer, NotImplementedError):
        raise ValueError(str(answer)) from answer
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read_plan(files: pyarrow.fs.FileSystem, root: str, batch: int) -> BatchPlan:
    content = _read(files, f"{root}/offsets/{batch}")
    # Where the first batch of a query begins is in none of its files.
    before = _read(files, f"{root}/offsets/{batch - 1}") if batch else b""
    _check_whole(f"{root}/offsets/{batch - 1}", before)
    _check_whole(f"{root}/offsets/{batch}", content, _numbers(before), batch - 1)
    state = files.get_file_info(f"{root}/state")
    has_state = state.type is not pyarrow.fs.FileType.NotFound
    sources, known = _by_name(content), _by_name(before)
    logs = [identity_in(source) for source in sources.values() if _are_of_topics(source)]
    noted = reduce(or_, logs, LogIdentity())
    starts = tuple(_starts(files, root, batch, known, sources)) if batch else ()
    jumps = _jumps(files, root, batch, known, sources, starts) if batch else None
    places = _place_of(before, known), _place_of(content, sources)
    # In order, that of their names where they have some.
    ends = tuple(
        from_json(source) if _are_of_topics(source) else None for source in sources.values()
    )
    return BatchPlan(content, *places, starts, ends, noted, has_state, jumps)


def _starts(
    files: pyarrow.fs.FileSystem, root: str, batch: int, known: _Sources, sources: _Sources
) -> Iterator[Offsets | None]:
    """Where each of the sources begins; `known` are those of the micro-batch before."""
    older: _Sources = {}
    if any(known.get(name) is None and _are_of_topics(sources[name]) for name in sources):
        with suppress(FileNotFoundError):
            older = _by_name(_read(files, f"{root}/offsets/{batch - 2}"))
    for name, source in sources.items():
        yield _start(source, known.get(name), older.get(name))


def _start(source: Any, before: Any, older: Any) -> Offsets | None:
    """Where a source begins that ends at `source`: where it ended in the file before, unless it
    says otherwise. Where that lacks it, Spark asks the source, and ours notes it; but a query that
    is started looks into the file before that one, too."""
    if before is None and _are_of_topics(source):
        noted = start_in(source)
        if noted is not None:
            return noted
        before = older if any(map(is_note, source)) else None
    if not _are_of_topics(before):
        return None
    return from_json(before) | (identity_in(source).begins if _are_of_topics(source) else {})


def _jumps(
    files: pyarrow.fs.FileSystem,
    root: str,
    batch: int,
    known: _Sources,
    sources: _Sources,
    starts: Sequence[Offsets | None],
) -> Jumps | None:
    """See BatchPlan. Reads all files of the checkpoint where a source is new."""
    kept = {name for name in sources if known.get(name) is not None}
    new: Offsets = {}
    now = LogIdentity()
    for (name, source), start in zip(sources.items(), starts, strict=True):
        if name not in kept and start:
            new |= start
            now |= identity_in(source)
    begins = dict(new)
    ended: Offsets = {}
    newest = 0
    with suppress(FileNotFoundError):
        while new and batch:
            batch -= 1
            for name, source in _by_name(_read(files, f"{root}/offsets/{batch}")).items():
                if name in kept or not _are_of_topics(source):
                    continue
                others = identity_in(source).others(now)
                for each, end in from_json(source).items():
                    if new.pop(each, None) is not None and each.topic not in others:
                        ended[each] = end
                        newest = max(newest, batch)
    is_moved = any(end != begins[each] for each, end in ended.items())
    return Jumps(begins | ended, begins, newest) if is_moved else None


def _check_whole(
    path: str, content: bytes, expected: Set[str] = frozenset(), last: int = 0
) -> None:
    """Raises CheckpointError unless a file of version 2 has sources, and those of the numbers
    `expected`, which micro-batch `last` has."""
    version, sources = _lines(content)
    is_cut = not sources or not expected <= _numbers(content)
    if is_cut and version == _NAMED_SOURCES:
        without = f" {_ran_without(last)}" if expected else ""
        raise CheckpointError(
            f"The file {path} of the checkpoint is cut short: it lacks where sources end, which "
            "Spark would read from their startingOffsets again. Keep a copy of the checkpoint, and "
            "delete this file and those of later numbers in offsets, and all of these numbers in "
            "commits, with the hidden .crc files beside them. Then start the query again, with all "
            f"of its sources: only one that has a name may be given up.{without}"
        )


def _read(files: pyarrow.fs.FileSystem, path: str) -> bytes:
    with files.open_input_stream(path) as stream:
        return bytes(stream.read())


def _place_of(content: bytes, sources: _Sources) -> str:
    """A digest of where all sources end, without notes and times; empty of no micro-batch."""
    places = [
        to_json(from_json(source)) if _are_of_topics(source) else source
        for source in sources.values()
    ]
    return _digest(json.dumps(places, sort_keys=True).encode()) if content else ""


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def _numbers(content: bytes) -> set[str]:
    """Of the sources in a file of version 2: a query may give up those that have a name."""
    version, sources = _lines(content)
    names = [line.partition(":")[0] for line in sources] if version == _NAMED_SOURCES else []
    return {name for name in names if name.isdecimal()}


def _by_name(content: bytes) -> _Sources:
    """The offsets of each source as they are written, by its name or number; None of what is no
    JSON."""
    version, sources = _lines(content)
    if version == _NAMED_SOURCES:
        parts = [line.partition(":") for line in sorted(sources)]
        return {name: _parsed(source) for name, _, source in parts}
    return {str(number): _parsed(source) for number, source in enumerate(sources)}


def _lines(content: bytes) -> tuple[str, list[str]]:
    """The version of a file, and the lines of its sources."""
    version, *lines = content.decode().splitlines() or [""]
    return version, lines[_HEAD_LINES - 1 :]


def _parsed(source: str) -> Any:
    try:
        return json.loads(source)
    except ValueError:
        return None


def _of_topics(sources: tuple[Offsets | None, ...]) -> list[dict[str, dict[str, int]]]:
    """The offsets of all sources; empty unless all of them are topics."""
    found = [to_json(offsets) for offsets in sources if offsets is not None]
    return found if len(found) == len(sources) else []


def _are_of_topics(offsets: object) -> bool:
    return (
        isinstance(offsets, Mapping)
        and bool(offsets)
        and all(
            isinstance(partitions, Mapping) and (partitions or is_note(topic))
            for topic, partitions in offsets.items()
        )
        and all(
            partition.isdecimal() and type(offset) is int
            for partitions in offsets.values()
            for partition, offset in partitions.items()
        )
    )
