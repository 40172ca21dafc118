"""Groups of all brokers, where one of these is gone."""

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import ListGroupsResponse

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.groups import list_groups
from tests.pyspark_kafkalog.client import scripted
from tests.pyspark_kafkalog.client.scripted import METADATA, Request, ScriptedBroker
from tests.support.ports import closed_port

LIST_GROUPS = 16


def test_a_broker_that_is_gone_is_asked_until_the_others_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They name it until its session has ended."""
    monkeypatch.setitem(scripted.VERSIONS, LIST_GROUPS, (0, 4))
    group = ListGroupsResponse.ListedGroup(
        group_id="readers", protocol_type="consumer", group_state="Empty"
    )

    def groups(request: Request) -> bytes:
        answer = ListGroupsResponse(error_code=0, groups=[group])
        return bytes(answer.encode(version=request.version))

    def metadata(request: Request) -> bytes:
        if len(broker.asked(METADATA)) > 1:
            broker.brokers.pop(2, None)
        return broker.metadata(request)

    with ScriptedBroker({LIST_GROUPS: groups}) as broker:
        broker.handlers[METADATA] = metadata
        gone: Any = SimpleNamespace(advertised=None, port=closed_port())
        broker.brokers[2] = gone
        with Cluster(broker.config()) as cluster:
            assert [each.name for each in list_groups(cluster)] == ["readers"]
    assert len(broker.asked(METADATA)) == 2
