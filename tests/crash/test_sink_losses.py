"""The transactional sink over a network that loses a request, or its answer, at each step.

Every write ends by itself, with each row there once, whatever was lost (`step_faults.Loss`).
"""

import itertools
import os
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pyspark_kafkalog import EmbeddedBroker
from tests.crash.sink_steps import Sink, has_open_transactions, visible
from tests.crash.step_faults import Loss
from tests.support.patience import wait_until

pytestmark = pytest.mark.crash

STRIDE = 1 if int(os.environ.get("KAFKALOG_CRASH_KILLS", "4")) >= 20 else 4
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
# Another broker is asked, or the same again, when one was silent for as long as this.
OPTIONS = {
    "kafka.socket.connection.setup.timeout.ms": "1000",
    "kafka.request.timeout.ms": "10000",
    "kafka.delivery.timeout.ms": "30000",
}


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["batch query", pytest.param("stream", marks=pytest.mark.long)])
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "what",
    [
        "answer",
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ("request", "answer without a word")
        ),
    ],
)
@pytest.mark.parametrize("step", ["plan", "task", "commit", "abort"])
def test_what_the_network_loses_loses_and_doubles_nothing(
    servers: str,
    tmp_path: Path,
    step: str,
    what: Literal["request", "answer", "answer without a word"],
    times: int,
    kind: str,
) -> None:
    print(f"KAFKALOG_CRASH_SEED={SEED}")
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    sink = Sink(servers, name, f"p-{name}", more=OPTIONS)
    first = random.Random(f"{SEED} {step} {what}").randrange(STRIDE) + 1
    expected: Counter[bytes] = Counter()
    for number in itertools.count(first, STRIDE):
        happened = tmp_path / str(number)
        fault = Loss(what, number, times, happened)

        def at(where: str, fault: Loss = fault) -> Loss | None:
            return fault if where == step else None

        batch = None if kind == "batch query" else number
        rows = [[b"%d-%d-%d" % (number, task, row) for row in range(2)] for task in range(2)]
        sink.write(sink.plan(is_stream=batch is not None), [b"dead"])
        writer = sink.plan(at("plan"), is_stream=batch is not None)
        messages: list[Any] = sink.write(writer, *rows, fault=at("task"))
        if step == "abort":
            sink.abort(messages, batch, None if batch is not None else writer, at("abort"))
        else:
            sink.commit(messages, batch, at("commit"))
            expected.update(itertools.chain(*rows))
        wait_until(lambda: not has_open_transactions(servers, name), (number, "the markers"))
        assert visible(servers, name) == expected, number
        if not happened.exists():
            assert number > first
            return
