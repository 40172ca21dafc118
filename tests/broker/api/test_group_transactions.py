"""TxnOffsetCommit, and what OffsetFetch and the deletions make of offsets that are pending.

Every test here but the last passes against Apache Kafka 4.3 too (KAFKALOG_TEST_BOOTSTRAP).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import CoordinatorLoadInProgressError
from kafka.protocol.producer import TxnOffsetCommitRequest

from broker.api import txn_offset_commit
from broker.cluster.metadata import new_topic
from tests.broker.api.group_client import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    GroupClient,
)
from tests.broker.api.test_group_offsets import (
    FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION,
    INVALID_GROUP_ID,
    OFFSET_METADATA_TOO_LARGE,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tests.broker.api.transaction_client import TransactionClient
from tests.support.broker_child import RawClient
from tests.support.patience import wait_for
from tests.support.requests import request_of

INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
CONCURRENT_TRANSACTIONS = 51
UNSTABLE_OFFSET_COMMIT = 88
TRANSACTION_ABORTABLE = 120
# The last version that does not ask for stable offsets.
ANY_OFFSET = 6


@pytest.fixture
def topic(create: Callable[..., str]) -> str:
    return create(partitions=3)


@pytest.fixture
def transaction(connect: Callable[[], RawClient], group: GroupClient) -> TransactionClient:
    """A producer whose transaction has the group."""
    transaction = TransactionClient(connect(), f"transaction-of-{group.group_id}")
    transaction.init()
    transaction.begin(group.group_id)
    return transaction


def stable(group: GroupClient, topics: dict[Any, Any] | None = None) -> dict[Any, Any]:
    """Offset by partition, -1 where there is none, when no transaction may change one any more."""

    def fetch() -> list[Any]:
        return [part for each in group.fetch_response(topics).topics for part in each.partitions]

    parts = wait_for(
        fetch, lambda parts: all(part.error_code != UNSTABLE_OFFSET_COMMIT for part in parts)
    )
    return {part.partition_index: part.committed_offset for part in parts}


def partitions(response: Any) -> dict[Any, Any]:
    return {
        part.partition_index: (part.error_code, part.committed_offset, part.metadata)
        for each in response.topics
        for part in each.partitions
    }


@pytest.mark.parametrize("version", range(5))
def test_every_version_commits_for_the_end_of_the_transaction(
    group: GroupClient, topic: str, transaction: TransactionClient, version: int
) -> None:
    group.commit(topic, {0: 5}, metadata="old")
    options: dict[str, Any] = {"metadata": "new", "leader_epoch": 4, "version": version}
    assert transaction.commit_offsets(group, topic, {0: 9, 1: 7}, **options) == {0: 0, 1: 0}
    assert group.committed(version=ANY_OFFSET) == {(topic, 0): (5, "old")}


@pytest.mark.parametrize("version", range(5))
def test_what_every_version_committed_is_there_in_the_end(
    group: GroupClient, topic: str, transaction: TransactionClient, version: int
) -> None:
    options: dict[str, Any] = {"metadata": "new", "leader_epoch": 4, "version": version}
    assert transaction.commit_offsets(group, topic, {0: 9, 1: 7}, **options) == {0: 0, 1: 0}
    transaction.end(is_commit=True)
    assert stable(group, {topic: [0, 1, 2]}) == {0: 9, 1: 7, 2: -1}
    assert group.committed() == {(topic, 0): (9, "new"), (topic, 1): (7, "new")}
    epochs = {p.committed_leader_epoch for p in group.fetch_response().topics[0].partitions}
    assert epochs == {4 if version >= 2 else -1}


@pytest.mark.parametrize("version", [7, 8, 9])
def test_unstable_offsets_are_not_given_to_who_wants_stable_ones(
    group: GroupClient, topic: str, transaction: TransactionClient, version: int
) -> None:
    group.commit(topic, {0: 5, 2: 6}, metadata="old")
    transaction.commit_offsets(group, topic, {0: 9, 1: 7})
    unstable = (UNSTABLE_OFFSET_COMMIT, -1, "")
    asked = group.fetch_response({topic: [0, 1, 2]}, version=version)
    assert asked.error_code == 0
    assert partitions(asked) == {0: unstable, 1: unstable, 2: (0, 6, "old")}
    everything = group.fetch_response(version=version)
    assert partitions(everything) == {0: unstable, 2: (0, 6, "old")}


def test_an_abort_forgets_them(
    group: GroupClient, topic: str, transaction: TransactionClient
) -> None:
    group.commit(topic, {0: 5})
    transaction.commit_offsets(group, topic, {0: 9, 1: 7})
    transaction.end(is_commit=False)
    assert stable(group, {topic: [0, 1]}) == {0: 5, 1: -1}


def test_a_plain_commit_in_between_stays(
    group: GroupClient, topic: str, transaction: TransactionClient
) -> None:
    transaction.commit_offsets(group, topic, {0: 9, 1: 7})
    assert group.commit(topic, {0: 2}) == {0: 0}
    assert group.committed(version=ANY_OFFSET) == {(topic, 0): (2, "")}
    assert partitions(group.fetch_response())[0][0] == UNSTABLE_OFFSET_COMMIT
    transaction.end(is_commit=True)
    assert stable(group, {topic: [0, 1]}) == {0: 2, 1: 7}


def test_of_two_producers_the_later_commit_stays(
    group: GroupClient, topic: str, transaction: TransactionClient, connect: Callable[[], RawClient]
) -> None:
    other = TransactionClient(connect(), "other-" + transaction.transactional_id)
    other.init()
    other.begin(group.group_id)
    transaction.commit_offsets(group, topic, {0: 1})
    other.commit_offsets(group, topic, {0: 2})
    other.end(is_commit=True)
    transaction.end(is_commit=True)
    assert stable(group, {topic: [0]}) == {0: 2}


def test_one_transaction_after_the_other(
    group: GroupClient, topic: str, transaction: TransactionClient
) -> None:
    for number, is_commit in enumerate([True, False, True, False]):
        transaction.begin(group.group_id)
        assert transaction.commit_offsets(group, topic, {0: number}) == {0: 0}
        transaction.end(is_commit=is_commit)
    assert stable(group, {topic: [0]}) == {0: 2}


def test_partitions_are_refused_one_by_one(
    group: GroupClient, topic: str, transaction: TransactionClient
) -> None:
    assert transaction.commit_offsets(group, topic, {0: 1, 3: 1, -1: 1}) == {
        0: 0,
        3: UNKNOWN_TOPIC_OR_PARTITION,
        -1: UNKNOWN_TOPIC_OR_PARTITION,
    }
    refused = transaction.commit_offsets(group, "nowhere", {0: 1})
    assert refused == {0: UNKNOWN_TOPIC_OR_PARTITION}
    too_large = transaction.commit_offsets(group, topic, {1: 1}, metadata="x" * 4097)
    assert too_large == {1: OFFSET_METADATA_TOO_LARGE}
    assert transaction.commit_offsets(group, topic, {2: 1}, metadata="x" * 4096) == {2: 0}
    assert transaction.commit_offsets(group, topic, {2: 1}, metadata=None) == {2: 0}
    codes = {place: part[0] for place, part in partitions(asked_all(group, topic)).items()}
    assert codes == {0: UNSTABLE_OFFSET_COMMIT, 1: 0, 2: UNSTABLE_OFFSET_COMMIT}


def asked_all(group: GroupClient, topic: str) -> Any:
    return group.fetch_response({topic: [0, 1, 2]})


def test_members_commit_in_their_generation(
    group: GroupClient,
    topic: str,
    transaction: TransactionClient,
    another: Callable[[], GroupClient],
) -> None:
    group.stable()

    def commit(**options: Any) -> int:
        (code,) = transaction.commit_offsets(group, topic, {0: 1}, **options).values()
        return code

    assert commit() == 0
    assert commit(generation=2) == ILLEGAL_GENERATION
    assert commit(generation=-1) == ILLEGAL_GENERATION
    assert commit(member_id="x") == UNKNOWN_MEMBER_ID
    assert commit(member_id="") == UNKNOWN_MEMBER_ID
    assert commit(instance_id="x") == UNKNOWN_MEMBER_ID
    assert commit(member_id="", generation=-1) == 0
    assert commit(version=2) == 0
    group.leave()
    assert commit() == UNKNOWN_MEMBER_ID
    assert commit(member_id="x", generation=-1) == 0


def test_members_commit_while_a_rebalance_is_completed(
    group: GroupClient, topic: str, transaction: TransactionClient
) -> None:
    group.joined()
    assert transaction.commit_offsets(group, topic, {0: 1}) == {0: 0}


def test_a_fenced_instance_commits_nothing(
    group: GroupClient,
    topic: str,
    transaction: TransactionClient,
    another: Callable[[], GroupClient],
) -> None:
    group.stable(instance_id="one")
    back = another()
    back.join(instance_id="one", member_id="")
    fenced = transaction.commit_offsets(group, topic, {0: 1}, instance_id="one")
    assert fenced == {0: FENCED_INSTANCE_ID}
    assert transaction.commit_offsets(back, topic, {0: 2}, instance_id="one") == {0: 0}


def test_groups_that_are_not_there(
    group: GroupClient, topic: str, transaction: TransactionClient
) -> None:
    options: dict[str, Any] = {"member_id": "x", "generation": 1}
    refused = transaction.commit_offsets(group, topic, {0: 1}, **options)
    assert refused == {0: ILLEGAL_GENERATION}
    assert transaction.commit_offsets(group, topic, {0: 1}, member_id="x") == {0: 0}
    described = group.describe()
    assert (described.group_state, described.protocol_type) == ("Empty", "")
    nameless = GroupClient(group.client, "")
    assert transaction.commit_offsets(nameless, topic, {0: 1}) == {0: INVALID_GROUP_ID}


@pytest.mark.parametrize("version", range(5))
def test_a_producer_that_was_replaced_commits_nothing(
    group: GroupClient, topic: str, transaction: TransactionClient, version: int
) -> None:
    transaction.commit_offsets(group, topic, {0: 1})
    transaction.init()
    transaction.begin(group.group_id)
    assert transaction.commit_offsets(group, topic, {0: 2}) == {0: 0}
    options: dict[str, Any] = {"epoch": transaction.epoch - 1, "version": version}
    refused = transaction.commit_offsets(group, topic, {1: 3}, **options)
    assert refused == {1: INVALID_PRODUCER_EPOCH}


def test_deleting_offsets_deletes_pending_ones(
    group: GroupClient, topic: str, transaction: TransactionClient
) -> None:
    transaction.commit_offsets(group, topic, {0: 1, 1: 1})
    deleted = group.delete_offsets(topic, [0]).topics[0].partitions
    assert [part.error_code for part in deleted] == [0]
    assert partitions(group.fetch_response({topic: [0, 1]})) == {
        0: (0, -1, ""),
        1: (UNSTABLE_OFFSET_COMMIT, -1, ""),
    }


def test_what_was_deleted_is_not_brought_back_by_the_end(
    group: GroupClient, topic: str, transaction: TransactionClient
) -> None:
    group.commit(topic, {2: 3})
    transaction.commit_offsets(group, topic, {0: 1, 1: 1, 2: 1})
    group.delete_offsets(topic, [0, 2])
    transaction.end(is_commit=True)
    assert stable(group, {topic: [0, 1, 2]}) == {0: -1, 1: 1, 2: -1}


def test_a_group_with_pending_offsets_may_be_deleted(
    group: GroupClient, topic: str, transaction: TransactionClient
) -> None:
    transaction.commit_offsets(group, topic, {0: 1})
    assert group.delete() == 0
    assert partitions(group.fetch_response({topic: [0]})) == {0: (0, -1, "")}
    assert group.listed() is None


@pytest.mark.parametrize(
    ("version", "code"), [(1, COORDINATOR_NOT_AVAILABLE), (2, COORDINATOR_LOAD_IN_PROGRESS)]
)
def test_old_clients_do_not_hear_that_a_group_is_being_loaded(
    version: int, code: int, only_ours: None
) -> None:
    """They would crash. Without a broker: nobody can say when it loads."""

    def is_loading(*_: object) -> None:
        raise CoordinatorLoadInProgressError()

    context: Any = SimpleNamespace(
        metadata=SimpleNamespace(topic=lambda name: new_topic(name, 1, 0)),
        offsets_topic=SimpleNamespace(check_coordinates=is_loading),
    )
    topic_class = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    topic = topic_class(
        name="t",
        partitions=[
            topic_class.TxnOffsetCommitRequestPartition(
                partition_index=0, committed_offset=1, committed_metadata=""
            )
        ],
    )
    wanted = TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=1, producer_epoch=0, topics=[topic]
    )
    request = request_of(28, version, wanted.encode(version=version))
    response = asyncio.run(txn_offset_commit.handle(request, context))
    assert response.topics[0].partitions[0].error_code == code


# Whether the group is part of the transaction (KIP-890).


@pytest.mark.parametrize(
    ("version", "code"),
    [(0, INVALID_TXN_STATE), (3, INVALID_TXN_STATE), (4, TRANSACTION_ABORTABLE)],
)
def test_a_group_must_have_been_added(
    client: RawClient, group: GroupClient, topic: str, version: int, code: int
) -> None:
    producer = TransactionClient(client, f"verified-{group.group_id}")
    producer.init()
    free: dict[str, Any] = {"member_id": "", "generation": -1, "version": version}
    assert producer.commit_offsets(group, topic, {0: 5}, **free) == {0: code}
    producer.begin(group.group_id)
    assert producer.commit_offsets(group, topic, {0: 5}, **free) == {0: 0}
    assert producer.commit_offsets(group, topic, {0: 5}, **free, epoch=7) == {
        0: INVALID_PRODUCER_EPOCH
    }
    producer.end(is_commit=True)
    producer.state()
    assert producer.commit_offsets(group, topic, {0: 9}, **free) == {0: code}


def test_a_commit_of_version_5_adds_the_group(
    client: RawClient, group: GroupClient, topic: str
) -> None:
    producer = TransactionClient(client, f"adding-{group.group_id}")
    producer.init()
    free: dict[str, Any] = {"member_id": "", "generation": -1, "version": 5}
    for turn in range(2):
        epoch = producer.epoch
        commit = partial(producer.commit_offsets, group, topic, {0: 5 + turn}, **free)
        answer = wait_for(commit, lambda codes: CONCURRENT_TRANSACTIONS not in codes.values())
        assert set(answer.values()) == {0}
        assert producer.end(is_commit=True, version=5).error_code == 0
        producer.state()
        assert stable(group, {topic: [0]}) == {0: 5 + turn}
        assert producer.commit_offsets(group, topic, {0: 9}, **free, epoch=epoch) == {
            0: INVALID_PRODUCER_EPOCH
        }
    assert stable(group, {topic: [0]}) == {0: 6}
