"""A transaction's requests, one by one: what a transactional producer does inside, done by hand."""

import os
import time
from collections.abc import Mapping

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from broker.api.dispatcher import APIS
from tests.broker.api.group_client import GroupClient
from tests.broker.child import RawClient

CONCURRENT_TRANSACTIONS = 51
_NOT_YET = {14, 15, 16, CONCURRENT_TRANSACTIONS}
_PATIENCE_S = 20
_TOPIC = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
IS_COORDINATED = "KAFKALOG_TEST_BOOTSTRAP" in os.environ or any(
    api.key == EndTxnRequest.API_KEY for api in APIS
)
"""Whether the broker has a coordinator of transactions; if not, any producer's are open."""


class TransactionClient:
    """One connection that speaks for a transactional producer."""

    def __init__(self, client: RawClient, transactional_id: str) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1

    def init(self) -> None:
        """A producer id, or the next epoch of it; what is open is aborted."""
        if not IS_COORDINATED:
            self._init_alone()
            return

        def find() -> int:
            request = FindCoordinatorRequest(key_type=1, key=self.transactional_id)
            code: int = self.client.call(request, FindCoordinatorResponse, 1).error_code
            return code

        def init() -> int:
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            answer = self.client.call(request, InitProducerIdResponse, 4)
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            code: int = answer.error_code
            return code

        _until_done(find)
        _until_done(init)

    def _init_alone(self) -> None:
        self.epoch += 1
        if self.producer_id < 0:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            answer = self.client.call(request, InitProducerIdResponse, 4)
            self.producer_id = answer.producer_id

    def begin(self, *group_ids: str) -> None:
        """Adds the groups to the transaction, which begins with that."""
        for group_id in group_ids if IS_COORDINATED else ():
            request = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group_id,
            )

            def add(request: AddOffsetsToTxnRequest = request) -> int:
                code: int = self.client.call(request, AddOffsetsToTxnResponse, 3).error_code
                return code

            _until_done(add)

    def commit_offsets(
        self,
        group: GroupClient,
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
            generation_id=group.generation if generation is None else generation,
            member_id=group.member_id if member_id is None else member_id,
            group_instance_id=instance_id,
            topics=[
                _TOPIC(
                    name=topic,
                    partitions=[
                        _TOPIC.TxnOffsetCommitRequestPartition(
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

    def end(self, *, is_commit: bool) -> None:
        """The answer may come before the markers are written."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )

        def end() -> int:
            code: int = self.client.call(request, EndTxnResponse, 3).error_code
            return code

        _until_done(end)


def _until_done(ask) -> None:  # type: ignore[no-untyped-def]
    """A coordinator that is still busy is asked again."""
    deadline = time.monotonic() + _PATIENCE_S
    while (code := ask()) in _NOT_YET:
        assert time.monotonic() < deadline, code
        time.sleep(0.02)
    assert code == 0, code
