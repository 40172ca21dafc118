"""What a micro-batch was planned from, told from files in the form that Spark gives them."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pyarrow.fs
import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import CheckpointError
from pyspark_kafkalog.source import checkpoint
from pyspark_kafkalog.source.checkpoint import (
    NOT_KNOWN,
    Planned,
    batch_plan,
    planned_from,
    query_id_at,
)
from pyspark_kafkalog.source.log_identity import LogIdentity, with_identity
from pyspark_kafkalog.source.offsets import JsonOffsets, from_json, with_start
from pyspark_kafkalog.source.options import warn_once

FIRST, SECOND = {"a": {"0": 5, "1": 7}}, {"a": {"0": 9, "1": 7}}


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., str]:
    """`plan(batch, *sources)` notes down a micro-batch, and returns what it was planned from."""
    (tmp_path / "offsets").mkdir()

    def note(batch: int, *sources: dict[str, dict[str, int]] | str, time_ms: int = 1000) -> str:
        lines = [each if isinstance(each, str) else json.dumps(each) for each in sources]
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": time_ms, "conf": {"a": "b"}}
        text = "\n".join(["v1", json.dumps(metadata), *lines])
        (tmp_path / "offsets" / str(batch)).write_text(text)
        return planned_from(str(tmp_path), batch).digest

    return note


def test_a_batch_planned_anew_from_the_same_offsets_is_the_same(plan: Callable[..., str]) -> None:
    plan(0, FIRST)
    once = plan(1, SECOND)
    again = {"a": {"1": 7, "0": 9}}
    assert once == plan(1, again, time_ms=2000)


def test_other_ends_and_other_starts_are_another_batch(plan: Callable[..., str]) -> None:
    plan(0, FIRST)
    once = plan(1, SECOND)
    assert once != plan(1, {"a": {"0": 9, "1": 8}})
    assert once != plan(1, {"a": {"0": 9, "1": 7, "2": 0}})
    assert once != plan(1, SECOND, SECOND)
    plan(0, {"a": {"0": 4, "1": 7}})
    assert once != plan(1, SECOND)


def test_the_first_batch_is_the_same_only_with_its_file_since_nothing_says_where_it_begins(
    plan: Callable[..., str],
) -> None:
    assert plan(0, FIRST) == plan(0, FIRST)
    assert plan(0, FIRST) != plan(0, FIRST, time_ms=2000)


@pytest.mark.parametrize(
    "source",
    ['{"logOffset":3}', "7", "-", "{}", '{"a":{}}', '{"a":{"0":true}}', '{"a":{"x":1}}', "[1]"],
)
def test_a_source_that_is_no_topic_may_give_other_rows_below_the_same_number(
    plan: Callable[..., str], source: str
) -> None:
    plan(0, FIRST, source)
    once = plan(1, SECOND, source)
    assert once
    assert once == plan(1, SECOND, source)
    assert once != plan(1, SECOND, source, time_ms=2000)


def test_a_first_batch_that_says_where_topics_began_is_one_of_topics(
    plan: Callable[..., str], tmp_path: Path
) -> None:
    plan(0, with_start(FIRST, from_json(FIRST)))
    once = plan(1, SECOND)
    assert batch_plan(str(tmp_path), 1).starts == (from_json(FIRST),)
    assert once == plan(1, SECOND, time_ms=2000)


def test_a_batch_of_topics_that_are_others_below_their_names_is_another_one(
    plan: Callable[..., str],
) -> None:
    def planned_of(topic_id: int, epoch: int, time_ms: int) -> str:
        epochs = {TopicPartition("orders", 0): epoch}
        of_logs = LogIdentity({"orders": UUID(int=topic_id)}, epochs)
        return plan(1, with_identity(SECOND, of_logs), time_ms=time_ms)

    plan(0, FIRST)
    once = planned_of(1, 4, 1000)
    assert once == planned_of(1, 5, 2000)
    assert once != planned_of(2, 4, 2000)


def test_a_batch_that_begins_in_another_log_begins_where_it_says(
    plan: Callable[..., str], tmp_path: Path
) -> None:
    plan(0, '{"orders":{"0":10,"1":20}}')
    orders_0, orders_1, back_2 = (TopicPartition("orders", number) for number in range(3))
    begins = {orders_0: 7, back_2: 3}
    plan(1, with_identity(SECOND, LogIdentity(begins=begins)))
    assert batch_plan(str(tmp_path), 1).starts == ({**begins, orders_1: 20},)


@pytest.mark.parametrize(
    ("cut", "lines"), [(1, 1), (1, 2), (1, 3), (0, 2)], ids=["all", "both", "one", "before"]
)
def test_a_file_that_spark_would_begin_anew_by_is_cut_short(
    tmp_path: Path, cut: int, lines: int
) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    for batch, ends in enumerate((FIRST, SECOND)):
        text = ["v2", "{}", f"1:{json.dumps(ends)}", f"0:{json.dumps(ends)}"]
        (offsets / str(batch)).write_text("\n".join(text[: lines if batch == cut else None]))
    doubt = ".* micro-batch 0 was under way" if cut else ""
    said = f"offsets/{cut} of the checkpoint is cut short{doubt}"
    with pytest.raises(CheckpointError, match=said):
        planned_from(str(tmp_path), 1)


def test_a_query_may_give_up_a_source_that_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for batch, names in enumerate((["orders", "clicks"], ["clicks", "views"])):
        text = ["v2", "{}", *(f"{name}:{json.dumps(FIRST)}" for name in names)]
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(text))
    assert planned_from(str(tmp_path), 1).digest


ORDERS = {"orders": {"0": 9}}
AT_5, AT_9 = {TopicPartition("a", 0): 5, TopicPartition("a", 1): 7}, from_json(SECOND)


@pytest.fixture
def note_named(tmp_path: Path) -> Callable[..., None]:
    """Notes down one micro-batch after the other, of sources that have a name."""
    offsets = tmp_path / "offsets"
    offsets.mkdir()

    def note(**sources: JsonOffsets) -> None:
        lines = [f"{name}:{json.dumps(source)}" for name, source in sources.items()]
        batch = sum(1 for _ in offsets.iterdir())
        (offsets / str(batch)).write_text("\n".join(["v2", "{}", *lines]))

    return note


@pytest.mark.parametrize("name", ["given_up", "renamed"])
@pytest.mark.parametrize("rests_for", [1, 3])
def test_a_source_that_comes_back_goes_on_where_it_was(
    note_named: Callable[..., None], tmp_path: Path, name: str, rests_for: int
) -> None:
    note_named(orders=ORDERS, given_up=SECOND)
    for _ in range(rests_for):
        note_named(orders=ORDERS)
    note_named(orders=ORDERS, **{name: with_start(SECOND, AT_5)})
    note_named(orders=ORDERS, **{name: SECOND})
    with pytest.raises(
        CheckpointError,
        match=r'begins at {"a": {"0": 5.* startingOffsets \'{"a": {"0": 9, "1": 7}}\'.*batch 0 w',
    ):
        planned_from(str(tmp_path), rests_for + 1)
    assert planned_from(str(tmp_path), rests_for + 2).digest
    (tmp_path / "offsets" / str(rests_for + 1)).unlink()
    (tmp_path / "offsets" / str(rests_for + 2)).unlink()
    note_named(orders=ORDERS, **{name: with_start(SECOND, AT_9)})
    assert AT_9 in batch_plan(str(tmp_path), rests_for + 1).starts
    assert planned_from(str(tmp_path), rests_for + 1).digest


def test_a_source_of_a_topic_that_others_read_or_that_was_created_again_begins_anywhere(
    note_named: Callable[..., None], tmp_path: Path
) -> None:
    def of_log(number: int) -> JsonOffsets:
        return with_identity(SECOND, LogIdentity({"a": UUID(int=number)}))

    note_named(orders=ORDERS, given_up=of_log(1))
    note_named(orders=ORDERS, second=with_start(ORDERS, from_json({"orders": {"0": 2}})))
    note_named(orders=ORDERS, given_up=with_start(of_log(2), AT_5))
    for batch in (1, 2):
        assert planned_from(str(tmp_path), batch).digest


def test_a_query_that_is_started_looks_two_files_back_for_a_source(
    note_named: Callable[..., None], tmp_path: Path
) -> None:
    ours = with_identity(SECOND, LogIdentity({"a": UUID(int=1)}))
    note_named(orders=ORDERS, given_up=FIRST)
    note_named(orders=ORDERS)
    note_named(orders=ORDERS, given_up=ours)
    assert batch_plan(str(tmp_path), 2).starts == (from_json(FIRST), from_json(ORDERS))
    note_named(orders=ORDERS)
    note_named(orders=ORDERS, given_up=SECOND)  # of another connector, which may have begun anew
    assert batch_plan(str(tmp_path), 4).starts == (None, from_json(ORDERS))


def test_where_a_new_source_begins_tells_a_batch_from_others(
    note_named: Callable[..., None], tmp_path: Path
) -> None:
    note_named(orders=ORDERS)
    digests = set()
    for begins in (AT_5, AT_9):
        note_named(orders={"orders": {"0": 10}}, new=with_start(SECOND, begins))
        digests.add(planned_from(str(tmp_path), 1).digest)
        (tmp_path / "offsets" / "1").unlink()
    assert len(digests) == 2


def test_a_source_that_had_nothing_before_is_told_by_its_file(plan: Callable[..., str]) -> None:
    plan(0, "-", FIRST)
    assert plan(1, FIRST, SECOND) != plan(1, FIRST, SECOND, time_ms=2000)


def test_rows_that_state_has_a_part_in_depend_on_the_time(
    plan: Callable[..., str], tmp_path: Path
) -> None:
    plan(0, FIRST)
    (tmp_path / "state").mkdir()
    assert plan(1, SECOND) == plan(1, SECOND)
    assert plan(1, SECOND) != plan(1, SECOND, time_ms=2000)


def test_a_batch_that_reads_nothing_is_told_by_its_file(plan: Callable[..., str]) -> None:
    plan(0, FIRST)
    assert plan(1, FIRST) != plan(1, FIRST, time_ms=2000)


def test_a_batch_begins_where_the_one_before_it_ends_whatever_is_noted_beside_the_offsets(
    plan: Callable[..., str], tmp_path: Path
) -> None:
    def planned(batch: int) -> Planned:
        return planned_from(str(tmp_path), batch)

    plan(0, FIRST, "-", time_ms=1000)
    plan(1, SECOND, "-")
    plan(2, SECOND, "7")
    ends = [planned(batch).end for batch in range(3)]
    assert planned(0).start == ""
    assert [planned(1).start, planned(2).start] == ends[:2]
    assert [planned(2).end_of(0), planned(2).end_of(1)] == ends[:2]
    assert len(set(ends)) == 3
    plan(0, with_start(FIRST, from_json(FIRST)), "-", time_ms=2000)
    assert planned(0).end == ends[0]
    (tmp_path / "offsets" / "0").unlink()  # by Spark, after a hundred batches
    assert planned(2).end_of(0) == NOT_KNOWN.end_of(0) == ""


def test_what_cannot_be_read_is_not_known(plan: Callable[..., str], tmp_path: Path) -> None:
    plan(1, SECOND)
    for place, batch in [
        (None, 1),
        (str(tmp_path), 1),  # where it begins is missing
        (str(tmp_path), 2),
        ("/nowhere", 0),
        ("hopefully://no/file/system", 1),
    ]:
        assert planned_from(place, batch) == NOT_KNOWN


def test_hadoops_names_of_a_directory_are_the_same_place(
    plan: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(0, FIRST)
    plan(1, SECOND)
    found = planned_from(str(tmp_path), 1)
    assert found == planned_from(f"file:{tmp_path}", 1) == planned_from(f"file://{tmp_path}", 1)
    monkeypatch.chdir(tmp_path.parent)
    assert found == planned_from(tmp_path.name, 1)


def test_the_id_of_a_query_is_in_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"some-id"}')
    for place in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        assert query_id_at(place) == "some-id"
    for text in ("", "[]", "{}"):
        (tmp_path / "metadata").write_text(text)
        assert query_id_at(str(tmp_path)) is None
    assert query_id_at(None) is None
    assert query_id_at(f"s3://{tmp_path}") is None
    assert query_id_at(f"file://host{tmp_path}") is None


@pytest.mark.parametrize("name", ["a space", "per%20cent", "ques?tion", "hash#tag", "a:b", "ü"])
def test_a_url_has_the_path_that_hadoop_takes_it_for(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    (directory / "offsets").mkdir(parents=True)
    (directory / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(FIRST)}")
    (directory / "metadata").write_text('{"id":"some-id"}')
    for place in (str(directory), f"file:{directory}", f"file://{directory}"):
        assert planned_from(place, 0) != NOT_KNOWN
        assert query_id_at(place) == "some-id"


def test_sources_may_have_names(plan: Callable[..., str], tmp_path: Path) -> None:
    ends = [json.dumps(each) for each in (FIRST, SECOND)]
    plan(0, *ends)
    once = batch_plan(str(tmp_path), 0).ends
    text = f"v2\n{{}}\nb:{ends[1]}\na:{ends[0]}\nc:-"
    (tmp_path / "offsets" / "0").write_text(text)
    assert batch_plan(str(tmp_path), 0).ends == (*once, None)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A file system that never says that it cannot be reached; how often it was asked."""
    asked, released = [], threading.Event()

    def from_uri(url: str) -> None:
        asked.append(url)
        released.wait()
        raise OSError("released")

    monkeypatch.setattr(pyarrow.fs, "FileSystem", type("Stuck", (), {"from_uri": from_uri}))
    monkeypatch.setattr(checkpoint, "LONGEST_READ_S", 0.05)
    monkeypatch.setattr(checkpoint, "_resting", {})
    yield asked
    released.set()


def test_nobody_waits_for_long_and_who_can_go_on_without_waits_once(
    stuck: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for batch in range(3):
            assert planned_from("s3a://bucket/a b", batch) == NOT_KNOWN
    assert stuck == ["s3://bucket/a%20b"]
    [warning] = [each.getMessage() for each in caplog.records]
    assert "cannot read the checkpoint s3a://bucket/a b" in warning
    assert "same rows in the same tasks" in warning
    with pytest.raises(TimeoutError):
        batch_plan("s3a://bucket/a b", 4)
    assert len(stuck) == 2
    assert planned_from("s3a://other/a", 5) == NOT_KNOWN
    assert len(stuck) == 3


def test_a_file_that_is_missing_says_nothing_of_its_file_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def from_uri(url: str) -> None:
        raise FileNotFoundError(url)

    monkeypatch.setattr(pyarrow.fs, "FileSystem", type("Empty", (), {"from_uri": from_uri}))
    monkeypatch.setattr(checkpoint, "_resting", {})
    assert planned_from("s3://bucket/a", 0) == NOT_KNOWN
    assert not checkpoint._resting
