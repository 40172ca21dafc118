from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from broker.log.checkpoint import OffsetCheckpointFile
from tests.broker.log.memory_files import MemoryFiles

OFFSETS = {TopicPartition("b-c", 1): 0, TopicPartition("a", 10): 2**62}


@pytest.fixture
def path(directory: Path) -> Path:
    return directory / "recovery-point-offset-checkpoint"


def test_has_kafkas_text(path: Path, files: MemoryFiles) -> None:
    OffsetCheckpointFile(path, files).write(OFFSETS)
    assert files.read(path) == b"0\n2\na 10 4611686018427387904\nb-c 1 0\n"
    assert OffsetCheckpointFile(path, files).read() == OFFSETS


def test_survives_power_loss(path: Path, files: MemoryFiles) -> None:
    OffsetCheckpointFile(path, files).write(OFFSETS)
    assert OffsetCheckpointFile(path, files.crash(power_loss=True)).read() == OFFSETS


def test_every_cut_but_the_whole_is_empty(path: Path, files: MemoryFiles) -> None:
    OffsetCheckpointFile(path, files).write(OFFSETS)
    data = files.read(path)
    for size in range(len(data)):
        files.replace(path, data[:size])
        assert OffsetCheckpointFile(path, files).read() == {}


@pytest.mark.parametrize(
    "text", ["x\n0\n", "0\n1\na b\n", "0\n1\na b c d\n", "0\n1\na x 5\n", "0\n1\na 5 x\n"]
)
def test_damage_is_no_knowledge(path: Path, files: MemoryFiles, text: str) -> None:
    files.replace(path, text.encode())
    assert OffsetCheckpointFile(path, files).read() == {}


def test_an_empty_file_is_how_kafka_begins_one(
    path: Path, files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.replace(path, b"")
    assert OffsetCheckpointFile(path, files).read() == {}
    assert not caplog.records
    files.replace(path, b"\xff")
    assert OffsetCheckpointFile(path, files).read() == {}
    assert "checkpoint.damaged" in caplog.text


def test_a_missing_file_is_empty(path: Path, files: MemoryFiles) -> None:
    assert OffsetCheckpointFile(path, files).read() == {}
