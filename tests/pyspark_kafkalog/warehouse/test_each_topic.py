"""Topics that land in a table each: all of them, whatever becomes of the others."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kafka.structs import TopicPartition

import pyspark_kafkalog
from pyspark_kafkalog import TopicLoad, cli, load_topics
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    DataLossError,
    InvalidOptionError,
    UnknownTopicError,
)
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.warehouse.topic_filler import TopicFiller
from tests.support.patience import EVENT_S, wait_until
from tests.support.ports import closed_port


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def filler(servers: str) -> TopicFiller:
    return TopicFiller(servers)


def is_gone(path: Path) -> bool:
    return not path.exists()


def loaded(servers: str, target: str, **how: Any) -> dict[str, TopicLoad]:
    subscription = {name: how.pop(name) for name in list(how) if name.startswith("subscribe")}
    options = {"kafka.bootstrap.servers": servers, **subscription}
    done = load_topics(None, how.pop("name", "nightly"), target, options, **how)
    return {one.topic: one for one in done}


def records(done: dict[str, TopicLoad]) -> dict[str, int]:
    return {topic: one.result.records for topic, one in done.items() if one.result}


def test_topics_of_a_pattern_land_in_a_table_each_and_new_ones_are_found(
    servers: str, filler: TopicFiller, tmp_path: Path
) -> None:
    filler.make("shop.eu", "shop.us", "other")
    filler.append("shop.eu", [b"1", b"2"])
    filler.append("other", [b"9"])
    target, how = f"parquet:{tmp_path}/{{topic}}", {"subscribePattern": "^shop"}
    assert records(loaded(servers, target, **how)) == {"shop.eu": 2, "shop.us": 0}
    filler.make("shop.cn")
    filler.append("shop.cn", [b"3"])
    filler.append("shop.eu", [b"4"])
    assert records(loaded(servers, target, **how)) == {"shop.cn": 1, "shop.eu": 1, "shop.us": 0}
    assert sorted(pq.read_table(tmp_path / "shop.eu")["value"].to_pylist()) == [b"1", b"2", b"4"]
    assert not (tmp_path / "other").exists()


def test_what_fails_is_one_topics(servers: str, filler: TopicFiller, tmp_path: Path) -> None:
    filler.make("good", "trimmed")
    filler.append("good", [b"1"])
    filler.append("trimmed", [b"1", b"2"])
    target = f"sql:sqlite:///{tmp_path}/db#raw_{{topic}}"
    loaded(servers, target, subscribe="trimmed")
    filler.append("trimmed", [b"3", b"4"])
    with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
        admin.delete_records(cluster, {TopicPartition("trimmed", 0): 3}, lambda *_: None)
    told: list[str] = []
    done = loaded(
        servers,
        target,
        subscribe="trimmed,missing,good",
        told=lambda one: told.append(one.topic),
    )
    assert sorted(told) == ["good", "missing", "trimmed"]
    assert records(done) == {"good": 1}
    assert isinstance(done["trimmed"].error, DataLossError)
    assert isinstance(done["missing"].error, UnknownTopicError)


def test_no_two_topics_share_a_table(servers: str, filler: TopicFiller, tmp_path: Path) -> None:
    filler.make("a.b", "A.b", "c")
    for topic in ("a.b", "A.b", "c"):
        filler.append(topic, [topic.encode()])
    target = f"sql:sqlite:///{tmp_path}/db#{{topic}}"
    done = loaded(servers, target, subscribe="a.b,A.b,c")
    assert records(done) == {"c": 1}
    assert all("A.b and a.b would land" in str(done[one].error) for one in ("a.b", "A.b"))
    assert records(loaded(servers, target, subscribe="a.b")) == {"a.b": 1}
    later = loaded(servers, target, subscribe="A.b")
    assert isinstance(later["A.b"].error, InvalidOptionError)
    assert "has topic a.b already" in str(later["A.b"].error)
    own = loaded(servers, target, subscribe="A.b", name="nightly-{topic}")
    assert "load 'nightly' has topic a.b already" in str(own["A.b"].error)
    assert records(loaded(servers, target, subscribe="c", name="hourly-{topic}")) == {"c": 1}
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        assert connection.execute("SELECT count(*) FROM a_b").fetchone() == (1,)


def test_a_name_and_a_place_of_a_topic_are_its_own(
    servers: str, filler: TopicFiller, tmp_path: Path
) -> None:
    filler.make("x", "y")
    filler.append("x", [b"1", b"2", b"3"])
    filler.append("y", [b"1", b"2", b"3"])
    target = f"delta:{tmp_path}/{{topic}}"
    starting = {"x": {"0": 2}, "y": {"0": 1}}
    done = loaded(servers, target, name="n/{topic}", subscribe="x,y", starting=starting)
    assert records(done) == {"x": 1, "y": 2}
    assert open_target(f"delta:{tmp_path}/x").names() == ["n/x"]


def test_what_concerns_all_topics_is_said_once(tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": f"127.0.0.1:{closed_port()}", "subscribe": "a,b"}
    with pytest.raises(BrokersUnreachableError):
        load_topics(None, "nightly", f"parquet:{tmp_path}/{{topic}}", options)
    with pytest.raises(InvalidOptionError, match=r"does not say \{topic\}"):
        load_topics(None, "nightly", f"parquet:{tmp_path}", options)
    with pytest.raises(InvalidOptionError, match=r"load_topics"):
        pyspark_kafkalog.load(None, "nightly", f"parquet:{tmp_path}/{{topic}}", options)
    for number in (0, -1):
        with pytest.raises(InvalidOptionError, match=f"{number} loads at a time land nothing"):
            load_topics(None, "nightly", f"parquet:{tmp_path}/{{topic}}", options, at_once=number)
    for ask in (
        pyspark_kafkalog.load_status,
        pyspark_kafkalog.maintain,
        lambda target: pyspark_kafkalog.forget(target, "nightly"),
        lambda target: pyspark_kafkalog.rewind(target, "nightly", "earliest"),
        lambda target: pyspark_kafkalog.loaded_offsets(target, "nightly"),
    ):
        with pytest.raises(InvalidOptionError, match="the target of one"):
            ask(f"parquet:{tmp_path}/{{topic}}")


def test_the_command_names_each_topic_that_failed(
    servers: str, filler: TopicFiller, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filler.make("one", "two")
    filler.append("one", [b"1"])
    command = ["load", "-b", servers, "--to", f"delta:{tmp_path}/{{topic}}", "--name", "nightly"]
    assert cli.main([*command, "one", "two", "three"]) == 1
    said = capsys.readouterr()
    assert "one: Commit" in said.out
    assert "3 topics: 2 with something new, 0 without, 1 failed." in said.out
    assert "topic three: " in said.err
    assert said.err.endswith("1 of 3 topics failed, all others are loaded: three.\n")
    filler.append("one", [b"2"])
    assert cli.main(["status", "--to", f"delta:{tmp_path}/{{topic}}"]) == 1
    assert cli.main([*command, "--pattern", "^(one|two)$", "--dry-run"]) == 0
    assert "1 offsets" in capsys.readouterr().out
    assert cli.main([*command, "--pattern", "^(one|two)$"]) == 0
    assert "2 topics: 1 with something new, 1 without, 0 failed." in capsys.readouterr().out


def test_a_load_of_many_topics_that_is_stopped_leaves_nothing_behind(
    servers: str, filler: TopicFiller, tmp_path: Path
) -> None:
    filler.make("slow-1", "slow-2")
    for topic in ("slow-1", "slow-2"):
        filler.append(topic, [b"1"])
    (tmp_path / "slow.py").write_text(
        "import os, time\nimport pyarrow as pa\n\n"
        "def slowly(rows: pa.RecordBatch) -> pa.RecordBatch:\n"
        "    if rows.num_rows:\n"
        "        open(f'worker-{os.getpid()}', 'w').close()\n"
        "        time.sleep(600)\n"
        "    return rows\n"
    )
    command = [sys.executable, "-m", "pyspark_kafkalog.cli", "load", "-b", servers]
    command += ["--pattern", "^slow-", "--to", "parquet:{topic}", "--name", "n"]
    command += ["--transform", "slow:slowly", "--workers", "2"]
    root = Path(pyspark_kafkalog.__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
        wait_until(lambda: len(list(tmp_path.glob("worker-*"))) == 2, "two workers")
        process.terminate()
        assert process.wait(EVENT_S) == 143
    for worker in tmp_path.glob("worker-*"):
        number = worker.name.removeprefix("worker-")
        there = Path(f"/proc/{number}/cmdline")
        wait_until(partial(is_gone, there), worker)
    assert not list(tmp_path.rglob("*.parquet"))
