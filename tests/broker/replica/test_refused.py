"""Batches that come while too few replicas are in sync, and those behind them."""

from dataclasses import replace
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
from broker.config.log import LogConfig
from broker.log.log import Log, LogAppendInfo
from broker.replica.partition import ACKS_ALL, Partition
from tests.broker.log.batches import batch, contents
from tests.broker.log.memory_files import MemoryFiles
from tests.support.replicas import host_alone

PLACE = TopicPartition("t", 0)
PRODUCER = 7
LAST_SEQUENCE = 2**31 - 1


class Replicated:
    """A partition of two replicas that both are to be in sync."""

    def __init__(self, directory: Path) -> None:
        files = MemoryFiles()
        files.make_directory(directory)
        config = replace(LogConfig(), min_insync_replicas=2)
        self.log = Log(directory, config, files=files)
        self.partition = Partition(PLACE, UUID(int=1), self.log, host_alone())
        self._partition_epoch = 0
        self.in_sync(1, 2)

    def in_sync(self, *isr: int, leader_epoch: int = 0) -> None:
        self._partition_epoch += 1
        state = PartitionMetadata((1, 2), 1, leader_epoch, isr, self._partition_epoch)
        self.partition.lead(state)

    def send(
        self, sequence: int, epoch: int = 0, acks: int = ACKS_ALL, producer: int = PRODUCER
    ) -> LogAppendInfo:
        records = batch([b"%d" % sequence], producer=(producer, epoch, sequence))
        return self.partition.append(records, acks)

    def refuse(self, *sequences: int, epoch: int = 0) -> None:
        for sequence in sequences:
            with pytest.raises(NotEnoughReplicasError):
                self.send(sequence, epoch)

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
    replicated.partition.append(batch([b"9"]), ACKS_ALL)
    replicated.send(1)
    with pytest.raises(OutOfOrderSequenceNumberError):
        replicated.send(3)


def test_what_one_leadership_has_refused_the_next_does_not_know(replicated: Replicated) -> None:
    """Another broker may have taken it meanwhile."""
    replicated.send(0)
    replicated.in_sync(1)
    replicated.refuse(1)
    state = PartitionMetadata((1, 2), 2, 1, (1, 2), 10)
    replicated.partition.follow(state)
    replicated.log.append(batch([b"1"], producer=(PRODUCER, 0, 1)), 1)
    replicated.in_sync(1, 2, leader_epoch=2)
    with pytest.raises(OutOfOrderSequenceNumberError):
        replicated.send(3)
    replicated.send(2)


def test_what_is_damaged_is_told_so(replicated: Replicated) -> None:
    replicated.in_sync(1)
    damaged = batch(producer=(PRODUCER, 0, 0))
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        replicated.partition.append(damaged, ACKS_ALL)
