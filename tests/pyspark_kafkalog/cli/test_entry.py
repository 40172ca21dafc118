"""The command line: what it prints, what it says when something is wrong, and its exit codes."""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from kafka.structs import TopicPartition

import pyspark_kafkalog
from pyspark_kafkalog.cli import main
from pyspark_kafkalog.cli.arguments import Client
from pyspark_kafkalog.cli.entry import command_tree
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.group import commit_offsets
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker
from tests.pyspark_kafkalog.client.conftest import batches_of
from tests.support.patience import BUSY_S
from tests.support.ports import closed_port
from tests.support.present import present

ROOT = Path(pyspark_kafkalog.__file__).parent.parent

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def run(
    broker: EmbeddedBroker,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Run:
    """Runs a command line against the broker; returns exit code, stdout and stderr."""

    def run_line(line: str, stdin: bytes | None = None) -> tuple[int, str, str]:
        arguments = line.split()
        if "--bootstrap-servers" not in arguments:
            arguments += ["--bootstrap-servers", broker.bootstrap_servers]
        if stdin is not None:
            (tmp_path / "stdin").write_bytes(stdin)
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper((tmp_path / "stdin").open("rb")))
        try:
            code = main(arguments)
        finally:
            if stdin is not None:
                sys.stdin.close()
        sys.stdout.flush()
        captured = capfdbinary.readouterr()
        return code, captured.out.decode(errors="surrogateescape"), captured.err.decode()

    return run_line


def test_topics_are_created_listed_described_and_deleted(
    run: Callable[..., tuple[int, str, str]],
) -> None:
    assert run("topics create flights --partitions 2 --config retention.ms=1000")[0] == 0
    assert run("topics list") == (0, "flights\n", "")
    code, out, _ = run("topics describe flights")
    assert code == 0
    assert out.splitlines()[0] == "flights  partitions=2  retention.ms=1000"
    assert out.splitlines()[1].startswith("  partition=0 begin=0 end=0 size=0 leader=")
    assert run("topics describe")[1] == out
    assert run("topics delete flights") == (0, "Deleted topic flights.\n", "")
    assert run("topics list") == (0, "", "")


def test_lines_go_in_and_come_out(run: Callable[..., tuple[int, str, str]]) -> None:
    assert run("produce lines", b"one\ntwo\r\nthree")[::2] == (0, "3 records written to lines.\n")
    expected = (0, "one\ntwo\nthree\n", "")
    assert run("consume lines --from-beginning --exit-at-end") == expected
    assert run("consume lines --from-beginning --max 2") == (0, "one\ntwo\n", "")
    assert run("consume lines --exit-at-end") == (0, "", "")
    assert run("consume lines --from-beginning --max 0") == (0, "", "")


def test_keys_and_bytes_that_are_no_text(run: Callable[..., tuple[int, str, str]]) -> None:
    assert run("produce keyed --key-separator :: ", b"k::v\nalone\n::\n\xff::\xfe\n")[0] == 0
    code, out, _ = run("consume keyed --from-beginning --exit-at-end --format json")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["key"], row["value"]) for row in rows] == [
        ("k", "v"),
        (None, "alone"),
        ("", ""),
        ({"base64": "/w=="}, {"base64": "/g=="}),
    ]
    assert [row["offset"] for row in rows] == [0, 1, 2, 3]
    assert {(row["topic"], row["partition"]) for row in rows} == {("keyed", 0)}
    assert run("consume keyed --from-beginning --max 1") == (0, "v\n", "")


def test_a_time_beyond_the_calendar_is_a_number(
    run: Callable[..., tuple[int, str, str]], broker: EmbeddedBroker
) -> None:
    """As of a producer that writes microseconds where milliseconds belong."""
    run("topics create late --config message.timestamp.after.max.ms=9223372036854775807")
    config = ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers})
    with Producer(config) as producer:
        for batch in batches_of([b"x", b"y"], timestamps_ms=[1_700_000_000_000_000, 1_700]):
            producer.send(TopicPartition("late", 0), batch)
    code, out, err = run("consume late --from-beginning --exit-at-end --format json")
    assert (code, err) == (0, "")
    times = [json.loads(line)["timestamp"] for line in out.splitlines()]
    assert times == [1_700_000_000_000_000, "1970-01-01T00:00:01.700+00:00"]


def test_json_is_utf_8_whatever_the_terminal_is(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("produce scripts", stdin="Grüße 日本\n".encode())
    latin = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "wb", closefd=False)), encoding="latin-1"
    )
    monkeypatch.setattr(sys, "stdout", latin)
    code, out, err = run("consume scripts --from-beginning --exit-at-end --format json")
    assert (code, err) == (0, "")
    assert json.loads(out)["value"] == "Grüße 日本"


def test_a_terminal_without_some_letters_shows_their_numbers(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("produce scripts", stdin=b"x\n")
    run("consume scripts --group Grüße --from-beginning --exit-at-end")
    ascii_only = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "wb", closefd=False)), encoding="ascii"
    )
    monkeypatch.setattr(sys, "stdout", ascii_only)
    code, out, err = run("groups list")
    assert (code, err) == (0, "")
    assert out.startswith("Gr\\xfc\\xdfe state=Empty")
    code, out, err = run("groups list --format json")
    assert (code, err) == (0, "")
    assert json.loads(out)["group"] == "Grüße"


def test_an_error_that_nobody_wants_to_hear_is_no_output(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `2>&-`."""
    monkeypatch.setattr(sys, "stderr", None)
    assert run("consume no-such-topic --exit-at-end") == (1, "", "")
    present(sys.stderr).close()


INTERRUPTED_AT_ITS_START = """
import sys

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "click":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from pyspark_kafkalog.cli import main
sys.exit(main(["topics", "list"]))
"""


def test_ctrl_c_at_the_start_is_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT_ITS_START],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_produce_without_a_stdin_is_a_sentence(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = run("produce scripts")
    assert (code, err) == (
        1,
        "kafkalog: produce reads its records from stdin, which is closed.\n",
    )


def test_many_lines_in_several_partitions(run: Callable[..., tuple[int, str, str]]) -> None:
    run("topics create many --partitions 3")
    lines = b"".join(b"%d\n" % number for number in range(50_000))
    assert run("produce many", lines)[0] == 0
    code, out, _ = run("consume many --from-beginning --exit-at-end")
    assert code == 0
    assert sorted(map(int, out.split())) == list(range(50_000))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("topics create bad/name", "topic name has characters other than"),
        ("topics delete nowhere", "Topic nowhere does not exist"),
        ("topics describe nowhere", "Topic nowhere does not exist"),
        ("consume nowhere", "Topic nowhere does not exist"),
        ("topics list --property fetch.max.bites=1", "Did you mean fetch.max.bytes?"),
        ("topics list --property akcs=1", "akcs is no property of a Kafka client. Did you mean ac"),
        ("topics list --property request.timeout.ms=soon", "kafka.request.timeout.ms"),
        ("topics list --command-config /nowhere.properties", "/nowhere.properties: No such file"),
        ("topics list --bootstrap-servers nonsense", "kafka.bootstrap.servers"),
        (
            "topics list --bootstrap-servers 127.0.0.1:1 --property request.timeout.ms=100",
            "No broker of kafka.bootstrap.servers=127.0.0.1:1",
        ),
    ],
)
def test_what_goes_wrong_is_a_sentence_and_a_code(
    run: Callable[..., tuple[int, str, str]], line: str, says: str
) -> None:
    code, out, err = run(line)
    assert (code, out) == (1, "")
    assert err.startswith("kafkalog: ")
    assert says in err
    assert "Traceback" not in err
    assert "s3cret" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("topics create x --config nonsense", "Write each --config as NAME=VALUE"),
        (
            "load x --name n --to parquet:/x --registry-option basic.auth.user.info:ann:s3cret",
            "Write each --registry-option as NAME=VALUE",
        ),
        ("topics list --property nonsense", "Write each --property as NAME=VALUE"),
        ("load x --name n --to parquet:/x --option headers", "Write each --option as NAME=VALUE"),
        ("groups reset nobody --to-latest --topic x:two", "--topic x:two is not written TOPIC:N,N"),
    ],
)
def test_what_is_not_written_as_it_is_to_be_is_wrong_usage(
    run: Callable[..., tuple[int, str, str]], line: str, says: str
) -> None:
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert says in err
    assert "s3cret" not in err


def test_how_far_a_group_is_behind(
    run: Callable[..., tuple[int, str, str]], broker: EmbeddedBroker
) -> None:
    run("topics create behind --partitions 2")
    run("topics create dropped")
    run("produce behind", stdin=b"a\nb\nc\n")
    config = ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers})
    offsets = {TopicPartition("behind", 0): 0, TopicPartition("behind", 1): 0}
    with Cluster(config) as cluster:
        ends = {tp: at.offset for tp, at in cluster.list_offsets(offsets, LATEST).items()}
        commit_offsets(cluster, "readers", offsets | {TopicPartition("dropped", 0): 0})
    code, out, _ = run("lag readers")
    assert code == 0
    lines = [
        f"behind partition={tp.partition} committed=0 end={end} lag={end}"
        for tp, end in ends.items()
    ]
    last = "dropped partition=0 committed=0 end=0 lag=0"
    assert out.splitlines() == [*lines, last, "total lag=3"]
    code, _, err = run("lag nobody")
    assert (code, err) == (1, "kafkalog: Group nobody has committed no offsets. Check its name.\n")


def test_a_topic_that_exists_is_a_sentence(run: Callable[..., tuple[int, str, str]]) -> None:
    run("topics create twice")
    code, _, err = run("topics create twice")
    assert code == 1
    assert "twice" in err
    assert "Error" not in err


def test_a_property_file(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# ours\n\nclient.id = me\nrequest.timeout.ms=5000\n")
    assert run(f"topics list --command-config {path}")[0] == 0
    path.write_text("sasl.pasword=hunter2\n")
    code, _, err = run(f"topics list --command-config {path}")
    assert code == 1
    assert "sasl.password" in err
    assert "hunter2" not in err


def test_a_property_file_is_read_as_kafkas_tools_read_it(tmp_path: Path) -> None:
    """Kafka's documentation writes a login module over several lines."""
    path = tmp_path / "client.properties"
    path.write_text(
        r"""
security.protocol: SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
    username="ann" \
    password="a\\b";
ssl.endpoint.identification.algorithm=
"""
    )
    given = Client("127.0.0.1:1", (), path).properties()
    assert given == {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="ann" password="a\\b";',
        "ssl.endpoint.identification.algorithm": "",
    }


def test_where_the_cluster_is_may_be_said_by_a_file_or_the_environment(
    broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is nearer to the command counts."""
    path = tmp_path / "client.properties"
    path.write_text(f"bootstrap.servers={broker.bootstrap_servers}\n")
    monkeypatch.setenv("KAFKALOG_BOOTSTRAP_SERVERS", f"127.0.0.1:{closed_port()}")
    assert main(["topics", "list"]) == 1
    assert main(["topics", "list", "--command-config", str(path)]) == 0
    assert main(["topics", "list", "-b", broker.bootstrap_servers]) == 0
    monkeypatch.setenv("KAFKALOG_COMMAND_CONFIG", str(path))
    assert main(["topics", "list"]) == 1
    monkeypatch.delenv("KAFKALOG_BOOTSTRAP_SERVERS")
    assert main(["topics", "list"]) == 0
    path.write_text("no property\n")
    capsys.readouterr()
    assert main(["topics", "list"]) == 1
    assert f"Write each line of {path} as NAME=VALUE" in capsys.readouterr().err


def test_json_for_programs_and_silence_for_cron(run: Callable[..., tuple[int, str, str]]) -> None:
    assert json.loads(run("topics create told --partitions 2 --format json")[1]) == {
        "topic": "told",
        "created": True,
    }
    rows = [json.loads(line) for line in run("topics list --format json")[1].splitlines()]
    assert "told" in [row["topic"] for row in rows]
    (topic,) = [json.loads(run("topics describe told --format json")[1])]
    assert (topic["topic"], len(topic["partitions"])) == ("told", 2)
    assert run("topics delete told -q") == (0, "", "")
    assert run("produce told --quiet", b"x") == (0, "", "")


def test_help_and_completion_import_nothing_slow() -> None:
    looked = """
import sys
from pyspark_kafkalog.cli import entry
for words in (["--help"], ["consume", "--help"], ["load", "--help"], ["completion", "zsh"]):
    assert entry.main(words) == 0
for word in entry.WORDS:
    entry.command_tree().get_command(None, word)
slow = {"pyspark", "pyarrow", "kafka", "rich"} & set(sys.modules)
raise SystemExit(f"imported {slow}" if slow else 0)
"""
    done = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "#compdef kafkalog" in done.stdout


def test_a_shell_completes_topics_and_groups(
    run: Callable[..., tuple[int, str, str]],
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("whole-a", "whole-b"):
        run(f"topics create {name}")
    run("groups reset whole-group --topic whole-a --to-latest --execute")
    run("groups reset whole-\x1b[31m --topic whole-a --to-latest --execute")

    def completed(*words: str) -> list[str]:
        *given, incomplete = words
        shell = BashComplete(command_tree(), {}, "kafkalog", "_KAFKALOG_COMPLETE")
        return [each.value for each in shell.get_completions(given, incomplete)]

    servers = ["-b", broker.bootstrap_servers]
    monkeypatch.delenv("KAFKALOG_BOOTSTRAP_SERVERS", raising=False)
    assert completed("consume", *servers, "whole-") == ["whole-a", "whole-b"]
    assert completed("consume", *servers, "whole-a", "whole-") == ["whole-b"]
    assert completed("groups", "describe", "whole-") == []
    monkeypatch.setenv("KAFKALOG_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    assert completed("topics", "describe", "whole-b") == ["whole-b"]
    assert completed("topics", "create", "whole-") == []
    assert completed("consume", "whole-a", "--group", "whole-") == ["whole-group"]
    assert completed("groups", "reset", "whole-") == ["whole-group"]
    assert completed("groups", "reset", "g", "--topic", "whole-b") == ["whole-b"]
    assert completed("load", "whole-a", "whole-") == ["whole-b"]
    assert completed("consume", "--format", "") == ["raw", "json"]
    monkeypatch.setenv("KAFKALOG_BOOTSTRAP_SERVERS", f"127.0.0.1:{closed_port()}")
    assert completed("topics", "describe", "whole-") == []


@pytest.mark.parametrize("line", ["produce lean", "consume lean --exit-at-end --format json"])
def test_records_need_neither_numpy_nor_pandas(
    run: Callable[..., tuple[int, str, str]], broker: EmbeddedBroker, line: str
) -> None:
    """Else a line takes twice as long."""
    run("topics create lean --if-not-exists")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pyspark_kafkalog.cli", *line.split(), "-q"],
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "KAFKALOG_BOOTSTRAP_SERVERS": broker.bootstrap_servers},
        input="line\n",
        capture_output=True,
        text=True,
    )
    imported = {row.rpartition("|")[2].strip() for row in done.stderr.splitlines()}
    assert done.returncode == 0, done.stderr
    assert "pyarrow.compute" in imported
    # The packages themselves are named where they were looked for in vain.
    assert not imported & {"numpy.version", "pandas.compat", "pyspark"}


def test_a_property_file_that_is_no_text(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    path.write_bytes(b"client.id=\xff\xfe")
    code, _, err = run(f"topics list --command-config {path}")
    assert (code, err) == (1, f"kafkalog: {path} is not valid UTF-8: save it as UTF-8.\n")


def test_brokers_that_are_not_there_are_said_soon(run: Callable[..., tuple[int, str, str]]) -> None:
    port = closed_port()
    for line in ("topics list", "produce some-topic"):
        began = time.monotonic()
        code, _, err = run(f"{line} --bootstrap-servers 127.0.0.1:{port}")
        assert time.monotonic() - began < 9 + BUSY_S
        assert code == 1
        assert f"No broker runs at kafka.bootstrap.servers=127.0.0.1:{port}" in err


@pytest.mark.parametrize(
    "line", ["", "frobnicate", "topics", "consume t --format xml", "topics list"]
)
def test_wrong_usage_is_code_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert "Usage: kafkalog" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["--help", "topics list --help", "topics list"])
def test_a_disk_that_is_full_is_a_sentence(
    broker: EmbeddedBroker, run: Callable[..., tuple[int, str, str]], line: str
) -> None:
    run("topics create of-a-full-disk")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pyspark_kafkalog.cli", *line.split()],
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "KAFKALOG_BOOTSTRAP_SERVERS": broker.bootstrap_servers},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    run("topics delete of-a-full-disk")
    assert (done.returncode, done.stderr) == (1, "kafkalog: No space left on device.\n")


@pytest.mark.parametrize("more", [True, False])
def test_a_reader_that_has_seen_enough_ends_it_quietly(
    run: Callable[..., tuple[int, str, str]], broker: EmbeddedBroker, more: bool
) -> None:
    """Also where no more records come, as of `| head -1`."""
    run("produce long", b"x\n" * 20_000 if more else b"x\n")
    command = [sys.executable, "-m", "pyspark_kafkalog.cli", "consume", "long", "--from-beginning"]
    consume = subprocess.Popen(
        [*command, "--bootstrap-servers", broker.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert consume.stdout is not None
    assert consume.stderr is not None
    assert consume.stdout.read(2) == b"x\n"
    consume.stdout.close()
    if more:
        run("produce long", b"x\n" * 20_000)
    assert consume.stderr.read() == b""
    consume.stderr.close()
    assert consume.wait(10) == 0
    run("topics delete long")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("quickstart --port 99999", "99999 is not in the range"),
        ("consme t", "No such command 'consme'. Did you mean 'consume'?"),
        ("consume t --max -1", "-1 is not in the range"),
        ("load t --to parquet:w", "a TOPIC and --name NAME, or --forget"),
        ("load --to parquet:w --name nightly", "a TOPIC and --name NAME, or --forget"),
        ("load t --name nightly --to parquet:w --forget", "--forget loads nothing"),
        ("load --to parquet:w --forget", "--forget loads nothing"),
        ("load t --name nightly --to parquet:w --rewind earliest", "--rewind loads nothing"),
        ("load --name nightly --to parquet:w --truncate-after", "goes with --rewind"),
        ("ui --host=", "--host is empty"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    servers = [] if "quickstart" in line else ["--bootstrap-servers", "h:1"]
    assert main([*line.split(), *servers]) == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_of_a_load_says_what_it_would_do_and_does_nothing(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    assert run("produce views", b"one\ntwo\nthree")[0] == 0
    assert run("produce clicks", b"four")[0] == 0
    path = tmp_path / "warehouse"
    load = f"load views clicks --to parquet:{path} --name nightly --dry-run"
    code, out, err = run(load)
    assert (code, err) == (0, "")
    first, *others = out.splitlines()
    assert first.startswith(f"<LoadPlan 'nightly' to parquet:{path}: 4 offsets of 2 partitions")
    assert first.endswith("tasks: 1, commits: 1")
    assert [line.strip().partition(", about")[0] for line in others] == [
        "clicks-0: from 0 until 1, 1 offsets",
        "views-0: from 0 until 3, 3 offsets",
    ]
    assert run(f"{load} --max-bytes 1")[1].count("from 0 until 1, 1 offsets") == 2
    code, out, err = run(f"{load} --from 2020-01-01T00:00 --until 2020-01-02")
    local = datetime(2020, 1, 1).astimezone().isoformat()
    assert err.startswith(f"--from 2020-01-01T00:00 is {local}.\n--until 2020-01-02 is ")
    assert "0 offsets of 2 partitions" in out
    assert run(f"{load} --from 2020-01-01T00:00 --quiet")[2] == ""
    assert not path.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--from soon", "'soon' is no place where a load can begin"),
        ("--from 0001-01-01T00:00", "is no place where a load can begin"),
        ("--until earliest", "endingOffsets cannot be earliest"),
        ("--max-bytes ten", "max_bytes must be a number of bytes"),
        ("--until 2026-01-01Z --option endingTimestamp=5", "both say it"),
        ("--partition-by day", "day"),
        ("--sort-by kee", "kee"),
        ("--value-format json --value-schema schema.ddl --sort-by value", "value"),
        ("--value-format json --value-schema latin1.ddl", "latin1.ddl is not valid UTF-8"),
        ("--transform half_written:f", "half_written:f cannot be imported"),
    ],
)
def test_bounds_of_a_load_that_make_no_sense_are_explained(
    run: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    given: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("schema.ddl").write_text("id BIGINT")
    Path("latin1.ddl").write_bytes(b"gr\xf6sse BIGINT")
    Path("half_written.py").write_text("def f(")
    load = f"load nothing --to parquet:{tmp_path}/warehouse --name nightly --dry-run"
    code, _, err = run(f"{load} {given}")
    assert code == 1
    assert said in err


TOLD = """
import sys
from types import SimpleNamespace
import click
from pyspark_kafkalog.cli import entry, load
from pyspark_kafkalog.cli.output import Output
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.load import LoadResult
result = LoadResult("nightly", "c1", 3, 1, 2, (), 10, gaps=(OffsetRange("t", 0, 0, 4),))
told = click.Command("told", callback=lambda: load._tell_result(result, Output()))
entry.WORDS["told"] = ""
sys.modules["pyspark_kafkalog.cli.told"] = SimpleNamespace(command=told)
raise SystemExit(entry.main(["told"]))
"""


@pytest.mark.parametrize(
    ("stdout", "code", "said"),
    [
        ("/dev/full", 1, "kafkalog: All is committed; .*standard output, No space left on device"),
        ("/dev/stderr", 0, "Gone: 4 offsets, in 1 gap"),
        (None, 0, "^$"),
    ],
)
def test_what_a_load_has_done_is_done_whoever_hears_of_it(
    stdout: str | None, code: int, said: str
) -> None:
    where = ">&-" if stdout is None else f"> {stdout}"
    found = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -c "$1" {where}', sys.executable, TOLD],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert found.returncode == code, found.stderr
    assert re.search(said, found.stderr)
