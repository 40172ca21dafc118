"""The notebooks run from top to bottom and show what their text says.

With KAFKALOG_STORE_NOTEBOOKS set what they show is stored in them: `make notebooks-stored`.
"""

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from nbclient import NotebookClient
from nbformat.notebooknode import NotebookNode

from pyspark_kafkalog.quickstart import read_flights
from tests.support.stored_notebook import store

ROOT = Path(__file__).parent.parent

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.slow,
    pytest.mark.spark,
    # Jupyter's own parts warn of their own deprecations.
    pytest.mark.filterwarnings("default"),
]


class Executed(NotebookClient):
    """A notebook that was run, and what it shows."""

    def __init__(self, name: str) -> None:
        path = ROOT / "notebooks" / name
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        self.updates = 0
        super().__init__(notebook, timeout=300, kernel_name="python3")
        self.execute()
        if os.environ.get("KAFKALOG_STORE_NOTEBOOKS"):
            store(notebook, path)
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        shown = [output.get("data", {}) for output in outputs]
        self.plots = [data["image/png"] for data in shown if "image/png" in data]
        self.texts = [data["text/plain"] for data in shown if "text/plain" in data]
        self.printed = "".join(output.text for output in outputs if output.get("name") == "stdout")

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        self.updates += msg["msg_type"] == "update_display_data"
        return super().process_message(msg, cell, cell_index)


@pytest.fixture
def execute(monkeypatch: pytest.MonkeyPatch) -> type[Executed]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    return Executed


@pytest.mark.long
def test_quickstart(execute: type[Executed]) -> None:
    done = execute("01_quickstart.ipynb")
    assert len(done.plots) == 2
    assert "'336,776 flights produced'" in done.texts
    assert "(336776, 0)" in done.texts
    assert done.texts.count("336776") == 3


@pytest.mark.long
def test_streaming(execute: type[Executed]) -> None:
    done = execute("02_streaming.ipynb")
    # One of them was drawn again and again in its place.
    assert len(done.plots) == 2
    assert done.updates > 5
    assert any(
        re.fullmatch(r"'308,641 flights in \d+ batches, and 0 to come'", text)
        for text in done.texts
    )
    assert re.findall(r"total lag=(\d+)", done.printed) == ["28135", "0"]
    assert "[28135]" in done.texts
    assert "(331327, 331327, 0)" in done.texts


@pytest.mark.long
def test_write_back(execute: type[Executed]) -> None:
    done = execute("03_write_back.ipynb")
    flights = read_flights()
    summer = flights.filter(pc.is_in(flights["month"], pa.array([6, 7, 8])))
    late = pc.sum(pc.greater(summer["arr_delay"], 60)).as_py()
    june = pc.sum(pc.equal(summer["month"], 6)).as_py()
    assert len(done.plots) == 2
    assert done.updates > 1
    assert done.printed == "True\n"
    assert str(late) in done.texts
    assert f"({late}, True)" in done.texts
    assert any(re.fullmatch(rf"\(\([1-9]\d+, 0\), {june}\)", text) for text in done.texts)


@pytest.mark.long
def test_warehouse(execute: type[Executed]) -> None:
    done = execute("04_warehouse.ipynb")
    flights = read_flights()
    july = flights.filter(pc.equal(flights["month"], 7))
    by_day = [pc.sum(pc.equal(july["day"], day)).as_py() for day in range(1, 6)]
    first, second, third, fourth, fifth = by_day
    assert len(done.plots) == 2
    assert done.updates == 9
    assert f"([{first}, {second}, {third + fourth}, {fifth}], 0)" in done.texts
    (versions,) = [text for text in done.texts if "offsets" in text]
    rows = [int(line.split()[-1]) for line in versions.splitlines()[1:]]
    assert rows == [sum(by_day[:count]) for count in (1, 2, 4, 5)]
    assert any(
        re.fullmatch(rf"\(\d, {first + second}, {sum(by_day)}\)", text) for text in done.texts
    )


@pytest.mark.long
def test_failover(execute: type[Executed]) -> None:
    done = execute("05_failover.ipynb")
    assert len(done.plots) == 1
    assert done.texts.count("[1, 2, 3]") == 2
    assert "(True, 0)" in done.texts


def test_changing_table(execute: type[Executed]) -> None:
    done = execute("06_changing_table.ipynb")
    assert len(done.plots) == 1
    assert "(True, (0, 0))" in done.texts
    (gone,) = (text for text in done.texts if re.fullmatch(r"\(True, \d+\)", text))
    assert gone != "(True, 0)"
