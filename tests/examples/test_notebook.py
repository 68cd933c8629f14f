"""The notebook runs in a real kernel: results, pools and progress bars are drawn."""

import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"


def outputs_of(cell: Any) -> str:
    """Return what a cell shows in a browser."""
    return "".join(output.get("data", {}).get("text/html", "") for output in cell.get("outputs", ()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's client
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, timeout=250, kernel_name="python3").execute()
    shown = {}
    for cell in notebook.cells:
        warned = [output["text"] for output in cell.get("outputs", ()) if output.get("name") == "stderr"]
        assert not any("Warning" in text or "Error" in text for text in warned), warned
        for verb in re.findall(r"lpld\.(\w+)\(", cell.source):
            shown[verb] = outputs_of(cell)
    assert shown["PoolReader"].count("<img") == 8
    for verb, bar in {
        "squeeze": "squeezing images",
        "recover": "lpld images",
        "build": "labelling batches",
        "prune": "copying batches",
        "encode": "encoding batches",
        "train": "training steps",
    }.items():
        assert bar in shown[verb], verb
    for verb in ("squeeze", "build", "encode", "train"):
        assert "<table>" in shown[verb], verb
    (top1,) = re.findall(r"top1: ([\d.]+)", notebook.cells[-1].outputs[-1]["data"]["text/plain"])
    assert float(top1) > 0.4, "the notebook promises about 0.7"
