"""Transactions as the log sees them: what is stable, what was aborted, and both after a crash."""

import dataclasses
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    KafkaStorageError,
    OutOfOrderSequenceNumberError,
    TransactionCoordinatorFencedError,
    UnknownProducerIdError,
)
from kafka.record.memory_records import MemoryRecords

from broker.config.log import LogConfig
from broker.log.checkpoint import LogCheckpoint
from broker.log.log import Log, LogAppendInfo
from pyspark_kafkalog.record.batch import seal
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.log.batches import batch, bytes_of
from tests.broker.log.conftest import Clock
from tests.broker.log.memory_files import MemoryFiles

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200, retention_ms=-1)
COMMIT = TransactionMarker(is_commit=True, coordinator_epoch=3)
ABORT = TransactionMarker(is_commit=False, coordinator_epoch=3)


@pytest.fixture
def open_log(directory: Path, clock: Clock, files: MemoryFiles) -> Callable[..., Log]:
    def open_log(config: LogConfig = SMALL, **known: Any) -> Log:
        return Log(directory, config, clock, files, LogCheckpoint(**known))

    return open_log


@pytest.fixture
def log(open_log: Callable[..., Log]) -> Log:
    return open_log()


class Producers:
    """Transactional producers that number their batches."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.sequences: dict[int, int] = {}

    def send(self, producer_id: int, count: int = 1, epoch: int = 0) -> int:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + count
        records = batch(
            [b"%d" % producer_id + b"." * 30] * count,
            producer=(producer_id, epoch, sequence),
            transactional=True,
        )
        return self.log.append(records, 0, transactional=True).first_offset

    def end(self, producer_id: int, marker: TransactionMarker, epoch: int = 0) -> int:
        return self.log.append_end_marker(producer_id, epoch, marker, 0).first_offset


def aborted_in(
    log: Log, offset: int, max_bytes: int = 10**6, bound: int | None = None
) -> list[Any]:
    end = log.log_end_offset if bound is None else bound
    found = log.read_committed(offset, max_bytes, end)[1]
    return [(each.producer_id, each.first_offset) for each in found]


def committed(log: Log) -> list[tuple[Any, Any]]:
    """(offset, producer id) of every record that a read_committed consumer keeps."""
    found = []
    stable = log.last_stable_offset(log.log_end_offset)
    offset = log.log_start_offset
    while offset < stable:
        data, aborted = log.read_committed(offset, 500, stable)
        skipped = sorted((each.first_offset, each.producer_id) for each in aborted)
        records = MemoryRecords(bytes_of(data))
        skipping = set()
        while (each := records.next_batch()) is not None:
            while skipped and skipped[0][0] <= each.base_offset:
                skipping.add(skipped.pop(0)[1])
            offset = each.base_offset + each.last_offset_delta + 1
            if each.is_control_batch:
                skipping.discard(each.producer_id)
            elif each.producer_id not in skipping:
                found += [(record.offset, each.producer_id) for record in each]
    return found


class TestLastStableOffset:
    def test_is_the_first_open_transaction(self, log: Log) -> None:
        producers = Producers(log)
        log.append(batch([b"a"]), 0)
        assert log.last_stable_offset(log.log_end_offset) == log.log_end_offset
        producers.send(1, 2)
        producers.send(2)
        assert log.last_stable_offset(log.log_end_offset) == 1
        producers.end(1, COMMIT)
        assert log.last_stable_offset(log.log_end_offset) == 3
        producers.end(2, ABORT)
        assert log.last_stable_offset(log.log_end_offset) == log.log_end_offset

    def test_waits_for_the_marker_to_be_committed(self, log: Log) -> None:
        producers = Producers(log)
        producers.send(1)
        marker_offset = producers.end(1, COMMIT)
        assert log.last_stable_offset(marker_offset) == 0
        assert log.last_stable_offset(marker_offset + 1) == marker_offset + 1

    def test_a_marker_without_records_ends_nothing(self, log: Log) -> None:
        Producers(log).end(1, ABORT)
        assert log.last_stable_offset(log.log_end_offset) == log.log_end_offset
        assert aborted_in(log, 0) == []

    def test_is_never_before_the_start_of_the_log(self, log: Log) -> None:
        producers = Producers(log)
        for _ in range(5):
            producers.send(1)
        log.advance_log_start_offset(3)
        assert log.last_stable_offset(log.log_end_offset) == 3

    def test_is_never_behind_what_is_committed(self, log: Log) -> None:
        """A transaction that begins behind that keeps nothing before it from being read."""
        producers = Producers(log)
        for _ in range(3):
            log.append(batch([b"a"]), 0)
        producers.send(1)
        assert [log.last_stable_offset(committed) for committed in (2, 3, 4)] == [2, 3, 3]

    def test_goes_back_with_a_truncation(self, log: Log) -> None:
        producers = Producers(log)
        producers.send(1)
        marker_offset = producers.end(1, ABORT)
        log.truncate_to(marker_offset)
        assert log.last_stable_offset(log.log_end_offset) == 0
        assert aborted_in(log, 0) == []

    @pytest.mark.parametrize("was_clean", [True, False])
    def test_is_known_after_a_restart(
        self, open_log: Callable[..., Log], log: Log, was_clean: bool
    ) -> None:
        producers = Producers(log)
        producers.send(1)
        for _ in range(20):
            producers.send(2)
            producers.end(2, ABORT)
        if was_clean:
            log.close()
        again = open_log(was_clean=was_clean, recovery_point=log.recovery_point)
        assert again.last_stable_offset(again.log_end_offset) == 0
        producers.log = again
        assert producers.end(1, COMMIT) == 41
        assert again.last_stable_offset(again.log_end_offset) == again.log_end_offset


class TestAborted:
    def test_are_named_with_the_read_that_touches_them(self, log: Log) -> None:
        producers = Producers(log)
        producers.send(1)
        producers.send(2)
        producers.end(1, ABORT)
        producers.end(2, COMMIT)
        producers.send(3)
        producers.end(3, ABORT)
        assert aborted_in(log, 0) == [(1, 0), (3, 4)]
        assert aborted_in(log, 0, bound=4) == [(1, 0)]
        assert aborted_in(log, 3) == [(3, 4)]

    def test_a_segment_without_any_has_no_file(
        self, log: Log, directory: Path, files: MemoryFiles
    ) -> None:
        producers = Producers(log)
        producers.send(1)
        producers.end(1, COMMIT)
        assert not files.exists(directory / f"{0:020d}.txnindex")
        producers.send(1)
        producers.end(1, ABORT)
        assert bytes(files.names[directory / f"{0:020d}.txnindex"].data) == struct.pack(
            ">hqqqq", 0, 1, 2, 3, 4
        )

    @pytest.mark.parametrize("crash", ["clean", "killed", "index lost", "index damaged"])
    def test_are_known_after_a_restart(
        self,
        open_log: Callable[..., Log],
        log: Log,
        directory: Path,
        files: MemoryFiles,
        crash: str,
    ) -> None:
        producers = Producers(log)
        for number in range(30):
            producers.send(number % 3)
            if number % 2:
                producers.end(number % 3, (ABORT, COMMIT)[number % 4 == 1])
        expected = committed(log)
        assert log.segment_count > 3
        recovery_point = 0
        if crash == "clean":
            log.close()
            recovery_point = log.recovery_point
        aborted = aborted_in(log, 0, 10, 5)
        indexes = [path for path in files.names if path.suffix == ".txnindex"]
        assert len(indexes) > 2
        for path in indexes:
            if crash == "index lost":
                files.remove(path)
            elif crash == "index damaged":
                files.names[path].data[10] ^= 0x80
                del files.names[path].data[-3:]
        again = open_log(was_clean=crash == "clean", recovery_point=recovery_point)
        assert committed(again) == expected
        assert aborted_in(again, 0, 10, 5) == aborted

    def test_a_damaged_index_is_rebuilt_also_after_a_clean_stop(
        self, open_log: Callable[..., Log], log: Log, directory: Path, files: MemoryFiles
    ) -> None:
        producers = Producers(log)
        for _ in range(20):
            producers.send(1)
            producers.end(1, ABORT)
        expected = aborted_in(log, 0)
        log.close()
        path = min(path for path in files.names if path.suffix == ".txnindex")
        del files.names[path].data[5:]
        again = open_log(was_clean=True, recovery_point=log.recovery_point)
        assert aborted_in(again, 0) == expected

    def test_what_a_full_disk_refused_is_not_there(self, log: Log, files: MemoryFiles) -> None:
        producers = Producers(log)
        producers.send(1)
        for failing in range(2):  # the room for the index entry, then the batch
            files.fail_next("pwrite", after=failing)
            with pytest.raises(Exception, match="No space left"):
                producers.end(1, ABORT)
            assert log.log_end_offset == 1
        assert producers.end(1, ABORT) == 1
        assert aborted_in(log, 0) == [(1, 0)]

    @pytest.mark.parametrize("refused", ["pwrite", "pread"])
    def test_what_could_not_be_noted_as_aborted_is_nothing_to_who_reads_what_is_committed(
        self, open_log: Callable[..., Log], log: Log, files: MemoryFiles, refused: str
    ) -> None:
        """Its marker is there: the index is made of it when the log is opened again."""
        producers = Producers(log)
        if refused == "pread":  # of the entry before
            producers.send(1)
            producers.end(1, ABORT)
        producers.send(2)
        # What is written first is the room for the entry, and the marker.
        files.fail_next(refused, after=2 if refused == "pwrite" else 0)
        producers.end(2, ABORT)
        with pytest.raises(KafkaStorageError, match="aborted"):
            committed(log)
        assert log.read(0, 10**6, log.log_end_offset) is not None
        with pytest.raises(KafkaStorageError, match="takes no more"):
            producers.send(2)
        assert committed(open_log()) == []

    def test_whoever_has_the_other_replicas_hears_of_it(
        self, directory: Path, clock: Clock, files: MemoryFiles
    ) -> None:
        told: list[Log] = []
        log = Log(directory, SMALL, clock, files, LogCheckpoint(), on_refused=told.append)
        producers = Producers(log)
        producers.send(1)
        files.fail_next("pwrite", after=2)
        producers.end(1, ABORT)
        assert told == [log]


class TestFencing:
    def test_a_marker_of_an_older_producer_or_coordinator_is_refused(self, log: Log) -> None:
        producers = Producers(log)
        producers.send(1, epoch=5)
        with pytest.raises(InvalidProducerEpochError):
            producers.end(1, COMMIT, epoch=4)
        producers.end(1, COMMIT, epoch=5)
        with pytest.raises(TransactionCoordinatorFencedError):
            producers.end(1, dataclasses.replace(COMMIT, coordinator_epoch=2), epoch=5)

    def test_after_a_marker_with_a_new_epoch_the_sequence_begins_at_zero(
        self, open_log: Callable[..., Log]
    ) -> None:
        log = open_log()
        producers = Producers(log)
        producers.send(1, 2, epoch=5)
        producers.end(1, COMMIT, epoch=6)
        for again in (log, open_log()):
            with pytest.raises(OutOfOrderSequenceNumberError, match="expected 0"):
                again.append(batch([b"2nd"], producer=(1, 6, 1)), 0)
        log.append(batch([b"1st"], producer=(1, 6, 0)), 0)
        log.append(batch([b"2nd"], producer=(1, 6, 1)), 0)

    def test_a_batch_outside_the_open_transaction_is_refused(self, log: Log) -> None:
        Producers(log).send(1)
        with pytest.raises(InvalidTxnStateError):
            log.append(batch([b"x"], producer=(1, 0, 1)), 0)

    def test_a_transactional_batch_needs_the_callers_word(self, log: Log) -> None:
        with pytest.raises(InvalidTxnStateError):
            log.append(batch([b"x"], producer=(1, 0, 0), transactional=True), 0)

    def test_a_producer_with_an_open_transaction_does_not_expire(
        self, log: Log, clock: Clock
    ) -> None:
        producers = Producers(log)
        producers.send(1)
        producers.send(2)
        producers.end(2, COMMIT)
        clock.now_ms += 10_000
        log.remove_expired_producers(1000)
        assert set(log.producers.entries) == {1}
        assert log.last_stable_offset(log.log_end_offset) == 0


def unnumbered(values: list[Any], producer_id: int, epoch: int) -> memoryview:
    records = batch(values, producer=(producer_id, epoch, 0), transactional=True)
    seal(records, producer_id, epoch)
    return records


class TestBatchesOfACoordinator:
    """Written in a producer's name, by others than itself: without sequence numbers."""

    def write(self, log: Log, value: bytes, epoch: int = 0, producer_id: int = 1) -> LogAppendInfo:
        records = unnumbered([value] * 3, producer_id, epoch)
        return log.append(records, 0, transactional=True, numbered=False)

    def test_are_all_appended_and_are_one_transaction(self, log: Log) -> None:
        written = [self.write(log, b"a"), self.write(log, b"a"), self.write(log, b"b")]
        assert [each.first_offset for each in written] == [0, 3, 6]
        assert not any(each.is_duplicate for each in written)
        assert log.last_stable_offset(log.log_end_offset) == 0
        log.append_end_marker(1, 0, COMMIT, 0)
        assert log.last_stable_offset(log.log_end_offset) == log.log_end_offset

    def test_begin_an_epoch_as_they_go_on_in_one(self, log: Log) -> None:
        self.write(log, b"a", epoch=1)
        self.write(log, b"b", epoch=2)
        with pytest.raises(InvalidProducerEpochError):
            self.write(log, b"c", epoch=1)

    @pytest.mark.parametrize("was_clean", [True, False])
    def test_are_known_after_a_restart(
        self, open_log: Callable[..., Log], log: Log, was_clean: bool
    ) -> None:
        self.write(log, b"a", epoch=3)
        before = log.producers.entries[1]
        log.close() if was_clean else log.flush()
        again = open_log(was_clean=was_clean)
        assert again.producers.entries[1].batches == before.batches
        assert again.last_batches() == log.last_batches()
        assert again.last_stable_offset(again.log_end_offset) == 0
        with pytest.raises(InvalidProducerEpochError):
            self.write(again, b"b", epoch=2)
        self.write(again, b"b", epoch=3)

    def test_are_not_taken_from_clients(self, log: Log) -> None:
        with pytest.raises(InvalidRecordError):
            log.append(unnumbered([b"x"], 1, 0), 0, transactional=True)
        numbered = batch([b"x"], producer=(1, 0, 0), transactional=True)
        with pytest.raises(InvalidRecordError):
            log.append(numbered, 0, transactional=True, numbered=False)


class Model:
    """What was appended, in order: (offset, producer id, records or marker)."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, int | TransactionMarker]] = []

    def cut(self, end_offset: int) -> None:
        self.events = [event for event in self.events if event[0] < end_offset]

    def state(self) -> tuple[dict[int, list[int]], list[tuple[int, int]]]:
        """(what is open by producer, what was committed as (offset, producer id))."""
        open_records: dict[int, list[int]] = {}
        kept: list[tuple[int, int]] = []
        for offset, producer_id, what in self.events:
            if isinstance(what, int):
                records = open_records.setdefault(producer_id, [])
                records += range(offset, offset + what)
                continue
            ended = open_records.pop(producer_id, [])
            kept += [(record, producer_id) for record in ended if what.is_commit]
        return open_records, sorted(kept)

    def sequences(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for _, producer_id, what in self.events:
            if isinstance(what, int):
                counts[producer_id] = counts.get(producer_id, 0) + what
        return counts


@pytest.mark.parametrize("seed", range(40))
def test_a_reader_keeps_what_was_committed_and_nothing_else(
    seed: int, directory: Path, clock: Clock
) -> None:
    """Random transactions and crashes against a list; the seed replays a failure."""
    choose = random.Random(seed)
    files = MemoryFiles()
    files.make_directory(directory)
    log = Log(directory, SMALL, clock, files)
    producers, model = Producers(log), Model()
    steps = ["send", "send", "send", "commit", "abort", "flush", "roll", "stop", "kill", "power"]
    for _ in range(80):
        step = choose.choice(steps)
        producer_id = choose.randrange(4)
        if step == "send":
            count = choose.randint(1, 3)
            model.events.append((producers.send(producer_id, count), producer_id, count))
        elif step in ("commit", "abort"):
            marker = COMMIT if step == "commit" else ABORT
            model.events.append((producers.end(producer_id, marker), producer_id, marker))
        elif step == "flush":
            log.flush()
        elif step == "roll":
            log.roll()
        else:
            if step == "stop":
                log.close()
            point = log.recovery_point
            is_power_loss = step == "power"
            files = files.crash(power_loss=is_power_loss, keep_unsynced=choose.randrange(300))
            log = Log(
                directory, SMALL, clock, files, LogCheckpoint(point, was_clean=step == "stop")
            )
            assert is_power_loss or log.log_end_offset == producers.log.log_end_offset
            assert log.log_end_offset >= point
            model.cut(log.log_end_offset)
            producers.log, producers.sequences = log, model.sequences()
        open_records, kept = model.state()
        stable = min((offsets[0] for offsets in open_records.values()), default=log.log_end_offset)
        assert log.last_stable_offset(log.log_end_offset) == stable
        assert committed(log) == [row for row in kept if row[0] < stable]


def test_a_batch_that_was_aborted_is_not_said_to_be_there(log: Log) -> None:
    """librdkafka gives the next transaction's records its numbers, where its answer was lost."""

    def send(value: bytes, sequence: int, count: int = 1) -> LogAppendInfo:
        records = batch([value] * count, producer=(1, 0, sequence), transactional=True)
        return log.append(records, 0, transactional=True)

    send(b"aborted", 0)
    assert send(b"aborted", 0).is_duplicate
    log.append_end_marker(1, 0, ABORT, 0)
    with pytest.raises(UnknownProducerIdError):
        send(b"another", 0)
    with pytest.raises(UnknownProducerIdError):
        send(b"others", 0, 5)
    send(b"committed", 1)
    log.append_end_marker(1, 0, COMMIT, 0)
    assert send(b"committed", 1).is_duplicate
    send(b"aborted too", 2)
    log.append_end_marker(1, 0, ABORT, 0)
    for sequence in (0, 2):
        with pytest.raises(UnknownProducerIdError):
            send(b"another", sequence)
    records = batch([b"anew"], producer=(1, 1, 0), transactional=True)
    log.append(records, 0, transactional=True)
    assert log.append(records, 0, transactional=True).is_duplicate
