"""The fuzzers' targets in short, by hypothesis: seeds of the tree, edited as peers and disks may.

`make fuzz` runs the same targets for long, guided by coverage (campaign.py).
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.target import (
    BrokerTarget,
    feed_answers,
    feed_batches,
    feed_decompressors,
    feed_directory,
)

_EXTREMES = [
    struct.pack(layout, number)
    for layout, bits in ((">b", 7), (">h", 15), (">i", 31), (">q", 63))
    for number in (-(2**bits), -2, -1, 0, 1, 2**bits - 1)
]


@st.composite
def edited(draw: st.DrawFn, kind: str) -> bytes:
    """A seed with some bytes overwritten, cut out, put in or doubled."""
    data = bytearray(draw(st.sampled_from(corpus.read_seeds(kind))))
    for _ in range(draw(st.integers(1, 6))):
        position = draw(st.integers(0, max(0, len(data) - 1)))
        edit = draw(st.sampled_from(["byte", "number", "cut", "insert", "double"]))
        end = position + draw(st.integers(1, 40))
        if edit == "byte":
            data[position : position + 1] = bytes([draw(st.integers(0, 255))])
        elif edit == "number":
            number = draw(st.sampled_from(_EXTREMES))
            data[position : position + len(number)] = number
        elif edit == "cut":
            del data[position:end]
        elif edit == "insert":
            data[position:position] = draw(st.binary(max_size=20))
        else:
            data[position:position] = data[position:end]
    return bytes(data)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerTarget]:
    target = BrokerTarget()
    yield target
    target.restart()
    target.close()


@given(frame=edited("frames"))
def test_edited_requests(broker: BrokerTarget, frame: bytes) -> None:
    broker.feed(frame)
    broker.check_kept()


@given(records=edited("batches"))
def test_edited_batches_with_right_checksums_are_kept_or_refused(
    broker: BrokerTarget, records: bytes
) -> None:
    broker.feed_records(records)
    broker.check_kept()


@given(data=edited("batches"))
def test_edited_batches(data: bytes) -> None:
    feed_batches(data)


@given(codec=st.integers(0, 8), data=st.binary(max_size=300))
def test_any_compressed_bytes(codec: int, data: bytes) -> None:
    feed_decompressors(codec, data)


@given(data=edited("batches"), codec=st.integers(1, 4))
def test_edited_compressed_bytes(data: bytes, codec: int) -> None:
    feed_decompressors(codec, data[61:])


@given(version=st.integers(0, 12), body=st.binary(max_size=200))
def test_any_answer(version: int, body: bytes) -> None:
    feed_answers(version, body)


@given(data=edited("directories"))
def test_edited_directories(data: bytes) -> None:
    feed_directory(corpus.unpack(data))


def test_the_seeds_are_what_the_script_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every API and version has its seed; those of an older broker may stay."""
    monkeypatch.setattr(corpus, "SEEDS", tmp_path)
    corpus.main()
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    seeds = Path(corpus.__file__).with_name("seeds")
    kept = {path.relative_to(seeds) for path in seeds.rglob("*") if path.is_file()}
    assert made <= kept, "run python -m tests.fuzz.corpus"
