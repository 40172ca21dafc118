"""A broker killed between any two steps of a transaction's end: it ends wholly or not at all."""

from pathlib import Path

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from tests.broker.api.group_client import GroupClient
from tests.broker.api.transaction_client import TransactionClient, read, stable_offset
from tests.support.broker_child import BrokerChild, RawClient

pytestmark = pytest.mark.crash

TOPIC, GROUP = "orders", "readers"
PARTITIONS = 3
# The decision, a marker for each partition and the group's, the completion.
STEPS = PARTITIONS + 3
SMALL = {
    "num.partitions": str(PARTITIONS),
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}


def connected(child: BrokerChild) -> RawClient:
    return RawClient(child.host, child.port)


def begin(client: RawClient, is_version_2: bool) -> TransactionClient:
    """A transaction with a record in each partition, and an offset of the group."""
    wanted = MetadataRequest.MetadataRequestTopic(name=TOPIC)
    request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=True)
    assert client.call(request, MetadataResponse, 9).topics[0].error_code == 0
    producer = TransactionClient(client, "id")
    producer.init()
    group = GroupClient(client, GROUP)
    group.find_coordinator()
    if not is_version_2:
        assert producer.add(TOPIC, *range(PARTITIONS)) == 0
        producer.begin(GROUP)
    version = 12 if is_version_2 else 9
    for partition in range(PARTITIONS):
        assert producer.produce(TOPIC, b"x", partition=partition, version=version).error_code == 0
    version = 5 if is_version_2 else 3
    codes = producer.commit_offsets(
        group, TOPIC, {0: 42}, member_id="", generation=-1, version=version
    )
    assert codes == {0: 0}
    return producer


def seen(client: RawClient) -> list[list[bytes]]:
    return [read(client, TOPIC, partition) for partition in range(PARTITIONS)]


def committed_offset(client: RawClient) -> dict[tuple[str, int], tuple[int, str]]:
    group = GroupClient(client, GROUP)
    group.find_coordinator()
    return {place: found for place, found in group.committed().items() if found[0] >= 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_commit", "is_version_2"),
    [
        (True, True),
        pytest.param(True, False, marks=pytest.mark.long),
        pytest.param(False, True, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("step", range(STEPS + 1))
def test_every_step_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_commit: bool, is_version_2: bool, step: int
) -> None:
    trigger = tmp_path / "trigger"
    monkeypatch.setenv("KAFKALOG_KILL_TRIGGER", str(trigger))
    data_dir = tmp_path / "data"
    with BrokerChild(data_dir, SMALL, module="tests.crash.killed_at_step") as child:
        with connected(child) as client:
            producer = begin(client, is_version_2)
            trigger.write_text(str(step))
            end_version = 5 if is_version_2 else 3
            try:
                answer = producer.ask_end(is_commit, version=end_version)
                assert answer.error_code == 0
                assert step == STEPS
            except (EOFError, ConnectionError):
                assert step < STEPS
        child.kill()
    with BrokerChild(data_dir, SMALL) as child, connected(child) as client:
        producer.client = client
        producer.find_coordinator()
        state = producer.state()
        is_decided = step > 0
        if is_decided:
            assert state == ("CompleteCommit" if is_commit else "CompleteAbort")
        else:
            assert state == "Ongoing"
        everything: list[list[bytes]] = [[b"x"]] * PARTITIONS
        nothing: list[list[bytes]] = [[]] * PARTITIONS
        assert seen(client) == (everything if is_decided and is_commit else nothing)
        # Whose answer was lost asks again.
        assert producer.end(is_commit, version=end_version).error_code == 0
        producer.state()
        assert seen(client) == (everything if is_commit else nothing)
        assert committed_offset(client) == ({(TOPIC, 0): (42, "")} if is_commit else {})
        for partition in range(PARTITIONS):
            # Behind the record and its marker; one that was written twice changes nothing.
            assert stable_offset(client, TOPIC, partition) in (2, 3)
