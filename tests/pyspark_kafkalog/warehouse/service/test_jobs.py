"""A file of loads: what it says, and every mistake in it with its line."""

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.service.jobs import InvalidJobsError, Jobs, read_jobs
from pyspark_kafkalog.warehouse.service.schedule import Cron, Every
from pyspark_kafkalog.warehouse.service.toml_lines import table_lines

GOOD = """
workers = 3
most-at-once = 2

[defaults]
bootstrap-servers = "one:9092"
every = "5 minutes"
property = { "security.protocol" = "SSL" }
value-format = "string"

[[load]]
name = "nightly"
topics = ["orders", "views"]
to = "delta:/lake/orders"
cron = "0 3 * * *"
time-zone = "Europe/Berlin"
max_bytes = "10g"
partition-by = ["days(timestamp)"]

[load.option]
includeHeaders = true

[[load]]
name = "raw"
pattern = "^shop"
to = "sql:postgresql://loader:${PG_PASSWORD}@host/db#raw_{topic}"
bootstrap-servers = "two:9092"
from = 2026-11-01T00:00:00Z
group = "raw-load"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "loads.toml"
    path.write_text(text, encoding="utf-8")
    return path


def read(tmp_path: Path, text: str, servers: str | None = None) -> Jobs:
    return read_jobs(written(tmp_path, text), servers)


def mistakes(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(InvalidJobsError) as raised:
        read(tmp_path, text)
    path = f"{tmp_path / 'loads.toml'}:"
    lines = str(raised.value).split("\n")
    assert all(line.startswith(path) for line in lines)
    return [line.removeprefix(path) for line in lines]


def test_a_file_says_what_a_command_line_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_PASSWORD", "s3cr3t")
    found = read(tmp_path, GOOD)
    assert (found.workers, found.most_at_once) == (3, 2)
    nightly, raw = found.jobs
    assert nightly.options == {
        "kafka.bootstrap.servers": "one:9092",
        "kafka.security.protocol": "SSL",
        "includeHeaders": "true",
        "subscribe": "orders,views",
    }
    assert isinstance(nightly.schedule, Cron)
    assert nightly.arguments["max_bytes"] == "10g"
    assert nightly.wanted().layout.partition_by[0].column == "timestamp"
    assert raw.schedule == Every(300)
    assert raw.options["subscribePattern"] == "^shop"
    assert raw.options["kafka.bootstrap.servers"] == "two:9092"
    assert isinstance(raw.arguments["starting"], datetime)
    assert raw.each().of("shop.eu").group == "raw-load"
    assert "s3cr3t" in raw.each().of("shop.eu").target
    assert raw.place == "sql:postgresql+psycopg://loader:***@host/db#raw_{topic}"


def test_secrets_come_from_the_environment_and_from_files_and_go_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("fr0m file\n")
    monkeypatch.setenv("SECRET", "s3cr3t")
    text = """
    [[load]]
    name = "a$${b}"
    topics = "t"
    every = "1 h"
    to = "sql:postgresql://loader:${file:password}@host/db"
    bootstrap-servers = "one:9092"
    property = { "sasl.jaas.config" = "${SECRET}", "ssl.key.password" = "${NO_SUCH}" }
    """
    found = mistakes(tmp_path, text)
    assert found == [
        "8: property: the environment has no variable NO_SUCH; what is to be ${ itself is "
        "written $${"
    ]
    found = mistakes(tmp_path, text.replace("${NO_SUCH}", "x"))
    assert len(found) == 1
    assert found[0].startswith("6: ")
    assert "fr0m" not in found[0]
    jobs = read(tmp_path, text.replace("${NO_SUCH}", "x").replace("/db", "/db#t")).jobs
    assert jobs[0].name == "a${b}"
    assert jobs[0].options["kafka.sasl.jaas.config"] == "s3cr3t"
    assert "fr0m" in jobs[0].target
    assert "fr0m" not in jobs[0].place


def test_every_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    text = '''workers = 0
wrokers = 2
[defaults]
bootstrap-servers = "one:9092"
compresion = "zstd"
name = "all"

[[load]]
name = "a"
topics = """
[[load]]
name = "no table"
"""
to = "parquet:/data"
evry = "5 minutes"

[[load]]
name = "b"
topics = ["t"]
pattern = "x"
to = "paruqet:/data"
every = "5 parsecs"

[[load]]
name = "c"
topics = ["t"]
to = "parquet:/data"
cron = "0 25 * * *"
[[load]]
name = "d"
topics = ["t"]
to = "parquet:/data"
every = "1 h"
compression = "zip"
[[load]]
every = 5
'''
    found = mistakes(tmp_path, text)
    for begins in (
        "1: workers: is a whole number",
        "2: there is no key wrokers here; did you mean workers?",
        "5: there is no key compresion here; did you mean compression?",
        "6: there is no key name here",
        "8: this load has no every, and no cron",
        "15: there is no key evry here; did you mean every?",
        "20: topics and pattern exclude each other",
        "22: every: '5 parsecs' is no duration",
        "28: '0 25 * * *' is no cron line",
        "34: ",
        "35: this load has no name",
        "35: this load has no to",
        "35: this load has no topics, and no pattern",
        "36: every: is a text",
    ):
        assert any(one.startswith(begins) for one in found), (begins, found)
    assert len(found) == 14


@pytest.mark.parametrize(
    ("load", "line", "what"),
    [
        ('to = "paruqet:/data"', 4, "does not name a kind of target"),
        ('to = "parquet:/data"\noption = { startingOffsets = "sometime" }', 5, "startingOffsets"),
        ('to = "parquet:/data"\nproperty = { "acks_" = "1" }', 5, "no property of a Kafka client"),
        ('to = "parquet:/data"\nvalue-schema = "missing.avsc"', 5, "missing.avsc"),
        ('to = "parquet:/data"\ntransform = "no.such:f"', 5, "cannot be imported"),
        ('to = "parquet:/data"\ntransform = "builtins:len"', 5, "transform"),
        ('to = "parquet:/data"\nvalue-format = "jsno"', 5, "jsno"),
        ('to = "parquet:/data"\ndead-letter-topic = "t"', 5, "dead_letter_topic"),
        ('to = "parquet:/{topic}"\nsort-by = ["nothing"]', 5, "nothing"),
        ('to = "parquet:/data"\nfrom = "sometime"', 5, "sometime"),
    ],
)
def test_what_load_refuses_is_refused_before_it_runs(
    tmp_path: Path, load: str, line: int, what: str
) -> None:
    text = f'[[load]]\nname = "a"\ntopics = "t"\n{load}\nevery = "1 h"\nbootstrap-servers = "x:1"'
    (found,) = mistakes(tmp_path, text)
    assert what in found
    assert found.startswith(f"{line}: ")


def test_what_texts_stand_for_is_in_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3cr3t")
    (tmp_path / "secret").write_text("f1l3\n")
    text = """[[load]]
name = "a"
topics = "t"
to = "${SECRET}"
every = "${file:secret}"
bootstrap-servers = "x:1"
[[load]]
name = "b"
topics = "t"
to = "parquet:/data"
every = "1 h"
bootstrap-servers = "${SECRET}"
option = { startingOffsets = "${file:no\\u0000file}" }
"""
    found = mistakes(tmp_path, text)
    assert "5: every: '${file:secret}' is no duration" in found[0]
    assert any("no path" in one for one in found)
    text = text.replace('"${file:secret}"', '"1 h"')
    found = mistakes(tmp_path, text)
    assert found[0].startswith("4: target '${SECRET}' does not name a kind")
    text = text.replace("option", "#")
    found += mistakes(tmp_path, text)
    assert any("kafka.bootstrap.servers has '${SECRET}'" in one for one in found)
    assert "s3cr3t" not in "".join(found)


def test_two_loads_are_never_one(tmp_path: Path) -> None:
    one = '[[load]]\nname = "a"\ntopics = "t"\nto = "parquet:/d"\nevery = "1 h"\n'
    text = one + one + one.replace("/d", "/e")
    with pytest.raises(InvalidJobsError, match=r"6: load a into .* is that of line 1"):
        read(tmp_path, text, "x:1")
    assert len(read(tmp_path, one + one.replace("/d", "/e"), "x:1").jobs) == 2


@pytest.mark.parametrize(
    ("text", "line"), [("a = ", 1), ("\n\n[defaults\n", 3), ("x = 1\nx = 2\n", 2), ("", 1)]
)
def test_what_is_no_toml_says_where(tmp_path: Path, text: str, line: int) -> None:
    assert mistakes(tmp_path, text)[0].startswith(f"{line}: ")


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_jobs(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes("# Grüße".encode("latin-1"))
    with pytest.raises(InvalidOptionError, match="UTF-8"):
        read_jobs(tmp_path / "latin.toml")


values = st.sampled_from(
    [
        "1",
        '"a"',
        '"""\n[x]\nk = 1\n"""',
        "'''\n[[load]]\n'''",
        "[1,\n 2, # ]\n]",
        "[\n[1, 2],\n]",
        '"#["',
        "{a=1}",
    ]
)


@given(st.lists(st.tuples(st.sampled_from(["", "defaults", "load"]), values), max_size=12))
def test_lines_are_those_of_tables_and_keys(parts: list[tuple[str, str]]) -> None:
    lines: list[str] = []
    expected: list[tuple[str, int, str, int]] = []
    counts = {"": 1, "defaults": 0, "load": 0}
    here = ""
    for number, (table, value) in enumerate(parts):
        if table == "load" or (table == "defaults" and not counts["defaults"]):
            lines.append("[[load]]  # a load" if table == "load" else "[defaults]")
            counts[table] += 1
            here = table
        key = f"key-{number}"
        expected.append((here, counts[here] - 1, key, len(lines) + 1))
        lines += f"{key} = {value}".split("\n")
    found = table_lines("\n".join(lines))
    for name, index, key, line in expected:
        assert found[name][index].of(key) == line
