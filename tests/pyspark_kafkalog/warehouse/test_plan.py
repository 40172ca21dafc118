"""Where a load begins and ends in a word, and how much it takes."""

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.offsets import RelativeLimit
from pyspark_kafkalog.source.options import batch_options
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.places import parse_time
from pyspark_kafkalog.warehouse import portions
from pyspark_kafkalog.warehouse.places import Place, with_places
from pyspark_kafkalog.warehouse.plan import LoadPlan
from pyspark_kafkalog.warehouse.portions import chunks_of, within_bytes

OPTIONS = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "orders"}
NOVEMBER_MS = 1_793_491_200_000  # 2026-11-01T00:00Z
STRATEGY = "startingOffsetsByTimestampStrategy"


def utc() -> tzinfo:
    return timezone.utc


def added(starting: Place | None = None, until: Place | None = None) -> dict[str, str]:
    """The options that the two stand for, which the connector takes."""
    merged = with_places(OPTIONS, starting, until, utc)
    batch_options(merged)
    return {name: value for name, value in merged.items() if name not in OPTIONS}


@pytest.mark.parametrize(
    "place",
    [
        NOVEMBER_MS,
        str(NOVEMBER_MS),
        "2026-11-01",
        " 2026-11-01T00:00 ",
        "2026-11-01 00:00:00.000",
        "2026-11-01T00:00:00Z",
        "2026-11-01T01:00+01:00",
        datetime(2026, 11, 1),
        datetime(2026, 11, 1, tzinfo=timezone.utc),
    ],
)
def test_a_time_in_any_form(place: int | str | datetime) -> None:
    time_ms = str(NOVEMBER_MS)
    assert added(starting=place) == {"startingTimestamp": time_ms, STRATEGY: "latest"}
    assert added(until=place) == {"endingTimestamp": time_ms}


def test_a_time_without_a_zone_is_in_the_one_that_is_handed_in() -> None:
    berlin = with_places(OPTIONS, "2026-11-01T01:00", None, lambda: ZoneInfo("Europe/Berlin"))
    assert berlin["startingTimestamp"] == str(NOVEMBER_MS)
    here = with_places(OPTIONS, "2026-11-01T00:00", None, lambda: None)
    local_ms = int(datetime(2026, 11, 1).timestamp()) * 1000
    assert here["startingTimestamp"] == str(local_ms)


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30)))
def test_a_time_is_told_to_the_millisecond(moment: datetime) -> None:
    milliseconds = (moment - datetime(1970, 1, 1)) // timedelta(milliseconds=1)
    assert added(until=moment.isoformat()) == {"endingTimestamp": str(milliseconds)}


def test_offsets_and_words_are_those_of_the_connector() -> None:
    assert added(starting="earliest", until="latest") == {
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
    }
    offsets = {"orders": {"0": 5, "1": -1}}
    assert added(until=offsets) == {"endingOffsets": '{"orders": {"0": 5, "1": -1}}'}
    assert added(until='{"orders": {"0": 5}}') == {"endingOffsets": '{"orders": {"0": 5}}'}


@pytest.mark.parametrize("text", ["-10 minutes", "-1000"])
def test_a_start_may_count_back(text: str) -> None:
    assert isinstance(batch_options(with_places(OPTIONS, text, None, utc)).starting, RelativeLimit)


@pytest.mark.parametrize(
    ("starting", "until"),
    [
        ("latest", None),
        (None, "earliest"),
        (None, "-10 minutes"),
        ("yesterday", None),
        ("2026-13-01", None),
        ("", None),
        (-5, None),
        (None, {"orders": 5}),
        (True, None),
        (None, datetime(1969, 1, 1)),
    ],
)
def test_what_is_no_place_is_refused(
    starting: str | int | None, until: str | dict[str, int] | datetime | None
) -> None:
    with pytest.raises(InvalidOptionError):
        batch_options(with_places(OPTIONS, starting, until, utc))


def test_a_time_beyond_the_calendar_of_this_machine_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="is no place where a load can begin"):
        with_places(OPTIONS, datetime.min, None, lambda: None)


def test_what_is_said_twice_is_refused() -> None:
    options = {**OPTIONS, "endingoffsets": "latest"}
    with pytest.raises(InvalidOptionError, match="until and the option endingOffsets both say it"):
        with_places(options, None, "latest", utc)


def test_other_texts_are_no_times() -> None:
    assert parse_time("2026") is None
    assert parse_time("-10 minutes") is None
    assert parse_time('{"orders":{"0":1}}') is None
    assert parse_time("0001-01-01T00:00") is None
    assert parse_time("0001-01-01T00:00Z") is not None


A = OffsetRange("orders", 0, 100, 1100)
B = OffsetRange("orders", 1, 0, 100)
EMPTY = OffsetRange("payments", 0, 5, 5)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartition, float]:
    """Ten bytes an offset, if the brokers tell."""
    told: dict[TopicPartition, float] = {A.topic_partition: 10.0, B.topic_partition: 10.0}
    monkeypatch.setattr(portions, "sample_sizes", lambda cluster, positions: told)
    return told


def test_a_bound_in_bytes_takes_the_same_part_of_each_partition(
    sizes: dict[TopicPartition, float],
) -> None:
    assert within_bytes(None, [A, B, EMPTY], 5_500) == [  # type: ignore[arg-type]
        OffsetRange("orders", 0, 100, 600),
        OffsetRange("orders", 1, 0, 50),
        EMPTY,
    ]
    assert within_bytes(None, [A, B, EMPTY], 11_000) == [A, B, EMPTY]  # type: ignore[arg-type]


def test_portions_come_to_the_whole_whatever_their_size(sizes: dict[TopicPartition, float]) -> None:
    def take(left: Sequence[OffsetRange]) -> list[OffsetRange]:
        return within_bytes(None, left, 3_000)  # type: ignore[arg-type]

    chunks = list(chunks_of([A, B, EMPTY], take))
    assert len(chunks) == 4
    assert EMPTY in chunks[0]
    for whole in (A, B):
        pieces = [
            piece for chunk in chunks for piece in chunk if piece.partition == whole.partition
        ]
        pieces = [piece for piece in pieces if piece.topic == "orders"]
        bounds = [piece.start_offset for piece in pieces] + [pieces[-1].until_offset]
        assert bounds == sorted(set(bounds))
        assert (bounds[0], bounds[-1]) == (whole.start_offset, whole.until_offset)
    assert list(chunks_of([A, B], None)) == [[A, B]]
    assert list(chunks_of([], take)) == []


def test_a_portion_is_one_offset_at_least(sizes: dict[TopicPartition, float]) -> None:
    chunks = list(
        chunks_of([OffsetRange("orders", 0, 0, 3)], lambda left: within_bytes(None, left, 1))  # type: ignore[arg-type]
    )
    assert [piece.offset_count for [piece] in chunks] == [1, 1, 1]


def test_a_plan_reads_well() -> None:
    sizes = {A.topic_partition: 2048, B.topic_partition: 100}
    plan = LoadPlan("nightly", "parquet:/t", (A, B), sizes, 1, 2)
    assert repr(plan) == (
        "<LoadPlan 'nightly' to parquet:/t: 1,100 offsets of 2 partitions, about 2.1 KiB of the "
        "log, tasks: 1, commits: 2\n"
        "  orders-0: from 100 until 1100, 1,000 offsets, about 2.0 KiB of the log\n"
        "  orders-1: from 0 until 100, 100 offsets, about 100 bytes of the log>"
    )
    silent = LoadPlan("nightly", "parquet:/t", (A,), {}, 1, 1)
    assert "about" not in repr(silent)
    many = tuple(OffsetRange("orders", number, 0, 1) for number in range(300))
    assert repr(LoadPlan("n", "parquet:/t", many, {}, 1, 1)).endswith("and 200 more partitions>")
    assert repr(LoadPlan("n", "parquet:/t", (), {}, 0, 0)).endswith("nothing new>")


def test_a_partition_with_offsets_given_up_is_one_partition_of_one_size() -> None:
    """The range of no offsets says from where on."""
    pieces = [OffsetRange("orders", 0, 50, 50), A, EMPTY]
    plan = LoadPlan("nightly", "parquet:/t", tuple(pieces), {A.topic_partition: 2048}, 1, 1)
    assert repr(plan).splitlines()[1:] == [
        "  orders-0: from 50 until 50, 0 offsets",
        "  orders-0: from 100 until 1100, 1,000 offsets, about 2.0 KiB of the log",
        "  payments-0: from 5 until 5, 0 offsets>",
    ]
    many = [
        OffsetRange("orders", number, start, start + 1) for number in range(110) for start in (0, 2)
    ]
    assert repr(LoadPlan("n", "parquet:/t", tuple(many), {}, 1, 1)).endswith("10 more partitions>")
