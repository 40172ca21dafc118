"""Where a follower's log is cut, by what its leader says of an epoch."""

from pathlib import Path

import pytest

from broker.config.log import LogConfig
from broker.log.leader_epoch import UNDEFINED_EPOCH, UNDEFINED_OFFSET
from broker.log.log import Log
from broker.replica.truncation import truncation_offset
from pyspark_kafkalog.protocol.fetch import EpochEndOffset
from tests.broker.log.batches import batch
from tests.broker.log.memory_files import MemoryFiles


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Five records: two of epoch 1, three of epoch 3."""
    files = MemoryFiles()
    files.make_directory(tmp_path / "t-0")
    made = Log(tmp_path / "t-0", LogConfig(), files=files)
    for epoch in (1, 1, 3, 3, 3):
        made.append(batch(), epoch)
    return made


@pytest.mark.parametrize(
    ("epoch", "end_offset", "cut_at"),
    [
        (3, 5, 5),  # both agree: nothing goes
        (3, 9, 5),
        (3, 4, 4),
        (1, 2, 2),
        (1, 7, 2),  # the leader wrote on in epoch 1: what is of epoch 3 here is nobody else's
        (2, 4, 2),  # unknown here: cut at the end of the one below, and ask again
        (UNDEFINED_EPOCH, 1, 1),
        (UNDEFINED_EPOCH, UNDEFINED_OFFSET, 4),  # a leader without epochs: the high watermark
    ],
)
def test_where_it_is_cut(log: Log, epoch: int, end_offset: int, cut_at: int) -> None:
    assert truncation_offset(log, 4, EpochEndOffset(epoch, end_offset)) == cut_at


def test_a_high_watermark_beyond_the_end_cuts_nothing(log: Log) -> None:
    leader = EpochEndOffset(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
    assert truncation_offset(log, 8, leader) == 5
