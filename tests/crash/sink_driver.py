"""Child program of test_sink_crash: a driver of micro-batches, as Spark's, without Spark.

`python -m tests.crash.sink_driver SERVERS TOPIC PREFIX DIRECTORY BATCHES SEED`. Tasks are processes
of their own; one that dies is tried again. A micro-batch counts as done when its file is in
DIRECTORY, as in a checkpoint, and is planned when its file is in the checkpoint beside; after a
failure the driver ends, and the next one begins with the micro-batch after the last that is done.
How rows are cut into tasks is another matter each time.
"""

import random
import sys
from pathlib import Path
from typing import Any

from tests.crash.sink_steps import Sink, Step, StepError, StepKilled, plan_micro_batch

ROWS_PER_BATCH = 40
_ATTEMPTS = 3


def rows_of(batch: int) -> list[bytes]:
    return [b"%d-%d" % (batch, row) for row in range(ROWS_PER_BATCH)]


def _write(sink: Sink, writer: bytes, tasks: list[list[bytes]]) -> list[Any]:
    """The messages of all tasks, which run at once; raises StepError, StepKilled."""
    steps = [_task(sink, writer, partition, 0, rows) for partition, rows in enumerate(tasks)]
    messages = []
    for partition, rows in enumerate(tasks):
        for attempt in range(_ATTEMPTS):
            try:
                messages.append(steps[partition].result())
                break
            except StepKilled:
                if attempt + 1 == _ATTEMPTS:
                    raise
                steps[partition] = _task(sink, writer, partition, attempt + 1, rows)
    return messages


def _task(sink: Sink, writer: bytes, partition: int, attempt: int, rows: list[bytes]) -> Step:
    return Step(None, "task", writer, sink.query, partition, attempt, rows)


def main(servers: str, topic: str, prefix: str, directory: str, batches: str, seed: str) -> None:
    done = Path(directory)
    checkpoint = done.with_name("checkpoint")
    sink = Sink(servers, topic, prefix, more={"checkpointLocation": str(checkpoint)})
    chance = random.Random(int(seed))
    for batch in range(int(batches)):
        if (done / str(batch)).exists():
            continue
        plan_micro_batch(checkpoint, batch)
        cut = chance.randint(1, 4)
        rows = rows_of(batch)
        tasks = [rows[first::cut] for first in range(cut)]
        try:
            messages = _write(sink, sink.plan(), tasks)
        except (StepError, StepKilled) as error:
            sys.exit(f"micro-batch {batch}: {error}")
        try:
            sink.commit(messages, batch)
        except StepError as error:
            sink.abort(messages, batch)
            sys.exit(f"commit of micro-batch {batch}: {error}")
        (done / str(batch)).touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
