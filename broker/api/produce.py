"""Produce (key 0), versions 0-11: appends one record batch to each partition named.

The batch's bytes are stamped where they were received and appended as they are. acks=0 gets no
answer: where such a request fails the connection is closed, so that its producer notices, as in
Apache Kafka. Where flush.messages records are not on disk yet, the answer comes when they are, as
the policy says what power loss may take. Left out: message formats before magic 2, refused with
UNSUPPORTED_FOR_MESSAGE_FORMAT (versions 0-2 are spoken since librdkafka disables codecs where they
are not); transactions, refused with INVALID_TXN_STATE; the request's timeout (one replica never
waits); versions 12 (implicit AddPartitionsToTxn) and 13 (topic ids).
"""

import asyncio

from kafka.errors import (
    BrokerResponseError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTxnStateError,
    UnsupportedForMessageFormatError,
)
from kafka.structs import TopicPartition

from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Body, Outcome, Request
from broker.log.log import Log
from broker.network.connection import CloseConnection
from broker.replica.partition import ACKS_ALL
from pyspark_kafkalog.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    decode_produce_request,
    encode_produce_response,
)
from pyspark_kafkalog.record.batch import batch_size

_NO_ANSWER = 0
# Where a batch, and a message of the older formats, has its magic byte.
_MAGIC_POSITION = 16


def handle(request: Request, context: ApiContext) -> Outcome:
    wanted = decode_produce_request(request.body, request.version)
    refusal = _refusal(wanted.acks, wanted.transactional_id)
    results = []
    for part in wanted.partitions:
        try:
            if refusal is not None:
                raise refusal
            results.append(_append(part, context, wanted.acks))
        except BrokerResponseError as error:
            results.append(_failed(part.topic, part.partition, error))
    if wanted.acks == _NO_ANSWER:
        failed = [result for result in results if result.error_code]
        if failed:
            raise CloseConnection(f"produce with acks=0 failed, error code {failed[0].error_code}")
        return None
    unsynced: list[tuple[int, Log]] = []
    for number, result in enumerate(results):
        if not result.error_code:
            place = TopicPartition(result.topic, result.partition)
            log = context.replicas.log_that_awaits_flush(place)
            if log is not None:
                unsynced.append((number, log))
    if unsynced:
        return _answer_when_synced(results, unsynced, request.version)
    return _answer(results, request.version)


async def _answer_when_synced(
    results: list[ProducedPartition], unsynced: list[tuple[int, Log]], version: int
) -> Body:
    """What is not on disk is not acknowledged. `unsynced`: the number of a result, and its log."""
    loop = asyncio.get_running_loop()
    for number, log in unsynced:
        try:
            await loop.run_in_executor(None, log.flush)
        except BrokerResponseError as error:
            results[number] = _failed(results[number].topic, results[number].partition, error)
    return _answer(results, version)


def _answer(results: list[ProducedPartition], version: int) -> Body:
    return [encode_produce_response(results, version)]  # type: ignore[list-item]


def _failed(topic: str, partition: int, error: BrokerResponseError) -> ProducedPartition:
    code, message = wire_error(error)
    return ProducedPartition(topic, partition, code, -1, error_message=message)


def _refusal(acks: int, transactional_id: str | None) -> BrokerResponseError | None:
    if acks not in (ACKS_ALL, _NO_ANSWER, 1):
        return InvalidRequiredAcksError()
    if transactional_id is not None:
        return InvalidTxnStateError("transactions are not supported by this broker")
    return None


def _append(part: ProducePartition, context: ApiContext, acks: int) -> ProducedPartition:
    if part.records is None:
        raise InvalidRecordError("a produce request must have one record batch per partition")
    records = memoryview(part.records)
    _check_one_batch(records)
    appended = context.replicas.append(TopicPartition(part.topic, part.partition), records, acks)
    return ProducedPartition(
        part.topic,
        part.partition,
        0,
        appended.first_offset,
        appended.log_append_time_ms,
        appended.log_start_offset,
    )


def _check_one_batch(records: memoryview) -> None:
    """Clients send one batch a partition (replicas send many); the log checks what is in it."""
    if len(records) <= _MAGIC_POSITION:
        raise InvalidRecordError("a produce request must have one record batch per partition")
    if records[_MAGIC_POSITION] < 2:
        raise UnsupportedForMessageFormatError("record batches of magic 2 only")
    if batch_size(records) < len(records):
        raise InvalidRecordError("a produce request must have one record batch per partition")


API = Api(key=0, min_version=0, max_version=11, handle=handle, max_request_bytes=2**31)
