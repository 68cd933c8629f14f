"""The workflow runs targets that exist, on the versions of Python that the package allows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lpld_labels.errors import EXTRAS


@pytest.fixture
def jobs(project: Path) -> dict[str, Any]:
    document = yaml.safe_load((project / ".github/workflows/test.yml").read_text())
    found: dict[str, Any] = document["jobs"]
    return found


def test_every_target_exists_and_all_are_run(project: Path, jobs: dict[str, Any]) -> None:
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = {word for line in lines for word in line.split()[1:] if "=" not in word}
    rules = set(re.findall(r"^([\w-]+):", (project / "Makefile").read_text(), flags=re.MULTILINE))
    assert all(line.startswith("make ") for line in lines)
    assert targets == {"lint", "types", "docs", "unit", "test-lowest"}
    assert targets <= rules


def test_the_oldest_python_is_the_oldest_allowed(project: Path, jobs: dict[str, Any]) -> None:
    versions = jobs["tests"]["strategy"]["matrix"]["python"]
    assert f'requires-python = ">={versions[0]}"' in (project / "pyproject.toml").read_text()
    numbers = [int(version.partition(".")[2]) for version in versions]
    assert numbers == sorted(set(numbers))
    assert len(numbers) >= 2


def test_every_extra_that_is_recommended_installs_the_module(project: Path) -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no TOML parser")
    extras = tomllib.loads((project / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for module, extra in EXTRAS.items():
        name = {"sklearn": "scikit-learn"}.get(module, module)
        assert any(re.match(rf"{name}\b", line) for line in extras[extra]), (module, extra)


def test_every_extra_is_documented(project: Path) -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no TOML parser")
    extras = tomllib.loads((project / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (project / "docs/howto/install.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(extras)


def test_the_citation_is_one(project: Path) -> None:
    citation = yaml.safe_load((project / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    paper = citation["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == ["Xiao", "He"]
    assert paper["title"] in (project / "docs" / "faq.md").read_text()
