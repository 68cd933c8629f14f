"""The fidelity that plan asks for is the one whose students were best, by the results that are kept."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lpld_labels.transforms.settings import DEFAULT_MIN_FIDELITY


def test_the_default_is_that_of_the_benchmark(project: Path) -> None:
    results = json.loads((project / "benchmarks/results/accuracy_tiny100.json").read_text())["results"]
    found = {f"f16 at {ratio:g}x": DEFAULT_MIN_FIDELITY for ratio in (40, 160)}
    assert found == results["decisions"]["klt_fidelity"]
    for ratio in (40, 160):
        students = {
            cell["fidelity"]: cell["top1"]
            for cell in results["cells"]
            if (cell["codec"], cell["ratio"], cell["seed"]) == ("klt", ratio, 0)
            and not (cell["temperature_schedule"] or cell["student_temperature"])
        }
        assert len(students) == 5
        assert max(students, key=lambda one: students[one]) == DEFAULT_MIN_FIDELITY


def test_the_documents_show_why(project: Path) -> None:
    results = json.loads((project / "benchmarks/results/accuracy_tiny100.json").read_text())["results"]
    plain = [
        cell
        for cell in results["cells"]
        if (cell["method"], cell["seed"], cell["pool"], cell["by"]) == ("lpld", 0, "batches", "random")
        and cell["iterations"] == results["decisions"]["iterations"]
        and not (cell["policy"] or cell["temperature_schedule"] or cell["student_temperature"])
    ]
    measured = {
        (f"{cell['codec']} {cell['fidelity'] or ''}".strip(), cell["rows"], round(100 * cell["top1"], 1))
        for cell in plain
        if cell["ratio"] == 40 or (cell["ratio"], cell["codec"]) == (1, "f16")
    }
    text = (project / "docs/howto/choose.md").read_text()
    row = r"^\| `([\w:]+)`(?: ([\d.]+))?(?:, all.*)? \| ([\d,]+) \| ([\d.]+) \|$"
    shown = re.findall(row, text, re.MULTILINE)
    assert len(shown) == 10
    assert measured == {
        (f"{codec} {float(fidelity) if fidelity else ''}".strip(), int(views.replace(",", "")), float(top1))
        for codec, fidelity, views, top1 in shown
    }


def test_the_documents_know_what_a_falling_temperature_gave(project: Path) -> None:
    results = json.loads((project / "benchmarks/results/accuracy_tiny100.json").read_text())["results"]
    details = {claim["claim"]: claim["detail"].split(" (")[0] for claim in results["claims"]}
    helps = details["temperature schedule step helps klt 0.95 in the bytes of f16 at 40x"]
    warmed, plain = helps.replace("%", "").split(" against ")
    (within,) = [
        text
        for claim, text in details.items()
        if claim.startswith("klt 0.95 with temperature schedule step in")
    ]
    everything = within.replace("%", "").split(" against ")[1]
    text = " ".join((project / "docs/howto/choose.md").read_text().split())
    assert f"from {plain} to {warmed} % on those seeds" in text
    assert f"at a constant one, {everything} %" in text
