"""`kafkalog serve`: loads that run by themselves, and what becomes of them when it is signalled."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog import cli
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.embedded import EmbeddedBroker
from tests.pyspark_kafkalog.warehouse.topic_filler import TopicFiller
from tests.support.patience import wait_until
from tests.support.ports import closed_port
from tests.support.serving import Serving, fetched, sample

LOAD = """
[[load]]
name = "{name}"
topics = ["{topic}"]
to = "{target}"
every = "{every}"
{more}
"""

HANGS_UP = """
import os, pathlib, signal
import pyarrow as pa

mark = pathlib.Path(__file__).with_name("mark")
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGHUP)

def same(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows
"""
SLOW = """
import os, time
import pyarrow as pa

def slowly(rows: pa.RecordBatch) -> pa.RecordBatch:
    if rows.num_rows:
        open(f"worker-{os.getpid()}", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.02)
    return rows
"""


@pytest.fixture(scope="module")
def broker_servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def filler(broker_servers: str) -> TopicFiller:
    return TopicFiller(broker_servers)


def load(topic: str, target: str, every: str = "1 s", more: str = "", name: str = "n") -> str:
    return LOAD.format(name=name, topic=topic, target=target, every=every, more=more)


def write(folder: Path, servers: str, *loads: str) -> None:
    head = f'workers = 2\n[defaults]\nbootstrap-servers = "{servers}"\nretry-most = "1 s"\n'
    (folder / "loads.toml").write_text(head + "".join(loads))


def values(path: Path) -> list[bytes]:
    return sorted(pq.read_table(path)["value"].to_pylist()) if path.exists() else []


def test_loads_run_by_themselves_until_they_are_stopped(
    broker_servers: str, filler: TopicFiller, tmp_path: Path
) -> None:
    filler.make("serve-a", "serve-b1", "serve-b2")
    filler.append("serve-a", [b"1", b"2"])
    many = load("x", "parquet:b/{topic}", name="m").replace(
        'topics = ["x"]', 'pattern = "^serve-b"'
    )
    write(tmp_path, broker_servers, load("serve-a", "parquet:a"), many)
    with Serving(tmp_path, "--listen", "0", "--ui", "127.0.0.1:0") as serving:
        url = serving.says("/metrics").removesuffix("/metrics")
        serving.says("Serving 2 loads.")
        page = next(line for line in serving.lines if line.endswith("/"))
        serving.says("2 records in commit")
        filler.append("serve-a", [b"3"])
        filler.append("serve-b1", [b"4"])
        serving.says("1 record in commit", times=2)
        assert values(tmp_path / "a") == [b"1", b"2", b"3"]
        assert values(tmp_path / "b" / "serve-b1") == [b"4"]
        labels = {"load": "n", "target": f"parquet:{tmp_path}/a"}

        def lag() -> float | None:
            return sample(fetched(f"{url}/metrics")[1], "kafkalog_load_lag", labels)

        wait_until(lambda: lag() == 0, lambda: fetched(f"{url}/metrics")[1])
        metrics = fetched(f"{url}/metrics")[1]
        assert sample(metrics, "kafkalog_load_records_total", labels) == 3
        assert sample(metrics, "kafkalog_load_failed", labels) == 0
        assert sample(metrics, "kafkalog_load_last_commit_timestamp_seconds", labels)
        assert fetched(f"{url}/healthz") == (200, "serving\n")
        assert fetched(f"{url}/else")[0] == 404
        status, text = fetched(f"{page}loads")
        assert (status, f"parquet:{tmp_path}/a" in text) == (200, True)
        with Serving(tmp_path) as second:
            assert second.ends() == 1
            assert f"process {serving.process.pid}" in second.said
        serving.ask(signal.SIGTERM)
        assert serving.ends() == 0
        assert serving.lines[-1] == "Stopped."


def test_a_load_that_fails_harms_no_other(
    broker_servers: str, filler: TopicFiller, tmp_path: Path
) -> None:
    filler.make("serve-c", "serve-d")
    filler.append("serve-c", [b"1", b"2"])
    nobody = load("t", "parquet:x", more=f'bootstrap-servers = "127.0.0.1:{closed_port()}"')
    late = load("serve-late", "parquet:late", name="late")
    write(
        tmp_path, broker_servers, load("serve-c", "parquet:c"), load("serve-d", "parquet:d"), nobody
    )
    with Serving(tmp_path) as serving:
        serving.says("2 records in commit")
        serving.ask(signal.SIGTERM)
        assert serving.ends() == 0
    filler.append("serve-c", [b"3", b"4"])
    with Cluster(ClientConfig.from_options({"bootstrap.servers": broker_servers})) as cluster:
        admin.delete_records(cluster, {TopicPartition("serve-c", 0): 3}, lambda *_: None)
    loads = [load("serve-c", "parquet:c"), load("serve-d", "parquet:d"), nobody, late]
    write(tmp_path, broker_servers, *loads)
    with Serving(tmp_path) as serving:
        serving.says(f"load n into parquet:{tmp_path}/c is held")
        serving.says(f"load n into parquet:{tmp_path}/x is tried again", times=2)
        filler.append("serve-d", [b"5"])
        serving.says("1 record in commit")
        filler.make("serve-late")
        filler.append("serve-late", [b"6"])
        serving.says("1 record in commit", times=2)
        count = sum("/c is held" in line for line in serving.lines)
        assert count == 1
        # A file with a mistake changes nothing; one that says to go on has the load run again.
        (tmp_path / "loads.toml").write_text("[[load]]\nnaem = 1\n")
        serving.ask(signal.SIGHUP)
        serving.says("The loads stay as they were.")
        assert "loads.toml:2: there is no key naem here; did you mean name?" in serving.said
        more = "option = { failOnDataLoss = false }"
        write(tmp_path, broker_servers, load("serve-c", "parquet:c", more=more))
        serving.ask(signal.SIGHUP)
        serving.says("Read anew: 1 load.")
        serving.says("1 record in commit", times=3)
        assert values(tmp_path / "c") == [b"1", b"2", b"4"]


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_ends_with_the_commit_at_work_and_a_second_one_at_once(
    broker_servers: str, filler: TopicFiller, tmp_path: Path, signals: int
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    topic = f"serve-slow-{signals}"
    filler.make(topic)
    filler.append(topic, [b"x" * 1000 for _ in range(50)])
    more = 'transform = "slow:slowly"\nchunk-bytes = "10k"'
    write(tmp_path, broker_servers, load(topic, "parquet:slow", more=more))
    with Serving(tmp_path) as serving:
        wait_until(lambda: list(tmp_path.glob("worker-*")), lambda: serving.said)
        (worker,) = tmp_path.glob("worker-*")
        serving.ask(signal.SIGINT)
        serving.says("Stopping 1 load after the commit at work.")
        if signals == 2:
            serving.ask(signal.SIGTERM)
            assert serving.ends() == 143
            assert not list((tmp_path / "slow").rglob("*.parquet"))
        else:
            (tmp_path / "go").touch()
            assert serving.ends() == 0
            assert 0 < len(values(tmp_path / "slow")) < 50
    number = worker.name.removeprefix("worker-")
    wait_until(lambda: not Path(f"/proc/{number}/cmdline").exists(), "the worker is there")
    assert cli.main(["status", "--to", f"parquet:{tmp_path}/slow"]) == 0


def test_a_signal_to_all_its_processes_ends_no_worker_that_is_starting(
    broker_servers: str, filler: TopicFiller, tmp_path: Path
) -> None:
    filler.make("serve-start")
    filler.append("serve-start", [b"1"])
    # A worker that starts slowly, which Python lets nobody know but by what it imports.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "if 'serve' not in sys.argv and '-c' in sys.orig_argv[:3]:\n"
        "    open('started', 'w').close()\n"
        "    time.sleep(2)\n"
    )
    write(tmp_path, broker_servers, load("serve-start", "parquet:start"))
    with Serving(tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), os.getcwd()])) as serving:
        wait_until(lambda: (tmp_path / "started").exists(), lambda: serving.said)
        (worker,) = children(serving.process.pid)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker, number)
        serving.ask(signal.SIGINT)
        assert serving.ends() == 0
        assert "Traceback" not in serving.said
    assert values(tmp_path / "start") == [b"1"]


def children(parent: int) -> list[int]:
    task = Path(f"/proc/{parent}/task")
    return [int(pid) for each in task.iterdir() for pid in (each / "children").read_text().split()]


def test_a_module_that_cannot_be_imported_ends_no_service(
    broker_servers: str, filler: TopicFiller, tmp_path: Path
) -> None:
    filler.make("serve-kept")
    for name, line in (("broken", "1 / 0"), ("ended", "import sys; sys.exit(3)")):
        (tmp_path / f"{name}.py").write_text(line)
    write(tmp_path, broker_servers, load("serve-kept", "parquet:kept"))
    with Serving(tmp_path) as serving:
        serving.says("Serving 1 load.")
        for times, (name, error) in enumerate(
            [("broken", "ZeroDivisionError: division by zero"), ("ended", "SystemExit: 3")], 1
        ):
            more = f'transform = "{name}:f"'
            write(tmp_path, broker_servers, load("serve-kept", "parquet:kept", more=more))
            serving.ask(signal.SIGHUP)
            serving.says("The loads stay as they were.", times)
            assert f"transform {name}:f cannot be imported: {error}" in serving.said
        (tmp_path / "loads.toml").write_text("x = " + "[" * 5000 + "]" * 5000)
        serving.ask(signal.SIGHUP)
        serving.says("The loads stay as they were.", 3)
        filler.append("serve-kept", [b"1"])
        serving.says("1 record in commit")


def test_a_sighup_while_it_starts_is_heard(
    broker_servers: str, filler: TopicFiller, tmp_path: Path
) -> None:
    filler.make("serve-early")
    (tmp_path / "early.py").write_text(HANGS_UP)
    more = 'transform = "early:same"'
    write(tmp_path, broker_servers, load("serve-early", "parquet:early", more=more))
    with Serving(tmp_path) as serving:
        serving.says("Read anew: 1 load.")


def test_loads_go_on_when_nobody_reads_what_they_say(
    broker_servers: str, filler: TopicFiller, tmp_path: Path
) -> None:
    filler.make("serve-unheard")
    write(tmp_path, broker_servers, load("serve-unheard", "parquet:unheard"))
    with Serving(tmp_path) as serving:
        serving.says("Serving 1 load.")
        serving.is_heard = False
        written: list[bytes] = []

        def landed() -> list[bytes]:
            table = tmp_path / "unheard"
            return values(table) if list(table.glob("*.parquet")) else []

        for value in (b"1", b"2", b"3"):
            filler.append("serve-unheard", [value])
            written.append(value)
            wait_until(lambda: landed() == written, f"record {value!r}")
        serving.ask(signal.SIGTERM)
        assert serving.ends() == 0


def test_a_file_is_checked_without_running_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "nobody:1", load("t", "sql:postgresql://u:s3cr3t@nobody/d#t"))
    assert cli.main(["serve", "loads.toml", "--check"]) == 0
    said = capsys.readouterr().out
    assert "n: into sql:postgresql" in said
    assert "s3cr3t" not in said
    write(tmp_path, "nobody:1", load("t", "parquet:x", "soon"), load("t", "paruqet:x"))
    assert cli.main(["serve", "loads.toml", "--check"]) == 1
    said = capsys.readouterr().err
    assert "loads.toml:10: every: 'soon' is no duration" in said
    assert "loads.toml:16: target 'paruqet'" in said
    assert cli.main(["serve", "missing.toml"]) == 1
    assert "missing.toml: No such file" in capsys.readouterr().err
