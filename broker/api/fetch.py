"""Fetch (key 1), versions 0-12: record batches as they lie in the log, sent by sendfile.

A fetch that finds less than min_bytes waits for appends, at most max_wait_ms. The first batch found
is sent whole, whatever the limits say (from version 3 on), so that a consumer always gets on.
Versions 0-3 cannot carry record batches: `down_conversion` answers them.
Left out: fetch sessions (every answer has session id 0, and the client sends full requests),
replicas' fetches, rack awareness, and versions from 13 on (topic ids).
"""

import asyncio

from kafka.errors import (
    BrokerResponseError,
    FetchSessionIdNotFoundError,
    InvalidRequestError,
)
from kafka.structs import TopicPartition

from broker.api import down_conversion
from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Body, Outcome, Request
from broker.log.files import FileSlice
from broker.network.send import Part
from broker.replica.manager import FetchAsk, FetchLimits, FetchResult
from broker.replica.partition import PartitionRead
from pyspark_kafkalog.protocol.fetch import (
    READ_COMMITTED,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    decode_fetch_request,
    encode_fetch_response,
)

_NO_SESSION = 0
_NEW_SESSION_EPOCHS = (0, -1)
# The first version whose clients know zstd (KIP-110).
_ZSTD_VERSION = 10
_MAX_REQUEST_BYTES = 4 * 1024 * 1024


class _Slices:
    """Several slices of segment files that are sent as one; its length is in bytes."""

    __slots__ = ("size_bytes", "slices")

    def __init__(self, read: PartitionRead) -> None:
        self.slices: list[FileSlice] = list(read.slices)
        self.size_bytes = read.size_bytes

    def __len__(self) -> int:
        return self.size_bytes


def handle(request: Request, context: ApiContext) -> Outcome:
    wanted = decode_fetch_request(request.body, request.version)
    refusal = _refusal(wanted)
    if refusal is not None:
        response = FetchResponse([], error_code=wire_error(refusal)[0])
        return encode_fetch_response(response, request.version)  # type: ignore[return-value]
    if request.version < down_conversion.RECORD_BATCH_VERSION:
        return down_conversion.answer(wanted, context)
    asks = [
        FetchAsk(
            TopicPartition(ask.topic, ask.partition),
            ask.fetch_offset,
            ask.max_bytes,
            ask.current_leader_epoch,
        )
        for ask in wanted.partitions
    ]
    limits = FetchLimits(
        max_bytes=min(wanted.max_bytes, context.config.fetch_max_bytes),
        committed=wanted.isolation_level == READ_COMMITTED,
        zstd=request.version >= _ZSTD_VERSION,
    )
    result = context.replicas.fetch(asks, limits)
    missing_bytes = min(wanted.min_bytes, limits.max_bytes) - result.size_bytes
    if missing_bytes <= 0 or result.urgent or wanted.max_wait_ms <= 0:
        return _answer(request, asks, result)
    return _wait(request, context, wanted, asks, limits, missing_bytes)


def _wait(
    request: Request,
    context: ApiContext,
    wanted: FetchRequest,
    asks: list[FetchAsk],
    limits: FetchLimits,
    missing_bytes: int,
) -> "asyncio.Future[Body]":
    """Waits from this instant on: what is appended before the loop turns must not be missed."""
    answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()

    def ready() -> None:
        if not answer.done():  # else the connection closed a moment ago
            answer.set_result(_answer(request, asks, context.replicas.fetch(asks, limits)))

    max_wait_ms = wanted.max_wait_ms
    if context.config.connections_max_idle_ms >= 0:
        # No connection lives longer than its idle time: neither does a wait.
        max_wait_ms = min(max_wait_ms, context.config.connections_max_idle_ms)
    forget = context.replicas.wait_for_records(asks, missing_bytes, max_wait_ms, ready)
    answer.add_done_callback(lambda _: forget())
    return answer


def _refusal(wanted: FetchRequest) -> BrokerResponseError | None:
    """Sessions are declined at their start; so nobody may go on with one."""
    if wanted.replica_id >= 0:
        return InvalidRequestError("this broker has no replicas")
    if wanted.session_id != _NO_SESSION and wanted.session_epoch not in _NEW_SESSION_EPOCHS:
        return FetchSessionIdNotFoundError()
    return None


def _answer(request: Request, asks: list[FetchAsk], result: FetchResult) -> Body:
    partitions = [
        _fetched(request, ask.topic_partition, read)
        for ask, read in zip(asks, result.reads, strict=True)
    ]
    parts: list[Part] = []
    for part in encode_fetch_response(FetchResponse(partitions), request.version):
        if isinstance(part, _Slices):
            parts.extend(part.slices)
        else:
            parts.append(part)  # type: ignore[arg-type]
    return parts


def _fetched(
    request: Request, topic_partition: TopicPartition, read: PartitionRead | BrokerResponseError
) -> FetchedPartition:
    topic, partition = topic_partition
    if not isinstance(read, PartitionRead):
        return FetchedPartition(topic, partition, wire_error(read)[0], high_watermark=-1)
    return FetchedPartition(
        topic,
        partition,
        0,
        read.high_watermark,
        records=_Slices(read) if read.slices else None,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted=[(aborted.producer_id, aborted.first_offset) for aborted in read.aborted],
    )


API = Api(key=1, min_version=0, max_version=12, handle=handle, max_request_bytes=_MAX_REQUEST_BYTES)
