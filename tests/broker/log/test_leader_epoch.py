"""LeaderEpochFileCache: cases named as Kafka's LeaderEpochFileCacheTest names them."""

from pathlib import Path

import pytest

from broker.log.leader_epoch import LeaderEpochFileCache
from tests.broker.log.memory_files import MemoryFiles


@pytest.fixture
def cache(directory: Path, files: MemoryFiles) -> LeaderEpochFileCache:
    cache = LeaderEpochFileCache(directory, files)
    for epoch, start_offset in [(2, 6), (3, 8), (5, 12)]:
        cache.assign(epoch, start_offset)
    return cache


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, (-1, -1)),
        (1, (1, 6)),
        (2, (2, 8)),
        (3, (3, 12)),
        (4, (3, 12)),
        (5, (5, 20)),
        (6, (-1, -1)),
    ],
)
def test_the_end_of_an_epoch_is_the_start_of_the_next_one(
    cache: LeaderEpochFileCache, epoch: int, expected: tuple[int, int]
) -> None:
    assert cache.end_offset_for(epoch, 20) == expected


def test_nothing_is_known_of_an_empty_log(directory: Path, files: MemoryFiles) -> None:
    cache = LeaderEpochFileCache(directory, files)
    assert cache.latest_epoch is None
    assert cache.end_offset_for(0, 0) == (-1, -1)
    assert cache.epoch_for_offset(0) is None


@pytest.mark.parametrize(("offset", "epoch"), [(5, None), (6, 2), (7, 2), (8, 3), (99, 5)])
def test_the_epoch_of_an_offset(
    cache: LeaderEpochFileCache, offset: int, epoch: int | None
) -> None:
    assert cache.epoch_for_offset(offset) == epoch


def test_a_known_or_negative_epoch_changes_nothing(cache: LeaderEpochFileCache) -> None:
    before = cache.entries
    cache.assign(5, 50)
    cache.assign(-1, 60)
    assert cache.entries == before


def test_a_contradiction_drops_the_older_entries(cache: LeaderEpochFileCache) -> None:
    cache.assign(6, 9)
    assert cache.entries == ((2, 6), (3, 8), (6, 9))
    cache.assign(4, 20)
    assert cache.entries == ((2, 6), (3, 8), (4, 20))


@pytest.mark.parametrize(("offset", "kept"), [(13, 3), (12, 2), (9, 2), (8, 1), (6, 0), (0, 0)])
def test_truncation_from_the_end(cache: LeaderEpochFileCache, offset: int, kept: int) -> None:
    entries = cache.entries
    cache.truncate_from_end(offset)
    assert cache.entries == entries[:kept]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (5, ((2, 6), (3, 8), (5, 12))),
        (7, ((2, 7), (3, 8), (5, 12))),
        (8, ((3, 8), (5, 12))),
        (11, ((3, 11), (5, 12))),
        (50, ((5, 50),)),
    ],
)
def test_truncation_from_the_start_keeps_the_epoch_in_force(
    cache: LeaderEpochFileCache, offset: int, expected: tuple[tuple[int, int], ...]
) -> None:
    cache.truncate_from_start(offset)
    assert cache.entries == expected


def test_is_kept_in_kafkas_file(
    cache: LeaderEpochFileCache, directory: Path, files: MemoryFiles
) -> None:
    assert files.read(directory / "leader-epoch-checkpoint") == b"0\n3\n2 6\n3 8\n5 12\n"
    again = LeaderEpochFileCache(directory, files)
    assert again.load()
    assert again.entries == cache.entries


def test_a_sync_keeps_it_over_a_power_loss(
    cache: LeaderEpochFileCache, directory: Path, files: MemoryFiles
) -> None:
    cache.sync()
    cache.assign(9, 90)
    again = LeaderEpochFileCache(directory, files.crash(power_loss=True))
    assert again.load()
    assert again.entries == ((2, 6), (3, 8), (5, 12))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0\n",
        "1\n0\n",
        "0\n2\n1 2\n",
        "0\n1\n1 2",
        "0\n1\n1\n",
        "0\n2\n5 1\n4 2\n",
        "0\n1\na b\n",
    ],
)
def test_a_damaged_file_is_no_knowledge(directory: Path, files: MemoryFiles, text: str) -> None:
    files.replace(directory / "leader-epoch-checkpoint", text.encode())
    cache = LeaderEpochFileCache(directory, files)
    assert not cache.load()
    assert cache.entries == ()
