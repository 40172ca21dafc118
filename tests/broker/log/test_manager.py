"""LogManager: data directories, restarts, upkeep."""

import json
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import InconsistentClusterIdError, KafkaStorageError
from kafka.structs import TopicPartition

from broker.config.broker import BrokerConfig
from broker.config.definition import ConfigError
from broker.log.files import DiskFiles, File
from broker.log.manager import CLEAN_SHUTDOWN_FILE, LogManager
from tests.broker.log.batches import NOW_MS, batch, contents
from tests.broker.log.conftest import Clock
from tests.broker.log.memory_files import MemoryFiles
from tests.support.patience import EVENT_S
from tests.support.present import present

ORDERS = TopicPartition("orders", 0)
DASHED = TopicPartition("a-b-delete", 12)


def opened(
    files: MemoryFiles | DiskFiles,
    clock: Clock,
    overrides: Mapping[str, dict[str, str]] | None = None,
    **properties: str,
) -> LogManager:
    given = {"log.dirs": "/data"} | {k.replace("_", "."): v for k, v in properties.items()}
    topics = {} if overrides is None else overrides
    manager = LogManager(
        BrokerConfig.from_properties(given),
        lambda topic: topics.get(topic, {}),
        clock=clock,
        files=files,
    )
    manager.open()
    return manager


def data(files: MemoryFiles, name: str) -> str:
    return files.read(next(path for path in files.names if path.name == name)).decode()


def test_keeps_logs_over_a_clean_restart(files: MemoryFiles, clock: Clock) -> None:
    manager = opened(files, clock)
    topic_id = uuid.UUID(int=5)
    log = manager.create(ORDERS, topic_id)
    assert manager.create(ORDERS) is log
    manager.create(DASHED)
    log.append(batch([b"a", b"b"]), 3)
    manager.close()
    assert json.loads(data(files, ".kafka_cleanshutdown")) == {"version": 0, "brokerEpoch": -1}
    assert "\norders 0 2\n" in data(files, "recovery-point-offset-checkpoint")
    assert data(files, "partition.metadata") == ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABQ\n")
    again = opened(files.crash(power_loss=True), clock)
    assert set(again.all_logs()) == {ORDERS, DASHED}
    assert contents(present(again.get(ORDERS))) == {0: b"a", 1: b"b"}
    assert again.topic_id(ORDERS) == topic_id
    assert again.topic_id(DASHED) is None


def test_a_log_that_the_disk_has_refused_is_offline_where_others_have_it(
    files: MemoryFiles, clock: Clock
) -> None:
    """Told once, until the log is deleted or the broker starts again. A broker alone goes on."""
    told = []
    config = BrokerConfig.from_properties({"log.dirs": "/data"})
    manager = LogManager(config, clock=clock, files=files, on_failed=lambda: told.append("failed"))
    manager.open()
    other, log = manager.create(DASHED), manager.create(ORDERS)
    log.append(batch([b"a"]), 0)
    for _ in range(2):
        files.fail_next("pwrite")
        with pytest.raises(KafkaStorageError):
            log.append(batch([b"b"]), 0)
    assert told == ["failed"]
    assert (manager.offline_count, manager.offline_directory_count) == (1, 0)
    for offline in (manager.get, manager.create):
        with pytest.raises(KafkaStorageError):
            offline(ORDERS)
    assert manager.get(DASHED) is other
    files.fail_next("pwrite")
    with pytest.raises(KafkaStorageError):
        other.append(batch([b"b"]), 0)
    assert (manager.offline_count, manager.offline_directory_count) == (2, 1)
    manager.delete(ORDERS)
    assert manager.offline_count == 1
    assert manager.create(ORDERS) is not log
    manager.close()
    again = opened(files, clock)
    assert again.get(DASHED) is not None
    files.fail_next("pwrite")
    with pytest.raises(KafkaStorageError):
        present(again.get(DASHED)).append(batch([b"b"]), 0)
    assert again.get(DASHED) is not None
    assert again.offline_count == 0


def test_recovers_logs_after_a_kill(files: MemoryFiles, clock: Clock) -> None:
    manager = opened(files, clock)
    manager.create(ORDERS).append(batch([b"a"]), 0)
    disk = files.crash()
    (path,) = [path for path in disk.names if path.suffix == ".log"]
    disk.names[path].data += b"torn"
    again = opened(disk, clock)
    assert contents(present(again.get(ORDERS))) == {0: b"a"}
    assert present(again.get(ORDERS)).recovery_point == 0


def test_the_clean_mark_counts_once(files: MemoryFiles, clock: Clock) -> None:
    manager = opened(files, clock)
    manager.create(ORDERS).append(batch([b"a"]), 0)
    manager.close()
    second = files.crash()
    opened(second, clock)
    assert not any(path.name == ".kafka_cleanshutdown" for path in second.names)


def test_a_log_that_does_not_close_leaves_no_clean_mark(files: MemoryFiles, clock: Clock) -> None:
    manager = opened(files, clock)
    manager.create(ORDERS).append(batch([b"a"]), 0)
    files.fail_next("sync", times=100)
    manager.close()
    assert not any(path.name == ".kafka_cleanshutdown" for path in files.names)


def test_a_log_that_cannot_be_opened_is_offline_and_the_others_work(
    files: MemoryFiles, clock: Clock
) -> None:
    manager = opened(files, clock)
    manager.create(ORDERS)
    manager.create(DASHED).append(batch([b"a"]), 0)
    manager.close()
    original = files.open

    def fail_for_orders(path: Path, *, create: bool = False) -> File:
        if path.parent.name == "orders-0":
            raise PermissionError(13, "denied", str(path))
        return original(path, create=create)

    files.open = fail_for_orders  # type: ignore[method-assign]
    again = opened(files, clock)
    assert contents(present(again.get(DASHED))) == {0: b"a"}
    for ask in (again.get, again.create):
        with pytest.raises(KafkaStorageError, match=r"offline.*denied"):
            ask(ORDERS)
    # It was stopped cleanly, and nothing has been written to it since.
    again.close()
    assert files.exists(Path("/data") / CLEAN_SHUTDOWN_FILE)


def test_a_log_that_awaits_its_recovery_offline_leaves_no_clean_mark(
    files: MemoryFiles, clock: Clock
) -> None:
    manager = opened(files, clock)
    manager.create(DASHED)
    log = manager.create(ORDERS)
    log.append(batch([b"a"]), 0)
    log.append(batch([b"b"]), 0)
    disk = files.crash()
    (path,) = (path for path in disk.names if path.suffix == ".log" and disk.names[path].data)
    disk.names[path].data[-1] ^= 1
    original = disk.open

    def fail_for_orders(path: Path, *, create: bool = False) -> File:
        if path.parent.name == "orders-0":
            raise PermissionError(13, "denied", str(path))
        return original(path, create=create)

    disk.open = fail_for_orders  # type: ignore[method-assign]
    opened(disk, clock).close()
    disk.open = original  # type: ignore[method-assign]
    assert contents(present(opened(disk, clock).get(ORDERS))) == {0: b"a"}


def test_a_damaged_log_keeps_no_other_from_being_opened(files: MemoryFiles, clock: Clock) -> None:
    manager = opened(files, clock)
    log = manager.create(ORDERS)
    log.append(batch([b"a"]), 0)
    log.roll()
    manager.create(DASHED).append(batch([b"a"]), 0)
    manager.close()
    files.remove(log.directory / "leader-epoch-checkpoint")  # so that all headers are read
    files.names[log.directory / f"{0:020d}.log"].data[8:12] = bytes(4)
    again = opened(files, clock)
    assert contents(present(again.get(DASHED))) == {0: b"a"}
    with pytest.raises(KafkaStorageError, match=r"offline.*length of 0 bytes"):
        again.get(ORDERS)


class TestOwnership:
    def test_generates_a_cluster_id_and_keeps_it(self, files: MemoryFiles, clock: Clock) -> None:
        manager = opened(files, clock)
        manager.close()
        assert len(manager.cluster_id) == 22
        assert opened(files, clock).cluster_id == manager.cluster_id

    def test_takes_the_cluster_id_of_the_config(self, files: MemoryFiles, clock: Clock) -> None:
        assert opened(files, clock, cluster_id="mine").cluster_id == "mine"
        assert "cluster.id=mine\n" in data(files, "meta.properties")

    def test_turns_away_another_broker_or_cluster(self, files: MemoryFiles, clock: Clock) -> None:
        opened(files, clock, cluster_id="mine", broker_id="3").close()
        with pytest.raises(ConfigError, match=r"set broker\.id=3"):
            opened(files, clock, cluster_id="mine", broker_id="4")
        with pytest.raises(InconsistentClusterIdError, match="belongs to cluster mine"):
            opened(files, clock, cluster_id="other", broker_id="3")
        opened(files, clock, broker_id="3").close()

    def test_is_written_down_as_apache_kafka_reads_it_over_zookeeper(
        self, files: MemoryFiles, clock: Clock
    ) -> None:
        """And alone, where the directory is taken there and back."""
        for connect, lines in (
            ("host:2181", {"version=0", "broker.id=3"}),
            (None, {"version=1", "node.id=3"}),
            ("host:2181", {"version=0", "broker.id=3"}),
        ):
            given: dict[str, Any] = {} if connect is None else {"zookeeper_connect": connect}
            opened(files, clock, cluster_id="mine", broker_id="3", **given).close()
            written = set(data(files, "meta.properties").splitlines())
            assert lines <= written
            assert len(written) == 4

    def test_one_broker_at_a_time(self, tmp_path: Path, clock: Clock) -> None:
        manager = opened(DiskFiles(), clock, log_dirs=str(tmp_path))
        with pytest.raises(KafkaStorageError, match="in use by another broker"):
            opened(DiskFiles(), clock, log_dirs=str(tmp_path))
        manager.close()
        opened(DiskFiles(), clock, log_dirs=str(tmp_path)).close()


def test_a_log_that_cannot_be_made_leaves_no_directory(files: MemoryFiles, clock: Clock) -> None:
    manager = opened(files, clock)
    original = files.open

    def fail_for_logs(path: Path, *, create: bool = False) -> File:
        if path.suffix == ".index":
            raise OSError(24, "Too many open files", str(path))
        return original(path, create=create)

    files.open = fail_for_logs  # type: ignore[method-assign]
    with pytest.raises(KafkaStorageError, match="Too many"):
        manager.create(ORDERS, uuid.UUID(int=5))
    files.open = original  # type: ignore[method-assign]
    assert opened(files.crash(), clock).all_logs() == {}


class TestDelete:
    def test_takes_the_log_away_and_its_files_later(self, files: MemoryFiles, clock: Clock) -> None:
        manager = opened(files, clock)
        log = manager.create(ORDERS)
        log.append(batch([b"a"]), 0)
        piece = log.read(0, 100, 1)
        manager.delete(ORDERS)
        manager.delete(ORDERS)
        assert manager.get(ORDERS) is None
        with pytest.raises(KafkaStorageError, match="closed"):
            log.append(batch([b"a"]), 0)
        manager.delete_pass()
        assert any(path.name.endswith("-delete") for path in files.directories)
        clock.now_ms += 60_000
        manager.delete_pass()
        assert not any("orders" in str(path) for path in files.names)
        assert len(present(piece).read()) == len(present(piece))

    def test_a_topic_may_be_created_again_at_once(self, files: MemoryFiles, clock: Clock) -> None:
        manager = opened(files, clock)
        manager.create(ORDERS).append(batch([b"a"]), 0)
        manager.delete(ORDERS)
        assert manager.create(ORDERS).log_end_offset == 0
        again = opened(files.crash(), clock)
        assert contents(present(again.get(ORDERS))) == {}
        assert set(again.all_logs()) == {ORDERS}

    def test_takes_an_offline_log_away_too(self, files: MemoryFiles, clock: Clock) -> None:
        """Else a later start finds a log of no topic, and takes it for one that lost its own."""
        opened(files, clock).create(ORDERS).append(batch([b"a"]), 0)
        disk = files.crash()
        original = disk.open

        def fail_for_logs(path: Path, *, create: bool = False) -> File:
            if path.suffix == ".log":
                raise PermissionError(13, "denied", str(path))
            return original(path, create=create)

        disk.open = fail_for_logs  # type: ignore[method-assign]
        manager = opened(disk, clock)
        disk.open = original  # type: ignore[method-assign]
        manager.delete(ORDERS)
        assert opened(disk.crash(), clock).all_logs() == {}
        assert contents(manager.create(ORDERS)) == {}

    @pytest.mark.parametrize("restarts", [False, True])
    def test_a_topic_created_again_inherits_no_start_offset(
        self, files: MemoryFiles, clock: Clock, restarts: bool
    ) -> None:
        overrides = {"orders": {"retention.ms": "1000"}}
        manager = opened(files, clock, overrides)
        manager.create(ORDERS).append(batch([b"old"] * 20), 0)
        clock.now_ms += 1001
        manager.retention_pass()
        manager.delete(ORDERS)
        if restarts:
            files = files.crash()
            manager = opened(files, clock, overrides)
        manager.create(ORDERS).append(batch([b"new"], timestamp_ms=clock.now_ms), 0)
        again = opened(files.crash(), clock, overrides)
        assert contents(present(again.get(ORDERS))) == {0: b"new"}


class TestUpkeep:
    def test_retention_deletes_and_notes_the_new_start(
        self, files: MemoryFiles, clock: Clock
    ) -> None:
        manager = opened(files, clock, {"orders": {"retention.ms": "1000"}})
        log = manager.create(ORDERS)
        log.append(batch([b"a"], timestamp_ms=NOW_MS), 0)
        clock.now_ms += 1001
        manager.retention_pass()
        assert log.log_start_offset == 1
        assert "orders 0 1\n" in data(files, "log-start-offset-checkpoint")

    def test_retention_stops_at_the_high_watermark(self, files: MemoryFiles, clock: Clock) -> None:
        config = BrokerConfig.from_properties({"log.dirs": "/data", "log.retention.ms": "1"})
        manager = LogManager(
            config, high_watermark_of=lambda each, log: 0, clock=clock, files=files
        )
        manager.open()
        log = manager.create(ORDERS)
        log.append(batch([b"a"]), 0)
        clock.now_ms += 1001
        manager.retention_pass()
        assert log.log_start_offset == 0

    def test_flush_pass_syncs_what_the_policy_asks_for(
        self, files: MemoryFiles, clock: Clock
    ) -> None:
        manager = opened(files, clock, {"orders": {"flush.ms": "100"}})
        due, idle = manager.create(ORDERS), manager.create(DASHED)
        for log in (due, idle):
            log.append(batch([b"a"]), 0)
        manager.flush_pass()
        assert (due.recovery_point, idle.recovery_point) == (0, 0)
        clock.now_ms += 100
        manager.flush_pass()
        assert (due.recovery_point, idle.recovery_point) == (1, 0)
        assert "orders 0 1\n" in data(files, "recovery-point-offset-checkpoint")

    def test_one_failed_log_keeps_no_other_from_its_turn(
        self, files: MemoryFiles, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        manager = opened(files, clock, log_flush_interval_ms="1", log_retention_ms="1000")
        broken, fine = manager.create(ORDERS), manager.create(DASHED)
        for log in (broken, fine):
            log.append(batch([b"a"]), 0)
        clock.now_ms += 2000
        files.fail_next("sync")
        manager.flush_pass()
        manager.retention_pass()
        assert (broken.recovery_point, fine.recovery_point) == (0, 1)
        assert (broken.log_start_offset, fine.log_start_offset) == (0, 1)
        assert "upkeep.failed task=flush" in caplog.text

    def test_a_log_that_cannot_be_looked_at_keeps_no_other_from_retention(
        self, files: MemoryFiles, clock: Clock
    ) -> None:
        """Its first batch, say, after a restart, at each pass."""
        manager = opened(files, clock, log_retention_ms="1000")
        places = [TopicPartition("t", number) for number in range(3)]
        for place in places:
            manager.create(place).append(batch([b"a"]), 0)
            present(manager.get(place)).roll()
        manager.close()
        manager = opened(files, clock, log_retention_ms="1000")
        clock.now_ms += 2000
        files.fail_next("pread")
        manager.retention_pass()
        assert [present(manager.get(place)).log_start_offset for place in places] == [0, 1, 1]
        clock.now_ms += 60_000
        files.fail_next("remove")
        manager.delete_pass()
        left = [path.parent.name for path in files.names if path.suffix == ".deleted"]
        assert set(left) == {"t-1"}
        manager.close()

    def test_retention_frees_a_disk_on_which_nothing_more_can_be_written(
        self, files: MemoryFiles, clock: Clock
    ) -> None:
        topics = {"t": {"file.delete.delay.ms": "0", "retention.ms": "1000"}}
        manager = opened(files, clock, topics)
        log = manager.create(TopicPartition("t", 0))
        for _ in range(3):
            log.append(batch([b"a"]), 0)
            log.roll()
        log.append(batch([b"a"], timestamp_ms=clock.now_ms + 2000), 0)
        clock.now_ms += 2000
        files.fail_next("replace", times=100)
        manager.retention_pass()
        manager.delete_pass()
        assert {path.name for path in files.names if ".log" in path.name} == {
            "00000000000000000003.log"
        }
        assert log.log_start_offset == 3
        files.fail_next("replace", times=0)
        log.append(batch([b"b"]), 0)
        assert set(contents(log)) == {3, 4}
        manager.close()
        manager = opened(files, clock)
        assert present(manager.get(TopicPartition("t", 0))).leader_epochs.entries == ((0, 3),)
        manager.close()

    def test_a_log_that_is_deleted_during_its_flush_does_not_fail(
        self, files: MemoryFiles, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        manager = opened(files, clock)
        log = manager.create(ORDERS)
        log.append(batch([b"a"]), 0)
        original = files.sync_directory

        def delete_meanwhile(path: Path) -> None:
            files.sync_directory = original  # type: ignore[method-assign]
            manager.delete(ORDERS)
            raise FileNotFoundError(2, "No such directory", str(path))

        files.sync_directory = delete_meanwhile  # type: ignore[method-assign]
        log.flush()
        assert not [each for each in caplog.records if each.levelname == "ERROR"]

    def test_a_topics_changed_config_counts_at_once(self, files: MemoryFiles, clock: Clock) -> None:
        overrides: dict[str, dict[str, str]] = {}
        manager = opened(files, clock, overrides)
        log = manager.create(ORDERS)
        overrides["orders"] = {"retention.ms": "5"}
        manager.update_topic_config("orders")
        assert log.config.retention_ms == 5

    def test_high_watermarks_are_kept_beside_their_logs(
        self, files: MemoryFiles, clock: Clock
    ) -> None:
        manager = opened(files, clock, log_dirs="/data,/more")
        manager.create(ORDERS)
        manager.create(DASHED)
        offsets = {ORDERS: 5, DASHED: 7}
        manager.checkpoint_high_watermarks(offsets)
        assert manager.high_watermarks() == offsets
        assert len({log.directory.parent for log in manager.all_logs().values()}) == 2

    def test_the_thread_syncs_a_log_that_rolled(self, files: MemoryFiles, clock: Clock) -> None:
        manager = opened(files, clock)
        flushed = threading.Event()
        original = manager.checkpoint_recovery_points

        def checkpoint() -> None:
            original()
            flushed.set()

        manager.checkpoint_recovery_points = checkpoint  # type: ignore[method-assign]
        manager.start()
        try:
            log = manager.create(ORDERS)
            log.append(batch([b"a"]), 0)
            log.roll()
            assert flushed.wait(EVENT_S)
            assert "orders 0 1\n" in data(files, "recovery-point-offset-checkpoint")
        finally:
            manager.close()

    def test_a_failing_task_does_not_end_the_thread(self, clock: Clock) -> None:
        files = _TellingFiles()
        manager = opened(files, clock, {"orders": {"flush.messages": "1"}})
        manager.start()
        try:
            broken, fine = manager.create(ORDERS), manager.create(DASHED)
            files.fail_next("sync")
            broken.append(batch([b"a"]), 0)
            assert files.failed.wait(EVENT_S)
            fine.append(batch([b"a"]), 0)
            files.synced.clear()
            fine.roll()
            assert files.synced.wait(EVENT_S)
        finally:
            manager.close()


class _TellingFiles(MemoryFiles):
    def __init__(self) -> None:
        super().__init__()
        self.failed, self.synced = threading.Event(), threading.Event()

    def takes_failure(self, operation: str) -> bool:
        fails = super().takes_failure(operation)
        if fails:
            self.failed.set()
        return fails

    def sync_directory(self, path: Path) -> None:
        """A flush of a log ends with it."""
        super().sync_directory(path)
        self.synced.set()


def test_a_directory_whose_logs_have_all_failed_is_offline(
    files: MemoryFiles, clock: Clock
) -> None:
    manager = opened(files, clock)
    assert manager.offline_directory_count == 0
    first, second = manager.create(ORDERS), manager.create(DASHED)
    for log, offline in ((first, 0), (second, 1)):
        log.append(batch([b"a"]), 0)
        files.fail_next("sync")
        with pytest.raises(KafkaStorageError):
            log.flush()
        assert manager.offline_directory_count == offline
    assert manager.flush_times.counts == [0] * len(manager.flush_times.counts)


def test_what_comes_after_a_lost_tail_is_not_taken_for_compacted(
    files: MemoryFiles, clock: Clock
) -> None:
    """The offset up to which the log is clean is lowered at once: it may crash again."""
    overrides = {"orders": {"cleanup.policy": "compact"}}
    manager = opened(files, clock, overrides)
    log = manager.create(ORDERS)
    for _ in range(10):
        log.append(batch(), 0)
    log.mark_clean(10, log.truncations)
    manager.checkpoint_cleaner_offsets()
    assert "\norders 0 10\n" in data(files, "cleaner-offset-checkpoint")
    disk = files.crash()
    (path,) = (path for path in disk.names if path.suffix == ".log")
    del disk.names[path].data[1:]
    again = opened(disk, clock, overrides)
    for _ in range(20):
        present(again.get(ORDERS)).append(batch(), 0)
    last = opened(disk.crash(), clock, overrides)
    assert (
        present(last.get(ORDERS)).log_end_offset,
        present(last.get(ORDERS)).first_dirty_offset,
    ) == (20, 0)


@pytest.mark.parametrize("way", ["cut", "begun anew"])
def test_what_comes_after_a_lost_tail_is_not_taken_for_synced(
    files: MemoryFiles, clock: Clock, way: str
) -> None:
    """A power loss may leave a segment that was made since, and not the end of the one before it:
    the follower would say that it has what it lacks."""
    manager = opened(files, clock)
    log = manager.create(ORDERS)
    for _ in range(2):
        for number in range(4):
            log.append(batch([b"%d" % number]), 0)
        log.roll()
    log.flush()
    log.advance_log_start_offset(8 if way == "begun anew" else 1)
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_start_offsets()
    if way == "cut":
        log.truncate_to(2)
    else:
        log.restart_at(2)
    for _ in range(2):
        log.append(batch([b"new"]), 1)
    log.roll()
    log.append(batch([b"newer"] * 9), 1)
    files.sync_directory(log.directory)
    found = present(opened(files.crash(power_loss=True), clock).get(ORDERS))
    assert found.log_end_offset == 2
    assert set(contents(found)) == ({1} if way == "cut" else set())
