"""What the page shows of a real broker, over HTTP."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.group import commit_offsets
from pyspark_kafkalog.decoding.registry import RegistryConfig
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import PendingCommit
from pyspark_kafkalog.warehouse.targets.target import open_target
from pyspark_kafkalog.web.app import PageSettings
from pyspark_kafkalog.web.formats import NOTHING
from tests.pyspark_kafkalog.decoding.registry_stub import Registry
from tests.pyspark_kafkalog.decoding.registry_stub import serving as serving_registry
from tests.pyspark_kafkalog.warehouse.rows_loader import write_rows
from tests.pyspark_kafkalog.web.conftest import Answer, Page, config, serving
from tests.support.patience import EVENT_S, wait_until
from tests.support.present import present

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def row_of(answer: Answer, name: str) -> list[str]:
    assert answer.status == 200, answer.text
    (row,) = [row for row in answer.rows if row and row[0] == name]
    return row


def offsets_of(answer: Answer) -> list[Any]:
    assert answer.status == 200, answer.text
    return [int(row[0]) for row in answer.rows[1:] if len(row) == 4]


def link(answer: Answer, rel: str) -> str | None:
    found = re.search(rf'<a rel="{rel}" href="([^"]+)"', answer.text)
    return found[1].replace("&amp;", "&") if found else None


def test_topics_have_their_figures(
    page: Page, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    topic = new_topic(3)
    page.get("/topic", name=topic)
    write(topic, *[(b"k", b"x" * 100)] * 20, partition=1)
    _, partitions, replicas, records, _, size, _, state = row_of(page.get("/"), topic)
    assert (partitions, replicas, records, state) == ("3", "1", "20", "ok")
    assert re.fullmatch(r"[\d.]+\s(B|KiB)", size)


def test_throughput_is_what_two_looks_have_between_them(
    page: Page, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    topic = new_topic(2)
    page.get("/topic", name=topic)
    write(topic, *[(b"k", b"x" * 1000)] * 50)

    def grown() -> list[str] | None:
        found = [row for row in page.get("/", q=topic, live="1").rows if row[0] == topic]
        return found[0] if found and found[0][4] not in (NOTHING, "0") else None

    _, _, _, records, rate, _, growth, _ = present(wait_until(grown, "a rate"))
    assert (records, growth[-2:]) == ("50", "/s")
    assert float(rate) > 0
    live = page.get("/", q=topic, live="1").text
    assert "<html" not in live
    assert topic in live


def test_topics_are_found_and_paged(
    page: Page, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.web.tables._ROWS_A_PAGE", 2)
    names = sorted(new_topic() for _ in range(5))
    page.get("/topic", name=names[-1])
    wanted = {name.upper() for name in names}
    found: set[str] = set()
    path: str | None = f"/?q={names[0][:5].upper()}"
    while path:
        answer = page.get(path)
        found |= {row[0].upper() for row in answer.rows[1:]}
        path = link(answer, "next")
    assert wanted <= found
    assert "No topic has" in page.get("/", q="nothing-like-it").text


def sort_by(answer: Answer, words: str) -> str | Any:
    """The page that a click on the head of a column leads to."""
    found = re.search(rf'<a href="([^"]+)" title="Sort by this">{words}</a>', answer.text)
    return present(found)[1].replace("&amp;", "&")


def test_topics_are_sorted_by_any_figure(
    page: Page, cluster: Cluster, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.web.tables._ROWS_A_PAGE", 2)
    small, large, wide = topics = ["sorted-a", "sorted-b", "sorted-c"]
    for topic, partitions in zip(topics, (1, 1, 3), strict=True):
        admin.create_topic(cluster, topic, partitions, 1)
    write(small, *[(b"k", b"x" * 1000)] * 3)
    write(large, *[(b"k", b"x")] * 9)
    page.get("/topic", name=wide)
    first = page.get("/", q="sorted-")

    def names(answer: Answer) -> list[Any]:
        answers = [answer, page.get(present(link(answer, "next")))]
        return [row[0] for each in answers for row in each.rows[1:]]

    assert names(first) == [small, large, wide]
    by_records = page.get(sort_by(first, "Records"))
    assert names(by_records) == [large, small, wide]
    assert 'aria-sort="descending"><a href' in by_records.text
    assert 'name="sort" value="records"' in by_records.text
    by_size = page.get(sort_by(by_records, "Size"))
    assert names(by_size) == [small, large, wide]
    assert names(page.get(sort_by(by_size, "Size"))) == [wide, large, small]
    assert names(page.get(sort_by(by_size, "Partitions"))) == [wide, small, large]
    assert names(page.get(sort_by(by_size, "Topic"))) == [small, large, wide]
    assert names(page.get(sort_by(first, "Topic"))) == [wide, large, small]
    monkeypatch.setattr("pyspark_kafkalog.web.app._MOST_SORTED_PARTITIONS", 4)
    refused = page.get(sort_by(first, "Size"))
    assert names(refused) == [small, large, wide]
    assert "Not sorted by “Size”" in refused.text


def test_partitions_and_groups_are_sorted(
    page: Page, new_topic: Callable[..., str], write: Callable[..., None], cluster: Cluster
) -> None:
    topic = new_topic(120)
    write(topic, *[(None, b"x")] * 2, partition=110)
    write(topic, *[(None, b"x")] * 5, partition=7)
    first = page.get("/topic", name=topic)
    assert [row[0] for row in first.rows[1:4]] == ["0", "1", "2"]
    by_records = page.get(sort_by(first, "Records"))
    assert [row[0] for row in by_records.rows[1:4]] == ["7", "110", "0"]
    assert row_of(page.get("/topic", name=topic, sort="records", partition="110"), "110")
    for group, committed in (("ahead", 5), ("behind", 1)):
        commit_offsets(cluster, f"{topic}-{group}", {TopicPartition(topic, 7): committed})
    groups = page.get("/groups", q=topic)
    assert [row[0] for row in groups.rows[1:]] == [f"{topic}-ahead", f"{topic}-behind"]
    by_lag = page.get(sort_by(groups, "Lag"))
    assert [row[0] for row in by_lag.rows[1:]] == [f"{topic}-behind", f"{topic}-ahead"]


@pytest.mark.parametrize("sort", ["nothing", "-", "replicas", HOSTILE])
def test_what_nothing_is_sorted_by_is_ignored(
    page: Page, new_topic: Callable[..., str], sort: str
) -> None:
    topic = new_topic()
    page.get("/topic", name=topic)
    answer = page.get("/", q=topic, sort=sort)
    assert row_of(answer, topic)
    assert 'aria-sort="ascending"><a href' in answer.text
    assert HOSTILE not in answer.text


def test_a_topic_has_its_partitions(
    page: Page, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    topic = new_topic(150, retention_ms="12345678")
    write(topic, *[(None, b"x")] * 7, partition=120)
    first = page.get("/topic", name=topic)
    assert [row[0] for row in first.rows[1:101]] == [str(number) for number in range(100)]
    assert ["retention.ms", "12345678"] in first.rows
    row = row_of(page.get(present(link(first, "next"))), "120")
    assert row[:8] == ["120", "1", "1", "", "0", "7", "7", NOTHING]
    assert row_of(page.get("/topic", name=topic, partition="120"), "120")[5] == "7"
    assert "All partitions are well." in page.get("/topic", name=topic, unwell="1").text


def test_records_are_paged_back_and_forth_without_gaps(
    page: Page, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    topic = new_topic()
    write(topic, *[(b"%d" % number, b"v%d" % number) for number in range(120)])
    answer = page.get("/records", topic=topic, partition="0")
    pages = [offsets_of(answer)]
    while path := link(answer, "prev"):
        answer = page.get(path)
        pages.insert(0, offsets_of(answer))
    assert pages == [list(range(20)), list(range(20, 70)), list(range(70, 120))]
    answer = page.get("/records", topic=topic, partition="0", at="beginning")
    seen = offsets_of(answer)
    while path := link(answer, "next"):
        answer = page.get(path)
        seen += offsets_of(answer)
    assert seen == list(range(120))


def test_records_before_a_long_gap_are_found(
    page: Page, new_topic: Callable[..., str], write: Callable[..., None], servers: str
) -> None:
    topic = new_topic()
    write(topic, *[(b"early", b"x")] * 3)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(EVENT_S)
    producer.begin_transaction()
    for _ in range(500):
        producer.produce(topic, b"aborted")
    producer.flush(EVENT_S)
    producer.abort_transaction(EVENT_S)
    write(topic, (b"late", b"x"))
    with serving(PageSettings(config(servers, isolation_level="read_committed"))) as committed:
        assert offsets_of(committed.get("/records", topic=topic)) == [0, 1, 2, 504]


def test_records_from_an_offset_and_a_time(
    page: Page, new_topic: Callable[..., str], servers: str
) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": servers})
    for number in range(10):
        producer.produce(topic, b"x", timestamp=1_700_000_000_000 + number * 1000)
    producer.flush(EVENT_S)

    def at(place: str) -> Any:
        return offsets_of(page.get("/records", topic=topic, at=place))

    assert at("7") == [7, 8, 9]
    assert at("-2") == [8, 9]
    assert at("2023-11-14T22:13:25Z") == [5, 6, 7, 8, 9]
    assert at("2023-11-14 22:13:28.000Z") == [8, 9]
    assert at("@1700000009000") == [9]
    assert at("end") == at("99") == []
    wrong = page.get("/records", topic=topic, at=HOSTILE)
    assert "is no place in a partition" in wrong.text
    assert HOSTILE not in wrong.text


def test_records_are_searched(
    page: Page, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    topic = new_topic()
    records: list[tuple[bytes, str | bytes | None]] = [
        (b"key-%d" % number, b"value") for number in range(200)
    ]
    records[150] = b"key-150", b'{"name": "M\xc3\x9cLLER"}'
    records[160] = b"key-160", json.dumps({"name": 'Møller "the" second'})
    records[170] = b"\x00\xff\x01", None
    write(topic, *records)
    assert offsets_of(page.get("/records", topic=topic, find="KEY-17")) == [17, *range(171, 180)]
    assert offsets_of(page.get("/records", topic=topic, find="müller")) == [150]
    assert offsets_of(page.get("/records", topic=topic, find='MØLLER "the"')) == [160]
    assert offsets_of(page.get("/records", topic=topic, find="0x00ff")) == [170]
    assert offsets_of(page.get("/records", topic=topic, find="key-17", at="172")) == [
        *range(172, 180)
    ]
    none = page.get("/records", topic=topic, find="nothing")
    assert "0 with “nothing” in offsets 0 to 199" in none.text


def test_a_search_says_how_far_it_came(
    page: Page,
    new_topic: Callable[..., str],
    write: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.web.records._SEARCHED_BYTES", 1)
    topic = new_topic()
    write(topic, *[(None, b"x" * 400_000)] * 8, (None, b"needle"))
    answer = page.get("/records", topic=topic, find="needle")
    looks = 1
    while path := link(answer, "next"):
        assert "as far as one look reaches" in answer.text
        answer = page.get(path)
        looks += 1
    assert offsets_of(answer) == [8]
    assert looks > 2


def test_values_are_shown_as_what_they_are(
    page: Page, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    topic = new_topic()
    exact = b'{"n":12345678901234567890123,"f":1.10,"a":[],"o":{"x":[1,"]"]}}'
    write(topic, (b"", exact), ("ключ", None), (b"\xfe\x00", b"a\x1b[31mred" + b" text" * 20))
    text = page.get("/records", topic=topic).text
    assert '<span class="kind">empty</span>' in text
    assert '<span class="kind">null</span>' in text
    pretty = present(re.search(r"<pre[^>]*>(.*?)</pre>", text, re.DOTALL))[1].replace("&#34;", '"')
    assert json.loads(pretty) == json.loads(exact)
    assert '\n  "n": 12345678901234567890123,\n  "f": 1.10,\n  "a": [],\n  "o": {\n' in pretty
    assert "ключ" in text
    assert "00000000  fe 00" in text
    assert "a␛[31mred" in text


def test_large_values_are_cut_and_can_be_saved(
    page: Page, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    topic = new_topic(max_message_bytes="5000000")
    value = b"<b>" + b"x" * 3_000_000
    write(topic, (b"k", value), (b"k", b"\x00" + value))
    answer = page.get("/records", topic=topic)
    assert len(answer.body) < 40_000
    assert answer.text.count("2.9\u202fMiB, its beginning") == 2
    saved = page.get("/value", topic=topic, partition="0", offset="0", part="value")
    assert saved.body == value
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"].startswith("attachment;")
    assert page.get("/value", topic=topic, partition="0", offset="0", part="key").body == b"k"
    assert page.get("/value", topic=topic, partition="0", offset="9").status == 404
    assert page.get("/value", topic=topic, partition="0", offset="0", part="all").status == 400


def test_what_others_wrote_is_text_and_nothing_else(
    page: Page, new_topic: Callable[..., str], write: Callable[..., None], cluster: Cluster
) -> None:
    topic = new_topic()
    write(topic, (HOSTILE, HOSTILE), (b"k", json.dumps({"x": HOSTILE})), headers={HOSTILE: HOSTILE})
    commit_offsets(cluster, HOSTILE, {TopicPartition(topic, 0): 1})
    for path, query in [
        ("/records", {"topic": topic, "find": "script"}),
        ("/groups", {"q": "<script>"}),
        ("/group", {"name": HOSTILE}),
        ("/", {"q": HOSTILE}),
        ("/topic", {"name": HOSTILE}),
        ("/records", {"topic": topic, "find": HOSTILE, "at": HOSTILE}),
        (f"/{HOSTILE.replace(' ', '%20')}", {}),
    ]:
        text = page.get(path, **query).text
        assert re.findall(r"<script[^>]*>", text) == ['<script src="/static/page.js" defer>']
        assert "<img" not in text
        assert " onerror=alert(1)&gt;" in text or path.startswith("/<")


def test_groups_have_members_and_lag(
    page: Page,
    new_topic: Callable[..., str],
    write: Callable[..., None],
    cluster: Cluster,
    servers: str,
) -> None:
    topic = new_topic(2)
    for partition in (0, 1):
        write(topic, *[(None, b"x")] * 10, partition=partition)
    commit_offsets(cluster, f"idle-{topic}", {TopicPartition(topic, 0): 4})
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"busy-{topic}",
            "client.id": "reader-1",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        message = wait_until(lambda: consumer.poll(0.1), "a record", pause_s=0)
        consumer.commit(message=present(message), asynchronous=False)
        page.get("/topic", name=topic)
        answer = page.get("/groups", q=topic)
        assert row_of(answer, f"idle-{topic}") == [
            f"idle-{topic}", "Empty", "classic", "0", topic, "6",
        ]  # fmt: skip
        assert row_of(answer, f"busy-{topic}")[1:] == ["Stable", "classic", "1", topic, "9"]
        busy = page.get("/group", name=f"busy-{topic}")
        partitions = [row for row in busy.rows if row[0] == topic]
        assert sorted(row[4] for row in partitions) == ["9", NOTHING]
        assert all(row[5].startswith("reader-1 ") for row in partitions)
        assert row_of(busy, "reader-1")[4] == "2"
    finally:
        consumer.close()
    assert page.get("/group", name="nobody").status == 404


def test_brokers(page: Page, servers: str) -> None:
    row = page.get("/brokers").rows[1]
    assert row[:2] == ["1", f"{servers} controller"]
    assert row[3].startswith("as Kafka 4.")


def land(place: str, piece: OffsetRange) -> None:
    """One commit of the load nightly."""
    target = open_target(place)
    stage = target.stage(row_schema())
    files = write_rows(stage, "nightly", piece)
    target.commit(PendingCommit(stage, "nightly", target.position("nightly"), [piece], files))


def test_loads_have_their_commit_and_lag(
    servers: str,
    new_topic: Callable[..., str],
    write: Callable[..., None],
    cluster: Cluster,
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    write(topic, *[(None, b"x")] * 10)
    write(topic, *[(None, b"x")] * 3, partition=1)
    place = f"parquet:{tmp_path}/nowhere/that/is", f"parquet:{tmp_path}/warehouse"
    land(place[1], OffsetRange(topic, 0, 0, 6))
    with serving(PageSettings(config(servers), place)) as page:
        answer = page.get("/loads")
        assert ">Loads</a>" in page.get("/").text
    assert [topic, "0", "6", "10", "4", "ok"] in answer.rows
    assert [topic, "1", NOTHING, "3", "3", "ok"] in answer.rows
    assert f"parquet:{tmp_path}/nowhere/that/is: no load has committed yet." in answer.text
    lag = re.search(r"<dt>lag</dt><dd>(\d+)</dd>", answer.text)
    assert lag
    assert lag[1] == "7"


def test_loads_of_a_target_for_each_topic(
    servers: str,
    new_topic: Callable[..., str],
    write: Callable[..., None],
    cluster: Cluster,
    tmp_path: Path,
) -> None:
    """One that cannot be read hides no other; a topic without a load is not worth a word."""
    topics = [new_topic(), new_topic()]
    broken = new_topic()
    for topic in topics:
        write(topic, (None, b"x"))
        land(f"delta:{tmp_path}/{topic}", OffsetRange(topic, 0, 0, 1))
    (tmp_path / broken / "_delta_log").mkdir(parents=True)
    (tmp_path / broken / "_delta_log" / f"{0:020}.json").write_text("nonsense")
    with serving(PageSettings(config(servers), (f"delta:{tmp_path}/{{topic}}",))) as page:
        answer = page.get("/loads")
    assert [row for row in answer.rows if row[0] in topics] == [
        [topic, "0", "1", "1", "0", "ok"] for topic in sorted(topics)
    ]
    assert answer.text.count(f"delta:{tmp_path}/TOPIC: ") == 1
    assert f"{tmp_path}/{broken}" in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/topic", 400),
        ("/topic?name=nothing", 404),
        ("/records?topic=nothing", 404),
        ("/records?topic=nothing&partition=x", 400),
        ("/records?topic=nothing&partition=99999999999999999999999", 400),
        ("/static/../app.py", 404),
        ("/static/", 404),
    ],
)
def test_what_is_not_there_is_a_page_that_says_so(page: Page, path: str, status: int) -> None:
    answer = page.get(path)
    assert answer.status == status
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving_registry() as running:
        yield running


def test_values_are_decoded_by_their_schemas(
    servers: str, new_topic: Callable[..., str], write: Callable[..., None], registry: Registry
) -> None:
    avro = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "raw", "type": "bytes"},
        ],
    }
    proto = 'syntax = "proto3"; message A { string x = 1; } message B { A a = 1; int32 n = 2; }'
    by_avro = registry.register("a-value", json.dumps(avro))
    by_proto = registry.register("p-value", proto, "PROTOBUF")
    by_json = registry.register("j-value", '{"type": "object"}', "JSON")
    topic = new_topic()

    def framed(schema_id: int, rest: bytes) -> bytes:
        return b"\0" + schema_id.to_bytes(4, "big") + rest

    write(
        topic,
        (None, framed(by_avro, b"\x54" + b"\x80\xd0\xac\xf3\xf9\x62" + b"\x04\xff\xfe")),
        (None, framed(by_proto, b"\x02\x02" + b"\x0a\x03\x0a\x01!\x10\x07")),
        (None, framed(by_json, b'{"a":1}')),
        (None, framed(99, b"who knows")),
        (None, framed(by_avro, b"")),
    )
    settings = RegistryConfig.from_options({"schema.registry.url": registry.url})
    with serving(PageSettings(config(servers), registry=settings)) as page:
        text = page.get("/records", topic=topic).text.replace("&#34;", '"')
    shown = re.findall(r"<pre[^>]*>(.*?)</pre>\n<p class=\"kind\">([^,]+)", text, re.DOTALL)
    by_kind = {kind: json.loads(found) for found, kind in shown if kind != "hex"}
    assert by_kind["avro"]["id"] == 42
    assert by_kind["avro"]["raw"] == {"base64": "//4="}
    assert by_kind["protobuf"] == {"a": {"x": "!"}, "n": 7}
    assert by_kind["json by its schema"] == {"a": 1}
    assert "the registry has no schema 99" in text
    assert [kind for _, kind in shown].count("hex") == 2
