"""What every section of the results is made from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.harness import PROJECT, RESULTS

MAP = PROJECT / "benchmarks" / "README.md"


class Results:
    """The committed documents by name."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self._folder = folder

    def __contains__(self, name: str) -> bool:
        return (self._folder / f"{name}.json").exists()

    def __getitem__(self, name: str) -> Any:
        return json.loads((self._folder / f"{name}.json").read_text())["results"]

    def source(self, name: str) -> str:
        """Return the command that makes a document today, and where it is."""
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
