"""`kafkalog consume`: from where, up to where, what it prints, and how it waits; kcat beside it."""

import json
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.group import commit_offsets, committed_places
from pyspark_kafkalog.embedded import EmbeddedBroker
from tests.pyspark_kafkalog.cli.conftest import Done, command_line, environment
from tests.support.patience import EVENT_S

TEMPLATES = (
    "%s\n",
    "%t %p %o %k=%s %K %S %T %h\n",
    r"%o\t%k\x21\n",
    "%s|%%|",
)


@pytest.fixture
def numbers(new_topic: Callable[..., str], kafkalog: Callable[..., Done]) -> str:
    """A topic with 0 to 9, one a second from the year 2020 on."""
    topic = new_topic()
    records = [
        {"value": str(number), "timestamp": f"2020-01-01T00:00:0{number}Z"} for number in range(10)
    ]
    lines = "\n".join(map(json.dumps, records)).encode()
    assert kafkalog("produce", topic, "--format", "json", "-q", stdin=lines) == (0, "", "")
    return topic


@contextmanager
def running(servers: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        command_line(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(servers),
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.interop
@pytest.mark.parametrize("template", TEMPLATES)
def test_records_look_as_kcat_shows_them(
    kafkalog: Callable[..., Done],
    kcat: Callable[..., str],
    new_topic: Callable[..., str],
    template: str,
) -> None:
    topic = new_topic(3)
    lines = "k1:v1\nk2:v2\nk3:Grüße\n:nokey\nk5:\n"
    kcat("-P", "-t", topic, "-K:", "-H", "a=1", "-H", "b=x y", "-z", "lz4", stdin=lines)
    kcat("-P", "-t", topic, "-K:", "-Z", stdin="k6:\n")
    for partition in map(str, range(3)):
        of_one = ["-t", topic, "-p", partition, "-o", "beginning", "-e", "-q"]
        theirs = kcat("-C", *of_one, "-f", template)
        ours = kafkalog("consume", topic, "-p", partition, "-o", "beginning", "-e", "-f", template)
        assert ours == (0, theirs, "")


def test_json_has_all_of_a_record(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    document: dict[str, object] = {
        "key": 'k"1"',
        "value": "line\nbreak \\ tab\t",
        "timestamp": "2020-02-03T04:05:06.007+00:00",
        "headers": [["a", "1"], ["a", None], ["b", {"base64": "/w=="}]],
    }
    given: list[dict[str, object]] = [
        document,
        {"key": None, "value": None},
        {"key": {"base64": "/w=="}, "value": '"\\"'},
    ]
    stdin = "\n".join(map(json.dumps, given)).encode()
    assert kafkalog("produce", topic, "-f", "json", "-q", stdin=stdin) == (0, "", "")
    rows = kafkalog("consume", topic, "-o", "beginning", "-e", "-f", "json").rows
    place = {"topic": topic, "partition": 0}
    assert rows[0] == {**place, "offset": 0, **document}
    for row in rows[1:]:
        datetime.fromisoformat(row.pop("timestamp"))
    assert rows[1:] == [{**place, "offset": offset, **given[offset]} for offset in (1, 2)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["-o", "beginning"], range(10)),
        (["-o", "end"], ()),
        ([], ()),
        (["-o", "7"], range(7, 10)),
        (["-o", "10"], ()),
        (["-o", "1000", "-q"], ()),
        (["-o", "-3"], range(7, 10)),
        (["-o", "-3 offsets"], range(7, 10)),
        (["-o", "-300"], range(10)),
        (["-o", "2020-01-01T00:00:04Z"], range(4, 10)),
        (["-o", "@1577836808500"], range(9, 10)),
        (["-o", "2030-01-01"], ()),
        (["-o", "-10 minutes"], ()),
        (["-o", "-500 weeks"], range(10)),
        (["-o", "2", "--max", "3"], range(2, 5)),
        (["--from-beginning", "--max", "0"], ()),
    ],
)
def test_it_begins_where_it_is_told_to(
    kafkalog: Callable[..., Done], numbers: str, where: list[str], expected: range | tuple[()]
) -> None:
    found = kafkalog("consume", numbers, "--exit-at-end", *where)
    assert found.lines == list(map(str, expected))


def test_it_says_where_an_offset_is_not_there(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    kafkalog("produce", topic, "-p", "1", stdin=b"a\nb\nc\n")
    kafkalog("topics", "trim", topic, "-p", "1", "--before", "1")
    consume = ("consume", topic, "--exit-at-end", "--group", f"g-{topic}")
    for place, said in (("0", f"{topic}-1"), ("5", f"{topic}-0, {topic}-1")):
        done = kafkalog(*consume[:3], "-o", place)
        told = f"Offset {place} is not in {said}: read from the nearest that is.\n"
        assert done == (0, "b\nc\n" if place == "0" else "", told)
    assert kafkalog(*consume, "-o", "0").err
    assert kafkalog(*consume, "-o", "0") == (0, "", "")


@pytest.mark.parametrize(
    ("until", "expected"),
    [("end", 10), ("4", 4), ("-2", 8), ("2020-01-01T00:00:03Z", 3), ("beginning", 0)],
)
def test_it_stops_where_it_is_told_to(
    kafkalog: Callable[..., Done], numbers: str, until: str, expected: int
) -> None:
    found = kafkalog("consume", numbers, "--from-beginning", "--until", until)
    assert found.lines == list(map(str, range(expected)))


def test_partitions_topics_and_patterns(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    one, two = new_topic(2), new_topic(2)
    for topic in (one, two):
        for partition in "01":
            sent = f"{topic} {partition}".encode()
            assert kafkalog("produce", topic, "-p", partition, "-q", stdin=sent).code == 0
    everything = ["--from-beginning", "--exit-at-end"]

    def values(*arguments: str) -> list[Any]:
        return sorted(kafkalog("consume", *everything, *arguments).lines)

    assert values(one, "--partition", "1") == [f"{one} 1"]
    both = [f"{topic} {partition}" for topic in (one, two) for partition in "01"]
    assert values(one, two) == sorted(both)
    assert values("--pattern", f"^({one}|{two})$") == sorted(both)
    assert values("--pattern", f"^({one}|{two})$", "-p", "0") == [f"{one} 0", f"{two} 0"]


def test_a_group_goes_on_where_it_was(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    read = ["consume", topic, "--group", f"of-{topic}", "--from-beginning", "--exit-at-end"]
    kafkalog("produce", topic, "-p", "0", stdin=b"a\nb\nc")
    assert kafkalog(*read, "--max", "2").lines == ["a", "b"]
    kafkalog("produce", topic, "-p", "1", stdin=b"d")
    assert sorted(kafkalog(*read).lines) == ["c", "d"]
    assert kafkalog(*read).lines == []
    assert kafkalog("lag", f"of-{topic}").lines[-1] == "total lag=0"


def test_a_group_has_read_what_is_there_without_a_record(
    kafkalog: Callable[..., Done], servers: str, new_topic: Callable[..., str]
) -> None:
    """The marker of a transaction; and, where it begins at the end, all that was there before."""
    topic = new_topic(2)
    group = f"of-{topic}"
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"old", partition=0)
    producer.commit_transaction()
    read = ["consume", topic, "--group", group, "--exit-at-end"]
    assert kafkalog(*read, "--max", "0").lines == []
    assert kafkalog("lag", group).code == 1
    assert kafkalog(*read).lines == []
    assert kafkalog("lag", group).lines[-1] == "total lag=0"
    kafkalog("produce", topic, "-p", "1", stdin=b"new")
    assert kafkalog(*read).lines == ["new"]
    other = ["consume", topic, "--group", f"{group}-2", "--from-beginning", "--exit-at-end"]
    assert sorted(kafkalog(*other).lines) == ["new", "old"]
    assert kafkalog("lag", f"{group}-2").lines[-1] == "total lag=0"


def test_a_group_that_is_in_an_open_transaction_stays_there(
    kafkalog: Callable[..., Done], servers: str, new_topic: Callable[..., str]
) -> None:
    """Who read uncommitted records has read them."""
    topic = new_topic(2)
    kafkalog("produce", topic, "-p", "0", stdin=b"0\n1\n2\n3\n4\n")
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(5, 10):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(EVENT_S) == 0
    read = ["consume", topic, "--group", f"of-{topic}", "--from-beginning"]
    uncommitted = [*read, "--exit-at-end", "-X", "isolation.level=read_uncommitted"]
    read += ["-X", "isolation.level=read_committed"]
    assert kafkalog(*uncommitted).lines == [str(number) for number in range(10)]
    assert kafkalog(*read, "--exit-at-end").lines == []
    assert kafkalog("lag", f"of-{topic}").lines[-1] == "total lag=0"
    at_7 = ["consume", topic, "--offset", "7", *read[-2:]]
    with running(servers, *read) as group, running(servers, *at_7) as other:
        kafkalog("produce", topic, "-p", "1", stdin=b"\n".join(b"%d" % n for n in range(20, 28)))
        assert _lines(group, 8) == [str(number) for number in range(20, 28)]
        assert _lines(other, 1) == ["27"]
        producer.commit_transaction()
        kafkalog("produce", topic, "-p", "0", stdin=b"new")
        assert _lines(group, 1) == ["new"]
        assert _lines(other, 4) == ["7", "8", "9", "new"]


def _lines(process: "subprocess.Popen[str]", count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def test_a_group_that_is_where_nothing_is_hears_how_to_go_on(
    kafkalog: Callable[..., Done], servers: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    group = f"of {topic}"
    kafkalog("produce", topic, "-p", "1", stdin=b"0\n1\n2\n3\n4\n")
    read = ["consume", topic, "--group", group, "--from-beginning", "--exit-at-end"]
    assert kafkalog(*read, "--max", "1").lines == ["0"]
    kafkalog("topics", "trim", topic, "--before", "3", "-p", "1")
    way_on = f"kafkalog groups reset 'of {topic}' --topic {topic}:1 --to-earliest --execute\n"
    done = kafkalog(*read)
    assert (done.code, done.out) == (1, "")
    assert "are gone: it now holds offsets 3 up to, not including, 5" in done.err
    assert done.err.endswith(f" To go on with what is there: {way_on}")
    kafkalog(*shlex.split(way_on)[1:])
    assert kafkalog(*read).lines == ["3", "4"]

    with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
        commit_offsets(cluster, group, {TopicPartition(topic, 1): 9})
    done = kafkalog(*read)
    assert (done.code, done.out) == (1, "")
    assert f"at offset 9 of partition 1 of topic {topic}, which ends at offset 5" in done.err
    assert done.err.endswith(way_on)


def test_a_group_that_read_other_logs_hears_so(
    kafkalog: Callable[..., Done], servers: str, numbers: str
) -> None:
    group, partition = f"of-{numbers}", TopicPartition(numbers, 0)
    read = ["consume", numbers, "--group", group, "--offset", "7", "--exit-at-end"]
    assert kafkalog(*read).lines == ["7", "8", "9"]
    assert kafkalog(*read).lines == []
    way_on = f"kafkalog groups reset {group} --topic {numbers}:0 --to-earliest --execute\n"
    with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
        there = committed_places(cluster, group)[partition]
        cluster.topics([numbers])
        assert there.topic_id == cluster.topic_id(numbers)
        assert there.leader_epoch is not None
        others: list[tuple[str, dict[str, Any]]] = [
            ("was deleted and created again since", {"topic_ids": {numbers: UUID(int=1)}}),
            ("lost records since", {"epochs": {partition: there.leader_epoch + 1}}),
        ]
        for said, of_logs in others:
            commit_offsets(cluster, group, {partition: 5}, **of_logs)
            done = kafkalog(*read)
            assert (done.code, done.out) == (1, "")
            assert f"{said} the group came to offset 5" in done.err
            assert done.err.endswith(f" To go on with what is there: {way_on}")
    kafkalog(*shlex.split(way_on)[1:])
    assert kafkalog(*read).lines == [str(number) for number in range(10)]


def test_a_pattern_that_finds_nothing_says_so(kafkalog: Callable[..., Done]) -> None:
    nothing = ["consume", "--pattern", "^no-such", "--exit-at-end"]
    assert kafkalog(*nothing) == (0, "", "No topic has '^no-such' in its name.\n")
    assert kafkalog(*nothing, "--quiet") == (0, "", "")


def test_records_are_printed_as_they_come(
    kafkalog: Callable[..., Done], servers: str, numbers: str
) -> None:
    arguments = ["consume", numbers, "--offset", "-1", "--group", f"tail-{numbers}"]
    with running(servers, *arguments) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "9\n"
        for number in ("10", "11"):
            kafkalog("produce", numbers, stdin=number.encode())
            assert process.stdout.readline() == f"{number}\n"
        # A record counts as printed a moment after it was: Ctrl-C in between has it printed again.
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(EVENT_S) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert kafkalog("lag", f"tail-{numbers}").lines[-1] == "total lag=0"


@pytest.mark.parametrize("flags", [[], ["--exit-at-end"]])
def test_a_group_has_not_read_what_a_pipe_took_whose_reader_is_gone(
    kafkalog: Callable[..., Done], servers: str, new_topic: Callable[..., str], flags: list[str]
) -> None:
    """As kcat's and rpk's groups, in `| head -1`."""
    topic = new_topic()
    lines = b"%0100d\n" * 2_000 % tuple(range(2_000))  # more than a pipe holds
    kafkalog("produce", topic, stdin=lines)
    begin = ["consume", topic, "--group", f"of-{topic}", "--from-beginning"]
    with running(servers, *begin, *flags) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert int(process.stdout.readline()) == 0
        process.stdout.close()
        assert process.wait(EVENT_S) == 0
        assert process.stderr.read() == ""
    first, *_ = kafkalog(*begin, "--max", "1").lines
    assert int(first) == 0


def test_partitions_and_topics_that_are_added_are_read_from_their_beginning(
    kafkalog: Callable[..., Done], servers: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    kafkalog("produce", topic, stdin=b"old\nlast")
    tail = ["consume", "--pattern", f"^{topic}$|^{topic}-", "-X", "metadata.max.age.ms=200"]
    with running(servers, *tail, "--offset", "-1", "--max", "3") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "last\n"
        kafkalog("produce", f"{topic}-more", stdin=b"new")
        assert process.stdout.readline() == "new\n"
        kafkalog("topics", "add-partitions", topic, "--total", "2")
        kafkalog("produce", topic, "-p", "1", stdin=b"added")
        assert process.stdout.readline() == "added\n"
        assert process.wait(EVENT_S) == 0


def test_what_is_gone_of_a_topic_that_is_added_is_told(
    kafkalog: Callable[..., Done], servers: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    kafkalog("produce", topic, stdin=b"last")
    tail = ["consume", "--pattern", f"^{topic}", "-X", "metadata.max.age.ms=3000"]
    with running(servers, *tail, "--offset", "-1") as process:
        assert _lines(process, 1) == ["last"]
        more = f"{topic}-more"
        kafkalog("produce", more, stdin=b"0\n1\n2\n")
        kafkalog("topics", "trim", more, "--before", "2")
        assert process.wait(EVENT_S) == 1
        assert process.stderr is not None
        gone = f"Offsets 0 up to 3 of partition 0 of topic {more} are gone"
        assert gone in process.stderr.read()


@pytest.mark.crash
def test_a_tail_outlives_a_broker_that_is_away_for_longer_than_a_request(tmp_path: Path) -> None:
    def start(port: int = 0) -> EmbeddedBroker:
        return EmbeddedBroker(tmp_path / "data", port).start()

    def produce(value: str) -> None:
        command = command_line("produce", "t", "-q")
        subprocess.run(command, input=value, text=True, check=True, env=environment(servers))

    broker = start()
    servers = broker.bootstrap_servers
    try:
        produce("before")
        tail = ["consume", "t", "--from-beginning", "-X", "request.timeout.ms=500"]
        with running(servers, *tail) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "before\n"
            broker.stop()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(3)
            broker = start(int(servers.rpartition(":")[2]))
            produce("after")
            assert process.stdout.readline() == "after\n"
    finally:
        broker.stop()


@pytest.mark.slow
@pytest.mark.crash
def test_a_tail_of_a_broker_that_was_restored_and_has_other_records_ends(tmp_path: Path) -> None:
    """Those at the offsets of what was printed before would be left out."""
    data, copy = tmp_path / "data", tmp_path / "copy"

    def produce(broker: EmbeddedBroker, values: str) -> None:
        command = command_line("produce", "t", "-q")
        servers = broker.bootstrap_servers
        subprocess.run(command, input=values, text=True, check=True, env=environment(servers))

    with EmbeddedBroker(data) as broker:
        produce(broker, "1\n2")
    shutil.copytree(data, copy)
    broker = EmbeddedBroker(data).start()
    servers = broker.bootstrap_servers
    try:
        produce(broker, "3\n4")
        with running(servers, "consume", "t", "--from-beginning") as process:
            assert _lines(process, 4) == ["1", "2", "3", "4"]
            broker.stop()
            with EmbeddedBroker(copy) as other:
                produce(other, "x\ny\nz")
            broker = EmbeddedBroker(copy, int(servers.rpartition(":")[2])).start()
            assert process.wait(EVENT_S) == 1
            assert process.stderr is not None
            assert "t ended at offset 2 since" in process.stderr.read()
    finally:
        broker.stop()


def test_a_topic_that_is_created_again_is_an_error(
    kafkalog: Callable[..., Done], servers: str, numbers: str
) -> None:
    """Its first records would be left out: they have offsets that were read before."""
    with running(servers, "consume", numbers, "--from-beginning") as process:
        assert process.stdout is not None
        for number in range(10):
            assert process.stdout.readline() == f"{number}\n"
        kafkalog("topics", "delete", numbers)
        kafkalog("topics", "create", numbers)
        assert process.wait(EVENT_S) == 1
        assert process.stderr is not None
        assert f"Topic {numbers} was deleted and created again" in process.stderr.read()


def test_an_idle_tail_takes_no_processor_time(servers: str, numbers: str) -> None:
    with running(servers, "consume", numbers, "--offset", "-1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "9\n"
        before = _cpu_ticks(process.pid)
        time.sleep(3)
        assert _cpu_ticks(process.pid) - before <= 10


def test_a_partition_that_has_stopped_takes_none_while_others_are_waited_for(
    kafkalog: Callable[..., Done], servers: str, new_topic: Callable[..., str]
) -> None:
    """It holds more records, which a broker would send at once."""
    topic = new_topic(2)
    kafkalog("produce", topic, "-p", "0", stdin=b"a\nb\nc\nd\ne\nf")
    kafkalog("produce", topic, "-p", "1", stdin=b"g")
    with running(servers, "consume", topic, "--from-beginning", "--until", "2") as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(3)) == ["a\n", "b\n", "g\n"]
        before = _cpu_ticks(process.pid)
        time.sleep(3)
        assert _cpu_ticks(process.pid) - before <= 10
        kafkalog("produce", topic, "-p", "1", stdin=b"h")
        assert process.stdout.readline() == "h\n"
        assert process.wait(EVENT_S) == 0


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_values_are_decoded(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    schema = tmp_path / "schema.ddl"
    schema.write_text("id BIGINT, at TIMESTAMP, price DECIMAL(5,2)")
    good = b'{"id": 1, "at": "2020-01-01T00:00:00Z", "price": 1.5}'
    kafkalog("produce", topic, stdin=good + b"\nnonsense")
    read = ["consume", topic, "--from-beginning", "-e", "--value-format", "json"]
    read += ["--value-schema", str(schema)]
    first, second = kafkalog(*read, "--format", "json").rows
    assert first["value"]["id"] == 1
    assert first["value"]["price"] == "1.50"
    moment = datetime.fromisoformat(first["value"]["at"])
    assert moment == datetime(2020, 1, 1, tzinfo=timezone.utc)
    assert "value_error" not in first
    assert second["value"] == "nonsense"
    assert second["value_error"]
    assert json.loads(kafkalog(*read, "--max", "1").out)["id"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["t", "-o", "soon"], 2, "'soon' is no place in a topic"),
        (["t", "-o", "-3 bananas"], 2, "is no place in a topic"),
        (["t", "-o", f"@{2**63}"], 2, "is no place in a topic"),
        (["t", "-o", "0001-01-01T00:00"], 2, "is no place in a topic"),
        (["t", "-G", "\udcff", "-e"], 1, "An argument is no UTF-8"),
        ([], 2, "Give one or more TOPICs, or --pattern"),
        (["t", "--pattern", "t"], 2, "Give one or more TOPICs, or --pattern"),
        (["t", "-o", "3", "--from-beginning"], 2, "leave one out"),
        (["t", "-f", "%q"], 2, "%q, which stands for nothing"),
        (["t", "-f", "text"], 2, "Give raw, json, or a template"),
        (["--pattern", "("], 1, "is not a valid regular expression"),
        (["no-such-topic"], 1, "Topic no-such-topic does not exist"),
        (["t", "--value-format", "avro"], 2, "avro needs --value-schema or --registry"),
    ],
)
def test_what_is_wrong_is_said(
    kafkalog: Callable[..., Done], arguments: list[str], code: int, said: str
) -> None:
    done = kafkalog("consume", *arguments)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_partition_that_is_not_there(kafkalog: Callable[..., Done], numbers: str) -> None:
    done = kafkalog("consume", numbers, "-p", "3")
    assert (done.code, done.err) == (
        1,
        f"kafkalog: Topic {numbers} has no partition 3, only 0 to 0.\n",
    )
