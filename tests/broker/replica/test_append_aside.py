"""Large batches are appended in threads: when, and what becomes of them whatever happens."""

import asyncio
import os

import pytest
from kafka.errors import KafkaStorageError
from kafka.structs import TopicPartition

from broker.cluster.metadata import new_topic
from broker.config import BrokerConfig
from broker.log.files import DiskFile, DiskFiles
from broker.log.manager import LogManager
from broker.replica.manager import FetchAsk, ReplicaManager
from broker.replica.partition import ACKS_ALL
from broker.replica.purgatory import FetchPurgatory
from tests.broker.records import batch_of

LARGE_BYTES = 600_000
PLACES = [TopicPartition("t", index) for index in range(2)]


class _Disk(DiskFiles):
    """Its log files can be told to fail."""

    is_full = False

    def open(self, path, *, create=False):
        disk = self

        class File(DiskFile):
            def pwrite(self, data, position):
                if disk.is_full and path.suffix == ".log":
                    raise OSError(28, "No space left on device")
                super().pwrite(data, position)

        return File(path, create=create)


@pytest.fixture
def disk():
    return _Disk()


@pytest.fixture
def replicas(tmp_path, disk):
    """A topic with two partitions."""
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path)})
    logs = LogManager(config, files=disk)
    logs.open()
    topic = new_topic("t", 2, 1, {})
    purgatory = FetchPurgatory(lambda delay, run: asyncio.get_running_loop().call_later(delay, run))
    made = ReplicaManager(logs, {}, purgatory, 1)
    made.make_logs(topic)
    made.open(topic)
    yield made
    made.finish_appends()
    logs.close()


def large():
    return memoryview(bytearray(batch_of([(None, os.urandom(LARGE_BYTES))])))


def small():
    return memoryview(bytearray(batch_of(1)))


def test_only_large_batches_of_changing_partitions_go_to_threads(replicas):
    one, two = map(replicas.partition, PLACES)

    async def scenario():
        appended = []
        for partition, records, is_aside in [
            (one, large(), True),
            (one, large(), False),  # one log takes one batch after the other
            (two, large(), True),
            (one, small(), False),
            (one, large(), True),
            (two, large(), True),
        ]:
            aside = replicas.append_aside(partition, records, ACKS_ALL)
            assert (aside is not None) == is_aside
            appended.append(aside)
        return [each and (await each).first_offset for each in appended]

    assert asyncio.run(scenario()) == [0, None, 0, None, 1, 1]
    assert (one.high_watermark, two.high_watermark) == (2, 2)
    assert replicas.stats.messages_in == 4


def test_what_nobody_waits_for_any_more_can_be_read_and_wakes_fetches(replicas):
    partition = replicas.partition(PLACES[0])

    async def scenario():
        woken = asyncio.Event()
        replicas.wait_for_records([FetchAsk(PLACES[0], 0, 1, -1)], 1, 10_000, woken.set)
        appending = replicas.append_aside(partition, large(), ACKS_ALL)
        waiting = asyncio.ensure_future(_shielded(appending))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait_for(woken.wait(), 5)

    asyncio.run(scenario())
    assert partition.high_watermark == 1


async def _shielded(appending):
    await asyncio.shield(appending)


def test_a_disk_that_refuses_leaves_nothing(replicas, disk):
    partition = replicas.partition(PLACES[0])

    async def scenario():
        disk.is_full = True
        with pytest.raises(KafkaStorageError):
            await replicas.append_aside(partition, large(), ACKS_ALL)
        disk.is_full = False
        assert (partition.high_watermark, partition.log.log_end_offset) == (0, 0)
        return replicas.append(partition, small(), ACKS_ALL).first_offset

    assert asyncio.run(scenario()) == 0


def test_appends_that_have_begun_are_in_the_log_before_it_is_closed(replicas):
    partitions = [replicas.partition(place) for place in PLACES]

    async def scenario():
        begun = [replicas.append_aside(partitions[n % 2], large(), ACKS_ALL) for n in range(20)]
        replicas.finish_appends()
        assert all(partition.log.log_end_offset == 10 for partition in partitions)
        await asyncio.gather(*begun)

    asyncio.run(scenario())


def test_a_topic_that_goes_takes_no_more(replicas):
    partition = replicas.partition(PLACES[0])
    topic = new_topic("t", 2, 1, {})

    async def scenario():
        replicas.close(topic)
        replicas.delete_logs(topic)
        with pytest.raises(KafkaStorageError):
            await replicas.append_aside(partition, large(), ACKS_ALL)

    asyncio.run(scenario())
