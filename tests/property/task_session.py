"""What a load and a query need of Spark, done in this process, so that a history costs no JVM.

`TaskSession` stands where `load` wants a SparkSession: it runs the tasks of a commit one after the
other, pickled and unpickled as Spark does, and hands their errors on as Spark's text of them.
`StreamQuery` is the micro-batch engine in small: it writes the offsets of a batch into the
checkpoint before it runs, and `commits/N` after, and makes the writers that plan, write and commit
each on its own, as Spark does in processes of their own. Both call the connector by its public
interfaces alone. That Spark does the same, a share of the examples with a real one tells.
"""

import json
import pickle
import shutil
import traceback
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark import TaskContext, cloudpickle
from pyspark.errors import PythonException

from pyspark_kafkalog import DefaultSource, LoadSink


def pickled(sent: object) -> bytes:
    """As Spark sends it to a task."""
    return bytes(cloudpickle.dumps(sent))  # type: ignore[no-untyped-call]


class TaskSession:
    """A SparkSession to `load` without a DataFrame transform. `before_tasks(n)` is called before
    the tasks of the n-th commit run, `after_tasks(n)` when they have; with `runs_twice` each task
    runs again, and that one counts.
    """

    def __init__(
        self,
        before_tasks: Callable[[int], None] = lambda number: None,
        after_tasks: Callable[[int], None] = lambda number: None,
        runs_twice: bool = False,
    ) -> None:
        self._before_tasks = before_tasks
        self._after_tasks = after_tasks
        self._runs_twice = runs_twice
        self._commits = 0
        self.conf = SimpleNamespace(get=lambda name: "UTC")

    def range(self, start: int, end: int, step: int, partitions: int) -> "TaskSession":
        assert (start, step, partitions) == (0, 1, end)
        self._tasks = end
        return self

    def select(self, function: "TaskFunction") -> "TaskSession":
        self._function = function
        return self

    def collect(self) -> list[Any]:
        self._before_tasks(self._commits)
        self._commits += 1
        sent = pickled(self._function.function)
        rows = []
        for number in range(self._tasks):
            for _ in range(2 if self._runs_twice else 1):
                try:
                    landed = pickle.loads(sent)(number)
                except Exception:
                    raise PythonException(traceback.format_exc()) from None
            rows.append(SimpleNamespace(landed=landed))
        self._after_tasks(self._commits - 1)
        return rows


class TaskFunction:
    """Stands for `pyspark.sql.functions.udf` and for the column that one makes."""

    def __init__(self, function: Callable[[int], Any], kind: str, useArrow: bool) -> None:
        self.function = function

    def asNondeterministic(self) -> "TaskFunction":
        return self

    def __call__(self, column: str) -> "TaskFunction":
        return self

    def alias(self, name: str) -> "TaskFunction":
        return self


QUERY_ID = "sql.streaming.queryId"
_MOST_BATCHES = 300


class StreamQuery:
    """`readStream.format("kafkalog")...writeStream.format("kafkalog_load")`, with availableNow.

    `before_tasks` is called before the tasks of each micro-batch run.
    """

    def __init__(
        self,
        checkpoint: Path,
        source: Mapping[str, str],
        sink: Mapping[str, str],
        before_tasks: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_tasks = before_tasks
        self._checkpoint = checkpoint
        self._source = dict(source)
        self._sink = {**sink, "checkpointLocation": str(checkpoint)}

    def run(self) -> None:
        """All that is there; raises what the query would end with."""
        for name in ("offsets", "commits"):
            (self._checkpoint / name).mkdir(parents=True, exist_ok=True)
        source = DefaultSource(self._source)
        schema = source.schema()
        reader: Any = source.streamReader(schema)
        try:
            self._run(reader, schema)
        finally:
            reader.stop()

    def _run(self, reader: Any, schema: Any) -> None:
        numbers = sorted(int(path.name) for path in (self._checkpoint / "offsets").iterdir())
        batch = numbers[-1] if numbers else -1
        end = self._ends(batch)
        if numbers and not (self._checkpoint / "commits" / str(batch)).exists():
            start = self._ends(batch - 1) or reader.initialOffset()
            self._run_batch(reader, schema, batch, start, end)
        reader.prepareForTriggerAvailableNow()
        limit = reader.getDefaultReadLimit()
        start = end if end is not None else reader.initialOffset()
        while True:
            latest = reader.latestOffset(start, limit)
            # A new query has a first batch, also of nothing, so that its start is written down.
            if latest == start and batch >= 0:
                return
            batch += 1
            assert batch < _MOST_BATCHES, f"the query does not come to its end: {start}, {latest}"
            line = json.dumps(latest, separators=(",", ":"))
            content = f"v1\n{json.dumps({'batchWatermarkMs': 0})}\n{line}\n"
            (self._checkpoint / "offsets" / str(batch)).write_text(content)
            self._run_batch(reader, schema, batch, start, latest)
            start = latest

    def _run_batch(self, reader: Any, schema: Any, batch: int, start: Any, end: Any) -> None:
        parts = reader.partitions(start, end)
        commit_rows(
            lambda: LoadSink(self._sink).streamWriter(schema, False),
            [pickle.loads(pickled((reader, part))) for part in parts],
            batch,
            query_id=self._id(),
            before_tasks=self._before_tasks,
        )
        (self._checkpoint / "commits" / str(batch)).write_text("v1\n{}")

    def _id(self) -> str:
        """The query's id, which a new checkpoint is given."""
        metadata = self._checkpoint / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        return str(json.loads(metadata.read_text())["id"])

    def _ends(self, batch: int) -> dict[str, dict[str, int]] | None:
        path = self._checkpoint / "offsets" / str(batch)
        return json.loads(path.read_text().splitlines()[-1]) if path.exists() else None


def write_rows(source: Mapping[str, str], sink: Mapping[str, str]) -> None:
    """`read.format("kafkalog")...write.format("kafkalog_load").mode("append").save()`."""
    topic = DefaultSource(dict(source))
    schema = topic.schema()
    reader = topic.reader(schema)
    parts = [pickle.loads(pickled((reader, part))) for part in reader.partitions()]
    commit_rows(lambda: LoadSink(dict(sink)).writer(schema, False), parts)


def commit_rows(
    make_writer: Callable[[], Any],
    parts: list[Any],
    *batch: int,
    query_id: str | None = None,
    before_tasks: Callable[[], None] = lambda: None,
) -> None:
    """The tasks of one write and its commit, or its abort after a task that failed."""
    sent = pickled(make_writer())
    before_tasks()
    messages: list[Any] = []
    before = TaskContext._taskContext
    try:
        # Spark runs the tasks of an empty write, too.
        for number, (reader, part) in enumerate(parts or [(None, None)]):
            context = object.__new__(TaskContext)
            context._partitionId = number
            context._localProperties = {} if query_id is None else {QUERY_ID: query_id}
            TaskContext._taskContext = context
            rows = reader.read(part) if reader is not None else iter(())
            messages.append(pickle.loads(sent).write(rows))
    except Exception:
        make_writer().abort([*messages, None], *batch)
        raise
    finally:
        TaskContext._taskContext = before
    make_writer().commit(messages, *batch)


def copy_checkpoint(checkpoint: Path, to: Path) -> None:
    """A backup, or its return."""
    shutil.rmtree(to, ignore_errors=True)
    if checkpoint.exists():
        shutil.copytree(checkpoint, to)
