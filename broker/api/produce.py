"""Produce (key 0), versions 0-13: appends one record batch to each partition named.

The batch's bytes are stamped where they were received and appended as they are, large ones in a
thread, unless they have to be converted: message sets (magic 0 and 1), which versions 0-2 may
carry, and batches in another codec than the topic's `compression.type`. Records for a compacted
topic, where each needs a key, or with timestamps that may be out of bounds, are looked at there
too, so that the answer says which are at fault (KIP-467). All of such a request's conversions are
done, in the conversion thread, before its first append. A connection waits for its request, in
whatever thread that is, so order is kept.

acks=0 gets no answer: where such a request fails the connection is closed, so that its producer
notices, as in Apache Kafka. With acks=all the answer comes when all replicas in sync have the
records, at the latest after the request's timeout; an only replica has them at once. Meanwhile the
connection's next small requests are appended, so that they are replicated together. Where
flush.messages records are not on disk yet, it comes when they are, as the policy says what power
loss may take. A transactional batch is appended only if its partition is part of the producer's
transaction: added by it before version 12, by this very request since (KIP-890). Who sends to a
broker that does not lead is told who does (KIP-951).
"""

import asyncio
import functools
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

from kafka.errors import (
    BrokerResponseError,
    InconsistentTopicIdError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    NotLeaderForPartitionError,
    UnknownTopicIdError,
    UnsupportedCompressionTypeError,
)
from kafka.structs import TopicPartition

from broker.api.contexts import RecordContext
from broker.api.errors import wire_error
from broker.api.leader_hints import current_leader, endpoints
from broker.api.request import Api, Request
from broker.api.response import CarriedOut, Outcome, Response
from broker.api.transactional_produce import Joining, refuse, refuse_ended, to_join, watched
from broker.cluster.metadata import INTERNAL_TOPICS
from broker.log.clock import system_clock_ms
from broker.log.conversion import convert_for_log, needs_conversion
from broker.log.log import LogAppendInfo
from broker.log.record_errors import RefusedRecordsError
from broker.network.connection import CloseConnection
from broker.replica.delayed import Appended, DelayedProduce
from broker.replica.later import when_done
from broker.replica.manager import LARGE_BYTES
from broker.replica.partition import ACKS_ALL, Partition
from pyspark_kafkalog.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    decode_produce_request,
)
from pyspark_kafkalog.record.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    HEADER_BYTES,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
    batch_size,
)
from pyspark_kafkalog.record.compression import Codec

_NO_ANSWER: Final = 0
# The first version that carries record batches alone, and the first that may carry zstd (KIP-110).
_RECORD_BATCH_VERSION: Final = 3
_ZSTD_VERSION: Final = 7
# The first that says who leads, where the client is wrong about it (KIP-951).
_CURRENT_LEADER_VERSION: Final = 10
_ACKS: Final = (ACKS_ALL, _NO_ANSWER, 1)

_Place: TypeAlias = "Partition | BrokerResponseError"
"""Where a part of the request goes, or why it goes nowhere."""
_Outcome: TypeAlias = "Response | CarriedOut | Coroutine[Any, Any, Response]"
_Appending: TypeAlias = "Mapping[int, tuple[int, asyncio.Future[LogAppendInfo]]]"
"""By the numbers of parts: what threads append, and the leadership in which that began."""
_Kept: TypeAlias = "list[tuple[int, Appended]]"
"""Results by number that are not acknowledged before their partition has the records on disk, as
the flush policy wants it, and in all replicas in sync up to an offset; 0 where they are there."""


def handle(request: Request, context: RecordContext) -> Outcome:
    wanted = decode_produce_request(request.body, request.header.api_version)
    now_ms = system_clock_ms()
    places: list[_Place] = []
    to_convert: list[int] = []
    transactional: list[int] = []
    for index, part in enumerate(wanted.partitions):
        try:
            partition = _partition(part, wanted, context)
        except BrokerResponseError as error:
            places.append(error)
            continue
        places.append(partition)
        records = _view(part)
        if needs_conversion(records, partition.log.rules, now_ms):
            to_convert.append(index)
        if len(records) >= HEADER_BYTES and _is_transactional(records):
            transactional.append(index)
    if to_convert:
        return _convert_and_append(wanted, places, to_convert, transactional, now_ms, context)
    if transactional:
        return _join_and_append(wanted, places, transactional, context)
    if request.body.nbytes < LARGE_BYTES:
        return _append_all(wanted, places, context)
    return _append_large_aside(wanted, places, str(request.peer), context)


async def _convert_and_append(
    wanted: ProduceRequest,
    places: list[_Place],
    to_convert: list[int],
    transactional: list[int],
    now_ms: int,
    context: RecordContext,
) -> Response:
    for index in to_convert:
        part, place = wanted.partitions[index], places[index]
        assert isinstance(place, Partition)
        try:
            convert = functools.partial(
                convert_for_log,
                _view(part),
                place.log.config,
                # Whoever could send so much uncompressed may send it compressed.
                context.config.socket_request_max_bytes,
                f"{part.topic}-{part.partition}",
                now_ms,
            )
            part.records = await context.convert(convert)
        except RefusedRecordsError as error:
            error.log_start_offset = place.log.log_start_offset
            places[index] = error
        except BrokerResponseError as error:
            places[index] = error
    _look_again(wanted, places, context)
    outcome = _join_and_append(wanted, places, transactional, context)
    return await _response(outcome)


async def _response(outcome: _Outcome) -> Response:
    return await outcome if isinstance(outcome, (Coroutine, CarriedOut)) else outcome


def _look_again(wanted: ProduceRequest, places: list[_Place], context: RecordContext) -> None:
    """After a wait: topics may have gone meanwhile, and others have their names."""
    for index, place in enumerate(places):
        if isinstance(place, Partition):
            try:
                places[index] = _served(wanted.partitions[index], context)
            except BrokerResponseError as error:
                places[index] = error


def _join_and_append(
    wanted: ProduceRequest, places: list[_Place], transactional: list[int], context: RecordContext
) -> _Outcome:
    """The parts numbered `transactional` become part of their producer's transaction first. From
    there to the append nobody must come between who could end it, unless in a greater epoch."""
    joins = [index for index in transactional if isinstance(places[index], Partition)]
    if not joins:
        return _append_all(wanted, places, context)
    try:
        joining = to_join(wanted, places, joins)
    except BrokerResponseError as error:
        return _append_all(wanted, [error] * len(places), context)
    if joining.ask.topic_partitions:
        errors = context.transaction_partitions.join_at_once(joining.ask)
        if errors is None:
            return _append_when_joined(wanted, places, joining, context)
        refuse(places, joining, errors)
    return _append_all(wanted, places, context, transactional=True)


async def _append_when_joined(
    wanted: ProduceRequest, places: list[_Place], joining: Joining, context: RecordContext
) -> Response:
    """What is to be in a transaction is written after the transaction's record is committed. Whose
    transaction ends meanwhile, in an epoch that does not tell, tries again."""
    with watched(joining) as watches:
        errors = await context.transaction_partitions.join(joining.ask)
    refuse(places, joining, errors)
    refuse_ended(places, joining, watches)
    _look_again(wanted, places, context)
    outcome = _append_all(wanted, places, context, transactional=True)
    return await _response(outcome)


def _append_large_aside(
    wanted: ProduceRequest, places: list[_Place], peer: str, context: RecordContext
) -> _Outcome:
    """Large batches are appended in threads where that is a gain, the others at once.

    Not transactional ones, as nobody may come between the transaction's check and its batch; nor
    where a partition comes twice, whose batches have an order.
    """
    partitions = [place.topic_partition for place in places if isinstance(place, Partition)]
    if len(set(partitions)) < len(partitions):
        return _append_all(wanted, places, context)
    appending: dict[int, tuple[int, asyncio.Future[LogAppendInfo]]] = {}
    for index, place in enumerate(places):
        if isinstance(place, Partition):
            records = _view(wanted.partitions[index])
            aside = context.replicas.append_aside(place, records, wanted.acks, peer)
            if aside is not None:
                appending[index] = place.leadership, aside
    return _append_all(wanted, places, context, appending=appending)


def _append_all(
    wanted: ProduceRequest,
    places: list[_Place],
    context: RecordContext,
    *,
    transactional: bool = False,
    appending: "_Appending | None" = None,
) -> _Outcome:
    """Appends each part to its place, but for those whose index is in `appending`."""
    results: list[ProducedPartition] = []
    to_keep: _Kept = []
    for index, (part, place) in enumerate(zip(wanted.partitions, places, strict=True)):
        try:
            if isinstance(place, BrokerResponseError):
                raise place
            if appending and index in appending:
                result = _appended(part, None)
            else:
                appended = _append(part, place, wanted.acks, transactional, context)
                result = _appended(part, appended)
                if appended is not None:
                    _note(to_keep, index, place, place.leadership, appended, wanted.acks)
        except BrokerResponseError as error:
            result = _refused(part, error, context)
        results.append(result)
    if appending:
        return _answer_when_appended(wanted, places, results, to_keep, appending, context)
    if to_keep:
        waiting = _answer_when_kept(results, to_keep, wanted, context)
        return CarriedOut(waiting) if _ends_soon(to_keep) else waiting
    return _answer(results, wanted, context)


def _ends_soon(to_keep: _Kept) -> bool:
    """Whether records are acknowledged though one replica more is lost. Else they may be in the log
    for long without, and outlive their leader; of a producer's batches a broker that was started
    meanwhile knows the last one alone. So it has but one there, as in Apache Kafka."""
    return all(each.partition.spare_in_sync > 0 for _, each in to_keep)


def _note(
    to_keep: _Kept,
    number: int,
    partition: Partition,
    leadership: int,
    appended: LogAppendInfo,
    acks: int,
) -> None:
    """Takes down what is not to be acknowledged yet. What was appended in a leadership before this
    one may have been cut off since: it never is."""
    if acks == _NO_ANSWER:
        return
    is_committed = acks != ACKS_ALL or (
        partition.high_watermark > appended.last_offset and partition.leadership == leadership
    )
    if not is_committed or partition.log.awaits_flush:
        end_offset = 0 if is_committed else appended.last_offset + 1
        to_keep.append((number, Appended(partition, end_offset, leadership)))


async def _answer_when_appended(
    wanted: ProduceRequest,
    places: list[_Place],
    results: list[ProducedPartition],
    to_keep: _Kept,
    appending: _Appending,
    context: RecordContext,
) -> Response:
    """Where its connection closes nobody waits for the answer, and the appends are done no less."""
    for index, (leadership, each) in appending.items():
        part, place = wanted.partitions[index], places[index]
        assert isinstance(place, Partition)
        try:
            appended = await asyncio.shield(each)
            results[index] = _appended(part, appended)
            _note(to_keep, index, place, leadership, appended, wanted.acks)
        except BrokerResponseError as error:
            results[index] = _refused(part, error, context)
    if to_keep:
        return await _answer_when_kept(results, to_keep, wanted, context)
    return _answer(results, wanted, context)


async def _answer_when_kept(
    results: list[ProducedPartition], to_keep: _Kept, wanted: ProduceRequest, context: RecordContext
) -> Response:
    """What is not on disk, or not in all replicas in sync, is not acknowledged."""
    loop = asyncio.get_running_loop()
    for number, appended in to_keep:
        log = appended.partition.log
        if log.awaits_flush:
            try:
                await loop.run_in_executor(None, log.flush)
            except BrokerResponseError as error:
                results[number] = _failed(results[number], error)
    uncommitted = [each for each in to_keep if each[1].end_offset]
    if uncommitted:
        delayed = DelayedProduce([each[1] for each in uncommitted])
        timeout_ms = max(0, wanted.timeout_ms)
        errors = await when_done(context.replicas, delayed, timeout_ms, lambda: delayed.errors)
        for (number, _), failure in zip(uncommitted, errors, strict=True):
            if failure is not None and not results[number].error_code:
                results[number] = _failed(results[number], failure)
    return _answer(results, wanted, context)


def _answer(
    results: list[ProducedPartition], wanted: ProduceRequest, context: RecordContext
) -> Response:
    if wanted.acks != _NO_ANSWER:
        response = ProduceResponse(results)
        if wanted.version >= _CURRENT_LEADER_VERSION:
            _tell_leaders(response, context)
        return response
    failed = [result for result in results if result.error_code]
    if failed:
        raise CloseConnection(f"produce with acks=0 failed, error code {failed[0].error_code}")
    return None


def _tell_leaders(response: ProduceResponse, context: RecordContext) -> None:
    """Where records came to the wrong broker."""
    leaders = []
    for result in response.partitions:
        if result.error_code == NotLeaderForPartitionError.errno:
            leader = current_leader(result.topic, result.partition, context)
            result.current_leader = leader
            leaders.append(leader)
    if leaders:
        response.node_endpoints = endpoints(leaders, context)


def _refused(
    part: ProducePartition, error: BrokerResponseError, context: RecordContext
) -> ProducedPartition:
    """Nothing was appended. What will come again is not to be overtaken."""
    context.replicas.stats.failed_produce += 1
    if error.retriable and part.topic:
        place = TopicPartition(part.topic, part.partition)
        context.replicas.note_refused(place, _view(part))
    return _failed(part, error)


def _failed(
    part: ProducePartition | ProducedPartition, error: BrokerResponseError
) -> ProducedPartition:
    code, message = wire_error(error)
    result = ProducedPartition(
        part.topic, part.partition, code, -1, error_message=message, topic_id=part.topic_id
    )
    if isinstance(error, RefusedRecordsError):
        result.log_start_offset = error.log_start_offset
        result.record_errors = error.record_errors
    return result


def _view(part: ProducePartition) -> memoryview:
    records = part.records
    assert records is not None  # else `_check_records` has refused it
    return records if isinstance(records, memoryview) else memoryview(records)


def _is_transactional(records: memoryview) -> bool:
    """Of a whole header: whether a batch says that it belongs to a transaction."""
    return bool(
        records[ATTRIBUTES_POSITION + 1] & TRANSACTIONAL_BIT and records[MAGIC_POSITION] == MAGIC
    )


def _partition(part: ProducePartition, wanted: ProduceRequest, context: RecordContext) -> Partition:
    """Where the part goes, if it may."""
    if wanted.acks not in _ACKS:
        raise InvalidRequiredAcksError()
    _check_records(part, wanted.version)
    return _served(part, context)


def _served(part: ProducePartition, context: RecordContext) -> Partition:
    """Where the part goes now. Gives a topic that has an id its name."""
    if part.topic_id is not None:
        part.topic = _name_of(part.topic_id, context)
    if part.topic in INTERNAL_TOPICS:
        raise InvalidTopicError(f"{part.topic} is written by brokers alone")
    others_may_lead = context.others_may_lead
    if not context.replicas.takes_appends or (others_may_lead is not None and others_may_lead()):
        raise NotLeaderForPartitionError("this broker's session with the cluster is over")
    partition = context.replicas.partition_of(part.topic, part.partition)
    if part.topic_id is not None and part.topic_id.int != partition.topic_id.int:
        raise InconsistentTopicIdError()
    return partition


def _name_of(topic_id: UUID, context: RecordContext) -> str:
    topic = context.metadata.topic_by_id(topic_id)
    if topic is None:
        raise UnknownTopicIdError("This server does not host this topic ID.")
    return topic.name


def _append(
    part: ProducePartition,
    partition: Partition,
    acks: int,
    transactional: bool,
    context: RecordContext,
) -> LogAppendInfo | None:
    """None where there are no records."""
    records = _view(part)
    if not records:
        return None
    return context.replicas.append(partition, records, acks, transactional=transactional)


def _appended(part: ProducePartition, appended: LogAppendInfo | None) -> ProducedPartition:
    if appended is None:
        return ProducedPartition(part.topic, part.partition, 0, -1, topic_id=part.topic_id)
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
    records = _view(part)
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


API: Final = Api(
    key=0,
    min_version=0,
    max_version=13,
    handle=handle,
    context=RecordContext,
    max_request_bytes=2**31,
)
