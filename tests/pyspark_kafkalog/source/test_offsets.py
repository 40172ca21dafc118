"""The JSON of offsets, and where "earliest" and "latest" are."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import DataLossError, InvalidOptionError
from pyspark_kafkalog.source.offsets import (
    EARLIEST,
    LATEST,
    LogBounds,
    OffsetLimit,
    RelativeLimit,
    describe,
    from_json,
    parse_assignment,
    parse_offset_limit,
    parse_start,
    parse_times,
    report_data_loss,
    resolve,
    to_json,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOUNDS = LogBounds(earliest={A0: 5, A1: 0, B0: 0}, latest={A0: 10, A1: 20, B0: 0})

offsets_by_partition = st.dictionaries(
    st.builds(TopicPartition, st.text(min_size=1), st.integers(0, 2**31 - 1)),
    st.integers(-2, 2**63 - 1),
)


@pytest.mark.parametrize(
    ("text", "symbol"), [("earliest", EARLIEST), ("Latest", LATEST), (" latest\n", LATEST)]
)
def test_words_are_read_in_any_case(text: str, symbol: int) -> None:
    assert parse_offset_limit("startingOffsets", text) == OffsetLimit(everywhere=symbol)


def test_json_names_an_offset_for_each_partition() -> None:
    limit = parse_offset_limit("startingOffsets", '{"a":{"0":23,"1":-1},"b":{"0":-2}}')
    assert limit.by_partition == {A0: 23, A1: LATEST, B0: EARLIEST}
    assert limit.named_offsets() == {A0: 23}
    assert limit.mentions(LATEST)
    assert limit.mentions(EARLIEST)


def test_json_names_a_word_for_all_partitions_of_a_topic() -> None:
    limit = parse_offset_limit("startingOffsets", '{"a":"Earliest","b":{"0":3},"c":"latest"}')
    assert limit == OffsetLimit(by_partition={B0: 3}, by_topic={"a": EARLIEST, "c": LATEST})
    assert limit.mentions(LATEST)
    assert limit.of([A0, A1, B0]) == {A0: EARLIEST, A1: EARLIEST, B0: 3}
    assert parse_offset_limit("startingOffsets", '{"a":"latest"}').mentions(LATEST)
    with pytest.raises(InvalidOptionError, match="the offsets of topic 'a' are not an object"):
        parse_offset_limit("startingOffsets", '{"a":"newest"}')
    with pytest.raises(InvalidOptionError, match="the offsets of topic 'a' are not an object"):
        parse_times("startingOffsetsByTimestamp", '{"a":"latest"}')


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("-1000", RelativeLimit(offsets=1000)),
        (" - 5 offsets", RelativeLimit(offsets=5)),
        ("-0", RelativeLimit(offsets=0)),
        ("-1 offsets", RelativeLimit(offsets=1)),
        ("-250ms", RelativeLimit(ms=250)),
        ("-90 Seconds", RelativeLimit(ms=90_000)),
        ("-10 minutes", RelativeLimit(ms=600_000)),
        ("-10m", RelativeLimit(ms=600_000)),
        ("-2 h", RelativeLimit(ms=7_200_000)),
        ("-1 day", RelativeLimit(ms=86_400_000)),
        ("-2 weeks", RelativeLimit(ms=14 * 86_400_000)),
        ("earliest", OffsetLimit(everywhere=EARLIEST)),
        ('{"a":{"0":23}}', OffsetLimit(by_partition={A0: 23})),
    ],
)
def test_a_start_may_be_counted_back(text: str, limit: RelativeLimit | OffsetLimit) -> None:
    assert parse_start("startingOffsets", text) == limit


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("-1", "means latest in JSON and might mean 1 offsets before the end here"),
        ("-2", "write earliest, or -2 offsets"),
        ("-3 fortnights", "has the unit 'fortnights'; expected offsets, ms, seconds"),
        ("10 minutes", "is malformed: expected earliest, latest, -10 minutes or -1000 offsets"),
        ("{", "is not valid JSON at line 1 column 2"),
        ("-", "is malformed"),
        ("-1.5 hours", "is malformed"),
        ("-1 -2", "is malformed"),
        ("-" + "9" * 16, "is malformed"),
    ],
)
def test_what_may_mean_two_things_or_none_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        parse_start("startingOffsets", text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a":{"0":23}', "line 1 column 14"),
        ("newest", "line 1 column 1"),
        ('{"a":[0]}', "the offsets of topic 'a' are not an object"),
        ('{"a":{"zero":1}}', "partition 'zero' of topic 'a' is not a partition number"),
        ('{"a":{"-1":1}}', "is not a partition number"),
        ('{"a":{"2147483648":1}}', "is not a partition number"),
        ('{"a":{"0":1,"00":2}}', "partition '00' of topic 'a' is not a partition number"),
        ('{"a":{"' + "1" * 5000 + '":1}}', "is not a partition number"),
        ('{"a":{"0":-3}}', "neither an offset nor -2 or -1"),
        ('{"a":{"0":1.5}}', "neither an offset nor -2 or -1"),
        ('{"a":{"0":true}}', "neither an offset nor -2 or -1"),
        ('{"a":{"0":9223372036854775808}}', "neither an offset nor -2 or -1"),
        ('{"a":{"0":1},"a":{"1":2}}', "'a' comes twice"),
        ('{"a":{"0":1,"0":2}}', "'0' comes twice"),
        ("[]", "it is not a JSON object"),
        ("{}", "it names no partition"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_malformed_offsets_name_the_option_the_place_and_an_example(
    text: str, problem: str
) -> None:
    with pytest.raises(InvalidOptionError, match=re.escape(problem)) as caught:
        parse_offset_limit("endingOffsets", text)
    assert "endingOffsets" in str(caught.value)
    assert '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}' in str(caught.value)
    assert len(str(caught.value)) < 600


def test_json_names_a_time_for_each_partition() -> None:
    assert parse_times("o", '{"a":{"0":0,"1":1700000000000}}') == {A0: 0, A1: 1_700_000_000_000}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a":{"0":-1}}', "partition '0' of topic 'a' has -1, which is not a time in millis"),
        ('{"a":{"0":"now"}}', "'now', which is not a time"),
        ("latest", "not valid JSON at line 1 column 1"),
        ('{"a":1700000000000}', "not an object"),
        ("{}", "it names no partition"),
    ],
)
def test_malformed_times_name_the_option_the_place_and_an_example(text: str, problem: str) -> None:
    with pytest.raises(InvalidOptionError, match=re.escape(problem)) as caught:
        parse_times("endingOffsetsByTimestamp", text)
    assert "Option endingOffsetsByTimestamp is malformed" in str(caught.value)
    assert 'Expected e.g. {"topicA":{"0":1700000000000,' in str(caught.value)


def test_an_assignment_is_sorted_and_without_repetitions() -> None:
    assert parse_assignment("assign", '{"b":[0],"a":[1,0,1]}') == (A0, A1, B0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a":0}', "the partitions of topic 'a' are not a list"),
        ('{"a":["0"]}', "topic 'a' has '0', which is not a partition number"),
        ('{"a":[-1]}', "topic 'a' has -1"),
        ('{"a":[]}', "it names no partition"),
        ('{"a":[0', "line 1 column 8"),
    ],
)
def test_malformed_assignments_name_the_place_and_an_example(text: str, problem: str) -> None:
    with pytest.raises(InvalidOptionError, match=re.escape(problem)) as caught:
        parse_assignment("assign", text)
    assert '{"topicA":[0,1],"topicB":[2,4]}' in str(caught.value)


@given(offsets_by_partition)
def test_the_checkpoint_form_reads_back(offsets: dict[Any, int]) -> None:
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


def test_the_checkpoint_form_is_sparks_and_sorted_by_number() -> None:
    offsets = {B0: 3, TopicPartition("a", 10): 2, TopicPartition("a", 9): 1}
    assert json.dumps(to_json(offsets)) == '{"a": {"9": 1, "10": 2}, "b": {"0": 3}}'


@pytest.mark.parametrize(
    ("limit", "resolved"),
    [
        (OffsetLimit(everywhere=EARLIEST), {A0: 5, A1: 0}),
        (OffsetLimit(everywhere=LATEST), {A0: 10, A1: 20}),
        (OffsetLimit(by_partition={A0: 7, A1: LATEST}), {A0: 7, A1: 20}),
        (OffsetLimit(by_partition={A0: EARLIEST, A1: 0}), {A0: 5, A1: 0}),
    ],
)
def test_earliest_and_latest_are_looked_up(limit: OffsetLimit, resolved: dict[Any, int]) -> None:
    assert resolve("startingOffsets", limit, [A0, A1], BOUNDS) == resolved


@pytest.mark.parametrize("named", [{A0: 1}, {A0: 1, A1: 1, B0: 1}, {A0: 1, B0: 1}])
def test_json_must_name_exactly_the_partitions_that_are_read(named: dict[Any, int]) -> None:
    with pytest.raises(InvalidOptionError, match="startingOffsets must name every partition"):
        resolve("startingOffsets", OffsetLimit(by_partition=named), [A0, A1], BOUNDS)


def test_data_loss_fails_or_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match=r"a-0 is gone.*failOnDataLoss to\s+false"):
        report_data_loss("Partition a-0 is gone.", fail_on_data_loss=True)
    assert not caplog.records
    report_data_loss("Partition a-0 is gone.", fail_on_data_loss=False)
    assert "Partition a-0 is gone." in caplog.text


def test_many_partitions_are_described_briefly() -> None:
    assert describe([B0, A1]) == "a-1, b-0"
    assert describe(TopicPartition("t", n) for n in range(12)).endswith("t-9 and 2 more")
