"""What is kept of an executed notebook: what it shows, and nothing of how and where it ran."""

import re
from pathlib import Path
from typing import Any

import nbformat

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def store(notebook: Any, path: Path) -> None:
    """Writes `notebook` to `path`: outputs without warnings and logs (stderr), progress bars'
    control characters and times of cells, and metadata as it was there before."""
    stored = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [_plain(each) for each in cell.outputs if each.get("name") != "stderr"]
    notebook.metadata = stored.metadata
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


def _plain(output: Any) -> Any:
    if output.output_type == "stream":
        lines = _ESCAPES.sub("", output.text).split("\n")
        # Of a line that was written again and again, what stood there last.
        output.text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    return output
