"""Fetch versions 0-3: message sets of magic 0 (versions 0 and 1) or 1, for clients before 0.11.

The batches of the log are converted for each answer, in the conversion thread. As in Apache Kafka
3.9 headers and control batches are left out, and zstd is UNSUPPORTED_COMPRESSION_TYPE. Limits are
those of the time: before version 3 a partition's answer ends after its max_bytes, in the midst of a
message if need be, and a client that sees only half of one asks for more; from 3 on the first
message is whole (KIP-74). So that each of them gets on, the first batch found is read whole, and a
fetch that finds nothing but control batches goes on behind them.

Called by: the event loop's thread.
"""

import asyncio
import functools
from collections.abc import Sequence
from typing import TypeAlias

from kafka.errors import BrokerResponseError
from kafka.structs import TopicPartition

from broker.api.contexts import RecordContext
from broker.api.errors import code_of
from broker.api.response import Response
from broker.log.conversion import message_set_of
from broker.replica.delayed import DelayedFetch
from broker.replica.later import when_done
from broker.replica.manager import FetchLimits, is_urgent, storage_error
from broker.replica.partition import Isolation, PartitionRead
from pyspark_kafkalog.protocol.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

RECORD_BATCH_VERSION = 4
"""The first version whose clients understand record batches."""
_FIRST_VERSION_WITH_MAGIC_1 = 2
_FIRST_VERSION_WITH_WHOLE_MESSAGE = 3

_Read: TypeAlias = PartitionRead | BrokerResponseError


async def answer(wanted: FetchRequest, context: RecordContext) -> Response:
    """The answer, after waiting for records where there are none."""
    fetch = _OldFetch(wanted, context)
    await fetch.run()
    stats = context.replicas.stats
    stats.bytes_out += sum(len(part.records) for part in fetch.found if part.records is not None)
    stats.failed_fetch += sum(part.error_code != 0 for part in fetch.found)
    return FetchResponse(fetch.found)


class _OldFetch:
    """One fetch until its answer is there. Its partitions move on behind what is left out."""

    __slots__ = ("_context", "_deadline_s", "_max_bytes", "_wanted", "found")

    def __init__(self, wanted: FetchRequest, context: RecordContext) -> None:
        self._wanted = wanted
        self._context = context
        self._max_bytes = min(wanted.max_bytes, context.config.fetch_max_bytes)
        max_wait_ms = context.longest_wait_ms(wanted.max_wait_ms)
        self._deadline_s = asyncio.get_running_loop().time() + max_wait_ms / 1000
        self.found: list[FetchedPartition] = []

    async def run(self) -> None:
        is_done = False
        while not is_done:
            reads = await self._read_in_time()
            is_done = await self._convert(reads)

    async def _read_in_time(self) -> Sequence[_Read]:
        """What is there once it is enough, or when the time is up."""
        reads = self._read()
        least_bytes = min(self._wanted.min_bytes, self._max_bytes)
        missing_bytes = least_bytes - sum(map(_size_bytes, reads))
        may_wait = self._left_ms() > 0 and self._context.replicas.may_wait
        if missing_bytes > 0 and not is_urgent(reads) and may_wait:
            # Waits from this instant on: an append in between must not be missed.
            asked = [(each.topic, each.partition) for each in self._wanted.partitions]
            delayed = DelayedFetch(asked, missing_bytes, Isolation.HIGH_WATERMARK)
            await when_done(self._context.replicas, delayed, self._left_ms(), lambda: None)
            reads = self._read()
        return reads

    def _left_ms(self) -> int:
        return int(1000 * (self._deadline_s - asyncio.get_running_loop().time()))

    def _read(self) -> Sequence[_Read]:
        """Of old clients' partitions each gets its first batch whole: it may be cut when it is
        converted, not before."""
        limits = FetchLimits(self._max_bytes, Isolation.HIGH_WATERMARK, zstd=False)
        fetch, asked = self._context.replicas.fetch, self._wanted.partitions
        if self._wanted.version >= _FIRST_VERSION_WITH_WHOLE_MESSAGE:
            return fetch(asked, limits).reads
        return [fetch([each], limits).reads[0] for each in asked]

    async def _convert(self, reads: Sequence[_Read]) -> bool:
        """Fills `found`. False when there were batches, all without records for this client: then
        the fetch goes on behind them."""
        found = []
        left_bytes = self._max_bytes
        moved = False
        for ask, read in zip(self._wanted.partitions, reads, strict=True):
            one, next_offset = await self._converted(ask, read, left_bytes)
            found.append(one)
            left_bytes -= 0 if one.records is None else len(one.records)
            if next_offset > ask.fetch_offset:
                ask.fetch_offset = next_offset
                moved = True
        self.found = found
        failed = any(one.error_code for one in found)
        return not moved or failed or left_bytes < self._max_bytes

    async def _converted(
        self, ask: FetchPartition, read: _Read, left_bytes: int
    ) -> tuple[FetchedPartition, int]:
        """One partition's part of the answer, and where reading goes on if it is empty."""
        if isinstance(read, BrokerResponseError):
            return _failed(ask, read), ask.fetch_offset
        version = self._wanted.version
        max_bytes = min(ask.max_bytes, left_bytes)
        is_first = left_bytes == self._max_bytes
        cut = version < _FIRST_VERSION_WITH_WHOLE_MESSAGE
        found = FetchedPartition(ask.topic, ask.partition, 0, read.high_watermark)
        if read.records is None or (max_bytes <= 0 and (cut or not is_first)):
            return found, ask.fetch_offset
        try:
            message_set = await self._context.convert(
                functools.partial(
                    message_set_of,
                    read.records,
                    1 if version >= _FIRST_VERSION_WITH_MAGIC_1 else 0,
                    ask.fetch_offset,
                    max_bytes,
                    self._context.config.socket_request_max_bytes,
                    cut=cut,
                )
            )
        except OSError as error:
            failure = storage_error("fetch", TopicPartition(ask.topic, ask.partition), error)
            return _failed(ask, failure), ask.fetch_offset
        except BrokerResponseError as error:
            return _failed(ask, error), ask.fetch_offset
        found.records = message_set.data or None
        return found, message_set.next_offset


def _failed(ask: FetchPartition, error: BrokerResponseError) -> FetchedPartition:
    return FetchedPartition(ask.topic, ask.partition, code_of(error), high_watermark=-1)


def _size_bytes(read: _Read) -> int:
    return read.size_bytes if isinstance(read, PartitionRead) else 0
