"""One partition: where its epochs end, and who is woken by what is appended."""

import pytest
from kafka.structs import TopicPartition

from broker.config.log import LogConfig
from broker.log.log import Log
from broker.replica.manager import FetchAsk
from broker.replica.partition import LATEST, Partition
from tests.broker.coordinator.transactions_in_memory import TOPIC, TransactionBroker
from tests.broker.log.batches import batch
from tests.broker.log.memory_files import MemoryFiles

PLACE = TopicPartition(TOPIC, 0)


@pytest.fixture
def partition(tmp_path):
    """Led in epoch 3; epochs 0 and 1 have five records each, and 2 has none."""
    files = MemoryFiles()
    files.make_directory(tmp_path)
    log = Log(tmp_path, LogConfig(), files=files)
    for number in range(10):
        log.append(batch(), number // 5)
    return Partition(PLACE, log, 3, (1,))


def test_an_epoch_without_records_ends_where_the_one_before_does(partition):
    ends = [partition.end_offset_for_epoch(epoch) for epoch in range(-1, 5)]
    assert ends == [(-1, -1), (0, 5), (1, 10), (1, 10), (3, 10), (-1, -1)]


def test_a_replica_that_is_longer_or_of_another_epoch_has_diverged(partition):
    assert partition.read_divergence(5, 0) is None
    assert partition.read_divergence(10, 1) is None
    for fetch_offset, epoch, end in [(6, 0, (0, 5)), (11, 1, (1, 10)), (10, 2, (1, 10))]:
        found = partition.read_divergence(fetch_offset, epoch)
        assert found is not None
        assert found.diverging_epoch == end


@pytest.fixture
def broker():
    """A transaction is open in the partition, with one record."""
    made = TransactionBroker()
    made.producer = made.coordinator.initialize("id", 60_000)
    made.coordinator.add_partitions("id", made.producer, frozenset((PLACE,)), 0)
    assert made.produce("id", made.producer, PLACE, b"x", 0, version=9) == 0
    return made


def wait(broker, *, committed):
    woken = []
    broker.replicas.wait_for_records(
        [FetchAsk(PLACE, 1, 1 << 20, -1)], 1, 10_000, lambda: woken.append(1), committed=committed
    )
    return woken


def test_who_reads_committed_records_is_woken_by_the_end_of_a_transaction(broker):
    patient, other = wait(broker, committed=True), wait(broker, committed=False)
    assert broker.produce("id", broker.producer, PLACE, b"y", 1, version=9) == 0
    assert (patient, other) == ([], [1])
    broker.coordinator.end("id", broker.producer, 0, is_commit=True)
    assert patient == [1]


def test_who_waits_is_woken_when_the_topic_goes(broker):
    woken = wait(broker, committed=True)
    broker.replicas.close(broker.topics[TOPIC])
    assert woken == [1]


def test_the_end_for_committed_records_is_where_a_transaction_is_open(broker):
    partition = broker.replicas.partition(PLACE)
    assert partition.find_offset(LATEST, True).offset == 0
    assert partition.find_offset(LATEST, False).offset == 1
