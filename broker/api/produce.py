"""Produce (key 0), versions 0-13: appends one record batch to each partition named.

The batch's bytes are stamped where they were received and appended as they are, unless they have to
be converted: message sets (magic 0 and 1), which versions 0-2 may carry, and batches in another
codec than the topic's `compression.type`. Records for a compacted topic are looked at there too:
each needs a key. All of such a request's conversions are done, in the
conversion thread, before its first append; its connection waits, so order is kept.

acks=0 gets no answer: where such a request fails the connection is closed, so that its producer
notices, as in Apache Kafka. Where flush.messages records are not on disk yet, the answer comes when
they are, as the policy says what power loss may take. Left out: transactions, refused with
INVALID_TXN_STATE (version 12, which may begin one, is 11 without them); the request's timeout (one
replica never waits); hints about new leaders.
"""

import asyncio
import functools
from collections.abc import Coroutine, Mapping
from typing import Any, TypeAlias
from uuid import UUID

from kafka.errors import (
    BrokerResponseError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    InvalidTxnStateError,
    UnknownTopicIdError,
    UnsupportedCompressionTypeError,
)
from kafka.structs import TopicPartition

from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Body, Outcome, Request
from broker.cluster.metadata import INTERNAL_TOPICS
from broker.log.conversion import convert_for_log, needs_conversion
from broker.log.log import Log
from broker.network.connection import CloseConnection
from broker.replica.partition import ACKS_ALL
from pyspark_kafkalog.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    decode_produce_request,
    encode_produce_response,
)
from pyspark_kafkalog.record.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    HEADER_BYTES,
    MAGIC,
    MAGIC_POSITION,
    batch_size,
)
from pyspark_kafkalog.record.compression import Codec

_NO_ANSWER = 0
# The first version that carries record batches alone, and the first that may carry zstd (KIP-110).
_RECORD_BATCH_VERSION = 3
_ZSTD_VERSION = 7

_Refusals: TypeAlias = Mapping[int, BrokerResponseError]
"""Why partitions are refused before the append, by their place in the request."""
_Outcome: TypeAlias = "Body | Coroutine[Any, Any, Body]"


def handle(request: Request, context: ApiContext) -> Outcome:
    wanted = decode_produce_request(request.body, request.version)
    refusals = _refusals(wanted, context)
    to_convert = [
        index
        for index, part in enumerate(wanted.partitions)
        if index not in refusals and _needs_conversion(part, context)
    ]
    if to_convert:
        return _convert_and_append(wanted, refusals, to_convert, context)
    return _append_all(wanted, refusals, context)


async def _convert_and_append(
    wanted: ProduceRequest, refusals: _Refusals, to_convert: list[int], context: ApiContext
) -> Body:
    failures = dict(refusals)
    for index in to_convert:
        part = wanted.partitions[index]
        try:
            log = context.replicas.partition(TopicPartition(part.topic, part.partition)).log
            convert = functools.partial(
                convert_for_log,
                _view(part),
                log.config,
                # Whoever could send so much uncompressed may send it compressed.
                max_plain_bytes=context.config.socket_request_max_bytes,
            )
            part.records = await context.convert(convert)
        except BrokerResponseError as error:
            failures[index] = error
    outcome = _append_all(wanted, failures, context)
    return await outcome if isinstance(outcome, Coroutine) else outcome


def _append_all(wanted: ProduceRequest, refusals: _Refusals, context: ApiContext) -> _Outcome:
    results = []
    for index, part in enumerate(wanted.partitions):
        try:
            if index in refusals:
                raise refusals[index]
            results.append(_append(part, context, wanted.acks))
        except BrokerResponseError as error:
            context.replicas.stats.failed_produce += 1
            results.append(_failed(part, error))
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
        return _answer_when_synced(results, unsynced, wanted.version)
    return _answer(results, wanted.version)


async def _answer_when_synced(
    results: list[ProducedPartition], unsynced: list[tuple[int, Log]], version: int
) -> Body:
    """What is not on disk is not acknowledged. `unsynced`: the number of a result, and its log."""
    loop = asyncio.get_running_loop()
    for number, log in unsynced:
        try:
            await loop.run_in_executor(None, log.flush)
        except BrokerResponseError as error:
            results[number] = _failed(results[number], error)
    return _answer(results, version)


def _answer(results: list[ProducedPartition], version: int) -> Body:
    return [encode_produce_response(results, version)]  # type: ignore[list-item]


def _failed(
    part: ProducePartition | ProducedPartition, error: BrokerResponseError
) -> ProducedPartition:
    code, message = wire_error(error)
    return ProducedPartition(
        part.topic, part.partition, code, -1, error_message=message, topic_id=part.topic_id
    )


def _needs_conversion(part: ProducePartition, context: ApiContext) -> bool:
    try:
        log = context.replicas.partition(TopicPartition(part.topic, part.partition)).log
    except BrokerResponseError:
        return False  # said when it is to be appended
    return needs_conversion(_view(part), log.config)


def _view(part: ProducePartition) -> memoryview:
    assert part.records is not None  # else `_check_records` has refused it
    return memoryview(part.records)


def _refusals(wanted: ProduceRequest, context: ApiContext) -> _Refusals:
    """What can be told without a look at the log. Gives topics that have ids their names."""
    refusal = _refusal(wanted.acks, wanted.transactional_id)
    if refusal is not None:
        return dict.fromkeys(range(len(wanted.partitions)), refusal)
    refusals = {}
    for index, part in enumerate(wanted.partitions):
        try:
            if part.topic in INTERNAL_TOPICS:
                raise InvalidTopicError(f"{part.topic} is written by brokers alone")
            _check_records(part, wanted.version)
            if part.topic_id is not None:
                part.topic = _name_of(part.topic_id, context)
        except BrokerResponseError as error:
            refusals[index] = error
    return refusals


def _name_of(topic_id: UUID, context: ApiContext) -> str:
    topic = context.metadata.topic_by_id(topic_id)
    if topic is None:
        raise UnknownTopicIdError("This server does not host this topic ID.")
    return topic.name


def _refusal(acks: int, transactional_id: str | None) -> BrokerResponseError | None:
    if acks not in (ACKS_ALL, _NO_ANSWER, 1):
        return InvalidRequiredAcksError()
    if transactional_id is not None:
        return InvalidTxnStateError("transactions are not supported by this broker")
    return None


def _append(part: ProducePartition, context: ApiContext, acks: int) -> ProducedPartition:
    records = _view(part)
    partition = context.replicas.partition(TopicPartition(part.topic, part.partition))
    if not records:
        return ProducedPartition(part.topic, part.partition, 0, -1, topic_id=part.topic_id)
    appended = context.replicas.append(partition, records, acks)
    return ProducedPartition(
        part.topic,
        part.partition,
        0,
        appended.first_offset,
        appended.log_append_time_ms,
        appended.log_start_offset,
        topic_id=part.topic_id,
    )


def _check_records(part: ProducePartition, version: int) -> None:
    """Clients send one batch a partition (replicas send many), or before version 3 a message set,
    even an empty one; the log checks what is in it."""
    if part.records is None:
        raise InvalidRecordError("a produce request must have records for each partition")
    records = memoryview(part.records)
    if version < _RECORD_BATCH_VERSION:
        if not records or (len(records) > MAGIC_POSITION and records[MAGIC_POSITION] < MAGIC):
            return
    elif len(records) > MAGIC_POSITION and records[MAGIC_POSITION] != MAGIC:
        raise InvalidRecordError(f"version {version} of Produce takes only batches of magic 2")
    if len(records) < HEADER_BYTES or batch_size(records) < len(records):
        raise InvalidRecordError("a produce request must have one record batch per partition")
    codec = records[ATTRIBUTES_POSITION + 1] & CODEC_MASK
    if codec == Codec.ZSTD and _RECORD_BATCH_VERSION <= version < _ZSTD_VERSION:
        raise UnsupportedCompressionTypeError(f"version {version} of Produce takes no zstd")


API = Api(key=0, min_version=0, max_version=13, handle=handle, max_request_bytes=2**31)
