"""Random histories of topics, loads and owners into every kind of target, beside what is due.

load_model.py carries them out, load_oracle.py says what is due. A history that fails is printed as
a story, with what each step did, and as Python that `replay` runs again; with it goes the seed that
finds it again.

A few histories of a fixed seed are part of `make test`. With KAFKALOG_PROPERTY_SECONDS each test
goes on for so long, by a seed at random and the seeds that follow it (`make property`);
KAFKALOG_PROPERTY_SEED says with which to begin.
"""

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.warehouse import deleted_topics
from tests.property import load_steps, owner_steps, row_steps, topic_steps
from tests.property.killed_load import KillableLoads
from tests.property.load_model import History, World
from tests.property.task_session import TaskFunction
from tests.property.topic_model import BROKER
from tests.pyspark_kafkalog.warehouse.tables import KINDS
from tests.support.broker_child import RawClient

SECONDS = float(os.environ.get("KAFKALOG_PROPERTY_SECONDS", "0"))
TOLD_SEED = os.environ.get("KAFKALOG_PROPERTY_SEED")
SEED = int(TOLD_SEED) if TOLD_SEED else random.SystemRandom().randrange(1 << 32) if SECONDS else 18
HISTORIES = 30 if SECONDS or TOLD_SEED else 12
# To make a failing history small takes minutes: `make test` tells its seed, which then does so.
PHASES = [Phase.explicit, Phase.generate, *([Phase.shrink] if SECONDS or TOLD_SEED else [])]
"""Of each seed."""

LONG = ["duckdb", "s3", "postgresql", "mariadb", "parquet", "iceberg"]
QUICK = [kind for kind in KINDS if kind not in LONG]
MOST_EPISODES = 6


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=BROKER) as started:
        yield started


@pytest.fixture(scope="module")
def client(broker: EmbeddedBroker) -> Iterator[RawClient]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with RawClient(host, int(port), timeout_s=60) as connected:
        yield connected


@pytest.fixture(scope="module")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableLoads]:
    loads = KillableLoads(tmp_path_factory.mktemp("library"))
    yield loads
    loads.close()


@pytest.fixture
def tasks_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.functions.udf", TaskFunction)
    # There is no broker that has just started, and may not know of topics yet.
    monkeypatch.setattr(deleted_topics, "_RETRY_INTERVAL_S", 0)


def replay(
    history: History,
    servers: str,
    client: RawClient,
    killable: KillableLoads | None = None,
    spark: Any = None,
) -> None:
    """Carries a history out; its story is in the report of what fails."""
    directory = Path(tempfile.mkdtemp(prefix="history-"))
    world = World(history, servers, client, directory, killable, spark)
    try:
        world.run()
    except BaseException:
        note("\n".join(world.story))
        raise
    finally:
        world.close()
        shutil.rmtree(directory, ignore_errors=True)


# Small numbers: which partition, topic or name, by counting around; -1 is the newest.
PLACES = st.sampled_from([0, 0, 1, 2, -1])
TOPICS = st.sampled_from([("a", "b"), ("a", "b"), ("a",), ("b",)])
NAME = st.sampled_from([0, 0, 0, 0, 1])
WAY = st.sampled_from(["subscribe", "subscribe", "pattern", "assign"])
MOSTLY = st.sampled_from([True, True, True, False])
SELDOM = st.sampled_from([False, False, False, False, True])
KEEP = st.integers(0, 3)


def maybe(values: st.SearchStrategy, never: int = 3) -> st.SearchStrategy:
    """None `never` times for each value."""
    return st.one_of(*[st.none()] * never, values)


def produce(**fixed: st.SearchStrategy) -> st.SearchStrategy:
    how = st.sampled_from(["plain", "plain", "idempotent", "committed", "aborted", "open"])
    wanted = {"partition": PLACES, "records": st.integers(1, 6), "how": how, **fixed}
    return st.builds(topic_steps.Produce, **wanted)


def load(**fixed: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(
        load_steps.Load, **{"name": NAME, "topics": TOPICS, "fails_on_loss": MOSTLY} | fixed
    )


DELETE_RECORDS = st.builds(topic_steps.DeleteRecords, partition=PLACES, keep=KEEP)
RECREATE = st.builds(
    topic_steps.Recreate, topic=PLACES, partitions=st.integers(1, 2), records=st.integers(0, 6)
)
RIVAL = load(name=st.just(0))
OVERTAKEN = st.builds(
    load_steps.InTurn,
    steps=st.tuples(RECREATE, load(name=st.just(0), fails_on_loss=st.just(False))),
)
UPKEEP = st.just(owner_steps.Owner("upkeep"))
MEANWHILE = st.one_of(DELETE_RECORDS, DELETE_RECORDS, RECREATE, produce(), RIVAL, OVERTAKEN, UPKEEP)
LOAD = load(
    names_missing=SELDOM,
    way=WAY,
    committed=MOSTLY,
    says_isolation=SELDOM,
    starting=maybe(st.sampled_from(["earliest", -2, 0, 1, 3])),
    until=maybe(st.integers(0, 6)),
    max_bytes=maybe(st.integers(1, 400), 6),
    chunk_bytes=maybe(st.integers(1, 400)),
    transform=maybe(st.sampled_from(["odd", "same"])),
    runs_twice=SELDOM,
    dry_run=SELDOM,
    meanwhile=maybe(MEANWHILE, 2),
    at=st.sampled_from([0, 0, 1, 2]),
    is_late=SELDOM,
    kill=maybe(st.integers(1, 120), 4),
    evolves=SELDOM,
)
ROWWISE = st.builds(
    row_steps.Rowwise,
    name=NAME,
    topics=TOPICS,
    names_missing=SELDOM,
    way=st.sampled_from(["stream", "stream", "write"]),
    checkpoint=st.sampled_from(["kept", "kept", "lost", "older"]),
    most_offsets=maybe(st.integers(1, 4), 1),
    says_servers=MOSTLY,
)
LOADS = st.one_of(load(), load(), LOAD, ROWWISE)
GOES = st.one_of(DELETE_RECORDS, st.builds(topic_steps.Retention, topic=PLACES))
OWNER = st.builds(
    owner_steps.Owner,
    what=st.sampled_from(
        ["drop", "add_column", "optimize", "vacuum", "roll_back", "our_vacuum", "upkeep", "upkeep"]
    ),
    back=PLACES,
)
LOSE = st.builds(owner_steps.LoseOffsets, name=NAME)
REWIND = st.builds(
    owner_steps.Rewind,
    name=NAME,
    partition=PLACES,
    back=st.sampled_from([0, 1, 2, 3, 99]),
    truncates=MOSTLY,
)
OWNERS = st.one_of(OWNER, LOSE, st.builds(owner_steps.Forget, name=NAME), REWIND)
END = st.builds(topic_steps.EndTransaction, transaction=PLACES, commit=MOSTLY)
ABSURD = produce(records=st.just(1), is_absurd=st.just(True))
OTHERS = st.one_of(
    st.builds(topic_steps.Create, topic=PLACES, partitions=st.integers(1, 2)),
    st.builds(topic_steps.AddPartition, topic=PLACES),
    GOES,
    RECREATE,
    END,
    st.builds(topic_steps.Delete, topic=PLACES),
    st.builds(topic_steps.Compact, topic=PLACES),
    OWNERS,
    ABSURD,
)


SHAPES = [("binary", "fail")] * 3 + [
    ("string", "null"),
    ("binary", "null"),
    ("string", "deadletter"),
]
"""The format of values, and what becomes of what cannot be a row."""


def told(*steps: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(*steps)


NEWEST = st.just(-1)
PATTERN = load(
    topics=st.just(("a", "b")),
    way=st.just("pattern"),
    names_missing=st.just(True),
    fails_on_loss=st.booleans(),
    kill=maybe(st.integers(1, 120), 4),
)
SEEING = load(
    name=st.just(0),
    topics=st.just(("a", "b")),
    way=st.just("pattern"),
    names_missing=st.just(True),
)
HIDING = load(
    name=st.just(0),
    topics=st.just(("a", "b")),
    way=st.just("pattern"),
    names_missing=st.just(True),
    fails_on_loss=SELDOM,
    hides=st.sampled_from([0, -1, -1]),
)
SOME = st.integers(2, 6)


def overtaken_at(records: int) -> st.SearchStrategy:
    """A rival of a load that has landed finds its topic created again, and ends where that did."""
    again = topic_steps.Recreate(topic=-1, partitions=1, records=records)
    goes_on = load(name=st.just(0), topics=st.just(("a", "b")), fails_on_loss=st.just(False))
    steps = st.builds(load_steps.InTurn, steps=st.tuples(st.just(again), goes_on))
    overtaken = load(
        name=st.just(0), topics=TOPICS, way=WAY, meanwhile=steps, is_late=st.just(True)
    )
    news = produce(partition=NEWEST, how=st.just("plain"))
    return told(st.just(again), goes_on, news, overtaken, load(name=st.just(0)))


# What often goes together, so that it does: a step alone, or a few that are about one thing.
EPISODES = st.one_of(
    told(produce()),
    told(LOADS),
    told(OTHERS),
    told(produce(), LOADS),
    # A partition that is new, or was empty, is half gone before it is loaded.
    told(
        LOADS,
        st.builds(topic_steps.AddPartition, topic=NEWEST),
        produce(partition=NEWEST, records=SOME, how=st.just("plain")),
        st.builds(topic_steps.DeleteRecords, partition=NEWEST, keep=KEEP),
        LOADS,
    ),
    told(
        LOADS,
        produce(partition=NEWEST, records=SOME),
        st.builds(topic_steps.DeleteRecords, partition=NEWEST, keep=KEEP),
        LOADS,
    ),
    # A topic is created again.
    told(produce(partition=NEWEST), LOADS, RECREATE, LOADS),
    # A pattern misses a topic that was deleted, and may go on without it.
    told(
        PATTERN,
        produce(partition=NEWEST),
        st.builds(topic_steps.Delete, topic=NEWEST),
        PATTERN,
        PATTERN,
        LOADS,
    ),
    # It does not see one for a while; what comes into it after that may go with it.
    told(
        SEEING,
        HIDING,
        SEEING,
        produce(partition=NEWEST),
        st.builds(topic_steps.Delete, topic=NEWEST),
        SEEING,
    ),
    told(produce(partition=NEWEST), SEEING, HIDING, LOADS, produce(partition=NEWEST), LOADS),
    st.integers(0, 2).flatmap(overtaken_at),
    told(
        produce(),
        load(name=st.just(0), meanwhile=st.one_of(OVERTAKEN, RIVAL, HIDING), is_late=st.just(True)),
        LOADS,
    ),
    # Retention is faster than a load of many commits.
    told(
        produce(partition=NEWEST, records=SOME, how=st.just("plain")),
        produce(partition=NEWEST, records=SOME, how=st.just("plain")),
        load(
            topics=st.just(("a", "b")),
            fails_on_loss=st.booleans(),
            chunk_bytes=st.integers(1, 300),
            meanwhile=st.builds(topic_steps.DeleteRecords, partition=NEWEST, keep=KEEP),
            at=st.integers(0, 3),
        ),
    ),
    # A transaction is open, and ends, while others load.
    told(produce(how=st.just("open")), LOADS, END, LOADS),
    told(load(committed=st.just(False)), produce(how=st.just("open")), LOADS, LOADS),
    # A checkpoint comes back.
    told(produce(), ROWWISE, produce(), ROWWISE),
    # Owners.
    told(produce(), LOADS, produce(), LOADS, UPKEEP, produce(), LOADS, UPKEEP),
    told(produce(), LOADS, OWNERS, produce(), LOADS),
    told(produce(records=SOME), LOADS, produce(), LOADS, REWIND, REWIND, produce(), LOADS),
    told(produce(), LOADS, st.just(owner_steps.Owner("drop")), LOADS, produce(), LOADS),
)


@st.composite
def histories(draw: st.DrawFn, target: str) -> History:
    is_sql = target in ("sqlite", "duckdb", "postgresql", "mariadb")
    partition_by = "" if is_sql else draw(st.sampled_from(["", "", "partition", "days(timestamp)"]))
    shape = draw(st.sampled_from(SHAPES))
    first = topic_steps.Create(topic=0, partitions=draw(st.integers(1, 2)))
    episodes = draw(st.lists(EPISODES, min_size=1, max_size=MOST_EPISODES))
    steps = [step for episode in episodes for step in episode]
    return History(
        target=target,
        steps=(first, *steps),
        headers=draw(st.booleans()),
        partition_by=partition_by,
        value_format=shape[0],
        on_error=shape[1],
    )


class Campaign:
    """Random histories into one kind of target: those of one seed, or as many seeds as there is
    time for."""

    def __init__(
        self, kind: str, try_out: Callable[[History], None], tell: Callable[[str], None]
    ) -> None:
        self._kind = kind
        self._try_out = try_out
        self._tell = tell
        self._began = time.monotonic()
        self._tried = 0
        self._failed = ""

    def run(self, seeds: Iterator[int]) -> None:
        for number in seeds:
            try:
                self._run(number)
            except BaseException:
                self._failed += f"; again with KAFKALOG_PROPERTY_SEED={number}"
                raise
            finally:
                self._report(number)
            if self._is_over():
                return

    def _run(self, number: int) -> None:
        @seed(number)
        @settings(
            max_examples=HISTORIES,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            # To explain takes longer than to shrink, and says less than the story.
            phases=PHASES,
        )
        @given(history=histories(self._kind))
        def test(history: History) -> None:
            # One that fails is tried again, and shrunk, also when time is over.
            if SECONDS and self._is_over() and not self._failed:
                return
            self._tried += 1
            try:
                self._try_out(history)
            except BaseException:
                if not self._failed:
                    self._failed = f", the first failed after {self._told()}"
                    self._tell(
                        f"{self._kind}: seed {number} failed after {self._told()}, to be made small"
                    )
                raise

        test()

    def _is_over(self) -> bool:
        return time.monotonic() - self._began >= SECONDS

    def _told(self) -> str:
        return f"{self._tried} histories in {time.monotonic() - self._began:.0f} s"

    def _report(self, number: int) -> None:
        if self._failed or (SECONDS and self._is_over()):
            self._tell(f"{self._kind}: {self._told()}, seeds {SEED} to {number}{self._failed}")


@pytest.fixture
def check(
    broker: EmbeddedBroker, client: RawClient, capsys: pytest.CaptureFixture[str]
) -> Callable[..., None]:
    def run(kind: str, **means: Any) -> None:
        def try_out(history: History) -> None:
            replay(history, broker.bootstrap_servers, client, **means)

        def tell(line: str) -> None:
            with capsys.disabled():
                print(f"\n{line}", flush=True)

        Campaign(kind, try_out, tell).run(count(SEED))

    return run


@pytest.mark.usefixtures("tasks_in_this_process")
@pytest.mark.parametrize("kind", QUICK)
def test_each_record_is_there_once_or_is_told_of(
    kind: str, check: Callable[..., None], killable: KillableLoads
) -> None:
    check(kind, killable=killable)


@pytest.mark.long
@pytest.mark.usefixtures("tasks_in_this_process")
@pytest.mark.parametrize("kind", LONG)
def test_so_it_is_in_the_other_kinds(
    kind: str, check: Callable[..., None], killable: KillableLoads
) -> None:
    check(kind, killable=killable)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parquet", "sqlite"])
def test_so_it_is_with_spark(kind: str, check: Callable[..., None], spark: SparkSession) -> None:
    check(kind, spark=spark)
