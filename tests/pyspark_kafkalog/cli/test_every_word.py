"""What every word of the command has: JSON, quiet, exit codes. A new word is to be added here."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog import compile_pyspark, quickstart
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.cli import main
from pyspark_kafkalog.cli.entry import command_tree
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.group import commit_offsets
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import PendingCommit
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.cli.conftest import Done, Kafkalog, command_line, environment
from tests.pyspark_kafkalog.warehouse.rows_loader import write_rows
from tests.support.patience import EVENT_S
from tests.support.ports import closed_port


class Word(NamedTuple):
    """A word and how it is run; `prints` what was asked for, also when it is to be quiet."""

    line: str
    prints: bool
    stdin: bytes = b""


WORDS = [
    Word("quickstart", False),
    Word("topics create {new}", False),
    Word("topics list", True),
    Word("topics describe {topic}", True),
    Word("topics alter {topic} --config retention.ms=9999", False),
    Word("topics add-partitions {topic} --total 9", False),
    Word("topics trim {topic} --before 1", False),
    Word("topics delete {topic}", False),
    Word("produce {topic}", False, b'{"value": "a"}\n'),
    Word("consume {topic} --from-beginning --exit-at-end", True),
    Word("groups list", True),
    Word("groups describe {group}", True),
    Word("groups reset {group} --to-latest", True),
    Word("groups delete {group}", False),
    Word("lag {group}", True),
    Word("cluster describe", True),
    Word("load {topic} --to {target} --name nightly --dry-run", True),
    Word("maintain {target}", False),
    Word("load --to {target} --name nightly --forget", False),
    Word("status --to {target}", True),
    Word("compile-pyspark", False),
]

ELSEWHERE = {
    "completion": "it prints a script",
    "broker": "test_a_broker_says_its_address_in_json",
    "serve": "test_serve.py",
    "ui": "test_ui.py",
}


def leaves(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            word = command.get_command(context, name)
            assert word is not None
            yield from leaves(word, *path, name)
    else:
        yield " ".join(path), command


LEAVES = dict(leaves(command_tree()))


@pytest.fixture
def run(
    kafkalog: Kafkalog,
    new_topic: Callable[..., str],
    servers: str,
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Done]:
    """run(word, *flags): with a topic of two records, a group and a load of its own."""
    monkeypatch.setattr(compile_pyspark, "imported_archives", lambda: ["some.zip"])
    monkeypatch.setattr(compile_pyspark, "compile_archive", lambda _: 7)
    steps = [quickstart.Step("produced", 3, 0.1)]
    monkeypatch.setattr(quickstart, "run_quickstart", lambda *_: steps)

    def run_word(word: Word, *flags: str) -> Done:
        topic = new_topic()
        kafkalog("produce", topic, "-q", stdin=b"a\nb\n")
        with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
            commit_offsets(cluster, f"g-{topic}", {TopicPartition(topic, 0): 1})
        target = f"parquet:{tmp_path}/{topic}"
        land(target, topic)
        names = {"topic": topic, "new": f"new-{topic}", "group": f"g-{topic}", "target": target}
        return kafkalog(*word.line.format(**names).split(), *flags, stdin=word.stdin)

    return run_word


def land(place: str, topic: str) -> None:
    target = open_target(place)
    stage = target.stage(row_schema())
    piece = OffsetRange(topic, 0, 0, 1)
    files = write_rows(stage, "nightly", piece)
    target.commit(PendingCommit(stage, "nightly", target.position("nightly"), [piece], files))


def test_no_word_is_left_out() -> None:
    ran = {leaf for leaf in LEAVES for word in WORDS if f"{word.line} ".startswith(f"{leaf} ")}
    assert ran | ELSEWHERE.keys() == set(LEAVES)


@pytest.mark.parametrize("leaf", sorted(LEAVES.keys() - {"completion"}))
def test_every_word_has_json_and_quiet(leaf: str) -> None:
    flags = {flag: param for param in LEAVES[leaf].params for flag in param.opts}
    assert "--quiet" in flags
    assert "-q" in flags
    format_of = flags["--format"]
    assert "json" in getattr(format_of.type, "choices", ()) or "json" in str(format_of.help)
    assert all(param.help for param in LEAVES[leaf].params if isinstance(param, click.Option))
    assert LEAVES[leaf].help


@pytest.mark.parametrize("group", ["topics", "groups", "cluster"])
def test_a_list_of_words_says_of_each_all_that_it_means_to(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([group, "--help"]) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.line)
def test_words_speak_json_alone(run: Callable[..., Done], word: Word) -> None:
    done = run(word, "--format=json")
    if word.line.startswith("produce"):  # which reads it
        assert (done.code, done.out) == (0, "")
    else:
        assert all(isinstance(row, dict) for row in done.rows)
        assert done.rows


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.line)
def test_quiet_words_say_what_was_asked_for(run: Callable[..., Done], word: Word) -> None:
    done = run(word, "--quiet")
    assert (done.code, done.err) == (0, "")
    assert bool(done.out) == word.prints


NEED_NONE = re.compile("quickstart|status|compile|maintain|forget")


@pytest.mark.parametrize(
    "word", [word for word in WORDS if not NEED_NONE.search(word.line)], ids=lambda word: word.line
)
def test_a_word_without_its_cluster_fails_in_a_sentence(
    kafkalog: Callable[..., Done], word: Word, tmp_path: Path
) -> None:
    servers = f"127.0.0.1:{closed_port()}"
    names = dict.fromkeys(("topic", "new", "group"), "a") | {"target": f"parquet:{tmp_path}/w"}
    words = word.line.format(**names).split()
    done = kafkalog(*words, "-b", servers, "-X", "request.timeout.ms=100", stdin=word.stdin)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("kafkalog: ")
    assert servers in done.err
    assert done.err.count("\n") == 1


def test_a_flag_that_is_not_there_is_wrong_usage(kafkalog: Callable[..., Done]) -> None:
    for leaf in LEAVES:
        done = kafkalog(*leaf.split(), "--frobnicate")
        assert (done.code, done.out) == (2, "")
        assert "--frobnicate" in done.err


def test_a_broker_says_its_address_in_json() -> None:
    command = command_line("broker", "--format=json", "--quiet")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment("")
    ) as broker:
        assert broker.stdout is not None
        assert broker.stderr is not None
        said = json.loads(broker.stdout.readline())
        os.kill(broker.pid, signal.SIGTERM)
        assert broker.wait(EVENT_S) == 0
        assert broker.stdout.read() == b""
        assert broker.stderr.read() == b""
    assert said["bootstrap_servers"].startswith("127.0.0.1:")


@pytest.mark.crash
def test_a_broker_that_ends_by_itself_is_an_error() -> None:
    """Whoever supervises the command is to hear of it."""
    with subprocess.Popen(
        command_line("broker"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(""),
        text=True,
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.readline()
        (broker,) = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        os.kill(int(broker), signal.SIGKILL)
        try:
            assert command.wait(EVENT_S) == 1
        finally:
            command.kill()
        assert command.stderr.read() == "kafkalog: The broker has ended, and nobody stopped it.\n"
