"""Requests that coordinators answer, as (API, message, version), and what their answers say."""

import uuid
from collections import Counter
from typing import Any

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DescribeTransactionsRequest,
)
from kafka.protocol.consumer import (
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from kafka.structs import TopicPartition

from broker.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    consumer_group_heartbeat,
    delete_groups,
    describe_transactions,
    end_txn,
    init_producer_id,
    join_group,
    leave_group,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    sync_group,
    txn_offset_commit,
)
from broker.api.contexts import (
    GroupContext,
    RecordContext,
    TransactionalOffsetsContext,
    TransactionContext,
)
from broker.api.request import Api
from broker.api.response import count_errors
from broker.coordinator.marker_messages import EndOfTransaction
from broker.coordinator.state_records import ProducerIdAndEpoch
from pyspark_kafkalog.protocol.consumer_groups import ConsumerGroupHeartbeatRequest
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)
from pyspark_kafkalog.record.control import TransactionMarker
from tests.support.records import batch_of
from tests.support.replicated_broker import (
    TOPIC,
    ReplicatedBroker,
)

GROUP, ID, MEMBER = "readers", "mine", str(uuid.UUID(int=7))
PLACE = TopicPartition(TOPIC, 0)


def commit(offset: int = 7) -> tuple[Api[GroupContext], Any, int]:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    part = topic.OffsetCommitRequestPartition(
        partition_index=0,
        committed_offset=offset,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    return (
        offset_commit.API,
        OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[topic(name=TOPIC, partitions=[part])],
        ),
        8,
    )


def fetch() -> tuple[Api[GroupContext], Any, int]:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
    return offset_fetch.API, OffsetFetchRequest(group_id=GROUP, topics=[topic]), 5


def fetch_of_groups() -> tuple[Api[GroupContext], Any, int]:
    group = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=GROUP, member_id=None, member_epoch=-1, topics=None
    )
    return offset_fetch.API, OffsetFetchRequest(groups=[group], require_stable=True), 9


def delete_offset() -> tuple[Api[GroupContext], Any, int]:
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    part = topic.OffsetDeleteRequestPartition(partition_index=0)
    topics = [topic(name=TOPIC, partitions=[part])]
    return offset_delete.API, OffsetDeleteRequest(group_id=GROUP, topics=topics), 0


def delete_group() -> tuple[Api[GroupContext], Any, int]:
    return delete_groups.API, DeleteGroupsRequest(groups_names=[GROUP]), 2


def join(member_id: str = "", version: int = 3) -> tuple[Api[GroupContext], Any, int]:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    return (
        join_group.API,
        JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[protocol],
        ),
        version,
    )


def sync(member_id: str) -> tuple[Api[GroupContext], Any, int]:
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=b"a")
    return (
        sync_group.API,
        SyncGroupRequest(
            group_id=GROUP, generation_id=1, member_id=member_id, assignments=[assignment]
        ),
        3,
    )


def heartbeat(
    epoch: int = 0, instance_id: str | None = None
) -> tuple[Api[GroupContext], ConsumerGroupHeartbeatRequest, int]:
    return (
        consumer_group_heartbeat.API,
        ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=MEMBER,
            member_epoch=epoch,
            instance_id=instance_id,
            rack_id=None,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=[TOPIC],
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=[],
        ),
        1,
    )


def leave(instance_id: str) -> tuple[Api[GroupContext], Any, int]:
    member = LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=instance_id)
    return leave_group.API, LeaveGroupRequest(group_id=GROUP, members=[member]), 4


def init() -> tuple[Api[TransactionContext], Any, int]:
    wanted = InitProducerIdRequest(
        transactional_id=ID, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    return init_producer_id.API, wanted, 4


def add(producer: "Producer", partition: int = 0) -> tuple[Api[TransactionContext], Any, int]:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=[partition])
    return (
        add_partitions_to_txn.API,
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[topic],
        ),
        3,
    )


def verify(producer: "Producer") -> tuple[Api[TransactionContext], Any, int]:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=ID,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=True,
        topics=[topic],
    )
    return add_partitions_to_txn.API, AddPartitionsToTxnRequest(transactions=[transaction]), 4


def add_offsets(producer: "Producer") -> tuple[Api[TransactionContext], Any, int]:
    return (
        add_offsets_to_txn.API,
        AddOffsetsToTxnRequest(transactional_id=ID, **producer.named(), group_id=GROUP),
        3,
    )


def commit_offsets(
    producer: "Producer", version: int
) -> tuple[Api[TransactionalOffsetsContext], Any, int]:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    part = topic.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=9, committed_leader_epoch=-1, committed_metadata=""
    )
    return (
        txn_offset_commit.API,
        TxnOffsetCommitRequest(
            transactional_id=ID,
            group_id=GROUP,
            **producer.named(),
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic(name=TOPIC, partitions=[part])],
        ),
        version,
    )


def end(producer: "Producer") -> tuple[Api[TransactionContext], Any, int]:
    return end_txn.API, EndTxnRequest(transactional_id=ID, **producer.named(), committed=True), 3


def describe() -> tuple[Api[TransactionContext], Any, int]:
    wanted = DescribeTransactionsRequest(transactional_ids=[ID])
    return describe_transactions.API, wanted, 0


def record(producer: ProducerIdAndEpoch, version: int) -> tuple[Api[RecordContext], bytes, int]:
    batch = batch_of(
        [(b"k", b"v")], producer=(producer.producer_id, producer.epoch, 0), transactional=True
    )
    wanted = ProduceRequest(
        version, ID, 1, 1000, [ProducePartition(PLACE.topic, PLACE.partition, batch)]
    )
    return produce.API, b"".join(bytes(each) for each in encode_produce_request(wanted)), version


class Producer(ProducerIdAndEpoch):
    """As requests name it."""

    def named(self) -> dict[Any, Any]:
        return {"producer_id": self.producer_id, "producer_epoch": self.epoch}


async def producer_of(broker: ReplicatedBroker) -> Producer:
    answer = await broker.replicating(broker.ask(*init()))
    assert answer.error_code == 0
    return Producer(answer.producer_id, answer.producer_epoch)


def codes(answer: Any) -> list[Any]:
    """Every error that the answer tells."""
    counts: Counter[int] = Counter()
    count_errors(answer, counts)
    return list(counts)


def end_marker(
    broker: ReplicatedBroker, place: TopicPartition, producer: ProducerIdAndEpoch
) -> None:
    broker.markers.append(place, EndOfTransaction(producer, TransactionMarker(True, 0), 0))
