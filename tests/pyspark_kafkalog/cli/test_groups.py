"""`kafkalog groups` and `kafkalog lag`: groups of both protocols, with members and without."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer
from kafka.protocol.consumer import JoinGroupRequest, SyncGroupRequest
from kafka.structs import TopicPartition

from pyspark_kafkalog.cli import groups
from pyspark_kafkalog.cli.output import Output
from pyspark_kafkalog.client import groups as client_groups
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.groups import GroupDescription
from tests.pyspark_kafkalog.cli.conftest import Done, Kafkalog
from tests.support.patience import wait_until
from tests.support.present import present

_numbers = count()


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"


@pytest.fixture
def topic(kafkalog: Kafkalog, new_topic: Callable[..., str]) -> str:
    """Two partitions with ten records each, one for each of ten seconds from 1970 on."""
    name = new_topic(2)
    rows = (
        f'{{"value": "{second}", "partition": {partition}, "timestamp": {second * 1000}}}\n'
        for second in range(10)
        for partition in range(2)
    )
    assert kafkalog("produce", name, "-f", "json", "-q", stdin="".join(rows).encode()).code == 0
    return name


@contextmanager
def member(servers: str, group: str, topic: str, protocol: str = "classic") -> Iterator[Consumer]:
    """A member that has all of the topic's partitions, and commits nothing by itself."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "the member",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.05) or len(consumer.assignment()) == 2, "an assignment")
        yield consumer
    finally:
        consumer.close()


def offsets_of(kafkalog: Kafkalog, group: str) -> dict[int, int]:
    rows = kafkalog("lag", group, "--format", "json").rows
    return {row["partition"]: row["committed"] for row in rows}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_at_work_is_described_and_left_alone(
    kafkalog: Callable[..., Done], servers: str, topic: str, group: str, protocol: str
) -> None:
    assert kafkalog("groups", "reset", group, "--topic", topic, "--to-offset", "4", "--execute")
    with member(servers, group, topic, protocol):
        listed = {row["group"]: row for row in kafkalog("groups", "list", "--format", "json").rows}
        assert listed[group]["state"] == "Stable"
        assert listed[group]["type"] == protocol
        (row,) = kafkalog("groups", "describe", group, "--format", "json").rows
        assert (row["state"], row["type"], row["lag"]) == ("Stable", protocol, 12)
        (one,) = row["members"]
        assert (one["client_id"], one["host"], one["partitions"]) == ("the member", "/127.0.0.1", 2)
        assert row["partitions"] == [
            {
                "topic": topic,
                "partition": partition,
                "committed": 4,
                "end": 10,
                "lag": 6,
                **{name: one[name] for name in ("client_id", "host", "member_id")},
            }
            for partition in (0, 1)
        ]
        head, first, _ = kafkalog("groups", "describe", group).lines
        assert head.startswith(f"{group}  state=Stable type={protocol} assignor=")
        assert head.endswith(" members=1 lag=12")
        assert first.startswith(
            f"  {topic} partition=0 committed=4 end=10 lag=6 client_id=the member host=/127.0.0.1 "
        )
        for refused in (["delete", group], ["reset", group, "--to-latest", "--execute"]):
            done = kafkalog("groups", *refused)
            assert (done.code, done.out) == (1, "")
            assert "members" in done.err
    assert offsets_of(kafkalog, group) == {0: 4, 1: 4}
    assert kafkalog("groups", "delete", group).lines == [f"Deleted group {group}."]
    done = kafkalog("groups", "describe", group)
    assert done == (1, "", f"kafkalog: Group {group} does not exist. Check its name.\n")


def test_a_group_that_goes_while_all_are_described_is_left_out(
    kafkalog: Kafkalog, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafkalog("groups", "reset", group, "--topic", topic, "--to-earliest", "--execute")
    listed = client_groups.list_groups
    gone = client_groups.ListedGroup("a-group-that-was", "classic", "consumer", "Empty")
    monkeypatch.setattr(client_groups, "list_groups", lambda of: [gone, *listed(of)])
    assert group in {row["group"] for row in kafkalog("groups", "describe", "--format=json").rows}
    assert kafkalog("groups", "describe", gone.name).code == 1


def test_a_name_that_a_terminal_would_obey_is_shown_by_numbers(
    kafkalog: Callable[..., Done], topic: str, group: str
) -> None:
    name = f"{group}\x1b[2J\r\n\tforged state=Stable\x7f\x9b31m"
    shown = f"{group}\\x1b[2J\\r\\n\\tforged state=Stable\\x7f\\x9b31m"
    place = ["--topic", topic, "--to-latest", "--execute"]
    done = kafkalog("groups", "reset", name, *place, "--format", "json")
    assert {row["group"] for row in done.rows} == {name}
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.out) is None
    assert f"{shown} state=Empty type=classic" in kafkalog("groups", "list").lines
    head, *_ = kafkalog("groups", "describe", name).lines
    assert head.startswith(f"{shown}  state=Empty ")
    assert kafkalog("groups", "delete", name).lines == [f"Deleted group {shown}."]
    done = kafkalog("groups", "describe", name)
    assert done.code == 1
    assert "\x1b" not in done.err
    assert f"kafkalog: Group {group}\\x1b[2J\\r" in done.err


@pytest.mark.parametrize(
    "assignment", [b"", b"x", b"\0\0" + b"\xff" * 8, b"\0\0\0\0\0\1\0\1t" + b"\xff" * 8]
)
def test_an_assignment_in_a_way_of_its_own_keeps_no_group_from_view(
    kafkalog: Callable[..., Done], servers: str, group: str, assignment: bytes
) -> None:
    """What a leader gives members is bytes to a broker. Two of these hold null for a list."""
    with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
        connection = cluster.retrying(lambda d: cluster.coordinator(group, d), Deadline(30_000))
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = connection.call(join, Deadline(30_000), 3)
        given = SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=joined.member_id, assignment=assignment
        )
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[given],
        )
        assert connection.call(sync, Deadline(30_000), 3).error_code == 0
        (row,) = kafkalog("groups", "describe", group, "--format", "json").rows
    assert (row["state"], len(row["members"]), row["partitions"]) == ("Stable", 1, [])


def test_members_and_partitions_without_each_other(
    kafkalog: Callable[..., Done],
    servers: str,
    topic: str,
    new_topic: Callable[..., str],
    group: str,
) -> None:
    """The group has committed an offset of a topic that its members do not read, and has more
    members than partitions."""
    kafkalog("groups", "reset", group, "--topic", topic, "--to-latest", "--execute")
    read = new_topic()

    def join() -> Consumer:
        consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
        consumer.subscribe([read])
        return consumer

    def shared() -> dict[str, Any] | None:
        for each in members:
            each.poll(0.05)
        (found,) = kafkalog("groups", "describe", group, "--format", "json").rows
        owned = sorted(each["partitions"] for each in found["members"])
        return found if owned == [0, 1] else None

    members = [join(), join()]
    try:
        row = wait_until(shared, "a member without a partition")
        text = kafkalog("groups", "describe", group).lines
    finally:
        for each in members:
            each.close()
    partitions = {(each["topic"], each["partition"]): each for each in present(row)["partitions"]}
    assert partitions[topic, 0]["committed"] == 10
    assert partitions[topic, 0]["member_id"] is None
    assert partitions[read, 0]["member_id"] is not None
    assert sum(line.startswith("  no partition client_id=rdkafka") for line in text) == 1


@pytest.mark.parametrize(
    ("where", "offset"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "0"], 0),
        (["--to-offset", "7"], 7),
        (["--to-offset", "70"], 10),
        (["--shift-by", "2"], 7),
        (["--shift-by", "-3"], 2),
        (["--shift-by", "0"], 5),
        (["--shift-by", "-30"], 0),
        (["--to-datetime", "1970-01-01T00:00:03.500Z"], 4),
        (["--to-datetime", "1960-01-01T00:00:00"], 0),
        (["--to-datetime", "2999-01-01T00:00:00"], 10),
        (["--by-duration", "P365000D"], 0),
        (["--by-duration", "PT0.5S"], 10),
    ],
)
def test_a_group_is_reset(
    kafkalog: Callable[..., Done], topic: str, group: str, where: list[str], offset: int
) -> None:
    kafkalog("groups", "reset", group, "--topic", topic, "--to-offset", "5", "--execute")
    done = kafkalog("groups", "reset", group, *where)
    assert done.lines == [
        *(f"{topic} partition={n} before=5 offset={offset}" for n in (0, 1)),
        "Nothing was changed: --execute does it.",
    ]
    assert offsets_of(kafkalog, group) == {0: 5, 1: 5}
    done = kafkalog("groups", "reset", group, *where, "--execute", "--format", "json")
    row = {"group": group, "topic": topic, "before": 5, "offset": offset, "executed": True}
    assert done.rows == [row | {"partition": n} for n in (0, 1)]
    assert offsets_of(kafkalog, group) == {0: offset, 1: offset}


def test_only_the_partitions_that_are_named_are_reset(
    kafkalog: Callable[..., Done], topic: str, group: str
) -> None:
    kafkalog("groups", "reset", group, "--topic", topic, "--to-latest", "--execute")
    done = kafkalog("groups", "reset", group, "--topic", f"{topic}:1", "--to-earliest", "--execute")
    assert done.lines == [f"{topic} partition=1 before=10 offset=0"]
    assert offsets_of(kafkalog, group) == {0: 10, 1: 0}


def test_an_offset_of_a_topic_that_is_gone_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """As for a moment after it was deleted: brokers drop such offsets."""
    found = GroupDescription("g", "classic", "consumer", "Empty", "", ("h", 1), ())
    groups._tell(Output(), found, groups._GroupPlaces({TopicPartition("gone", 7): 5}, {}))
    assert capsys.readouterr().out.splitlines() == [
        "g  state=Empty type=classic assignor=- members=0 lag=0",
        "  gone partition=7 committed=5 end=gone lag=- client_id=- host=- member_id=-",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("reset g", "Say where to by one of --to-earliest, --to-latest, --to-offset, --shift-by"),
        ("reset g --to-earliest --to-latest", "Say where to by one of"),
        ("reset g --to-datetime soon", "'soon' is no time"),
        ("reset g --by-duration 5m", "'5m' is no duration"),
        ("reset g --by-duration PT", "'PT' is no duration"),
        ("reset g --to-offset -1", "-1 is not in the range"),
    ],
)
def test_a_reset_that_cannot_be_meant_is_wrong_usage(
    kafkalog: Callable[..., Done], line: str, said: str
) -> None:
    done = kafkalog("groups", *line.split())
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("reset nobody --to-latest", "Group nobody has committed no offsets of topics that are"),
        ("reset nobody --to-latest --topic nowhere", "Topic nowhere does not exist"),
        ("reset nobody --shift-by 1 --topic {topic}", "has committed no offset of {topic}-0"),
        ("reset nobody --to-latest --topic {topic}:2", "has no partition 2, only 0 to 1"),
        ("describe nobody", "Group nobody does not exist"),
        ("delete nobody", "Group nobody does not exist"),
    ],
)
def test_what_is_not_there_is_said(
    kafkalog: Callable[..., Done], topic: str, line: str, said: str
) -> None:
    done = kafkalog("groups", *line.format(topic=topic).split())
    assert (done.code, done.out) == (1, "")
    assert said.format(topic=topic) in done.err
