"""The snapshot file: Kafka's bytes, and what damage does to it."""

import struct
from pathlib import Path

import pytest

from broker.log.producer_state import ProducerStateManager
from pyspark_kafkalog.record.batch import read_header
from pyspark_kafkalog.record.crc import crc32c
from tests.broker.log.batches import batch
from tests.broker.log.memory_files import MemoryFiles


@pytest.fixture
def producers(directory: Path, files: MemoryFiles) -> ProducerStateManager:
    return ProducerStateManager(directory, files)


def take_in(
    producers: ProducerStateManager, first_offset: int, count: int, producer: tuple[int, int, int]
) -> None:
    records = batch([b"x"] * count, producer=producer, timestamp_ms=99)
    struct.pack_into(">q", records, 0, first_offset)
    producers.update(read_header(records), 1)


def test_a_snapshot_has_kafkas_bytes(
    producers: ProducerStateManager, directory: Path, files: MemoryFiles
) -> None:
    take_in(producers, 10, 3, (77, 2, 5))
    producers.take_snapshot(13)
    entry = struct.pack(">qhiqiqiq", 77, 2, 7, 12, 2, 99, -1, -1)
    checked = struct.pack(">i", 1) + entry
    expected = struct.pack(">hI", 1, crc32c(checked)) + checked
    assert files.read(directory / "00000000000000000013.snapshot") == expected


def test_a_snapshot_is_loaded_with_the_last_batch(
    producers: ProducerStateManager, directory: Path, files: MemoryFiles
) -> None:
    for number in range(7):
        take_in(producers, number, 1, (77, 2, number))
    producers.take_snapshot(7)
    again = ProducerStateManager(directory, files)
    assert again.load_newest(0, 7, 5) == 7
    (entry,) = again.entries.values()
    assert (entry.producer_epoch, entry.last_sequence, entry.last_seen_ms) == (2, 6, 5)
    assert [each.last_offset for each in entry.batches] == [6]


def test_the_newest_usable_snapshot_counts(
    producers: ProducerStateManager, directory: Path, files: MemoryFiles
) -> None:
    for offset in (3, 5, 9):
        take_in(producers, offset - 1, 1, (offset, 0, 0))
        producers.take_snapshot(offset)
    data = bytearray(files.read(directory / f"{5:020d}.snapshot"))
    data[10] ^= 1
    files.replace(directory / f"{5:020d}.snapshot", bytes(data))
    again = ProducerStateManager(directory, files)
    assert again.load_newest(0, 8, 1) == 3
    assert set(again.entries) == {3}
    assert again.snapshot_offsets() == [3]


def test_a_snapshot_below_the_log_is_not_taken(producers: ProducerStateManager) -> None:
    take_in(producers, 2, 1, (1, 0, 0))
    producers.take_snapshot(3)
    assert producers.load_newest(4, 9, 1) == 4
    assert producers.entries == {}


def test_every_cut_and_every_flipped_bit_is_noticed(
    producers: ProducerStateManager, directory: Path, files: MemoryFiles
) -> None:
    take_in(producers, 2, 1, (1, 0, 0))
    producers.take_snapshot(3)
    path = directory / f"{3:020d}.snapshot"
    data = files.read(path)
    for size in range(len(data)):
        files.replace(path, data[:size])
        assert producers.load_newest(0, 9, 1) == 0
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        files.replace(path, bytes(damaged))
        assert producers.load_newest(0, 9, 1) == 0
