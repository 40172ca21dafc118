"""What coordinators answer is in all replicas in sync: each API, and where it never gets there."""

import asyncio
import uuid
from collections import Counter

import pytest
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
from broker.api.consumer_group_messages import ConsumerGroupHeartbeatRequest
from broker.api.response import count_errors
from broker.coordinator.marker_messages import EndOfTransaction
from broker.coordinator.state_records import ProducerIdAndEpoch
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)
from pyspark_kafkalog.record.control import TransactionMarker
from tests.support.records import batch_of
from tests.support.replicated_broker import (
    OFFSETS,
    TOPIC,
    TRANSACTIONS,
    replicated_broker,
    settle,
)

GROUP, ID, MEMBER = "readers", "mine", str(uuid.UUID(int=7))
COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, NOT_ENOUGH_REPLICAS = 15, 16, 19
CONCURRENT_TRANSACTIONS = 51
PLACE = TopicPartition(TOPIC, 0)
IMPATIENT = {"request.timeout.ms": "30", "offsets.commit.timeout.ms": "30"}


def run(scenario, properties=None):
    async def main():
        with replicated_broker(properties) as broker:
            return await scenario(broker)

    return asyncio.run(main())


# What is asked.


def commit(offset=7):
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


def fetch():
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
    return offset_fetch.API, OffsetFetchRequest(group_id=GROUP, topics=[topic]), 5


def fetch_of_groups():
    group = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=GROUP, member_id=None, member_epoch=-1, topics=None
    )
    return offset_fetch.API, OffsetFetchRequest(groups=[group], require_stable=True), 9


def delete_offset():
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    part = topic.OffsetDeleteRequestPartition(partition_index=0)
    topics = [topic(name=TOPIC, partitions=[part])]
    return offset_delete.API, OffsetDeleteRequest(group_id=GROUP, topics=topics), 0


def delete_group():
    return delete_groups.API, DeleteGroupsRequest(groups_names=[GROUP]), 2


def join(member_id="", version=3):
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


def sync(member_id):
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=b"a")
    return (
        sync_group.API,
        SyncGroupRequest(
            group_id=GROUP, generation_id=1, member_id=member_id, assignments=[assignment]
        ),
        3,
    )


def heartbeat(epoch=0, instance_id=None):
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


def leave(instance_id):
    member = LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=instance_id)
    return leave_group.API, LeaveGroupRequest(group_id=GROUP, members=[member]), 4


def init():
    wanted = InitProducerIdRequest(
        transactional_id=ID, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    return init_producer_id.API, wanted, 4


def add(producer, partition=0):
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


def verify(producer):
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=ID,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=True,
        topics=[topic],
    )
    return add_partitions_to_txn.API, AddPartitionsToTxnRequest(transactions=[transaction]), 4


def add_offsets(producer):
    return (
        add_offsets_to_txn.API,
        AddOffsetsToTxnRequest(transactional_id=ID, **producer._asdict_(), group_id=GROUP),
        3,
    )


def commit_offsets(producer, version):
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    part = topic.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=9, committed_leader_epoch=-1, committed_metadata=""
    )
    return (
        txn_offset_commit.API,
        TxnOffsetCommitRequest(
            transactional_id=ID,
            group_id=GROUP,
            **producer._asdict_(),
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic(name=TOPIC, partitions=[part])],
        ),
        version,
    )


def end(producer):
    return end_txn.API, EndTxnRequest(transactional_id=ID, **producer._asdict_(), committed=True), 3


def describe():
    wanted = DescribeTransactionsRequest(transactional_ids=[ID])
    return describe_transactions.API, wanted, 0


def record(producer, version):
    batch = batch_of(
        [(b"k", b"v")], producer=(producer.producer_id, producer.epoch, 0), transactional=True
    )
    wanted = ProduceRequest(version, ID, 1, 1000, [ProducePartition(*PLACE, batch)])
    return produce.API, b"".join(bytes(each) for each in encode_produce_request(wanted)), version


class Producer(ProducerIdAndEpoch):
    def _asdict_(self):
        return {"producer_id": self.producer_id, "producer_epoch": self.epoch}


async def producer_of(broker):
    answer = await broker.replicating(broker.ask(*init()))
    assert answer.error_code == 0
    return Producer(answer.producer_id, answer.producer_epoch)


def codes(answer):
    """Every error that the answer tells."""
    counts = Counter()
    count_errors(answer, counts)
    return list(counts)


async def check_waits(broker, asked, place):
    """It is answered, without an error, when the other replica has what is in the partition."""
    task = await broker.begin(*asked)
    assert not task.done()
    broker.replicate(place)
    await settle()
    assert task.done()
    answer = task.result()
    assert codes(answer) == []
    return answer


def test_offsets():
    async def scenario(broker):
        for asked in (commit(), delete_offset(), commit(), delete_group()):
            await check_waits(broker, asked, OFFSETS)

    run(scenario)


@pytest.mark.parametrize("asked", [fetch, fetch_of_groups])
def test_nobody_reads_an_offset_that_another_coordinator_would_not_know(asked):
    async def scenario(broker):
        committing = await broker.begin(*commit())
        answer = await check_waits(broker, asked(), OFFSETS)
        assert committing.done()
        (told,) = answer.groups or [answer]
        (topic,) = told.topics
        assert [part.committed_offset for part in topic.partitions] == [7]

    run(scenario)


def test_a_classic_group():
    async def scenario(broker):
        async def join_and_sync():
            joined = await broker.ask(*join())
            return await broker.ask(*sync(joined.member_id))

        task = asyncio.ensure_future(join_and_sync())
        ends = []
        for _ in range(2):  # the group that begins, and what its members get
            while not broker.waiting:
                await asyncio.sleep(0.001)
            ends.append(broker.replicas.partition(OFFSETS).log.log_end_offset)
            assert not task.done()
            broker.replicate(OFFSETS)
            await settle()
        assert (await task).assignment == b"a"
        assert ends == [1, 2]

    run(scenario)


def test_a_group_of_the_consumer_protocol():
    async def scenario(broker):
        await check_waits(broker, heartbeat(instance_id="one"), OFFSETS)
        await check_waits(broker, leave("one"), OFFSETS)

    run(scenario)


def test_a_transaction():
    async def scenario(broker):
        answer = await check_waits(broker, init(), TRANSACTIONS)
        producer = Producer(answer.producer_id, answer.producer_epoch)
        await check_waits(broker, add(producer), TRANSACTIONS)
        await check_waits(broker, add_offsets(producer), TRANSACTIONS)
        await check_waits(broker, commit_offsets(producer, 3), OFFSETS)
        ending = await broker.begin(*end(producer))
        partition = broker.replicas.partition(PLACE)
        assert (ending.done(), partition.log.log_end_offset) == (False, 0)
        answer = await check_waits(broker, describe(), TRANSACTIONS)
        assert answer.transaction_states[0].transaction_state == "PrepareCommit"
        assert codes(await ending) == []
        assert partition.log.log_end_offset == 1

    run(scenario)


def test_a_repeated_request_waits_for_the_first_ones_record():
    async def scenario(broker):
        producer = await producer_of(broker)
        first = await broker.begin(*add(producer))
        await check_waits(broker, add(producer), TRANSACTIONS)
        assert first.done()

    run(scenario)


def test_partitions_are_verified_by_what_is_committed():
    async def scenario(broker):
        producer = await producer_of(broker)
        await broker.begin(*add(producer))
        await check_waits(broker, verify(producer), TRANSACTIONS)

    run(scenario)


@pytest.mark.parametrize("version", [9, 12])
def test_a_record_is_written_once_its_transaction_is_committed(version):
    async def scenario(broker):
        producer = await producer_of(broker)
        if version < 12:
            await broker.begin(*add(producer))
        log = broker.replicas.partition(PLACE).log
        task = await broker.begin(*record(producer, version))
        assert (task.done(), log.log_end_offset) == (False, 0)
        broker.replicate(TRANSACTIONS)
        await settle()
        assert [each.error_code for each in task.result().partitions] == [0]
        assert log.log_end_offset == 1
        # What is open in the log is asked of nobody.
        producer_ids = log.producers.entries.keys()
        assert list(producer_ids) == [producer.producer_id]
        assert not log.producers._watches

    run(scenario)


def test_a_record_whose_transaction_ends_while_it_is_verified_is_refused():
    """It would open a transaction that nobody ends: the epoch stays the same."""

    async def scenario(broker):
        producer = await producer_of(broker)
        await broker.begin(*add(producer))
        task = await broker.begin(*record(producer, 9))
        end_marker(broker, PLACE, producer)
        broker.replicate(TRANSACTIONS)
        await settle()
        assert [each.error_code for each in task.result().partitions] == [NOT_ENOUGH_REPLICAS]
        assert broker.replicas.partition(PLACE).log.log_end_offset == 1  # the marker

    run(scenario)


def test_offsets_whose_transaction_ends_while_it_is_verified_are_refused():
    async def scenario(broker):
        producer = await producer_of(broker)
        await broker.begin(*add_offsets(producer))
        task = await broker.begin(*commit_offsets(producer, 3))
        end_marker(broker, OFFSETS, producer)
        broker.replicate(TRANSACTIONS)
        await settle()
        assert codes(task.result()) == [COORDINATOR_NOT_AVAILABLE]
        assert broker.replicas.partition(OFFSETS).log.log_end_offset == 1

    run(scenario)


def end_marker(broker, place, producer):
    broker.markers.append(place, EndOfTransaction(producer, TransactionMarker(True, 0), 0))


def test_who_waits_too_long_is_to_ask_again_and_finds_what_was_done():
    async def scenario(broker):
        producer = await producer_of(broker)
        assert codes(await broker.ask(*commit())) == [COORDINATOR_NOT_AVAILABLE]
        assert codes(await broker.ask(*fetch())) == [COORDINATOR_NOT_AVAILABLE]
        assert codes(await broker.ask(*add(producer))) == [COORDINATOR_NOT_AVAILABLE]
        assert codes(await broker.ask(*verify(producer))) == [COORDINATOR_NOT_AVAILABLE]
        assert codes(await broker.ask(*end(producer))) == [COORDINATOR_NOT_AVAILABLE]
        (produced,) = (await broker.ask(*record(producer, 12))).partitions
        assert produced.error_code in (NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS)
        broker.replicate(OFFSETS)
        assert codes(await broker.ask(*fetch())) == []
        while codes(await broker.replicating(broker.ask(*end(producer)))):
            await asyncio.sleep(0.01)  # the marker is on its way
        assert broker.replicas.partition(PLACE).log.log_end_offset == 1

    run(scenario, IMPATIENT)


def test_a_group_that_cannot_write_is_told_so():
    async def scenario(broker):
        joined = await broker.ask(*join())
        assert joined.error_code == COORDINATOR_NOT_AVAILABLE
        broker.replicate(OFFSETS)
        joined = await broker.ask(*join(joined.member_id))
        assert joined.error_code == 0
        synced = await broker.ask(*sync(joined.member_id))
        assert synced.error_code == COORDINATOR_NOT_AVAILABLE
        assert codes(await broker.ask(*heartbeat())) != []
        broker.replicate(OFFSETS)
        assert (await broker.ask(*sync(joined.member_id))).assignment == b"a"

    run(scenario, IMPATIENT)


def test_who_waits_when_the_partition_goes_looks_for_another_coordinator():
    async def scenario(broker):
        task = await broker.begin(*commit())
        broker.lose(OFFSETS.topic)
        await settle()
        assert codes(task.result()) == [NOT_COORDINATOR]

    run(scenario)
