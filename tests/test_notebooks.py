"""The notebooks run from top to bottom and show what their text says."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent


def outputs(cell, kind):
    return [
        output["data"][kind] for output in cell.get("outputs", []) if kind in output.get("data", {})
    ]


@pytest.mark.notebook
@pytest.mark.spark
# Jupyter's own parts warn of their own deprecations.
@pytest.mark.filterwarnings("default")
def test_quickstart(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    notebook = nbformat.read(ROOT / "notebooks" / "01_quickstart.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    plots = [image for cell in code for image in outputs(cell, "image/png")]
    texts = [text for cell in code for text in outputs(cell, "text/plain")]
    assert len(plots) == 2
    assert "'336,776 flights produced'" in texts
    assert "(336776, 0)" in texts
    assert texts.count("336776") == 3
