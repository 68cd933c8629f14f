"""The README keeps its word: figures are those of the committed results, links lead somewhere."""

import json
import re
from pathlib import Path

import pytest

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
    assert len(rows) == 7
    assert all("`python -m benchmarks." in row for row in rows)


def test_simulated_labels_are_named_where_their_figures_stand() -> None:
    told = [line for line in page(Results()).splitlines() if "21K-P" in line or "10450 classes" in line]
    assert len(told) >= 3
    assert [line for line in told if "simulated" not in line] == []


def test_results_say_how_they_were_made(project: Path) -> None:
    assert Results().refused() == []
    for path in sorted((project / "benchmarks" / "results").glob("*.json")):
        document = json.loads(path.read_text())
        assert document["command"], path
        assert {"date", "commit", "versions"} <= document["circumstances"].keys(), path
        assert not re.search(r"/(tmp|root|home|work)/", document["command"]), path


@pytest.mark.parametrize(
    "facts", [{"commit": "abc1234-dirty"}, {"commit": "abc1234", "uncommitted_files": 2}]
)
def test_results_of_uncommitted_files_are_refused(tmp_path: Path, facts: dict[str, object]) -> None:
    for name, circumstances in {"scaling": {"commit": "abc1234"}, "diversity": facts}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"circumstances": circumstances}))
    (message,) = Results(tmp_path).refused()
    assert message.startswith("diversity.json was measured on uncommitted files: run `python -m benchmarks.")
