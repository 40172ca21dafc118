"""A service in this process: what becomes of loads and topics that fail."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka.structs import TopicPartition

from pyspark_kafkalog import errors, load
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.warehouse.service.agenda import Ended
from pyspark_kafkalog.warehouse.service.failures import how_ended
from pyspark_kafkalog.warehouse.service.figures import Figures
from pyspark_kafkalog.warehouse.service.jobs import read_jobs
from pyspark_kafkalog.warehouse.service.lag_watch import LagWatch
from pyspark_kafkalog.warehouse.service.runner import Asked, Said, Service
from tests.pyspark_kafkalog.warehouse.topic_filler import TopicFiller
from tests.support.patience import EVENT_S, wait_until


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@contextlib.contextmanager
def running(path: Path, said: list[Said]) -> Iterator[Service]:
    service = Service(lambda: read_jobs(path), said.append, workers=1)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.ask(Asked.STOP)
        thread.join(EVENT_S)
        assert not thread.is_alive()


def test_a_topic_that_stays_wrong_is_held_alone(servers: str, tmp_path: Path) -> None:
    filler = TopicFiller(servers)
    filler.make("one", "two")
    filler.append("one", [b"1", b"2"])
    path = tmp_path / "loads.toml"
    path.write_text(
        f'[[load]]\nname = "n"\ntopics = ["one", "two"]\nto = "parquet:{tmp_path}/{{topic}}"\n'
        f'every = "0.2 s"\nbootstrap-servers = "{servers}"\n'
    )
    said: list[Said] = []

    def commits(topic: str) -> Callable[[], bool]:
        return lambda: any(one.topic == topic and one.result for one in said)

    with running(path, said) as service:
        wait_until(commits("one"), lambda: said)
    filler.append("one", [b"3", b"4"])
    with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
        admin.delete_records(cluster, {TopicPartition("one", 0): 3}, lambda *_: None)
    said.clear()
    with running(path, said) as service:
        wait_until(lambda: service.figures.all()[0].runs > 2, lambda: said)
        filler.append("two", [b"5"])
        wait_until(commits("two"), lambda: said)
        assert [one.topic for one in said if one.is_error] == ["one"]
        (figures,) = service.figures.all()
        assert (figures.failures, figures.held) == (1, True)
        filler.append("two", [b"6", b"7"])
        wait_until(lambda: service.figures.all()[0].records == 3, lambda: said)
        watch = LagWatch(lambda: service.jobs, service.figures)
        watch.look()
        # One goes on at 2, and ends at 4.
        assert service.figures.all()[0].lag == {"one": 2, "two": 0}
        service.ask(Asked.RELOAD)
        wait_until(lambda: sum(one.is_error for one in said) == 2, lambda: said)


def test_the_lag_of_a_topic_is_known_whatever_is_wrong_with_others(
    servers: str, tmp_path: Path
) -> None:
    filler = TopicFiller(servers)
    filler.make("bad-table", "right")
    filler.append("right", [b"1", b"2"])
    make_unreadable(tmp_path / "bad-table")
    path = tmp_path / "loads.toml"
    path.write_text(
        f'[[load]]\nname = "n"\ntopics = ["bad-table", "gone", "right"]\n'
        f'to = "delta:{tmp_path}/{{topic}}"\nevery = "1 h"\nbootstrap-servers = "{servers}"\n'
    )
    jobs = {job.key: job for job in read_jobs(path).jobs}
    figures = Figures()
    figures.take(jobs)
    LagWatch(lambda: jobs, figures).look()
    assert figures.all()[0].lag == {"right": 2}


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (errors.BrokersUnreachableError("x"), Ended.MAY_PASS),
        (errors.LoadConflictError("x"), Ended.MAY_PASS),
        (errors.TargetError("x"), Ended.MAY_PASS),
        (errors.UnknownTopicError("x"), Ended.MAY_PASS),
        (errors.LogTruncatedError("x"), Ended.MAY_PASS),
        (OSError(28, "No space left on device"), Ended.MAY_PASS),
        (errors.DataLossError("x"), Ended.WILL_STAY),
        (errors.TopicRecreatedError("x"), Ended.WILL_STAY),
        (errors.InvalidOptionError("x"), Ended.WILL_STAY),
        (errors.BadRecordError("x"), Ended.WILL_STAY),
        (errors.InvalidRowError("x"), Ended.WILL_STAY),
        (errors.OtherModeError("x"), Ended.WILL_STAY),
    ],
)
def test_what_may_pass_and_what_stays(error: Exception, how: Ended) -> None:
    assert how_ended(error) is how


def test_a_target_is_maintained_beside_its_loads(servers: str, tmp_path: Path) -> None:
    filler = TopicFiller(servers)
    filler.make("often")
    for number in range(3):
        filler.append("often", [b"%d" % number])
        load(
            None,
            "n",
            f"delta:{tmp_path}/often",
            {"kafka.bootstrap.servers": servers, "subscribe": "often"},
        )
    make_unreadable(tmp_path / "broken")
    path = tmp_path / "loads.toml"
    path.write_text(
        f'[[load]]\nname = "n"\ntopics = ["broken", "often"]\nto = "delta:{tmp_path}/{{topic}}"\n'
        f'every = "1 h"\nmaintain-every = "0.2 s"\nbootstrap-servers = "{servers}"\n'
        f'[[load]]\nname = "n"\ntopics = ["often"]\nto = "delta:{tmp_path}/none"\n'
        f'every = "0.1 s"\nbootstrap-servers = "{servers}"\n'
    )
    said: list[Said] = []

    def compacted() -> int:
        return sum("files compacted into 1;" in one.text for one in said)

    with running(path, said):
        wait_until(lambda: compacted() == 1, lambda: said)
        filler.append("often", [b"3"])
        # Of the other one, which does not say it, every load is a file.
        wait_until(lambda: len(values(tmp_path / "none")) == 4, lambda: said)
        damage = damaged(tmp_path / "often")
        wait_until(
            lambda: any("for topic often was not maintained" in one.text for one in said),
            lambda: said,
        )
        damage.unlink()
        before = compacted()
        filler.append("often", [b"4"])
        # The service's own load of the name may take either record, whenever its turn is.
        while len(values(tmp_path / "often")) < 5:
            with contextlib.suppress(errors.LoadConflictError):
                load(
                    None,
                    "n",
                    f"delta:{tmp_path}/often",
                    {"kafka.bootstrap.servers": servers, "subscribe": "often"},
                )
        wait_until(lambda: compacted() > before, lambda: said)
        wait_until(lambda: len(values(tmp_path / "none")) == 5, lambda: said)
    assert values(tmp_path / "often") == [b"0", b"1", b"2", b"3", b"4"]
    assert len(DeltaTable(str(tmp_path / "none")).file_uris()) == 3


def make_unreadable(table: Path) -> None:
    """A Delta table whose log is no JSON from the first version on."""
    log = table / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("no JSON")


def damaged(table: Path) -> Path:
    """The next version of a Delta table's log, which cannot be read: a loader may have just written
    one, which stays."""
    while True:
        version = DeltaTable(str(table)).version() + 1
        damage = table / "_delta_log" / f"{version:020}.json"
        with contextlib.suppress(FileExistsError), damage.open("x") as file:
            file.write("no JSON")
            return damage


def values(path: Path) -> list[bytes]:
    if not DeltaTable.is_deltatable(str(path)):
        return []
    return sorted(DeltaTable(str(path)).to_pyarrow_table().column("value").to_pylist())
