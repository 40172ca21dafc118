"""Data directories that are lost, at start or later: logs elsewhere go on."""

import errno
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaStorageError
from kafka.structs import TopicPartition

from broker.config.broker import BrokerConfig
from broker.log.files import DiskFiles
from broker.log.manager import CLEAN_SHUTDOWN_FILE, LogManager
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.log.batches import NOW_MS, batch, contents
from tests.broker.log.memory_files import MemoryFiles
from tests.support.present import present

FIRST, SECOND, THIRD = (TopicPartition("t", index) for index in range(3))


class Disks:
    """Two directories, the second of which can be lost."""

    def __init__(self, tmp_path: Path) -> None:
        self.first, self.second = tmp_path / "first", tmp_path / "second"
        self.aside = tmp_path / "aside"
        self.told: list[str] = []

    def open(self, is_member: bool = True) -> LogManager:
        config = BrokerConfig.from_properties({"log.dirs": f"{self.first},{self.second}"})
        on_failed = (lambda: self.told.append("failed")) if is_member else None
        manager = LogManager(config, files=DiskFiles(), on_failed=on_failed)
        manager.open()
        return manager

    def lose(self, path: Path) -> None:
        """Descriptors of its files stay good, as where a network file system is away."""
        path.rename(self.aside / path.name)
        path.write_text("no directory")

    def bring_back(self, path: Path) -> None:
        path.unlink()
        (self.aside / path.name).rename(path)


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    made = Disks(tmp_path)
    made.aside.mkdir()
    manager = made.open()
    for place in (FIRST, SECOND):
        manager.create(place).append(batch([b"a"]), 0)
    assert [log.directory.parent for log in manager.all_logs().values()] == [
        made.first,
        made.second,
    ]
    manager.close()
    return made


def test_one_that_is_lost_at_start_is_done_without(disks: Disks) -> None:
    """Nothing that may lie there is made anew elsewhere, or said to be gone."""
    disks.lose(disks.second)
    manager = disks.open()
    assert disks.told == ["failed"]
    assert contents(present(manager.get(FIRST))) == {0: b"a"}
    for ask in (lambda: manager.create(SECOND, is_new=False), lambda: manager.delete(SECOND)):
        with pytest.raises(KafkaStorageError, match="may be in a data directory that is offline"):
            ask()
    with pytest.raises(KafkaStorageError):
        manager.get(SECOND)
    assert (manager.offline_count, manager.offline_directory_count) == (1, 1)
    assert manager.sizes()[disks.second] is None
    assert manager.create(FIRST, is_new=False) is manager.get(FIRST)
    assert manager.create(THIRD, is_new=True).directory.parent == disks.first
    manager.close()
    disks.bring_back(disks.second)
    again = disks.open()
    assert contents(present(again.get(SECOND))) == {0: b"a"}
    assert again.offline_directory_count == 0
    again.close()


def test_one_whose_own_file_is_damaged_is_done_without(disks: Disks) -> None:
    (disks.second / "meta.properties").write_bytes(b"\xff\xfe\0")
    manager = disks.open()
    assert disks.told == ["failed"]
    assert contents(present(manager.get(FIRST))) == {0: b"a"}
    manager.close()
    with pytest.raises(OSError, match=r"meta\.properties"):
        disks.open(is_member=False)


def test_one_that_is_lost_later_is_found_out_by_its_checkpoints(disks: Disks) -> None:
    manager = disks.open()
    disks.lose(disks.second)
    for _ in range(2):
        manager.checkpoint_high_watermarks({FIRST: 1, SECOND: 1})
    assert disks.told == ["failed"]
    assert manager.high_watermarks() == {FIRST: 1}
    with pytest.raises(KafkaStorageError):
        manager.get(SECOND)
    assert contents(present(manager.get(FIRST))) == {0: b"a"}
    assert (manager.offline_count, manager.offline_directory_count) == (1, 1)
    # What is done for all logs is done for those that are left.
    for upkeep in (manager.flush_pass, manager.retention_pass, manager.delete_pass):
        upkeep()
    assert manager.create(THIRD).directory.parent == disks.first
    manager.close()
    assert disks.told == ["failed"]
    assert (disks.first / CLEAN_SHUTDOWN_FILE).exists()
    assert not (disks.aside / "second" / CLEAN_SHUTDOWN_FILE).exists()


@pytest.mark.parametrize("is_member", [True, False])
def test_a_log_whose_directory_is_away_is_not_said_to_be_deleted(
    disks: Disks, is_member: bool
) -> None:
    """Else its topic is forgotten, and made anew elsewhere, and there are two when it is back."""
    manager = disks.open(is_member)
    disks.lose(disks.second)
    for _ in range(2):
        with pytest.raises((OSError, KafkaStorageError)):
            manager.delete(SECOND)
    with pytest.raises(KafkaStorageError):
        manager.create(SECOND)
    disks.bring_back(disks.second)
    manager.delete(SECOND)
    assert manager.get(SECOND) is None
    assert not (disks.second / "t-1").exists()
    assert manager.create(SECOND).log_end_offset == 0
    manager.close()


def test_what_is_left_of_a_log_that_could_not_be_made_has_no_twin(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next start the one that comes first counts, and the other's records would be lost."""
    manager = disks.open()

    def refuse(*_: Path | DiskFiles) -> None:
        raise OSError(errno.EIO, "the disk has failed")

    with monkeypatch.context() as failing:
        failing.setattr("broker.log.manager.write_topic_id", refuse)
        failing.setattr(DiskFiles, "remove_tree", refuse)
        with pytest.raises(KafkaStorageError, match="t-2"):
            manager.create(THIRD, uuid.uuid4())
    assert not (disks.second / "t-2").exists()
    manager.close()


def test_a_log_is_made_where_there_is_a_directory_that_takes_it(disks: Disks) -> None:
    manager = disks.open(is_member=False)
    (disks.first / "t-2").write_text("in its way")
    assert manager.create(THIRD).directory.parent == disks.second
    manager.close()


def test_a_log_in_two_directories_is_nobodys_to_choose(disks: Disks) -> None:
    """Either may be the one with the newer records. Apache Kafka starts neither."""
    shutil.copytree(disks.second / "t-1", disks.first / "t-1")
    for is_member in (True, False):
        with pytest.raises(KafkaStorageError, match=r"t-1 lies in .*/first and in .*/second"):
            disks.open(is_member)
    shutil.rmtree(disks.first / "t-1")
    manager = disks.open()
    assert contents(present(manager.get(SECOND))) == {0: b"a"}
    manager.close()


def test_without_any_no_broker_starts_and_one_alone_needs_all(disks: Disks) -> None:
    disks.lose(disks.second)
    with pytest.raises(OSError, match="second"):
        disks.open(is_member=False)
    disks.lose(disks.first)
    with pytest.raises(OSError, match="first"):
        disks.open()


def test_a_deleted_log_may_be_removed_by_hand(disks: Disks) -> None:
    """To have its room at once, say: that is no reason to do without the directory."""
    manager = disks.open()
    manager.update_config(
        BrokerConfig.from_properties({"log.dirs": "x", "log.segment.delete.delay.ms": "0"})
    )
    manager.delete(FIRST)
    (gone,) = disks.first.glob("*-delete")
    shutil.rmtree(gone)
    manager.delete_pass()
    assert disks.told == []
    assert manager.create(THIRD).directory.parent == disks.first
    manager.close()


class InMemory:
    """A log whose disk can be made to fail, of a broker alone or of a cluster's member."""

    def __init__(self, is_member: bool) -> None:
        self.is_member = is_member
        self.files = MemoryFiles()
        self.told: list[str] = []
        on_failed = (lambda: self.told.append("failed")) if is_member else None
        config = BrokerConfig.from_properties({"log.dirs": "/data"})
        self.manager = LogManager(config, files=self.files, on_failed=on_failed)
        self.manager.open()
        self.log = self.manager.create(FIRST)

    def check_offline(self) -> None:
        """Where others have it, and nowhere else."""
        assert self.told == ["failed"] * self.is_member
        if self.is_member:
            with pytest.raises(KafkaStorageError):
                self.manager.get(FIRST)
        else:
            assert self.manager.get(FIRST) is self.log
        self.manager.close()


@pytest.mark.parametrize("is_member", [True, False])
@pytest.mark.parametrize(
    "read",
    [
        lambda log: log.read(1, 1000, 2),
        lambda log: log.read_committed(1, 1000, 2),
        lambda log: log.offset_for_timestamp(1),
        lambda log: log.offset_of_max_timestamp(),
    ],
)
def test_a_log_that_cannot_be_read_is_offline_where_others_have_it(
    is_member: bool, read: Callable[[Any], Any]
) -> None:
    memory = InMemory(is_member)
    files, log = memory.files, memory.log
    for _ in range(2):
        log.append(batch([b"a"]), 0)
    read(log)
    files.fail_next("pread")
    with pytest.raises(KafkaStorageError, match="read failed"):
        read(log)
    memory.check_offline()


@pytest.mark.parametrize("is_member", [True, False])
@pytest.mark.parametrize("by_whom", ["read", "sent"])
def test_a_log_whose_records_do_not_come_from_disk_is_offline_where_others_have_it(
    is_member: bool, by_whom: str
) -> None:
    """Where they lie is known: whoever has that reads them, or has the kernel send them."""
    memory = InMemory(is_member)
    files, log = memory.files, memory.log
    log.append(batch([b"a"]), 0)
    found = present(log.read(0, 100, 1))
    if by_whom == "read":
        files.fail_next("pread")
        with pytest.raises(OSError, match="Input/output error"):
            found.read()
    else:
        found.not_read(OSError(errno.EIO, "Input/output error"))
    memory.check_offline()


@pytest.mark.parametrize("is_member", [True, False])
@pytest.mark.parametrize("suffix", ["log", "index", "timeindex", "txnindex"])
def test_a_log_of_which_a_file_was_cut_is_offline_where_others_have_it(
    tmp_path: Path, is_member: bool, suffix: str
) -> None:
    """By a tool that turns over what is named *.log, say, or a file system that lost its end."""
    told = []
    on_failed = (lambda: told.append("failed")) if is_member else None
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path)})
    manager = LogManager(config, clock=lambda: NOW_MS, on_failed=on_failed)
    manager.open()
    log = manager.create(FIRST)
    for number in range(3):
        log.append(batch([b"." * 5000], timestamp_ms=NOW_MS + number), 0)
    log.append(batch([b"t"], producer=(7, 0, 0), transactional=True), 0, transactional=True)
    log.append_end_marker(7, 0, TransactionMarker(False, 0), 0)
    log.roll()
    log.append(batch([b"a"]), 0)
    log.roll()
    reads: list[Callable[[], object]] = [
        lambda: log.read(1, 1000, 5),
        lambda: present(log.read(0, 6000, 5)).read(),
        lambda: log.offset_for_timestamp(NOW_MS + 2),
        lambda: log.read_committed(2, 1000, 5),
    ]
    kept = present(log.read(0, 6000, 5))
    for read in reads:
        read()
    os.truncate(log.directory / f"{0:020d}.{suffix}", 4)
    failed = 0
    for read in reads:
        try:
            read()
        except (KafkaStorageError, OSError):
            failed += 1
    assert failed
    if suffix == "log":
        with pytest.raises(OSError, match="ends"):
            kept.read()
    assert told == ["failed"] * is_member
    assert present(log.read(5, 100, 6)).read()
    assert log.offset_for_timestamp(NOW_MS + 60_000) is None
    manager.close()


def test_what_was_cut_off_while_it_is_sent_is_no_failure_of_the_disk(disks: Disks) -> None:
    """A follower's fetch may have found it as this broker still led."""
    manager = disks.open()
    log = present(manager.get(FIRST))
    log.append(batch([b"b"]), 0)
    found = present(log.read(1, 1000, 2))
    log.truncate_to(1)
    with pytest.raises(OSError, match="ends"):
        found.read()
    found.not_read(OSError(errno.EIO, "log file ends"))
    assert disks.told == []
    assert manager.get(FIRST) is log
    manager.close()
