"""Our landing in an Iceberg table beside Iceberg's own Kafka Connect sink, from one topic.

Both land in tables of one kind of catalog (SQLite) with files in a directory. The sink's rate is
that between two of its commits, when it has been at work for some time: neither the start of its
JVM counts, nor the wait for a commit when the topic has ended. Ours counts from the call of `load`,
which starts its processes, to its last commit.

Left out where the sink was not fetched: `make .peers/iceberg-connect`.
"""

import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from benchmarks.made_rows import Kind, MadeTopic
from benchmarks.pairs import Comparison, Row
from benchmarks.running import Running, topic
from pyspark_kafkalog import load
from tests.support.iceberg_connect import AS_BYTES, JARS, PLACED, IcebergSink, Lake
from tests.support.patience import wait_for

PEER = "iceberg-kafka-connect"
INTERVAL_S = 5
TASKS = 2
# Java's compiler is at work through the first ones.
_FIRST, _LAST = 3, 6
"""Between which commits the sink's rate is taken; or up to the last one before the topic ends."""
COMMITS = 10
"""Of ours; as many more as it takes where they would be further apart than the sink's."""
_OVERHEAD_BYTES = 20
"""Of a record in the log beside its value."""
_TIMEOUT_S = 300
_TABLE = "rows"
# A consumer's own are 500 records and 1 MiB of a partition; ours asks for 4 MiB and more.
CONSUMER = {
    "consumer.override.max.poll.records": "10000",
    "consumer.override.max.partition.fetch.bytes": str(8 << 20),
    "consumer.override.receive.buffer.bytes": str(1 << 20),
}
_PLACE: dict[str, IcebergType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestamptzType(),
}
_JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


@dataclass(frozen=True, slots=True)
class Form:
    """How both are told to read values: the table's columns, our arguments, the sink's."""

    name: str
    kind: Kind
    columns: Mapping[str, IcebergType]
    ours: Mapping[str, Any] = field(default_factory=dict)
    peer: Mapping[str, str] = field(default_factory=dict)
    count: int = 10_000_000
    """Of rows: enough for the sink to take them in more commits than are measured."""

    @property
    def schema(self) -> Schema:
        columns = {**self.columns, **_PLACE}.items()
        fields = [NestedField(number, *each) for number, each in enumerate(columns, 1)]
        return Schema(*fields)


BYTES = Form("values as they are", Kind(), {"value": BinaryType()}, peer=AS_BYTES, count=20_000_000)
JSON = Form(
    "JSON decoded",
    Kind(is_json=True),
    {
        "order": LongType(),
        "customer": StringType(),
        "amount": LongType(),
        "session": StringType(),
    },
    {
        "value_format": "json",
        "value_schema": "order BIGINT, customer STRING, amount BIGINT, session STRING",
    },
    {**PLACED, "value.converter": _JSON_CONVERTER, "value.converter.schemas.enable": "false"},
)


def comparisons(running: Running) -> list[Comparison]:
    if not JARS.is_dir():
        return []
    return [_comparison(running, form) for form in (BYTES, JSON)]


def _comparison(running: Running, form: Form) -> Comparison:
    made = MadeTopic(lambda: running.kafka, int(form.count * running.scale), form.kind)
    row = Row(
        "Warehouse",
        f"land {made.title} in Iceberg, {form.name}",
        "M rows/s",
        goal=5,
        peer_name=PEER,
        settings={
            "ours": f"load(None, ...) in {COMMITS} commits or more; also the records' keys",
            "peer": f"a commit every {INTERVAL_S} s, tasks.max={TASKS}, {CONSUMER}, {form.peer}",
        },
    )
    return Comparison.of_one(
        row, lambda: landing(made, form), lambda: sinking(made, form), pair_s=50, quick=False
    )


def landing(made: MadeTopic, form: Form) -> float:
    """Millions of rows a second of ours."""
    commits, seconds = COMMITS, _landing_s(made, form, COMMITS)
    while seconds / commits > INTERVAL_S:
        commits *= 2
        seconds = _landing_s(made, form, commits)
    return made.count / seconds / 1e6


def _landing_s(made: MadeTopic, form: Form, commits: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        options = {"kafka.bootstrap.servers": made.servers, "subscribe": made.name}
        began = time.perf_counter()
        result = load(
            None,
            name="bench",
            target=lake.target(_TABLE),
            options=options,
            chunk_bytes=(made.size_bytes + _OVERHEAD_BYTES * made.count) // commits,
            **form.ours,
        )
        seconds = time.perf_counter() - began
        assert result.records == made.count, result
    return seconds


def sinking(made: MadeTopic, form: Form) -> float:
    """Millions of rows a second of the sink."""
    with (
        tempfile.TemporaryDirectory() as folder,
        topic(made.broker, 1) as control,
    ):
        lake = Lake(Path(folder))
        lake.create(_TABLE, form.schema)
        properties = {
            **lake.of_sink(_TABLE),
            **form.peer,
            **CONSUMER,
            "name": f"bench-{uuid.uuid4().hex[:8]}",
            "tasks.max": str(TASKS),
            "iceberg.control.topic": control,
            "iceberg.control.commit.interval-ms": str(INTERVAL_S * 1000),
        }
        with IcebergSink(Path(folder), made.servers, made.name, properties) as sink:

            def commits() -> list[Snapshot]:
                assert sink.is_running(), sink.log.read_text()[-2000:]
                return lake.table(_TABLE).snapshots()

            found = wait_for(
                commits,
                lambda found: len(found) >= _LAST or (found and total(found[-1]) == made.count),
                _TIMEOUT_S,
                pause_s=0.5,
            )
    # The last one waited for its time, with nothing to do.
    whole = [each for each in found[_FIRST - 1 : _LAST] if total(each) < made.count]
    assert len(whole) > 1, f"all {made.count} rows in {len(found)} commits: take more of them"
    rows = total(whole[-1]) - total(whole[0])
    return rows / (whole[-1].timestamp_ms - whole[0].timestamp_ms) / 1e3


def total(snapshot: Snapshot | None) -> int:
    """Rows of the table, as of that commit."""
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary["total-records"] or 0)
