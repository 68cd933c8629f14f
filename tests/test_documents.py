"""Documents that name files name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOTS = ("lpld_labels", "lpld_core", "cli", "benchmarks", "examples", "tests", "docs")


def named_paths(text: str) -> set[str]:
    """Return what stands in backticks and is a path of this repository."""
    quoted = re.findall(r"`([^`\s]+)`", text)
    files = re.compile(rf"(?:(?:{'|'.join(ROOTS)})/.*|[A-Z]+\.md|Makefile|pyproject\.toml)")
    return {word for word in quoted if files.fullmatch(word)}


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_path_that_is_named_exists(project: Path, document: str) -> None:
    named = named_paths((project / document).read_text())
    assert len(named) > 20
    assert [path for path in sorted(named) if not (project / path).exists()] == []


def test_the_comparison_names_tests_that_exist(project: Path) -> None:
    named = named_paths((project / "docs/comparison.md").read_text())
    assert len(named) == 9
    assert [path for path in sorted(named) if not (project / path).is_file()] == []


def test_every_section_names_its_files(project: Path) -> None:
    _, *sections = re.split(r"^## ", (project / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    assert [section.splitlines()[0] for section in sections] == [
        "Set up",
        "Add a codec",
        "Add an importer",
        "Add a command",
        "Add a claim",
    ]
    for section in sections:
        steps = re.findall(r"^\d\. ", section, flags=re.MULTILINE)
        assert 3 <= len(steps) <= 7
        assert len(named_paths(section)) >= 3


def test_paths_are_told_from_other_words() -> None:
    text = (
        "`cli/prune.py`, `make test`, `--json`, `lpld_labels/errors.py`, `__main__.py`, `README.md`, `Codec`"
    )
    assert named_paths(text) == {"cli/prune.py", "lpld_labels/errors.py", "README.md"}
