"""Notebooks are stored with what they show, so that a forge shows it, and nothing else is told."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
PLACE = re.compile(r"(?<![\w.:/<>])(?:/[\w.-]+){2,}|\b[A-Z]:\\|127\.0\.0\.1|localhost:")
"""An absolute path, or an address."""


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Any:
    return nbformat.read(request.param, as_version=4)  # type: ignore[no-untyped-call]


@pytest.fixture
def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def texts_of(output: Any) -> list[Any]:
    if output.output_type == "stream":
        return [output.text]
    return [text for kind, text in output.data.items() if kind.startswith("text/")]


def test_all_cells_ran_one_after_the_other(notebook: Any) -> None:
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert not any("execution" in cell.metadata for cell in notebook.cells)


def test_plots_are_stored(outputs: list[Any]) -> None:
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_neither_errors_nor_warnings_nor_logs_are(outputs: list[Any]) -> None:
    assert {output.output_type for output in outputs} <= {
        "display_data",
        "execute_result",
        "stream",
    }
    assert {output.name for output in outputs if output.output_type == "stream"} <= {"stdout"}


def test_no_place_of_a_machine_and_no_control_character_is(outputs: list[Any]) -> None:
    for output in outputs:
        for text in texts_of(output):
            assert not PLACE.search(text), text
            assert not re.search(r"[\x00-\x08\x0b-\x1f]", text), text
