"""`kafkalog produce`: lines, files and JSON as records; kcat says what is there."""

import json
import random
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.cli import record_input
from pyspark_kafkalog.errors import InvalidOptionError
from tests.pyspark_kafkalog.cli.conftest import Done
from tests.support.present import present


@pytest.fixture
def records(kcat: Callable[..., str]) -> Callable[..., Any]:
    """records(topic, partition) -> (key, value, headers) of each, as kcat finds them."""

    def read(topic: str, partition: int = 0) -> list[Any]:
        where = ["-C", "-t", topic, "-p", str(partition), "-o", "beginning", "-e", "-q", "-J"]
        found = map(json.loads, kcat(*where).splitlines())
        return [(each["key"], each["payload"], each.get("headers")) for each in found]

    return read


@pytest.mark.interop
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_with_keys_headers_and_nulls(
    kafkalog: Callable[..., Done],
    new_topic: Callable[..., str],
    records: Callable[..., Any],
    compression: str,
) -> None:
    topic = new_topic()
    done = kafkalog(
        *("produce", topic, "-K", "::", "-H", "a=1", "-H", "b=x=y", "-H", "a=", "--null", "NIL"),
        *("--compression", compression),
        stdin="k::v\r\nalone\n::\nNIL::NIL\nGrüße::日本::x\n\nlast::no end".encode(),
    )
    assert done == (0, "", f"7 records written to {topic}.\n")
    headers = ["a", "1", "b", "x=y", "a", ""]
    assert records(topic) == [
        ("k", "v", headers),
        (None, "alone", headers),
        ("", "", headers),
        (None, None, headers),
        ("Grüße", "日本::x", headers),
        (None, "", headers),
        ("last", "no end", headers),
    ]


@pytest.mark.interop
@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_a_key_and_a_partition_for_all(
    kafkalog: Callable[..., Done],
    new_topic: Callable[..., str],
    records: Callable[..., Any],
    acks: str,
) -> None:
    topic = new_topic(3)
    done = kafkalog(
        *("produce", topic, "--key", "k", "--partition", "2", "--acks", acks, "-q"),
        stdin=b"a\r\nb\r\n",
    )
    assert done == (0, "", "")
    assert records(topic, 2) == [("k", "a", None), ("k", "b", None)]
    assert records(topic, 0) == []


@pytest.mark.interop
def test_keys_choose_the_partitions_that_javas_client_does(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str], kcat: Callable[..., str]
) -> None:
    ours, theirs = new_topic(5), new_topic(5)
    lines = "\n".join(f"key-{number}:{number}" for number in range(200))
    kafkalog("produce", ours, "-K", ":", stdin=lines.encode())
    kcat("-P", "-t", theirs, "-K:", "-X", "partitioner=murmur2", stdin=lines)
    shown = ["-C", "-o", "beginning", "-e", "-q", "-f", "%p %k %s\n"]
    in_ours, in_theirs = (sorted(kcat("-t", t, *shown).splitlines()) for t in (ours, theirs))
    assert in_ours == in_theirs


@pytest.mark.interop
def test_files_by_lines_and_as_they_are(
    kafkalog: Callable[..., Done],
    new_topic: Callable[..., str],
    records: Callable[..., Any],
    tmp_path: Path,
) -> None:
    lines, whole = new_topic(), new_topic()
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1\n2\n")
    two.write_text("3\n4")
    kafkalog("produce", lines, str(one), str(two))
    assert [value for _, value, _ in records(lines)] == ["1", "2", "3", "4"]
    done = kafkalog("produce", whole, "--whole-files", str(one))
    assert done == (0, "", f"1 record written to {whole}.\n")
    kafkalog("produce", whole, "--whole-files", str(two))
    assert [value for _, value, _ in records(whole)] == ["1\n2\n", "3\n4"]


def test_what_consume_writes_makes_the_same_records(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    any_time = {"message_timestamp_after_max_ms": "9223372036854775807"}
    one, two = new_topic(2, **any_time), new_topic(2, **any_time)
    given = [
        {"key": "k", "value": {"base64": "AP8="}, "headers": [["h", None], ["h", "x"]]},
        {"partition": 1, "value": "é", "timestamp": "1969-12-31T23:59:59.999+00:00"},
        {"partition": 1, "value": {"id": [1, None]}, "timestamp": 1_700_000_000_000_000},
        {"key": ""},
    ]
    lines = "\n\n".join(map(json.dumps, given))
    assert kafkalog("produce", one, "-f", "json", "-q", stdin=lines.encode()) == (0, "", "")
    read = ["--from-beginning", "-e", "-f", "json"]
    first = kafkalog("consume", one, *read)
    assert kafkalog("produce", two, "-f", "json", stdin=first.out.encode()).code == 0
    second = kafkalog("consume", two, *read)
    assert [row | {"topic": one} for row in second.rows] == first.rows
    assert len(first.rows) == 4
    assert [row["value"] for row in first.rows if row["partition"]][:2] == ["é", '{"id":[1,null]}']


def test_numbers_in_a_value_stay_what_they_are() -> None:
    line = b'{"key": 18446744073709551616, "value": {"n": [1.10, 1E40, -0.1234567890123456789]}}'
    (row,) = record_input.RecordInput(is_json=True).rows(line).to_pylist()
    assert row["key"] == b"18446744073709551616"
    assert row["value"] == b'{"n":[1.10,1E40,-0.1234567890123456789]}'


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "said"),
    [
        (["-p", "7"], "x", 1, "has no partition 7, only 0 to 0"),
        (["-f", "json"], '{"partition": 4}', 1, "the topic has no partition 4, only 0 to 0"),
        (["-f", "json"], '{"partition": "a"}', 1, "partition 'a' is no number"),
        (["-f", "json"], "no json", 1, "'no json' is no record"),
        (["-f", "json"], "[1]", 1, "it is no JSON object"),
        (["-f", "json"], '{"timestamp": "soon"}', 1, "'soon'"),
        (["-f", "json"], '{"timestamp": 1.5}', 1, "timestamp 1.5 is no time"),
        (["-f", "json"], '{"timestamp": 9999999999999999}', 1, "is no record"),
        (["-f", "json"], '{"value": {"base64": "*"}}', 1, "base64"),
        (["-f", "json"], '{"headers": [[1, "b"]]}', 1, "the name 1 of a header is no text"),
        (["-f", "json"], '{"headers": {"ab": "c"}}', 1, "headers are no list"),
        (["-f", "json"], '{"headers": ["ab"]}', 1, "a header is no pair"),
        (["-f", "json"], '{"key": "k", "payload": "v"}', 1, "it has 'payload', which is none of"),
        (["-H", "x"], "x", 2, "Write each --header as NAME=VALUE"),
        (["--whole-files"], "x", 2, "--whole-files takes FILEs"),
        (["-f", "json", "-K", ":"], "{}", 2, "--key-separator and --null are for lines"),
        (
            ["--whole-files", "--null", "x", "/dev/null"],
            "",
            2,
            "--key-separator and --null are for",
        ),
        (["no-such-file"], "x", 2, "no-such-file"),
    ],
)
def test_what_is_wrong_is_said(
    kafkalog: Callable[..., Done],
    new_topic: Callable[..., str],
    arguments: list[str],
    stdin: str,
    code: int,
    said: str,
) -> None:
    topic = new_topic()
    done = kafkalog("produce", topic, *arguments, stdin=stdin.encode())
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert kafkalog("consume", topic, "--from-beginning", "-e").lines == []


def test_nothing_to_write_is_no_error(kafkalog: Callable[..., Done]) -> None:
    """As with kcat and Kafka's console producer; the broker makes the topic all the same."""
    assert kafkalog("produce", "not-there-yet") == (0, "", "0 records written to not-there-yet.\n")
    assert "not-there-yet" in kafkalog("topics", "list").lines


@pytest.mark.parametrize("bad", [b"no json", b'{"partition": 1}'])
@pytest.mark.parametrize("before", [0, 3, 50_000])
def test_a_bad_line_is_told_and_what_is_before_it_is_written(
    kafkalog: Callable[..., Done],
    new_topic: Callable[..., str],
    tmp_path: Path,
    bad: bytes,
    before: int,
) -> None:
    """So that whoever mends it can go on from there, and doubles nothing."""
    topic, path = new_topic(), tmp_path / "lines"
    good = [b'{"value":"%d"}' % number for number in range(before)]
    path.write_bytes(b"\n".join([*good, b"", bad, b'{"value":"after"}']))
    done = kafkalog("produce", topic, "-f", "json", str(path))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"kafkalog: Line {before + 2} of {path}: ")
    assert done.err.endswith(f" Records written before it: {before}; after it: none.\n")
    read = kafkalog("consume", topic, "--from-beginning", "-e").lines
    assert read == [str(number) for number in range(before)]


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("before", [0, 3, 50_000])
def test_a_record_that_is_too_large_is_told_and_what_is_before_it_is_written(
    kafkalog: Callable[..., Done],
    new_topic: Callable[..., str],
    tmp_path: Path,
    before: int,
    compression: str,
) -> None:
    topic, path = new_topic(3), tmp_path / "lines"
    large = b64encode(random.Random(0).randbytes(1_200_000))  # gzip makes 1,200,000 bytes of it
    good = [b"%d:%d" % (number, number) for number in range(before)]
    path.write_bytes(b"\n".join([*good, b"large:" + large, b"after:after"]))
    done = kafkalog("produce", topic, "-K", ":", "-z", compression, str(path))
    assert (done.code, done.out) == (1, "")
    start = f"kafkalog: Record {before + 1} is too large for topic {topic}, which takes batches of "
    assert done.err.startswith(start)
    assert "max.message.bytes" in done.err
    assert done.err.endswith(f" Records written before it: {before}; after it: none.\n")
    read = kafkalog("consume", topic, "--from-beginning", "-e").lines
    assert sorted(map(int, read)) == list(range(before))


def test_a_large_record_that_compresses_is_written(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, path = new_topic(), tmp_path / "large"
    path.write_bytes(b"x" * 2_000_000)
    assert kafkalog("produce", topic, "-z", "zstd", "--whole-files", str(path)).code == 0
    told = kafkalog("consume", topic, "--from-beginning", "-e", "--format", "%S\n").lines
    assert told == ["2000000"]


def test_small_records_go_into_a_topic_that_takes_small_batches_alone(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(max_message_bytes="500")
    lines = [str(number) for number in range(2000)]
    assert kafkalog("produce", topic, stdin="\n".join(lines).encode()).code == 0
    assert kafkalog("consume", topic, "--from-beginning", "-e").lines == lines


def test_what_the_broker_refuses_says_what_is_written_for_certain(
    kafkalog: Callable[..., Done], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    far = b'{"value": "far", "timestamp": "2999-01-01T00:00:00Z"}'
    done = kafkalog("produce", topic, "-f", "json", stdin=b'{"value": "a"}\n' + far)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("kafkalog: The broker refused records for partition 0 of ")
    assert done.err.endswith(
        ". Written for certain are the first 0 records; those after them may be, or some of them.\n"
    )


class Chunks:
    """A standard input that gives what it was told to, never more in one read."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = list(chunks)

    def read1(self, size_bytes: int) -> bytes:
        return self._chunks.pop(0) if self._chunks else b""


@pytest.fixture(autouse=True)
def _more_is_ready(request: pytest.FixtureRequest) -> Iterator[None]:
    with mock.patch.object(record_input, "_is_readable", return_value=True):
        yield


@given(st.lists(st.binary(min_size=1, max_size=4), max_size=12))
def test_lines_are_the_same_however_they_come(chunks: list[bytes]) -> None:
    chunks = [chunk.replace(b"\0", b"\n").replace(b"\1", b"\r") for chunk in chunks]
    found = [
        line
        for lines, _ in record_input.chunks(Chunks(*chunks))
        for line in record_input.split(present(lines)).to_pylist()
    ]
    *whole, rest = b"".join(chunks).split(b"\n")
    ends = [line.removesuffix(b"\r") for line in whole]
    assert found == ends + ([rest.removesuffix(b"\r")] if rest else [])


@given(st.lists(st.binary(max_size=6)), st.sampled_from([b":", b"::", b"\xff"]))
def test_keys_are_what_stands_before_the_separator(lines: list[bytes], separator: bytes) -> None:
    lines = [line.replace(b"\n", b"").replace(b"\r", b"") for line in lines]
    reading = record_input.RecordInput(separator=separator)
    rows = reading.rows(b"\n".join([*lines, b"end"])).to_pylist()
    expected = []
    for line in [*lines, b"end"]:
        key, found, value = line.partition(separator)
        row = {"key": key, "value": value} if found else {"key": None, "value": line}
        expected.append(row)
    assert rows == expected


def test_a_line_that_has_begun_holds_none_back_that_came_before() -> None:
    """More was ready, and is not the end of a line: nobody knows when that comes."""
    with mock.patch.object(record_input, "_is_readable", side_effect=[True, False, False]):
        found = list(record_input.chunks(Chunks(b"a\n", b"b", b"c", b"d\n")))
    assert found == [(b"a", True), (None, False), (b"bcd", False)]


def test_a_long_line_costs_what_it_is_long() -> None:
    ((line, _),) = record_input.chunks(Chunks(*[b"x" * (1 << 15)] * 2000))
    assert len(present(line)) == 2000 << 15


def test_a_line_that_never_ends_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="longer than 67108864 bytes"):
        list(record_input.chunks(Chunks(*[b"x" * (1 << 22)] * 17)))
