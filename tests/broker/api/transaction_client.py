"""A transactional producer's requests, one by one and in any version."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafka.record.memory_records import MemoryRecords

from pyspark_kafkalog.protocol.fetch import READ_COMMITTED, FetchPartition, FetchRequest
from pyspark_kafkalog.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tests.broker.api.consumer_group_client import ConsumerMember
from tests.broker.api.group_client import GroupClient
from tests.support.broker_child import RawClient
from tests.support.patience import wait_for
from tests.support.records import batch_of

CONCURRENT_TRANSACTIONS = 51
_RETRIED = (CONCURRENT_TRANSACTIONS, 14, 15, 16)
_ADD = AddPartitionsToTxnRequest
_COMMIT_TOPIC = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
_MARKER = WriteTxnMarkersRequest.WritableTxnMarker

Places = Mapping[str, Sequence[int]]


def _generation_of(group: GroupClient | ConsumerMember) -> int:
    return group.generation if isinstance(group, GroupClient) else group.epoch


class TransactionClient:
    """One connection of a producer; `producer_id`, `epoch` and sequences as it knows them."""

    def __init__(self, client: RawClient, transactional_id: str) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def find_coordinator(self) -> None:
        """Until it is there; Apache Kafka makes the topic in the background."""

        def find() -> Any:
            request = FindCoordinatorRequest(key_type=1, key=self.transactional_id)
            return self.client.call(request, FindCoordinatorResponse, 2)

        found = until_settled(find)
        assert found.error_code == 0, found

    def ask_init(
        self,
        *,
        version: int = 4,
        timeout_ms: int = 60_000,
        expected: tuple[int, int] = (-1, -1),
        transactional_id: str | None = None,
    ) -> Any:
        request = InitProducerIdRequest(
            transactional_id=(
                self.transactional_id if transactional_id is None else transactional_id
            ),
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        return self.client.call(request, InitProducerIdResponse, version)

    def init(self, **options: Any) -> Any:
        """The answer, once the coordinator is there and no transaction is ending any more; goes on
        with what it says."""
        self.find_coordinator()
        answer = until_settled(lambda: self.ask_init(**options))
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer

    def add_partitions(
        self,
        places: Places,
        *,
        version: int = 3,
        producer: tuple[int, int] | None = None,
        verify_only: bool = False,
        transactional_id: str | None = None,
    ) -> dict[tuple[str, int], int]:
        """Error code by partition."""
        producer_id, epoch = producer or (self.producer_id, self.epoch)
        name = self.transactional_id if transactional_id is None else transactional_id
        topic_class = _ADD.AddPartitionsToTxnTopic
        topics = [topic_class(name=topic, partitions=parts) for topic, parts in places.items()]
        if version < 4:
            request = _ADD(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=topics,
            )
            answer = self.client.call(request, AddPartitionsToTxnResponse, version)
            results = answer.results_by_topic_v3_and_below
        else:
            transaction = _ADD.AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                verify_only=verify_only,
                topics=topics,
            )
            request = _ADD(transactions=[transaction])
            answer = self.client.call(request, AddPartitionsToTxnResponse, version)
            assert answer.error_code == 0
            (result,) = answer.results_by_transaction
            assert result.transactional_id == name
            results = result.topic_results
        return {
            (topic.name, part.partition_index): part.partition_error_code
            for topic in results
            for part in topic.results_by_partition
        }

    def add(self, topic: str, *partitions: int, **options: Any) -> int:
        """The one error code that all partitions have, once no transaction is ending any more."""

        def add() -> int:
            (code,) = set(self.add_partitions({topic: partitions or (0,)}, **options).values())
            return code

        return wait_for(add, lambda code: code != CONCURRENT_TRANSACTIONS)

    def add_offsets(self, group_id: str, *, version: int = 3) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )
        code: int = until_settled(
            lambda: self.client.call(request, AddOffsetsToTxnResponse, version)
        ).error_code
        return code

    def begin(self, *group_ids: str) -> None:
        """Adds the groups to the transaction, which begins with that."""
        for group_id in group_ids:
            assert self.add_offsets(group_id) == 0

    def commit_offsets(
        self,
        group: GroupClient | ConsumerMember,
        topic: str,
        offsets: Mapping[int, int],
        *,
        metadata: str | None = "",
        leader_epoch: int = -1,
        member_id: str | None = None,
        generation: int | None = None,
        instance_id: str | None = None,
        epoch: int | None = None,
        version: int = 3,
    ) -> dict[int, int]:
        """Error code by partition."""
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            generation_id=_generation_of(group) if generation is None else generation,
            member_id=group.member_id if member_id is None else member_id,
            group_instance_id=instance_id,
            topics=[
                _COMMIT_TOPIC(
                    name=topic,
                    partitions=[
                        _COMMIT_TOPIC.TxnOffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=leader_epoch,
                            committed_metadata=metadata,
                        )
                        for partition, offset in offsets.items()
                    ],
                )
            ],
        )
        response = self.client.call(request, TxnOffsetCommitResponse, version)
        return {
            part.partition_index: part.error_code
            for each in response.topics
            for part in each.partitions
        }

    def produce(
        self,
        topic: str,
        value: bytes = b"value",
        *,
        partition: int = 0,
        version: int = 9,
        producer: tuple[int, int] | None = None,
        sequence: int | None = None,
        transactional_id: str | None = "",
        transactional: bool = True,
    ) -> ProducedPartition:
        """One record; its sequence counts when it is taken."""
        producer_id, epoch = producer or (self.producer_id, self.epoch)
        place = (topic, partition)
        own_sequence = self.sequences.get(place, 0)
        batch = batch_of(
            [(None, value)],
            timestamp_ms=int(time.time() * 1000),
            producer=(producer_id, epoch, own_sequence if sequence is None else sequence),
            transactional=transactional,
        )
        request = ProduceRequest(
            version,
            self.transactional_id if transactional_id == "" else transactional_id,
            -1,
            5000,
            [ProducePartition(topic, partition, batch)],
        )
        body = b"".join(bytes(part) for part in encode_produce_request(request))
        produced = self.send_produce(body, version)
        if not produced.error_code:
            self.sequences[place] = own_sequence + 1
        return produced

    def send_produce(self, body: bytes, version: int) -> ProducedPartition:
        self.client.send_body(0, version, body)
        response = decode_produce_response(self.client.receive_body(0, version), version)
        return response.partitions[0]

    def ask_end(
        self, is_commit: bool, *, version: int = 3, producer: tuple[int, int] | None = None
    ) -> Any:
        producer_id, epoch = producer or (self.producer_id, self.epoch)
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=is_commit,
        )
        return self.client.call(request, EndTxnResponse, version)

    def end(self, is_commit: bool, *, version: int = 3) -> Any:
        """The answer; from version 5 on goes on with what it says."""
        answer = until_settled(lambda: self.ask_end(is_commit, version=version))
        if version >= 5 and not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer

    def describe(self) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        (state,) = self.client.call(request, DescribeTransactionsResponse, 0).transaction_states
        return state

    def state(self) -> str:
        """Once it is known, and not on its way to another one."""
        found = wait_for(
            lambda: until_settled(self.describe),
            lambda found: not found.transaction_state.startswith("Prepare"),
        )
        return str(found.transaction_state)


def until_settled(ask: Callable[[], Any]) -> Any:
    """The first answer that is no reason to ask again."""
    return wait_for(ask, lambda answer: answer.error_code not in _RETRIED)


def list_transactions(client: RawClient, version: int = 1, **filters: Any) -> Any:
    request = ListTransactionsRequest(
        **{"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
    )
    return client.call(request, ListTransactionsResponse, version)


def describe_producers(client: RawClient, topic: str, partition: int = 0) -> list[Any]:
    wanted = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])
    request = DescribeProducersRequest(topics=[wanted])
    (found,) = client.call(request, DescribeProducersResponse, 0).topics
    return list(found.partitions[0].active_producers)


def write_marker(
    client: RawClient,
    places: Places,
    producer: tuple[int, int],
    is_commit: bool,
    *,
    coordinator_epoch: int = 0,
    version: int = 1,
    transaction_version: int = 0,
) -> dict[tuple[str, int], int]:
    """Error code by partition."""
    topic_class = _MARKER.WritableTxnMarkerTopic
    marker = _MARKER(
        producer_id=producer[0],
        producer_epoch=producer[1],
        transaction_result=is_commit,
        topics=[topic_class(name=name, partition_indexes=parts) for name, parts in places.items()],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    request = WriteTxnMarkersRequest(markers=[marker])
    (result,) = client.call(request, WriteTxnMarkersResponse, version).markers
    assert result.producer_id == producer[0]
    return {
        (topic.name, part.partition_index): part.error_code
        for topic in result.topics
        for part in topic.partitions
    }


def read(client: RawClient, topic: str, partition: int = 0, *, committed: bool = True) -> list[Any]:
    """The values that a consumer of this kind keeps."""
    level = READ_COMMITTED if committed else 0
    values: list[Any] = []
    offset = 0
    while True:
        asks = [FetchPartition(topic, partition, offset, 1 << 20)]
        request = FetchRequest(11, 0, 1, asks, isolation_level=level)
        (found,) = client.fetch(request).partitions
        assert found.error_code == 0, found
        next_offset, kept = _kept(found.records, found.aborted if committed else ())
        if next_offset <= offset:
            return values
        values += [value for at, value in kept if at >= offset]
        offset = next_offset


def _kept(records: object, aborted: Iterable[tuple[int, int]]) -> tuple[int, list[Any]]:
    """(the next offset, (offset, value) of what is not aborted), as a consumer works it out."""
    memory = MemoryRecords(bytes(memoryview(records)) if records is not None else b"")  # type: ignore[arg-type]
    waiting = sorted((first_offset, producer_id) for producer_id, first_offset in aborted or ())
    skipping: set[int] = set()
    kept: list[Any] = []
    next_offset = -1
    while (batch := memory.next_batch()) is not None:
        next_offset = batch.base_offset + batch.last_offset_delta + 1
        while waiting and waiting[0][0] <= batch.base_offset:
            skipping.add(waiting.pop(0)[1])
        if batch.is_control_batch:
            skipping.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in skipping):
            kept += [(record.offset, record.value) for record in batch]
    return next_offset, kept


def stable_offset(client: RawClient, topic: str, partition: int = 0) -> int:
    asks = [FetchPartition(topic, partition, 0, 1)]
    request = FetchRequest(11, 0, 1, asks, isolation_level=READ_COMMITTED)
    (found,) = client.fetch(request).partitions
    return found.last_stable_offset
