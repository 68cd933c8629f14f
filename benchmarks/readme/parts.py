"""What every section of the README's results is made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.harness import RESULTS


class Results:
    """The committed documents by name."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Any:
        return json.loads((self._folder / f"{name}.json").read_text())["results"]

    def source(self, name: str) -> str:
        """Return the command that made a document, and where it is."""
        command = json.loads((self._folder / f"{name}.json").read_text())["command"]
        return f"`{command}`, [{name}.json](benchmarks/results/{name}.json)"


def table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in body:
        yield f"| {' | '.join(row)} |"
