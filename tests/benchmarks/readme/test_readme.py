"""The README keeps its word: figures are those of the committed results, links lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.common.harness import RESULTS
from benchmarks.readme.__main__ import page
from benchmarks.readme.figures import figures, with_figures
from benchmarks.readme.parts import Results


def test_figures_are_those_of_the_results(project: Path) -> None:
    readme = (project / "README.md").read_text()
    assert readme == with_figures(readme, Results()), "run python -m benchmarks.readme"
    assert (project / "docs" / "results.md").read_text() == page(Results()), "run python -m benchmarks.readme"


def test_the_readme_is_short_and_has_few_figures_with_their_commands(project: Path) -> None:
    assert len((project / "README.md").read_text().splitlines()) <= 160
    rows = list(figures(Results()))[2:]
    # Six, and one of pools elsewhere once that is measured.
    assert len(rows) == 6 + ("remote" in Results())
    assert all("`python -m benchmarks." in row for row in rows)


def test_accuracy_is_told_of_the_most_classes_it_was_measured_on(tmp_path: Path) -> None:
    for path in RESULTS.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    claim = {"claim": "klt 0.95 beats f16 in the bytes of f16 at 40x (ours)"}
    found = {"decisions": {"klt_fidelity": {}}, "claims": [claim | {"difference": 0.1, "two_errors": 0.02}]}
    unchosen, chosen = found, {**found, "decisions": {"klt_fidelity": {"f16 at 40x": 0.95}}}
    for results, told in ((unchosen, "20 classes"), (chosen, "40x, students of `klt` are 10.0 points")):
        (tmp_path / "accuracy_tiny100.json").write_text(json.dumps({"results": results}))
        (line,) = [line for line in figures(Results(tmp_path)) if "points better" in line]
        assert told in line
        assert ("100 classes" in line) == (results is chosen)


def test_simulated_labels_are_named_where_their_figures_stand() -> None:
    told = [line for line in page(Results()).splitlines() if "21K-P" in line or "10450 classes" in line]
    assert len(told) >= 3
    assert [line for line in told if "simulated" not in line] == []


def test_results_say_how_they_were_made(project: Path) -> None:
    for path in sorted((project / "benchmarks" / "results").glob("*.json")):
        document = json.loads(path.read_text())
        assert document["command"], path
        assert {"date", "commit", "versions"} <= document["circumstances"].keys(), path
        assert not re.search(r"/(tmp|root|home|work)/", document["command"]), path
