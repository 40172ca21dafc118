"""One partition: where its epochs end, and who is woken by what is appended."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from kafka.errors import OffsetNotAvailableError
from kafka.structs import TopicPartition

from broker.cluster.metadata import PartitionMetadata, new_topic
from broker.config.broker import BrokerConfig
from broker.config.log import LogConfig
from broker.log.log import Log
from broker.log.manager import LogManager
from broker.replica.delayed import DelayedFetch
from broker.replica.partition import EARLIEST, LATEST, Isolation, Partition
from broker.replica.purgatory import Purgatory
from pyspark_kafkalog.protocol.fetch import FetchPartition
from tests.broker.coordinator.transactions_in_memory import TOPIC, TransactionBroker
from tests.broker.log.batches import batch
from tests.broker.log.memory_files import MemoryFiles
from tests.support.present import present
from tests.support.records import batch_of, values_of
from tests.support.replicas import host_alone, lead, never, replicas_alone, stop

PLACE = TopicPartition(TOPIC, 0)
TOPIC_ID = UUID(int=1)
HIGH_WATERMARK, TXN_COMMITTED, LOG_END = Isolation


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    """Led in epoch 3; epochs 0 and 1 have five records each, and 2 has none."""
    files = MemoryFiles()
    files.make_directory(tmp_path)
    log = Log(tmp_path, LogConfig(), files=files)
    for number in range(10):
        log.append(batch(), number // 5)
    return led(log)


def led(
    log: Log, replicas: tuple[int, ...] = (1,), isr: tuple[int, ...] = (1,), high_watermark: int = 0
) -> Partition:
    """Led by broker 1 in epoch 3."""
    made = Partition(PLACE, TOPIC_ID, log, host_alone(), high_watermark)
    made.lead(PartitionMetadata(replicas, 1, 3, isr, 0))
    return made


def test_an_epoch_without_records_ends_where_the_one_before_does(partition: Partition) -> None:
    ends = [partition.end_offset_for_epoch(epoch) for epoch in range(-1, 5)]
    assert ends == [(-1, -1), (0, 5), (1, 10), (1, 10), (3, 10), (-1, -1)]


def test_a_replica_that_is_longer_or_of_another_epoch_has_diverged(partition: Partition) -> None:
    assert partition.read_divergence(5, 0) is None
    assert partition.read_divergence(10, 1) is None
    for fetch_offset, epoch, end in [(6, 0, (0, 5)), (11, 1, (1, 10)), (10, 2, (1, 10))]:
        found = partition.read_divergence(fetch_offset, epoch)
        assert found is not None
        assert found.diverging_epoch == end


def led_by_two(log: Log, high_watermark: int = 0, isr: tuple[int, ...] = (1, 2)) -> Partition:
    return led(log, (1, 2), isr, high_watermark)


def test_the_high_watermark_begins_where_it_was_written_down_within_the_log(
    partition: Partition,
) -> None:
    log = partition.log
    for written, begins in [(0, 0), (7, 7), (10, 10), (11, 10)]:
        assert led_by_two(log, written).high_watermark == begins
    log.advance_log_start_offset(5)
    assert led_by_two(log, 3).high_watermark == 5
    # The only replica has all that there is.
    assert led(log, high_watermark=7).high_watermark == 10


def test_a_new_leader_does_not_say_where_a_log_ends_before_it_knows(partition: Partition) -> None:
    """The one before may have told a client that more is committed (KIP-207)."""
    late = 1 << 60
    both = led_by_two(partition.log, 7)
    for isolation in (HIGH_WATERMARK, TXN_COMMITTED):
        for timestamp_ms in (LATEST, late):
            with pytest.raises(OffsetNotAvailableError):
                both.find_offset(timestamp_ms, isolation)
        assert present(both.find_offset(EARLIEST, isolation)).offset == 0
    assert present(both.find_offset(LATEST, LOG_END)).offset == 10
    both.fetched_by(2, 10, 0)
    assert present(both.find_offset(LATEST, HIGH_WATERMARK)).offset == 10
    assert both.find_offset(late, HIGH_WATERMARK) is None


def test_an_append_is_visible_when_all_replicas_in_sync_have_it(partition: Partition) -> None:
    log = partition.log
    size_bytes = log.size_bytes // 10
    both = led_by_two(log, 10)
    first, second = both.append(batch(), 1), both.append(batch(), 1)
    assert both.commit(first) == both.commit(second) == (0, 0)
    assert (both.high_watermark, log.log_end_offset) == (10, 12)
    assert both.advance_high_watermark(11) == (size_bytes, size_bytes)
    assert (
        both.read(FetchPartition(TOPIC, 0, 10, 0), 1 << 20, HIGH_WATERMARK, True).size_bytes
        == size_bytes
    )
    assert both.advance_high_watermark(9) == (0, 0)
    assert both.high_watermark == 11
    alone = PartitionMetadata((1,), 1, 3, (1,), 1)
    assert both.lead(alone) == (size_bytes, size_bytes)
    assert both.commit(second) == (0, 0)


def test_the_high_watermark_stands_below_min_insync_replicas(partition: Partition) -> None:
    log = partition.log
    alone = led_by_two(log, 10, isr=(1,))
    log.config = replace(log.config, min_insync_replicas=2)
    assert alone.commit(alone.append(batch(), 1)) == (0, 0)
    assert alone.high_watermark == 10


def test_the_same_epoch_leaves_its_followers_where_they_are(partition: Partition) -> None:
    """A new one knows nothing of any, and begins at the log's end."""
    both = led_by_two(partition.log, 7)
    both.fetched_by(2, 8, 0)
    assert (both.high_watermark, both.epoch_start_offset) == (8, 10)
    both.append(batch(), 1)
    grown = PartitionMetadata((1, 2, 3), 1, 3, (1, 2), 1)
    both.lead(grown)
    assert (both.partition_epoch, both.epoch_start_offset, both.leadership) == (1, 10, 1)
    assert both.tells_other_start(2, 1)
    assert not both.tells_other_start(2, 0)  # as it has told
    both.lead(replace(grown, isr=(1, 2, 3), partition_epoch=2))
    both.fetched_by(3, 9, 0)
    assert both.high_watermark == 8
    both.lead(replace(grown, leader_epoch=4, partition_epoch=3))
    assert (both.high_watermark, both.epoch_start_offset, both.leadership) == (8, 11, 1)
    assert both.tells_other_start(2, 0)
    assert both.join_isr(3) is None


def test_who_reads_committed_records_gets_none_of_an_open_transaction(partition: Partition) -> None:
    """Also where some that are committed lie before it, in the same answer."""
    records = bytearray(batch_of(3, producer=(7, 0, 0), transactional=True))
    partition.commit(partition.append(memoryview(records), 1, transactional=True))
    assert (partition.last_stable_offset, partition.high_watermark) == (10, 13)
    wanted = FetchPartition(TOPIC, 0, 8, 0)
    found = {
        isolation: present(partition.read(wanted, 1 << 20, isolation, True).records).read()
        for isolation in (HIGH_WATERMARK, TXN_COMMITTED)
    }
    offsets = {isolation: [o for o, _ in values_of(found[isolation])] for isolation in found}
    assert offsets == {HIGH_WATERMARK: [8, 9, 10, 11, 12], TXN_COMMITTED: [8, 9]}


def test_appends_that_come_in_another_order_than_into_the_log_are_all_counted(
    partition: Partition,
) -> None:
    """Those of threads; and the answer to a retry may come before the thread's own."""
    size_bytes = partition.log.size_bytes // 10
    first, second = partition.append(batch(), 1), partition.append(batch(), 1)
    assert partition.commit(second) == (2 * size_bytes, 2 * size_bytes)
    assert partition.commit(first) == (0, 0)
    numbered = batch(producer=(7, 0, 0))
    appended = partition.append(numbered, 1)
    again = partition.append(batch(producer=(7, 0, 0)), 1)
    assert again.is_duplicate
    assert partition.commit(again) == (len(numbered), len(numbered))
    assert partition.commit(appended) == (0, 0)


def test_a_restart_begins_with_the_high_watermarks_that_were_written_down() -> None:
    config = BrokerConfig.from_properties({"log.dirs": "/data"})
    logs = LogManager(config, files=MemoryFiles())
    logs.open()
    topic = new_topic(TOPIC, 2, 1)
    both = replace(topic.partitions[1], isr=(1, 2), replicas=(1, 2))
    topic = replace(topic, partitions=(topic.partitions[0], both))
    places = topic.topic_partitions()
    for place in places:
        for _ in range(5):
            logs.create(place).append(batch(), 0)
    logs.checkpoint_high_watermarks(dict.fromkeys(places, 3))
    replicas = replicas_alone(logs, Purgatory(never))
    lead(replicas, topic, make_logs=False)
    assert replicas.high_watermarks() == {places[0]: 5, places[1]: 3}
    logs.close()


class Begun(TransactionBroker):
    """A transaction is open in the partition, with one record."""

    def __init__(self) -> None:
        super().__init__()
        self.producer = self.coordinator.initialize("id", 60_000)
        self.coordinator.add_partitions("id", self.producer, frozenset((PLACE,)), 0)
        assert self.produce("id", self.producer, PLACE, b"x", 0, version=9) == 0


@pytest.fixture
def broker() -> Begun:
    return Begun()


def wait(broker: Begun, isolation: Isolation) -> list[int]:
    woken = []
    fetch = DelayedFetch([PLACE], 1, isolation)
    broker.replicas.wait(fetch, 10_000, lambda: woken.append(1))
    return woken


def test_who_reads_committed_records_is_woken_by_the_end_of_a_transaction(
    broker: Begun,
) -> None:
    patient, other = wait(broker, TXN_COMMITTED), wait(broker, HIGH_WATERMARK)
    assert broker.produce("id", broker.producer, PLACE, b"y", 1, version=9) == 0
    assert (patient, other) == ([], [1])
    broker.coordinator.end("id", broker.producer, 0, is_commit=True)
    assert patient == [1]


def test_who_waits_is_woken_when_the_topic_goes(broker: Begun) -> None:
    woken = wait(broker, TXN_COMMITTED)
    stop(broker.replicas, broker.topics[TOPIC])
    assert woken == [1]


def test_the_end_for_committed_records_is_where_a_transaction_is_open(
    broker: Begun,
) -> None:
    partition = broker.replicas.partition(PLACE)
    assert present(partition.find_offset(LATEST, TXN_COMMITTED)).offset == 0
    assert present(partition.find_offset(LATEST, HIGH_WATERMARK)).offset == 1
