"""The README keeps its word: figures are those of the committed results, links lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.readme.__main__ import with_results
from benchmarks.readme.parts import Results


def test_figures_are_those_of_the_results(project: Path) -> None:
    readme = (project / "README.md").read_text()
    assert readme == with_results(readme, Results()), "run python -m benchmarks.readme"


@pytest.mark.parametrize("document", ["README.md", "docs/method.md", "CHANGELOG.md", "benchmarks/README.md"])
def test_links_lead_somewhere(project: Path, document: str) -> None:
    path = project / document
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_results_say_how_they_were_made(project: Path) -> None:
    for path in sorted((project / "benchmarks" / "results").glob("*.json")):
        document = json.loads(path.read_text())
        assert document["command"], path
        assert {"date", "commit", "versions"} <= document["circumstances"].keys(), path
        assert not re.search(r"/(tmp|root|home|work)/", document["command"]), path
