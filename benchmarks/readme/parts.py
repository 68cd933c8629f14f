"""What every section of the results is made from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.rows import variant_name
from benchmarks.common.harness import PROJECT, RESULTS

MAP = PROJECT / "benchmarks" / "README.md"


class Results:
    """The committed documents by name."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self._folder = folder

    def refused(self) -> list[str]:
        """Return a message for every document that was measured on uncommitted files."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            facts = json.loads(path.read_text())["circumstances"]
            if facts["commit"].endswith("-dirty") or facts.get("uncommitted_files", 0):
                again = command(path.stem)
                found.append(f"{path.name} was measured on uncommitted files: run `{again}` on a commit")
        return found

    def __getitem__(self, name: str) -> Any:
        return json.loads((self._folder / f"{name}.json").read_text())["results"]

    def source(self, name: str) -> str:
        """Return the command that makes a document, and a link to the document."""
        return f"`{command(name)}`, [{name}.json](../benchmarks/results/{name}.json)"


@dataclass(frozen=True, kw_only=True)
class MappedClaim:
    """A row of the map in benchmarks/README.md: commands as typed, and names of result files."""

    commands: tuple[str, ...]
    results: tuple[str, ...]


def claim_map(page: Path = MAP) -> list[MappedClaim]:
    """Return which command makes which results."""
    found = []
    for line in page.read_text().splitlines():
        if line.startswith("| ") and "](results/" in line:
            _, _, command, results, _ = line.split("|")
            commands = re.findall(r"`(python -m [^`]+)`", command)
            names = re.findall(r"\]\(results/([^)]+)\)", results)
            found.append(MappedClaim(commands=tuple(commands), results=tuple(names)))
    return found


def command(name: str) -> str:
    """Return the command that makes a document of results."""
    (row,) = [row for row in claim_map() if f"{name}.json" in row.results]
    return row.commands[0]


def table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in body:
        yield f"| {' | '.join(row)} |"


def percent(row: dict[str, Any], *, mean: str = "mean", std: str = "std") -> str:
    """Return mean and spread of a row in percent."""
    spread = "" if row[std] is None else f" +/- {100 * row[std]:.1f}"
    return f"{100 * row[mean]:.1f}{spread}"


def by_ratio(title: str, rows: Sequence[dict[str, Any]], *, iterations: bool = False) -> Iterable[str]:
    """Yield a table of students: a line per variant, a column per ratio."""
    ratios = sorted({row["ratio"] for row in rows})
    variants: dict[str, dict[float, str]] = {}
    for row in rows:
        variants.setdefault(variant_name(row, iterations=iterations), {})[row["ratio"]] = percent(row)
    body = [[name, *(cells.get(ratio, "") for ratio in ratios)] for name, cells in sorted(variants.items())]
    yield ""
    yield from table((title, *(f"{ratio:g}x" for ratio in ratios)), body)


def details(title: str, lines: Iterable[str]) -> str:
    """Return a section that is folded away."""
    return "\n".join([f"<details markdown><summary>{title}</summary>", "", *lines, "", "</details>"])
