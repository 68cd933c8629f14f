"""Documents that name files name files that exist."""

import re
from pathlib import Path

import pytest

ROOTS = ("lpld_labels", "lpld_core", "cli", "benchmarks", "examples", "tests", "docs")
# What stands in backticks and is a path of this repository.
NAMED = re.compile(rf"`((?:{'|'.join(ROOTS)})/[^`\s]+|[A-Z]+\.md|Makefile|pyproject\.toml)`")


@pytest.mark.parametrize(
    ("document", "least"), [("CONTRIBUTING.md", 20), ("docs/architecture.md", 20), ("docs/comparison.md", 9)]
)
def test_every_path_that_is_named_exists(project: Path, document: str, least: int) -> None:
    named = set(NAMED.findall((project / document).read_text()))
    assert len(named) >= least
    assert [path for path in sorted(named) if not (project / path).exists()] == []
