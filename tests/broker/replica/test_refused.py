"""Batches that come while too few replicas are in sync, and those behind them."""

from pathlib import Path
from uuid import UUID

import pytest
from kafka.errors import (
    CorruptRecordError,
    InvalidProducerEpochError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumberError,
)
from kafka.structs import TopicPartition

from broker.cluster.metadata import PartitionMetadata
from broker.config.broker import BrokerConfig
from broker.log.log import LogAppendInfo
from broker.log.manager import LogManager
from broker.replica.partition import ACKS_ALL
from broker.replica.purgatory import Purgatory
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.log.batches import batch, contents
from tests.broker.log.memory_files import MemoryFiles
from tests.support.replicas import never, replicas_alone

PLACE = TopicPartition("t", 0)
TOPIC_ID = UUID(int=1)
PRODUCER = 7
LAST_SEQUENCE = 2**31 - 1


class Replicated:
    """A partition of two replicas that both are to be in sync."""

    def __init__(self, directory: Path) -> None:
        config = {"log.dirs": str(directory), "min.insync.replicas": "2"}
        logs = LogManager(BrokerConfig.from_properties(config), files=MemoryFiles())
        logs.open()
        self.replicas = replicas_alone(logs, Purgatory(never))
        self.replicas.make_logs({PLACE: TOPIC_ID}, [PLACE])
        self._partition_epoch = 0
        self.in_sync(1, 2)
        self.log = self.replicas.partition(PLACE).log

    def in_sync(self, *isr: int, leader_epoch: int = 0) -> None:
        self._partition_epoch += 1
        state = PartitionMetadata((1, 2), 1, leader_epoch, isr, self._partition_epoch)
        self.replicas.lead(PLACE, TOPIC_ID, state)

    def append(self, records: memoryview, acks: int = ACKS_ALL) -> LogAppendInfo:
        return self.replicas.append(self.replicas.partition(PLACE), records, acks)

    def send(
        self, sequence: int, epoch: int = 0, acks: int = ACKS_ALL, producer: int = PRODUCER
    ) -> LogAppendInfo:
        return self.append(batch([b"%d" % sequence], producer=(producer, epoch, sequence)), acks)

    def refuse(self, *sequences: int, epoch: int = 0) -> None:
        for sequence in sequences:
            records = batch([b"%d" % sequence], producer=(PRODUCER, epoch, sequence))
            with pytest.raises(NotEnoughReplicasError):
                self.append(records)
            self.replicas.note_refused(PLACE, records)

    @property
    def sequences(self) -> list[int]:
        return [int(value) for value in contents(self.log).values()]


@pytest.fixture
def replicated(tmp_path: Path) -> Replicated:
    return Replicated(tmp_path)


def test_what_is_behind_a_refused_batch_waits_for_it(replicated: Replicated) -> None:
    """It is not out of order: of that librdkafka makes a new epoch, and sends all again."""
    replicated.send(0)
    replicated.in_sync(1)
    replicated.refuse(1, 2)
    replicated.in_sync(1, 2)
    replicated.refuse(3, 4)
    for sequence in range(1, 6):
        replicated.send(sequence)
    assert replicated.sequences == [*range(6)]


def test_the_first_batches_of_a_producer_keep_their_order(replicated: Replicated) -> None:
    """The log would take any number from one that it does not know."""
    replicated.in_sync(1)
    replicated.refuse(5)
    replicated.in_sync(1, 2)
    replicated.refuse(6)
    for sequence in range(5, 7):
        replicated.send(sequence)
    assert replicated.sequences == [5, 6]


def test_what_is_there_already_is_not_refused(replicated: Replicated) -> None:
    """Who sends it again would take it for lost."""
    taken = replicated.send(0)
    replicated.in_sync(1)
    again = replicated.send(0)
    assert (again.is_duplicate, again.first_offset) == (True, taken.first_offset)
    replicated.refuse(1)
    assert replicated.sequences == [0]


def test_sequences_go_round(replicated: Replicated) -> None:
    replicated.send(LAST_SEQUENCE - 1)
    replicated.in_sync(1)
    replicated.refuse(LAST_SEQUENCE)
    replicated.in_sync(1, 2)
    replicated.refuse(0, 1)
    for sequence in (LAST_SEQUENCE, 0, 1):
        replicated.send(sequence)


def test_a_producer_that_begins_anew_waits_for_nothing(replicated: Replicated) -> None:
    replicated.send(0)
    replicated.in_sync(1)
    replicated.refuse(1)
    replicated.in_sync(1, 2)
    replicated.send(0, epoch=1)
    replicated.send(1, epoch=1)
    with pytest.raises(InvalidProducerEpochError):
        replicated.send(2)


def test_others_and_real_gaps_are_told_apart(replicated: Replicated) -> None:
    replicated.send(0)
    with pytest.raises(OutOfOrderSequenceNumberError):
        replicated.send(2)
    replicated.in_sync(1)
    replicated.refuse(1)
    replicated.in_sync(1, 2)
    replicated.send(5, producer=8)
    replicated.append(batch([b"9"]))
    replicated.send(1)
    with pytest.raises(OutOfOrderSequenceNumberError):
        replicated.send(3)


def test_what_has_come_by_way_of_another_leader_is_not_waited_for(replicated: Replicated) -> None:
    replicated.send(0)
    replicated.in_sync(1)
    replicated.refuse(1)
    state = PartitionMetadata((1, 2), 2, 1, (1, 2), 10)
    replicated.replicas.follow(PLACE, TOPIC_ID, state)
    replicated.log.append(batch([b"1"], producer=(PRODUCER, 0, 1)), 1)
    replicated.in_sync(1, 2, leader_epoch=2)
    with pytest.raises(OutOfOrderSequenceNumberError):
        replicated.send(3)
    replicated.send(2)


def test_what_was_not_taken_by_another_leader_is_waited_for(replicated: Replicated) -> None:
    replicated.send(0)
    replicated.in_sync(1)
    replicated.refuse(1)
    replicated.replicas.follow(PLACE, TOPIC_ID, PartitionMetadata((1, 2), 2, 1, (1, 2), 10))
    replicated.in_sync(1, 2, leader_epoch=2)
    replicated.refuse(2)
    replicated.send(1)
    replicated.send(2)


def test_who_has_ended_a_transaction_waits_for_nothing(replicated: Replicated) -> None:
    """It has given up what was refused."""
    replicated.send(0)
    replicated.in_sync(1)
    replicated.refuse(1)
    replicated.in_sync(1, 2)
    replicated.replicas.append_end_marker(PLACE, PRODUCER, 0, TransactionMarker(False, 0), 0)
    with pytest.raises(OutOfOrderSequenceNumberError):
        replicated.send(2)


def test_what_is_damaged_is_told_so(replicated: Replicated) -> None:
    replicated.in_sync(1)
    damaged = batch(producer=(PRODUCER, 0, 0))
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        replicated.append(damaged)
