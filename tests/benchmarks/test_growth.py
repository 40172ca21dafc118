"""A sweep that fails keeps what it has measured, and what is left is whole."""

import json
from pathlib import Path

from benchmarks.growth import Curves, Point, Sweep, read_json, run, write_chart, write_json

SWEEP = ("log", "GB", "us", "MB")


def test_a_sweep_measures_each_size_once_and_in_order() -> None:
    sweep = Sweep(*SWEEP, [1, 4], lambda size: ({"ours": size * 2.0}, {"ours": 40.0}))
    curves = run(sweep, lambda _: None)
    assert curves.points == [
        Point(1, {"ours": 2}, {"ours": 40}),
        Point(4, {"ours": 8}, {"ours": 40}),
    ]
    assert not curves.error


def test_a_size_that_fails_ends_its_sweep_and_keeps_the_smaller_ones() -> None:
    def measure(size: int) -> tuple[dict[str, float], dict[str, float]]:
        if size > 1:
            raise OSError("no space left")
        return {"ours": 1.0}, {}

    told: list[str] = []
    curves = run(Sweep(*SWEEP, [1, 2, 3], measure), told.append)
    assert [point.x for point in curves.points] == [1]
    assert curves.error == "OSError: no space left"
    assert "FAILED" in told[-1]


def test_the_file_and_the_charts_hold_every_curve(tmp_path: Path) -> None:
    # The peer is measured at the small sizes only; a failed sweep may have no point at all.
    points = [Point(1, {"ours": 1, "peer": 2}, {"ours": 3}), Point(10, {"ours": 2}, {"ours": 3})]
    found = [Curves(*SWEEP, points), Curves(*SWEEP, error="OSError: no")]
    write_json(found, tmp_path / "growth.json")
    assert read_json(tmp_path / "growth.json") == found
    write_chart(found, tmp_path / "growth.svg")
    first, second = json.loads((tmp_path / "growth.json").read_text())["sweeps"]
    assert first["points"][0] == {"x": 1, "time": {"ours": 1, "peer": 2}, "memory": {"ours": 3}}
    assert second["error"] == "OSError: no"
    assert (tmp_path / "growth.svg").stat().st_size > 1000
