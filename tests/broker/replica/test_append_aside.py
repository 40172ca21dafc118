"""Large batches are appended in threads: when, and what becomes of them whatever happens."""

import asyncio
import os
from asyncio import Future
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaStorageError, NotLeaderForPartitionError
from kafka.structs import TopicPartition
from typing_extensions import Buffer

from broker.api import produce
from broker.api.request import Request
from broker.cluster.metadata import new_topic
from broker.config.broker import BrokerConfig
from broker.log.files import DiskFile, DiskFiles, File
from broker.log.log import LogAppendInfo
from broker.log.manager import LogManager
from broker.replica.delayed import DelayedFetch
from broker.replica.manager import ReplicaManager
from broker.replica.partition import ACKS_ALL, Isolation
from broker.replica.purgatory import Purgatory
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)
from tests.support.patience import EVENT_S, eventually, turns
from tests.support.present import present
from tests.support.records import batch_of
from tests.support.replicas import lead, replicas_alone, stop
from tests.support.requests import request_of

LARGE_BYTES = 600_000
THREADS = os.cpu_count() or 1
TOPIC = new_topic("t", THREADS + 2, 1)
PLACES = TOPIC.topic_partitions()


class _Disk(DiskFiles):
    """Its log files can be told to fail, and to wait."""

    is_full = False

    def __init__(self) -> None:
        super().__init__()
        self.waits_at = ""
        """Which logs, by their names."""
        self.goes_on = Event()
        self.goes_on.set()

    def open(self, path: Path, *, create: bool = False) -> File:
        disk = self

        class File(DiskFile):
            def pwrite(self, data: Buffer, position: int) -> None:
                if disk.waits_at in path.parent.name:
                    disk.goes_on.wait(EVENT_S)
                if disk.is_full and path.suffix == ".log":
                    raise OSError(28, "No space left on device")
                super().pwrite(data, position)

        return File(path, create=create)


@pytest.fixture
def disk() -> _Disk:
    return _Disk()


@pytest.fixture
def replicas(tmp_path: Path, disk: _Disk) -> Iterator[ReplicaManager]:
    """A topic with some more partitions than there are threads."""
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path)})
    logs = LogManager(config, files=disk)
    logs.open()
    purgatory = Purgatory(lambda delay, run: asyncio.get_running_loop().call_later(delay, run))
    made = replicas_alone(logs, purgatory)
    lead(made, TOPIC)
    yield made
    made.finish_appends()
    logs.close()


def large() -> memoryview:
    return memoryview(bytearray(batch_of([(None, os.urandom(LARGE_BYTES))])))


def small() -> memoryview:
    return memoryview(bytearray(batch_of(1)))


def aside(replicas: ReplicaManager, number: int, peer: str) -> Future[LogAppendInfo] | None:
    return replicas.append_aside(replicas.partition(PLACES[number]), large(), ACKS_ALL, peer)


def test_large_batches_of_several_connections_for_several_logs_go_to_threads(
    replicas: ReplicaManager,
) -> None:
    async def scenario() -> list[Any]:
        assert replicas.append_aside(replicas.partition(PLACES[0]), small(), ACKS_ALL, "a") is None
        begun = []
        for number, peer, is_aside in [
            (0, "a", False),
            (1, "a", False),  # which waits for its answer, so that nothing comes beside it
            (1, "b", False),  # one log takes one batch after the other
            (0, "c", True),
            (1, "a", True),
            (0, "a", True),  # on the loop it would wait for the thread that writes there
        ]:
            appending = aside(replicas, number, peer)
            assert (appending is not None) == is_aside, (number, peer)
            begun += [appending] if is_aside else []
        found = [(await present(each)).first_offset for each in begun]
        await turns()  # a turn of the loop, in which all of them are done with
        assert aside(replicas, 0, "a") is None
        return found

    first, second, third = asyncio.run(scenario())
    assert (sorted([first, third]), second) == ([0, 1], 0)
    assert [replicas.partition(place).high_watermark for place in PLACES[:2]] == [2, 1]
    assert replicas.stats.messages_in == 3


@pytest.fixture
def busy(replicas: ReplicaManager) -> None:
    """Another connection has just written to the second partition."""
    assert aside(replicas, 1, "other") is None


def test_a_log_that_stamps_times_has_them_in_order(replicas: ReplicaManager) -> None:
    partition = replicas.partition(PLACES[0])
    partition.log.config = replace(partition.log.config, message_timestamp_type="LogAppendTime")

    async def scenario() -> list[Any]:
        aside(replicas, 1, "other")
        begun = [aside(replicas, 0, "a") for _ in range(20)]
        return sorted(
            (each.first_offset, each.log_append_time_ms)
            for each in [await present(b) for b in begun]
        )

    times_ms = [time_ms for _, time_ms in asyncio.run(scenario())]
    assert times_ms == sorted(times_ms)


def test_what_nobody_waits_for_any_more_can_be_read_and_wakes_fetches(
    replicas: ReplicaManager, busy: None
) -> None:
    partition = replicas.partition(PLACES[0])

    async def scenario() -> None:
        woken = asyncio.Event()
        replicas.wait(DelayedFetch([PLACES[0]], 1, Isolation.HIGH_WATERMARK), 10_000, woken.set)
        appending = aside(replicas, 0, "a")
        waiting = asyncio.ensure_future(_shielded(appending))
        await turns()
        waiting.cancel()
        await asyncio.wait_for(woken.wait(), 5)

    asyncio.run(scenario())
    assert partition.high_watermark == 1


async def _shielded(appending: Future[LogAppendInfo] | None) -> None:
    await asyncio.shield(present(appending))


def test_a_disk_that_refuses_leaves_nothing(
    replicas: ReplicaManager, busy: None, disk: _Disk
) -> None:
    partition = replicas.partition(PLACES[0])

    async def scenario() -> int:
        disk.is_full = True
        with pytest.raises(KafkaStorageError):
            await present(aside(replicas, 0, "a"))
        disk.is_full = False
        assert (partition.high_watermark, partition.log.log_end_offset) == (0, 0)
        return replicas.append(partition, small(), ACKS_ALL).first_offset

    assert asyncio.run(scenario()) == 0


def test_appends_that_have_begun_are_in_the_log_before_it_is_closed(
    replicas: ReplicaManager, busy: None
) -> None:
    partitions = [replicas.partition(place) for place in PLACES[:2]]

    async def scenario() -> None:
        begun = [aside(replicas, n % 2, f"{n}") for n in range(20)]
        replicas.finish_appends()
        assert all(partition.log.log_end_offset == 10 for partition in partitions)
        await asyncio.gather(*map(present, begun))

    asyncio.run(scenario())


def test_a_topic_that_goes_takes_no_more(replicas: ReplicaManager, busy: None) -> None:
    partition = replicas.partition(PLACES[0])

    async def scenario() -> None:
        stop(replicas, TOPIC)
        for topic_partition in PLACES:
            replicas.delete_log(topic_partition)
        with pytest.raises(NotLeaderForPartitionError):
            await present(replicas.append_aside(partition, large(), ACKS_ALL, "a"))

    asyncio.run(scenario())


ELSEWHERE = replace(TOPIC.partitions[0], leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))


def test_what_waits_for_a_thread_is_not_written_where_another_broker_leads_by_then(
    replicas: ReplicaManager, busy: None, disk: _Disk
) -> None:
    """It would be in the log as if that broker had written it."""
    partition = replicas.partition(PLACES[0])

    async def scenario() -> None:
        disk.goes_on.clear()
        begun = [aside(replicas, 2 + n, f"{n}") for n in range(THREADS)]
        waiting = aside(replicas, 0, "a")
        replicas.follow(PLACES[0], TOPIC.topic_id, ELSEWHERE)
        disk.goes_on.set()
        with pytest.raises(NotLeaderForPartitionError):
            await present(waiting)
        await asyncio.gather(*map(present, begun))

    asyncio.run(scenario())
    assert partition.log.log_end_offset == 0


@pytest.mark.skipif(THREADS < 2, reason="one part is to be written while another waits")
def test_what_was_cut_off_meanwhile_is_not_acknowledged(
    replicas: ReplicaManager, busy: None, disk: _Disk
) -> None:
    """While another part of its request waits for its disk; there is another record there now."""
    request = produce_request(PLACES[:2])
    context: Any = SimpleNamespace(
        replicas=replicas, config=BrokerConfig(), others_may_lead=None, metadata=None
    )

    async def scenario() -> list[int]:
        disk.waits_at = "t-0"
        disk.goes_on.clear()
        begun = [present(aside(replicas, 2, "x")), present(aside(replicas, 1, "y"))]
        answering = asyncio.ensure_future(produce.API.handle(request, context))
        partition = replicas.partition(PLACES[1])
        await eventually(lambda: partition.log.log_end_offset == 2)
        replicas.follow(PLACES[1], TOPIC.topic_id, ELSEWHERE)
        partition.log.truncate_to(1)
        replicas.lead(PLACES[1], TOPIC.topic_id, replace(TOPIC.partitions[1], leader_epoch=2))
        replicas.append(partition, small(), ACKS_ALL)
        assert partition.high_watermark == 2
        disk.goes_on.set()
        await asyncio.gather(*begun)
        return [part.error_code for part in (await answering).partitions]

    assert asyncio.run(scenario()) == [0, NotLeaderForPartitionError.errno]


def produce_request(places: list[TopicPartition]) -> Request:
    parts = [ProducePartition(each.topic, each.partition, bytes(large())) for each in places]
    wanted = ProduceRequest(9, None, ACKS_ALL, 30_000, parts)
    return request_of(0, 9, b"".join(map(bytes, encode_produce_request(wanted))))


def test_what_a_thread_has_written_is_not_committed_where_another_broker_leads_by_then(
    replicas: ReplicaManager, busy: None
) -> None:
    partition = replicas.partition(PLACES[0])

    async def scenario() -> None:
        appending = present(aside(replicas, 0, "a"))
        replicas.finish_appends()
        replicas.follow(PLACES[0], TOPIC.topic_id, ELSEWHERE)
        await appending
        await turns()

    asyncio.run(scenario())
    assert (partition.log.log_end_offset, partition.high_watermark) == (1, 0)
    assert partition.log.leader_epochs.latest_epoch == 0  # so that it is found to have diverged
