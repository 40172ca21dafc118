"""The broker as a process: how it starts, refuses to start, stops, and what survives."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import pytest
from kafka.errors import OffsetOutOfRangeError
from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

import broker
import pyspark_kafkalog
from broker.cluster import znodes
from broker.cluster.local_store import LocalStore
from broker.cluster.records import MetadataRecords
from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from tests.broker.api.transaction_client import TransactionClient, read
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import EVENT_S, wait_until
from tests.support.ports import closed_port
from tests.support.present import present
from tests.support.records import batch_of, values_of


def run_broker(*arguments: str, stdin: IO[str] | None = None) -> tuple[int, str, str]:
    """Runs to the end: (exit code, stdout, stderr)."""
    completed = subprocess.run(
        [sys.executable, "-m", "broker", *arguments],
        stdin=stdin or subprocess.DEVNULL,
        capture_output=True,
        timeout=EVENT_S,
        text=True,
        check=False,
    )
    return completed.returncode, completed.stdout, completed.stderr


def create_topic(client: RawClient, name: str, partitions: int = 1, **configs: str) -> None:
    topic_class = CreateTopicsRequest.CreatableTopic
    topic = topic_class(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=[],
        configs=[
            topic_class.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
    assert client.call(request, CreateTopicsResponse, 7).topics[0].error_code == 0


def topics_of(client: RawClient) -> dict[Any, Any]:
    """Name to leader epochs, of every topic."""
    topics = client.call(MetadataRequest(topics=None), MetadataResponse, 12).topics
    return {topic.name: [part.leader_epoch for part in topic.partitions] for topic in topics}


def fetched(client: RawClient, name: str, partition: int = 0) -> list[tuple[int, bytes | None]]:
    ask = FetchPartition(name, partition, 0, 1 << 20)
    return values_of(client.fetch(FetchRequest(11, 0, 1, [ask])).partitions[0].records)


def test_ready_line_log_lines_and_clean_stop(tmp_path: Path) -> None:
    with BrokerChild(tmp_path) as child:
        assert re.fullmatch(r"listening 127\.0\.0\.1:\d+\n", child.ready_line)
        with RawClient(child.host, child.port):  # an open connection does not hold up the stop
            assert child.stop() == 0
        assert (tmp_path / ".kafka_cleanshutdown").exists()
        for line in child.stderr().splitlines():
            assert re.match(r"time=\S+Z level=\w+ event=[\w.]+( |$)", line), line


def test_it_says_whether_it_runs_compiled(tmp_path: Path) -> None:
    with BrokerChild(tmp_path) as child:
        assert child.stop() == 0
        (started,) = re.findall(r"event=broker.started .* compiled=(\w+)", child.stderr())
    by_mypyc = any(Path(broker.__path__[0]).glob("log/log.*.so"))
    by_cython = any(Path(pyspark_kafkalog.__path__[0]).glob("record/record_spans.*.so"))
    assert started == ("partly" if by_mypyc != by_cython else str(by_mypyc).lower())


def test_sigint_stops_too(tmp_path: Path) -> None:
    with BrokerChild(tmp_path) as child:
        child.process.send_signal(signal.SIGINT)
        assert child.wait() == 0


def test_takes_as_many_open_files_as_it_may(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # The highest number of ours counts for this process, to start a child.
        few = max(map(int, os.listdir("/proc/self/fd"))) + 50
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        child = BrokerChild(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with child, RawClient(child.host, child.port) as client:
        create_topic(client, "orders", partitions=few)


def test_a_taken_port_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = run_broker(f"--data-dir={tmp_path}", f"--listen=127.0.0.1:{port}")
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert f"127.0.0.1:{port}" in err
    assert "Address already in use" in err
    assert "Errno" not in err


def test_two_addresses_to_listen_on_are_refused(tmp_path: Path) -> None:
    code, out, err = run_broker(
        f"--data-dir={tmp_path}", "--listen=127.0.0.1:0", "--override=listeners=PLAINTEXT://h:1"
    )
    assert (code, out) == (1, "")
    assert "--listen and --override listeners" in err


def test_a_data_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = run_broker(f"--data-dir={tmp_path}/file/data", "--listen=127.0.0.1:0")
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert f"{tmp_path}/file" in err


def test_a_second_broker_on_the_same_directory(tmp_path: Path) -> None:
    with BrokerChild(tmp_path) as child:
        for extra in ([], ["--ephemeral"]):
            code, out, err = run_broker(f"--data-dir={tmp_path}", "--listen=127.0.0.1:0", *extra)
            assert (code, out) == (1, "")
            assert len(err.splitlines()) == 1
            assert "another broker" in err
        with RawClient(child.host, child.port) as client:
            create_topic(client, "still-fine")
        assert child.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--override=num.partitions=many"], "num.partitions"),
        (["--override=ssl.keystore.password:s3cret"], "PROPERTY=VALUE"),
        (["--config=/does/not/exist"], "/does/not/exist"),
        (["--listen=nowhere"], "nowhere"),
        (["--listen=a..b:0"], "a..b"),
        (["--listen=127.0.0.1:\u00b2"], "expected PLAINTEXT://HOST:PORT"),
        (["--metrics-listen=.a:0"], "HOST:PORT"),
        (["--override=advertised.listeners=PLAINTEXT://a..b:9092"], "a..b"),
        (["--exit-with-parent"], "pipe"),
    ],
)
def test_bad_arguments_are_said_in_one_line(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    code, out, err = run_broker(f"--data-dir={tmp_path}", "--listen=127.0.0.1:0", *arguments)
    assert (code, out) == (1, "")
    assert words in err.splitlines()[-1]
    assert "Traceback" not in err
    assert "s3cret" not in err


def test_a_properties_file(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    data_dir = tmp_path / "data"
    config.write_text(f"# comment\nlog.dirs={tmp_path}/ignored\nnum.partitions = 3\nbroker.id=7\n")
    with (
        BrokerChild(data_dir, arguments=(f"--config={config}",)) as child,
        RawClient(child.host, child.port) as client,
    ):
        wanted = MetadataRequest.MetadataRequestTopic(name="auto")
        response = client.call(MetadataRequest(topics=[wanted]), MetadataResponse, 9)
        assert len(response.topics[0].partitions) == 3
        assert response.brokers[0].node_id == 7
        assert child.stop() == 0
    assert not (tmp_path / "ignored").exists()


def test_the_end_of_the_parent_stops_the_broker(tmp_path: Path) -> None:
    with BrokerChild(tmp_path) as child:
        assert child.process.stdin is not None
        child.process.stdin.close()
        assert child.process.wait(EVENT_S) == 0


def test_ephemeral_leaves_nothing(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with BrokerChild(data_dir, arguments=("--ephemeral",)) as child:
        with RawClient(child.host, child.port) as client:
            create_topic(client, "gone")
        assert (data_dir / "gone-0").exists()
        assert child.stop() == 0
    assert not data_dir.exists()


def test_ephemeral_goes_when_the_parent_is_killed(tmp_path: Path) -> None:
    """A parent that dies by SIGKILL says nothing; its pipe does."""
    data_dir = tmp_path / "data"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            "child = subprocess.Popen([sys.executable, '-m', 'broker', '--exit-with-parent',\n"
            f"    '--ephemeral', '--data-dir={data_dir}', '--listen=127.0.0.1:0'],\n"
            "    stdin=subprocess.PIPE)\n"
            "child.wait()",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline().startswith(b"listening")
        assert data_dir.exists()
        parent.kill()
        parent.wait(EVENT_S)
        # The broker has the other end of this pipe until it exits.
        assert parent.stdout.read() == b""
    assert not data_dir.exists()


def test_ephemeral_does_not_touch_what_is_no_brokers(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years of work")
    code, _, err = run_broker(f"--data-dir={tmp_path}", "--listen=127.0.0.1:0", "--ephemeral")
    assert code == 1
    assert "no broker's" in err
    assert (tmp_path / "thesis.txt").exists()


def test_topics_and_records_survive_sigkill(tmp_path: Path) -> None:
    epochs = [-1, -1]
    for round_number in range(3):
        with (
            BrokerChild(tmp_path) as child,
            RawClient(child.host, child.port) as client,
        ):
            if round_number == 0:
                create_topic(client, "kept", 2)
            # A new leader epoch at each start tells what was written before from what comes after.
            before, [(name, epochs)] = epochs, topics_of(client).items()
            assert name == "kept"
            assert all(now > earlier for earlier, now in zip(before, epochs, strict=True))
            assert [offset for offset, _ in fetched(client, "kept", 1)] == list(
                range(3 * round_number)
            )
            assert client.produce("kept", 1, batch_of(3)).base_offset == 3 * round_number
            create_topic(client, f"extra-{round_number}")
            request = DeleteTopicsRequest(topic_names=[f"extra-{round_number}"], timeout_ms=60_000)
            assert client.call(request, DeleteTopicsResponse, 5).responses[0].error_code == 0
            child.kill()


def test_the_same_identity_after_a_restart(tmp_path: Path) -> None:
    seen = set()
    for _ in range(2):
        with (
            BrokerChild(tmp_path) as child,
            RawClient(child.host, child.port) as client,
        ):
            response = client.call(MetadataRequest(topics=None), MetadataResponse, 12)
            ids = [topic.topic_id for topic in response.topics]
            if not ids:
                create_topic(client, "one")
            seen.add(response.cluster_id)
            child.kill()
    assert len(seen) == 1


def test_a_deletion_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    with (
        BrokerChild(tmp_path) as child,
        RawClient(child.host, child.port) as client,
    ):
        create_topic(client, "half")
        create_topic(client, "whole")
        client.produce("half", 0, batch_of(1))
        child.kill()
    store = LocalStore(tmp_path)
    records = MetadataRecords(store)
    records.become_controller(1)
    records.mark_deleted("half")
    store.close()
    with (
        BrokerChild(tmp_path) as child,
        RawClient(child.host, child.port) as client,
    ):
        assert list(topics_of(client)) == ["whole"]
        create_topic(client, "half")
        assert fetched(client, "half") == []
        assert child.stop() == 0
    store = LocalStore(tmp_path)
    assert store.children(znodes.DELETED_TOPICS) == []
    store.close()


def test_logs_whose_metadata_is_lost_are_topics_again(tmp_path: Path) -> None:
    with (
        BrokerChild(tmp_path) as child,
        RawClient(child.host, child.port) as client,
    ):
        create_topic(client, "kept", 2)
        client.produce("kept", 1, batch_of(2))
        child.stop()
    for name in os.listdir(tmp_path):
        if name.startswith("metadata.db"):
            (tmp_path / name).unlink()
    with (
        BrokerChild(tmp_path) as child,
        RawClient(child.host, child.port) as client,
    ):
        assert len(fetched(client, "kept", 1)) == 2
        assert child.stop() == 0


def test_it_starts_quickly_and_stays_small(tmp_path: Path) -> None:
    with BrokerChild(tmp_path) as child:
        assert child.resident_bytes() < 70 << 20


def test_neither_arrow_nor_spark_is_loaded() -> None:
    code = (
        "import sys, broker.__main__\n"
        "print([name for name in ('pyarrow', 'pyspark', 'numpy', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "[]\n"


def test_kazoo_is_loaded_by_a_broker_of_a_cluster_alone(tmp_path: Path) -> None:
    """Also not while it serves, or stops."""
    program = (
        "import atexit, sys, broker.__main__ as main\n"
        "atexit.register(lambda: print('kazoo' in sys.modules, file=sys.stderr))\n"
        "main.main()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, f"--data-dir={tmp_path}", "--listen=127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert present(child.stdout).readline().startswith("listening")
    child.terminate()
    _, said = child.communicate(timeout=EVENT_S)
    assert child.returncode == 0
    assert said.splitlines()[-1] == "False"


def test_a_broker_that_cannot_reach_its_cluster_does_not_start_alone(tmp_path: Path) -> None:
    port = closed_port()
    code, out, err = run_broker(
        *(f"--data-dir={tmp_path}", "--listen=127.0.0.1:0"),
        f"--override=zookeeper.connect=127.0.0.1:{port}/kafka",
        "--override=zookeeper.connection.timeout.ms=300",
    )
    assert (code, out) == (1, "")
    assert f"no connection to ZooKeeper at 127.0.0.1:{port} within 0.3 s" in err


def first_of(client: RawClient, topic: str) -> tuple[int, list[tuple[int, bytes | None]]]:
    """(error code, values) of a fetch from offset 0."""
    ask = FetchPartition(topic, 0, 0, 1 << 20)
    (found,) = client.fetch(FetchRequest(12, 10, 1, [ask])).partitions
    return found.error_code, values_of(found.records)


def test_transactions_go_on_where_metadata_was_lost(tmp_path: Path) -> None:
    few = {"transaction.state.log.num.partitions": "2"}
    for _ in range(3):  # each start is a leader epoch
        with BrokerChild(tmp_path, few) as child, RawClient(child.host, child.port) as client:
            if client.metadata_of("orders").error_code:
                create_topic(client, "orders")
            old = commit_one(client, "id", b"old")
            assert child.stop() == 0
    (tmp_path / "metadata.db").unlink()
    with BrokerChild(tmp_path, few) as child, RawClient(child.host, child.port) as client:
        commit_one(client, "id", b"again")
        new = commit_one(client, "another", b"new")
        assert new.producer_id > old.producer_id
        assert read(client, "orders") == [b"old", b"old", b"old", b"again", b"new"]


def commit_one(client: RawClient, transactional_id: str, value: bytes) -> TransactionClient:
    """The producer that committed one record."""
    producer = TransactionClient(client, transactional_id)
    assert producer.init().error_code == 0
    assert producer.produce("orders", value, version=12).error_code == 0
    assert producer.end(True, version=5).error_code == 0
    assert producer.state() == "CompleteCommit"
    return producer


def test_logs_that_lost_their_topic_are_kept_until_somebody_says_otherwise(tmp_path: Path) -> None:
    old = batch_of([(None, b"old")], timestamp_ms=1_000_000_000_000)
    with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
        create_topic(client, "kept", retention_ms="-1")
        assert client.produce("kept", 0, old).error_code == 0
        assert child.stop() == 0
    (tmp_path / "metadata.db").unlink()
    with BrokerChild(tmp_path, {"log.retention.check.interval.ms": "100"}) as child:
        assert "topic.adopted topic='kept' partitions=1 configs='retention.ms=-1" in child.stderr()
        with RawClient(child.host, child.port) as client:
            create_topic(client, "not-kept", retention_ms="1")
            assert client.produce("not-kept", 0, old).error_code == 0
            wait_until(
                lambda: first_of(client, "not-kept")[0] == OffsetOutOfRangeError.errno,
                "the end of the old record",
            )
            assert first_of(client, "kept") == (0, [(0, b"old")])


def test_others_are_answered_while_a_thousand_partitions_are_made(tmp_path: Path) -> None:
    with (
        BrokerChild(tmp_path) as child,
        RawClient(child.host, child.port) as admin,
        RawClient(child.host, child.port) as other,
    ):
        create_topic(other, "orders")
        making = threading.Thread(target=create_topic, args=(admin, "many", 1000))
        making.start()
        wait_until(lambda: any(tmp_path.glob("many-*")), "the first logs")
        # The first block of ids is written down: that is not behind all the logs.
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
        )
        assert other.call(request, InitProducerIdResponse, 3).error_code == 0
        assert other.produce("orders", 0, batch_of(1)).error_code == 0
        assert len([*tmp_path.glob("many-*")]) < 1000
        making.join()
        assert len(topics_of(other)["many"]) == 1000
        # One file each, until there is something to look up.
        assert len(os.listdir(f"/proc/{child.process.pid}/fd")) < 1100


def test_logs_for_want_of_descriptors_are_refused_by_that_name(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
        resource.prlimit(child.process.pid, resource.RLIMIT_NOFILE, (200, hard))
        topic = CreateTopicsRequest.CreatableTopic(
            name="many", num_partitions=300, replication_factor=1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        refused = client.call(request, CreateTopicsResponse, 7).topics[0]
        assert refused.error_code != 0
        assert "many" not in topics_of(client)
        create_topic(client, "few", partitions=3)
        assert "Too many open files" in child.stderr()
        assert "ulimit -n" in child.stderr()
