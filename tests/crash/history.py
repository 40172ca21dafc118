"""The history of a run: what every client asked for, when, and how it ended.

Each client (one life of one process, or one thread; after a kill its next life is another client)
appends to a file of its own, one JSON object a line, as it happens: what a SIGKILL leaves is what
was begun. An operation is one line or two:

    {"client", "operation", "event": "begin", "kind", "time_ns", ...fields}
    {"client", "operation", "event": OUTCOME, "time_ns", ...more fields}
    {"client", "operation", "event": "ok", "kind", "began_ns", "time_ns", ...fields}    both at once

OUTCOME is "ok" (it was done), "failed" (it was certainly not done, now or later) or "unknown";
an operation that was begun and never ended is unknown too. Times are of the monotonic clock, which
all processes of one host share. Kinds and their fields (partitions are [topic, index]):

    consumer       group, isolation ("read_committed", "read_uncommitted"); before its other ones
    assign         positions: [topic, index, next offset or null] of all partitions it has now
    seek           positions: [topic, index, next offset]
    poll           records: [topic, index, offset, key, value, send]; `send` is the name of the
                   send that the record carries in its header `send`, or null
    read_to_end    topic: read from its first offset to its end, by the polls within. The end is
                   that of all records (not of the committed ones) when it began, or later
    send           topic, index (or null), key, value; then index, offset. Its name is
                   CLIENT:OPERATION
    begin, commit, abort    of a transaction, to which the sends and offsets in between belong
    commit_offsets group, offsets: [topic, index, offset], transactional
    fetch_offsets  group; then offsets: [topic, index, offset or null]

Whoever writes may be any process; reading is done afterwards, by `read_history`.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OK = "ok"
FAILED = "failed"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, with the fields of its beginning and its end together."""

    client: str
    number: int
    kind: str
    began_ns: int
    ended_ns: int | None
    outcome: str
    fields: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.client}:{self.number}"


class HistoryWriter:
    """Appends one client's operations to `directory`/CLIENT.jsonl; any thread of the process.

    A line is one write of a file, so a SIGKILL leaves it whole or not at all.
    """

    def __init__(self, directory: Path, client: str) -> None:
        self.client = client
        self._last = 0
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
        self._file = os.open(directory / f"{client}.jsonl", flags, 0o644)

    def close(self) -> None:
        os.close(self._file)

    def begin(self, kind: str, **fields: Any) -> int:
        """Says that the operation is about to be asked for; its number, for `end`."""
        return self._append({"event": "begin", "kind": kind, **fields})

    def end(self, operation: int, outcome: str, **fields: Any) -> None:
        self._append({"event": outcome, **fields}, operation)

    def done(self, kind: str, began_ns: int | None = None, **fields: Any) -> None:
        """An operation that is told when it is over: what changes nothing, such as a poll."""
        began_ns = time.monotonic_ns() if began_ns is None else began_ns
        self._append({"event": OK, "kind": kind, "began_ns": began_ns, **fields})

    def _append(self, fields: dict[str, Any], operation: int | None = None) -> int:
        if operation is None:
            self._last = operation = self._last + 1
        head = {"client": self.client, "operation": operation, "time_ns": time.monotonic_ns()}
        os.write(self._file, json.dumps(head | fields).encode() + b"\n")
        return operation


def read_history(directory: Path) -> list[Operation]:
    """All operations of all clients in `directory`, by the time of their beginning."""
    return history_of(
        json.loads(line)
        for path in sorted(directory.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    )


def history_of(lines: Iterable[dict[str, Any]]) -> list[Operation]:
    """Puts the beginnings and ends of operations together."""
    operations: dict[tuple[str, int], Operation] = {}
    for line in lines:
        fields = dict(line)
        client, number, event, time_ns = (
            fields.pop(name) for name in ("client", "operation", "event", "time_ns")
        )
        if "kind" in fields:
            kind = fields.pop("kind")
            began_ns = fields.pop("began_ns", time_ns)
            ended_ns, outcome = (None, UNKNOWN) if event == "begin" else (time_ns, event)
        else:
            begun = operations[client, number]
            kind, began_ns, ended_ns, outcome = begun.kind, begun.began_ns, time_ns, event
            fields = begun.fields | fields
        operations[client, number] = Operation(
            client, number, kind, began_ns, ended_ns, outcome, fields
        )
    return sorted(operations.values(), key=lambda each: (each.began_ns, each.client, each.number))
