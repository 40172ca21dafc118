"""Opening what a crash left: the longest valid prefix, and nothing else.

Tears are made in the bytes of a golden segment; the model is the list of what was appended.
"""

import dataclasses
import logging
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import UnsupportedForMessageFormatError

from broker.config.log import LogConfig
from broker.log.checkpoint import LogCheckpoint
from broker.log.log import Log
from tests.broker.log.batches import GZIP, batch, contents, values_in
from tests.broker.log.memory_files import MemoryFiles
from tests.support.present import present

ONE = LogConfig(segment_bytes=10**6, index_interval_bytes=150)
MANY = LogConfig(segment_bytes=1000, index_interval_bytes=150)
COMPACTED = dataclasses.replace(ONE, cleanup_policy=("compact",))


class Golden:
    """A log's files, and the (offset, value, end position) of each of its records."""

    def __init__(
        self, directory: Path, files: MemoryFiles, config: LogConfig = ONE, count: int = 12
    ) -> None:
        self.directory = directory
        self.files = files
        self.ends = []
        log = Log(directory, config, files=files)
        for number in range(count):
            codec = GZIP if number % 3 == 2 else 0
            values = [b"%d.%d" % (number, each) for each in range(1 + number % 2)]
            log.append(batch(values, codec=codec, producer=(5, 0, log.log_end_offset)), number // 5)
            self.ends.append(log.size_bytes)
        self.contents = contents(log)
        self.end_offset = log.log_end_offset

    def name(self, suffix: str = ".log", base_offset: int | None = 0) -> Path:
        return self.directory / f"{base_offset:020d}{suffix}"

    def data(self) -> bytes:
        return bytes(self.files.names[self.name()].data)

    def reopened(self, data: bytes | bytearray, config: LogConfig = ONE, **known: Any) -> Log:
        """The log after a crash that left `data` in its first segment."""
        files = self.files.crash()
        files.names[self.name()].data[:] = data
        return Log(self.directory, config, files=files, known=LogCheckpoint(**known))

    def first(self, batches_kept: int) -> dict[Any, Any]:
        """What the first batches hold."""
        count = sum(1 + number % 2 for number in range(batches_kept))
        return {offset: value for offset, value in self.contents.items() if offset < count}


@pytest.fixture
def golden(directory: Path, files: MemoryFiles) -> Golden:
    return Golden(directory, files)


def whole_batches(golden: Golden, size_bytes: int) -> int:
    return sum(end <= size_bytes for end in golden.ends)


def test_every_prefix_of_a_segment_keeps_its_whole_batches(golden: Golden) -> None:
    data = golden.data()
    for size_bytes in range(len(data) + 1):
        log = golden.reopened(data[:size_bytes])
        kept = whole_batches(golden, size_bytes)
        assert contents(log) == golden.first(kept)
        assert log.size_bytes == ([0, *golden.ends][kept])


@pytest.mark.parametrize(("recovery_point", "level"), [(0, "WARNING"), (5, "ERROR")])
def test_a_cut_into_what_was_synced_is_an_error(
    golden: Golden, caplog: pytest.LogCaptureFixture, recovery_point: int, level: str
) -> None:
    data = bytearray(golden.data())
    data[golden.ends[0] + 30] ^= 1  # in the second batch, of offsets 1 and 2
    golden.reopened(data, recovery_point=recovery_point)
    (line,) = [each for each in caplog.records if "log.recovered" in each.getMessage()]
    assert line.levelname == level
    assert f"cut_synced_offsets={max(0, recovery_point - 1)} " in line.getMessage()


def test_every_flipped_bit_ends_the_log_before_its_batch(golden: Golden) -> None:
    """The leader epoch alone is neither under the checksum nor visible in a record."""
    data = golden.data()
    starts = [0, *golden.ends[:-1]]
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        found = contents(golden.reopened(flipped))
        hit = whole_batches(golden, position)
        in_epoch = 12 <= position - starts[hit] < 16
        if in_epoch:
            assert found == golden.contents
        else:
            assert found == golden.first(hit), f"bit {position % 8} of byte {position}"


@pytest.mark.parametrize(
    ("name", "garbage"),
    [
        ("zeros", bytes(500)),
        ("ones", b"\xff" * 500),
        ("short", b"\x00"),
        ("header cut off", b"\x00" * 11),
        ("random", random.Random(7).randbytes(5000)),
        ("a batch from elsewhere", bytes(batch([b"stray"]))),
        ("a huge length", struct.pack(">qi", 18, 2**31 - 1) + bytes(80)),
        ("a negative length", struct.pack(">qi", 18, -5) + bytes(80)),
        ("old magic", struct.pack(">qiIbb", 18, 60, 123, 1, 0) + bytes(80)),
    ],
)
def test_a_garbage_tail_is_cut(
    golden: Golden, name: str, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        log = golden.reopened(golden.data() + garbage)
    assert contents(log) == golden.contents
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("log.recovered")
    assert f"cut_bytes={len(garbage)} " in line
    assert log.append(batch([b"next"]), 9).first_offset == golden.end_offset


def test_a_garbage_block_in_the_middle_cuts_all_behind_it(golden: Golden) -> None:
    data = bytearray(golden.data())
    start = golden.ends[4]
    data[start : start + 100] = random.Random(3).randbytes(100)
    log = golden.reopened(data)
    assert contents(log) == golden.first(5)
    assert log.leader_epochs.latest_epoch == 0


def test_a_batch_larger_than_a_read_is_recovered(directory: Path) -> None:
    files = MemoryFiles()
    config = LogConfig(max_message_bytes=10**8)
    log = Log(directory, config, files=files)
    for size in (100, 9 << 20, 100, (4 << 20) - 150):
        log.append(batch([bytes(size)]), 0)
    again = Log(directory, config, files=files.crash())
    assert (again.log_end_offset, again.size_bytes) == (4, log.size_bytes)


class TestManySegments:
    @pytest.fixture
    def golden(self, directory: Path, files: MemoryFiles) -> Golden:
        return Golden(directory, files, MANY, 60)

    def bases(self, golden: Golden) -> list[Any]:
        names = golden.files.list(golden.directory)
        return [int(name[:20]) for name in names if name.endswith(".log")]

    def test_a_cut_drops_the_segments_behind(self, golden: Golden) -> None:
        bases = self.bases(golden)
        files = golden.files.crash()
        files.names[golden.name(base_offset=bases[2])].data[-1] ^= 1
        log = Log(golden.directory, MANY, files=files)
        assert bases[2] < log.log_end_offset < bases[3]
        assert contents(log) == {o: v for o, v in golden.contents.items() if o < log.log_end_offset}
        assert golden.name(base_offset=bases[3]) not in files.names
        assert log.append(batch([b"next"]), 20).first_offset == log.log_end_offset - 1

    def test_a_segment_that_lost_whole_batches_ends_the_log(self, golden: Golden) -> None:
        bases = self.bases(golden)
        files = golden.files.crash()
        middle = files.names[golden.name(base_offset=bases[1])]
        whole = Log(golden.directory, MANY, files=golden.files.crash())
        last = whole.read(bases[2] - 1, 1, bases[2])
        del middle.data[present(last).position :]
        log = Log(golden.directory, MANY, files=files)
        assert bases[1] < log.log_end_offset < bases[2]
        assert contents(log) == {o: v for o, v in golden.contents.items() if o < log.log_end_offset}

    def test_a_missing_segment_ends_the_log(self, golden: Golden) -> None:
        bases = self.bases(golden)
        files = golden.files.crash()
        del files.names[golden.name(base_offset=bases[1])]
        log = Log(golden.directory, MANY, files=files)
        assert log.log_end_offset == bases[1]

    def test_nothing_is_read_below_the_recovery_point(self, golden: Golden) -> None:
        bases = self.bases(golden)
        files = golden.files.crash()
        files.names[golden.name(base_offset=bases[1])].data[-1] ^= 1
        log = Log(golden.directory, MANY, files=files, known=LogCheckpoint(recovery_point=bases[3]))
        assert log.log_end_offset == golden.end_offset
        assert log.recovery_point == bases[3]

    @pytest.mark.parametrize("suffix", [".index", ".timeindex"])
    @pytest.mark.parametrize("was_clean", [True, False])
    def test_every_index_may_be_missing_or_damaged(
        self, golden: Golden, suffix: str, was_clean: bool
    ) -> None:
        damages = [None, b"", b"\x01\x02\x03", bytes(24), b"\xff" * 24, b"\x7f" * 96]
        for base_offset in self.bases(golden):
            for damage in damages:
                files = golden.files.crash()
                path = golden.name(suffix, base_offset)
                if damage is None:
                    del files.names[path]
                else:
                    files.names[path].data[:] = damage
                known = LogCheckpoint(was_clean=was_clean)
                log = Log(golden.directory, MANY, files=files, known=known)
                assert contents(log) == golden.contents

    def test_rebuilt_indexes_equal_those_that_were_written(self, golden: Golden) -> None:
        files = golden.files.crash()
        before = {path: bytes(node.data) for path, node in files.names.items()}
        bases = self.bases(golden)
        for base_offset in bases:
            del files.names[golden.name(".index", base_offset)]
            del files.names[golden.name(".timeindex", base_offset)]
        Log(golden.directory, MANY, files=files)
        for base_offset in bases[:-1]:
            for suffix in (".index", ".timeindex"):
                path = golden.name(suffix, base_offset)
                assert bytes(files.names[path].data) == before[path]

    def test_leftovers_of_a_crash_are_cleared_away(self, golden: Golden) -> None:
        files = golden.files.crash()
        leftovers = [
            golden.name(".log.deleted", 3),
            golden.name(".log.cleaned", 3),
            golden.name(".index.cleaned", 3),
            golden.name(".index.swap", 3),
            golden.name(".index", 999),
            golden.name(".timeindex", 999),
            golden.directory / "leader-epoch-checkpoint.tmp",
        ]
        for path in leftovers:
            files.open(path, create=True)
        log = Log(golden.directory, MANY, files=files)
        assert contents(log) == golden.contents
        assert not set(leftovers) & set(files.names)

    def test_a_swap_file_takes_the_place_of_the_segments_it_covers(self, golden: Golden) -> None:
        files = golden.files.crash()
        bases = self.bases(golden)
        swap = files.open(golden.name(".log.swap"), create=True)
        merged = b"".join(
            bytes(files.names[golden.name(base_offset=base)].data) for base in bases[:2]
        )
        swap.pwrite(merged, 0)
        log = Log(golden.directory, MANY, files=files)
        assert contents(log) == golden.contents
        assert golden.name(base_offset=bases[1]) not in files.names
        assert len(files.names[golden.name()].data) == len(merged)

    def swapped(
        self, golden: Golden, *, cleaned: int | None = None, damaged: bool = False
    ) -> tuple[Log, MemoryFiles]:
        """The log after a crash that left a swap file for the first two segments."""
        files = golden.files.crash()
        bases = self.bases(golden)
        merged = b"".join(bytes(files.names[golden.name(base_offset=b)].data) for b in bases[:2])
        if damaged:
            merged = merged[:-5]
        files.open(golden.name(".log.swap"), create=True).pwrite(merged, 0)
        if cleaned is not None:
            files.open(golden.name(".log.cleaned", cleaned), create=True)
        known = LogCheckpoint(recovery_point=golden.end_offset)
        return Log(golden.directory, MANY, files=files, known=known), files

    def test_a_swap_file_does_not_get_the_index_of_the_segment_before(self, golden: Golden) -> None:
        """Compaction has left out the first batch: all that follow lie elsewhere."""
        files = golden.files.crash()
        data = golden.data()[golden.ends[0] :]
        files.open(golden.name(".log.swap"), create=True).pwrite(data, 0)
        known = LogCheckpoint(recovery_point=golden.end_offset)
        log = Log(golden.directory, MANY, files=files, known=known)
        expected = {offset: value for offset, value in golden.contents.items() if offset}
        for offset in expected:
            found = present(log.read(offset, 1, log.log_end_offset)).read()
            assert values_in(found)[offset] == expected[offset]

    def test_a_swap_file_of_an_unfinished_split_is_given_up(self, golden: Golden) -> None:
        bases = self.bases(golden)
        log, files = self.swapped(golden, cleaned=0)
        assert contents(log) == golden.contents
        assert self.bases_in(files, golden) == bases
        log, files = self.swapped(golden, cleaned=bases[1])
        assert contents(log) == golden.contents
        assert self.bases_in(files, golden) == [bases[0], *bases[2:]]

    def test_a_damaged_swap_file_is_given_up_for_the_old_segment(self, golden: Golden) -> None:
        log, files = self.swapped(golden, damaged=True)
        assert contents(log) == golden.contents
        assert self.bases_in(files, golden) == self.bases(golden)

    def bases_in(self, files: MemoryFiles, golden: Golden) -> list[Any]:
        names = files.list(golden.directory)
        assert not [name for name in names if name.endswith((".swap", ".cleaned"))]
        return [int(name[:20]) for name in names if name.endswith(".log")]

    def test_snapshots_are_thinned_and_damaged_ones_replayed(self, golden: Golden) -> None:
        files = golden.files.crash()
        snapshots = [path for path in files.names if path.suffix == ".snapshot"]
        assert len(snapshots) > 2
        for path in snapshots:
            files.names[path].data[-1] ^= 1
        files.open(golden.name(".snapshot", 1), create=True)
        log = Log(golden.directory, MANY, files=files)
        sequence = log.log_end_offset
        duplicate = batch([b"59.0", b"59.1"], producer=(5, 0, sequence - 2))
        assert log.append(duplicate, 11).is_duplicate
        assert golden.name(".snapshot", 1) not in files.names

    def test_a_damaged_epoch_file_is_rebuilt_from_the_batches(self, golden: Golden) -> None:
        expected = Log(golden.directory, MANY, files=golden.files.crash()).leader_epochs.entries
        assert len(expected) == 12
        for was_clean in (True, False):
            for damage in (None, b"", b"0\n5\n1 2\n", b"\xff\xfe", b"0\n1\nx y\n"):
                files = golden.files.crash()
                path = golden.directory / "leader-epoch-checkpoint"
                if damage is None:
                    del files.names[path]
                else:
                    files.names[path].data[:] = damage
                known = LogCheckpoint(was_clean=was_clean)
                log = Log(golden.directory, MANY, files=files, known=known)
                assert log.leader_epochs.entries == expected


class TestGaps:
    """Compaction makes gaps in the offsets; a flipped bit in a base offset looks like one."""

    def moved(self, golden: Golden, batch_number: int, by: int) -> bytearray:
        """The data with every base offset from one batch on moved up."""
        data = bytearray(golden.data())
        for start in [0, *golden.ends[:-1]][batch_number:]:
            (offset,) = struct.unpack_from(">q", data, start)
            struct.pack_into(">q", data, start, offset + by)
        return data

    def test_a_gap_is_kept_when_what_follows_goes_on_from_it(self, golden: Golden) -> None:
        found = contents(golden.reopened(self.moved(golden, 4, 100)))
        assert max(found) == golden.end_offset + 99
        assert len(found) == len(golden.contents)

    def test_a_gap_before_the_last_batch_of_a_segment_is_kept_where_the_next_goes_on(
        self, directory: Path, files: MemoryFiles
    ) -> None:
        golden = Golden(directory, files, MANY, 30)
        data = golden.data()
        count = whole_batches(golden, len(data))
        assert len(data) == golden.ends[count - 1]
        without_last_but_one = data[: golden.ends[count - 3]] + data[golden.ends[count - 2] :]
        found = contents(golden.reopened(without_last_but_one, MANY))
        gone = golden.first(count - 1).keys() - golden.first(count - 2).keys()
        assert len(gone) in (1, 2)
        assert found == {at: value for at, value in golden.contents.items() if at not in gone}

    def test_a_gap_before_the_last_batch_is_kept_in_a_compacted_log_only(
        self, golden: Golden
    ) -> None:
        data = self.moved(golden, 11, 100)
        assert contents(golden.reopened(data)) == golden.first(11)
        found = contents(golden.reopened(data, COMPACTED))
        assert len(found) == len(golden.contents)

    def test_a_gap_followed_by_damage(self, golden: Golden) -> None:
        data = self.moved(golden, 10, 100)
        data[-1] ^= 1
        assert contents(golden.reopened(data)) == golden.first(10)
        assert len(contents(golden.reopened(data, COMPACTED))) == len(golden.first(11))

    def test_a_segment_ends_before_offsets_that_its_indexes_cannot_say(
        self, golden: Golden
    ) -> None:
        files = golden.files.crash()
        files.names[golden.name()].data[:] = self.moved(golden, 11, 2**31 - 30)
        log = Log(golden.directory, COMPACTED, files=files)
        first = log.log_end_offset
        assert first == golden.end_offset + 2**31 - 30
        for number in range(30):
            log.append(batch([b"%d" % number] * 3), 9)
        assert log.segment_count == 2
        again = Log(golden.directory, COMPACTED, files=files.crash())
        assert again.log_end_offset == first + 90
        assert contents(again) == contents(log)

    def test_offsets_beyond_what_a_segment_spans_are_no_batch(self, golden: Golden) -> None:
        found = contents(golden.reopened(self.moved(golden, 6, 2**31)))
        assert found == golden.first(6)


class TestStartOffset:
    def test_comes_from_the_checkpoint(self, golden: Golden) -> None:
        log = golden.reopened(golden.data(), log_start_offset=7)
        assert min(contents(log)) == 7

    def test_beyond_the_end_restarts_the_log_there(self, golden: Golden) -> None:
        log = golden.reopened(golden.data(), log_start_offset=1000)
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (1000, 1000, 0)
        assert log.append(batch([b"next"]), 20).first_offset == 1000


def test_a_clean_mark_over_a_torn_tail_is_not_believed(golden: Golden) -> None:
    log = golden.reopened(golden.data()[:-5], was_clean=True)
    assert contents(log) == golden.first(11)


def test_a_log_of_the_old_format_is_refused_and_not_cut(
    directory: Path, files: MemoryFiles
) -> None:
    body = struct.pack(">bbq", 1, 0, 1234) + struct.pack(">i", -1) + struct.pack(">i", 2) + b"hi"
    message = struct.pack(">I", zlib.crc32(body)) + body
    data = struct.pack(">qi", 0, len(message)) + message
    path = directory / f"{0:020d}.log"
    files.open(path, create=True).pwrite(data, 0)
    for was_clean in (True, False):
        with pytest.raises(UnsupportedForMessageFormatError, match="format 1"):
            Log(directory, ONE, files=files, known=LogCheckpoint(was_clean=was_clean))
    assert bytes(files.names[path].data) == data


def test_every_way_a_power_loss_may_tear_the_tail(directory: Path, files: MemoryFiles) -> None:
    """Synced up to some batch, and any number of bytes of the rest on disk."""
    log = Log(directory, ONE, files=files)
    for number in range(3):
        log.append(batch([b"%d" % number]), 0)
    log.flush()
    synced_bytes = log.size_bytes
    ends = []
    for number in range(3, 6):
        log.append(batch([b"%d" % number]), 0)
        ends.append(log.size_bytes)
    for kept in range(log.size_bytes - synced_bytes + 1):
        disk = files.crash(power_loss=True, keep_unsynced=kept)
        again = Log(
            directory, ONE, files=disk, known=LogCheckpoint(recovery_point=log.recovery_point)
        )
        whole = 3 + sum(end <= synced_bytes + kept for end in ends)
        assert contents(again) == {offset: b"%d" % offset for offset in range(whole)}
