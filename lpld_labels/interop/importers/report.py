"""What an import reports, and the log of files it went on without."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lpld_labels.io.storage import write_errors


@dataclass(frozen=True, kw_only=True)
class Hole:
    """A file that could not be imported.

    file: below the label folder. why: one line. key: (epoch, batch) that is missing from the pool, None
    where the file was only a part of its batches (FKD).
    """

    file: str
    why: str
    key: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What was imported, and what a reader must know to trust it.

    found, assumed, odd: one sentence each. source_bytes: size of the label files.
    """

    format: str
    source: str
    pool: str
    batches: int
    rows: int
    epochs: int
    images: int
    classes: int
    codec: str
    content_digest: str
    source_bytes: int
    pool_bytes: int
    resumed: int
    found: tuple[str, ...]
    assumed: tuple[str, ...]
    odd: tuple[str, ...]
    holes: tuple[Hole, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        return asdict(self)


class HoleLog:
    """Holes on disk, so that an import that is interrupted and resumed forgets none.

    Several processes may add to it: each entry is one line, appended in one write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, hole: Hole) -> None:
        """Append one entry."""
        # A line of its own, even after one that a full disk cut short.
        line = "\n" + json.dumps(asdict(hole)) + "\n"
        with write_errors(self._path):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)

    def read(self) -> list[Hole]:
        """Return all entries, the last word on each file, sorted by key and file."""
        if not self._path.exists():
            return []
        holes = {}
        for line in self._path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # Empty or cut short; what it was about has not been read and will be again.
            key = entry["key"]
            holes[entry["file"]] = Hole(
                file=entry["file"], why=entry["why"], key=None if key is None else (key[0], key[1])
            )
        return sorted(holes.values(), key=lambda hole: (hole.key or (0, 0), hole.file))
