"""Properties of single groups: checked in Apache Kafka's words, kept, described, and in force.

Every test here but those on a broker of its own passes against Apache Kafka 4.3 too.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

from tests.broker.api.config_client import APPEND, DELETE, SET, altered, described
from tests.broker.api.conftest import Eventually
from tests.broker.api.consumer_group_client import ConsumerMember
from tests.broker.api.group_client import GroupClient
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import wait_for

GROUP = 32
GROUP_CONFIG, DEFAULT_CONFIG, STATIC, INT = 8, 5, 4, 3
INVALID_CONFIG, INVALID_REQUEST, UNKNOWN_MEMBER_ID = 40, 42, 25
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def alter(
    client: RawClient,
    group_id: str,
    *operations: tuple[str, int, str | None],
    validate_only: bool = False,
) -> Any:
    return altered(client, GROUP, group_id, operations, validate_only)


def describe(client: RawClient, group_id: str) -> Any:
    """Property to (value, source, synonyms); or (code, message)."""
    found = described(client, GROUP, group_id)
    if isinstance(found, tuple):
        return found
    return {
        each.name: (
            each.value,
            each.config_source,
            [(synonym.name, synonym.value, synonym.source) for synonym in each.synonyms],
        )
        for each in found
    }


@pytest.fixture
def group_id(topic_name: str) -> str:
    return f"a group/of {topic_name} \u00e9"


def test_a_group_that_sets_nothing_has_the_brokers(client: RawClient, group_id: str) -> None:
    described = describe(client, group_id)
    assert len(described) == 17
    for name, value in ((SESSION, "45000"), ("streams.num.standby.replicas", "0")):
        assert described[name] == (
            value,
            DEFAULT_CONFIG,
            [(f"group.{name}", value, DEFAULT_CONFIG)],
        )
    assert described["share.auto.offset.reset"] == (
        "latest",
        DEFAULT_CONFIG,
        [("share.auto.offset.reset", "latest", DEFAULT_CONFIG)],
    )
    assert describe(client, "") == (INVALID_REQUEST, "Group name must not be empty")


def test_set_listed_and_deleted(
    client: RawClient,
    group_id: str,
    eventually: Eventually,
) -> None:
    def listed() -> bool:
        request = ListConfigResourcesRequest(resource_types=[GROUP])
        response = client.call(request, ListConfigResourcesResponse, 1)
        return group_id in {each.resource_name for each in response.config_resources}

    assert not listed()
    assert alter(client, group_id, (SESSION, SET, "50000"), (HEARTBEAT, SET, "7000")) == (0, None)
    eventually(
        lambda: describe(client, group_id)[SESSION],
        (
            "50000",
            GROUP_CONFIG,
            [(SESSION, "50000", GROUP_CONFIG), (f"group.{SESSION}", "45000", DEFAULT_CONFIG)],
        ),
    )
    assert listed()
    assert describe(client, f"{group_id}2")[SESSION][0] == "45000"
    assert alter(client, group_id, (SESSION, DELETE, None), (HEARTBEAT, DELETE, None)) == (0, None)
    eventually(lambda: describe(client, group_id)[SESSION][0], "45000")
    assert not listed()


def test_the_old_request_replaces_all(
    client: RawClient,
    group_id: str,
    eventually: Eventually,
) -> None:
    def replace(*configs: tuple[str, str]) -> tuple[Any, Any]:
        resource = AlterConfigsRequest.AlterConfigsResource
        request = AlterConfigsRequest(
            resources=[
                resource(
                    resource_type=GROUP,
                    resource_name=group_id,
                    configs=[
                        resource.AlterableConfig(name=name, value=value) for name, value in configs
                    ],
                )
            ],
            validate_only=False,
        )
        (found,) = client.call(request, AlterConfigsResponse, 2).responses
        return found.error_code, found.error_message

    assert replace((SESSION, "50000"), ("share.isolation.level", "read_committed")) == (0, None)
    assert replace((HEARTBEAT, "6000")) == (0, None)
    eventually(
        lambda: [describe(client, group_id)[name][0] for name in (SESSION, HEARTBEAT)],
        ["45000", "6000"],
    )
    assert replace() == (0, None)


def not_a_number(name: str, text: str) -> str:
    return f"Invalid value {text} for configuration {name}: Not a number of type INT"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("foo", "1", "Unknown group config name: foo"),
        (SESSION, "x", not_a_number(SESSION, "x")),
        (SESSION, "0", f"Invalid value 0 for configuration {SESSION}: Value must be at least 1"),
        (
            SESSION,
            "1",
            f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            SESSION,
            "9999999",
            f"{SESSION} must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        (
            HEARTBEAT,
            "1",
            f"{HEARTBEAT} must be greater than or equal to "
            "group.consumer.min.heartbeat.interval.ms",
        ),
        (
            HEARTBEAT,
            "50000",
            f"{HEARTBEAT} must be less than or equal to group.consumer.max.heartbeat.interval.ms",
        ),
        (
            "streams.num.standby.replicas",
            "99",
            "streams.num.standby.replicas must be less than or equal to "
            "group.streams.max.standby.replicas",
        ),
        (
            "share.delivery.count.limit",
            "1",
            "Invalid value 1 for configuration share.delivery.count.limit: "
            "Value must be at least 2",
        ),
        (
            "share.isolation.level",
            "x",
            "Invalid value x for configuration share.isolation.level: String must be one of: "
            "read_committed, read_uncommitted",
        ),
        (
            "share.renew.acknowledge.enable",
            "x",
            "Invalid value x for configuration share.renew.acknowledge.enable: Expected value to "
            "be either true or false",
        ),
        (
            "share.auto.offset.reset",
            "x",
            "Invalid value x for configuration share.auto.offset.reset: Invalid value `x` for "
            "configuration share.auto.offset.reset. The value must be either 'earliest', 'latest' "
            "or of the format 'by_duration:<PnDTnHnMn.nS>'.",
        ),
    ],
)
def test_what_is_refused(
    client: RawClient, group_id: str, name: str, value: str, message: str
) -> None:
    for validate_only in (True, False):
        refused = alter(client, group_id, (name, SET, value), validate_only=validate_only)
        assert refused == (INVALID_CONFIG, message)


def test_other_refusals(client: RawClient, group_id: str) -> None:
    assert alter(client, "", (SESSION, SET, "50000")) == (
        INVALID_REQUEST,
        "Default group resources are not allowed.",
    )
    assert alter(client, group_id, (SESSION, SET, None)) == (
        INVALID_REQUEST,
        f"Null value not supported for : {SESSION}",
    )
    assert alter(client, group_id, (SESSION, APPEND, "5")) == (
        INVALID_CONFIG,
        f"Can't APPEND to key {SESSION} because its type is not LIST.",
    )


def test_members_are_told_the_groups_interval(
    connect: Callable[[], RawClient],
    group: GroupClient,
    topic: str,
    eventually: Eventually,
) -> None:
    client = connect()
    member = ConsumerMember(connect(), group.group_id)
    assert member.join([topic]).heartbeat_interval_ms == 5000
    assert alter(client, group.group_id, (HEARTBEAT, SET, "6000")) == (0, None)
    eventually(lambda: member.ask().heartbeat_interval_ms, 6000)
    assert alter(client, group.group_id, (HEARTBEAT, DELETE, None)) == (0, None)
    eventually(lambda: member.ask().heartbeat_interval_ms, 5000)


def test_a_session_lasts_as_long_as_the_group_says(tmp_path: Path) -> None:
    properties = {
        "group.consumer.min.session.timeout.ms": "200",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "offsets.topic.num.partitions": "1",
    }
    with BrokerChild(tmp_path, properties) as child, RawClient(child.host, child.port) as client:
        GroupClient(client, "other").find_coordinator()
        short, long = ConsumerMember(client, "short"), ConsumerMember(client, "long")
        wanted = (SESSION, SET, "300"), (HEARTBEAT, SET, "100")
        assert alter(client, "short", *wanted) == (0, None)
        assert short.join(["t"]).error_code == long.join(["t"]).error_code == 0
        # Between two of them its session ends.
        wait_for(short.ask, lambda answer: answer.error_code == UNKNOWN_MEMBER_ID, 30, pause_s=0.4)
        assert long.ask().error_code == 0
        assert "without_effect" not in child.stderr()


def test_they_outlive_a_crash_and_stay_within_the_brokers_bounds(tmp_path: Path) -> None:
    with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
        assert alter(client, "a/b", (HEARTBEAT, SET, "15000")) == (0, None)
        child.kill()
    properties = {
        "group.consumer.max.heartbeat.interval.ms": "9000",
        "group.consumer.session.timeout.ms": "50000",
    }
    with BrokerChild(tmp_path, properties) as child, RawClient(child.host, child.port) as client:
        described = describe(client, "a/b")
        assert described[HEARTBEAT][:2] == ("15000", GROUP_CONFIG)
        assert described[SESSION][:2] == ("50000", STATIC)
        GroupClient(client, "a/b").find_coordinator()
        member = ConsumerMember(client, "a/b")
        assert member.join(["t"]).heartbeat_interval_ms == 9000
