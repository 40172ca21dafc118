"""What a run leaves is whole and read back; the documentation shows what is recorded."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import docs_page
from benchmarks.pairs import Result, Row
from benchmarks.report import in_place_of, read_json, table, write_chart, write_json

RESULTS = [
    Result(Row("Broker", "fetch", "MB/s", 1, peer_name="Kafka"), [20.0, 30.0], [10.0, 10.0], 4.5),
    Result(Row("Connector", "read", "M rows/s", 2, settings={"both": "x"}), [1.0], [1.0]),
    Result(Row("Broker", "start", "s", limit=0.5, higher_is_better=False), [0.4], [4.0]),
    Result(Row("Broker", "land", "s"), error="RuntimeError: no [bold] disk"),
]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    write_json(RESULTS, tmp_path / "new" / "results.json", scale=1.0)
    return tmp_path / "new" / "results.json"


def test_results_are_read_back_as_they_were(recorded: Path) -> None:
    assert read_json(recorded) == RESULTS


def test_the_file_says_what_was_measured_with_what(recorded: Path) -> None:
    document = json.loads(recorded.read_text())
    assert document["versions"]["Apache Kafka"] == "4.3.0"
    assert document["machine"]["processors"]
    assert "-Xmx1G" in document["settings"]["Apache Kafka"]["java"]
    assert document["results"][0]["ratios"] == [2, 3]
    assert [each["reached"] for each in document["results"]] == [True, False, True, False]


def test_a_missing_file_has_no_results(tmp_path: Path) -> None:
    assert read_json(tmp_path / "results.json") == []


def test_rows_measured_again_take_the_place_of_their_earlier_results() -> None:
    again = Result(RESULTS[1].row, [5.0], [1.0])
    other = Result(Row("Broker", "restart", "s"), [1.0], [1.0])
    assert in_place_of(RESULTS, [again, other]) == [RESULTS[0], again, *RESULTS[2:], other]


def test_the_table_gathers_groups_and_names_what_missed_and_failed() -> None:
    text = io.StringIO()
    Console(file=text, width=200).print(table(RESULTS))
    lines = [line for line in text.getvalue().splitlines() if line.startswith("│")]
    names = [line.split("│")[1].strip() for line in lines]
    assert names == ["Broker", "fetch", "start", "land", "Connector", "read"]
    assert "2.50" in lines[1]
    assert "at most 0.5 s" in lines[2]
    assert "no [bold] disk" in lines[3]
    assert "MISSED: 2" in lines[5]


def test_the_same_figures_give_the_same_chart(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        write_chart(RESULTS, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "one.svg").stat().st_size > 1000


def test_the_page_has_a_chart_and_a_table_for_each_group(recorded: Path) -> None:
    made = docs_page.section(recorded, charts="results/")
    assert made.startswith("![times as good as the peer](results/results.svg)\n")
    assert "| Broker | ours | peer | times as good | range | goal |" in made
    assert "; medians of 1 pairs or more." in made
    assert "| fetch | 25 MB/s | 10 MB/s | 2.50 | 2.00 to 3.00 | 1 |" in made


def test_the_page_names_the_rows_of_other_runs(tmp_path: Path) -> None:
    first, *others = (replace(result, run="the run") for result in RESULTS)
    write_json([first, *others], tmp_path / "results.json", scale=1.0)
    assert "run of the others" not in docs_page.section(tmp_path / "results.json")
    write_json([replace(first, run="later"), *others], tmp_path / "results.json", scale=1.0)
    made = docs_page.section(tmp_path / "results.json")
    assert " Not in the run of the others: fetch.\n" in made
